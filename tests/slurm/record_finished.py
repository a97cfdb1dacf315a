#!/usr/bin/env python3
"""Record what sacct prints of jobs that have ended, as fixtures for its parser.

    .venv/bin/python -m tests.slurm.record_finished [RELEASE ...]

For each release it starts a mini cluster, runs a few short jobs of every kind to their end, and writes the output to
tests/unit/recorded/RELEASE/sacct_finished.txt. CPU time is that of processes that were waited for: without cgroups and
privileges, jobacct_gather/linux gathers nothing there.
"""

from __future__ import annotations

import base64
import gzip
import json
import shlex
import sys
import time

from slurmsched.backends.slurm.accounting import finished_query
from tests.slurm.record import RECORDED, RELEASES, ROOT, Recorder, say

MARK = "0123456789abcdef0123456789abcdef"
"""Between two columns of the recorded output; a live query takes a random one."""

GATHERING = (
    "JobAcctGatherType=jobacct_gather/linux",
    "JobAcctGatherFrequency=task=1",
    "AccountingStorageTRES=gres/gpu,gres/shard,gres/gpumem,gres/gpuutil",
    "AccountingStoreFlags=job_comment",
)

BURN = "#!/bin/sh\nfor i in 1 2; do timeout 12 python3 -c 'while True: pass' & done; wait\n"
SLEEP = "#!/bin/sh\nsleep 12\n"
EAT = "#!/bin/sh\npython3 -c 'import time; held = bytearray(300 << 20); time.sleep(12)'\n"
STEPS = "#!/bin/sh\nsrun --ntasks=1 sleep 4\nsrun --ntasks=1 sleep 4\n"
AGAIN = '#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || sleep 600\n'
STATS = {
    "nodes": {"v100-1": {"total_memory": 1 << 30, "used_memory": 300 << 20, "total_time": 9.5, "cpus": 2}},
    "total_time": 12,
    "gpus": 1,
}
POSING = "a|b|COMPLETED|100\n17|17|root|x|COMPLETED"

JOBS = {
    "burner": ("alice", "--gres=gpu:v100:1 --cpus-per-task=2 --mem=1G --comment=synsched:model=burner", BURN),
    "sleeper": ("alice", "--gres=gpu:v100:2 --cpus-per-task=8 --mem=4G", SLEEP),
    "eater": ("bob", "--gres=gpu:1 --cpus-per-task=2 --mem=2G", EAT),
    "steps": ("bob", "--gres=gpu:1 --cpus-per-task=2 --mem=1G", STEPS),
    "failed": ("bob", "--gres=gpu:1 --mem=1G", "#!/bin/sh\nexit 3\n"),
    "timed out": ("carol", "--gres=gpu:1 --mem=1G --time=1", "#!/bin/sh\nsleep 600\n"),
    "array": ("carol", "--array=1-3 --gres=gpu:1 --mem=1G", SLEEP),
    "gang": ("alice", "--nodes=2 --ntasks-per-node=1 --gres=gpu:v100:2 --mem=1G", SLEEP),
    "cancelled": ("alice", "--gres=gpu:1 --mem=1G", "#!/bin/sh\nsleep 600\n"),
    "never started": ("alice", "--hold --gres=gpu:1 --mem=1G", SLEEP),
    "again": ("alice", "--gres=gpu:1 --mem=1G", AGAIN),
    "ResNet 50: ünïcode": ("carol", "--gres=gpu:1 --mem=1G --time=2-0", SLEEP),
    POSING: ("mallory", f"--gres=gpu:1 --mem=1G --comment={shlex.quote(POSING)}", SLEEP),
    "no GPU": ("bob", "--cpus-per-task=2 --mem=1G", SLEEP),
}


def main(releases: list[str]) -> None:
    """Record every release asked for."""
    for release in releases or RELEASES:
        recorder = Recorder(release)
        settings = [word for line in GATHERING for word in ("--set", line)]
        up = recorder.cluster(
            "up", "--release", release, "--nodes", "v100:2x8/24c/64g", "--kill-wait", "2", "--source",
            str(ROOT / "docker-slurm"), *settings,
        )  # fmt: skip
        if up.returncode:
            raise SystemExit(up.stderr.strip())
        try:
            _record(recorder)
        finally:
            recorder.cluster("down")
        say(f"{release}: {len(recorder.jobs)} jobs recorded in {RECORDED / release}")


def _record(recorder: Recorder) -> None:
    began = time.time()
    for name, (user, options, script) in JOBS.items():
        recorder.submit(name, user, f"--chdir=/home/{user} {options}", script)
    recorder.wait(f"squeue -h -t R -j {recorder.jobs['again']} | grep -q .")
    stats = base64.b64encode(gzip.compress(json.dumps(STATS).encode())).decode()
    recorder.must("root", f"scontrol update JobId={recorder.jobs['timed out']} AdminComment=JS1:{stats}")
    recorder.must("synsched", f"scontrol requeue {recorder.jobs['again']}")
    recorder.must("alice", f"scancel {recorder.jobs['cancelled']} {recorder.jobs['never started']}")
    recorder.wait(f'scontrol update JobId={recorder.jobs["again"]} StartTime=now; test -z "$(squeue -h)"', 240)
    time.sleep(3)  # slurmctld tells slurmdbd a little later
    query = shlex.join(finished_query(began - 60, time.time() + 60, MARK))
    recorder.must("synsched", f"env LC_ALL=C TZ=UTC0 {query} > /tmp/finished")
    (RECORDED / recorder.release / "sacct_finished.txt").write_text(recorder.must("synsched", "cat /tmp/finished"))


if __name__ == "__main__":
    main(sys.argv[1:])
