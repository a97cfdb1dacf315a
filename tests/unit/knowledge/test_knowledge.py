"""What is known of one job."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.length_distribution import LEVELS, LengthDistribution, expected_lengths
from slurmsched.model import ExpectedLength, Job
from tests.builders import GIB, job, node, profile, share

HUNGRY = profile("hungry", {1: 1, 3: 3, 6: 6})
KNOWN = Knowledge(models={"hungry": HUNGRY}, tasks={"slow": profile("slow", {1: 1})}, service={"1": 7200.0})
NODES = {name: node(name) for name in ("n1", "n2")}


@pytest.mark.parametrize(
    ("one", "name"),
    [
        pytest.param(job(1, hint="model=hungry,task=slow"), "hungry", id="the model before the task"),
        pytest.param(job(1, hint="model=unheard,task=slow"), "slow", id="the task of a model nobody knows"),
        pytest.param(job(1, hint="model=unheard"), None, id="nothing"),
        pytest.param(job(1), None, id="no hint"),
    ],
)
def test_the_best_known_profile_counts(one: Job, name: str | None) -> None:
    known = KNOWN.profile(one)
    assert (known and known.name) == name


@pytest.mark.parametrize(
    ("one", "speed"),
    [
        pytest.param(job(1, hint="model=hungry", on=[share(cpus=3)]), 1, id="its share"),
        pytest.param(job(1, hint="model=hungry", on=[share(cpus=6)]), 2, id="twice the CPUs"),
        pytest.param(
            job(1, hint="model=hungry", on=[share("n1", 4, 24), share("n2", 4, 12)]), 1, id="the slowest share decides"
        ),
        pytest.param(job(1, hint="model=unheard", on=[share(cpus=1)]), 1, id="nothing is claimed of unknown jobs"),
        pytest.param(job(1, hint="model=hungry", on=[share("gone", cpus=1)]), 1, id="a node nobody knows"),
    ],
)
def test_speed_is_told_relative_to_the_proportional_share(one: Job, speed: float) -> None:
    assert KNOWN.relative_speed(one, one.allocations, NODES) == pytest.approx(speed)


def test_memory_counts_where_it_was_measured() -> None:
    known = Knowledge(models={"cached": profile("cached", {1: 4, 3: 4}, {31.25: 2, 62.5: 4})})
    one = job(1, hint="model=cached", on=[share(memory=500 * GIB // 16)])
    assert known.relative_speed(one, one.allocations, NODES) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("one", "remaining"),
    [
        pytest.param(job(1, 2, hint="duration=3h"), 2 * 3600, id="its owner's word, less what it has run"),
        pytest.param(job(1, 2, time_limit=7200), 3600, id="else its time limit"),
        pytest.param(job(1, 2, hint="duration=30m", time_limit=7200), 3600, id="its time limit once that has passed"),
        pytest.param(job(1, 2, hint="duration=30m", time_limit=600), inf, id="unknown once all has passed"),
        pytest.param(job(1, 2), inf, id="unknown"),
    ],
)
def test_what_remains_is_what_was_said_less_what_has_run(one: Job, remaining: float) -> None:
    assert KNOWN.remaining_seconds(one) == remaining


def test_what_earlier_runs_tell_of_the_rest_comes_before_what_was_said() -> None:
    told = job(1, 2, hint="duration=3h", time_limit=7200)
    mostly_short = LengthDistribution(np.geomspace(60, 6000, len(LEVELS)), mean=1200.0, count=9)
    known = replace(KNOWN, lengths=expected_lengths({"1": mostly_short}))
    assert known.remaining_seconds(told) == 1200
    assert known.latest_remaining_seconds(told) == pytest.approx(60 * 100**0.95, rel=0.05)
    assert known.remaining_seconds(job(2, time_limit=7200)) == 7200
    assert known.latest_remaining_seconds(job(2, time_limit=7200)) == 7200
    nobodys = replace(KNOWN, lengths={"1": ExpectedLength(*[60.0] * 5)})
    assert nobodys.remaining_seconds(told) == 2 * 3600, "no run of its owner is known"
    assert nobodys.latest_remaining_seconds(told) == 2 * 3600
