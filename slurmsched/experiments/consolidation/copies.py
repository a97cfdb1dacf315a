"""A job trained in rounds by copies at several speeds, put together by what real forked jobs use (HadarE, section V-B).

The copies take their turns in one process: how long they take is not measured here, only what they have learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from slurmsched.experiments.consolidation.network import PARAMETERS, SCHEDULED, Optimizer, State, fresh, gradient
from slurmsched.experiments.consolidation.samples import Samples
from slurmsched.jobside.arrays import read_arrays, write_arrays
from slurmsched.jobside.forking import Copy, Fork, average, momentum, portions

__all__ = ["ALONE", "Rules", "Work", "trained"]

ALONE: Final = (1.0,)
"""The speeds of one copy: a job that is not forked."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a script may do about being one of several copies.

    `job_schedule`: the learning rate goes by the job's steps, and not by the steps that the copy has counted.
    `ahead`: rounds begin beyond the mean. `optimizer`: its state is averaged, and does not begin anew each round.
    """

    job_schedule: bool = True
    ahead: bool = True
    optimizer: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """`steps` in all, `a_round` in each round, at a learning rate that falls from `rate` to nothing by a cosine."""

    steps: int
    a_round: int
    optimizer: Optimizer
    rate: float

    def rate_at(self, step: float) -> float:
        """The learning rate once so many steps are done."""
        return self.rate * 0.5 * (1 + cos(pi * min(step / self.steps, 1.0)))


def trained(samples: Samples, seed: int, work: Work, speeds: Sequence[float], rules: Rules) -> State:
    """The network after all steps, each copy having met data of its own."""
    state = fresh(np.random.default_rng([seed, 0]))
    drawing = [np.random.default_rng([seed, 1, copy]) for copy in range(len(speeds))]
    with TemporaryDirectory(prefix="synsched-copies-") as name:
        folder, done, earlier, number = Path(name), 0, None, 0
        while done < work.steps:
            left, number = work.steps - done, number + 1
            counted = portions(min(work.a_round, left), speeds)
            fork = Fork(folder, number, work.steps, done, portions(left, speeds), counted)
            copies = []
            for copy, steps in enumerate(counted):
                own = _copy(state, rules)
                for step in range(steps):
                    at = fork.reached(copy, step) if rules.job_schedule else float(own[SCHEDULED])
                    work.optimizer(own, gradient(own, *samples.batch(drawing[copy])), work.rate_at(at))
                    own[SCHEDULED] = own[SCHEDULED] + 1
                copies.append(Copy(folder / f"copy-{copy}", steps))
                write_arrays(copies[-1].path, own)
            average(copies, folder / "mean")
            mean, done = read_arrays(folder / "mean"), done + sum(counted)
            state = _ahead(mean, earlier, fork) if rules.ahead and done < work.steps else mean
            earlier = mean
    return state


def _copy(state: State, rules: Rules) -> State:
    """What a copy begins the round with."""
    own = {name: array.copy() for name, array in state.items()}
    if rules.optimizer:
        return own
    return fresh(np.random.default_rng(0)) | {name: own[name] for name in (*PARAMETERS, SCHEDULED)}


def _ahead(mean: State, earlier: State | None, fork: Fork) -> State:
    """Only parameters go ahead of their mean."""
    if earlier is None:
        return mean
    part = momentum(fork)
    return mean | {name: mean[name] + part * (mean[name] - earlier[name]) for name in PARAMETERS}
