"""Slurm's ways to write an amount, a duration or a moment, as numbers. What says nothing is None."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from slurmsched.backends.slurm.errors import NotUnderstoodError

__all__ = ["mebibytes", "moment", "said", "seconds", "span", "tres", "whole"]

_NOTHING: Final = frozenset({"", "(null)", "N/A", "n/a", "None", "none", "Unknown", "NONE"})
_ENDLESS: Final = frozenset({"UNLIMITED", "INFINITE", "Partition_Limit", "INVALID", "NOT_SET"})
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([KMGTPE]?)(?:[nc]|i?B)?\Z")
_IN_MEBIBYTES: Final = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3, "E": 1024**4}
_DURATION = re.compile(r"(?:(\d{1,7})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,2})(?:\.\d+)?\Z")


def said(text: str | None) -> str:
    """The text, empty where Slurm writes that there is nothing."""
    return "" if text is None or text in _NOTHING else text


def whole(text: str | None, otherwise: int = 0) -> int:
    """A count such as `12`; of `2-4` the first. Raises NotUnderstoodError."""
    given = said(text)
    if not given or given == "*":
        return otherwise
    digits = given.split("-", 1)[0] if not given.startswith("-") else given
    try:
        return int(digits)
    except ValueError:
        raise NotUnderstoodError(f"not a number: {given[:40]!r}") from None


def span(text: str | None) -> tuple[int, int | None]:
    """`2` as (2, None) and `2-4` as (2, 4). Raises NotUnderstoodError."""
    first, _, last = said(text).partition("-")
    return whole(first, 1), whole(last) if last else None


def mebibytes(text: str | None) -> int:
    """`20000M`, `400G` or `512` in MiB, 0 where nothing is said. Raises NotUnderstoodError."""
    given = said(text)
    if not given or given in _ENDLESS:
        return 0
    match = _SIZE.match(given)
    if match is None:
        raise NotUnderstoodError(f"not an amount of memory: {given[:40]!r}")
    return int(float(match[1]) * _IN_MEBIBYTES[match[2]])


def seconds(text: str | None) -> int | None:
    """`1-02:03:04`, `02:03:04` or `03:04` in seconds; None where there is no limit. Raises NotUnderstoodError."""
    given = said(text)
    if not given or given in _ENDLESS:
        return None
    match = _DURATION.match(given)
    if match is None:
        raise NotUnderstoodError(f"not a duration: {given[:40]!r}")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def moment(text: str | None) -> float | None:
    """`2026-11-21T01:23:08` as unix seconds; the commands run in UTC. Raises NotUnderstoodError."""
    given = said(text)
    if not given or given in _ENDLESS:
        return None
    try:
        return datetime.fromisoformat(f"{given}+00:00").timestamp()
    except ValueError:
        raise NotUnderstoodError(f"not a time: {given[:40]!r}") from None


def tres(text: str | None) -> dict[str, str]:
    """`cpu=6,mem=20000M,gres/gpu=2` by name; of a name that comes twice the first counts."""
    found: dict[str, str] = {}
    for part in said(text).split(","):
        name, separator, amount = part.partition("=")
        if separator:
            found.setdefault(name, amount)
    return found
