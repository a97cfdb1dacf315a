"""A small network that is really trained: 16 numbers in, 64 rectified units, one number out; squared error.

Data made up: a function drawn at random, seen through noise.

A job trained in rounds by copies at several speeds, put together by what real forked jobs use (HadarE, section V-B).

The copies take their turns in one process: how long they take is not measured here, only what they have learnt.

HadarE, table IV: models trained by copies on several nodes against the same trained without, by as many steps.

The paper's models and data are not to be had. Here a small network is trained for real, on data that it meets again and
again and on data that it meets once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import cos, pi
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.jobside.forking import CopyState, ForkedRound, average, divide_steps, momentum
from slurmsched.jobside.tensors import read_arrays, write_arrays

Array = NDArray[np.float64]
TrainingState = dict[str, NDArray[Any]]
"""Parameters, what an optimizer holds, and where a schedule stands, by name: all that a checkpoint has.

One of them is a whole number, hence `Any`."""

Optimizer = Callable[[TrainingState, Mapping[str, Array], float], None]
"""One step along a gradient, at a learning rate, in place."""

INPUTS: Final = 16
_HIDDEN_UNITS: Final = 64
PARAMETER_SHAPES: Final[Mapping[str, tuple[int, ...]]] = {
    "inner": (INPUTS, _HIDDEN_UNITS), "inner.bias": (_HIDDEN_UNITS,), "outer": (_HIDDEN_UNITS, 1), "outer.bias": (1,),
}  # fmt: skip
"""Name to shape."""

SCHEDULE_STEPS: Final = "schedule.steps"
"""The steps that a schedule has counted: a whole number, of which there is no mean."""

_FIRST_DECAY: Final = 0.9
_SECOND_DECAY: Final = 0.999
_EPSILON: Final = 1e-8
_ADAM_STEPS: Final = "adam.steps"


def initial_state(random: np.random.Generator) -> TrainingState:
    """Parameters as torch's linear layers draw them, and nothing learnt."""
    state: TrainingState = {}
    for name, shape in PARAMETER_SHAPES.items():
        within = (INPUTS if name.startswith("inner") else _HIDDEN_UNITS) ** -0.5
        state[name] = random.uniform(-within, within, shape)
        state[f"{name}.first"], state[f"{name}.second"] = np.zeros(shape), np.zeros(shape)
    return state | {_ADAM_STEPS: np.zeros(()), SCHEDULE_STEPS: np.zeros((), np.int64)}


def loss(state: TrainingState, inputs: Array, targets: Array) -> float:
    """The mean squared error."""
    _, outputs = _forward(state, inputs)
    return float(np.mean((outputs - targets) ** 2))


def gradient(state: TrainingState, inputs: Array, targets: Array) -> Mapping[str, Array]:
    """Of the loss, for each parameter."""
    hidden, outputs = _forward(state, inputs)
    error = 2 * (outputs - targets) / len(targets)
    below = (error @ state["outer"].T) * (hidden > 0)
    return {
        "inner": inputs.T @ below,
        "inner.bias": below.sum(0),
        "outer": hidden.T @ error,
        "outer.bias": error.sum(0),
    }


def adam(state: TrainingState, gradients: Mapping[str, Array], learning_rate: float) -> None:
    """One step of Adam (D. Kingma and J. Ba, 2015), in place."""
    state[_ADAM_STEPS] = steps = state[_ADAM_STEPS] + 1.0
    for name, own in gradients.items():
        first, second = state[f"{name}.first"], state[f"{name}.second"]
        first += (1 - _FIRST_DECAY) * (own - first)
        second += (1 - _SECOND_DECAY) * (own * own - second)
        root = np.sqrt(second / (1 - _SECOND_DECAY**steps))
        state[name] -= learning_rate * first / (1 - _FIRST_DECAY**steps) / (root + _EPSILON)


def sgd(state: TrainingState, gradients: Mapping[str, Array], learning_rate: float) -> None:
    """One step of stochastic gradient descent with momentum, in place."""
    for name, own in gradients.items():
        first = state[f"{name}.first"]
        first *= _FIRST_DECAY
        first += own
        state[name] -= learning_rate * first


def _forward(state: TrainingState, inputs: Array) -> tuple[Array, Array]:
    hidden = np.maximum(inputs @ state["inner"] + state["inner.bias"], 0)
    return hidden, hidden @ state["outer"] + state["outer.bias"]


BATCH_SIZE: Final = 50
NOISE_DEVIATION: Final = 0.3
HELD_OUT_COUNT: Final = 4000

_FUNCTION_UNITS: Final = 32
_WEIGHT_SCALE: Final = 1.5
"""How far from linear the function is: its weights are so much larger than a fresh network's."""


class SyntheticSamples:
    """`count` samples that are met again and again, or with None new ones in every batch.

    `inputs` and `wanted` are never trained on, and without noise.
    """

    def __init__(self, seed: int, count: int | None) -> None:
        random = np.random.default_rng(seed)
        self._inner = random.uniform(-1, 1, (INPUTS, _FUNCTION_UNITS)) * _WEIGHT_SCALE * INPUTS**-0.5
        self._bias = random.uniform(-1, 1, _FUNCTION_UNITS) * _WEIGHT_SCALE * INPUTS**-0.5
        self._outer = random.uniform(-1, 1, (_FUNCTION_UNITS, 1)) * _WEIGHT_SCALE * _FUNCTION_UNITS**-0.5
        self.inputs = random.standard_normal((HELD_OUT_COUNT, INPUTS))
        self.targets = self._function(self.inputs)
        self._fixed = self._draw(count, random) if count is not None else None

    def batch(self, random: np.random.Generator) -> tuple[Array, Array]:
        """One batch to train on."""
        if self._fixed is None:
            return self._draw(BATCH_SIZE, random)
        inputs, wanted = self._fixed
        chosen = random.integers(len(inputs), size=BATCH_SIZE)
        return inputs[chosen], wanted[chosen]

    def _draw(self, count: int, random: np.random.Generator) -> tuple[Array, Array]:
        inputs = random.standard_normal((count, INPUTS))
        return inputs, self._function(inputs) + NOISE_DEVIATION * random.standard_normal((count, 1))

    def _function(self, inputs: Array) -> Array:
        hidden: Array = np.tanh(inputs @ self._inner + self._bias)
        given: Array = hidden @ self._outer
        return given


SINGLE_COPY: Final = (1.0,)
"""The speeds of one copy: a job that is not forked."""


@dataclass(frozen=True, slots=True)
class CopyRules:
    """What a script may do about being one of several copies.

    `job_schedule`: the learning rate goes by the job's steps, and not by the steps that the copy has counted.
    `ahead`: rounds begin beyond the mean. `optimizer`: its state is averaged, and does not begin anew each round.
    """

    schedule_by_job_steps: bool = True
    look_ahead: bool = True
    average_optimizer: bool = True


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """`steps` in all, `a_round` in each round, at a learning rate that falls from `rate` to nothing by a cosine."""

    steps: int
    steps_per_round: int
    optimizer: Optimizer
    learning_rate: float

    def learning_rate_at(self, step: float) -> float:
        """The learning rate once so many steps are done."""
        return self.learning_rate * 0.5 * (1 + cos(pi * min(step / self.steps, 1.0)))


def train_copies(
    samples: SyntheticSamples, seed: int, plan: TrainingPlan, speeds: Sequence[float], rules: CopyRules
) -> TrainingState:
    """The network after all steps, each copy having met data of its own."""
    state = initial_state(np.random.default_rng([seed, 0]))
    drawing = [np.random.default_rng([seed, 1, copy]) for copy in range(len(speeds))]
    with TemporaryDirectory(prefix="synsched-copies-") as name:
        folder, done, earlier, round_number = Path(name), 0, None, 0
        while done < plan.steps:
            left, round_number = plan.steps - done, round_number + 1
            steps_by_copy = divide_steps(min(plan.steps_per_round, left), speeds)
            fork = ForkedRound(folder, round_number, plan.steps, done, divide_steps(left, speeds), steps_by_copy)
            copies = []
            for copy, steps in enumerate(steps_by_copy):
                copy_state = _begin_round(state, rules)
                for step in range(steps):
                    schedule_step = (
                        fork.reached(copy, step) if rules.schedule_by_job_steps else float(copy_state[SCHEDULE_STEPS])
                    )
                    plan.optimizer(
                        copy_state,
                        gradient(copy_state, *samples.batch(drawing[copy])),
                        plan.learning_rate_at(schedule_step),
                    )
                    copy_state[SCHEDULE_STEPS] = copy_state[SCHEDULE_STEPS] + 1
                copies.append(CopyState(folder / f"copy-{copy}", steps))
                write_arrays(copies[-1].path, copy_state)
            average(copies, folder / "mean")
            mean, done = read_arrays(folder / "mean"), done + sum(steps_by_copy)
            state = _look_ahead(mean, earlier, fork) if rules.look_ahead and done < plan.steps else mean
            earlier = mean
    return state


def _begin_round(state: TrainingState, rules: CopyRules) -> TrainingState:
    """What a copy begins the round with."""
    own = {name: array.copy() for name, array in state.items()}
    if rules.average_optimizer:
        return own
    return initial_state(np.random.default_rng(0)) | {name: own[name] for name in (*PARAMETER_SHAPES, SCHEDULE_STEPS)}


def _look_ahead(mean: TrainingState, earlier: TrainingState | None, fork: ForkedRound) -> TrainingState:
    """Only parameters go ahead of their mean."""
    if earlier is None:
        return mean
    part = momentum(fork)
    return mean | {name: mean[name] + part * (mean[name] - earlier[name]) for name in PARAMETER_SHAPES}


COPY_SPEEDS: Final = (4.0, 2.0, 1.0)
DRAWS_PER_SEED: Final = 5
"""Networks and data, over which each figure is a mean."""

DATA_SETS: Final[Mapping[str, tuple[int | None, TrainingPlan]]] = {
    "repeated": (1000, TrainingPlan(3000, 100, adam, 0.01)),
    "new": (None, TrainingPlan(12_000, 100, adam, 0.01)),
    "new, long rounds": (None, TrainingPlan(12_000, 500, adam, 0.01)),
    "new, short": (None, TrainingPlan(3000, 100, adam, 0.01)),
    "new, SGD": (None, TrainingPlan(12_000, 100, sgd, 0.1)),
}
"""Samples, and the work. Learning rates are the best that we found for one copy on new data, in steps of three."""

_ONE_COPY: Final = "one copy"
RULES_BY_METHOD: Final[Mapping[str, CopyRules]] = {
    "plain": CopyRules(schedule_by_job_steps=False, look_ahead=False),
    "schedule": CopyRules(look_ahead=False),
    "ahead": CopyRules(),
    "ahead, optimizer anew": CopyRules(average_optimizer=False),
}
"""Ways of three copies at speeds 4:2:1."""

METHODS: Final = (_ONE_COPY, *RULES_BY_METHOD)
CHECKED: Final = frozenset({("repeated", "schedule"), ("new", "ahead"), ("new, long rounds", "ahead")})
"""Not to be worse than one copy: what a script does that knows its data. Where it cannot be helped is only stated."""

_NOTES: Final[Mapping[str, str]] = {
    "repeated": "1000 noisy samples, 3000 steps, a round 100. The paper gains 3 to 11 % on data met again and again"
    " (table IV, squared errors). Copies go less far in as many steps, and overfit less: that is most of the gain.",
    "new": "Never the same sample twice, 12,000 steps, a round 100. Plain: a copy's schedule counts its own steps, and"
    " ends with four sevenths of them. Schedule: it goes by the job's steps. Ahead: rounds also begin beyond the mean.",
    "new, long rounds": "The same with rounds of 500 steps, each a twenty-fourth of the training.",
    "new, short": "3000 steps: one copy is not done learning by then, and every step less in a row shows.",
    "new, SGD": "12,000 steps by gradient descent with momentum instead of Adam, a round 100.",
}


@dataclass(frozen=True, slots=True)
class _TrainingConfig:
    """One training: which data, which way, which seed."""

    data: str
    method: str
    seed: int


def run_hadare_quality(setup: ExperimentSetup) -> ExperimentResult:
    """The loss of each way on each data. With `quick` of one seed, and nothing is held against anything."""
    draws = 1 if setup.quick else DRAWS_PER_SEED
    seeds = [seed * DRAWS_PER_SEED + draw for seed in setup.seeds for draw in range(draws)]
    configs = [_TrainingConfig(data, way, seed) for data in DATA_SETS for way in METHODS for seed in seeds]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        running = [(config, pool.submit(_final_loss, config)) for config in configs]
        found = {cell: future.result() for cell, future in setup.track_progress(running, "training")}
    losses = {
        (data, way): [found[_TrainingConfig(data, way, seed)] for seed in seeds]
        for data in DATA_SETS
        for way in METHODS
    }
    return ExperimentResult("hadare-quality", tuple(_loss_rows(losses, CHECKED if not setup.quick else ())))


def _final_loss(config: _TrainingConfig) -> float:
    count, plan = DATA_SETS[config.data]
    samples = SyntheticSamples(config.seed, count)
    speeds, rules = (
        (COPY_SPEEDS, RULES_BY_METHOD[config.method])
        if config.method in RULES_BY_METHOD
        else (SINGLE_COPY, CopyRules())
    )
    return loss(train_copies(samples, config.seed, plan, speeds, rules), samples.inputs, samples.targets)


def _loss_rows(
    losses: Mapping[tuple[str, str], Sequence[float]], checked: Collection[tuple[str, str]]
) -> Iterator[FigureRow]:
    for (data, way), of_seeds in losses.items():
        one_copy = fmean(losses[data, _ONE_COPY]) if way != _ONE_COPY else None
        bound = Bound.AT_MOST if (data, way) in checked else Bound.INFORMATIVE
        yield FigureRow(f"{data}: {way}", "mse", fmean(of_seeds), None, one_copy, 0.0, bound, _NOTES[data])
        if len(of_seeds) > 1:
            yield FigureRow(f"{data}: {way}, std. deviation", "mse", stdev(of_seeds), bound=Bound.INFORMATIVE)
