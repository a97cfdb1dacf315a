"""What becomes of a round's layout: who shares with whom, work done, jobs that end."""

from __future__ import annotations

from typing import Final

import numpy as np

from slurmsched.policies.pools import Ints
from slurmsched.policies.tesserae import NOBODY, Layout
from slurmsched.policies.tesserae.layout import Floats

__all__ = ["DONE", "partners", "worked"]

DONE: Final = 1e-6
"""Seconds of work that count as none."""


def partners(layout: Layout) -> tuple[Ints, Ints]:
    """Every running job and the place of its partner among them, or nobody."""
    pairs = np.unique(layout.jobs, axis=0).reshape(-1, 2)
    job = np.unique(pairs[pairs != NOBODY])
    partner: Ints = np.full(len(job), NOBODY)
    shared = pairs[pairs[:, 1] != NOBODY]
    first, second = np.searchsorted(job, shared[:, 0]), np.searchsorted(job, shared[:, 1])
    partner[first], partner[second] = second, first
    return job, partner


def worked(speed: Floats, partner: Ints, left: Floats, delay: Floats, period: float) -> tuple[Floats, Floats]:
    """Seconds of work each job does, and when in the round it ends; never for one that does not. `speed` is that beside
    the partner."""
    packed = partner != NOBODY
    with np.errstate(divide="ignore"):
        end = delay + np.where(speed > 0, left / speed, np.inf)
    # Only the first of a pair to end does so at the packed rate; the other has the GPUs to itself from then on.
    alone_from = np.where(packed, np.minimum(end[partner], period), period)
    shared = np.clip(alone_from - delay, 0.0, None) * speed
    end = np.where(end > alone_from, np.maximum(alone_from, delay) + left - shared, end)
    most = shared + np.clip(period - np.maximum(alone_from, delay), 0.0, None)
    return np.minimum(left, most), np.where(left <= most + DONE, np.minimum(end, period), np.inf)
