"""The talk's tables of stride scheduling (slides 7 and 8), and what it promises on one server."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.policies.gandiva_fair.stride import StrideJob, gang_aware_stride, plain_stride
from slurmsched.policies.gandiva_fair.tickets import water_filling


def test_the_talks_table_of_two_jobs_with_four_tickets_and_one() -> None:
    """Ties go to B, as the table has them at 0 and at 5."""
    queue = [StrideJob("B", 1), StrideJob("A", 4)]
    passes = {"A": 0.0, "B": 0.0}
    rows = []
    for _ in range(9):
        before = (passes["A"], passes["B"])
        rows.append((*before, plain_stride(queue, passes)))
    assert rows == [
        (0, 0, "B"),
        (0, 1, "A"),
        (0.25, 1, "A"),
        (0.5, 1, "A"),
        (0.75, 1, "A"),
        (1, 1, "B"),
        (1, 2, "A"),
        (1.25, 2, "A"),
        (1.5, 2, "A"),
    ]


def test_the_talks_table_of_gangs_on_four_gpus() -> None:
    """Passes of A to E before each quantum. Ties go to E, then by name, as the table has them at 0, 1 and 5."""
    queue = [StrideJob("E", 1, 4), StrideJob("A", 1), StrideJob("B", 1), StrideJob("C", 1, 2), StrideJob("D", 1, 2)]
    passes = dict.fromkeys("ABCDE", 0.0)
    rows = []
    for _ in range(9):
        before = tuple(passes.values())
        rows.append((before, "".join(sorted(gang_aware_stride(queue, passes, 4)))))
    assert rows == [
        ((0, 0, 0, 0, 0), "E"),
        ((0, 0, 0, 0, 4), "ABC"),
        ((1, 1, 2, 0, 4), "ABD"),
        ((2, 2, 2, 2, 4), "ABC"),
        ((3, 3, 4, 2, 4), "ABD"),
        ((4, 4, 4, 4, 4), "E"),
        ((4, 4, 4, 4, 8), "ABC"),
        ((5, 5, 6, 4, 8), "ABD"),
        ((6, 6, 6, 6, 8), "ABC"),
    ]


tickets = st.integers(1, 20)


@settings(deadline=None)
@given(st.lists(tickets, min_size=1, max_size=8), st.sampled_from((1, 2, 4)), st.integers(1, 4), st.integers(1, 60))
def test_received_service_stays_within_a_gang_quantum_per_job_of_the_entitlement(
    held: list[int], size: int, gangs: int, quanta: int
) -> None:
    """Gangs of one size that start one stride in, as newcomers do: nobody is ever more than one gang quantum short of
    what the tickets stand for; nobody has more too much than the others together are short of."""
    caps = np.full(len(held), float(size))
    due = water_filling(float(size * gangs), np.array(held, dtype=float), caps)
    queue = [StrideJob(str(place), float(gpus), size) for place, gpus in enumerate(due)]
    passes, had = {job.job: job.stride for job in queue}, dict.fromkeys((job.job for job in queue), 0)
    for quantum in range(1, quanta + 1):
        for job in gang_aware_stride(queue, passes, size * gangs):
            had[job] += size
        over = {job.job: had[job.job] - job.tickets * quantum for job in queue}
        assert min(over.values()) >= -size - 1e-6
        assert sum(over.values()) == pytest.approx(0, abs=1e-6)
        assert max(over.values()) <= size * max(len(queue) - 1, 0) + 1e-6


@settings(deadline=None)
@given(
    st.lists(st.tuples(tickets, st.sampled_from((1, 2, 4, 8))), min_size=1, max_size=8),
    st.integers(1, 60),
)
def test_nobody_waits_while_a_wider_job_that_had_more_runs(jobs: list[tuple[int, int]], quanta: int) -> None:
    queue = [StrideJob(str(place), float(held), size) for place, (held, size) in enumerate(jobs)]
    passes = {job.job: 0.0 for job in queue}
    for _ in range(quanta):
        before = dict(passes)
        runs = gang_aware_stride(queue, passes, 8)
        used = sum(job.size for job in queue if job.job in runs)
        assert min(before, key=lambda job: before[job]) in {job for job in before if before[job] in _of(runs, before)}
        for waits in (job for job in queue if job.job not in runs):
            assert waits.size > 8 - used
            ahead = [job for job in queue if job.job in runs and job.size >= waits.size]
            assert all(before[job.job] <= before[waits.job] for job in ahead)


def _of(jobs: tuple[str, ...], passes: dict[str, float]) -> set[float]:
    return {passes[job] for job in jobs}


@pytest.mark.parametrize(
    ("amount", "weights", "caps", "parts"),
    [
        pytest.param(6, (1, 1, 1), (9, 9, 9), (2, 2, 2), id="equal tickets, equal parts"),
        pytest.param(6, (2, 1), (9, 9), (4, 2), id="by tickets"),
        pytest.param(6, (2, 1, 1), (1, 9, 9), (1, 2.5, 2.5), id="what one leaves the others share"),
        pytest.param(9, (5, 1, 1), (1, 2, 9), (1, 2, 6), id="one after the other is content"),
        pytest.param(9, (1, 1), (2, 3), (2, 3), id="there is enough for all"),
        pytest.param(3, (1, 1), (0, 9), (0, 3), id="who wants nothing gets nothing"),
    ],
)
def test_filling(amount: float, weights: tuple[float, ...], caps: tuple[float, ...], parts: tuple[float, ...]) -> None:
    found = water_filling(amount, np.array(weights, dtype=float), np.array(caps, dtype=float))
    assert found.tolist() == pytest.approx(parts)


amounts = st.floats(0.1, 50, allow_nan=False)


@given(amounts, st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 20)), min_size=1, max_size=9))
def test_filling_gives_out_all_and_leaves_nobody_below_the_level(
    amount: float, wants: list[tuple[float, float]]
) -> None:
    """Max-min by weight: who has less for his tickets than another has all he wants."""
    weights, caps = (np.array(column) for column in zip(*wants, strict=True))
    found = water_filling(amount, weights, caps)
    assert found.sum() == pytest.approx(min(amount, caps.sum()))
    assert (found <= caps + 1e-9).all()
    level = (found / weights).max()
    short = found < caps - 1e-6 * (1 + caps)
    assert (found[short] / weights[short] >= level - 1e-6 * (1 + level)).all()
