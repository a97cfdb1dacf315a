"""What a job says of itself, in one small file: the protocol between jobs and the daemon.

The daemon takes it for what it is, the word of whoever owns the job: it believes nothing that Slurm knows better, and
of the rest only what concerns this job.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Final

from slurmsched.jobside.errors import ReportError
from slurmsched.jobside.untrusted import number, table, whole

__all__ = ["LONGEST", "Report", "Stage", "decode", "encode"]

LONGEST: Final = 4096
"""Bytes of a report; a longer one is not read."""

_VERSION: Final = 1
_MOST_GPUS: Final = 64
_WHAT: Final = "report"


class Stage(StrEnum):
    """Where the job is."""

    RUNNING = "running"
    CHECKPOINTED = "checkpointed"
    """Its state is saved as of `steps`, and it waits to be requeued."""
    MEASURED = "measured"
    """A profiling run that is over."""


@dataclass(frozen=True, slots=True)
class Report:
    """One job at one time, `at` (unix seconds).

    `run` counts its restarts. `steps` are those of its whole life; `done` are those of this run that were timed, and
    took `busy` seconds; `rate` is the latest steps per second. `saved` is the step of the last checkpoint, -1 without
    one. `gpus` are the indices on `node`, `cpus` and `memory` (MiB, the largest so far) those of its first process
    there.
    """

    job: str
    run: int
    stage: Stage
    at: float
    steps: int
    done: int
    busy: float
    rate: float
    saved: int = -1
    node: str = ""
    gpus: tuple[int, ...] = ()
    cpus: int = 0
    memory: int = 0
    ranks: int = 1


def encode(report: Report) -> bytes:
    """One line of JSON."""
    return json.dumps({"version": _VERSION, **asdict(report)}, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> Report:
    """The report in a file that anybody may have written. Raises ReportError, and nothing else."""
    said = table(data, _WHAT, longest=LONGEST, version=_VERSION, keys=_KEYS)
    return Report(
        job=_text(said["job"]),
        run=whole(said["run"], _WHAT),
        stage=_stage(said["stage"]),
        at=number(said["at"], _WHAT),
        steps=whole(said["steps"], _WHAT),
        done=whole(said["done"], _WHAT),
        busy=number(said["busy"], _WHAT),
        rate=number(said["rate"], _WHAT),
        saved=whole(said["saved"], _WHAT, least=-1),
        node=_text(said["node"]),
        gpus=_indices(said["gpus"]),
        cpus=whole(said["cpus"], _WHAT),
        memory=whole(said["memory"], _WHAT),
        ranks=whole(said["ranks"], _WHAT),
    )


_KEYS: Final = frozenset({"version", *(field.name for field in fields(Report))})


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 64 or not (value.isascii() and value.isprintable()):  # noqa: PLR2004  # as host names are
        raise ReportError("a report has a name that is none")
    return value


def _stage(value: object) -> Stage:
    if not isinstance(value, str) or value not in Stage.__members__.values():
        raise ReportError("a report names a stage that there is not")
    return Stage(value)


def _indices(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_GPUS:
        raise ReportError("a report names GPUs by something else than a short list")
    return tuple(whole(index, _WHAT) for index in value)
