"""The explanation of one job, as `synsched explain` prints it and the database stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from slurmsched.model import JobId


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job runs where it does, or waits, in plain words. JSON-safe.

    `headline` is one sentence. `ordered_behind` names the nearest jobs ahead of it that have GPUs, nearest first.
    `what_would_change` lists what its owner could do or wait for. `facts` are figures by name.
    """

    job: JobId
    headline: str
    ordered_behind: tuple[str, ...] = ()
    what_would_change: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def time_of_day(at: float, now: float) -> str:
    """Local time of day, with the date if it is not that of `now`. Both in unix seconds."""
    then = datetime.fromtimestamp(at)
    today = then.date() == datetime.fromtimestamp(now).date()
    return f"{then:%H:%M}" if today else f"{then:%Y-%m-%d %H:%M}"
