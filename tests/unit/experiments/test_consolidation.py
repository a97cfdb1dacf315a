"""A network trained by copies: its mathematics, and that copies are what real forked jobs are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurmsched.experiments.consolidation.copies import ALONE, Rules, Work, trained
from slurmsched.experiments.consolidation.network import (
    PARAMETERS,
    SCHEDULED,
    Optimizer,
    State,
    adam,
    fresh,
    gradient,
    loss,
    sgd,
)
from slurmsched.experiments.consolidation.samples import Samples

SAMPLES = Samples(1, None)
WORK = Work(140, 28, adam, 0.01)
SPEEDS = (4.0, 2.0, 1.0)


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    random = np.random.default_rng(2)
    state, batch = fresh(random), SAMPLES.batch(random)
    slope = gradient(state, *batch)
    assert slope.keys() == PARAMETERS.keys()
    for name, shape in PARAMETERS.items():
        place = tuple(size // 2 for size in shape)
        above, below = ({**state, name: state[name].copy()} for _ in range(2))
        above[name][place] += 1e-6
        below[name][place] -= 1e-6
        measured = (loss(above, *batch) - loss(below, *batch)) / 2e-6
        assert slope[name][place] == pytest.approx(measured, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize(("optimizer", "name"), [(adam, "Adam"), (sgd, "SGD")])
def test_the_steps_are_torchs(optimizer: Optimizer, name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not here: pip install -e '.[torch]'")
    random = np.random.default_rng(3)
    state = fresh(random)
    theirs = {own: torch.tensor(state[own].copy(), requires_grad=True) for own in PARAMETERS}
    options = {"momentum": 0.9} if name == "SGD" else {}
    stepping = getattr(torch.optim, name)(theirs.values(), lr=0.01, **options)
    for _ in range(5):
        slope = gradient(state, *SAMPLES.batch(random))
        optimizer(state, slope, 0.01)
        for own, parameter in theirs.items():
            parameter.grad = torch.tensor(slope[own])
        stepping.step()
    for own, parameter in theirs.items():
        np.testing.assert_allclose(state[own], parameter.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rules", [Rules(), Rules(job_schedule=False), Rules(ahead=False)], ids=str)
def test_one_copy_in_rounds_is_one_that_is_not_forked(rules: Rules) -> None:
    random, state = np.random.default_rng([4, 1, 0]), fresh(np.random.default_rng([4, 0]))
    for step in range(WORK.steps):
        adam(state, gradient(state, *SAMPLES.batch(random)), WORK.rate_at(step))
    state[SCHEDULED] = np.asarray(WORK.steps)
    assert same(trained(SAMPLES, 4, WORK, ALONE, rules), state)


def test_a_copys_own_schedule_ends_before_its_end() -> None:
    assert trained(SAMPLES, 4, WORK, SPEEDS, Rules())[SCHEDULED] == WORK.steps * 4 // 7


@pytest.mark.parametrize("other", [Rules(job_schedule=False), Rules(ahead=False), Rules(optimizer=False)], ids=str)
def test_each_rule_makes_a_difference_and_the_same_seed_none(other: Rules) -> None:
    expected = trained(SAMPLES, 4, WORK, SPEEDS, Rules())
    assert same(trained(SAMPLES, 4, WORK, SPEEDS, Rules()), expected)
    assert not same(trained(SAMPLES, 4, WORK, SPEEDS, other), expected)


def test_copies_learn_too() -> None:
    work = replace(WORK, steps=700)
    before = loss(fresh(np.random.default_rng([4, 0])), SAMPLES.inputs, SAMPLES.wanted)
    for speeds in (ALONE, SPEEDS):
        after = loss(trained(SAMPLES, 4, work, speeds, Rules()), SAMPLES.inputs, SAMPLES.wanted)
        assert after < 0.5 * before


def test_samples_are_kept_or_drawn_anew() -> None:
    few, random = Samples(5, 10), np.random.default_rng(6)
    assert len({tuple(row) for _ in range(20) for row in few.batch(random)[0]}) == 10
    assert len({tuple(row) for _ in range(20) for row in SAMPLES.batch(random)[0]}) == 20 * 50
