"""The first job of the order that does not fit is promised a start, under every policy, and nothing delays it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from slurmsched.model import Decision, ExpectedLength, Hold, Job, NodeState, ReasonCode, Request, Reservation
from slurmsched.model.reasons import shorter_limit
from slurmsched.policies import policy
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.policies import ORDERS, POLICIES
from slurmsched.policies.stages import Situation
from tests.builders import job, node, share, situation, snapshot

HOUR = 3600
NOW = 10_000.0

EVERY_ROW = [
    pytest.param(name, order, id=f"{name}/{order}" if row.takes_order else name)
    for name, row in POLICIES.items()
    for order in (ORDERS if row.takes_order else ("fifo",))
]
KEEPING_ROWS = [row for row in EVERY_ROW if row.values[0] != "slurm"]


def running(number: int, gpus: range, hours: int | None, **other: object) -> Job:
    """It began just now and may run so many hours; nothing may move it."""
    limit = None if hours is None else hours * HOUR
    return job(number, len(gpus), on=[share(gpus=gpus, cpus=len(gpus))], start_time=NOW, time_limit=limit, **other)  # type: ignore[arg-type]  # fields by name


def wide(**other: object) -> Job:
    """It needs the whole node, and came before all others."""
    return job(2, 8, time_limit=HOUR, priority=9, submit_time=NOW - 60.0, **other)  # type: ignore[arg-type]


def asked(*jobs: Job, **other: object) -> Situation:
    fixed = {j.id: None for j in jobs if j.allocations}
    other.setdefault("max_moves", 0)
    other.setdefault("non_preemptible", fixed)
    return situation([node()], jobs, **other)  # type: ignore[arg-type]


def expecting(known: ExpectedLength, *jobs: Job, **other: object) -> Situation:
    """Each of the jobs is expected to take so long, unless `lengths` says otherwise."""
    lengths = other.pop("lengths", None) or {one.id: known for one in jobs}
    given = asked(*jobs, **other)
    return replace(given, knowledge=replace(given.knowledge, lengths=lengths))


def decided(name: str, order: str, *jobs: Job, **other: object) -> Decision:
    return policy(name, order).decide(asked(*jobs, **other))


@pytest.mark.parametrize(("name", "order"), EVERY_ROW)
@pytest.mark.parametrize(
    ("hours", "starts"), [pytest.param(1, True, id="ends in time"), pytest.param(5, False, id="would delay it")]
)
def test_what_comes_later_starts_only_where_the_promise_holds(name: str, order: str, hours: int, starts: bool) -> None:
    later = job(3, 1, time_limit=hours * HOUR, submit_time=NOW - 30.0)
    first = decided(name, order, running(1, range(6), 2), wide())
    second = decided(name, order, running(1, range(6), 2), wide(), later, state=first.state)
    assert ("3" in second.targets) is starts
    assert second.promise is not None
    assert (second.promise.job, second.promise.start) == ("2", NOW + 2 * HOUR)
    if not starts:
        assert second.waiting["3"].code is ReasonCode.BEHIND_PROMISE
        assert "with a time limit of 2 h it would start now" in second.waiting["3"].sentence


@pytest.mark.parametrize(("name", "order"), EVERY_ROW)
def test_a_promise_goes_by_time_limits_and_not_by_what_jobs_are_expected_to_take(name: str, order: str) -> None:
    later = job(3, 1, time_limit=5 * HOUR, submit_time=NOW - 30.0)
    ten_minutes = ExpectedLength(*[600.0] * 5, runs=9)
    first = expecting(ten_minutes, running(1, range(6), 2), wide())
    decision = policy(name, order).decide(first)
    second = expecting(ten_minutes, running(1, range(6), 2), wide(), later, state=decision.state)
    decision = policy(name, order).decide(second)
    assert "3" not in decision.targets
    assert decision.promise is not None
    assert decision.promise.start == NOW + 2 * HOUR


def test_a_job_without_a_time_limit_starts_beside_a_promise_if_it_will_hardly_last_so_long() -> None:
    for seconds, starts in ((600.0, True), (3 * HOUR, False)):
        known = ExpectedLength(600.0, *[seconds] * 4, runs=9)
        later = job(3, 1, submit_time=NOW - 30.0)
        given = {"1": known, "3": known}
        jobs = (running(1, range(6), 2), wide(), later)
        situation_ = expecting(known, *jobs, lengths=given, state={"promise": {"job": "2", "saved_moves": 0}})
        assert ("3" in policy("synergy", "fifo").decide(situation_).targets) is starts


@pytest.mark.parametrize(("name", "order"), [row for row in KEEPING_ROWS if row.values[0] != "gandiva-fair"])
@pytest.mark.parametrize("elsewhere", [1, 6])
def test_what_would_end_in_time_leaves_the_promised_nodes_alone_where_it_fits_elsewhere(
    name: str, order: str, elsewhere: int
) -> None:
    """Of three nodes one is idle, one is free after two hours at the latest, one after nine. Under gandiva-fair jobs
    that take turns have their home nodes."""
    two, nine = (
        job(number, gpus, on=[share(f"n{number}", range(gpus), cpus=gpus)], start_time=NOW, time_limit=hours * HOUR)
        for number, gpus, hours in ((2, 3, 2), (3, 8 - elsewhere, 9))
    )
    request = Request(gpus=16, gpus_per_node=8, nodes=2, tasks=2, cpus=8)
    gang = job(4, request=request, time_limit=HOUR, priority=9, submit_time=NOW - 60.0)
    later = job(5, 2, time_limit=HOUR, submit_time=NOW - 30.0)
    fixed = dict.fromkeys(["2", "3"])
    cluster = situation([node(f"n{n}") for n in (1, 2, 3)], [two, nine, gang, later], max_moves=0)
    cluster = replace(cluster, non_preemptible=fixed, state={"promise": {"job": "4"}})
    decision = policy(name, order).decide(cluster)
    assert decision.promise is not None
    assert {share.node for share in decision.promise.allocations} == {"n1", "n2"}
    assert (decision.targets["5"].allocations[0].node == "n3") is (elsewhere == 6)


@pytest.mark.parametrize(("name", "order"), KEEPING_ROWS)
def test_a_promise_is_kept_whoever_comes_first_in_the_order_later(name: str, order: str) -> None:
    crowd = [job(n, 1, time_limit=9 * HOUR, priority=99, hint="duration=60s", user="bob") for n in range(3, 9)]
    first = decided(name, order, running(1, range(6), 2), wide())
    assert first.state["promise"] == {"job": "2", "saved_moves": 0}
    second = decided(name, order, running(1, range(6), 2), wide(), *crowd, state=first.state)
    assert second.promise is not None
    assert second.promise.job == "2"
    assert set(second.targets) == {"1"}
    last = decided(name, order, wide(), *crowd, state=second.state, time=NOW + HOUR)
    assert set(last.targets) == {"2"}


@pytest.mark.parametrize(("name", "order"), KEEPING_ROWS)
def test_what_was_promised_is_forgotten_once_the_job_runs_or_is_gone(name: str, order: str) -> None:
    state = {"promise": {"job": "2"}}
    runs = job(2, 8, on=[share(gpus=8, cpus=8)], time_limit=HOUR, start_time=NOW)
    assert "promise" not in decided(name, order, runs, state=state).state
    assert "promise" not in decided(name, order, running(1, range(6), 2), state=state).state


@pytest.mark.parametrize(
    ("jobs", "code", "words"),
    [
        pytest.param(
            [running(1, range(6), 2), wide()],
            ReasonCode.PROMISED_START,
            "at the latest on n1: by then job 1 must have ended",
            id="time limits say when",
        ),
        pytest.param(
            [running(1, range(6), None, hint="duration=3h"), wide()],
            ReasonCode.EXPECTED_START,
            "on n1: job 1 should have left by then",
            id="a duration was given",
        ),
        pytest.param(
            [running(1, range(3), None), running(4, range(3, 6), None), wide()],
            ReasonCode.BEHIND,
            "waits behind 2 jobs",
            id="nobody knows",
        ),
        pytest.param(
            [running(1, range(3), None), running(4, range(3, 6), None), replace(wide(), submit_time=0.0)],
            ReasonCode.NODES_DRAIN,
            "starts on n1 once jobs 1, 4 ended",
            id="nobody knows, and it has waited long",
        ),
    ],
)
def test_it_is_told_when_it_starts(jobs: list[Job], code: ReasonCode, words: str) -> None:
    waits = decided("synergy", "fifo", *jobs).waiting["2"]
    assert waits.code is code
    assert words in waits.sentence


@pytest.mark.parametrize(
    ("other", "certain"),
    [
        pytest.param({"partitions": ("debug",)}, False, id="it waits for another partition with that node"),
        pytest.param({"partitions": ("else", "debug")}, False, id="for several, one of which has that node"),
        pytest.param({"partitions": ("else",)}, True, id="for one with other nodes"),
        pytest.param({"partitions": ("debug",), "hold": Hold.USER}, True, id="it is held"),
    ],
)
def test_a_start_is_certain_only_where_slurm_starts_no_job_that_is_not_managed_on_its_nodes(
    other: dict[str, Any], certain: bool
) -> None:
    ours = [running(1, range(6), 2), wide()]
    machines = [node(partitions=frozenset({"gpu", "debug"})), node("n2", 2, partitions=frozenset({"else"}))]
    asked = situation(machines, [*ours, job(9, **other)], managed=ours, max_moves=0, non_preemptible={"1": None})
    decision = policy("synergy", "fifo").decide(asked)
    assert decision.promise is not None
    assert (decision.promise.start, decision.promise.certain) == (NOW + 2 * HOUR, certain)
    code = ReasonCode.PROMISED_START if certain else ReasonCode.EXPECTED_START
    assert decision.waiting["2"].code is code


def test_it_stays_promised_while_a_node_shows_as_used_what_no_job_has_any_more() -> None:
    machine, ended = node(busy=(7,), used_cpus=3, used_memory=100), share(gpus=(7,), memory=100)
    jobs = (running(1, range(6), 2), replace(wide(), submit_time=0.0), job(3, 1, time_limit=5 * HOUR))
    assert "3" in policy("synergy", "fifo").decide(situation([machine], jobs, max_moves=0)).targets
    decision = policy("synergy", "fifo").decide(situation([machine], jobs, max_moves=0, unattributed=(ended,)))
    assert set(decision.targets) == {"1"}
    assert decision.promise is not None
    assert (decision.promise.start, decision.promise.waits_for) == (NOW + 2 * HOUR, ("1",))


def test_it_is_told_when_nothing_but_slurms_own_count_stands_in_its_way() -> None:
    machine, ended = node(busy=(7,), used_cpus=3, used_memory=100), share(gpus=(7,), memory=100)
    decision = policy("synergy", "fifo").decide(situation([machine], [wide()], unattributed=(ended,)))
    assert decision.waiting["2"].code is ReasonCode.FREED_NOW
    assert "starts on n1 next" in decision.waiting["2"].sentence


def test_it_stays_promised_while_another_is_about_to_start() -> None:
    begins, late = job(1, 6, time_limit=2 * HOUR), job(3, 1, time_limit=5 * HOUR, submit_time=NOW - 30.0)
    machine, has = node(busy=range(6), used_cpus=6, used_memory=100), share(gpus=6, cpus=6, memory=100)
    seen = [begins, wide(), late]
    decision = policy("synergy", "fifo").decide(
        situation([machine], seen, managed=seen[1:], starting={"1": (has,)}, non_preemptible={})
    )
    assert not decision.targets
    assert decision.promise is not None
    assert (decision.promise.job, decision.promise.start) == ("2", NOW + 2 * HOUR)


def test_while_nodes_drain_only_jobs_with_a_known_end_start_there() -> None:
    jobs = [running(1, range(3), None), running(4, range(3, 6), None), replace(wide(), submit_time=0.0)]
    decision = decided("synergy", "fifo", *jobs, job(5), job(6, time_limit=9 * HOUR))
    assert set(decision.targets) == {"1", "4", "6"}
    assert decision.waiting["5"].code is ReasonCode.BEHIND_DRAIN


@pytest.mark.parametrize(
    ("began", "drained"),
    [
        pytest.param(-1.0, False, id="what was there first is waited for, and nothing stays idle meanwhile"),
        pytest.param(1.0, True, id="what overtook it may be the last on the node"),
    ],
)
def test_nodes_are_drained_for_a_gang_only_of_jobs_that_overtook_it_and_down_to_the_last(
    began: float, drained: bool
) -> None:
    last = replace(running(1, range(1), None), start_time=1000.0 + began)
    gang = replace(wide(), submit_time=1000.0)
    decision = decided("synergy", "fifo", last, gang, job(5, submit_time=NOW - 10.0))
    assert ("5" in decision.targets) is not drained


def test_who_may_preempt_does_so_instead_of_waiting() -> None:
    old = running(1, range(6), 9, hint="ckpt=usr1")
    decision = decided("synergy", "las", old, wide(), service={"1": 30.0 * HOUR}, non_preemptible={}, max_moves=8)
    assert decision.victims == {"1": "2"}
    assert decision.promise is None


def test_who_may_preempt_soon_is_promised_a_start_then() -> None:
    old = running(1, range(6), 9, hint="ckpt=usr1")
    decision = decided(
        "synergy", "las", old, wide(), service={"1": 30.0 * HOUR}, max_moves=8, preemptible_from={"1": NOW + 600}
    )
    assert decision.promise is not None
    assert (decision.promise.start, decision.promise.certain) == (NOW + 600, False)


@pytest.mark.parametrize(
    ("submitted", "expected"),
    [
        pytest.param(0.0, "2", id="others came later"),
        pytest.param(NOW, "30", id="it came last"),
    ],
)
def test_who_waits_for_several_jobs_goes_before_those_of_the_order_that_came_later(
    submitted: float, expected: str
) -> None:
    """Finish-time fairness ranks each newcomer of one GPU before a job that asks for all."""
    busy = [running(10 + n, range(n, n + 1), 1) for n in range(8)]
    crowd = [job(30 + n, 1, time_limit=HOUR, hint="duration=1h", submit_time=NOW - 10) for n in range(20)]
    decision = decided("synergy", "ftf", *busy, replace(wide(), submit_time=submitted), *crowd)
    assert decision.promise is not None
    assert decision.promise.job == expected


def narrow_and_old(*numbers: int) -> list[Job]:
    """One-GPU jobs that began long ago and may be preempted; with `service` they are in the last queue."""
    return [running(n, range(at, at + 1), 900, hint="ckpt=usr1") for at, n in enumerate(numbers)]


@pytest.mark.parametrize(
    ("seconds", "advice"),
    [
        pytest.param(9.87, None, id="Slurm's time limits are whole minutes"),
        pytest.param(119.0, "with a time limit of 1 min it would start now", id="rounded down"),
        pytest.param(5400.0, "with a time limit of 1 h 30 min it would start now", id="in two units"),
        pytest.param(86399.0, "with a time limit of 23 h 59 min it would start now", id="never up"),
        pytest.param(float("inf"), None, id="nobody knows when"),
    ],
)
def test_a_shorter_time_limit_is_named_in_whole_minutes(seconds: float, advice: str | None) -> None:
    assert shorter_limit(seconds).get("also") == advice


@pytest.mark.parametrize("name", ["synergy", "tesserae", "tiresias"])
def test_a_gang_that_needs_more_moves_than_a_round_has_starts_once_rounds_left_enough(name: str) -> None:
    old, state = narrow_and_old(*range(10, 18)), {}
    late = job(3, 1, time_limit=2000 * HOUR, submit_time=NOW)
    service = {j.id: 30.0 * HOUR for j in old}
    saved = []
    for _ in range(4):
        decision = decided(
            name, "las", *old, wide(), late, service=service, state=state, non_preemptible={}, max_moves=3
        )
        state = json.loads(json.dumps(decision.state))
        saved.append((decision.saved_moves, len(decision.victims)))
    assert saved == [(0, 0), (0, 0), (3, 0), (6, 8)]
    assert set(decision.targets) == {"2"}
    assert decision.victims == {j.id: "2" for j in old}


@pytest.mark.parametrize("name", ["synergy", "tesserae", "tiresias"])
def test_rounds_leave_moves_also_while_a_gang_waits_for_jobs_that_may_not_move_yet(name: str) -> None:
    old, state = narrow_and_old(*range(10, 18)), {"promise": {"job": "2"}}
    victims = list[int]()
    for young in ({"17": None}, {"17": None}, {}):
        service = {j.id: 30.0 * HOUR for j in old}
        decision = decided(name, "las", *old, wide(), service=service, state=state, non_preemptible=young, max_moves=3)
        state = json.loads(json.dumps(decision.state))
        victims.append(len(decision.victims))
    assert victims == [0, 0, 8]


@pytest.mark.parametrize(
    ("hours", "moves", "promised", "starts"),
    [
        pytest.param(1, 8, 2, True, id="ends before"),
        pytest.param(5, 8, 2, False, id="would delay the gang"),
        pytest.param(5, 0, 90, True, id="a round may move nobody"),
    ],
)
def test_a_gang_waits_only_for_those_that_it_may_not_preempt(
    hours: int, moves: int, promised: int, starts: bool
) -> None:
    """Job 1 may be preempted at any time, job 3 never: the gang starts when that one ends, not at the limit of job 1
    90 hours from now, before which everybody else could start."""
    old, fixed = running(1, range(6), 90, hint="ckpt=usr1"), running(3, range(6, 7), 2)
    later = job(4, 1, time_limit=hours * HOUR, submit_time=NOW)
    service, stays = {"1": 30.0 * HOUR, "3": 30.0 * HOUR}, {"3": None}
    jobs = (old, fixed, wide(), later)
    decision = decided("tiresias", "las", *jobs, service=service, non_preemptible=stays, max_moves=moves)
    assert decision.promise is not None
    assert (decision.promise.job, decision.promise.start) == ("2", NOW + promised * HOUR)
    assert decision.promise.certain is not bool(moves)
    assert ("4" in decision.targets) is starts
    assert not decision.victims


def test_who_waits_for_moves_is_told_so_and_nobody_starts_where_it_will() -> None:
    old, short = narrow_and_old(*range(10, 17)), job(3, 1, time_limit=HOUR, submit_time=NOW)
    seen = (*old, wide(), short)
    service, state = {j.id: 30.0 * HOUR for j in old}, {"promise": {"job": "2", "saved_moves": 3}}
    for early in (False, True):
        decision = decided(
            "tiresias",
            "las",
            *seen,
            service=service,
            state=state,
            non_preemptible={},
            max_moves=0 if early else 3,
            starts_only=early,
        )
        assert "3" not in decision.targets
        assert decision.promise is not None
        assert (decision.promise.job, decision.promise.start) == ("2", NOW)


@pytest.mark.parametrize(
    ("ran", "starts"),
    [
        pytest.param("9", {"2"}, id="it ran and gave way"),
        pytest.param("", set(), id="it never ran"),
    ],
)
def test_a_promise_to_a_job_that_ran_keeps_no_wider_one_from_its_first_start(ran: str, starts: set[str]) -> None:
    old, gave_way = narrow_and_old(*range(10, 18)), job(9, 1, time_limit=900 * HOUR, submit_time=NOW - 600)
    service = {j.id: 30.0 * HOUR for j in old} | ({ran: 30.0 * HOUR} if ran else {})
    fixed = {j.id: None for j in old} if not ran else {}
    decision = decided(
        "tiresias",
        "las",
        *old,
        gave_way,
        wide(),
        service=service,
        state={"promise": {"job": "9"}},
        non_preemptible=fixed,
        max_moves=8,
    )
    assert set(decision.targets) - {j.id for j in old} == starts


@pytest.mark.parametrize(
    ("hours", "starts"),
    [
        pytest.param(20, True, id="the victim would have outlasted the promise"),
        pytest.param(2, False, id="the promised job waits for the victim"),
    ],
)
def test_a_newcomer_takes_the_place_of_who_would_outlast_the_promise(hours: int, starts: bool) -> None:
    """Job 9 is promised the GPU that is free first. Nothing is free beside it then, but who preempts a job that holds a
    GPU for longer delays it no more than that one."""
    fixed, victim = running(1, range(1), 4), running(2, range(7, 8), hours, hint="ckpt=usr1")
    others = running(3, range(1, 7), 99)
    promised, newcomer = job(9, 1, time_limit=9 * HOUR), job(4, 1, time_limit=9 * HOUR)
    decision = decided(
        "synergy",
        "las",
        *(fixed, victim, others, promised, newcomer),
        service={"1": 30.0 * HOUR, "2": 30.0 * HOUR, "9": 30.0 * HOUR},
        state={"promise": {"job": "9"}},
        non_preemptible={"1": None, "3": None},
        max_moves=8,
    )
    assert decision.victims == ({"2": "4"} if starts else {})
    assert ("4" in decision.targets) is starts
    assert decision.promise is not None
    assert (decision.promise.job, decision.promise.start) == ("9", NOW + min(hours, 4) * HOUR)


def test_spare_cpus_of_a_promised_node_are_not_tried_for_ever() -> None:
    """A job that would be faster with more CPUs starts beside the promise, and leaves what the promised one needs."""
    first = job(2, 7, cpus=21, time_limit=HOUR, priority=9, submit_time=NOW - 60.0)
    eager = job(3, 1, cpus=1, hint="model=resnet50,ckpt=usr1", time_limit=9 * HOUR)
    decision = decided("synergy", "fifo", running(1, range(6), 2), first, eager)
    assert decision.promise is not None
    assert decision.targets["3"].resources.cpus <= 24 - 21


def with_maintenance(*jobs: Job, nodes: int, begins: float, name: str = "fifo") -> Decision:
    """The first node is reserved for maintenance so many hours from now, for a day."""
    works = Reservation("works", frozenset({"n1"}), NOW + begins * HOUR, NOW + (begins + 24) * HOUR)
    seen = snapshot([node(f"n{n + 1}") for n in range(nodes)], jobs, NOW, reservations=(works,))
    fixed = {j.id: None for j in jobs if j.allocations}
    return policy("synergy", name).decide(situation([], [], seen=seen, max_moves=0, non_preemptible=fixed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hours", "starts", "words"),
    [
        pytest.param(2, True, "", id="it ends before"),
        pytest.param(4, False, "n1 is free but reserved from", id="it would run into it"),
        pytest.param(None, False, "(works), before it would end; with a time limit of 3 h", id="it has no limit"),
    ],
)
def test_a_job_starts_on_a_node_that_is_reserved_later_only_if_it_ends_before(
    hours: int | None, starts: bool, words: str
) -> None:
    decision = with_maintenance(job(1, time_limit=hours and hours * HOUR), nodes=1, begins=3)
    assert ("1" in decision.targets) is starts
    if not starts:
        assert words in decision.waiting["1"].sentence


def test_no_start_is_promised_on_a_node_that_will_be_reserved_then() -> None:
    """The first node is free sooner, but its maintenance begins before the job would end there."""
    busy = [running(1, range(8), 1), replace(running(4, range(8), 5), allocations=(share("n2", 8, cpus=8),))]
    for begins, on in ((9, "n1"), (1.5, "n2")):
        promise = with_maintenance(*busy, wide(), nodes=2, begins=begins).promise
        assert promise is not None
        assert [place.node for place in promise.allocations] == [on]


def test_who_is_promised_a_start_elsewhere_is_told_what_is_free_but_for_a_reservation() -> None:
    busy = [replace(running(4, range(8), 5), allocations=(share("n2", 8, cpus=8),))]
    decision = with_maintenance(*busy, wide(), nodes=2, begins=0.5)
    told = decision.waiting["2"].sentence
    assert "on n2: by then job 4 must have ended" in told
    assert "it waits: n1 is free but reserved from" in told
    assert "with a time limit of 30 min it would start now" in told


@pytest.mark.parametrize("needed", [1, 2, 63, 64, 65, 190, 299, 300])
def test_of_many_jobs_the_first_whose_ends_are_enough_say_when(needed: int) -> None:
    """Job k ends after k minutes, and they are in no order."""
    ends = random.Random(needed).sample(range(1, 301), 300)
    machines = [node(f"n{at}", 1) for at in ends]
    others = [job(at, on=[share(f"n{at}")], start_time=NOW, time_limit=60 * at) for at in ends]
    gang = job(1000, request=Request(gpus=needed, cpus=needed, nodes=needed, tasks=needed), time_limit=HOUR)
    fixed = {other.id: None for other in others}
    asked = situation(machines, [*others, gang], max_moves=0, non_preemptible=fixed)
    promise = policy("synergy", "fifo").decide(asked).promise
    assert promise is not None
    assert promise.start == NOW + 60 * needed
    assert {place.node for place in promise.allocations} == {f"n{at}" for at in range(1, needed + 1)}


def releases(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often resources of one job were counted as free again; one number, that grows."""
    counted, release = [0], FreeResources.release

    def counting(free: FreeResources, allocation: Allocation) -> None:
        counted[0] += 1
        release(free, allocation)

    monkeypatch.setattr(FreeResources, "release", counting)
    return counted


@pytest.mark.parametrize(("name", "order"), KEEPING_ROWS)
def test_of_many_jobs_that_have_no_room_on_nodes_that_power_up_the_ends_of_others_are_counted_once(
    name: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [job(1 + at, 8, on=[share(f"n{at}", gpus=range(8))], time_limit=HOUR) for at in range(30)]
    waiting = [job(100 + at, 8, cpus=1 + at % 20, time_limit=HOUR, submit_time=NOW - at) for at in range(60)]
    nodes = [node(f"n{at}", state=NodeState.DOWN, busy=range(8)) for at in range(30)]
    counted = releases(monkeypatch)
    decision = policy(name, order).decide(situation(nodes, [*others, *waiting]))
    assert decision.promise is None
    assert counted[0] <= 3 * len(others)
