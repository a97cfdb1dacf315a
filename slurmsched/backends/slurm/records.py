"""Records of jobs as Slurm shows them, and parsers for the amounts, durations, times and TRES in Slurm's output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from slurmsched.backends.slurm.errors import SlurmParseError


@dataclass(frozen=True, slots=True)
class RawAllocation:
    """A job's allocation on each of `nodes` (a hostlist): CPU ids, memory and GRES as Slurm writes them."""

    nodes: str
    cpus: str
    memory: str
    gres: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job in Slurm's spelling. Array fields are empty outside arrays, het fields outside heterogeneous jobs.

    `fields` are all others under scontrol's names. `array_tasks` is a task id, or the ids of all pending tasks.
    """

    number: str
    user: str
    state: str
    reason: str
    priority: int
    nice: int
    account: str
    qos: str
    name: str
    fields: Mapping[str, str]
    allocations: tuple[RawAllocation, ...] = ()
    array_id: str = ""
    array_tasks: str = ""
    throttle: int | None = None
    het_id: str = ""
    het_offset: str = ""
    comment: str = ""
    admin_comment: str = ""


def fewest_nodes(shown: int, most: int) -> int:
    """The fewest nodes that a waiting job asks for: while Slurm tries it, the number shown is an estimate, which may be
    above the most that it asks for."""
    return min(shown, most) if most > 1 else shown


def parse_fields(line: str) -> dict[str, str]:
    """The fields of a line of `scontrol show`: values end at a blank, and the first of a name counts."""
    fields: dict[str, str] = {}
    for word in line.split():
        key, separator, value = word.partition("=")
        if separator:
            fields.setdefault(key, value)
    return fields


_EMPTY_VALUES: Final = frozenset({"", "(null)", "N/A", "n/a", "None", "none", "Unknown", "NONE"})
_UNLIMITED_VALUES: Final = frozenset({"UNLIMITED", "INFINITE", "Partition_Limit", "INVALID", "NOT_SET"})
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([KMGTPE]?)(?:[nc]|i?B)?\Z")
_IN_MEBIBYTES: Final = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3, "E": 1024**4}
_DURATION = re.compile(r"(?:(\d{1,7})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,2})(?:\.\d+)?\Z")


def or_empty(text: str | None) -> str:
    """The text, or an empty string for Slurm's words for no value."""
    return "" if text is None or text in _EMPTY_VALUES else text


def parse_count(text: str | None, default: int = 0) -> int:
    """A count such as `12`; the first of `2-4`. Raises SlurmParseError."""
    value = or_empty(text)
    if not value or value == "*":
        return default
    digits = value.split("-", 1)[0] if not value.startswith("-") else value
    try:
        return int(digits)
    except ValueError:
        raise SlurmParseError(f"not a number: {value[:40]!r}") from None


def parse_count_range(text: str | None) -> tuple[int, int | None]:
    """`2` as (2, None) and `2-4` as (2, 4). Raises SlurmParseError."""
    first, _, last = or_empty(text).partition("-")
    return parse_count(first, 1), parse_count(last) if last else None


def parse_mebibytes(text: str | None) -> int:
    """`20000M`, `400G` or `512` in MiB; 0 for no value. Raises SlurmParseError."""
    value = or_empty(text)
    if not value or value in _UNLIMITED_VALUES:
        return 0
    match = _SIZE.match(value)
    if match is None:
        raise SlurmParseError(f"not an amount of memory: {value[:40]!r}")
    return int(float(match[1]) * _IN_MEBIBYTES[match[2]])


def parse_seconds(text: str | None) -> int | None:
    """`1-02:03:04`, `02:03:04` or `03:04` in seconds; None for no value or no limit. Raises SlurmParseError."""
    value = or_empty(text)
    if not value or value in _UNLIMITED_VALUES:
        return None
    match = _DURATION.match(value)
    if match is None:
        raise SlurmParseError(f"not a duration: {value[:40]!r}")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def parse_time(text: str | None) -> float | None:
    """`2026-11-21T01:23:08` in UTC as unix seconds; None for no value. Raises SlurmParseError."""
    value = or_empty(text)
    if not value or value in _UNLIMITED_VALUES:
        return None
    try:
        return datetime.fromisoformat(f"{value}+00:00").timestamp()
    except ValueError:
        raise SlurmParseError(f"not a time: {value[:40]!r}") from None


def format_time(at: float) -> str:
    """These unix seconds as Slurm writes them in UTC: `2026-11-21T01:23:08`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def parse_tres(text: str | None) -> dict[str, str]:
    """`cpu=6,mem=20000M,gres/gpu=2` by name; the first of a repeated name counts."""
    amounts: dict[str, str] = {}
    for part in or_empty(text).split(","):
        name, separator, amount = part.partition("=")
        if separator:
            amounts.setdefault(name, amount)
    return amounts
