"""With certain lengths the forecast of plain Slurm is what the simulated cluster then does, from any moment on."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slurmsched.backends.simulated import Delays, Submission, VirtualClock, VirtualCluster
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.length_distribution import LEAST
from slurmsched.model import ExpectedLength, JobState, Request, SchedulerState
from slurmsched.settings.definition import PolicySettings, Settings
from slurmsched.simulation.start_forecast import HORIZON, forecast_starts
from tests.builders import node

NODES = (node("n1", 4, cpus=12), node("n2", 4, cpus=12), node("n3", 2, gpu_type="k80", cpus=8), node("n4", 2, shards=4))
SLURM = Settings(policy=PolicySettings(system="slurm"))


@st.composite
def submitted(draw: st.DrawFn, number: int) -> tuple[Submission, float, int, int | None]:
    """What is submitted as job `number`, when, with how many tasks of which so many run at once."""
    shards = draw(st.sampled_from([0, 0, 0, 1, 3]))
    gpus = 0 if shards else draw(st.sampled_from([1, 1, 2, 4, 6, 8]))
    kind = draw(st.sampled_from([None, None, "v100", "k80"])) if gpus <= 2 and not shards else None
    request = Request(gpus=gpus, gpu_type=kind, cpus=max(1, draw(st.integers(1, 2)) * gpus), memory=100, shards=shards)
    earlier = draw(st.integers(1, number - 1)) if number > 1 else 0
    dependency = draw(st.sampled_from(["", "", "", f"afterany:{earlier}", f"afterok:{earlier}"]))
    at = float(draw(st.integers(0, 300)))
    tasks = draw(st.sampled_from([0, 0, 0, 3]))
    submission = Submission(
        "alice",
        request,
        work=draw(st.integers(1, 60)) * 20 + 0.137 * number,
        time_limit=draw(st.sampled_from([None, 200, 900, 3600])),
        nice=draw(st.integers(-3, 3)),
        begin=draw(st.sampled_from([None, None, at + 450.0])),
        dependency=dependency if earlier else "",
        held=draw(st.integers(0, 9)) == 0,
    )
    return submission, at, tasks, draw(st.sampled_from([None, 1, 2])) if tasks else None


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[Submission, float, int, int | None]]:
    return [draw(submitted(number)) for number in range(1, draw(st.integers(2, 14)) + 1)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workloads(), st.integers(0, 1200))
def test_the_forecast_comes_true(jobs: list[tuple[Submission, float, int, int | None]], now: int) -> None:
    cluster = VirtualCluster(NODES, start=0.0, delays=Delays(min_job_age=1e6))
    for submission, at, tasks, throttle in jobs:
        if at <= now:
            cluster.submit(submission, at, tasks=tasks, throttle=throttle)
    cluster.advance(float(now))
    seen, lengths = cluster.snapshot(), dict[str, ExpectedLength]()
    for job in cluster.jobs.values():
        if job.state is not JobState.FINISHED:
            run = job.work.run
            left = job.work.total if run is None else run.finish_time(job.work.total) - now
            assume(run is None or job.state is JobState.COMPLETING or left >= LEAST)
            lengths[job.id] = ExpectedLength(left, left, left, left, left, "name", 3, 1.0)
    told = forecast_starts(
        seen,
        SchedulerState(lengths=lengths),
        SLURM,
        Knowledge(),
        np.random.default_rng(0),
        draws=1,
        budget=inf,
        clock=VirtualClock(),
    )
    cluster.lifecycle.changed = True  # Slurm looks at its queue then, as in the forecast
    cluster.advance(now + HORIZON)
    ran = {usage.job: usage for usage in reversed(cluster.lifecycle.usage_intervals)}
    for one in told.jobs:
        usage = ran.get(one.job)
        expected = (inf, inf) if usage is None else (usage.start, usage.end - cluster.lifecycle.delays.completing)
        forecast = tuple(inf if time is None else time for time in (one.start.median, one.end.median))
        assert forecast == pytest.approx(expected, abs=0.01)
    for job_id in told.left_out:
        assert job_id not in ran
