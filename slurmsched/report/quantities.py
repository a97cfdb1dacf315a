"""Formats amounts, durations and times for people."""

from __future__ import annotations

from datetime import datetime
from math import isnan
from typing import Final

_MEBIBYTES: Final = (("T", 1024 * 1024), ("G", 1024))


def duration(seconds: float) -> str:
    """At most two units, rounded down: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`; under a second in milliseconds."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = int(max(seconds, 0))
    parts = ((whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "min"), (whole % 60, "s"))
    first = next((position for position, (amount, _) in enumerate(parts) if amount), len(parts) - 1)
    shown = parts[first : first + 2] if parts[first][1] in ("d", "h") else parts[first : first + 1]
    return " ".join(f"{amount} {unit}" for amount, unit in shown if amount or len(shown) == 1)


def duration_or_dash(seconds: float) -> str:
    """A duration of `seconds`; `-` for NaN."""
    return "-" if isnan(seconds) else duration(seconds)


def memory(mebibytes: int) -> str:
    """MiB as Slurm writes sizes: `500G`, `1.5T`, `512M`."""
    for suffix, size in _MEBIBYTES:
        if mebibytes >= size:
            return f"{mebibytes / size:.1f}".removesuffix(".0") + suffix
    return f"{mebibytes}M"


def per_gpu(amount: int, gpus: int) -> str:
    """CPUs per GPU with at most one decimal: `3`, `2.5`; `-` without GPUs."""
    return f"{amount / gpus:.1f}".removesuffix(".0") if gpus else "-"


def local_time(time: float | None) -> str:
    """Local time to the second, as Slurm prints it; `-` for None."""
    return "-" if time is None else datetime.fromtimestamp(time).isoformat(timespec="seconds")


def percent(fraction: float) -> str:
    """A fraction of 1 as `42 %`; `-` for NaN."""
    return "-" if isnan(fraction) else f"{100 * fraction:.0f} %"


_HOUR, _DAY = 3600.0, 86400.0
_MINUTES_BELOW: Final = 100 * 60.0


def from_now(at: float | None, now: float) -> str:
    """How long it is until then, in words as short as `2.3 h`; `later` for None, which is after the horizon."""
    if at is None:
        return "later"
    seconds = at - now
    if seconds < 60:  # noqa: PLR2004  # a minute
        return "now"
    if seconds < _MINUTES_BELOW:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < 2 * _DAY else f"{seconds / _DAY:.1f} d"
