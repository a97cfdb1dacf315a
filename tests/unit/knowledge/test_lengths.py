"""How long jobs run, by what ran before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.knowledge.length_distribution import (
    ALIKE_OF_OWNER,
    BINS,
    EDGES,
    LEVELS,
    LONGEST,
    LengthDistribution,
    draw_scores,
    survival_mass,
)
from slurmsched.knowledge.lengths import MEDIAN_OF_UNKNOWN, LengthHistory, lengths_of
from slurmsched.knowledge.work import FinishedRun, UnfinishedJob, Work, WorkKind

NOW = 1e6
HOUR = 3600.0


def ran(seconds: float, at: float = 0.0, **fields: Any) -> FinishedRun:
    return FinishedRun(**{"owner": "ann", "gpus": 1, "seconds": seconds, "ended_at": at, **fields})


def asked(**fields: Any) -> UnfinishedJob:
    return UnfinishedJob(**{"id": "1", "owner": "ann", "gpus": 1, **fields})


def length(job: UnfinishedJob, *runs: FinishedRun, others: Sequence[UnfinishedJob] = ()) -> LengthDistribution:
    return lengths_of([job], LengthHistory.of(runs), NOW, others)[job.id]


def times(count: int, seconds: float, **fields: Any) -> list[FinishedRun]:
    """`count` runs within 5 % of so many seconds."""
    return [ran(seconds * (0.95 + 0.1 * (n + 0.5) / count), at=n, **fields) for n in range(count)]


# The readable form: one job, one kind after the other, one bin after the other.


def readable_quantiles(job: UnfinishedJob, runs: Sequence[FinishedRun], unknown: float) -> list[float]:
    """The quantiles of a job whose owner's ranges were never off."""
    edges = [LONGEST ** (number / BINS) for number in range(BINS + 1)]
    below = [0.0, *(1 / (1 + (unknown / edge) ** (1 / 1.2)) for edge in edges[1:-1]), 1.0]
    curve = [after - before for before, after in pairwise(below)]
    kinds = job.kinds_of_length()
    by_kind = {
        kind: [run for run in sorted(runs, key=lambda run: run.ended_at) if (kind, key) in run.kinds_of_length()]
        for kind, key in kinds
    }
    for kind, _ in reversed(kinds):
        of_kind = by_kind[kind]
        tells_nothing = kind is WorkKind.LIMIT and len(of_kind) == len(by_kind[kinds[1][0]])
        if (of_kind or job.elapsed) and not tells_nothing:
            curve = readable_curve(of_kind, curve, job.elapsed)
    left = 1.0
    passed = [0.0]
    for part in curve:
        left -= part
        passed.append(1 - left)
    reached = read_off(log(max(job.elapsed, 1)), [log(edge) for edge in edges], passed)
    levels = [reached + (1 - reached) * level for level in LEVELS]
    total = [exp(read_off(level, passed, [log(edge) for edge in edges])) for level in levels]
    return [max(1.0, min(seconds, job.time_limit or seconds) - job.elapsed) for seconds in total]


def readable_curve(runs: Sequence[FinishedRun], wider: Sequence[float], reached: float) -> list[float]:
    """Kaplan and Meier: of those that have come so far, the part that ends in this bin. Five of these are as the wider
    curve has them. The job itself is not over."""
    ended, cut = [0.0] * BINS, [0.0] * BINS
    if reached:
        cut[readable_bin(reached)] += 1
    for later, run in enumerate(reversed(runs)):
        (ended if run.completed else cut)[readable_bin(run.seconds)] += 0.5 ** (later / 200)
    alive, curve = 1.0, []
    for number in range(BINS):
        at_risk, wider_left = sum(ended[number:]) + sum(cut[number:]), sum(wider[number:])
        of_wider = wider[number] / wider_left if wider_left > 0 else 0.0
        last = number == BINS - 1
        dies = alive * (1.0 if last else (ended[number] + 5 * of_wider) / (at_risk + 5))
        curve.append(dies)
        alive -= dies
    return [part / sum(curve) for part in curve]


def readable_bin(seconds: float) -> int:
    return min(int(log(max(seconds, 1)) / log(LONGEST) * BINS), BINS - 1)


def read_off(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    for x0, x1, y0, y1 in zip(xs, xs[1:], ys, ys[1:], strict=False):
        if x0 <= x <= x1 and x1 > x0:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return ys[-1]


run_times = st.floats(2.0, 30 * 86400.0)


@st.composite
def histories(draw: st.DrawFn) -> list[FinishedRun]:
    names, sizes, scripts = st.sampled_from(["", "train7", "train8", "eval"]), st.sampled_from([1, 8]), "ab"
    limits = st.sampled_from([0, 3600, 86400])
    return [
        ran(
            draw(run_times),
            at=number,
            name=draw(names),
            gpus=draw(sizes),
            limit=draw(limits),
            script=draw(st.sampled_from(scripts)),
            completed=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 12)))
    ]


@settings(deadline=None, max_examples=40)
@given(histories(), st.sampled_from([0.0, 600.0, 7200.0]), st.sampled_from([None, 86400.0]))
def test_curves_of_many_jobs_at_once_are_those_of_the_readable_form(
    runs: list[FinishedRun], elapsed: float, limit: float | None
) -> None:
    job = asked(name="train9", script="a", gpus=8, time_limit=limit, limit=int(limit or 0), elapsed=elapsed)
    others = [asked(id=str(number), name=f"eval{number}", gpus=1) for number in range(2, 5)]
    known = lengths_of([*others, job], LengthHistory.of(runs), NOW)["1"]
    assert known.seconds == pytest.approx(readable_quantiles(job, runs, MEDIAN_OF_UNKNOWN), rel=1e-6)


@given(
    st.lists(st.integers(0, BINS - 1), max_size=8), st.lists(st.integers(0, BINS - 1), max_size=8), st.floats(0.1, 20)
)
def test_a_curve_is_a_distribution_that_cut_runs_only_move_to_longer_times(
    ended: list[int], cut: list[int], pseudo_runs: float
) -> None:
    even = np.full((1, BINS), 1 / BINS)
    of_ended, of_cut = (np.bincount(bins, minlength=BINS)[None, :].astype(float) for bins in (ended, cut))
    mass = survival_mass(of_ended, of_cut, even, pseudo_runs)
    assert mass.min() >= 0
    assert mass.sum() == pytest.approx(1)
    without = survival_mass(of_ended, np.zeros_like(of_cut), even, pseudo_runs)
    assert (np.cumsum(mass) <= np.cumsum(without) + 1e-9).all()


@pytest.mark.parametrize(
    ("runs", "job", "kind", "median"),
    [
        pytest.param([], asked(), WorkKind.OTHERS, HOUR, id="nothing is known"),
        pytest.param(times(20, HOUR, gpus=8), asked(), WorkKind.OWNER, HOUR, id="the owner's other sizes"),
        pytest.param([*times(20, 60), *times(20, HOUR, gpus=8)], asked(gpus=8), WorkKind.GPUS, HOUR, id="his size"),
        pytest.param(
            [*times(20, 60), *times(20, HOUR, model="bert")], asked(model="bert"), WorkKind.MODEL, HOUR, id="his model"
        ),
        pytest.param(
            [*times(20, 60), *times(20, HOUR, name="run-17-a", gpus=2)],
            asked(name="run-4-a"),
            WorkKind.NAME,
            HOUR,
            id="a name that differs in its digits",
        ),
        pytest.param(
            [*times(20, 60, name="a", script="1"), *times(20, HOUR, name="a", script="2")],
            asked(name="a", script="2"),
            WorkKind.SCRIPT,
            HOUR,
            id="the same script",
        ),
        pytest.param(
            [*times(20, 60, limit=7200), *times(20, HOUR, limit=86400)],
            asked(limit=86400),
            WorkKind.LIMIT,
            HOUR,
            id="the same time limit",
        ),
        pytest.param(
            [*times(20, 60, name="a", limit=7200), *times(20, HOUR, name="a", limit=86400)],
            asked(name="a", limit=86400),
            WorkKind.LIMIT,
            HOUR,
            id="the same name and time limit",
        ),
        pytest.param(
            [*times(20, 60, limit=86400), *times(20, HOUR, name="a", limit=7200)],
            asked(name="a", limit=86400),
            WorkKind.NAME_AND_GPUS,
            HOUR,
            id="the same name, where only others have the same time limit",
        ),
        pytest.param(
            times(20, 60, owner="bob"), asked(), WorkKind.OTHERS, HOUR, id="another owner's count for nothing"
        ),
    ],
)
def test_the_nearest_kind_counts_most(
    runs: list[FinishedRun], job: UnfinishedJob, kind: WorkKind, median: float
) -> None:
    known = length(job, *runs)
    assert known.kind is kind
    assert known.count == (0 if kind is WorkKind.OTHERS else 20)
    assert known.median == pytest.approx(median, rel=0.15)


def test_age_is_that_of_the_last_run_of_the_kind() -> None:
    assert length(asked(), ran(60, at=NOW - 500)).age == 500
    assert length(asked()).age is None


def test_recent_runs_count_more() -> None:
    earlier, later = [times(400, seconds) for seconds in (60, HOUR)]
    known = length(asked(), *earlier, *(replace(run, ended_at=1000 + run.ended_at) for run in later))
    assert known.median == pytest.approx(HOUR, rel=0.1)


def test_runs_that_were_cut_count_as_longer() -> None:
    cut = [replace(run, completed=False) for run in times(10, HOUR)]
    assert length(asked(), *times(10, HOUR), *cut).quantile(0.8) > 1.2 * length(asked(), *times(20, HOUR)).quantile(0.8)


def test_jobs_that_run_count_as_not_over() -> None:
    running = [asked(id=str(number), elapsed=10 * HOUR) for number in range(2, 22)]
    assert length(asked(), *times(10, HOUR), others=running).median > 2 * length(asked(), *times(10, HOUR)).median


def test_a_time_limit_cuts_the_curve() -> None:
    known = length(asked(time_limit=1800), *times(50, HOUR))
    assert known.median == pytest.approx(1800)
    assert known.quantile(0.95) == pytest.approx(1800)
    assert known.mean <= 1800
    running = length(asked(time_limit=1800, elapsed=1700), *times(50, HOUR))
    assert running.quantile(0.99) == pytest.approx(100)


def test_what_has_run_is_left_out_of_what_remains() -> None:
    short_or_long = [*times(30, 600), *times(30, 10 * HOUR)]
    assert length(asked(elapsed=HOUR), *short_or_long).median == pytest.approx(9 * HOUR, rel=0.1)


def test_a_job_longer_than_all_runs_goes_on_for_about_as_long() -> None:
    assert length(asked(elapsed=2 * LONGEST)).median == pytest.approx(2 * LONGEST, rel=0.1)


def test_progress_narrows_the_range() -> None:
    wide = [ran(60 * 1.2**number, at=number) for number in range(30)]
    low, high = length(asked(elapsed=HOUR, steps=500, total_steps=1000), *wide).likely
    without_low, without_high = length(asked(elapsed=HOUR), *wide).likely
    assert high - low < (without_high - without_low) / 2
    assert low < HOUR < high


@pytest.mark.parametrize(
    ("elapsed", "steps", "total"), [(0.0, 5, 10), (HOUR, 0, 10), (HOUR, 20, 10), (HOUR, 10**12, 1), (HOUR, -5, 10)]
)
def test_impossible_progress_does_no_harm(elapsed: float, steps: int, total: int) -> None:
    known = length(asked(elapsed=elapsed, steps=steps, total_steps=total), *times(5, HOUR))
    assert np.isfinite(known.seconds).all()
    assert (known.seconds >= 1).all()


def test_a_hint_counts_as_much_as_earlier_ones_were_right() -> None:
    job = asked(hint=HOUR)
    right = [ran(60, at=number, hint=60.0) for number in range(30)]
    wrong = [ran(60, at=number, hint=HOUR) for number in range(30)]
    assert length(job).median == pytest.approx(HOUR, rel=0.1)
    assert length(job, *wrong).median == pytest.approx(60, rel=0.1)
    assert length(job, *right).quantile(0.8) > HOUR / 2 > length(job, *wrong).quantile(0.8)


def test_at_twice_the_speed_it_is_half_as_long() -> None:
    known = length(asked(), *times(20, HOUR))
    assert known.scaled(2).median == pytest.approx(known.median / 2)
    assert known.scaled(2).mean == pytest.approx(known.mean / 2)


def test_draws_and_what_remains_follow_the_quantiles() -> None:
    known = length(asked(), *[ran(60 * 1.3**number, at=number) for number in range(20)])
    drawn = known.draw(np.random.default_rng(42), 20_000)
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx(
        [known.likely[0], known.median, known.likely[1]], rel=0.1
    )
    elapsed = known.quantile(0.6)
    longer = drawn[drawn > elapsed] - elapsed
    assert known.remaining(elapsed).median == pytest.approx(np.median(longer), rel=0.15)
    assert known.remaining(10 * LONGEST).median == pytest.approx(10 * LONGEST, rel=0.1)


# Others.


def site(owners: int, runs: int, random: np.random.Generator) -> list[FinishedRun]:
    """Owners whose jobs are of quite different lengths."""
    middles = np.exp(random.normal(np.log(HOUR), 1.5, owners))
    return [
        ran(float(seconds), at=number, owner=f"owner{owner}", gpus=int(random.choice([1, 8])))
        for owner, middle in enumerate(middles)
        for number, seconds in enumerate(np.maximum(middle * np.exp(random.normal(0, 1, runs)), 2))
    ]


def test_fewer_than_five_owners_tell_nothing_of_another() -> None:
    runs = [run for owner in "bcde" for run in times(50, 60, owner=owner)]
    assert length(asked(), *runs).median == pytest.approx(MEDIAN_OF_UNKNOWN, rel=1e-3)
    assert length(asked(), *runs, *times(50, 60, owner="f")).median < MEDIAN_OF_UNKNOWN


def test_many_owners_tell_a_newcomer_how_long_jobs_are() -> None:
    runs = [run for owner in range(2000) for run in times(2, 600, owner=str(owner))]
    assert length(asked(), *runs).median == pytest.approx(600, rel=0.05)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(5, 60),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1.0, 60.0, 1e6, LONGEST]),
    st.sampled_from(["one length", "honest before", "newcomers' size only", "cut"]),
)
def test_an_owner_with_a_tenth_of_the_history_moves_nobody_elses_median_by_more_than_1_percent(
    owners: int, seed: int, seconds: float, attack: str
) -> None:
    random = np.random.default_rng(seed)
    runs = site(owners, 9, random)
    poison = [
        ran(
            seconds,
            at=number,
            owner="eve",
            gpus=8 if attack == "newcomers' size only" else 1 + 7 * (number % 2),
            name=f"owner{number % owners}",
            completed=attack != "cut",
        )
        for number in range(max(1, len(runs) // 9))
    ]
    before = [replace(run, seconds=HOUR) for run in poison] if attack == "honest before" else []
    jobs = [asked(id="newcomer", owner="new"), asked(id="wide newcomer", owner="new", gpus=8)]
    jobs += [asked(id=f"owner{owner}", owner=f"owner{owner}", gpus=1) for owner in range(owners)]
    honest = lengths_of(jobs, LengthHistory.of([*runs, *before]), NOW)
    poisoned = lengths_of(jobs, LengthHistory.of([*runs, *poison]), NOW)
    moved = {job: abs(log(poisoned[job].median / known.median)) for job, known in honest.items()}
    assert max(moved.values()) <= 0.01


def test_hostile_names_cost_no_more_than_others() -> None:
    runs = [ran(60, at=number, name="x" * 10**6, folder="\n\0{}" * 100) for number in range(3)]
    assert length(asked(name="x" * 10**6 + "y"), *runs).count == 3
    keys = {key for kind, key in Work(owner="ann", name="7" * 10**6, gpus=1).kinds() if kind is WorkKind.NAME}
    assert keys == {("ann", "#")}


# Ranges.


@pytest.mark.parametrize("seed", [42, 43, 44])
def test_80_percent_ranges_cover_78_to_82_percent_though_lengths_drift(seed: int) -> None:
    """The owner's jobs are four times as long after a thousand, and then come in two lengths."""
    random, history, inside = np.random.default_rng(seed), LengthHistory(), list[bool]()
    for number in range(3000):
        middle = 600.0 if number < 1000 else 2400.0 * (10.0 if number > 2000 and random.random() < 0.5 else 1.0)
        seconds = float(middle * np.exp(random.normal(0, 0.7)))
        low, high = lengths_of([asked()], history, NOW)["1"].likely
        inside.append(low <= seconds <= high)
        history.add(ran(seconds, at=number, likely=(low, high)))
    assert 0.78 <= np.mean(inside) <= 0.82


@pytest.mark.parametrize(
    ("run", "wider"),
    [
        pytest.param(ran(50, likely=(60, 7200)), True, id="below"),
        pytest.param(ran(9000, likely=(60, 7200)), True, id="above"),
        pytest.param(ran(9000, likely=(60, 7200), completed=False), True, id="above, and not over then"),
        pytest.param(ran(7230, likely=(60, 7200 - 1e-6), completed=False, time_limit=7200), False, id="at its limit"),
        pytest.param(ran(50, likely=(60, 7200), completed=False), False, id="cancelled early, which tells nothing"),
        pytest.param(ran(600, likely=(60, 7200)), False, id="inside"),
    ],
)
def test_a_range_that_was_missed_makes_later_ones_wider(run: FinishedRun, wider: bool) -> None:
    history = LengthHistory.of([run])
    assert (max(history.stretch("ann")) > 1) is wider


@pytest.mark.parametrize("seconds", [0.0, -5.0, float("nan"), float("inf")])
def test_a_run_without_a_length_tells_nothing(seconds: float) -> None:
    assert length(asked(), ran(seconds)).count == 0


def test_ranges_of_one_owner_are_not_widened_for_another() -> None:
    misses = [replace(run, likely=(1e5, 2e5)) for run in times(100, 60)]
    others = times(100, 60, owner="bob")
    assert length(asked(), *misses).likely[0] < length(asked(), *times(100, 60)).likely[0]
    job = asked(owner="bob")
    assert length(job, *misses, *others).likely == pytest.approx(length(job, *others).likely)
    assert EDGES[-1] == pytest.approx(log(LONGEST))


def test_scores_of_one_owner_are_correlated_and_each_is_standard_normal() -> None:
    generator = np.random.default_rng(42)
    scores = np.array([draw_scores(["alice", "bob", "alice", "alice"], generator) for _ in range(20_000)])
    assert np.abs(scores.mean(axis=0)) == pytest.approx(0.0, abs=0.03)
    assert scores.std(axis=0) == pytest.approx(1.0, abs=0.03)
    alike = np.corrcoef(scores.T)
    assert [alike[0, 2], alike[0, 3], alike[2, 3]] == pytest.approx([ALIKE_OF_OWNER] * 3, abs=0.03)
    assert alike[1, [0, 2, 3]] == pytest.approx(0.0, abs=0.03)


def test_scores_come_from_the_generator_alone() -> None:
    drawn = [draw_scores(["alice", "bob", "alice"], np.random.default_rng(seed)).tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert draw_scores([], np.random.default_rng(1)).tolist() == []
