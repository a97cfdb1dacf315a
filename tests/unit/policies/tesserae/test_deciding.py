"""Whole rounds: who gets GPUs, who shares them, and what a round never does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slurmsched.experiments.tesserae.round import (
    Allocator,
    TesseraeProblem,
    TesseraeVariant,
    allocate_in_order,
    allocate_keeping_nodes,
    plan_round,
)
from slurmsched.policies.tesserae.migration import NO_JOB, PlacementPlan, migrated_jobs

OURS = TesseraeVariant()
TEXT = TesseraeVariant(allocate_in_order, keep_pairs=False)
BOTH = pytest.mark.parametrize("seating", [allocate_in_order, allocate_keeping_nodes])


def seats(
    seating: Allocator, gpus: list[int], sizes: list[int], homes: dict[int, list[tuple[int, int]]] | None = None
) -> dict[int, list[tuple[int, int]]]:
    return seating(list(range(len(gpus))), np.array(gpus), np.array(sizes), homes or {})


@BOTH
def test_a_gang_of_one_node_lies_on_one_node(seating: Allocator) -> None:
    assert seats(seating, [3, 3], [4, 4]) == {0: [(0, 3)], 1: [(1, 3)]}


@BOTH
def test_a_wider_gang_has_whole_nodes_and_one_rest(seating: Allocator) -> None:
    found = seats(seating, [10], [4, 4, 4])
    assert sorted(gpus for _, gpus in found[0]) == [2, 4, 4]


@BOTH
def test_who_finds_no_consolidated_place_waits_and_those_behind_are_tried(seating: Allocator) -> None:
    assert set(seats(seating, [3, 3, 2, 1], [4, 4])) == {0, 1, 3}


def test_narrow_jobs_that_come_first_do_not_break_up_a_node_that_a_wide_one_needs() -> None:
    """The text's placement fills the fullest node; ours seats the wide job first, so both get what they need."""
    homes = {0: [(0, 1)], 1: [(1, 1)]}
    assert 2 in seats(allocate_keeping_nodes, [1, 1, 4], [4, 4], homes)


def test_a_newcomer_goes_where_nobody_is_at_home() -> None:
    homes = {0: [(0, 2)], 1: [(0, 2)]}
    assert seats(allocate_keeping_nodes, [2, 2, 2], [4, 4], homes) == {0: [(0, 2)], 1: [(0, 2)], 2: [(1, 2)]}


WEIGHTS = np.array([[1.4, 1.2], [1.2, 0.0]])


def question(gpus: list[int], sizes: list[int], before: PlacementPlan | None = None, kind: int = 0) -> TesseraeProblem:
    jobs = len(gpus)
    willing = np.ones(jobs, dtype=np.bool_)
    kinds = np.full(jobs, kind)
    return TesseraeProblem(
        list(range(jobs)), np.array(gpus), kinds, willing, np.array(sizes), before or PlacementPlan.from_rows(())
    )


def test_who_waits_shares_with_who_has_as_many_gpus() -> None:
    found = plan_round(question([4, 4, 2], [4]), WEIGHTS, OURS)
    assert found.pairs == ((0, 1),)
    assert found.placement.jobs.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("reading", "pairs"),
    [
        pytest.param(replace(TEXT, max_packed_width=1), 1, id="single: only jobs of one GPU are packed"),
        pytest.param(replace(TEXT, max_packed_width=0), 0, id="without packing nobody is"),
        pytest.param(TEXT, 2, id="jobs of any width are"),
    ],
)
def test_how_wide_packing_goes(reading: TesseraeVariant, pairs: int) -> None:
    assert len(plan_round(question([4, 1, 4, 1], [4, 1]), WEIGHTS, reading).pairs) == pairs


def test_a_job_that_said_no_is_never_packed() -> None:
    asked = question([4, 4, 4], [4])
    asked.may_share[1] = False
    assert plan_round(asked, WEIGHTS, OURS).pairs == ((0, 2),)


def test_a_pair_lasts_though_another_partner_came() -> None:
    before = PlacementPlan.from_rows([(0, 4, (0, 2))])
    asked = question([4, 4, 4], [4], before)
    assert plan_round(asked, WEIGHTS, OURS).pairs == ((0, 2),)
    assert plan_round(asked, WEIGHTS, TEXT).pairs == ((0, 1),)


def test_a_pair_that_no_longer_has_an_edge_parts() -> None:
    asked = question([4, 4], [4], PlacementPlan.from_rows([(0, 4, (0, 1))]), kind=1)
    assert plan_round(asked, WEIGHTS, OURS).pairs == ()


def test_nothing_moves_where_nothing_changed() -> None:
    first = plan_round(question([4, 2, 2, 8, 1, 1], [8, 8]), WEIGHTS, OURS)
    again = plan_round(question([4, 2, 2, 8, 1, 1], [8, 8], first.placement), WEIGHTS, OURS)
    assert again.migrated == frozenset()
    assert migrated_jobs(first.placement, again.placement) == frozenset()


@some.composite
def rounds(draw: some.DrawFn) -> list[TesseraeProblem]:
    """The same jobs in another order, round by round."""
    widths = draw(some.lists(some.sampled_from((1, 1, 2, 3, 4, 8)), min_size=1, max_size=14))
    sizes = draw(some.sampled_from(([4], [4, 4, 4], [8, 8], [8, 4, 8])))
    kinds = draw(some.lists(some.integers(0, 1), min_size=len(widths), max_size=len(widths)))
    found = []
    for _ in range(3):
        asked = question(widths, sizes)
        order = draw(some.permutations(range(len(widths))))
        active = order[: draw(some.integers(0, len(order)))]
        found.append(replace(asked, order=active, job_type=np.array(kinds)))
    return found


@settings(max_examples=200, deadline=None)
@given(rounds(), some.sampled_from([OURS, TEXT, replace(OURS, rename_nodes=False), replace(TEXT, max_packed_width=1)]))
def test_what_a_round_never_does(asked: list[TesseraeProblem], reading: TesseraeVariant) -> None:
    before = PlacementPlan.from_rows(())
    for one in asked:
        found = plan_round(replace(one, previous=before), WEIGHTS, reading)
        layout = found.placement
        assert (np.bincount(layout.node, layout.gpus, len(one.node_gpus)) <= one.node_gpus).all()
        widths = layout.gpus_by_job()
        assert all(widths[job] == one.gpus[job] for job in widths)
        assert set(widths) <= set(one.order)
        lone = Counter(layout.jobs[layout.jobs != NO_JOB].tolist())
        whole = one.node_gpus.max()
        assert all(lone[job] <= -(-one.gpus[job] // whole) for job in lone)
        for host, guest in found.pairs:
            assert one.gpus[host] == one.gpus[guest]
            assert WEIGHTS[one.job_type[host], one.job_type[guest]] > 0
        assert found.migrated == migrated_jobs(before, layout)
        before = layout
