"""What is known of one job."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.knowledge.length_distribution import LEVELS, LengthDistribution, expected_lengths, left_of_unknown
from slurmsched.model import ExpectedLength, Job, Request
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
        pytest.param(job(1, 2, hint="duration=50m", time_limit=7200), 150, id="a quarter more, since it is a guess"),
        pytest.param(job(1, 2, hint="duration=30m", time_limit=7200), 3600, id="its time limit once that has passed"),
        pytest.param(job(1, 2, hint="duration=30m", time_limit=600), inf, id="unknown once all has passed"),
        pytest.param(job(1, 2), inf, id="unknown"),
    ],
)
def test_what_remains_is_what_was_said_less_what_has_run(one: Job, remaining: float) -> None:
    assert KNOWN.remaining_seconds(one) == remaining


def test_others_are_promised_nothing_for_when_a_job_ends_that_takes_longer_than_was_said() -> None:
    late = job(1, 2, hint="duration=50m", time_limit=7200)
    assert KNOWN.latest_remaining_seconds(late) == 3600, "its time limit"


QUARTER = Profile(
    "m", "", {}, "measured", {kind: Scaling((1,), (rate,)) for kind, rate in (("v100", 4.0), ("k80", 1.0))}
)


@pytest.mark.parametrize(
    ("has", "named", "hours", "left", "there"),
    [
        pytest.param(
            "k80", None, {"k80": 2.0}, 2.5, 10.0, id="an hour of a type with a quarter of the rate is a quarter"
        ),
        pytest.param("v100", None, {"v100": 2.0}, 1.0, 1.0, id="that of the type itself is an hour"),
        pytest.param("v100", None, {"k80": 4.0, "v100": 1.0}, 1.0, 1.0, id="it moved to the faster one"),
        pytest.param("k80", None, {"": 1.0}, 2.0, 8.0, id="runs of which the type is not known count in full"),
        pytest.param("", None, {"k80": 4.0}, 2.0, 2.0, id="it waits: nobody knows where it will run"),
        pytest.param("k80", "k80", {"k80": 2.0}, 1.0, 1.0, id="it asks for the slower type: its duration is of that"),
    ],
)
def test_a_duration_is_of_one_gpu_type_and_takes_longer_on_a_slower_one(
    has: str, named: str | None, hours: dict[str, float], left: float, there: float
) -> None:
    on = [share(gpus=1, gpu_type=has)] if has else []
    one = job(1, hint="model=m,duration=3h", time_limit=9 * 3600, on=on, request=Request(gpus=1, gpu_type=named))
    by_type = {kind: 3600.0 * each for kind, each in hours.items()}
    known = Knowledge(models={"m": QUARTER}, service={"1": sum(by_type.values())}, service_by_type={"1": by_type})
    assert known.remaining_seconds(one) == pytest.approx(3600 * left)
    assert known.remaining_seconds_there(one) == pytest.approx(3600 * there)
    assert known.remaining_seconds(one) + known.done_seconds(one) == pytest.approx(3 * 3600)


@pytest.mark.parametrize(
    ("kind", "ran", "left"),
    [
        pytest.param("k80", 740.0, 10.0, id="a quarter more on the type of which durations are"),
        pytest.param("k80", 760.0, inf, id="no more there"),
        pytest.param("v100", 265.0, 20.0, id="two minutes on one that is four times as fast count four times"),
        pytest.param("v100", 275.0, inf, id="no more there either"),
    ],
)
def test_what_a_start_costs_on_a_fast_gpu_makes_no_short_job_a_long_one(kind: str, ran: float, left: float) -> None:
    """Ten minutes were said, of a K80."""
    one = job(1, hint="model=m,duration=10m", on=[share(gpus=1, gpu_type=kind)])
    ran_on = {"1": {kind: ran}}
    known = Knowledge(models={"m": QUARTER}, reference="k80", service={"1": ran}, service_by_type=ran_on)
    assert known.remaining_seconds(one) == pytest.approx(left)


def test_a_time_limit_counts_hours_of_any_gpu_type() -> None:
    one = job(1, hint="model=m", time_limit=9 * 3600, on=[share(gpus=1, gpu_type="k80")])
    ran = {"k80": 4 * 3600.0}
    known = Knowledge(models={"m": QUARTER}, service={"1": 4 * 3600.0}, service_by_type={"1": ran})
    assert known.remaining_seconds(one) == known.remaining_seconds_there(one) == 5 * 3600


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


HOUR, DAY = 3600.0, 86400.0


@pytest.mark.parametrize(
    ("elapsed", "limit"),
    [(0.0, None), (0.0, HOUR), (600.0, 1200.0), (DAY, 7 * DAY), (6 * DAY, 7 * DAY), (2 * HOUR, HOUR), (50 * DAY, None)],
)
def test_a_job_of_which_nothing_is_known_runs_for_as_long_as_those_still_do_that_ran_for_so_long(
    elapsed: float, limit: float | None
) -> None:
    """The mean of draws of the log-logistic curve, cut at the limit or after a hundred days."""
    cut = limit if limit is not None and limit > elapsed else 100 * DAY
    passed = 1 / (1 + (elapsed / HOUR) ** (-1 / 1.2)) if elapsed else 0.0
    levels = passed + (1 - passed) * (np.arange(2_000_000) + 0.5) / 2_000_000
    lengths = np.minimum(HOUR * (levels / (1 - levels)) ** 1.2, cut)
    assert left_of_unknown(elapsed, limit) == pytest.approx(float(lengths.mean()) - elapsed, rel=0.01)


def after(seconds: float, limit: float | None, hint: str = "") -> tuple[Knowledge, Job]:
    """A job that has run for so long, and what is known then."""
    one = job(1, time_limit=limit, hint=hint)
    return replace(KNOWN, service={"1": seconds} if seconds else {}), one


@pytest.mark.parametrize(
    ("known", "with_same_limit", "likely"),
    [
        pytest.param(after(0, 7 * DAY, "duration=2h"), 0.0, 2 * HOUR, id="as hinted"),
        pytest.param(after(HOUR, 7 * DAY, "duration=2h"), 1.0, HOUR, id="what is left of the hint"),
        pytest.param(after(0, 7 * DAY), 1.0, left_of_unknown(HOUR, 7 * DAY), id="a limit of all jobs tells nothing"),
        pytest.param(after(DAY, 7 * DAY), 1.0, left_of_unknown(DAY, 7 * DAY), id="but that it has run for a day does"),
        pytest.param(
            after(0, 10 * HOUR),
            0.75,
            (10 * HOUR * left_of_unknown(HOUR, 10 * HOUR)) ** 0.5,
            id="three quarters have it",
        ),
        pytest.param(after(HOUR, 10 * HOUR), 0.5, 9 * HOUR, id="that of half of them counts as one of its own"),
        pytest.param(after(HOUR, 10 * HOUR), 0.0, 9 * HOUR, id="one of its own"),
        pytest.param(after(60, HOUR), 1.0, left_of_unknown(HOUR / 2, HOUR), id="in the first half of its limit"),
        pytest.param(after(HOUR / 2, None), 0.5, left_of_unknown(HOUR, None), id="no limit, in its first hour"),
        pytest.param(after(2 * HOUR, HOUR), 0.0, left_of_unknown(2 * HOUR, HOUR), id="runs took all of the limit"),
    ],
)
def test_what_is_likely_left(known: tuple[Knowledge, Job], with_same_limit: float, likely: float) -> None:
    knowledge, one = known
    assert knowledge.likely_seconds(one, with_same_limit) == pytest.approx(likely)


def test_what_earlier_runs_tell_comes_before_limit_and_age() -> None:
    known = replace(KNOWN, lengths={"1": ExpectedLength(1200, 900, 60, 3600, 5000, runs=3)})
    assert known.likely_seconds(job(1, time_limit=7 * DAY), 0.5) == 1200
