"""Values as Slurm's commands take them: lists with commas, job ids with array tasks, sizes. Each for `type=`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import click

from slurmsched.model import JobId

__all__ = ["job_ids", "names", "size"]

MOST_TASKS: Final = 10_000
"""Tasks that one bracket may name."""

_ID = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?\Z")
_BRACKET = re.compile(r"([0-9]{1,10})_\[([0-9,-]{1,1000})\]\Z")
_COMMA_OUTSIDE = re.compile(r",(?![^\[]*\])")
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)B?\Z", re.IGNORECASE)
_MEBIBYTES: Final = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


def names(value: str) -> tuple[str, ...]:
    """`alice,bob`; nothing for an empty text."""
    return tuple(name for name in value.split(",") if name)


def job_ids(value: str) -> tuple[JobId, ...]:
    """`12`, `12_3`, `1,2`, `12_[0-3,7]`. Raises click.BadParameter."""
    try:
        return tuple(job for part in _COMMA_OUTSIDE.split(value) for job in _expanded(part))
    except ValueError:
        raise click.BadParameter(f"'{value}' is no job id: write 12, 12_3, 1,2 or 12_[0-3]") from None


def size(value: str) -> int:
    """A size as sbatch takes it, `4G` or `512M`, in MiB. Raises click.BadParameter."""
    match = _SIZE.match(value)
    if match is None:
        raise click.BadParameter(f"'{value}' is no size: write 4G or 512M")
    return int(int(match[1]) * _MEBIBYTES[match[2].upper()])


def _expanded(part: str) -> Iterator[JobId]:
    bracket = _BRACKET.match(part)
    if bracket is None:
        if not _ID.match(part):
            raise ValueError(part)
        yield part
        return
    for span in bracket[2].split(","):
        first, dash, last = span.partition("-")
        tasks = range(int(first), int(last if dash else first) + 1)
        if not 0 < len(tasks) <= MOST_TASKS:
            raise ValueError(part)
        yield from (f"{bracket[1]}_{task}" for task in tasks)
