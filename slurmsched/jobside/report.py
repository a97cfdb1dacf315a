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
from slurmsched.jobside.untrusted import parse_count, parse_fields, parse_number

MAX_REPORT_BYTES: Final = 4096
"""Bytes of a report; a longer one is not read."""

_VERSION: Final = 1
_MAX_GPUS: Final = 64
_KIND: Final = "report"


class Stage(StrEnum):
    """Where the job is."""

    RUNNING = "running"
    CHECKPOINTED = "checkpointed"
    """Its state is saved as of `steps`, and it waits to be requeued."""
    MEASURED = "measured"
    """A profiling run that is over."""
    OUT_OF_MEMORY = "out-of-memory"
    """It ended because it found no more memory on its GPU."""


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


def encode_report(report: Report) -> bytes:
    """One line of JSON."""
    return json.dumps({"version": _VERSION, **asdict(report)}, separators=(",", ":")).encode() + b"\n"


def decode_report(data: bytes) -> Report:
    """The report in a file that anybody may have written. Raises ReportError, and nothing else."""
    values = parse_fields(data, _KIND, max_bytes=MAX_REPORT_BYTES, version=_VERSION, keys=_KEYS)
    return Report(
        job=_parse_name(values["job"]),
        run=parse_count(values["run"], _KIND),
        stage=_parse_stage(values["stage"]),
        at=parse_number(values["at"], _KIND),
        steps=parse_count(values["steps"], _KIND),
        done=parse_count(values["done"], _KIND),
        busy=parse_number(values["busy"], _KIND),
        rate=parse_number(values["rate"], _KIND),
        saved=parse_count(values["saved"], _KIND, minimum=-1),
        node=_parse_name(values["node"]),
        gpus=_parse_gpus(values["gpus"]),
        cpus=parse_count(values["cpus"], _KIND),
        memory=parse_count(values["memory"], _KIND),
        ranks=parse_count(values["ranks"], _KIND),
    )


_KEYS: Final = frozenset({"version", *(field.name for field in fields(Report))})


def _parse_name(value: object) -> str:
    if not isinstance(value, str) or len(value) > 64 or not (value.isascii() and value.isprintable()):  # noqa: PLR2004  # as host names are
        raise ReportError("a report has a name that is none")
    return value


def _parse_stage(value: object) -> Stage:
    if not isinstance(value, str) or value not in Stage.__members__.values():
        raise ReportError("a report names a stage that there is not")
    return Stage(value)


def _parse_gpus(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_GPUS:
        raise ReportError("a report names GPUs by something else than a short list")
    return tuple(parse_count(index, _KIND) for index in value)
