"""Gavel's policies on its static trace: 60 GPUs of three types, all jobs there at once, no cost of restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
from cattrs import BaseValidationError, Converter

from slurmsched.experiments.experiment import Bound, ExperimentError, Outcome, Row, Task
from slurmsched.experiments.mixed.figures import Replayed
from slurmsched.experiments.mixed.gavel import GavelRounds
from slurmsched.experiments.mixed.reading import SIXTY, static_work
from slurmsched.experiments.mixed.replay import replay
from slurmsched.experiments.mixed.work import Work
from slurmsched.policies.gavel import POLICIES

__all__ = ["static"]

TOLERANCE: Final = 0.03
HOUR: Final = 3600.0
SMALL: Final = 120
ORDERS: Final = 5
"""Replays of a blind policy, each with its own draws of the order of GPU types; their mean is the figure."""

_FIXED: Final = "_fixed"
_DRAWN: Final = "The mean of several orders of GPU types, which are drawn each round; theirs is one."
_DROPPED: Final = "Their simulator drops {} jobs whose last steps are fewer than their GPUs; ours end."


@dataclass(frozen=True, slots=True)
class _Theirs:
    """What Gavel's own simulator gave. Times in seconds."""

    policy: str
    jobs: int
    completed: int
    makespan_s: float
    avg_jct_s: float
    utilisation: float

    @property
    def name(self) -> str:
        """Gavel's own name of the policy."""
        return self.policy.removesuffix(_FIXED)


@dataclass(frozen=True, slots=True)
class _Baselines:
    simulations: tuple[_Theirs, ...]


def static(task: Task) -> Outcome:
    """Makespan and mean JCT under each policy, held against Gavel's own simulator; the small version has the small
    queues only. FIFO with types at random and Gandiva's random pairs are left out: their one draw is no figure.

    Raises ExperimentError, TraceError, ProfileError.
    """
    work = static_work(task)
    known = [theirs for theirs in _read(task.file("gavel", "baselines.json")) if theirs.name in POLICIES]
    wanted = [theirs for theirs in known if not task.quick or theirs.jobs <= SMALL]
    rows = [row for theirs in task.tracked(wanted, "replaying") for row in _rows(theirs, work, task)]
    return Outcome("gavel-static", tuple(rows))


def _rows(theirs: _Theirs, work: Sequence[Work], task: Task) -> Iterator[Row]:
    policy = POLICIES[theirs.name]
    seeds = np.random.SeedSequence(task.seeds[0]).spawn(ORDERS if policy.blind else 1)
    runs: list[Replayed] = [
        replay(work[: theirs.jobs], SIXTY, GavelRounds(theirs.name, policy, np.random.default_rng(seed)))
        for seed in seeds
    ]
    dropped = theirs.jobs - theirs.completed
    note = " ".join([*([_DRAWN] if policy.blind else []), *([_DROPPED.format(dropped)] if dropped else [])])
    name = f"{theirs.jobs} jobs, {theirs.name}"
    span, jct = fmean(run.makespan for run in runs), fmean(run.mean_jct for run in runs)
    yield Row(f"{name}: makespan", "h", span / HOUR, None, theirs.makespan_s / HOUR, TOLERANCE, note=note)
    yield Row(f"{name}: mean JCT", "h", jct / HOUR, None, theirs.avg_jct_s / HOUR, TOLERANCE, note=note)
    used = fmean(run.utilisation for run in runs)
    yield Row(f"{name}: utilisation", "", used, None, theirs.utilisation, bound=Bound.STATED, note=note)


def _read(path: Path) -> tuple[_Theirs, ...]:
    try:
        return Converter().structure(json.loads(path.read_text(encoding="utf-8")), _Baselines).simulations
    except (OSError, ValueError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected the figures of Gavel's simulator: {error!r}") from error
