"""What `synsched explain` says of one job, as it is stored and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmsched.model import JobId

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job runs where it does, or waits, in plain words. JSON-safe.

    `headline` is one sentence. `ordered_behind` names the last few jobs ahead of it that run, nearest first.
    `what_would_change` are things its owner could do, or wait for. `facts` are the figures behind it, by name.
    """

    job: JobId
    headline: str
    ordered_behind: tuple[str, ...] = ()
    what_would_change: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
