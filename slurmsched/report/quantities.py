"""Formats amounts, durations and times for people."""

from __future__ import annotations

from datetime import datetime
from math import floor, inf, isfinite, log10
from typing import Final

from slurmsched.model.reasons import format_duration, format_percent

_MEBIBYTES: Final = (("T", 1024 * 1024), ("G", 1024))


duration = format_duration
percent = format_percent


def signed_percent(fraction: float) -> str:
    """A change as a fraction of 1: `+42 %`, `-3 %`, `0 %`."""
    text = format_percent(fraction)
    return f"+{text}" if fraction > 0 and text not in ("-", "0 %") else text


def memory(mebibytes: int) -> str:
    """MiB as Slurm writes sizes: `500G`, `1.5T`, `512M`."""
    for suffix, size in _MEBIBYTES:
        if mebibytes >= size:
            return f"{mebibytes / size:.1f}".removesuffix(".0") + suffix
    return f"{mebibytes}M"


def amount(number: float, digits: int = 1) -> str:
    """A number with at most so many decimals, none where they are zeros: `3`, `2.5`; `-` for what is no number."""
    if not isfinite(number):
        return "-"
    text = f"{number:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).removeprefix("-" if float(text) == 0 else "")


def fixed(number: float, digits: int = 1) -> str:
    """A number with so many decimals, so that a column of them compares at a glance; `-` for what is no number."""
    return f"{number:.{digits}f}" if isfinite(number) else "-"


def significant(number: float, digits: int = 3) -> str:
    """A number with so many digits that count, never in powers of ten; `-` for what is no number."""
    if not isfinite(number) or number == 0:
        return amount(number)
    decimals = digits - 1 - floor(log10(abs(number)))
    return amount(round(number, decimals), max(decimals, 0))


def per_gpu(number: int, gpus: int) -> str:
    """CPUs per GPU with at most one decimal: `3`, `2.5`; `-` without GPUs."""
    return amount(number / gpus) if gpus else "-"


def local_time(time: float | None) -> str:
    """Local time to the second, as Slurm prints it; `-` for None, and for what is no time."""
    try:
        return "-" if time is None else datetime.fromtimestamp(time).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "-"


_HOUR, _DAY = 3600.0, 86400.0
_MINUTES_BELOW: Final = 100 * 60.0


def from_now(at: float | None, now: float) -> str:
    """How long it is until then, in words as short as `2.3 h`; `later` for None, which is after the horizon."""
    if at is None or at == inf:
        return "later"
    if not isfinite(at):
        return "-"
    seconds = at - now
    if seconds < 60:  # noqa: PLR2004  # a minute
        return "now"
    if seconds < _MINUTES_BELOW:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < 2 * _DAY else f"{seconds / _DAY:.1f} d"
