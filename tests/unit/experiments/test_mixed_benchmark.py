"""The mixed benchmark: what its columns are, what is drawn and known, and who is dominated."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from math import isnan, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.experiments.experiment import (
    ExperimentError,
    ExperimentSetup,
    KeptCases,
    MixedColumn,
    MixedRow,
    run_or_read,
)
from slurmsched.experiments.mixed import benchmark
from slurmsched.experiments.mixed.benchmark import (
    CANDIDATES,
    CaseFigures,
    MixedCase,
    candidate_named,
    case_figures,
    mixed_rows,
    run_mixed_case,
    selection,
    worst_shortfall,
)
from slurmsched.experiments.mixed.benchmark_workloads import (
    RATE_ERROR,
    WORKLOADS,
    MixedInputs,
    at_load,
    drawn_jobs,
    gpus_of,
    mean_alone,
    misjudged_profiles,
    true_profiles,
)
from slurmsched.knowledge import Knowledge, Profile, Scaling, SensitivityMatrix
from slurmsched.model import parse_hints
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.policies import ORDERS, POLICIES, Choices, policy
from slurmsched.report.mixed import dominated, mixed_headline, mixed_page
from slurmsched.simulation import ClusterSample, JobResult, PolicyChoice, Scenario, SimulationError, SimulationResult
from slurmsched.simulation.engine import simulate
from slurmsched.simulation.submissions import impossible_reason
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster
from tests import builders

DATA = os.environ.get("SLURMSCHED_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="SLURMSCHED_DATA names no folder of public data sets")
HOUR = 3600.0


def job(
    name: str, arrival: float, end: float | None, gpus: float, held: float, useful: float, moves: int = 0
) -> JobResult:
    """A job of one hour of the user that its name begins with; times in hours, `held` and `useful` in GPU-hours."""
    return JobResult(
        job=name,
        arrival=arrival * HOUR,
        work=HOUR,
        gpus=gpus,
        user=name[0],
        end=None if end is None else end * HOUR,
        state="UNFINISHED" if end is None else "COMPLETED",
        service=held * HOUR,
        useful=useful * HOUR,
        restarts=moves,
        migrations=moves // 2,
    )


def four_gpus(*jobs: JobResult) -> SimulationResult:
    samples = tuple(ClusterSample(0.0, 0, 0, 0.0, 0.0, 0.0, 0.0, stranded) for stranded in (1.0, 3.0))
    return SimulationResult("p", "", "t", 1, jobs, samples, 4.0, 12.0, 1.0, 3, (0.1, 0.3, 0.2), 1.0, 1.0)


A, B, C = job("a1", 0, 1, 2, 2, 2), job("b1", 0, 3, 4, 8, 4, moves=2), job("a2", 2, None, 2, 0, 0)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param(MixedColumn.MEAN, (1 + 3) / 2, id="mean of the jobs that completed"),
        pytest.param(MixedColumn.MEDIAN, 2.0, id="median"),
        pytest.param(MixedColumn.P99, 1 + 0.99 * 2, id="p99"),
        pytest.param(MixedColumn.MAKESPAN, 3.0, id="from the first arrival to the last end"),
        # While b1 was there, 5/3 jobs were on average: it is due 5/12 of the 4 GPUs that it could use.
        pytest.param(MixedColumn.WORST_RHO, 3 / (5 / 3), id="3 h for what an equal share does in 5/3 h"),
        pytest.param(MixedColumn.P95_RHO, 1 + 0.95 * 0.8, id="p95 of 1 and 1.8"),
        pytest.param(MixedColumn.SHORTFALL, 0.5, id="a is due 2 GPUs for 2 h and held them for 1 h"),
        pytest.param(MixedColumn.USEFUL, 6 / 12, id="kept work over all GPU time"),
        pytest.param(MixedColumn.ALLOCATED, 10 / 12, id="held over all GPU time"),
        pytest.param(MixedColumn.FRAGMENTED, 2 / 4, id="mean of idle GPUs too few on their nodes"),
        pytest.param(MixedColumn.RESTARTS, 2.0, id="restarts"),
        pytest.param(MixedColumn.MIGRATIONS, 1.0, id="of which on other nodes"),
        pytest.param(MixedColumn.LOST, 4.0, id="GPU-hours held without kept work"),
        pytest.param(MixedColumn.DECISION, 0.2, id="median decision"),
        pytest.param(MixedColumn.WORST_DECISION, 0.3, id="longest decision"),
        pytest.param(MixedColumn.UNFINISHED, 1.0, id="jobs that did not complete"),
    ],
)
def test_a_column_is_what_its_name_says(column: MixedColumn, value: float) -> None:
    assert case_figures(four_gpus(A, B, C))[column] == pytest.approx(value)


@pytest.mark.parametrize(
    ("jobs", "shortfall"),
    [
        pytest.param((job("a", 0, 1, 4, 4, 4),), 0.0, id="alone with all GPUs"),
        pytest.param((job("a", 0, 1, 4, 2, 2), job("b", 0, 1, 4, 2, 2)), 0.0, id="half each"),
        pytest.param((job("a", 0, 1, 4, 3, 3), job("b", 0, 1, 4, 1, 1)), 0.5, id="one has half of the half"),
        pytest.param((job("a", 0, 1, 4, 4, 4), job("b", 0, 2, 4, 4, 4)), 1 - 4 / 6, id="waiting for an hour counts"),
        pytest.param((job("a", 0, 1, 1, 1, 1), job("b", 0, 1, 4, 3, 3)), 0.0, id="who asks for less is due less"),
    ],
)
def test_a_shortfall_is_the_part_of_the_time_due_that_was_not_held(jobs: Sequence[JobResult], shortfall: float) -> None:
    assert worst_shortfall(four_gpus(*jobs)) == pytest.approx(shortfall)


@pytest.mark.parametrize(
    ("points", "names"),
    [
        pytest.param({"a": (1.0, 2.0), "b": (2.0, 1.0)}, set(), id="each is better in one"),
        pytest.param({"a": (1.0, 1.0), "b": (2.0, 1.0)}, {"b"}, id="equal in one and worse in the other"),
        pytest.param({"a": (1.0, 1.0), "b": (1.0, 1.0)}, set(), id="equals stand beside each other"),
        pytest.param({"a": (1.0, 1.0), "b": (nan, 0.0)}, {"b"}, id="who has no figure"),
        pytest.param({"a": (3.0, 3.0), "b": (1.0, 4.0), "c": (2.0, 2.0)}, {"a"}, id="by any other"),
    ],
)
def test_who_is_no_better_than_another_is_dominated(points: Mapping[str, tuple[float, ...]], names: set[str]) -> None:
    assert dominated(points) == names


def rows_of(name: str, **figures: float) -> Sequence[MixedRow]:
    told = {str(column): 1.0 for column in MixedColumn} | {MixedColumn[key].value: x for key, x in figures.items()}
    return list(mixed_rows(MixedCase(MixedInputs("drawn", "perfect", 0.9, 0, 20), name), [CaseFigures(told)]))


def test_a_dominated_policy_is_pale_and_without_a_name_in_the_plots_where_it_is_dominated() -> None:
    """`slow` is worse in mean and fairness than `fast`, and restarts less."""
    page = mixed_page(
        [*rows_of("fast", MEAN=1, WORST_RHO=2, RESTARTS=9), *rows_of("slow", MEAN=3, WORST_RHO=4, RESTARTS=0)], "c", 0.0
    )
    # Against fairness, against restarts, against the makespan, which is equal.
    drawn = [bool(pale) for pale in re.findall(r'<g class="s1 d1( pale)?" data-s="1">', page)]
    assert drawn == [True, False, True]
    assert re.findall(r'<text class="name"[^>]*>(\w+)</text>', page) == ["fast", "fast", "slow", "fast"]
    assert "Not dominated in mean and worst finish-time fairness: fast<" in page


def test_policies_of_equal_figures_are_one_point_and_the_caption_says_so() -> None:
    page = mixed_page([*rows_of("first"), *rows_of("second")], "c", 0.0)
    assert page.count("<bdi>first, second</bdi>") == 3
    assert page.count("second looks the same as first here.") == 3


def test_the_page_begins_with_who_is_soonest() -> None:
    rows = [*rows_of("fast", MEAN=1, WORST_RHO=5), *rows_of("fair", MEAN=2, WORST_RHO=1), *rows_of("slow", MEAN=3)]
    assert mixed_headline(rows) == (
        "fast finishes jobs soonest on average in 1 of 1 case; not dominated in mean and worst fairness: fast, fair."
    )


def test_gpu_time_in_use_is_nobodys_merit() -> None:
    """Jobs that are done sooner leave GPUs idle, so that it falls."""
    page = mixed_page([*rows_of("more", USEFUL=0.9), *rows_of("less", USEFUL=0.5)], "c", 0.0)
    assert '<td data-v="0.9" title="90 to 90">90</td>' in page


def test_a_page_has_every_policy_with_the_spread_of_its_seeds_and_escapes_what_it_was_asked() -> None:
    case = MixedCase(MixedInputs("drawn", "site", 0.9, 0, 20), "gavel")
    seeds = [CaseFigures(dict.fromkeys(map(str, MixedColumn), value)) for value in (1.0, 3.0)]
    page = mixed_page(list(mixed_rows(case, seeds)), "synsched <script>alert(1)", 0.0)
    assert '<td data-v="2.0" title="1.00 to 3.00" class="best">2.00</td>' in page
    assert WORKLOADS["drawn"].summary in page
    assert "<script>alert" not in page


def test_no_policy_has_a_shorter_mean_than_each_job_alone() -> None:
    """An hour on a V100, on which this model gains nothing by CPUs; and one that other CPUs would halve."""
    still = Profile("still", "", {}, "", {"v100": Scaling((1,), (2.0,)), "p100": Scaling((1,), (1.0,))})
    hungry = replace(still, name="hungry", matrices={"": SensitivityMatrix((3.0, 12.0), (), ((1.0,), (2.0,)))})
    profiles, nodes = {"still": still, "hungry": hungry}, load_cluster("v100:1x8,p100:1x8").nodes
    jobs = [TraceJob(str(n), 0.0, 1, 3600.0, user="a", model=name) for n, name in enumerate((*profiles, "unknown"))]
    assert mean_alone(jobs, nodes, profiles) == pytest.approx((3600 + 1800 + 3600) / 3)
    assert mean_alone(jobs[:1], load_cluster("p100:1x8").nodes, profiles) == pytest.approx(7200)
    gang = replace(jobs[1], gpus=8)  # of which each GPU has three CPUs beside it
    assert mean_alone([gang], nodes, profiles) == pytest.approx(3600)


def test_what_no_policy_can_have_is_said_beside_the_plots() -> None:
    case = MixedCase(MixedInputs("drawn", "site", 0.9, 0, 20), "gavel")
    told = dict.fromkeys(map(str, MixedColumn), 1.0) | {str(MixedColumn.UNFINISHED): 0.0}
    rows = list(mixed_rows(case, [CaseFigures(told, alone=3.0), CaseFigures(told, alone=4.0)]))
    said = "No policy can have a mean under 3.5 h: each job alone"
    assert [row.column for row in rows if row.note] == [MixedColumn.MEAN]
    assert said in mixed_page(rows, "c", 0.0)


def test_a_row_is_the_mean_of_the_seeds_between_the_least_and_the_most() -> None:
    case = MixedCase(MixedInputs("drawn", "site", 0.9, 0, 20), "gavel")
    seeds = [CaseFigures(dict.fromkeys(map(str, MixedColumn), value)) for value in (1.0, 2.0, 6.0)]
    row = next(iter(mixed_rows(case, seeds)))
    assert (row.measured, row.least, row.most) == (3.0, 1.0, 6.0)
    without = next(iter(mixed_rows(case, [*seeds, CaseFigures(dict.fromkeys(map(str, MixedColumn), nan), "stuck")])))
    assert isnan(without.measured)
    assert isnan(without.least)
    assert without.note == "stuck"


@given(st.floats(0.1, 3.0), st.integers(1, 100))
def test_the_load_is_what_arrives_over_what_the_cluster_can_do(load: float, seed: int) -> None:
    nodes, jobs = load_cluster("v100:1x8").nodes, drawn_jobs(50, seed, ExperimentSetup(None))
    stretched = at_load(jobs, nodes, load, true_profiles())
    work = sum(gpus_of(job) * job.duration for job in stretched)
    span = stretched[-1].arrival * 50 / 49
    assert work / (8 * span) == pytest.approx(load, rel=1e-4)
    assert [replace(job, arrival=0.0) for job in stretched] == [replace(job, arrival=0.0) for job in jobs]


def test_a_slow_type_counts_as_much_as_jobs_do_on_it() -> None:
    """A K80 does 0.158 of resnext50's work on a V100, as which `transformer` counts."""
    jobs = [TraceJob("1", 0.0, 1, HOUR, model="transformer"), TraceJob("2", 10.0, 1, HOUR, model="transformer")]
    stretched = at_load(jobs, load_cluster("v100:1x1,k80:1x1").nodes, 1.0, true_profiles())
    assert stretched[1].arrival * 2 == pytest.approx(2 * HOUR / (1 + 0.49858 / 3.1560), rel=1e-4)


def test_what_a_site_knows_of_speeds_is_a_fifth_off() -> None:
    true = true_profiles()
    off = misjudged_profiles(true, 42)
    for model, profile in true.items():
        for kind, scaling in profile.scaling.items():
            assert abs(off[model].scaling[kind].rate_at(1) / scaling.rate_at(1) - 1) == pytest.approx(RATE_ERROR)
        gain = profile.matrices[""].speed_at(12, 0.0) - 1.0
        assert abs(off[model].matrices[""].speed_at(12, 0.0) - 1.0 - gain) == pytest.approx(RATE_ERROR * gain)
        assert off[model].matrices[""].speed_at(3, 0.0) == pytest.approx(1.0)


def test_a_site_knows_no_durations_too_long_limits_and_two_thirds_of_the_profiles() -> None:
    site, perfect = (
        MixedInputs("drawn", knowledge, 0.9, 42, 300).scenario(ExperimentSetup(None))
        for knowledge in ("site", "perfect")
    )
    hints = {
        name: {job: parse_hints(made.comment) for job, made in scenario.submissions.items()}
        for name, scenario in (("site", site), ("perfect", perfect))
    }
    assert site.trace == perfect.trace
    assert all(hint.duration is None for hint in hints["site"].values())
    assert all(hints["perfect"][job.id].duration == -(-job.duration // 1) for job in perfect.trace.jobs)
    assert all(hints["perfect"][job.id].model == job.model for job in perfect.trace.jobs)
    told = sum(hint.model is not None for hint in hints["site"].values()) / 300
    assert told == pytest.approx(2 / 3, abs=0.06)
    for each in site.trace.jobs:
        exact = ((perfect.submissions[each.id].time_limit or 0) - 600) / 1.1
        assert 2 <= (site.submissions[each.id].time_limit or 0) / exact <= 10.01
    same = MixedInputs("drawn", "same-limits", 0.9, 42, 300).scenario(ExperimentSetup(None))
    week = {job: replace(made, time_limit=7 * 86400) for job, made in site.submissions.items()}
    assert same == replace(site, submissions=week, accounting=same.accounting)
    assert perfect.real is None
    assert perfect.accounting is None
    assert site.real is not None
    assert len(site.real.own) == 300


@needs_data
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_jobs_that_can_run_in_order_of_arrival(name: str) -> None:
    scenario = MixedInputs(name, "site", 0.9, 42, 100).scenario(ExperimentSetup(Path(DATA or "")))
    jobs = scenario.trace.jobs
    assert len(jobs) == 100 * WORKLOADS[name].times
    assert [each.arrival for each in jobs] == sorted(each.arrival for each in jobs)
    assert not any(impossible_reason(each, scenario.nodes) for each in jobs)
    assert 40 <= sum(len(node.gpus) for node in scenario.nodes) <= 56
    assert any(each.milli_gpu for each in jobs) == WORKLOADS[name].parts
    assert len({each.user for each in jobs}) >= 3


def test_jobs_on_parts_of_gpus_run_where_accounting_tells_what_runs_used() -> None:
    done = run_mixed_case(MixedCase(MixedInputs("parts", "site", 0.9, 42, 12), "fgd/las"))
    assert done.figures[MixedColumn.UNFINISHED] == 0


def test_a_variant_is_the_row_of_its_policy_with_one_change() -> None:
    candidate = candidate_named("hadar-tune")
    assert candidate.row is not None
    made, hadar = candidate.row.make(Choices(ORDERS["las"](()))), policy("hadar")
    assert isinstance(made, Pipeline)
    assert isinstance(hadar, Pipeline)
    assert made.sizing.name == "tune" != hadar.sizing.name
    assert replace(made, sizing=hadar.sizing, entitle=hadar.entitle) == hadar


@pytest.mark.parametrize(
    ("part", "differs"),
    [
        pytest.param("types", {"entitle"}, id="rates by GPU type"),
        pytest.param("sizes", {"sizing"}, id="CPUs and memory by sensitivity"),
        pytest.param("fragments", {"node_score"}, id="the worth of idle resources"),
        pytest.param("packing", {"node_score"}, id="consolidation too"),
        pytest.param("migration", {"finish_steps", "last_steps"}, id="moves to another type"),
    ],
)
def test_unified_without_a_part_is_unified_in_all_else(part: str, differs: set[str]) -> None:
    row = candidate_named(f"unified-no-{part}").row
    assert row is not None
    made, whole = row.make(Choices(ORDERS["las"](()))), policy("unified")
    assert isinstance(made, Pipeline)
    assert isinstance(whole, Pipeline)
    assert {own.name for own in fields(Pipeline) if getattr(made, own.name) != getattr(whole, own.name)} == differs


@pytest.mark.parametrize(
    ("name", "of_steep"),
    [
        pytest.param("unified", "v100", id="whole"),
        pytest.param("unified-no-types", "k80", id="no type is known better"),
    ],
)
def test_without_types_the_fast_gpu_goes_to_whoever_is_first(name: str, of_steep: str) -> None:
    """The flat job has less to go, so that it is first."""
    scaling = {"steep": {"v100": 1.0, "k80": 0.1}, "flat": {"v100": 1.0, "k80": 0.9}}
    known = Knowledge(
        {
            model: Profile(model, "", {}, "by hand", {kind: Scaling((1,), (rate,)) for kind, rate in rates.items()})
            for model, rates in scaling.items()
        },
        reference="v100",
    )
    jobs = [
        builders.job(number, 1, hint=f"model={model},duration={hours}h,ckpt=usr1", submit_time=number)
        for number, model, hours in ((1, "flat", 2), (2, "steep", 3))
    ]
    candidate = candidate_named(name)
    decider = candidate.row.make(Choices(ORDERS["las"](()))) if candidate.row else policy("unified")
    nodes = [builders.node("v1", 1), builders.node("k1", 1, "k80")]
    targets = decider.decide(builders.situation(nodes, jobs, known)).targets
    assert targets["2"].allocations[0].gpu_type == of_steep


def test_every_policy_of_the_table_is_a_candidate() -> None:
    assert {candidate_named(name).choice.system for name in CANDIDATES} == set(POLICIES)
    assert all(candidate_named(name).name == name for name in CANDIDATES)


def test_a_policy_that_is_given_decides_instead_of_the_named_one() -> None:
    """A long job holds the only GPU: under las a short one preempts it, under fifo it waits."""
    jobs = (TraceJob("long", 0.0, 1, 40 * HOUR), TraceJob("short", 5 * HOUR, 1, HOUR))
    scenario = Scenario(load_cluster("v100:1x1").nodes, Trace("t", jobs))
    las, fifo = PolicyChoice("proportional"), policy("proportional", "fifo")
    named, given_ = simulate(scenario, las), simulate(scenario, las, policy=fifo)
    assert named.jobs[1].jct < 10 * HOUR < 30 * HOUR < given_.jobs[1].jct


def test_a_policy_under_which_jobs_never_start_has_no_figures_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*_given: object, **_named: object) -> SimulationResult:
        raise SimulationError("1 job waits and can never start")

    monkeypatch.setattr(benchmark, "simulate", stuck)
    done = run_mixed_case(MixedCase(MixedInputs("drawn", "perfect", 0.9, 42, 5), "gavel"))
    assert done.problem == "1 job waits and can never start"
    assert isnan(done.figures[MixedColumn.MEAN])
    assert done.figures[MixedColumn.UNFINISHED] == 5


def test_a_case_is_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = MixedCase(MixedInputs("drawn", "site", 0.9, 42, 5), "slurm")
    path = KeptCases(tmp_path, "").path(run_mixed_case, case)
    first = run_or_read(run_mixed_case, case, path)
    monkeypatch.setattr(benchmark, "simulate", None)
    again = run_or_read(run_mixed_case, case, path)
    assert again.figures.keys() == first.figures.keys() == set(map(str, MixedColumn))
    assert again.figures[MixedColumn.MEAN] == first.figures[MixedColumn.MEAN] > 0
    assert first.figures[MixedColumn.UNFINISHED] == 0


def test_what_is_selected_is_run_for_every_seed() -> None:
    options = {"workloads": "itp,drawn", "loads": "0.5", "policies": "synergy,hadar-tune", "knowledge": "site"}
    chosen = selection(ExperimentSetup(None, (1, 2), options=options))
    assert chosen.policies == ("synergy/las", "hadar-tune")
    cases = list(chosen.cases(None))
    assert len(cases) == len(set(cases)) == 2 * 2 * 2
    assert {case.inputs for case in cases} == {
        MixedInputs(workload, "site", 0.5, seed, 200) for workload in ("itp", "drawn") for seed in (1, 2)
    }


def test_the_number_of_jobs_can_be_chosen() -> None:
    chosen = selection(ExperimentSetup(None, (1,), options={"workloads": "drawn", "jobs": "80"}))
    assert {case.inputs.jobs for case in chosen.cases(None)} == {80}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param({"jobs": "1"}, "--jobs 1: expected a number from 2 to 2000", id="one job has no load"),
        pytest.param({"jobs": "many"}, "--jobs many: expected a number", id="jobs are no number"),
        pytest.param({"workloads": "helios"}, "there is no workload 'helios'; known are drawn", id="workload"),
        pytest.param(
            {"knowledge": "none"}, "there is no knowledge 'none'; known are perfect, site, same-limits", id="knowledge"
        ),
        pytest.param({"loads": "0.9,much"}, "--loads much: expected parts", id="no number"),
        pytest.param({"loads": "0"}, "--loads 0: expected parts", id="no load"),
        pytest.param({"loads": "nan"}, "--loads nan: expected parts", id="not a number"),
    ],
)
def test_what_there_is_not_is_refused(options: Mapping[str, str], error: str) -> None:
    with pytest.raises(ExperimentError, match=error):
        selection(ExperimentSetup(None, options=options))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(PolicyError, match="hadar-tuned"):
        selection(ExperimentSetup(None, options={"policies": "hadar-tuned"}))
