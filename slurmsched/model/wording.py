"""Amounts as ranks and reasons say them."""

from __future__ import annotations

from math import isinf
from typing import Final

__all__ = ["counted", "gpu_time", "span"]

_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def span(seconds: float) -> str:
    """Seconds in the largest unit they fill: `45 s`, `2.5 h`, `3 d`."""
    if isinf(seconds):
        return "unknown time"
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def gpu_time(gpu_seconds: float) -> str:
    """`1.5 GPU-hours`; one unit throughout, so that a list of them compares at a glance."""
    return f"{gpu_seconds / 3600:.1f} GPU-hours"


def counted(number: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
