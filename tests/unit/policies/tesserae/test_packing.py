"""Packing: the text's examples, and against every matching."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from slurmsched.policies.tesserae.packing import (
    PackingEdge,
    PackingJob,
    best_edge,
    best_edges,
    match_job_types,
    match_jobs,
    pack,
)


def total(pairs: Sequence[tuple[int, int]], hosts: np.ndarray, guests: np.ndarray, weights: np.ndarray) -> float:
    return sum(float(weights[hosts[host], guests[guest]]) for host, guest in pairs)


def most(hosts: Sequence[int], guests: Sequence[int], weights: np.ndarray) -> float:
    """The best total over all matchings."""
    if not hosts:
        return 0.0
    first, rest = hosts[0], hosts[1:]
    best = most(rest, guests, weights)
    for place, guest in enumerate(guests):
        if weights[first, guest] > 0:
            others = [*guests[:place], *guests[place + 1 :]]
            best = max(best, float(weights[first, guest]) + most(rest, others, weights))
    return best


@pytest.mark.parametrize("way", [match_jobs, match_job_types])
@pytest.mark.parametrize("seed", range(4))
def test_no_matching_weighs_more(way: object, seed: int) -> None:
    assert callable(way)
    random = np.random.default_rng(seed)
    for _ in range(300):
        weights = np.where(random.random((3, 3)) < 0.3, 0.0, random.uniform(0.3, 2.0, (3, 3)))
        hosts, guests = (random.integers(0, 3, random.integers(1, 5)) for _ in range(2))
        pairs = way(hosts, guests, weights)
        for side in (0, 1):
            assert len({pair[side] for pair in pairs}) == len(pairs)
        assert all(weights[hosts[host], guests[guest]] > 0 for host, guest in pairs)
        assert total(pairs, hosts, guests, weights) == pytest.approx(most(hosts.tolist(), guests.tolist(), weights))


def test_counting_kinds_weighs_as_much_as_matching_jobs() -> None:
    random = np.random.default_rng(1)
    weights = random.uniform(0.3, 2.0, (20, 20))
    hosts, guests = random.integers(0, 20, 120), random.integers(0, 20, 700)
    both = [total(way(hosts, guests, weights), hosts, guests, weights) for way in (match_jobs, match_job_types)]
    assert both[0] == pytest.approx(both[1])


ONE = np.array([[1.4]])


@pytest.mark.parametrize(
    ("placed", "pending", "weights", "pairs"),
    [
        pytest.param([PackingJob(2, 0)], [PackingJob(2, 0)], ONE, ((0, 0),), id="two jobs of two GPUs share them"),
        pytest.param([PackingJob(2, 0)], [PackingJob(1, 0)], ONE, (), id="only equal counts of GPUs are shared"),
        pytest.param(
            [PackingJob(1, 0, may_share=False)], [PackingJob(1, 0)], ONE, (), id="an urgent job has no partner"
        ),
        pytest.param([PackingJob(1, 0)], [PackingJob(1, 0, may_share=False)], ONE, (), id="who said no waits instead"),
        pytest.param(
            [PackingJob(1, 0)], [PackingJob(1, 0)], 0 * ONE, (), id="two that do not fit into memory stay apart"
        ),
        pytest.param(
            [PackingJob(1, 0)],
            [PackingJob(1, 0), PackingJob(1, 0)],
            ONE,
            ((0, 0),),
            id="never three; the first is taken",
        ),
        pytest.param(
            [PackingJob(1, 0), PackingJob(1, 1)],
            [PackingJob(1, 0), PackingJob(1, 1)],
            np.array([[1.5, 1.4], [1.3, 0.5]]),
            ((0, 1), (1, 0)),
            id="not the heaviest edge but the heaviest matching",
        ),
        pytest.param(
            [PackingJob(1, 0), PackingJob(4, 0)],
            [PackingJob(4, 0), PackingJob(1, 0)],
            ONE,
            ((0, 1), (1, 0)),
            id="each width by itself",
        ),
    ],
)
def test_who_shares(
    placed: list[PackingJob], pending: list[PackingJob], weights: np.ndarray, pairs: tuple[tuple[int, int], ...]
) -> None:
    assert pack(placed, pending, weights) == pairs


def test_the_texts_pair_of_pointnet_and_gpt3_3b_does_eight_tenths() -> None:
    """Section 4.2: 15 of 50 iterations a second, and 1 of 2."""
    edge = best_edge({("", ""): (15 / 50, 1 / 2)})
    assert edge.weight == pytest.approx(0.8)
    assert best_edges([[{("", ""): (15 / 50, 1 / 2)}]], min_weight=1.0)[1].tolist() == [[0.0]]


def test_the_best_strategy_makes_the_edge() -> None:
    """Figure 7(b): from 1.2 to 1.5 by another strategy; one that does not fit into memory is none."""
    rates = {("default", ""): (0.6, 0.6), ("even", ""): (0.8, 0.7), ("data", ""): (0.0, 0.0)}
    assert best_edge(rates) == PackingEdge(("even", ""), (0.8, 0.7))
    assert best_edge({("data", ""): (0.0, 0.0)}).weight == 0.0


def test_a_strategy_decides_who_is_matched() -> None:
    plain = {("", ""): (0.65, 0.65)}
    rates = [[{("default", ""): (0.6, 0.6)}, plain], [plain, {("", ""): (0.5, 0.5)}]]
    jobs = [PackingJob(4, 0), PackingJob(4, 1)]
    assert pack(jobs, jobs, best_edges(rates)[1]) == ((0, 1), (1, 0))
    rates[0][0] = {("default", ""): (0.6, 0.6), ("even", ""): (0.9, 0.9)}
    assert pack(jobs, jobs, best_edges(rates)[1]) == ((0, 0), (1, 1))
