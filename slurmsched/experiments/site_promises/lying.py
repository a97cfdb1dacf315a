"""`lies`: what a user gains under `unified` by each lie, on the same site where everybody else is honest.

Chosen before the results, but for the size of the site: a first one, with five users, was simulated by thirty jobs and
in four runs of 120, which were too slow and too noisy.

- 90 jobs of three users with as many each, of 10 minutes to 6 hours, with gangs of up to 8, on 32 GPUs of three types
  at load 1.1; models as in the mixed benchmark, with default settings, rounds and restart costs. Everybody hints the
  true model and duration, and all profiles are true.
- In each seed one of the users lies, alone. The figure of a run is the mean completion of the liar's jobs in the honest
  run over that in the lying one; a job that was cut is complete when its last part is.
- A lie is held to gain nothing if the mean of all runs is at most 1.02. The curves have each run's gain in percent. A
  user's mean moves by several percent when anything is changed at all, so that the standard error stands beside it: a
  mean within two of them of 1.02 tells nothing either way.
- What the others lose is stated, as their mean completion in the lying run over that in the honest one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Final

from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.experiments.mixed.benchmark_workloads import (
    REFERENCE,
    SITE_OPTIONS,
    at_load,
    jobs_of_users,
    slowest_runs,
    true_profiles,
)
from slurmsched.experiments.site_promises.lies import (
    LIAR_ACCOUNTS,
    LIES,
    HonestJob,
    Lie,
    SubmittedJob,
    honest,
    reports_of,
)
from slurmsched.knowledge import Knowledge
from slurmsched.model import JobId
from slurmsched.settings.definition import Settings
from slurmsched.simulation import PolicyChoice
from slurmsched.simulation.engine import simulate
from slurmsched.simulation.inputs import Scenario
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generators import HOUR, random_stream

CLUSTER: Final = "v100:2x8,p100:1x8,k80:1x8"
USERS: Final = ("ann", "ben", "cyd")
LIAR: Final = USERS[0]
JOBS, QUICK_JOBS, LOAD = 90, 30, 1.1
_LONGEST: Final = 6 * HOUR
_WIDTHS: Final[Mapping[int, float]] = {1: 0.6, 2: 0.15, 4: 0.15, 8: 0.1}
LEAST_GAIN: Final = 0.02
"""A lie that gains less is held to gain nothing."""


@dataclass(frozen=True, slots=True)
class LyingCase:
    """One run: `liar` tells the lie, by its name; nobody if it is empty, on the site where it might be told."""

    lie: str
    liar: str
    seed: int
    jobs: int
    policy: str = "unified"


def site_jobs(count: int, seed: int) -> Sequence[TraceJob]:
    """Draws the jobs of all users, in order of arrival; their ids are numbers."""
    owners = (random_stream(seed, "users").permutation(count) % len(USERS)).tolist()
    jobs = jobs_of_users([USERS[owner] for owner in owners], seed, longest=_LONGEST, widths=_WIDTHS)
    return at_load(jobs, load_cluster(CLUSTER).nodes, LOAD, true_profiles())


def submitted_jobs(lie: Lie, liar: str, jobs: Sequence[TraceJob]) -> Sequence[SubmittedJob]:
    """Returns what all users submit, in order of arrival."""
    nodes, profiles = load_cluster(CLUSTER).nodes, true_profiles()
    accounts = dict(zip(USERS, (LIAR_ACCOUNTS * len(USERS)), strict=False)) if lie.settings.tickets.accounts else {}
    submitted = list[SubmittedJob]()
    for job, slowest in zip(jobs, slowest_runs(jobs, nodes, profiles), strict=True):
        submits = lie.submits if job.user == liar else honest
        submitted += submits(HonestJob(replace(job, account=accounts.get(job.user, "")), nodes, slowest))
    return sorted(submitted, key=lambda one: one.trace.arrival)


def scenario_of(submitted: Sequence[SubmittedJob], lie: Lie, liar: str) -> Scenario:
    """Returns the simulation's inputs: jobs run by the model that they really are."""
    known = Knowledge(models=true_profiles(), reference=REFERENCE)
    # The simulated cluster numbers jobs in order of arrival, from 1.
    numbers: Mapping[str, JobId] = {one.trace.id: str(number) for number, one in enumerate(submitted, start=1)}
    submissions = {
        one.trace.id: replace(one.submission, dependency=f"afterok:{numbers[one.after]}")
        if one.after
        else one.submission
        for one in submitted
    }
    return Scenario(
        load_cluster(CLUSTER).nodes,
        Trace("lies", tuple(one.trace for one in submitted)),
        known,
        replace(known, own={numbers[one.trace.id]: known.models[one.trace.model] for one in submitted}),
        submissions,
        reports=reports_of(lie.reports if liar else None, liar),
    )


def run_lying_case(case: LyingCase) -> Mapping[str, float]:
    """Returns the mean completion in hours of the jobs of each user, decoys left out. Raises SimulationError."""
    lie = LIES[case.lie] if case.lie else Lie(honest)
    submitted = submitted_jobs(lie, case.liar, site_jobs(case.jobs, case.seed))
    scenario, options = scenario_of(submitted, lie, case.liar), replace(SITE_OPTIONS, seed=case.seed)
    run = simulate(scenario, PolicyChoice(case.policy), options, lie.settings)
    real = {one.trace.id: one for one in submitted if not one.decoy}
    ends, owner = defaultdict[str, float](float), {one.origin: one.trace.user.partition("-")[0] for one in submitted}
    for job in run.jobs:
        if job.job in real:
            origin = real[job.job].origin
            ends[origin] = max(ends[origin], job.jct)
    users = dict.fromkeys(owner.values())
    return {user: fmean(end for job, end in ends.items() if owner[job] == user) / HOUR for user in users}


def _honest_case(case: LyingCase) -> LyingCase:
    """Returns the case in which nobody lies, one for all lies on a site with the same settings."""
    settings = LIES[case.lie].settings
    same = next(name for name, lie in LIES.items() if lie.settings == settings)
    return replace(case, lie="" if settings == Settings() else same, liar="")


def run_lies(setup: ExperimentSetup) -> ExperimentResult:
    """Measures every lie; the small version has few jobs and one seed. Raises SimulationError."""
    seeds = setup.seeds[:1] if setup.quick else setup.seeds
    jobs = QUICK_JOBS if setup.quick else JOBS
    lying = [LyingCase(lie, LIAR, seed, jobs) for lie in LIES for seed in seeds]
    runs = setup.run_all(run_lying_case, (one for case in lying for one in (_honest_case(case), case)), "lying")
    by_lie = defaultdict[str, list[tuple[float, float]]](list)
    for case in lying:
        by_lie[case.lie].append(gains(runs[_honest_case(case)], runs[case], case.liar))
    rows = [row for lie, of in by_lie.items() for row in lie_rows(lie, of)]
    series = {lie: [(float(run), 100 * (own - 1)) for run, (own, _) in enumerate(of)] for lie, of in by_lie.items()}
    return ExperimentResult("lies", tuple(sorted(rows, key=lambda row: row.ok)), series)


def gains(before: Mapping[str, float], lying: Mapping[str, float], liar: str) -> tuple[float, float]:
    """Returns the liar's mean completion when honest over that when lying, and that of the others when they are lied
    to over that when not."""
    others = [user for user in before if user != liar]
    return before[liar] / lying[liar], fmean(lying[user] for user in others) / fmean(before[user] for user in others)


def lie_rows(lie: str, runs: Sequence[tuple[float, float]]) -> Iterator[FigureRow]:
    """Yields the gain of a lie, which is held, its standard error, and what others lose."""
    own = [gain for gain, _ in runs]
    metric = f"{lie}: completion honest over lying"
    yield FigureRow(metric, "x", fmean(own), tolerance=LEAST_GAIN, bound=Bound.AT_MOST, limit=1.0)
    if len(own) > 1:
        error = stdev(own) / len(own) ** 0.5
        yield FigureRow(f"{lie}: standard error", "x", error, bound=Bound.INFORMATIVE)
    others = fmean(loss for _, loss in runs)
    yield FigureRow(f"{lie}: others' completion lying over honest", "x", others, bound=Bound.INFORMATIVE)
