"""A small network that is really trained: 16 numbers in, 64 rectified units, one number out; squared error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "INPUTS",
    "PARAMETERS",
    "SCHEDULED",
    "Array",
    "Optimizer",
    "State",
    "adam",
    "fresh",
    "gradient",
    "loss",
    "sgd",
]

Array = NDArray[np.float64]
State = dict[str, NDArray[Any]]
"""Parameters, what an optimizer holds, and where a schedule stands, by name: all that a checkpoint has.

One of them is a whole number, hence `Any`."""

Optimizer = Callable[[State, Mapping[str, Array], float], None]
"""One step along a gradient, at a learning rate, in place."""

INPUTS: Final = 16
_UNITS: Final = 64
PARAMETERS: Final[Mapping[str, tuple[int, ...]]] = {
    "inner": (INPUTS, _UNITS), "inner.bias": (_UNITS,), "outer": (_UNITS, 1), "outer.bias": (1,),
}  # fmt: skip
"""Name to shape."""

SCHEDULED: Final = "schedule.steps"
"""The steps that a schedule has counted: a whole number, of which there is no mean."""

_FIRST: Final = 0.9
_SECOND: Final = 0.999
_TINY: Final = 1e-8
_ADAM: Final = "adam.steps"


def fresh(random: np.random.Generator) -> State:
    """Parameters as torch's linear layers draw them, and nothing learnt."""
    state: State = {}
    for name, shape in PARAMETERS.items():
        within = (INPUTS if name.startswith("inner") else _UNITS) ** -0.5
        state[name] = random.uniform(-within, within, shape)
        state[f"{name}.first"], state[f"{name}.second"] = np.zeros(shape), np.zeros(shape)
    return state | {_ADAM: np.zeros(()), SCHEDULED: np.zeros((), np.int64)}


def loss(state: State, inputs: Array, wanted: Array) -> float:
    """The mean squared error."""
    _, given = _forward(state, inputs)
    return float(np.mean((given - wanted) ** 2))


def gradient(state: State, inputs: Array, wanted: Array) -> Mapping[str, Array]:
    """Of the loss, for each parameter."""
    hidden, given = _forward(state, inputs)
    error = 2 * (given - wanted) / len(wanted)
    below = (error @ state["outer"].T) * (hidden > 0)
    return {
        "inner": inputs.T @ below,
        "inner.bias": below.sum(0),
        "outer": hidden.T @ error,
        "outer.bias": error.sum(0),
    }


def adam(state: State, slope: Mapping[str, Array], rate: float) -> None:
    """One step of Adam (D. Kingma and J. Ba, 2015), in place."""
    state[_ADAM] = steps = state[_ADAM] + 1.0
    for name, own in slope.items():
        first, second = state[f"{name}.first"], state[f"{name}.second"]
        first += (1 - _FIRST) * (own - first)
        second += (1 - _SECOND) * (own * own - second)
        root = np.sqrt(second / (1 - _SECOND**steps))
        state[name] -= rate * first / (1 - _FIRST**steps) / (root + _TINY)


def sgd(state: State, slope: Mapping[str, Array], rate: float) -> None:
    """One step of stochastic gradient descent with momentum, in place."""
    for name, own in slope.items():
        first = state[f"{name}.first"]
        first *= _FIRST
        first += own
        state[name] -= rate * first


def _forward(state: State, inputs: Array) -> tuple[Array, Array]:
    hidden = np.maximum(inputs @ state["inner"] + state["inner.bias"], 0)
    return hidden, hidden @ state["outer"] + state["outer.bias"]
