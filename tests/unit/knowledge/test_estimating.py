"""Rates that were not measured."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.experiments.tesserae.evaluation import simulated_rate
from slurmsched.knowledge.estimation import (
    GPU_SPECS,
    NoScikitLearnError,
    ParallelStrategy,
    add_noise,
    bayesian_search,
    complete_matrix,
    complete_rates,
    data_parallel_scaling,
    gpu_spec,
    parallel_strategies,
    random_search,
)


def test_twice_the_gpus_do_twice_the_work_and_share_it_alike() -> None:
    known = data_parallel_scaling(50.0, {"gpt3-3b": 0.3})
    assert [known.rate_at(gpus) for gpus in (1, 2, 8)] == [50.0, 100.0, 400.0]
    assert known.beside["gpt3-3b"] == 0.3


def test_noise_stays_within_its_bounds_and_makes_no_edges() -> None:
    rates = np.array([[0.0, 0.5], [1.0, 0.8]])
    seen = np.array([add_noise(rates, 0.2, np.random.default_rng(seed)) for seed in range(200)])
    assert (seen[:, 0, 0] == 0).all()
    assert (abs(seen[:, 1, 0] - 1) <= 0.2).all()
    assert seen[:, 1, 0].std() > 0.05
    assert (add_noise(rates, 0.0, np.random.default_rng(1)) == rates).all()


def test_holes_of_a_table_with_few_causes_are_filled_and_the_rest_stays() -> None:
    random = np.random.default_rng(3)
    heavy = random.uniform(0.2, 0.9, 20)
    table = 1 - 0.5 * np.add.outer(heavy, heavy)
    holes = random.random(table.shape) < 0.3
    filled = complete_matrix(np.where(holes, np.nan, table))
    assert (filled[~holes] == table[~holes]).all()
    guess = table[~holes].mean()
    assert abs(filled - table)[holes].mean() < 0.35 * abs(guess - table)[holes].mean()


def test_divisions_of_a_model_over_its_gpus() -> None:
    found = parallel_strategies(4, 6, shift=1)
    assert all(one.data * one.tensor * len(one.layers) == 4 and sum(one.layers) == 6 for one in found)
    assert {one for one in found if (one.data, one.tensor) == (2, 1)} == {
        ParallelStrategy(2, 1, (2, 4)), ParallelStrategy(2, 1, (3, 3)), ParallelStrategy(2, 1, (4, 2)),
    }  # fmt: skip
    assert str(ParallelStrategy(1, 2, (4, 2))) == "dp1-tp2-pp4.2"
    assert len(set(found)) == len(found)


def test_an_estimate_is_near_a_measured_neighbour_and_the_mean_where_none_is_near() -> None:
    rates = [3.0, 3.0, 1.0, 2.0]
    found = random_search([(0.0,), (0.1,), (20.0,), (99.0,)], rates.__getitem__, 2, _measures_first_and_third())
    assert list(found.measured) == [0, 2]
    assert found.rates[1] == pytest.approx(3.0, abs=0.1)
    assert found.rates[3] == pytest.approx(2.0, abs=0.5)


def _measures_first_and_third() -> np.random.Generator:
    """A generator whose first permutation of four begins with 0 and 2."""
    seeds = range(1000)
    seed = next(seed for seed in seeds if list(np.random.default_rng(seed).permutation(4)[:2]) == [0, 2])
    return np.random.default_rng(seed)


def test_without_scikit_learn_the_search_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    with pytest.raises(NoScikitLearnError, match=r"pip install 'slurmsched\[strategies\]'"):
        random_search([(0.0,), (1.0,)], float, 1, np.random.default_rng(0))


def test_a_search_finds_a_fast_strategy_sooner_than_chance() -> None:
    candidates = parallel_strategies(8, 24)
    features, rates = [one.features for one in candidates], [simulated_rate(one) for one in candidates]
    ours, chance = [], []
    for seed in range(20):
        found = bayesian_search(features, rates.__getitem__, 8, np.random.default_rng(seed))
        assert len(found.measured) == 8
        assert all(found.rates[place] == rates[place] for place in found.measured)
        ours.append(rates[found.best] / max(rates))
        blind = random_search(features, rates.__getitem__, 8, np.random.default_rng(seed))
        chance.append(rates[blind.best] / max(rates))
    assert np.mean(ours) > 0.93
    assert 1 - np.mean(ours) < 0.5 * (1 - np.mean(chance))


def test_a_budget_beyond_all_candidates_measures_each_once() -> None:
    asked: list[int] = []

    def measure(place: int) -> float:
        asked.append(place)
        return float(place)

    found = bayesian_search([(0.0,), (1.0,), (2.0,)], measure, 10, np.random.default_rng(0))
    assert sorted(asked) == [0, 1, 2]
    assert found.best == 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("v100", "v100", id="as sites name it"),
        pytest.param("NVIDIA_A100-SXM4-40GB", "a100", id="as NVML names it"),
        pytest.param("nvidia_geforce_rtx_2080_ti", "2080-ti", id="with a brand"),
        pytest.param("rtx3090", "3090", id="in one word"),
        pytest.param("l40s", "l40s", id="not the shorter name"),
        pytest.param("a100_1g.5gb", None, id="a slice of a GPU"),
        pytest.param("a1000", None, id="a longer number"),
        pytest.param("own-board", None, id="unknown"),
        pytest.param("", None, id="no name"),
    ],
)
def test_the_data_sheet_of_a_gpu_type_by_its_name_in_slurm(name: str, kind: str | None) -> None:
    assert gpu_spec(name) is (GPU_SPECS[kind] if kind else None)


def test_rates_that_were_not_measured_are_in_the_ratio_of_equation_10() -> None:
    found = complete_rates({"v100": 30.0}, ["v100", "p100", "own-board"])
    assert found == pytest.approx({"v100": 30.0, "p100": 30.0 * 9.3 / 15.7, "own-board": 30.0})
    assert complete_rates({"p100": 4.0, "k80": 1.0}, ["k80", "h100"]) == {"k80": 1.0, "h100": 4.0}
    assert complete_rates({"mine": 4.0, "yours": 1.0}, ["h100"]) == {"h100": 1.0}
    assert complete_rates({"k80": 0.0}, ["k80", "v100"]) == {}


@given(
    st.dictionaries(st.sampled_from([*GPU_SPECS, "mine", "yours"]), st.floats(0, 1e6), max_size=5),
    st.lists(st.sampled_from([*GPU_SPECS, "ours"]), unique=True, max_size=5),
)
def test_measured_rates_stay_and_no_estimate_is_above_them(measured: dict[str, float], types: list[str]) -> None:
    found = complete_rates(measured, types)
    assert set(found) == (set(types) if any(measured.values()) else set())
    for kind, rate in found.items():
        assert rate == measured[kind] if kind in measured else 0 < rate <= max(measured.values())
