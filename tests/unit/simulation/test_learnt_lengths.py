"""Shortest remaining time first by what earlier runs took, over simulated days in which nobody tells anything."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil
from statistics import fmean

import numpy as np
import pytest

from slurmsched.knowledge import Knowledge
from slurmsched.settings.definition import CheckpointSettings, GuardSettings, LearningSettings, Settings
from slurmsched.simulation import Scenario, SimulationOptions, parse_policy
from slurmsched.simulation.engine import simulate
from slurmsched.simulation.submissions import build_submission
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster

HOUR, DAY = 3600.0, 86400.0
NODES = load_cluster("v100:2x4").nodes
OPTIONS = SimulationOptions()
SEEDS = (42, 43)


def week(seed: int) -> Trace:
    """120 jobs of four users with three works each, whose runs are alike, more or less."""
    random = np.random.default_rng(seed)
    median, spread = random.lognormal(8.2, 1.3, (4, 3)), random.choice([0.15, 0.5, 1.0], (4, 3))
    arrivals = np.cumsum(random.exponential(HOUR / 4, 120)).round()
    jobs = list[TraceJob]()
    for number, arrival in enumerate(arrivals.tolist()):
        user, work = int(random.integers(4)), int(random.integers(3))
        seconds = float(np.clip(median[user, work] * random.lognormal(0.0, spread[user, work]), 120, 2 * DAY).round())
        name = f"{'abc'[work]}-{number}"
        jobs.append(TraceJob(name, arrival, int(random.choice([1, 1, 2, 4])), seconds, user=f"user{user}"))
    return Trace("week", tuple(jobs))


@cache
def ran(seed: int, hints: bool, lengths: bool) -> tuple[float, float, float]:
    """The mean completion in hours; restarts for each day of a job, of all jobs, and for each day begun of the job with
    most."""
    trace, submissions = week(seed), {}
    for one in trace.jobs:
        made = build_submission(one, NODES, OPTIONS)
        words = [word for word in made.comment.split(",") if hints or not word.startswith("duration")]
        submissions[one.id] = replace(made, comment=",".join(words), time_limit=None if hints else round(3 * DAY))
    settings = Settings(
        guards=GuardSettings(restart_cost=OPTIONS.overhead),
        checkpoint=CheckpointSettings(lead=0),
        learning=LearningSettings(lengths=lengths),
    )
    made = Scenario(NODES, trace, Knowledge(), submissions=submissions)
    done = simulate(made, parse_policy("synergy/srtf"), OPTIONS, settings).jobs
    days = [(one.end - one.start) / DAY for one in done]
    most = max(one.restarts / ceil(long) for one, long in zip(done, days, strict=True))
    return fmean(one.end - one.arrival for one in done) / HOUR, sum(one.restarts for one in done) / sum(days), most


@pytest.mark.parametrize("seed", SEEDS)
def test_where_nobody_tells_anything_earlier_runs_close_more_than_half_of_the_gap(seed: int) -> None:
    told, untold, learnt = ran(seed, True, False)[0], ran(seed, False, False)[0], ran(seed, False, True)[0]
    print(f"\nmean completion with true hints {told:.1f} h, with none {untold:.1f} h, learnt {learnt:.1f} h")
    assert learnt - told < 0.5 * (untold - told)


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_whose_expected_rest_grows_do_not_preempt_each_other_again_and_again(seed: int) -> None:
    _, told, _ = ran(seed, True, False)
    _, restarts, most = ran(seed, False, True)
    print(f"\nrestarts for each day of a job: {restarts:.2f}, with true hints alone {told:.2f}, the most {most:.1f}")
    assert restarts < 2.0 * told
    assert most <= Settings().guards.moves_per_job_day
