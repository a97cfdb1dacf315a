#!/usr/bin/python3 -IS
"""The dead-man's switch, for cron: gives jobs back to Slurm once the daemon's last sign of life is too old.

    */5 * * * * synsched /usr/bin/python3 -IS /etc/synsched/watchdog.py --heartbeat /var/lib/synsched/heartbeat ...

Stands alone: Python's standard library and Slurm's `squeue` and `scontrol`. It shares no code, no settings file and no
virtual environment with the daemon that it watches. While the daemon lives it does nothing.

What is given back is evidently ours:

- a job that the daemon held, says the database (`held_by_us`), and that Slurm shows under an administrator's hold or
  requeued in held state, by the owner that the database names;
- a job that the hook held: under its owner's hold, never restarted, with `held=hook` in its comment. The hook lets no
  owner write that into a comment. Whoever manages all the same has a hold of his own job released, and nobody else's.

Before it is released, a job that the daemon pinned to nodes gets the nodes that it was submitted with, and one whose
nice the daemon changed gets its own back. The CPUs, memory and numbers of nodes that a round chose stay: they are a
request that fits the job, and telling them back would need the daemon's own code. `synsched release` does it.

A claim counts once for each death of the daemon: a job that was seen without its hold since is its owner's or an
administrator's to hold again. Which ones these are is kept in the state file, which is also the lock against a second
run. Without a readable database only what the hook held is given back, and the exit status is 1.

Slurm is asked for columns of fixed width, of which only the comment is an owner's text. A comment is read at its place
in bytes, so that nothing in it can pose as another job; where the places do not fit, jobs are asked for one by one.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

MAX_CLOCK_SKEW = 120.0
"""Seconds that a clock may be off: a sign of life from further in the future is none. The hook has the same bound."""
DATABASE_TIMEOUT = 5.0
"""Seconds to wait for the database while another process writes."""
MAX_STATE_BYTES = 16 << 20
JOBS_PER_COMMAND = 200
"""Jobs in one command."""
MAX_NICE = 2_000_000_000
MAX_NODES = 10_000
QUEUE_COLUMNS = (("JobArrayID", 30), ("StateCompact", 6), ("RestartCnt", 8), ("UserName", 40), ("Reason", 40))
COMMENT_COLUMNS = (("JobArrayID", 30), ("Comment", 1032))

JOB_ID = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
HEARTBEAT = re.compile(r"([0-9]{1,12})(?:\.[0-9]*)? ([a-z]+) [0-9]+\Z")
PENDING_STATES, ENDING_STATES = frozenset({"PD", "RH", "SE"}), frozenset({"CG", "RQ"})
USER_HOLD_REASON = "JobHeldUser"
ADMIN_HOLD_REASONS = frozenset({"JobHeldAdmin", "job requeued in held state", "job_requeued_in_held_state"})
HINT_PREFIX, HOOK_MARK, MAX_HINT_LENGTH = "synsched:", "held=hook", 256


class WatchdogError(Exception):
    """What keeps us from giving jobs back, in one line."""


@dataclass(frozen=True)
class JobChanges:
    """What the database says is ours of one job; `nodes` and `nice` are the owner's, None where ours do not differ."""

    owner: str
    held_by_us: bool
    original_nodes: tuple[str, ...] | None
    original_nice: int | None


@dataclass(frozen=True)
class QueueEntry:
    """A job as Slurm shows it: `reason` is why it waits, `restarts` how often it has run before."""

    state: str
    restarts: int
    user: str
    reason: str


@dataclass
class SlurmCommands:
    """Slurm's commands, in `folder` or on PATH, until `deadline` on the monotonic clock."""

    folder: str
    conf: str
    deadline: float
    command_timeout: float
    errors: list[str] = field(default_factory=list)

    def run(self, name: str, *arguments: str, stdin: bytes = b"") -> bytes:
        """What a command prints. Raises WatchdogError where it cannot be run or takes too long."""
        timeout = min(self.command_timeout, self.deadline - time.monotonic())
        if timeout <= 0:
            raise WatchdogError("out of time: the next run goes on")
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC0", "SLURM_BITSTR_LEN": "0"}
        env |= {"SLURM_CONF": self.conf} if self.conf else {}
        command = [str(Path(self.folder) / name) if self.folder else name, *arguments]
        try:
            completed = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout, env=env, check=False)
        except subprocess.TimeoutExpired as error:
            raise WatchdogError(f"{name} did not answer within {timeout:.0f} s") from error
        except OSError as error:
            raise WatchdogError(f"cannot run {command[0]}: {error.strerror}") from error
        stderr = " ".join(completed.stderr.decode(errors="replace").split())[:200]
        if stderr:
            self.errors.append(stderr)
        if completed.returncode != 0 and name == "squeue":
            raise WatchdogError(f"squeue failed: {stderr or completed.returncode}")
        return completed.stdout

    def squeue(self, columns: Sequence[tuple[str, int]], *arguments: str) -> list[list[bytes]]:
        """squeue's columns, cut by their places. Raises WatchdogError where they are not where they should be."""
        output_format = ",".join(f"{name}:{width}" for name, width in columns)
        text = self.run("squeue", "-h", "-a", "-r", *arguments, "-O", output_format)
        length = sum(width for _, width in columns) + 1
        if len(text) % length:
            raise WatchdogError("squeue does not print columns of fixed width")
        records = [text[start : start + length] for start in range(0, len(text), length)]
        if not all(record.endswith(b"\n") for record in records):
            raise WatchdogError("squeue does not print columns of fixed width")
        return [_split_columns(record, columns) for record in records]

    def queue(self) -> dict[str, QueueEntry]:
        """Every job that has not ended."""
        jobs = {}
        for row in self.squeue(QUEUE_COLUMNS):
            job, state, restarts, user, reason = (cell.decode(errors="replace") for cell in row)
            if JOB_ID.match(job):
                jobs[job] = QueueEntry(state, int(restarts) if restarts.isdecimal() else 1, user, reason)
        return jobs

    def held_by_hook(self, jobs: Sequence[str]) -> Iterator[list[str]]:
        """Those of the jobs whose comment has the hook's mark, as many at a time as are asked for at once."""
        for start in range(0, len(jobs), JOBS_PER_COMMAND):
            yield list(self._held_by_hook(jobs[start : start + JOBS_PER_COMMAND]))

    def _held_by_hook(self, jobs: Sequence[str]) -> Iterator[str]:
        """By halves where the columns do not fit or other jobs come than were asked for: whom that is about is left."""
        try:
            rows = self.squeue(COMMENT_COLUMNS, "-j", ",".join(jobs))
            comments = {row[0].decode(errors="replace"): row[1] for row in rows}
            if len(comments) != len(rows) or not comments.keys() <= set(jobs):
                raise WatchdogError("squeue shows other jobs than it was asked for")
        except WatchdogError:
            if time.monotonic() > self.deadline:
                raise
            if len(jobs) > 1:
                middle = len(jobs) // 2
                yield from self._held_by_hook(jobs[:middle])
                yield from self._held_by_hook(jobs[middle:])
            return  # one job alone: it has ended meanwhile, or shows itself so that nothing can be told of it
        yield from (job for job, comment in comments.items() if has_hook_mark(comment.decode(errors="replace")))

    def scontrol(self, lines: Sequence[str]) -> None:
        """Each a command of scontrol, many to a process."""
        for start in range(0, len(lines), JOBS_PER_COMMAND):
            self.run("scontrol", stdin=("\n".join(lines[start : start + JOBS_PER_COMMAND]) + "\n").encode())


def _split_columns(record: bytes, columns: Sequence[tuple[str, int]]) -> list[bytes]:
    cells, start = [], 0
    for _, width in columns:
        cells.append(record[start : start + width].rstrip(b" "))
        start += width
    return cells


def has_hook_mark(comment: str) -> bool:
    """Whether the comment's hint word says that the hook holds the job."""
    word = next((word for word in comment.split() if word[: len(HINT_PREFIX)].lower() == HINT_PREFIX), "")
    return len(word) <= MAX_HINT_LENGTH and HOOK_MARK in word[len(HINT_PREFIX) :].split(",")


def read_heartbeat(path: str) -> str:
    """The heartbeat's first line; empty where there is none that can be read."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor: a FIFO must not stop us
            return file.readline(200).decode(errors="replace").strip()
    return ""


def is_daemon_dead(heartbeat: str, now: float, stale_after: float) -> bool:
    """Whether the last sign of life is none, too old, from the future, or says that the daemon stopped."""
    match = HEARTBEAT.match(heartbeat)
    if match is None or match[2] == "stopped":
        return True
    age = now - float(match[1])
    return age > stale_after or age < -MAX_CLOCK_SKEW


def modified_at(path: str) -> int:
    """When the database was written last, in nanoseconds; 0 where there is none."""
    with suppress(OSError):
        return Path(path).stat().st_mtime_ns
    return 0


def read_job_changes(path: str) -> dict[str, JobChanges]:
    """What is ours, as the database has it. Raises WatchdogError where it cannot be read."""
    if not Path(path).exists():
        raise WatchdogError(f"there is no database {path}")
    try:
        rows = _read_rows(path, "ro")
    except sqlite3.Error:
        # A daemon that was killed in the middle of a write leaves a journal, which only a writer may roll back.
        try:
            rows = _read_rows(path, "rw")
        except sqlite3.Error as error:
            raise WatchdogError(f"the database {path} cannot be read: {error}") from error
    return {row[0]: _job_changes(row) for row in rows if isinstance(row[0], str) and JOB_ID.match(row[0])}


def _read_rows(path: str, mode: str) -> list[tuple[object, ...]]:
    uri = f"{Path(path).absolute().as_uri()}?mode={mode}"
    with closing(sqlite3.connect(uri, uri=True, timeout=DATABASE_TIMEOUT)) as database:
        database.text_factory = lambda raw: raw.decode(errors="replace")
        database.execute("PRAGMA query_only = ON")
        query = (
            "SELECT id, owner, held_by_us, reshaped, boosted, original, original_nice FROM jobs"
            " WHERE held_by_us OR reshaped OR boosted"
        )
        return list(database.execute(query))


def _job_changes(row: Sequence[object]) -> JobChanges:
    _, owner, held, reshaped, boosted, original, nice = row
    nodes = _original_nodes(original) if reshaped else None
    original_nice = nice if boosted and isinstance(nice, int) and abs(nice) <= MAX_NICE else None
    return JobChanges(str(owner), bool(held), nodes, original_nice)


def _original_nodes(original: object) -> tuple[str, ...] | None:
    """The nodes that the job was submitted with; None where the stored request cannot be read."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        nodes = json.loads(str(original)).get("pinned") or []
        if isinstance(nodes, list) and len(nodes) <= MAX_NODES and all(NODE_NAME.match(node) for node in nodes):
            return tuple(sorted(nodes))
    return None


class StateFile:
    """The lock, and the jobs that were given back since the daemon's last sign of life and last word in the database.

    A file that cannot be made does not keep jobs from being given back: it is then as if there were none.
    """

    def __init__(self, path: str) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            if os.geteuid() == 0:  # by hand as root: cron's user goes on with it
                folder = Path(path).absolute().parent.stat()
                os.fchown(self._file, folder.st_uid, folder.st_gid)

    def is_locked(self) -> bool:
        """Whether another run is under way."""
        if self._file is None:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def read(self, outage: str) -> frozenset[str]:
        """The jobs given back since this death of the daemon; none where the file is about another."""
        if self._file is None:
            return frozenset()
        with suppress(OSError):
            first, *jobs = os.pread(self._file, MAX_STATE_BYTES, 0).decode(errors="replace").split("\n")
            return frozenset(jobs) if first == outage else frozenset()
        return frozenset()

    def write(self, outage: str, jobs: frozenset[str]) -> None:
        """Keep them. On a full disk nothing is kept."""
        if self._file is None:
            return
        text = "\n".join((outage, *sorted(jobs))).encode()
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0)


def is_held(job: QueueEntry) -> bool:
    """Whether somebody's hold keeps it from starting, as far as it could be ours."""
    return job.state in PENDING_STATES and (job.reason == USER_HOLD_REASON or job.reason in ADMIN_HOLD_REASONS)


def is_ending(job: QueueEntry) -> bool:
    """Whether it ends and may come back held."""
    return job.state in ENDING_STATES


def releasable_jobs(
    slurm: SlurmCommands, jobs: dict[str, QueueEntry], changes: dict[str, JobChanges], already_settled: frozenset[str]
) -> Iterator[list[str]]:
    """The held jobs that are evidently ours, without those that were given back before, some at a time.

    First those that the database names. Comments take time: users with few held jobs come before those with many, who
    keep nobody but themselves held where time runs out.
    """
    held = {name: job for name, job in jobs.items() if name not in already_settled and is_held(job)}
    yield [
        name
        for name, job in held.items()
        if job.reason in ADMIN_HOLD_REASONS
        and name in changes
        and changes[name].held_by_us
        and changes[name].owner == job.user
    ]
    user_held = [name for name, job in held.items() if job.reason == USER_HOLD_REASON and job.restarts == 0]
    held_by_user = Counter(jobs[name].user for name in user_held)
    yield from slurm.held_by_hook(sorted(user_held, key=lambda name: held_by_user[jobs[name].user]))


def restore_commands(job: str, changes: JobChanges | None) -> Iterator[str]:
    """What puts back the nodes and the nice that the job was submitted with."""
    if changes is not None and changes.original_nodes is not None:
        yield f"update JobId={job} ReqNodeList={','.join(changes.original_nodes)}"
    if changes is not None and changes.original_nice is not None:
        yield f"update JobId={job} Nice={changes.original_nice}"


def release_jobs(
    slurm: SlurmCommands, changes: dict[str, JobChanges], already_settled: frozenset[str]
) -> tuple[int, int, frozenset[str]]:
    """Give back what is ours: how many jobs, how many are held still, and what need not be given back again."""
    jobs = slurm.queue()
    changed = [
        name
        for name, change in changes.items()
        if name in jobs and name not in already_settled
        and jobs[name].state in PENDING_STATES and jobs[name].user == change.owner
    ]  # fmt: skip
    lines = [line for name in changed if not is_held(jobs[name]) for line in restore_commands(name, changes[name])]
    held = {name for name in changed if is_held(jobs[name])}
    released: list[str] = []
    # Some at a time, each lot before the next is looked for: what takes long keeps nobody held who is known already.
    for batch in releasable_jobs(slurm, jobs, changes, already_settled):
        # One that cannot be changed is released all the same: better pinned than held.
        lines += [line for name in batch if name in held for line in restore_commands(name, changes[name])]
        slurm.scontrol(lines + [f"release {name}" for name in batch])
        lines = []
        released += batch
    after = slurm.queue() if released else jobs
    still_held = [name for name in released if name in after and is_held(after[name])]
    settled = {
        name
        for name in (*changes, *released)
        if name not in after or not (is_held(after[name]) or is_ending(after[name]))
    }
    return len(released) - len(still_held), len(still_held), already_settled | settled


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Give jobs back to Slurm when nobody schedules any more.")
    parser.add_argument("--now", action="store_true", help="also while the daemon seems to live, and all once more")
    parser.add_argument("--heartbeat", default="/var/lib/synsched/heartbeat", help="the daemon's sign of life")
    parser.add_argument("--stale-after", type=float, default=900.0, help="seconds after which it is too old")
    parser.add_argument("--database", default="/var/lib/synsched/synsched.db", help="where the daemon's holds stand")
    parser.add_argument("--state", default="", help="our own file; beside the database where not given")
    parser.add_argument("--commands", default="", help="folder of squeue and scontrol; PATH where not given")
    parser.add_argument("--slurm-conf", default="", help="Slurm's configuration, where it is not at its usual place")
    parser.add_argument("--time-limit", type=float, default=240.0, help="longest run, in seconds")
    parser.add_argument("--command-limit", type=float, default=60.0, help="longest wait for one command, in seconds")
    return parser.parse_args()


def run_once(options: argparse.Namespace) -> int:
    """One run; the exit status: 0 where nothing of ours is held any more, as far as it can be known."""
    heartbeat = read_heartbeat(options.heartbeat)
    if not options.now and not is_daemon_dead(heartbeat, time.time(), options.stale_after):
        return 0
    state = StateFile(options.state or f"{options.database}.watchdog")
    if state.is_locked():
        return 0
    outage = f"{heartbeat} {modified_at(options.database)}"
    problem, changes = "", {}
    try:
        changes = read_job_changes(options.database)
    except WatchdogError as error:
        problem = f"{error}: only jobs that the hook held are given back"
    already_settled = frozenset() if options.now else state.read(outage)
    slurm = SlurmCommands(
        options.commands, options.slurm_conf, time.monotonic() + options.time_limit, options.command_limit
    )
    released, still_held, settled = release_jobs(slurm, changes, already_settled)
    state.write(outage, settled)
    if still_held:
        why = f": {slurm.errors[-1]}" if slurm.errors else ""
        problem = "; ".join(filter(None, (problem, f"{still_held} could not be released{why}")))
    if released or options.now or still_held:
        print(f"synsched watchdog: {released} held {'job' if released == 1 else 'jobs'} given back to Slurm")  # noqa: T201 - cron mails it
    if problem:
        raise WatchdogError(problem)
    return 0


def main() -> int:
    """Run once, whatever happens within the time limit; a failure is one line on standard error."""
    options = parse_arguments()
    signal.alarm(int(options.time_limit + options.command_limit) + 10)  # the last resort: a file system that hangs
    try:
        return run_once(options)
    except WatchdogError as error:
        print(f"synsched watchdog: {error}", file=sys.stderr)  # noqa: T201
    except Exception as error:  # one line for cron's mail, not a traceback
        print(f"synsched watchdog: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
