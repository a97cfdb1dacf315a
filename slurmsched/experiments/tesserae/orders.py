"""Who comes first in a replay: the keys of `policies.ordering`, over vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from slurmsched.experiments.tesserae.replay import Standing
from slurmsched.policies.pools import Ints

__all__ = ["Order", "fairness", "least_attained", "queued"]

Order = Callable[[Standing], Ints]
"""The active jobs, who comes first first."""

QUEUES: Final = (3600.0, 14400.0, 86400.0)
"""GPU-seconds, the default bounds of `las`."""


def queued(standing: Standing) -> Ints:
    """Tiresias' queues: by attained service in steps, in each by arrival."""
    queue = np.searchsorted(QUEUES, standing.attained[standing.active], "right")
    return np.asarray(standing.active[np.lexsort((standing.active, queue))])


def least_attained(standing: Standing) -> Ints:
    """Without queues: the service itself."""
    return np.asarray(standing.active[np.lexsort((standing.active, standing.attained[standing.active]))])


def fairness(standing: Standing) -> Ints:
    """By rho, the highest first: from arrival to end if the job ran alone from now on, over its time on an even part of
    the GPUs."""
    active, workload = standing.active, standing.workload
    part = standing.sizes.sum() / len(active)
    shared = standing.time - workload.arrival[active] + standing.remaining[active]
    alone = workload.work[active] * np.maximum(1.0, workload.gpus[active] / part)
    return np.asarray(active[np.lexsort((active, -shared / alone))])
