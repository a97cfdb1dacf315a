"""Moments as sentences need them."""

from __future__ import annotations

from datetime import datetime

__all__ = ["moment"]


def moment(at: float, now: float) -> str:
    """Local time of day; with the date where that is not the day of `now`. Both in unix seconds."""
    then = datetime.fromtimestamp(at)
    today = then.date() == datetime.fromtimestamp(now).date()
    return f"{then:%H:%M}" if today else f"{then:%Y-%m-%d %H:%M}"
