"""`unified`: what jobs bid, whose bids count more, what GPUs cost and what those who wait are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import Decision, Job, Reason, ReasonCode, Request, SchedulerState
from slurmsched.policies import policy
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.hadar.primal_dual import HadarScheduler, PricedRound
from slurmsched.policies.hadar.problem import GangThroughput, HadarJob
from slurmsched.policies.owners import evened
from slurmsched.policies.stages import Policy
from slurmsched.policies.state import decode_state
from slurmsched.policies.unified import MarketState, bid, largest_next, last_to_end, marginal_gains, urged
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.round import run_round
from slurmsched.settings import ManageSettings, Mode, PolicySettings, RoundSettings, Settings
from slurmsched.settings.definition import TicketSettings
from tests.builders import GIB, job, node, profile, share, situation, snapshot

HOUR = 3600.0
SPEEDS = {
    "steep": {"v100": 1.0, "k80": 0.1},
    "flat": {"v100": 1.0, "k80": 0.9},
    "even": {"v100": 1.0, "k80": 1.0},
}
KNOWN = Knowledge(
    {
        name: Profile(name, "", {}, "by hand", {kind: Scaling((1,), (rate,)) for kind, rate in rates.items()})
        for name, rates in SPEEDS.items()
    },
    reference="v100",
)


def hours(number: int, of: float, user: str = "alice", model: str = "steep", gpus: int = 1, **other: object) -> Job:
    """A job that says how long it takes, and has just come."""
    hint, since = f"model={model},duration={of:g}h,ckpt=usr1", 10_000 + number
    return job(number, gpus, hint=hint, user=user, submit_time=since, **other)


def decided(nodes: list[object], jobs: list[Job], **other: object) -> Decision:
    return policy("unified").decide(situation(nodes, jobs, KNOWN, **other))


def state_of(decision: Decision) -> MarketState:
    return decode_state(MarketState, decision.state)


@pytest.mark.parametrize(("jobs", "states"), [pytest.param(2, 4, id="few jobs"), pytest.param(3, 1, id="many")])
def test_of_many_jobs_the_market_follows_a_single_state(
    monkeypatch: pytest.MonkeyPatch, jobs: int, states: int
) -> None:
    monkeypatch.setattr("slurmsched.policies.unified._MANY_JOBS", 3)
    widths, make = list[int](), PricedRound.__init__

    def noted(self: PricedRound, scheduler: HadarScheduler, *others: Any) -> None:
        widths.append(scheduler.beam_width)
        make(self, scheduler, *others)

    monkeypatch.setattr(PricedRound, "__init__", noted)
    targets = decided([node(gpu_type="v100")], [hours(number, 1) for number in range(jobs)]).targets
    assert (set(widths), len(targets)) == ({states}, jobs)


@pytest.mark.parametrize(
    ("size", "ahead", "behind", "more"),
    [
        pytest.param(2 * HOUR, 2 * HOUR, 1.0, False, id="twice as long on one GPU"),
        pytest.param(HOUR, 2 * HOUR, 1.0, False, id="half as fast"),
        pytest.param(HOUR, HOUR, 0.9, False, id="a user who held more than was due"),
        pytest.param(HOUR, HOUR, 1.1, True, id="a user who held less than was due"),
        pytest.param(HOUR, inf, 1.0, False, id="it would never end"),
    ],
)
def test_what_raises_a_bid_above_that_of_one_gpu_hour(size: float, ahead: float, behind: float, more: bool) -> None:
    assert (bid(size, ahead, behind) > bid(HOUR, HOUR)) is more


@given(st.floats(60, 1e7), st.floats(0.1, 10), st.floats(0.05, 1))
def test_a_job_of_the_largest_size_that_is_next_bids_just_the_price(size: float, behind: float, rate: float) -> None:
    price = bid(size, size / rate, behind)
    assert largest_next(price, rate, behind) == pytest.approx(size)


@pytest.mark.parametrize(
    ("due", "held", "factor"),
    [
        pytest.param(10 * HOUR, 10 * HOUR, 1.0, id="had what was due"),
        pytest.param(10 * HOUR, 5 * HOUR, 2.0, id="had half"),
        pytest.param(10 * HOUR, 20 * HOUR, 0.5, id="had twice as much"),
        pytest.param(10 * HOUR, 0.0, 10.0, id="had nothing"),
        pytest.param(0.0, 0.0, 1.0, id="has just come"),
        pytest.param(60.0, 0.0, 1.0, id="a minute is not behind"),
        pytest.param(10 * HOUR, 9.8 * HOUR, 1.0, id="had nearly what was due"),
        pytest.param(10 * HOUR, 10.2 * HOUR, 1.0, id="had hardly more"),
        pytest.param(10 * HOUR, 8 * HOUR, 1.25, id="had four fifths"),
        pytest.param(HOUR, 1000 * HOUR, 0.1, id="had a thousand times as much"),
    ],
)
def test_bids_count_by_what_their_user_is_behind(due: float, held: float, factor: float) -> None:
    users = np.array([due]), np.array([held])
    assert evened(*users, HOUR, 1.0).tolist() == pytest.approx([factor])
    assert evened(*users, HOUR, 2.0).tolist() == pytest.approx([min(max(factor**2, 0.1), 10.0)])
    assert evened(*users, HOUR, 0.0).tolist() == [1.0]


@pytest.mark.parametrize(
    ("waited", "factor"),
    [(0.0, 1.0), (HOUR, 1.0), (2 * HOUR, 2.0), (4.5 * HOUR, 4.5), (100 * HOUR, 10.0)],
)
def test_bids_count_by_how_long_their_job_waits_for_its_first_start(waited: float, factor: float) -> None:
    assert urged(waited) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("waits", "runs"),
    [
        pytest.param({"submit_time": -HOUR / 2}, "1", id="for half an hour"),
        pytest.param({"submit_time": -2 * HOUR}, "2", id="for two hours"),
        pytest.param({"submit_time": -2 * HOUR, "restarts": 1}, "1", id="and ran before"),
        pytest.param({"submit_time": -2 * HOUR, "eligible_time": -HOUR / 2}, "1", id="and could not start before"),
        pytest.param({"submit_time": -2 * HOUR, "of": 200.0}, "1", id="and is far too long for that"),
    ],
)
def test_who_waits_long_for_a_first_start_has_one_before_a_job_that_runs(waits: dict[str, float], runs: str) -> None:
    running = hours(1, 20, on=[share()], run_time=HOUR)
    waiting = replace(hours(2, waits.pop("of", 20.0)), **waits)
    assert list(decided([node(gpus=1)], [running, waiting], time=0.0).targets) == [runs]


def test_of_two_jobs_the_one_with_less_to_go_starts_though_it_came_later() -> None:
    done = decided([node(gpus=1)], [hours(1, 8), hours(2, 1)])
    assert list(done.targets) == ["2"]


@pytest.mark.parametrize(("ran", "runs"), [pytest.param(121, "1", id="a minute"), pytest.param(160, "2", id="long")])
@pytest.mark.parametrize("of", [policy("unified"), policy("synergy", "srtf")], ids=["unified", "srtf"])
def test_a_job_that_takes_longer_than_was_said_is_preempted_only_after_a_while(of: Policy, ran: int, runs: str) -> None:
    seconds = 60.0 * ran
    running = hours(1, 2, on=[share()], run_time=seconds, time_limit=20 * HOUR)
    seen = situation([node(gpus=1)], [running, hours(2, 1)], KNOWN, service={"1": seconds})
    assert list(of.decide(seen).targets) == [runs]


def queued(hours_left: float, age: float = 0.0, gpus: int = 1, done: float = 0.0) -> HadarJob:
    """A job in Hadar's queue with so many hours to go on any number of GPUs of the only type."""
    throughput = GangThroughput(gpus, (1.0,), (1.0,))
    return HadarJob("a", throughput, hours_left * HOUR, (hours_left + done) * HOUR, age * HOUR)


def counts_as_last(queue: list[HadarJob], gpus: int) -> list[float]:
    sizes = [one.workers * one.remaining for one in queue]
    return last_to_end(queue, sizes, np.ones(len(queue)), gpus, lambda _: True).tolist()


@pytest.mark.parametrize(
    ("others", "gpus", "counts"),
    [
        pytest.param([queued(1)] * 190, 10, 1.0, id="half as long as all takes together"),
        pytest.param([queued(1)] * 90, 10, 1.9, id="as long as all takes, and nine GPUs would be idle"),
        pytest.param([queued(1)] * 90, 1, 1.0, id="on one GPU the last one leaves none idle"),
        pytest.param([], 1000, 1 + 0.999 * 9, id="alone on a large cluster"),
        pytest.param([queued(9, at / 2) for at in range(18)], 10, 1.0, id="more comes all the time"),
        pytest.param([queued(9, 2)] * 18, 10, 1 + 0.9 * (20 / 18.2 - 1), id="as much came at once"),
        pytest.param([queued(0.5, at / 3, done=8.5) for at in range(30)], 10, 1.0, id="much that came is nearly done"),
        pytest.param([queued(0.5, 11, done=8.5)] * 30, 10, 1 + 0.9 * 7, id="it came longer ago than it takes"),
    ],
)
def test_a_job_of_ten_hours_counts_more_where_it_would_end_last_beside_idle_gpus(
    others: list[HadarJob], gpus: int, counts: float
) -> None:
    assert counts_as_last([queued(10), *others], gpus)[0] == pytest.approx(counts)


@given(
    st.lists(
        st.builds(queued, st.floats(0.1, 200), st.floats(0, 60), st.integers(1, 16), st.floats(0, 50)), max_size=12
    ),
    st.integers(1, 64),
)
def test_what_would_end_last_counts_as_it_is_written(queue: list[HadarJob], gpus: int) -> None:
    """`last_to_end`, job by job."""
    expected = []
    for one in queue:
        alone = one.remaining
        since = [other for other in queue if other.age <= alone]
        came = [other.workers * other.total for other in since]
        batches = [
            sum(work for work, of in zip(came, since, strict=True) if other.age - HOUR <= of.age <= other.age)
            for other in since
        ]
        there = sum(other.workers * other.remaining for other in queue)
        seconds = (there + sum(came) - max(batches, default=0.0)) / gpus
        longer = min(max(alone / (seconds / 2), 1.0), 10.0)
        expected.append(1 + max(1 - one.workers / gpus, 0.0) * (longer - 1))
    assert counts_as_last(queue, gpus) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shorter", "longest", "starts"),
    [
        pytest.param(12, hours(99, 12), True, id="all is done after twelve hours if it starts now"),
        pytest.param(40, hours(99, 12), False, id="it has the time to wait"),
        pytest.param(12, job(99, time_limit=12 * HOUR), False, id="a time limit does not tell how long it takes"),
    ],
)
def test_of_jobs_that_came_at_once_the_longest_starts_where_it_would_end_last(
    shorter: int, longest: Job, starts: bool
) -> None:
    done = decided([node(gpus=8)], [*(hours(number, 3) for number in range(shorter)), longest])
    assert ("99" in done.targets) is starts
    told = {ranked.job: ranked.key for ranked in done.order}
    assert ("as it would end last" in told["99"]) is (starts or shorter > 12)
    assert "as it would end last" not in told["0"]


@pytest.mark.parametrize(
    ("ran", "limits", "runs"),
    [
        pytest.param(24.0, (168, 168), "2", id="the same limit: who ran for a day likely runs for longer"),
        pytest.param(0.9, (168, 168), "1", id="who has just begun stays"),
        pytest.param(24.0, (None, None), "2", id="no limits"),
        pytest.param(2.0, (168, 168), "2", id="or for two hours"),
        pytest.param(2.0, (168, 900), "1", id="but the other one has a limit that is far longer"),
        pytest.param(24.0, (168, 2), "2", id="a far shorter one more"),
    ],
)
def test_of_jobs_of_which_nothing_is_told_those_that_have_run_for_long_give_way(
    ran: float, limits: tuple[float | None, float | None], runs: str
) -> None:
    first, second = (None if limit is None else HOUR * limit for limit in limits)
    running = job(1, on=[share()], hint="ckpt=usr1", run_time=HOUR * ran, time_limit=first)
    waiting = job(2, time_limit=second, submit_time=9_999.0)
    seen = situation([node(gpus=1)], [running, waiting], KNOWN, service={"1": HOUR * ran})
    assert list(policy("unified").decide(seen).targets) == [runs]


def test_the_fast_type_goes_to_whom_it_helps() -> None:
    done = decided([node("v1", 1), node("k1", 1, "k80")], [hours(1, 2, model="flat"), hours(2, 2, model="steep")])
    assert {name: target.allocations[0].gpu_type for name, target in done.targets.items()} == {"1": "k80", "2": "v100"}


def held_for(first: Job, seconds: float, nodes: list[object], jobs: list[Job], **other: object) -> Decision:
    """The decision after `first` alone held its GPUs for so long while all jobs were there."""
    before = decided(nodes, [first, *jobs], time=0.0, **other)
    steps, now = before, 0.0
    while now < seconds:
        now += 300.0
        seen = situation(nodes, [first, *jobs], KNOWN, time=now, state=steps.state, **other)
        steps = policy("unified").decide(seen)
    return steps


def test_a_user_who_held_everything_for_hours_gives_way_to_one_with_longer_jobs() -> None:
    running = hours(1, 30, on=[share(gpus=4)], run_time=4 * HOUR, gpus=4)
    later = hours(2, 40, user="bob", gpus=4)
    at_first = decided([node(gpus=4)], [running, later])
    after = held_for(running, 4 * HOUR, [node(gpus=4)], [later])

    assert list(at_first.targets) == ["1"]
    assert list(after.targets) == ["2"]
    accounts = state_of(after).accounts
    assert accounts["alice"].received == pytest.approx(4 * 4 * HOUR, rel=0.1)
    assert accounts["bob"].received == 0.0
    assert accounts["alice"].due == pytest.approx(accounts["bob"].due)


@pytest.mark.parametrize(
    ("alice", "bob", "held", "of_bob"),
    [
        pytest.param(50.0, 50.0, 0.0, 2, id="as long"),
        pytest.param(50.0, 50.0, HOUR, 2, id="as long, after an hour"),
        pytest.param(40.0, 50.0, 0.0, 2, id="a little longer"),
        pytest.param(40.0, 50.0, HOUR, 2, id="a little longer, after an hour"),
        pytest.param(5.0, 50.0, 0.0, 1, id="ten times as long"),
        pytest.param(5.0, 50.0, HOUR, 2, id="ten times as long, after an hour"),
        pytest.param(50.0, 5.0, 0.0, 3, id="a tenth as long"),
        pytest.param(50.0, 5.0, HOUR, 3, id="a tenth as long, after an hour"),
    ],
)
def test_first_gpus_of_a_user_count_more_than_last_ones_so_that_not_all_change_hands(
    alice: float, bob: float, held: float, of_bob: int
) -> None:
    running = [hours(n, alice, on=[share(gpus=[n])], run_time=2 * HOUR) for n in range(4)]
    waiting = [hours(n, bob, user="bob") for n in range(4, 8)]
    done = held_for(running[0], held, [node(gpus=4)], [*running[1:], *waiting])
    assert sum(int(name) >= 4 for name in done.targets) == of_bob


@pytest.mark.parametrize(
    ("tickets", "who"),
    [
        pytest.param(("alice=9", "bob=1"), "1", id="due nearly all"),
        pytest.param(("alice=1", "bob=9"), "2", id="due a tenth"),
    ],
)
def test_tickets_say_whether_who_held_all_for_half_an_hour_keeps_it(tickets: tuple[str, ...], who: str) -> None:
    running = hours(1, 30, on=[share(gpus=4)], run_time=4 * HOUR, gpus=4)
    later = hours(2, 40, user="bob", gpus=4)
    after = held_for(running, HOUR / 2, [node(gpus=4)], [later], tickets=TicketSettings(users=tickets))
    assert list(after.targets) == [who]


def test_gpus_of_jobs_that_are_not_managed_are_charged_to_their_user() -> None:
    unmanaged = job(9, 6, user="bob", on=[share(gpus=6)], run_time=4 * HOUR)
    nodes, waiting = [node(gpus=8)], [hours(1, 2, user="bob", gpus=8), hours(2, 2, gpus=8)]
    state: Mapping[str, object] = {}
    for at in range(0, 4 * 3600, 300):
        seen = situation(nodes, [unmanaged, *waiting], KNOWN, time=float(at), managed=waiting, state=state)
        state = policy("unified").decide(seen).state
    accounts = decode_state(MarketState, state).accounts
    assert accounts["bob"].received > accounts["bob"].due > 0
    assert accounts["alice"].received == 0.0 < accounts["alice"].due


def test_fast_gpus_count_as_more_than_slow_ones() -> None:
    nodes = [node("v1", 1), node("k1", 1, "k80")]
    fast = hours(1, 90, user="alice", on=[share("v1")], run_time=HOUR)
    slow = hours(2, 90, user="bob", on=[share("k1", gpu_type="k80")], run_time=HOUR)
    after = held_for(fast, HOUR, nodes, [slow])
    accounts = state_of(after).accounts
    assert accounts["alice"].received > 2 * accounts["bob"].received
    assert sum(account.received for account in accounts.values()) == pytest.approx(2 * HOUR, rel=0.1)


def test_who_is_outbid_is_told_the_price_and_what_would_do() -> None:
    running = hours(1, 1, on=[share()], run_time=60.0)
    done = decided([node(gpus=1)], [running, hours(2, 20), hours(3, 32)])

    why = done.waiting["3"]

    assert why.code is ReasonCode.OUTBID
    assert why.sentence == (
        "waits: it bids 0.074 for a v100 and these cost 1, since shorter jobs and users behind their share come first;"
        " it has 32.0 GPU-hours to go, with 1.0 GPU-hours it would be next"
    )


def test_gpus_that_nobody_waits_for_cost_nothing_and_others_what_their_last_job_bids() -> None:
    nodes = [node("v1", 1), node("k1", 1, "k80")]
    fast, slow = hours(1, 1, on=[share("v1")]), hours(2, 1, model="flat", on=[share("k1", gpu_type="k80")])
    nobody = state_of(decided(nodes, [fast, slow])).prices
    wanted = state_of(decided(nodes, [fast, slow, hours(3, 50)])).prices
    assert nobody == {"CPU": 0.0, "GiB": 0.0}
    assert wanted == {"CPU": 0.0, "GiB": 0.0, "v100": pytest.approx(1.0), "k80": pytest.approx(0.9)}


def test_one_more_cpu_is_worth_what_it_adds_to_the_speed() -> None:
    pools = FreeResources.of_snapshot(snapshot([node()])).pools
    known = Knowledge({"m": profile("m", {1: 0.5, 2: 1.0, 8: 1.0})})
    asked = job(1, gpus=2, hint="model=m")

    def gains(cpus: int) -> Mapping[str, float]:
        return marginal_gains(asked, Allocation((0,), (2,), (cpus,), (64 * GIB,)), pools, known)

    assert gains(2) == {"CPU": pytest.approx(1.0), "GiB": 0.0}
    assert gains(4) == {"CPU": 0.0, "GiB": 0.0}
    assert marginal_gains(job(2), Allocation((0,), (1,), (1,), (GIB,)), pools, known) == {}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"users": 7, "time": "x", "prices": [1]}, id="no state at all"),
        pytest.param({"users": {"alice": {"due": "nan", "had": -1e300}}, "time": 1e308}, id="hostile numbers"),
        pytest.param({"came": ["1"], "time": 9_900.0}, id="of another policy"),
    ],
)
def test_a_state_that_says_nothing_stops_no_round(state: Mapping[str, object]) -> None:
    assert list(decided([node(gpus=1)], [hours(1, 8), hours(2, 1)], state=state).targets) == ["2"]


@pytest.mark.parametrize(
    ("others", "promised", "runs"),
    [
        pytest.param((), True, ["1"], id="most of its GPUs are idle: who is in the way gives way"),
        pytest.param((), False, ["2"], id="not promised, it is outbid by the job that runs"),
        pytest.param((3, 4, 5), True, ["2", "3", "4", "5"], id="none of its GPUs is idle yet"),
    ],
)
def test_a_promised_gang_bids_for_what_others_still_have(
    others: tuple[int, ...], promised: bool, runs: list[str]
) -> None:
    gang = hours(1, 40, gpus=4)
    there = [hours(number, 10, on=[share(gpus=[device])], run_time=HOUR) for device, number in enumerate((2, *others))]
    state = {"promise": {"job": "1", "saved_moves": 0}} if promised else {}
    assert sorted(decided([node(gpus=4)], [gang, *there], state=state).targets) == runs


def test_a_promised_gang_displaces_no_other_gang_that_bids_as_much_while_the_same_gpus_stay_idle() -> None:
    """Of three equal gangs of one user two run, and a small job that stays keeps the third from the last node."""
    small = hours(1, 90, user="bob", on=[share("n1", gpus=[0])], run_time=HOUR)
    gangs = [hours(2, 40, gpus=8, on=[share("n2", 8)], run_time=HOUR), hours(3, 41, gpus=8, on=[share("n3", 8)])]
    waiting = hours(4, 42, gpus=8)
    seen = situation(
        [node("n1", busy=[0]), *(node(name, busy=range(8)) for name in ("n2", "n3"))], [small, *gangs, waiting], KNOWN,
        state={"promise": {"job": "4", "saved_moves": 0}},
    )  # fmt: skip
    stays = replace(seen, non_preemptible={"1": Reason(ReasonCode.NO_CHECKPOINT)}, unmovable=frozenset({"1"}))
    assert not policy("unified").decide(stays).victims


def test_who_could_run_elsewhere_gives_way_to_a_promised_gang_also_where_the_cpus_there_are_taken() -> None:
    """An idle GPU of the other node has no CPUs: no job can move there, and the market, which sees GPUs, kept the
    gang's whole node but for one GPU idle for hours."""
    small = hours(1, 2, on=[share("n1", gpus=[0], cpus=3)], run_time=HOUR)
    beside = [hours(2, 90, gpus=7, on=[share("n2", gpus=range(7), cpus=24)], run_time=HOUR)]
    gang = hours(3, 2, gpus=8)
    nodes = [node("n1", busy=[0]), node("n2", busy=range(7))]
    state = {"promise": {"job": "3", "saved_moves": 0}}
    seen = replace(
        situation(nodes, [small, *beside, gang], KNOWN, state=state),
        non_preemptible={"2": Reason(ReasonCode.NO_CHECKPOINT)}, unmovable=frozenset({"2"}),
    )  # fmt: skip
    done = policy("unified").decide(seen)
    assert done.victims == {"1": "3"}
    assert "3" in done.targets


@pytest.mark.parametrize(
    ("hint", "moves", "runs"),
    [
        pytest.param("ckpt=usr1", 8, {"1", "2", "8"}, id="one of two jobs moves to the other node"),
        pytest.param("", 8, {"1", "2"}, id="neither can move"),
        pytest.param("ckpt=usr1", 0, {"1", "2"}, id="no move is left"),
    ],
)
def test_jobs_on_two_nodes_make_room_on_one_for_the_gang_that_is_promised_a_start(
    hint: str, moves: int, runs: set[str]
) -> None:
    held = [job(n, 4, hint=hint, on=[share(f"n{n}", 4, cpus=12)], run_time=2 * HOUR, submit_time=n) for n in (1, 2)]
    gangs = [hours(number, 1, gpus=8, user="bob") for number in (8, 9)]
    seen = situation([node("n1"), node("n2")], [*held, *gangs], KNOWN, max_moves=moves)
    if not hint:
        why = Reason(ReasonCode.NO_CHECKPOINT)
        seen = replace(seen, non_preemptible={"1": why, "2": why}, unmovable=frozenset({"1", "2"}))
    done = policy("unified").decide(seen)
    assert set(done.targets) == runs
    assert all(target.resources.cpus == 3 * target.resources.gpus for target in done.targets.values())


def test_explain_says_for_whom_room_was_made_and_by_whom() -> None:
    held = [
        job(n, 4, hint="ckpt=usr1", on=[share(f"n{n}", 4, cpus=12)], run_time=2 * HOUR, start_time=0.0) for n in (1, 2)
    ]
    settings = Settings(
        manage=ManageSettings(partitions=("gpu",)),
        rounds=RoundSettings(mode=Mode.ENFORCE),
        policy=PolicySettings(system="unified"),
    )
    seen = snapshot([node("n1"), node("n2")], [*held, hours(8, 1, gpus=8, user="bob")], 2 * HOUR)
    result = run_round(seen, SchedulerState(), settings, KNOWN, Identity("synsched", Privilege.OPERATOR))
    (moved,) = result.requeues
    assert explain(result, "8").headline.startswith(f"job 8 starts after job {moved} moved to other nodes")
    assert explain(result, moved).headline.endswith("so that job 8 can start")


def unmeasured(number: int, since: float = 10 * HOUR, of: float = 100.0, **other: object) -> Job:
    """A job of a model that nobody knows, which has run on the slow GPU for so long."""
    hint = f"model=mine,duration={60 * of:.0f}m,ckpt=usr1"
    return job(number, hint=hint, on=[share("k1", gpu_type="k80")], run_time=since, **other)


@pytest.mark.parametrize(
    ("running", "others", "runs_on"),
    [
        pytest.param(unmeasured(1), (), "v100", id="it is idle"),
        pytest.param(unmeasured(1, since=600.0), (), "k80", id="it has hardly begun, and may end soon"),
        pytest.param(unmeasured(1, of=10.02), (), "k80", id="it is nearly done"),
        pytest.param(
            unmeasured(1, request=Request(gpus=1, cpus=1, gpu_type="k80")), (), "k80", id="its owner wants the slow one"
        ),
        pytest.param(unmeasured(1), (hours(2, 1),), "k80", id="another has a use for it"),
    ],
)
def test_a_job_of_which_no_rate_is_known_is_tried_on_a_much_faster_gpu(
    running: Job, others: tuple[Job, ...], runs_on: str
) -> None:
    seen = situation([node("k1", 1, "k80"), node("v1", 1)], [running, *others], KNOWN, service={"1": running.run_time})
    assert policy("unified").decide(seen).targets["1"].allocations[0].gpu_type == runs_on


@pytest.mark.parametrize(
    ("model", "has"),
    [
        pytest.param("mine", "p100", id="which is hardly faster by its data sheet"),
        pytest.param("even", "k80", id="as its rates are known"),
    ],
)
def test_a_job_is_not_tried_on_an_idle_gpu(model: str, has: str) -> None:
    hint, held = f"model={model},duration=100h,ckpt=usr1", [share("n1", gpu_type=has)]
    running = job(1, hint=hint, on=held, run_time=10 * HOUR)
    seen = situation([node("n1", 1, has), node("v1", 1)], [running], KNOWN, service={"1": 10 * HOUR})
    assert policy("unified").decide(seen).targets["1"].allocations[0].gpu_type == has


THREE = Knowledge(
    {
        "steep": Profile(
            "steep", "", {}, "by hand",
            {kind: Scaling((1,), (rate,)) for kind, rate in {"v100": 1.0, "p100": 0.7, "k80": 0.1}.items()},
        )
    },
    reference="v100",
)  # fmt: skip
BESIDE_NO_CPUS = job(1, 4, cpus=24, hint="model=steep,duration=9h", on=[share("n1", 4, cpus=24)])
"""It leaves four V100s idle that have no CPUs."""
WAITS = job(3, request=Request(gpus=8, cpus=8, gpu_type="v100"), hint="model=steep,duration=1h", submit_time=3)


@pytest.mark.parametrize(
    ("others", "cost", "goes_to"),
    [
        pytest.param((), 60.0, "n2", id="nobody waits: to the next best type that is idle"),
        pytest.param((WAITS,), 60.0, "n2", id="a job waits, for GPUs of another type"),
        pytest.param((), 30_000.0, "n3", id="it would save ten times what the restart costs, and not twelve"),
        pytest.param((job(4, 8, submit_time=4, on=[share("n2", 8, gpu_type="p100", cpus=8)]),), 60.0, "n3", id="taken"),
    ],
)
def test_a_job_whose_due_type_has_no_cpus_goes_to_the_next_best_idle_type(
    others: tuple[Job, ...], cost: float, goes_to: str
) -> None:
    slow = job(
        2, 4, hint="model=steep,duration=10h,ckpt=usr1", submit_time=2, on=[share("n3", 4, gpu_type="k80", cpus=4)]
    )
    nodes = [node("n1"), node("n2", gpu_type="p100"), node("n3", gpu_type="k80")]
    stays = {"1": Reason(ReasonCode.ASKED_TO_STAY)}
    asked = situation(nodes, [BESIDE_NO_CPUS, slow, *others], THREE, non_preemptible=stays, restart_costs={"2": cost})
    decision = policy("unified").decide(asked)
    assert decision.targets["2"].nodes == (goes_to,)
    assert set(decision.victims) == ({"2"} if goes_to == "n2" else set())


TAKEN = job(4, 8, submit_time=4, on=[share("n2", 8, gpu_type="p100", cpus=8)])
V100S = Request(gpus=4, cpus=4, gpu_type="v100")


@pytest.mark.parametrize(
    ("hint", "other", "guards", "starts_on"),
    [
        pytest.param("model=steep", {}, {}, "n2", id="where it is nearly as fast"),
        pytest.param("model=steep", {}, {"starts_only": True}, "n2", id="also between two full rounds"),
        pytest.param("model=even", {"others": (TAKEN,)}, {}, "n3", id="where it is as fast"),
        pytest.param("", {"others": (TAKEN,)}, {}, "n3", id="nobody knows where it is faster"),
        pytest.param("model=steep", {"others": (TAKEN,)}, {}, "", id="not where it takes ten times as long"),
        pytest.param("model=steep", {"request": V100S}, {}, "", id="not where its owner does not want it"),
        pytest.param("model=steep", {"cpus": 1}, {}, "n1", id="but on what it is due, if there are CPUs"),
    ],
)
def test_a_job_that_is_due_gpus_without_cpus_starts_on_idle_ones_of_another_type(
    hint: str, other: dict[str, Any], guards: dict[str, Any], starts_on: str
) -> None:
    beside = replace(BESIDE_NO_CPUS, allocations=(share("n1", 4, cpus=12),)) if "cpus" in other else BESIDE_NO_CPUS
    request = other.get("request", Request(gpus=4, cpus=4))
    waits = job(2, request=request, hint=f"{hint},duration=1h".lstrip(","), submit_time=2)
    known = replace(THREE, models={**THREE.models, "even": KNOWN.models["even"]})
    nodes = [node("n1"), node("n2", gpu_type="p100"), node("n3", gpu_type="k80")]
    stays = {name: Reason(ReasonCode.ASKED_TO_STAY) for name in ("1", "4")}
    jobs = [beside, waits, *other.get("others", ())]
    decision = policy("unified").decide(situation(nodes, jobs, known, non_preemptible=stays, **guards))
    target = decision.targets.get("2")
    assert (",".join(target.nodes) if target else "") == starts_on
    assert not decision.victims
