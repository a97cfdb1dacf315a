"""Requeues a job again and again and starts it as soon as a poll shows that it waits, on a login node.

`python3 restarting.py TIMES` prints as JSON how many of these runs began, and how many failed instead: with the second
that the backend waits, and without. Every run ends early in a second of the clock, so that what is done at once is done
in that second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.model import Hold, Job, JobState, Operation, Reason, ReasonCode, Verb

_POLL: Final = 0.02
_PATIENCE: Final = 120.0
_WHY: Final = Reason(ReasonCode.START)


def main() -> int:
    """The exit code."""
    times = int(sys.argv[1])
    arms = {"backend": restarts(times, time.sleep), "at once": restarts(times, lambda _: None)}
    print(json.dumps(arms))
    return 0


def restarts(times: int, sleep: Callable[[float], None]) -> dict[str, int]:
    """How many restarts began, and how many failed."""
    backend, ends = SlurmBackend(Commands(60), CommandSource(), time.time, sleep=sleep), {"began": 0, "failed": 0}
    job = submit()
    awaited(backend, job, JobState.RUNNING)
    for _ in range(times):
        time.sleep(1.0 - time.time() % 1.0)
        backend.execute([Operation(Verb.REQUEUE, job, _WHY)])
        awaited(backend, job, JobState.PENDING)
        backend.execute([Operation(Verb.RELEASE, job, _WHY, Hold.REQUEUED.value, Hold.NONE.value)])
        if awaited(backend, job, JobState.RUNNING, JobState.FINISHED) and lasts(backend, job):
            ends["began"] += 1
        else:
            ends["failed"] += 1
            job = submit()
            awaited(backend, job, JobState.RUNNING)
    subprocess.run(["scancel", job], check=True)
    return ends


def submit() -> str:
    where = ("--nodelist=v100-1", "--gres=gpu:1", "--output=/dev/null", "--chdir=/tmp")
    command = ["sbatch", "--parsable", "--requeue", *where, "--wrap", "exec sleep 1000"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def awaited(backend: SlurmBackend, job: str, *states: JobState) -> bool:
    """Whether the job came to one of these states and is known."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        found = seen(backend, job)
        if found is None or found.state in states:
            return found is not None
        time.sleep(_POLL)
    raise TimeoutError(f"job {job} did not become {' or '.join(states)}")


def lasts(backend: SlurmBackend, job: str) -> bool:
    """Whether it still runs half a second later."""
    time.sleep(0.5)
    found = seen(backend, job)
    return found is not None and found.state is JobState.RUNNING


def seen(backend: SlurmBackend, job: str) -> Job | None:
    return backend.observe().jobs_by_id.get(job)


if __name__ == "__main__":
    sys.exit(main())
