"""A mini cluster as a test sees it: real daemons in containers, people who submit, and `synsched` beside them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.slurm.inside import Inside

__all__ = ["CHECKOUT", "HOOK", "Mini", "Said"]

CHECKOUT = Path(__file__).parents[2]
HOOK = "/etc/slurm/job_submit.lua"
SLOWEST = """
import sqlite3, sys
store = sqlite3.connect("file:/var/lib/synsched/synsched.db?mode=ro", uri=True)
print(*store.execute("SELECT max(finished - started) FROM rounds WHERE started > ?", [float(sys.argv[1])]).fetchone())
"""
TRAINING = """#!/bin/bash
# Counts steps as a training loop would; USR1 makes it write its checkpoint, and it resumes from one.
log=$HOME/log-$SLURM_JOB_ID ckpt=$HOME/ckpt-$SLURM_JOB_ID
step=$(cat "$ckpt" 2>/dev/null || echo 0)
echo "start step=$step restarts=${SLURM_RESTART_COUNT:-0} nodes=$SLURM_JOB_NODELIST cpus=$SLURM_CPUS_ON_NODE" >> "$log"
trap 'echo "$step" > "$ckpt"; echo "checkpoint step=$step" >> "$log"' USR1
while [ "$step" -lt "${STEPS:-100000}" ]; do
    sleep 0.5 & wait $!
    step=$((step + 1))
done
echo "done step=$step" >> "$log"
"""


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Mini:
    """One cluster by name. It comes, goes and breaks through `docker-slurm/cluster`, as a person would do it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inside: dict[str, Inside] = {}

    def cluster(self, *words: str, timeout: float = 900) -> Said:
        """A `docker-slurm/cluster` command; raises with its words where it fails."""
        while self._inside:  # containers may be others afterwards
            self._inside.popitem()[1].close()
        said = self._run([str(CHECKOUT / "docker-slurm/cluster"), *words, "--name", self.name], timeout=timeout)
        assert said.code == 0, f"cluster {' '.join(words)}: {said.err}"
        return said

    @classmethod
    def compiled(cls, release: str) -> None:
        """What `up` needs, made where it is missing: docker, the image of the release, bytecode for its Python."""
        said = cls._run([str(CHECKOUT / "docker-slurm/cluster"), "compile", "--release", release], timeout=1800)
        assert said.code == 0, said.err

    def run(self, *command: str, user: str = "root", on: str = "login", stdin: str = "", timeout: float = 120) -> Said:
        """A command in a container, whatever it answers."""
        inside = self._inside.setdefault(on, Inside(f"slurmsched-{self.name}-{on}"))
        return Said(*inside.run(command, user, stdin, timeout))

    def sure(self, *command: str, user: str = "root", on: str = "login", stdin: str = "", timeout: float = 120) -> str:
        """A command that has to succeed; its output."""
        said = self.run(*command, user=user, on=on, stdin=stdin, timeout=timeout)
        assert said.code == 0, f"{' '.join(command)}: exit {said.code}\n{said.out}{said.err}"
        return said.out

    def synsched(self, *words: str, user: str = "synsched", on: str = "login", timeout: float = 300) -> Said:
        return self.run("synsched", *words, user=user, on=on, timeout=timeout)

    def write(self, path: str, text: str, on: str = "login") -> None:
        self.sure("sh", "-c", f"cat > {path}", stdin=text, on=on)

    def install_hook(self, text: str) -> None:
        """This as slurmctld's job_submit.lua, read at the next submission.

        slurmctld goes by whole seconds of the file's time, so each one is a second younger than the last.
        """
        younger = f"old=$(stat -c %Y {HOOK}); now=$(date +%s); cat > {HOOK}; "
        younger += f"touch -d @$(( (old > now ? old : now) + 1 )) {HOOK}"
        self.sure("bash", "-c", younger, on="ctl", stdin=text)

    def configure(self, **sections: dict[str, object]) -> None:
        """/etc/synsched/synsched.toml with these settings."""
        lines = []
        for section, values in sections.items():
            lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
        self.write("/etc/synsched/synsched.toml", "\n".join(lines))

    @contextmanager
    def daemon(self, *options: str) -> Iterator[None]:
        """The daemon, as it is configured, from its first sign of life until it has stopped."""
        command = " ".join(("synsched", "run", *options))
        pid = self.sure("sh", "-c", f"{command} > /tmp/daemon.log 2>&1 & echo $!", user="synsched").strip()
        try:
            heartbeat = "/var/lib/synsched/heartbeat"
            self.until("the daemon lives", lambda: f"daemon = {pid} " in self.run("cat", heartbeat).out)
            yield
        finally:
            self.run("kill", pid)
            self.until("the daemon has stopped", lambda: self.run("kill", "-0", pid).code != 0)

    def train(self, user: str, *options: str, hint: str = "", steps: int = 100000) -> str:
        """Submit the training script with ordinary sbatch; the job's id."""
        comment = [f"--comment=synsched:{hint}"] if hint else []
        script = f"/home/{user}/train.sh"
        self.sure("sh", "-c", f"cat > {script}", user=user, stdin=TRAINING)
        home = f"--chdir=/home/{user}"
        # Not --export: slurmd would make the environment in namespaces, which these containers may not have.
        submitted = self.sure(
            "env", f"HOME=/home/{user}", f"STEPS={steps}",
            "sbatch", "--parsable", home, "--output=/dev/null", *comment, *options, script, user=user,
        )  # fmt: skip
        return submitted.strip().split(";")[0]

    def round(self) -> None:
        """One round, which has to succeed."""
        done = self.synsched("run", "--once")
        assert done.code == 0, done.out + done.err

    def two_rounds(self, since: float) -> float:
        """Seconds that two rounds took at most of those that began since then, with the rest between them, which is
        twice as long as one: a few where nothing else runs."""
        return 4 * float(self.sure("python3", "-c", SLOWEST, str(since), user="synsched"))

    def explained(self, job: str) -> str:
        """What people are told of a job, its lines as one, however wide the terminal is."""
        told = self.synsched("explain", job)
        assert told.code == 0, told.err
        return " ".join(told.out.split())

    def clear(self, *users: str) -> None:
        """Cancel all jobs of these users; until nodes are free of them, other stories would find their GPUs taken."""
        for user in users:
            self.run("scancel", f"--user={user}")
        self.until("nothing is left", lambda: not self.sure("squeue", "-h").strip())
        in_use = ("sinfo", "-h", "-t", "allocated,mixed,completing", "-o", "%N")
        self.until("all nodes are free", lambda: not self.sure(*in_use).strip())

    def queue(self) -> list[str]:
        """The ids that squeue shows."""
        return self.sure("squeue", "-h", "-o", "%i").split()

    def log(self, user: str, job: str) -> list[str]:
        """What the training script wrote."""
        return self.run("cat", f"/home/{user}/log-{job}").out.splitlines()

    def jobs(self) -> dict[str, dict[str, str]]:
        """Every job as scontrol shows it; only fields without spaces are asked for here."""
        records = self.sure("scontrol", "-d", "-o", "show", "job").splitlines()
        found = {}
        for record in records:
            pairs = dict(word.split("=", 1) for word in record.split() if "=" in word)
            if "JobId" in pairs:
                found[pairs["JobId"]] = pairs
        return found

    def state(self, job: str) -> str:
        return self.jobs()[job]["JobState"]

    def until(self, what: str, true: Callable[[], bool], seconds: float = 120) -> None:
        """Wait for something that takes the cluster a moment, or longer on a busy machine: no look takes more than a
        quarter of the time, else looks alone kept the machine busy."""
        now = time.monotonic()
        deadline = now + seconds
        while not true():
            looked_for = time.monotonic() - now
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{self.sure('squeue')}"
            time.sleep(min(max(0.2, 3 * looked_for), 2.0))
            now = time.monotonic()

    @staticmethod
    def _run(command: Sequence[str], timeout: float) -> Said:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout,
            check=False,
        )  # fmt: skip
        return Said(done.returncode, done.stdout, done.stderr)


def _toml(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value)
