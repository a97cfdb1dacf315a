"""A network trained by copies: its mathematics, and that copies are what real forked jobs are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurmsched.experiments.hadare_quality import (
    PARAMETER_SHAPES,
    SCHEDULE_STEPS,
    SINGLE_COPY,
    CopyRules,
    Optimizer,
    SyntheticSamples,
    TrainingPlan,
    TrainingState,
    adam,
    gradient,
    initial_state,
    loss,
    sgd,
    train_copies,
)

SAMPLES = SyntheticSamples(1, None)
WORK = TrainingPlan(140, 28, adam, 0.01)
SPEEDS = (4.0, 2.0, 1.0)


def same(one: TrainingState, other: TrainingState) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    random = np.random.default_rng(2)
    state, batch = initial_state(random), SAMPLES.batch(random)
    slope = gradient(state, *batch)
    assert slope.keys() == PARAMETER_SHAPES.keys()
    for name, shape in PARAMETER_SHAPES.items():
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
    state = initial_state(random)
    theirs = {own: torch.tensor(state[own].copy(), requires_grad=True) for own in PARAMETER_SHAPES}
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


@pytest.mark.parametrize(
    "rules", [CopyRules(), CopyRules(schedule_by_job_steps=False), CopyRules(look_ahead=False)], ids=str
)
def test_one_copy_in_rounds_is_one_that_is_not_forked(rules: CopyRules) -> None:
    random, state = np.random.default_rng([4, 1, 0]), initial_state(np.random.default_rng([4, 0]))
    for step in range(WORK.steps):
        adam(state, gradient(state, *SAMPLES.batch(random)), WORK.learning_rate_at(step))
    state[SCHEDULE_STEPS] = np.asarray(WORK.steps)
    assert same(train_copies(SAMPLES, 4, WORK, SINGLE_COPY, rules), state)


def test_a_copys_own_schedule_ends_before_its_end() -> None:
    assert train_copies(SAMPLES, 4, WORK, SPEEDS, CopyRules())[SCHEDULE_STEPS] == WORK.steps * 4 // 7


@pytest.mark.parametrize(
    "other",
    [CopyRules(schedule_by_job_steps=False), CopyRules(look_ahead=False), CopyRules(average_optimizer=False)],
    ids=str,
)
def test_each_rule_makes_a_difference_and_the_same_seed_none(other: CopyRules) -> None:
    expected = train_copies(SAMPLES, 4, WORK, SPEEDS, CopyRules())
    assert same(train_copies(SAMPLES, 4, WORK, SPEEDS, CopyRules()), expected)
    assert not same(train_copies(SAMPLES, 4, WORK, SPEEDS, other), expected)


def test_copies_learn_too() -> None:
    work = replace(WORK, steps=700)
    before = loss(initial_state(np.random.default_rng([4, 0])), SAMPLES.inputs, SAMPLES.targets)
    for speeds in (SINGLE_COPY, SPEEDS):
        after = loss(train_copies(SAMPLES, 4, work, speeds, CopyRules()), SAMPLES.inputs, SAMPLES.targets)
        assert after < 0.5 * before


def test_samples_are_kept_or_drawn_anew() -> None:
    few, random = SyntheticSamples(5, 10), np.random.default_rng(6)
    assert len({tuple(row) for _ in range(20) for row in few.batch(random)[0]}) == 10
    assert len({tuple(row) for _ in range(20) for row in SAMPLES.batch(random)[0]}) == 20 * 50
