"""What `site-promises` measures, on runs with known answers, and its table of promises."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.simulated import UsageInterval
from slurmsched.experiments.experiment import Bound, KeptCases, run_or_read
from slurmsched.experiments.mixed.workloads import CLUSTER_NODES, makespan_lower_bound, mix_jobs, one_gpu_nodes
from slurmsched.experiments.registry import EXPERIMENTS
from slurmsched.experiments.site_promises.measures import (
    JobOutcome,
    SiteRun,
    longest_wait,
    makespan,
    max_min_fair,
    mean_completion,
    most_restarts,
    partition_ratios,
    share_ratios,
    slowest_rate,
    type_match,
    unpaired_while_idle,
    useful_part,
    work_of,
)
from slurmsched.experiments.site_promises.promises import ASKED, PROMISED, SitePromise
from slurmsched.experiments.site_promises.runs import MEASURES, SiteCase, promise_row, run_case, run_scenario
from slurmsched.experiments.site_promises.scenarios import SCENARIOS, SiteScenario
from slurmsched.experiments.site_promises.workloads import Care, SiteJob
from slurmsched.knowledge import Knowledge, Profile, Scaling, shipped_profiles
from slurmsched.policies.policies import POLICIES
from slurmsched.traces import TraceJob

DAY, HOUR = 86400.0, 3600.0
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
TWO_V100 = ((A0, "v100"), (A1, "v100"))
FAST_AND_SLOW = ((A0, "v100"), (B0, "k80"))
ALIKE = {"v100": 1.0}
STEEP, FLAT = {"v100": 4.0, "k80": 1.0}, {"v100": 1.0, "k80": 1.0}


def held(
    start: float,
    end: float,
    *devices: tuple[str, int],
    useful: float | None = None,
    rate: float = 1.0,
    part: float = 1.0,
) -> UsageInterval:
    """A run on these GPUs, or a part of each, that was useful all the time if not said."""
    seconds = end - start if useful is None else useful
    return UsageInterval("x", start, end, part * len(devices), seconds, rate=rate, devices=devices)


def outcome(name: str, *runs: UsageInterval, **more: object) -> JobOutcome:
    """A job of one GPU of the user that its name begins with."""
    told = {"gpus": 1.0, "arrival": 0.0, "rates": ALIKE, "user": name[0], **more}
    return JobOutcome(job=name, runs=runs, **told)  # type: ignore[arg-type]  # checked by the tests' answers


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.floats(0.1, 200))
def test_max_min_fair_amounts_are_all_that_there_is_and_nobody_has_less_for_another_who_has_more(
    demands: Sequence[float], capacity: float
) -> None:
    amounts = max_min_fair(np.array(demands), capacity)
    assert (amounts <= np.array(demands) + 1e-9).all()
    assert amounts.sum() == pytest.approx(min(capacity, sum(demands)))
    in_want = amounts < np.array(demands) - 1e-6
    assert not in_want.any() or amounts[in_want].min() == pytest.approx(amounts.max(), abs=1e-6)


@pytest.mark.parametrize(
    ("jobs", "ratios"),
    [
        pytest.param(
            (outcome("u", held(0, 100, A0, A1), gpus=2.0), outcome("v", gpus=2.0)), (2.0, 0.0), id="all of it"
        ),
        pytest.param((outcome("u", held(0, 100, A0)), outcome("v", held(0, 100, A1))), (1.0, 1.0), id="half each"),
        pytest.param(
            (outcome("u", held(0, 100, A0, A1), gpus=2.0), outcome("v", gpus=2.0, arrival=50.0)),
            (200 / 150, 0.0),
            id="due alone until the other comes",
        ),
        pytest.param(
            (outcome("u", held(0, 50, A0, A1), gpus=2.0, end=50.0), outcome("v", held(50, 100, A0, A1), gpus=2.0)),
            (2.0, 100 / 150),
            id="nothing is due after the end",
        ),
        pytest.param(
            (outcome("u", held(0, 100, A0)), outcome("v", held(0, 100, A1), gpus=4.0)),
            (1.0, 1.0),
            id="who wants half has it",
        ),
    ],
)
def test_shares_are_what_was_held_over_what_was_due(jobs: tuple[JobOutcome, ...], ratios: tuple[float, float]) -> None:
    assert tuple(share_ratios(SiteRun(TWO_V100, jobs, 100.0)).values()) == pytest.approx(ratios)


def test_a_share_by_job_counts_the_jobs_of_a_user_apart() -> None:
    run = SiteRun(TWO_V100, (outcome("u1", held(0, 100, A0)), outcome("u2"), outcome("v1", held(0, 100, A1))), 100.0)
    assert share_ratios(run) == pytest.approx({"u": 1.0, "v": 1.0})
    assert share_ratios(run, by_job=True) == pytest.approx({"u1": 1.5, "u2": 0.0, "v1": 1.5})


def test_an_equal_partition_has_a_part_of_each_type_and_counts_work() -> None:
    steep = outcome("u", held(0, 100, A0, rate=4.0), rates=STEEP)
    flat = outcome("v", held(0, 100, B0, useful=80.0), rates=FLAT)
    assert partition_ratios(SiteRun(FAST_AND_SLOW, (steep, flat), 100.0)) == pytest.approx(
        {"u": 400 / (100 * (0.5 * 4 + 0.5 * 1)), "v": 80 / 100}
    )


def test_who_pins_a_type_has_only_that_type_in_a_partition() -> None:
    run = SiteRun(FAST_AND_SLOW, (outcome("u", rates={"v100": 4.0}), outcome("v", rates=FLAT)), 100.0)
    pinned = replace(run, jobs=(outcome("u", held(0, 100, A0, rate=4.0), rates={"v100": 4.0}), run.jobs[1]))
    assert partition_ratios(pinned)["u"] == pytest.approx(2.0)


def test_useful_time_leaves_out_restarts_and_lost_work_and_counts_parts_of_gpus() -> None:
    jobs = (outcome("u", held(0, 100, A0, useful=70.0)), outcome("v", held(0, 100, A1, part=0.5, useful=100.0)))
    assert useful_part(SiteRun(TWO_V100, jobs, 100.0)) == pytest.approx((70 + 50) / 150)
    assert useful_part(SiteRun(TWO_V100, (outcome("u"),), 100.0)) == 0.0
    assert work_of(SiteRun(TWO_V100, jobs, 100.0), "v") == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("jobs", "hours"),
    [
        pytest.param((outcome("u", held(2 * HOUR, 3 * HOUR, A0), arrival=HOUR),), 1.0, id="from arrival to start"),
        pytest.param((outcome("u", arrival=HOUR),), 9.0, id="never started"),
        pytest.param((outcome("u", held(0, 1, A0)), outcome("v", arrival=9.5 * HOUR)), 0.0, id="came just now"),
        pytest.param((outcome("u", held(0, 1, A0)), outcome("v", managed=False)), 0.0, id="not managed"),
    ],
)
def test_the_longest_wait(jobs: tuple[JobOutcome, ...], hours: float) -> None:
    assert longest_wait(SiteRun(TWO_V100, jobs, 10 * HOUR), HOUR) / HOUR == pytest.approx(hours)


@pytest.mark.parametrize(
    ("hours", "most"),
    [
        pytest.param((0.0,), 0, id="one run"),
        pytest.param((0.0, 1.0, 2.0), 2, id="the first start is no restart"),
        pytest.param((0.0, 1.0, 2.0, 26.0, 26.5, 27.0), 3, id="within a day"),
        pytest.param((0.0, 1.0, 25.0), 1, id="a day apart"),
    ],
)
def test_restarts_are_counted_within_any_day(hours: tuple[float, ...], most: int) -> None:
    job = outcome("u", *(held(hour * HOUR, hour * HOUR + 60, A0) for hour in hours))
    assert most_restarts(SiteRun(TWO_V100, (job, outcome("v")), 2 * DAY)) == most
    assert most_restarts(SiteRun(TWO_V100, (replace(job, managed=False),), 2 * DAY)) == 0


def test_the_slowest_rate_is_over_that_of_the_slowest_type_it_ran_on() -> None:
    job = outcome("u", held(0, 10, A0, B0, rate=0.8), held(20, 30, A0, rate=4.0), rates=STEEP, gpus=2.0)
    assert slowest_rate(SiteRun(FAST_AND_SLOW, (job,), 100.0)) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("jobs", "part"),
    [
        pytest.param((outcome("u", held(0, 99, A0)), outcome("v", held(0, 99, A1))), 1.0, id="alone"),
        pytest.param(
            (outcome("u", held(0, 99, A0, part=0.5)), outcome("v", held(10, 99, A0, part=0.5))), 0.5, id="one pairs"
        ),
        pytest.param(
            (
                outcome("u", held(0, 99, A0, part=0.5)),
                outcome("v", held(10, 99, A0, part=0.5)),
                outcome("w", held(0, 99, A1)),
            ),
            1.0,
            id="no other is idle",
        ),
        pytest.param(
            (
                outcome("u", held(0, 99, A0, part=0.5)),
                outcome("v", held(10, 99, A0, part=0.5)),
                outcome("w", held(12, 99, A1)),
            ),
            1.0,
            id="the other is taken in the same round",
        ),
        pytest.param(
            (outcome("u", held(0, 10, A0, part=0.5)), outcome("v", held(10, 99, A0, part=0.5))), 1.0, id="one by one"
        ),
    ],
)
def test_starts_that_pair_while_a_gpu_is_idle(jobs: tuple[JobOutcome, ...], part: float) -> None:
    assert unpaired_while_idle(SiteRun(TWO_V100, jobs, 100.0), lasting=5.0) == pytest.approx(part)


@pytest.mark.parametrize(
    ("steep", "flat", "match"),
    [
        pytest.param((held(0, 100, A0),), (held(0, 100, B0),), 1.0, id="the steep one has the fast type"),
        pytest.param((held(0, 100, B0),), (held(0, 100, A0),), 0.0, id="the flat one has it"),
        pytest.param((held(0, 50, A0), held(50, 100, B0)), (held(0, 50, B0), held(50, 100, A0)), 0.5, id="in turns"),
        pytest.param((held(0, 100, B0),), (), 0.0, id="alone on the slow type"),
        pytest.param((held(0, 100, A0),), (), 1.0, id="alone on the fast type"),
        pytest.param((), (), 0.0, id="nobody ran"),
    ],
)
def test_types_match_between_the_worst_and_the_best(
    steep: tuple[UsageInterval, ...], flat: tuple[UsageInterval, ...], match: float
) -> None:
    jobs = (outcome("u", *steep, rates=STEEP), outcome("v", *flat, rates=FLAT))
    assert type_match(SiteRun(FAST_AND_SLOW, jobs, 100.0)) == pytest.approx(match)


def test_a_type_that_another_job_holds_is_not_the_best_that_could_be() -> None:
    rates = {"v100": 1.0, "p100": 0.5, "k80": 0.1}
    jobs = (
        outcome("u", held(0, 100, A0), rates={"v100": 1.0}, managed=False),
        outcome("v", held(0, 100, A1), rates=rates),
    )
    assert type_match(SiteRun(((A0, "v100"), (A1, "p100"), (B0, "k80")), jobs, 100.0)) == pytest.approx(1.0)


def test_completion_and_makespan_count_who_has_not_ended() -> None:
    run = SiteRun(TWO_V100, (outcome("u", end=50.0, arrival=10.0), outcome("v")), 100.0)
    assert (mean_completion(run), makespan(run)) == (70.0, 100.0)


def test_every_policy_and_every_promise_is_in_the_tables() -> None:
    assert PROMISED.keys() == POLICIES.keys()
    assert ASKED.keys() == MEASURES.keys() == {*SitePromise}
    assert {promise for scenario in SCENARIOS.values() for promise in scenario.promises} == {*SitePromise}
    for scenario in SCENARIOS.values():
        assert {*scenario.policies} <= POLICIES.keys()
        assert scenario.compared[0] in {"", *SCENARIOS}
        lengths = [hours for hours in (scenario.hours, scenario.quick_hours) if hours]
        assert SitePromise.START not in scenario.promises or min(lengths) * HOUR > scenario.start_within
    assert {policy for scenario in SCENARIOS.values() for policy in scenario.policies} == POLICIES.keys()


@pytest.mark.parametrize(("policy", "promises"), PROMISED.items())
def test_what_a_policy_promises_is_measured_somewhere(policy: str, promises: dict[SitePromise, str]) -> None:
    measured = {p for scenario in SCENARIOS.values() if policy in scenario.policies for p in scenario.promises}
    assert promises.keys() <= measured
    assert all(promises.values())


EQUAL_JOBS = SCENARIOS["32 equal jobs, restarts of 2 min"]


@pytest.mark.parametrize(
    ("policy", "promise", "figures", "worst", "ok"),
    [
        pytest.param("gandiva-fair", SitePromise.SHARE, (0.95, 0.98), 0.95, True, id="the least"),
        pytest.param("gandiva-fair", SitePromise.MOST_SHARE, (1.05, 1.12), 1.12, False, id="too much is a miss too"),
        pytest.param("slurm", SitePromise.SHARE, (0.1, 1.9), 0.1, True, id="not promised, so stated"),
        pytest.param("gavel", SitePromise.USEFUL, (0.99, 0.94), 0.94, False, id="one seed that misses is a miss"),
        pytest.param("gavel", SitePromise.RESTARTS, (6.0, 2.0), 6.0, True, id="as many as the guard lets"),
        pytest.param("gavel", SitePromise.START, (1.0, 2.1), 2.1, False, id="the scenario's bound"),
    ],
)
def test_a_row_has_the_worst_seed_and_the_mean(
    policy: str, promise: SitePromise, figures: tuple[float, ...], worst: float, ok: bool
) -> None:
    row = promise_row(EQUAL_JOBS, policy, promise, figures)
    assert (row.measured, row.mean, row.ok) == (worst, pytest.approx(sum(figures) / 2), ok)
    assert (row.bound is Bound.INFORMATIVE) == (promise not in PROMISED[policy])


def test_a_figure_that_is_no_number_is_a_miss() -> None:
    assert not promise_row(EQUAL_JOBS, "gandiva-fair", SitePromise.SHARE, (1.0, float("nan"))).ok


@pytest.mark.parametrize("promise", [SitePromise.SHARE, SitePromise.MOST_SHARE, SitePromise.START])
def test_a_row_of_numpys_numbers_is_json(promise: SitePromise) -> None:
    row = promise_row(EQUAL_JOBS, "gandiva-fair", promise, [np.float64(1.0), np.float64(1.25)])
    assert json.loads(json.dumps([row.ok, row.measured, row.mean])) == [row.ok, row.measured, 1.125]


def site(*jobs: SiteJob, cluster: str = "v100:1x1", known: Knowledge | None = None) -> SiteScenario:
    return SiteScenario("test", cluster, lambda _seed, _hours: jobs, (), known=known or Knowledge())


def job(name: str, **more: object) -> SiteJob:
    care = more.pop("care", Care.CAREFUL)
    told = {"arrival": 0.0, "gpus": 1, "duration": 1e6, "user": name, **more}
    return SiteJob(TraceJob(id=name, **told), care)  # type: ignore[arg-type]  # checked by the tests' answers


def test_shares_waits_and_partitions_of_a_queue_without_turns() -> None:
    run = run_scenario(site(job("a"), job("b")), "slurm", 1, 4.0)
    assert share_ratios(run) == pytest.approx({"a": 2.0, "b": 0.0}, abs=0.01)
    assert partition_ratios(run) == pytest.approx({"a": 2.0, "b": 0.0}, abs=0.01)
    assert longest_wait(run, HOUR) == pytest.approx(4 * HOUR)
    assert (most_restarts(run), useful_part(run)) == (0, pytest.approx(1.0))


def test_each_restart_costs_the_restart_and_the_work_after_the_checkpoint() -> None:
    run = run_scenario(site(job("a"), job("b")), "gandiva-fair", 1, 12.0)
    restarts = sum(len(one.runs) - 1 for one in run.jobs)
    assert restarts >= 2
    gone = sum(piece.gpu_seconds - piece.useful_seconds for one in run.jobs for piece in one.runs)
    lead_less_checkpoint, completing = 60.0 - 10.0, 5.0
    ended = sum(len(one.runs) for one in run.jobs) - 1
    assert gone == pytest.approx(restarts * 120 + ended * (lead_less_checkpoint + completing), rel=0.1)
    assert useful_part(run) == pytest.approx(1 - gone / (12 * HOUR), abs=0.02)
    assert most_restarts(run) == max(len(one.runs) - 1 for one in run.jobs)


def test_a_job_without_a_checkpoint_is_never_restarted_and_an_unmanaged_one_starts_at_once() -> None:
    careless = (job("a", care=Care.NO_CHECKPOINT), job("b", care=Care.NO_HINTS))
    run = run_scenario(site(*careless, job("c", care=Care.UNMANAGED), cluster="v100:1x2"), "gandiva-fair", 1, 3.0)
    assert most_restarts(run) == 0
    by_name = {one.job: one for one in run.jobs}
    assert (by_name["c"].managed, by_name["c"].runs[0].start) == (False, 0.0)


def test_a_job_that_slurm_refuses_time_and_again_is_given_back_and_starts() -> None:
    plain = (
        job("runs", care=Care.UNMANAGED, duration=2 * HOUR),
        job("wide", care=Care.UNMANAGED, duration=HOUR, gpus=2, arrival=1.0),
    )
    run = run_scenario(site(*plain, job("managed", arrival=2.0), cluster="v100:1x2"), "proportional", 1, 6.0)
    began = {one.job: [piece.start / HOUR for piece in one.runs] for one in run.jobs}
    assert began["wide"] == [pytest.approx(2.0, abs=0.1)]
    assert began["managed"] == [pytest.approx(3.0, abs=0.2)]


def test_a_free_gpu_is_taken_between_two_rounds() -> None:
    run = run_scenario(site(job("a", duration=1000.0), job("b", duration=1000.0)), "fgd", 1, 1.0)
    by_name = {one.job: one for one in run.jobs}
    assert by_name["a"].end is not None
    assert 0 < by_name["b"].runs[0].start - by_name["a"].end <= 15.0


def test_jobs_that_share_a_gpu_beside_an_idle_one_are_seen() -> None:
    halves = (job(name, gpus=0, milli_gpu=500, cpus=1, memory=1000) for name in ("a", "b"))
    run = run_scenario(site(*halves, cluster="v100:2x1"), "slurm", 1, 1.0)
    assert {piece.gpus for one in run.jobs for piece in one.runs} == {0.5}
    assert unpaired_while_idle(run, 300.0) == pytest.approx(0.0)


def test_a_job_with_too_few_cpus_runs_below_the_proportional_share() -> None:
    starved = job("a", model="resnet50", cpus=1, memory=1000)
    assert slowest_rate(run_scenario(site(starved, known=shipped_profiles()), "slurm", 1, 1.0)) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("cluster", "match"),
    [pytest.param("k80:1x1,v100:1x1", 0.0, id="slow first"), pytest.param("v100:1x1,k80:1x1", 1.0, id="fast first")],
)
def test_slurm_takes_the_first_type_whatever_its_rate(cluster: str, match: float) -> None:
    rates = {"v100": Scaling((1,), (10.0,)), "k80": Scaling((1,), (1.0,))}
    known = Knowledge(models={"lm": Profile("lm", "", {}, "measured", rates)}, reference="v100")
    run = run_scenario(site(job("a", model="lm"), cluster=cluster, known=known), "slurm", 1, 1.0)
    assert type_match(run) == pytest.approx(match)
    pinned = run_scenario(site(job("a", model="lm", gpu_type="k80"), cluster=cluster, known=known), "slurm", 1, 1.0)
    assert work_of(pinned, "a") == pytest.approx(HOUR / 10, rel=0.01)


@pytest.mark.parametrize(
    ("promise", "longer"),
    [
        (SitePromise.COPIES, 2.0),
        (SitePromise.MAKESPAN, 2.0),
        (SitePromise.COMPLETION, 1.8),
        (SitePromise.PINNING, 3.0),
        (SitePromise.TRADED, 1 / 3),
    ],
)
def test_figures_that_compare_two_runs(promise: SitePromise, longer: float) -> None:
    other = SiteRun(TWO_V100, (outcome("carol", held(0, 60, A0), user="carol", end=60.0, arrival=10.0),), 100.0)
    (job,) = other.jobs
    run = replace(other, jobs=(replace(job, runs=(held(0, 180, A0),), end=120.0, arrival=30.0),))
    assert MEASURES[promise](EQUAL_JOBS, run, other) == pytest.approx(longer)
    assert MEASURES[promise](EQUAL_JOBS, other, other) == pytest.approx(1.0)


def test_the_ideal_of_copies_is_no_faster_than_any_schedule_can_be() -> None:
    (scenario,) = (one for one in SCENARIOS.values() if one.ideal is not None)
    ideal = run_case(SiteCase(scenario.name, "", 3, 24.0))
    nodes = CLUSTER_NODES["aws"]
    least = makespan_lower_bound(mix_jobs("M-5", nodes, 3), one_gpu_nodes(nodes).gpus_by_type)
    assert least <= makespan(ideal) < 1.5 * least
    live = run_case(SiteCase(scenario.name, "hadare", 3, 24.0))
    assert len(live.jobs) == 5
    assert makespan(live) >= least


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = SCENARIOS["a user without checkpoints"]
    assert run_scenario(scenario, "gandiva-fair", 7, 1.0) == run_scenario(scenario, "gandiva-fair", 7, 1.0)


def test_it_is_an_experiment() -> None:
    assert EXPERIMENTS["site-promises"].load().__name__ == "run_site_promises"


def test_two_halves_have_room_on_a_gpu() -> None:
    inputs, _, _ = SCENARIOS["32 one-GPU jobs on 32 GPUs"].inputs(1, 1.0, halves=True)
    asked = inputs.submissions["0"].request
    (node, *_) = inputs.nodes
    assert (asked.gpus, asked.shards, asked.memory) == (0, 50, node.total.memory // len(node.gpus) // 2)
    assert 2 * asked.cpus <= node.total.cpus // len(node.gpus)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(SiteCase("32 equal jobs, restarts of 2 min", "synergy", 42, 0.5), id="of whole GPUs"),
        pytest.param(SiteCase("16 one-GPU jobs on 32 GPUs", "tesserae-packed", 42, 0.5), id="of pairs"),
        pytest.param(SiteCase("five families of copies on five nodes of three types", "", 42, 24.0), id="of the ideal"),
    ],
)
def test_a_run_is_kept_for_the_next_sitting(tmp_path: Path, case: SiteCase) -> None:
    path = KeptCases(tmp_path, "now").path(run_case, case)
    measured = run_or_read(run_case, case, path)
    assert path.is_file()
    assert run_or_read(run_case, case, path) == measured
