"""`site-promises`: every policy in every scenario, through the daemon's rounds, and what each promise comes to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.backends.simulated import UsageInterval
from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, PromiseRow
from slurmsched.experiments.site_promises import measures
from slurmsched.experiments.site_promises.measures import Device, JobOutcome, SiteRun
from slurmsched.experiments.site_promises.promises import ASKED, PROMISED, PromiseBound, SitePromise
from slurmsched.experiments.site_promises.scenarios import SCENARIOS, SiteScenario
from slurmsched.experiments.site_promises.workloads import Care, SiteJob
from slurmsched.knowledge import Knowledge
from slurmsched.model import MILLI_PER_GPU, JobId, JobState
from slurmsched.policies.policies import schedules_shards
from slurmsched.simulation import PolicyChoice
from slurmsched.simulation.engine import SimulationEngine
from slurmsched.simulation.inputs import CLOCK_START
from slurmsched.traces import TraceJob
from slurmsched.traces.generators import HOUR


@dataclass(frozen=True, slots=True)
class SiteCase:
    """One run: a policy in a scenario, of so many hours; `whole` if no job asks for half of a GPU.

    Without a policy it is the scenario's ideal.
    """

    scenario: str
    policy: str
    seed: int
    hours: float
    whole: bool = False


def run_case(case: SiteCase) -> SiteRun:
    """Simulates a case with the daemon's rounds; without a policy the scenario's ideal. Raises SimulationError."""
    scenario = SCENARIOS[case.scenario]
    if not case.policy and scenario.ideal is not None:
        return scenario.ideal(case.seed)
    return run_scenario(scenario, case.policy, case.seed, case.hours, whole=case.whole)


def run_scenario(scenario: SiteScenario, policy: str, seed: int, hours: float, *, whole: bool = False) -> SiteRun:
    """Simulates so many hours of a scenario with the daemon's rounds. Raises SimulationError."""
    halves = scenario.halves and not whole and schedules_shards(policy)
    inputs, jobs, options = scenario.inputs(seed, hours, halves=halves)
    engine = SimulationEngine(inputs, PolicyChoice(policy), options, scenario.settings)
    engine.run(lambda _done: None)
    return _outcome(engine, jobs, hours * HOUR)


def _outcome(engine: SimulationEngine, jobs: Sequence[SiteJob], until: float) -> SiteRun:
    """Returns the run so far; what running jobs have done counts as kept."""
    cluster, lifecycle = engine.cluster, engine.cluster.lifecycle
    runs = defaultdict[JobId, list[UsageInterval]](list)
    for interval in lifecycle.usage_intervals:
        runs[interval.job.partition("_")[0]].append(interval)
    for running in cluster.jobs.values():
        if running.state is JobState.RUNNING:
            running.work.checkpoint(cluster.now)
            usage = lifecycle.usage(running, cluster.now)
            runs[running.id.partition("_")[0]].append(replace(usage, end=cluster.now))
    ended = {**lifecycle.ended, **lifecycle.ended_forked}
    ends = {number: job.end_time - CLOCK_START for number, job in ended.items() if job.end_time is not None}
    managed = {job.trace.id: job.care is not Care.UNMANAGED for job in jobs}
    knowledge = engine.scenario.real or engine.scenario.knowledge
    types = {(node.name, gpu.index): gpu.type for node in engine.scenario.nodes for gpu in node.gpus}
    outcomes = list[JobOutcome]()
    for number, index in engine.index_of.items():
        job = engine.jobs[index]
        outcome = _job_outcome(job, runs[number], ends.get(number), knowledge, types)
        outcomes.append(replace(outcome, managed=managed[job.id]))
    return SiteRun(tuple(types.items()), tuple(outcomes), until)


def _job_outcome(
    job: TraceJob,
    runs: Sequence[UsageInterval],
    end: float | None,
    knowledge: Knowledge,
    types: Mapping[Device, str],
) -> JobOutcome:
    """Returns the job with its rates, all relative to the reference: in the simulation those of a job that asks for a
    GPU type are relative to that type."""
    usable = [kind for kind in dict.fromkeys(types.values()) if job.gpu_type in ("", kind)]
    profile, unit = knowledge.models.get(job.model), 1.0
    rates = dict.fromkeys(usable, 1.0)
    if profile is not None and profile.scaling:
        reference = profile.scaling[knowledge.reference].rate_at(1)
        rates = {kind: profile.scaling[kind].rate_at(1) / reference for kind in usable}
        unit = rates.get(job.gpu_type, 1.0)
    pieces = [
        replace(run, start=run.start - CLOCK_START, end=run.end - CLOCK_START, rate=run.rate * unit) for run in runs
    ]
    gpus = (job.gpus or job.milli_gpu / MILLI_PER_GPU) * max(job.fork, 1)
    pieces.sort(key=lambda run: run.start)
    return JobOutcome(job.id, job.user, float(gpus), job.arrival, rates, tuple(pieces), end)


def _least(ratios: Mapping[str, float]) -> float:
    return min(ratios.values(), default=float("nan"))


def _most(ratios: Mapping[str, float]) -> float:
    return max(ratios.values(), default=float("nan"))


def _near(ratios: Mapping[str, float]) -> float:
    tolerance = ASKED[SitePromise.SHARE].tolerance
    return sum(abs(ratio - 1) <= tolerance for ratio in ratios.values()) / len(ratios)


_Measure = Callable[[SiteScenario, SiteRun, SiteRun], float]
"""The figure of a promise, given the scenario, the run and the one that it is compared with."""

_PINS: Final = "carol"

MEASURES: Final[Mapping[SitePromise, _Measure]] = {
    SitePromise.SHARE: lambda _scenario, run, _other: _least(measures.share_ratios(run)),
    SitePromise.MOST_SHARE: lambda _scenario, run, _other: _most(measures.share_ratios(run)),
    SitePromise.JOB_SHARE: lambda _scenario, run, _other: _least(measures.share_ratios(run, by_job=True)),
    SitePromise.MOST_JOB_SHARE: lambda _scenario, run, _other: _most(measures.share_ratios(run, by_job=True)),
    SitePromise.NEAR_SHARE: lambda _scenario, run, _other: _near(measures.share_ratios(run)),
    SitePromise.PARTITION: lambda _scenario, run, _other: _least(measures.partition_ratios(run)),
    SitePromise.TRADED: lambda _scenario, run, other: _least(
        {user: measures.work_of(other, user) / measures.work_of(run, user) for user in run.by_user()}
    ),
    SitePromise.PINNING: lambda _scenario, run, other: measures.work_of(run, _PINS) / measures.work_of(other, _PINS),
    SitePromise.FASTEST: lambda _scenario, run, _other: measures.type_match(run),
    SitePromise.MATCH: lambda _scenario, run, _other: measures.type_match(run),
    SitePromise.UNPAIRED: lambda scenario, run, _other: measures.unpaired_while_idle(
        run, scenario.settings.rounds.period
    ),
    SitePromise.MAKESPAN: lambda _scenario, run, other: measures.makespan(run) / measures.makespan(other),
    SitePromise.COMPLETION: lambda _scenario, run, other: (
        measures.mean_completion(run) / measures.mean_completion(other)
    ),
    SitePromise.COPIES: lambda _scenario, run, other: measures.makespan(run) / measures.makespan(other),
    SitePromise.RATE: lambda _scenario, run, _other: measures.slowest_rate(run),
    SitePromise.USEFUL: lambda _scenario, run, _other: measures.useful_part(run),
    SitePromise.START: lambda scenario, run, _other: measures.longest_wait(run, scenario.start_within) / HOUR,
    SitePromise.RESTARTS: lambda _scenario, run, _other: measures.most_restarts(run),
}
"""How each promise is measured."""


def _cases(scenario: SiteScenario, seeds: Sequence[int], hours: float) -> Iterator[SiteCase]:
    for policy in scenario.policies:
        for seed in seeds:
            case = SiteCase(scenario.name, policy, seed, hours)
            yield case
            yield _compared(case)


def _compared(case: SiteCase) -> SiteCase:
    """Returns the case whose run the figures of this one are compared with; itself where there is none."""
    if SCENARIOS[case.scenario].ideal is not None:
        return replace(case, policy="")
    name, policy = SCENARIOS[case.scenario].compared
    return replace(case, scenario=name, policy=policy or case.policy, whole=bool(policy)) if name else case


def run_site_promises(setup: ExperimentSetup) -> ExperimentResult:
    """Measures every promise of every policy, the worst seed and the mean; the misses come first.

    The small version has one seed and some scenarios, shortened. Raises SimulationError.
    """
    seeds = setup.seeds[:1] if setup.quick else setup.seeds
    hours = {
        name: scenario.quick_hours if setup.quick else scenario.hours
        for name, scenario in SCENARIOS.items()
        if scenario.quick_hours or not setup.quick
    }
    cases = (case for name, of in hours.items() for case in _cases(SCENARIOS[name], seeds, of))
    runs = setup.run_all(run_case, cases, "running sites")
    rows = [
        promise_row(SCENARIOS[name], policy, promise, [_figure(promise, case, runs) for case in of_policy])
        for policy in PROMISED
        for name, of in hours.items()
        if policy in SCENARIOS[name].policies
        for of_policy in [[SiteCase(name, policy, seed, of) for seed in seeds]]
        for promise in SCENARIOS[name].promises
    ]
    return ExperimentResult("site-promises", tuple(sorted(rows, key=lambda row: row.ok)))


def _figure(promise: SitePromise, case: SiteCase, runs: Mapping[SiteCase, SiteRun]) -> float:
    return MEASURES[promise](SCENARIOS[case.scenario], runs[case], runs[_compared(case)])


def promise_row(scenario: SiteScenario, policy: str, promise: SitePromise, figures: Sequence[float]) -> PromiseRow:
    """Returns the row of a promise: the worst of the seeds' figures and their mean, held if the policy promises it."""
    figures = tuple(map(float, figures))  # of numpy's numbers, verdicts would be no JSON
    asked, source, stated = ASKED[promise], PROMISED[policy].get(promise), scenario.stated.get(promise, "")
    limit = scenario.starts_within(policy) / HOUR if asked.limit is None else asked.limit
    return PromiseRow(
        metric=f"{policy}, {scenario.name}: {promise}",
        unit=asked.unit,
        measured=_worst(asked, limit, figures),
        tolerance=asked.tolerance,
        bound=asked.bound if source and not stated else Bound.INFORMATIVE,
        note=stated or source or "",
        policy=policy,
        scenario=scenario.name,
        promise=str(promise),
        mean=sum(figures) / len(figures),
        limit=limit,
    )


def _worst(asked: PromiseBound, limit: float, figures: Sequence[float]) -> float:
    """Returns the figure farthest on the wrong side, NaN if one is."""
    if any(figure != figure for figure in figures):  # noqa: PLR0124  # only NaN differs from itself
        return float("nan")
    if asked.bound is Bound.AT_MOST:
        return max(figures)
    return min(figures) if asked.bound is Bound.AT_LEAST else max(figures, key=lambda figure: abs(figure - limit))
