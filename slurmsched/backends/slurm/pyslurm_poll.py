"""Runs one poll by pyslurm in its own process, and checks the answer."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.errors import NoSlurmError, PyslurmFailedError, PyslurmUnavailableError, last_message
from slurmsched.backends.slurm.pyslurm_program import NO_ANSWER, NOT_INSTALLED, WRONG_SERIES

PyslurmValues = Mapping[str, Any]
"""A record's values by pyslurm's names; under `unread` the fields that could not be read, with the error class."""

_KEY_FIELDS: Final = {"jobs": "id", "nodes": "name", "reservations": "name"}
"""The kinds of records, and the field that identifies each record."""


@dataclass(frozen=True, slots=True)
class PyslurmRecords:
    """All records of one poll. `release` is pyslurm's, `users` are names by uid, `mebibytes` is its peak memory."""

    release: str
    users: Mapping[str, str]
    mebibytes: int
    jobs: tuple[PyslurmValues, ...]
    nodes: tuple[PyslurmValues, ...]
    reservations: tuple[PyslurmValues, ...]


def read_pyslurm(commands: Commands, series: str, mebibytes: int) -> PyslurmRecords:
    """Reads the cluster once, from a slurmctld of this series (`25.11`), with at most so much memory in MiB.

    Raises PyslurmUnavailableError if pyslurm is missing or does not fit, PyslurmFailedError if it failed or got no
    answer, and BackendError.
    """
    try:
        answer = commands.read_with_pyslurm(series, mebibytes)
    except UnreachableError as error:
        raise PyslurmFailedError("pyslurm did not answer in time") from error
    except NoSlurmError as error:
        raise PyslurmFailedError("pyslurm's interpreter cannot be started") from error
    if answer.exit_code in (NOT_INSTALLED, WRONG_SERIES):
        raise PyslurmUnavailableError(last_message(answer.stderr))
    if answer.exit_code == NO_ANSWER:
        raise PyslurmFailedError(f"pyslurm has no answer from slurmctld ({last_message(answer.stderr)[:200]})")
    if answer.exit_code:
        raise PyslurmFailedError(f"pyslurm {_describe_exit(answer)}")
    try:
        answer_data = json.loads(answer.stdout_bytes)
        return PyslurmRecords(
            str(answer_data["release"]),
            answer_data["users"],
            int(answer_data["mebibytes"]),
            *(_records(answer_data[kind], key) for kind, key in _KEY_FIELDS.items()),
        )
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise PyslurmFailedError(f"pyslurm's answer cannot be parsed ({type(error).__name__})") from error


def _records(table: Mapping[str, Any], key: str) -> tuple[PyslurmValues, ...]:
    fields = (*table["fields"], "unread")
    records = tuple(dict(zip(fields, row, strict=True)) for row in table["rows"])
    if any(record[key] is None for record in records):
        raise ValueError(f"a record without its {key}")
    return records


def _describe_exit(answer: CommandResult) -> str:
    message = last_message(answer.stderr, "")[:200]
    suffix = f": {message}" if message else ""
    if answer.exit_code < 0:
        return f"was ended by {_signal_name(-answer.exit_code)}{suffix}"
    return f"ended with exit code {answer.exit_code}{suffix}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
