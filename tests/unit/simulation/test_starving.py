"""No job starves: a wide job among a stream of narrow ones starts about when EASY backfill would start it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from slurmsched.knowledge import Knowledge
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.policies import ORDERS, POLICIES, Choices, PolicyRow
from slurmsched.simulation import Scenario, SimulationOptions, parse_policy
from slurmsched.simulation.engine import simulate
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster

HOUR = 3600.0
EVERY_ROW = [
    f"{name}/{order}" if row.takes_order else name
    for name, row in POLICIES.items()
    if name != "slurm"
    for order in (ORDERS if row.takes_order else ("",))
]


@cache
def wait_of_wide(policy: str, every: float) -> float:
    """Seconds until an 8-GPU job starts on a node of 8 GPUs to which a job of 1 GPU comes `every` so many seconds."""
    narrow = [TraceJob(str(n), every * n, 1, 1500.0, time_limit=1800.0) for n in range(int(6 * HOUR / every))]
    wide = TraceJob("wide", 3000.0, 8, 600.0, time_limit=900.0)
    trace = Trace("stream", tuple(sorted([*narrow, wide], key=lambda job: job.arrival)))
    made = Scenario(load_cluster("v100:1x8").nodes, trace, Knowledge())
    run = simulate(made, parse_policy(policy), SimulationOptions(until=5 * HOUR))
    start = next((done.start for done in run.jobs if done.job == "wide"), None)
    return (5 * HOUR if start is None else start) - 3000.0


@pytest.mark.parametrize("every", [pytest.param(240.0, id="load below one"), pytest.param(120.0, id="overload")])
@pytest.mark.parametrize("policy", EVERY_ROW)
def test_a_wide_job_waits_no_longer_than_under_easy_backfill(policy: str, every: float) -> None:
    assert wait_of_wide(policy, every) <= 1.2 * wait_of_wide("slurm", every) + 300.0  # a round is not at once


def starts(policy: str, seed: int) -> dict[str, float | None]:
    """When each of 60 jobs of 1 to 8 GPUs starts on two nodes, most of which end before their time limits."""
    random = np.random.default_rng(seed)
    arrivals, gpus = np.cumsum(random.exponential(400.0, 60)).round(), random.choice([1, 2, 4, 8], 60)
    work = random.lognormal(8.0, 1.0, 60).clip(300, 40_000).round()
    limits = np.ceil(work * random.uniform(1, 4, 60))
    columns = zip(arrivals.tolist(), gpus.tolist(), work.tolist(), limits.tolist(), strict=True)
    jobs = tuple(TraceJob(str(n), at, many, long, time_limit=most) for n, (at, many, long, most) in enumerate(columns))
    made = Scenario(load_cluster("v100:2x8").nodes, Trace("mixed", jobs), Knowledge())
    return {done.job: done.start for done in simulate(made, parse_policy(policy), SimulationOptions()).jobs}


@pytest.mark.parametrize("seed", [2, 3])
def test_by_submission_a_kept_promise_is_easy_backfill(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What comes first stays first, so that keeping its promise changes no start: it costs nothing."""
    row = POLICIES["yarn-cs"]

    def anew(chosen: Choices) -> Pipeline:
        made = row.make(chosen)
        assert isinstance(made, Pipeline)
        return replace(made, keeps_promise=False)

    monkeypatch.setitem(POLICIES, "easy", PolicyRow("promises anew in each round", anew, row.settings))  # type: ignore[arg-type]  # a dict
    assert starts("yarn-cs", seed) == starts("easy", seed)
