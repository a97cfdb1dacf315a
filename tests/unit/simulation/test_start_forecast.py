"""When waiting jobs start and end, on tiny clusters: one node of eight GPUs unless a row says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from slurmsched.backends.simulated import VirtualClock
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    ExpectedLength,
    Hold,
    Job,
    JobState,
    MeasuredRate,
    Node,
    NodeState,
    QueueForecast,
    Request,
    Reservation,
    SchedulerState,
    SetAsideJob,
    Snapshot,
)
from slurmsched.settings.definition import ManageSettings, Mode, PolicySettings, RoundSettings, Settings
from slurmsched.simulation.start_forecast import HORIZON, forecast_starts
from slurmsched.simulation.state_store import InMemoryStateStore
from tests.builders import job, node, profile, share, snapshot

NOW = 10_000.0
SLURM = Settings(policy=PolicySettings(system="slurm"))
SYNERGY = Settings(
    policy=PolicySettings(order="fifo"),
    rounds=RoundSettings(mode=Mode.ENFORCE, period=300.0, early_interval=3.0),
    manage=ManageSettings(partitions=("gpu",)),
)


def certain(seconds: float) -> ExpectedLength:
    return ExpectedLength(seconds, seconds, seconds, seconds, seconds, "name", 5, 60.0)


def spread(median: float, factor: float) -> ExpectedLength:
    return ExpectedLength(median, median, median / factor, median * factor, median * factor**1.3, "name", 5, 60.0)


def forecast(
    seen: Snapshot,
    lengths: Mapping[str, float | ExpectedLength],
    settings: Settings = SLURM,
    draws: int = 3,
    state: SchedulerState | None = None,
    knowledge: Knowledge | None = None,
) -> QueueForecast:
    known = {number: one if isinstance(one, ExpectedLength) else certain(one) for number, one in lengths.items()}
    return forecast_starts(
        seen,
        replace(state or SchedulerState(), lengths=known),
        settings,
        knowledge or Knowledge(),
        np.random.default_rng(1),
        draws=draws,
        budget=60.0,
        clock=VirtualClock(),
    )


def after(time: float | None) -> float:
    """In seconds from now; infinite for a time that is not known."""
    return inf if time is None else round(time - NOW, 1)


def medians(told: QueueForecast) -> dict[str, tuple[float, float]]:
    """Start and end of each job, in seconds from now."""
    return {one.job: (after(one.start.median), after(one.end.median)) for one in told.jobs}


def running(number: int, gpus: int, where: str = "n1", first: int = 0, **other: Any) -> Job:
    """A job that has run for 100 s."""
    on = [share(where, range(first, first + gpus))]
    return job(number, gpus, on=on, run_time=100.0, start_time=NOW - 100.0, **other)


def waiting(number: int | str, gpus: int, **other: Any) -> Job:
    """A job that waits since 50 s; those with lower numbers have priority."""
    priority = 1000 - int(str(number).partition("_")[0])
    return job(number, gpus, submit_time=NOW - 50.0, priority=priority, **other)


@dataclass(frozen=True)
class Row:
    """Jobs on nodes, how long they still run or will run, and when those that wait start and end."""

    title: str
    jobs: Sequence[Job]
    seconds: Mapping[str, float]
    expected: Mapping[str, tuple[float, float]]
    nodes: Sequence[Node] = (node(),)
    left_out: Mapping[str, str] = field(default_factory=dict)
    reservations: Sequence[Reservation] = ()


FULL = running(1, 8)
TWO_NODES = (node("n1"), node("n2"))
ROWS = [
    Row(
        "a job that waits for one of known length starts once its GPUs are free, 5 s after it ends",
        [FULL, waiting(2, 8)],
        {"1": 600.0, "2": 50.0},
        {"2": (605.0, 655.0)},
    ),
    Row("what fits starts now", [running(1, 4), waiting(2, 4)], {"1": 600.0, "2": 50.0}, {"2": (0.0, 50.0)}),
    Row(
        "a time limit ends a job that would take longer",
        [replace(FULL, time_limit=300), waiting(2, 8, time_limit=60)],
        {"1": 600.0, "2": 100.0},
        {"2": (205.0, 265.0)},
    ),
    Row(
        "a hold never starts, and who waits for it does not either",
        [waiting(2, 1, hold=Hold.USER), waiting(3, 1, dependency="afterok:2(unfulfilled)"), waiting(4, 1)],
        {"2": 10.0, "3": 10.0, "4": 10.0},
        {"4": (0.0, 10.0)},
        left_out={"2": "it is held", "3": "it waits for a job that is not simulated"},
    ),
    Row(
        "a dependency is met once the other one has completed",
        [running(1, 4), waiting(2, 1, dependency="afterok:1(unfulfilled)")],
        {"1": 600.0, "2": 50.0},
        {"2": (605.0, 655.0)},
    ),
    Row(
        "afterok of a job that its limit ends is never met",
        [replace(running(1, 4), time_limit=300), waiting(2, 1, dependency="afterok:1(unfulfilled)")],
        {"1": 600.0, "2": 50.0},
        {"2": (inf, inf)},
    ),
    Row(
        "a begin time is waited for",
        [waiting(2, 1, eligible_time=NOW + 900.0)],
        {"2": 50.0},
        {"2": (900.0, 950.0)},
    ),
    Row(
        "a gang waits until both of its nodes are free",
        [running(1, 8), running(2, 8, where="n2"), waiting(3, 16)],
        {"1": 600.0, "2": 1200.0, "3": 50.0},
        {"3": (1205.0, 1255.0)},
        nodes=TWO_NODES,
    ),
    Row(
        "a pinned type is waited for though others are free",
        [running(1, 8), waiting(2, 1, request=replace(waiting(2, 1).original_request, gpu_type="v100"))],
        {"1": 600.0, "2": 50.0},
        {"2": (605.0, 655.0)},
        nodes=(node("n1"), node("n2", gpu_type="k80")),
    ),
    Row(
        "an unmanaged job is in the way like any other",
        [running(1, 8, partitions=("other",)), waiting(2, 8)],
        {"1": 600.0, "2": 50.0},
        {"2": (605.0, 655.0)},
        nodes=(node(partitions=frozenset({"gpu", "other"})),),
    ),
    Row(
        "a completing job leaves its GPUs in 5 s",
        [replace(FULL, state=JobState.COMPLETING, state_text="COMPLETING"), waiting(2, 8)],
        {"2": 50.0},
        {"2": (5.0, 55.0)},
    ),
    Row(
        "a suspended job keeps its GPUs, and nobody knows for how long",
        [replace(FULL, state=JobState.SUSPENDED, state_text="SUSPENDED"), waiting(2, 8)],
        {"2": 50.0},
        {"2": (inf, inf)},
    ),
    Row(
        "tasks of an array run as many at once as it says",
        [waiting(f"2_{task}", 1, array_job="2", throttle=2) for task in range(3)],
        {f"2_{task}": 100.0 for task in range(3)},
        {"2_0": (0.0, 100.0), "2_1": (0.0, 100.0), "2_2": (105.0, 205.0)},
    ),
    Row(
        "what no node has, drained ones aside, is left out",
        [waiting(2, 8)],
        {"2": 50.0},
        {},
        nodes=(node(state=NodeState.DRAINED), node("n2", 4)),
        left_out={"2": "no nodes that are up have what it asks for"},
    ),
    Row(
        "a reservation of others is waited for",
        [waiting(2, 8, time_limit=3600)],
        {"2": 50.0},
        {"2": (700.0, 750.0)},
        reservations=[Reservation("maint", frozenset({"n1"}), NOW - 100.0, NOW + 700.0, frozenset({"root"}))],
    ),
    Row(
        "what only Slurm understands is left out, and told",
        [
            waiting(2, 1, dependency="singleton(unfulfilled)"),
            waiting(3, 1, request=replace(waiting(3, 1).original_request, features="a*2&[b")),
            waiting(4, 1, reason="QOSMaxGRESPerUser"),
        ],
        {},
        {},
        left_out={
            "2": "its dependency is not simulated",
            "3": "its constraint is not simulated",
            "4": "it waits for a limit of Slurm (QOSMaxGRESPerUser)",
        },
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.title for row in ROWS])
def test_plain_slurm_starts_jobs_when_it_does(row: Row) -> None:
    told = forecast(snapshot(row.nodes, row.jobs, NOW, reservations=tuple(row.reservations)), row.seconds)
    assert medians(told) == dict(row.expected)
    assert dict(told.left_out) == dict(row.left_out)


def test_higher_priority_first_and_smaller_ones_only_where_they_delay_nobody() -> None:
    """By its limit job 1 ends in 1000 s: job 3 fits before, job 4 does not, and job 1 ends sooner than that."""
    jobs = [
        replace(running(1, 7), time_limit=1100),
        waiting(2, 8, time_limit=1000),
        waiting(3, 1, time_limit=900),
        waiting(4, 1, time_limit=2000),
    ]
    told = forecast(snapshot([node()], jobs, NOW), {"1": 500.0, "2": 100.0, "3": 300.0, "4": 100.0})
    assert medians(told) == {"3": (0.0, 300.0), "2": (505.0, 605.0), "4": (610.0, 710.0)}


def test_a_job_at_twice_the_speed_needs_half_as_long() -> None:
    """Alone on the node, it gets more than its share of the CPUs where the policy gives them away, and profits."""
    eager = Knowledge({"m": profile("m", {1.0: 0.5, 3.0: 1.0, 6.0: 2.0})})
    fixed = job(1, 1, 6, hint="model=m", submit_time=NOW, memory=1000)
    told = forecast(snapshot([node()], [fixed], NOW), {"1": 600.0}, knowledge=eager)
    assert medians(told) == {"1": (0.0, 300.0)}


def test_what_jobs_have_left_is_told_at_their_present_speed() -> None:
    eager = Knowledge({"m": profile("m", {1.0: 0.5, 3.0: 1.0, 6.0: 2.0})})
    first = job(1, 8, hint="model=m", on=[share("n1", 8, cpus=8)], run_time=100.0, start_time=NOW - 100.0)
    told = forecast(snapshot([node()], [first, waiting(2, 8)], NOW), {"1": 600.0, "2": 50.0}, knowledge=eager)
    assert medians(told) == {"2": (605.0, 655.0)}


def test_ranges_are_those_of_what_is_waited_for() -> None:
    """A single job ahead, whose length is log-normal: its quantiles are those of the start."""
    seen = snapshot([node()], [FULL, waiting(2, 8)], NOW)
    (told,) = forecast(seen, {"1": spread(1000.0, 3.0), "2": 50.0}, draws=1500).jobs
    assert (told.draws, told.not_started) == (1500, 0)
    assert after(told.start.low) - 5 == pytest.approx(333.0, rel=0.15)
    assert after(told.start.median) - 5 == pytest.approx(1000.0, rel=0.15)
    assert after(told.start.high) - 5 == pytest.approx(3000.0, rel=0.15)
    assert after(told.end.median) == pytest.approx(after(told.start.median) + 50.0)


def test_what_starts_after_the_horizon_is_counted() -> None:
    seen = snapshot([node()], [FULL, waiting(2, 8)], NOW)
    (told,) = forecast(seen, {"1": spread(HORIZON, 3.0), "2": 50.0}, draws=200).jobs
    assert after(told.start.low) < after(told.start.high) == inf
    assert 0.4 < told.not_started / told.draws < 0.6


def test_the_same_generator_tells_the_same_and_fewer_draws_are_the_first_of_more() -> None:
    seen = snapshot([node()], [FULL, waiting(2, 8), waiting(3, 4)], NOW)
    lengths = {"1": spread(1000.0, 3.0), "2": spread(50.0, 2.0)}
    assert forecast(seen, lengths, draws=20) == forecast(seen, lengths, draws=20)
    assert forecast(seen, lengths, draws=20) != forecast(seen, lengths, draws=21)


class Ticking:
    """A clock on which every look takes so long."""

    def __init__(self, step: float) -> None:
        self.time, self.step = 0.0, step

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        self.time += self.step
        return self.time

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing to wait for")


@pytest.mark.parametrize(("step", "most"), [(0.0, 10), (1.0, 9), (1000.0, 1)])
def test_it_stops_when_its_seconds_are_spent(step: float, most: int) -> None:
    seen = snapshot([node()], [FULL, waiting(2, 8)], NOW)
    state, random = SchedulerState(lengths={"1": spread(1000.0, 3.0)}), np.random.default_rng(1)
    told = forecast_starts(seen, state, SLURM, Knowledge(), random, draws=10, budget=20.0, clock=Ticking(step))
    assert told.draws == 10 if not step else 1 <= told.draws <= most


def test_a_first_draw_that_takes_too_long_tells_what_it_reached() -> None:
    seen = snapshot([node()], [running(1, 4), replace(running(2, 4, first=4)), waiting(3, 4), waiting(4, 8)], NOW)
    state = SchedulerState(lengths={"1": certain(100.0), "2": certain(10_000.0), "3": certain(20.0), "4": certain(1.0)})
    told = forecast_starts(
        seen, state, SLURM, Knowledge(), np.random.default_rng(1), draws=5, budget=4.5, clock=Ticking(1.0)
    )
    assert (told.draws, medians(told)["4"]) == (1, (inf, inf))
    assert told.until < NOW + 10_000.0
    assert medians(told)["3"] == (105.0, 125.0)


def test_rounds_go_on_with_the_settings_of_the_site() -> None:
    """Held by the hook; the early round a few seconds after job 1 has left starts the first one, whose end the next."""
    jobs = [FULL, *(waiting(number, 8, hold=Hold.USER, hint="held=hook", time_limit=3600) for number in (2, 3))]
    told = forecast(snapshot([node()], jobs, NOW), {"1": 600.0, "2": 100.0, "3": 100.0}, SYNERGY)
    (first, _), (second, _) = medians(told)["2"], medians(told)["3"]
    assert 605.0 <= first <= 612.0
    assert first + 105.0 <= second <= first + 112.0


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_where_rounds_start_nothing_slurm_does(mode: Mode) -> None:
    jobs = [FULL, waiting(2, 8, hold=Hold.USER, hint="held=hook")]
    settings = replace(SYNERGY, rounds=replace(SYNERGY.rounds, mode=mode))
    assert medians(forecast(snapshot([node()], jobs, NOW), {"1": 600.0, "2": 50.0}, settings))["2"] == (605.0, 655.0)


@pytest.mark.parametrize(("mode", "first"), [(Mode.OBSERVE, "3"), (Mode.PRIORITIZE, "2")])
def test_mode_prioritize_orders_and_slurm_starts(mode: Mode, first: str) -> None:
    """Slurm's priority prefers job 3, the policy job 2, which was submitted first."""
    jobs = [FULL, *(waiting(number, 8, time_limit=3600) for number in (2, 3))]
    jobs = [replace(one, priority=5000 if one.id == "3" else one.priority) for one in jobs]
    settings = replace(SYNERGY, rounds=replace(SYNERGY.rounds, mode=mode))
    told = medians(forecast(snapshot([node()], jobs, NOW), {"1": 600.0, "2": 100.0, "3": 100.0}, settings))
    assert min(told, key=lambda job: told[job]) == first
    assert sorted(start for start, _ in told.values()) == [605.0, 710.0]


def test_a_promise_is_kept() -> None:
    """Job 2 was promised all GPUs, which come free when job 1 ends: job 3 came before it and would take four now."""
    held: Any = {"hold": Hold.USER, "hint": "held=hook", "time_limit": 7200}
    ahead = replace(waiting(3, 4, **held), submit_time=NOW - 500.0)
    jobs = [replace(running(1, 4), time_limit=1000), waiting(2, 8, **held), ahead]
    lengths = {"1": 900.0, "2": 100.0, "3": 3000.0}
    free = medians(forecast(snapshot([node()], jobs, NOW), lengths, SYNERGY))
    promised = SchedulerState(policy_state={"promise": {"job": "2"}})
    kept = medians(forecast(snapshot([node()], jobs, NOW), lengths, SYNERGY, state=promised))
    assert free["3"][0] == 0.0
    assert 900.0 < kept["2"][0] < 915.0
    assert 3000.0 < free["2"][0] < 3020.0


def test_what_a_policy_knows_of_lengths_shrinks_as_jobs_run_and_nothing_is_learnt() -> None:
    settings = replace(
        SYNERGY,
        policy=PolicySettings(system="synergy", order="srtf"),
        learning=replace(SYNERGY.learning, lengths=True),
    )
    held: Any = {"hold": Hold.USER, "hint": "held=hook", "time_limit": 72_000}
    jobs = [FULL, waiting(2, 8, **held), waiting(3, 8, **held)]
    state = SchedulerState(policy_state={"own": 1})
    told = forecast(snapshot([node()], jobs, NOW), {"1": 600.0, "2": 5000.0, "3": 50.0}, settings, state=state)
    assert [one.job for one in told.jobs] == ["3", "2"], "the shorter one first"
    assert state.policy_state == {"own": 1}


def test_requests_that_rounds_changed_count_as_they_were() -> None:
    """Slurm shows what a round made of the request; it is planned from the original one again."""
    asked = waiting(2, 8, hold=Hold.USER, hint="held=hook", time_limit=3600)
    changed = replace(asked, current_request=replace(asked.current_request, pinned=frozenset({"n1"})))
    state = SchedulerState(original_requests={"2": asked.original_request}, held=frozenset({"2"}))
    seen = snapshot(TWO_NODES, [FULL, changed], NOW)
    assert medians(forecast(seen, {"1": 6000.0, "2": 50.0}, SYNERGY, state=state))["2"] == (0.0, 50.0)


def test_a_job_that_rounds_requeue_waits_again_once_it_has_left() -> None:
    """It comes before the other one, and may begin again 120 s after it has left."""
    leaving = replace(
        FULL, state=JobState.COMPLETING, state_text="COMPLETING", time_limit=3600, submit_time=NOW - 900.0
    )
    other = waiting(2, 8, hold=Hold.USER, hint="held=hook", time_limit=3600)
    lengths = {"1": 500.0, "2": 50.0}
    requeued = SchedulerState(held=frozenset({"1"}))
    first, _ = medians(forecast(snapshot([node()], [leaving, other], NOW), lengths, SYNERGY, state=requeued))["2"]
    gone, _ = medians(forecast(snapshot([node()], [leaving, other], NOW), lengths, SYNERGY))["2"]
    assert gone <= 12.0
    assert 500.0 < first < 1000.0


def test_without_any_history_the_hint_and_the_limit_tell_the_length() -> None:
    first = replace(running(1, 8, hint="duration=1000"), time_limit=1200)
    (told,) = forecast(snapshot([node()], [first, waiting(2, 8)], NOW), {}, draws=300).jobs
    assert after(told.start.low) < after(told.start.high) <= 1105.0


def test_what_jobs_use_that_could_not_be_read_stays_used() -> None:
    aside = SetAsideJob("7", "its record cannot be read")
    full = node(busy=range(8), used_cpus=8, used_memory=1000)
    told = forecast(snapshot([full], [waiting(2, 8)], NOW, set_aside=(aside,)), {"2": 50.0})
    assert medians(told) == {"2": (inf, inf)}
    assert told.remarks == ("nodes that keep what jobs use that could not be read: 1",)
    assert medians(forecast(snapshot([full], [waiting(2, 8)], NOW), {"2": 50.0})) == {"2": (0.0, 50.0)}


def test_a_long_chain_of_jobs_behind_a_held_one_is_left_out_at_once() -> None:
    """Whoever submits them must not make the forecast of others late."""
    chain = [waiting(number, 1, dependency=f"afterok:{number - 1}(unfulfilled)") for number in range(3, 3000)]
    jobs = [waiting(2, 1, hold=Hold.USER), *chain, waiting(4000, 1)]
    began = perf_counter()
    told = forecast(snapshot([node()], jobs, NOW), {"4000": 10.0})
    assert medians(told) == {"4000": (0.0, 10.0)}
    assert len(told.left_out) == 2998
    assert perf_counter() - began < 20.0


def test_who_waits_for_an_array_that_is_left_out_is_left_out_too() -> None:
    tasks = [waiting(f"2_{task}", 1, array_job="2", hold=Hold.USER) for task in range(2)]
    after = [waiting(3, 1, dependency="afterany:2_*(unfulfilled)"), waiting(4, 1, dependency="after:2_1(unfulfilled)")]
    told = forecast(snapshot([node()], [*tasks, *after], NOW), {})
    assert told.left_out.keys() == {"2_0", "2_1", "3", "4"}
    assert told.jobs == ()


def test_rounds_begin_with_the_state_that_earlier_ones_left() -> None:
    measured = MeasuredRate("v100", 8, 1, 3.0, 1.0, 3.0, 1.0, 5.0, NOW)
    seen = snapshot([node()], [FULL, waiting(2, 8)], NOW)
    state = SchedulerState(
        original_requests={"2": Request(gpus=8, cpus=16)},
        held=frozenset({"2"}),
        service={"1": 9000.0, "2": 700.0},
        service_by_type={"1": {"v100": 9000.0}, "2": {"k80": 700.0}},
        moves={"2": (NOW - 50.0, NOW - 40.0)},
        nices={"2": 3},
        policy_state={"promise": {"job": "2"}},
        submitted={"2": NOW - 900.0},
        usual=((Request(gpus=1), 7),),
        measured={"1": (measured, replace(measured, cpus=2.0))},
        steps={"1": 40},
        restart_seconds={"1": 33.0},
        family_rates={"alice m": (measured,)},
        let_go=frozenset({"1"}),
    )
    store = InMemoryStateStore.of_state(state, seen)
    held = replace(seen.jobs_by_id["2"], hold=Hold.ADMIN)
    polled = snapshot([node()], [FULL, held], NOW)
    store.record_poll(polled)
    assert store.load_state(polled) == state


def test_suspended_jobs_and_copies_of_forked_ones_are_told() -> None:
    suspended = replace(FULL, state=JobState.SUSPENDED, state_text="SUSPENDED")
    copies = [waiting(f"2_{task}", 1, array_job="2", hint="fork=900") for task in range(2)]
    assert forecast(snapshot(TWO_NODES, [suspended, *copies], NOW), {}).remarks == (
        "suspended jobs that stay so, with their GPUs: 1",
        "copies of forked jobs that run as jobs of their own: 2",
    )


@pytest.mark.parametrize(
    ("other", "low", "median"),
    [pytest.param("alice", -0.68, 0.446, id="of one owner"), pytest.param("bob", -0.478, 0.545, id="of two owners")],
)
def test_jobs_of_one_owner_run_long_together(other: str, low: float, median: float) -> None:
    """Job 3 waits for the longer of two, which is short only if both are: expected are the normal scores where both are
    below with probability 0.1 and 0.5, correlated by 0.35 or not at all."""
    jobs = [running(1, 8, user="alice"), running(2, 8, where="n2", user=other), waiting(3, 16)]
    lengths = {"1": spread(1000.0, 3.0), "2": spread(1000.0, 3.0), "3": certain(50.0)}
    (told,) = forecast(snapshot(TWO_NODES, jobs, NOW), lengths, draws=1500).jobs
    score = 1.2816 / log(3.0)
    assert log((after(told.start.low) - 5.0) / 1000.0) * score == pytest.approx(low, abs=0.09)
    assert log((after(told.start.median) - 5.0) / 1000.0) * score == pytest.approx(median, abs=0.09)
