"""What a job says of itself, in one small file: the protocol between jobs and the daemon.

The daemon takes it for what it is, the word of whoever owns the job: it believes nothing that Slurm knows better, and
of the rest only what concerns this job.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from math import isfinite
from typing import Final

from slurmsched.jobside.errors import ReportError

__all__ = ["LONGEST", "Report", "Stage", "decode", "encode"]

LONGEST: Final = 4096
"""Bytes of a report; a longer one is not read."""

_VERSION: Final = 1
_MOST_GPUS: Final = 64
_MOST: Final = 2**53
"""The largest whole number that every reader of JSON agrees on."""


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
    if len(data) > LONGEST:
        raise ReportError(f"a report is longer than {LONGEST} bytes")
    try:
        said: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ReportError("a report is no JSON") from error
    if not isinstance(said, dict) or said.get("version") != _VERSION:
        raise ReportError(f"a report is not of version {_VERSION}")
    if set(said) != _KEYS:
        raise ReportError("a report has other fields than it should")
    return Report(
        job=_text(said["job"]),
        run=_whole(said["run"]),
        stage=_stage(said["stage"]),
        at=_number(said["at"]),
        steps=_whole(said["steps"]),
        done=_whole(said["done"]),
        busy=_number(said["busy"]),
        rate=_number(said["rate"]),
        saved=_whole(said["saved"], least=-1),
        node=_text(said["node"]),
        gpus=_indices(said["gpus"]),
        cpus=_whole(said["cpus"]),
        memory=_whole(said["memory"]),
        ranks=_whole(said["ranks"]),
    )


_KEYS: Final = frozenset({"version", *(field.name for field in fields(Report))})


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 64 or not (value.isascii() and value.isprintable()):  # noqa: PLR2004  # as host names are
        raise ReportError("a report has a name that is none")
    return value


def _whole(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise ReportError("a report counts in something else than whole numbers")
    return value


def _number(value: object) -> float:
    # The bounds come first: an int of a thousand digits has no float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST or not isfinite(value):
        raise ReportError("a report measures in something else than numbers")
    return float(value)


def _stage(value: object) -> Stage:
    if not isinstance(value, str) or value not in Stage.__members__.values():
        raise ReportError("a report names a stage that there is not")
    return Stage(value)


def _indices(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_GPUS:
        raise ReportError("a report names GPUs by something else than a short list")
    return tuple(_whole(index) for index in value)
