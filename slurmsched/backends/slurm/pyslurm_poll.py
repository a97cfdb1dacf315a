"""One poll by pyslurm: what the program of its own answers, checked before anything is made of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import Answer, Commands
from slurmsched.backends.slurm.errors import NoSlurmError, PyslurmEndedError, PyslurmError, last_words
from slurmsched.backends.slurm.pyslurm_program import NOT_FITTING, NOT_HERE, SILENT

__all__ = ["PyslurmPoll", "Values", "poll"]

Values = Mapping[str, Any]
"""A record's values by pyslurm's names, and under `unread` those that could not be read, with the error's name."""

_KINDS: Final = {"jobs": "id", "nodes": "name", "partitions": "name", "reservations": "name"}
"""What is read, and by which value each of a kind is known."""


@dataclass(frozen=True, slots=True)
class PyslurmPoll:
    """All records of one poll. `release` is pyslurm's; `users` are names by number; `mebibytes` is what it took."""

    release: str
    users: Mapping[str, str]
    mebibytes: int
    jobs: tuple[Values, ...]
    nodes: tuple[Values, ...]
    partitions: tuple[Values, ...]
    reservations: tuple[Values, ...]


def poll(commands: Commands, series: str, mebibytes: int) -> PyslurmPoll:
    """Read everything once, from a slurmctld of this series (`25.11`), in so much memory.

    Raises PyslurmError where pyslurm is missing or does not fit, PyslurmEndedError where it did not come to an end or
    has no answer, and BackendError.
    """
    try:
        answer = commands.read_with_pyslurm(series, mebibytes)
    except UnreachableError as error:
        raise PyslurmEndedError("pyslurm did not answer in time") from error
    except NoSlurmError as error:
        raise PyslurmEndedError("pyslurm's interpreter cannot be started") from error
    if answer.code in (NOT_HERE, NOT_FITTING):
        raise PyslurmError(last_words(answer.error))
    if answer.code == SILENT:
        raise PyslurmEndedError(f"pyslurm has no answer of slurmctld ({last_words(answer.error)[:200]})")
    if answer.code:
        raise PyslurmEndedError(f"pyslurm {_end_of(answer)}")
    try:
        found = json.loads(answer.data)
        return PyslurmPoll(
            str(found["release"]),
            found["users"],
            int(found["mebibytes"]),
            *(_records(found[kind], key) for kind, key in _KINDS.items()),
        )
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise PyslurmEndedError(f"pyslurm's answer makes no sense ({type(error).__name__})") from error


def _records(table: Mapping[str, Any], key: str) -> tuple[Values, ...]:
    fields = (*table["fields"], "unread")
    records = tuple(dict(zip(fields, row, strict=True)) for row in table["rows"])
    if any(record[key] is None for record in records):
        raise ValueError(f"a record without its {key}")
    return records


def _end_of(answer: Answer) -> str:
    said = last_words(answer.error, "")[:200]
    behind = f": {said}" if said else ""
    if answer.code < 0:
        return f"was ended by {_signal(-answer.code)}{behind}"
    return f"ended with exit code {answer.code}{behind}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
