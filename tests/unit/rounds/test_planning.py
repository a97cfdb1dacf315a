"""From a decision to operations, on tiny clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from slurmsched.model import (
    Hold,
    JobId,
    JobSpec,
    NodeAllocation,
    NodeState,
    Operation,
    Plan,
    Reason,
    ReasonCode,
    Request,
    Resources,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.rounds.planner import ConfigFragment, make_plan
from slurmsched.settings.definition import CheckpointSettings, Mode, NodeSettings, Settings
from tests.builders import GIB, job, node, share, snapshot
from tests.ideal_cluster import IdealCluster
from tests.prescribing import Anyone, decision, situation

OURS = SchedulerState(held=frozenset("123456789"))
FULL = {"cpus": 24, "memory": 500 * GIB}


def planned(
    seen: Snapshot,
    targets: Mapping[JobId, tuple[NodeAllocation, ...]],
    victims: Mapping[JobId, JobId] | None = None,
    fixed: Mapping[JobId, Reason] | None = None,
    **other: Any,
) -> Plan:
    at_hand = situation(seen, fixed, other.pop("moves", 8))
    other.setdefault("mode", Mode.ENFORCE)
    settings, memory = other.pop("settings", Settings()), other.pop("memory", OURS)
    decided = decision(at_hand.jobs, targets, victims, other.pop("order", ()))
    return make_plan(at_hand, decided, memory, settings, other.pop("identity", Anyone()), **other)


def told(result: Plan) -> list[str]:
    return [f"{op.verb} {op.subject}" + (f" after {','.join(op.gone)}" if op.gone else "") for op in result.operations]


def held(number: int, **other: Any) -> Any:
    return job(number, hold=Hold.ADMIN, **other)


def test_a_waiting_job_is_shaped_and_released() -> None:
    result = planned(snapshot([node()], [held(1, gpus=2)]), {"1": (share("n1", 2, cpus=9, memory=70),)})
    shape = JobSpec(("n1",), 1, 2, 2, None, 9, 70, 1, cpus_per_task=9)
    before = JobSpec((), 1, 2, None, None, 2, 0, 1, cpus_per_task=2)
    reshape, release = result.operations
    assert (reshape.verb, reshape.before, reshape.after) == (Verb.UPDATE, before, shape)
    assert (release.verb, release.before, release.after) == (Verb.RELEASE, "admin", "none")
    assert release.sentence == "job 1 starts on n1 with 2 GPUs, 9 CPUs"


def test_a_job_that_stands_as_wanted_is_only_released() -> None:
    stands = Request(gpus=2, cpus=9, memory=70, pinned=frozenset({"n1"}))
    waiting = held(1, request=Request(gpus=2), standing=stands)
    assert told(planned(snapshot([node()], [waiting]), {"1": (share("n1", 2, cpus=9, memory=70),)})) == ["release 1"]


def test_a_running_job_that_keeps_its_lease_costs_nothing() -> None:
    running = job(1, gpus=2, on=[share("n1", (4, 5))])
    assert planned(snapshot([node()], [running]), {"1": (share("n1", (0, 1)),)}).operations == ()


def test_waiting_jobs_that_do_not_start_are_held_first() -> None:
    seen = snapshot([node()], [held(1), job(2), held(3)])
    assert told(planned(seen, {"1": (share("n1", 1),)})) == ["hold 2", "reshape 1", "release 1"]


def test_a_job_that_slurm_stops_by_a_limit_is_not_held_or_it_would_no_longer_say_so() -> None:
    seen = snapshot([node()], [job(1), job(2)])
    at_hand = situation(snapshot([node()], []))
    at_hand = type(at_hand)(seen, (), at_hand.knowledge)
    stopped = {"1": Reason(ReasonCode.LIMITS), "2": Reason(ReasonCode.DEPENDENCY)}
    result = make_plan(
        at_hand, decision([], {}), SchedulerState(), Settings(), Anyone(), mode=Mode.ENFORCE, ineligible=stopped
    )
    assert told(result) == ["hold 2"]


def test_starts_come_before_the_preemptions_and_those_before_their_newcomers() -> None:
    old = job(1, gpus=8, hint="ckpt=usr1@60", on=[share("n1", 8, **FULL)])
    seen = snapshot([node(), node("n2")], [old, held(2, gpus=8), held(3, gpus=1)])
    targets = {"2": (share("n1", 8, **FULL),), "3": (share("n2", 1),)}
    result = planned(seen, targets, {"1": "2"}, order=("2", "3", "1"))
    assert told(result) == ["reshape 3", "release 3", "notify 1", "requeue 1", "reshape 2", "release 2 after 1"]
    notify, requeue = result.operations[2:4]
    assert (notify.after, requeue.lead) == ("usr1", 60)
    assert notify.sentence == "job 1 is told to write its checkpoint, 1 min before it is requeued"
    assert requeue.sentence == "job 1 gives way to job 2: number 1 against number 3"
    assert requeue.before == JobSpec(("n1",), 1, 8, 8, None, 24, 500 * GIB, 1, cpus_per_task=24)


@pytest.mark.parametrize(
    ("hint", "notified", "lead"),
    [
        pytest.param("ckpt=usr2@90", ["usr2"], 90, id="the signal and the lead of the hint"),
        pytest.param("ckpt=term", ["term"], 45, id="the site's lead where the hint has none"),
        pytest.param("ckpt=usr1@2h", ["usr1"], 110, id="a long lead is cut"),
        pytest.param("ckpt=none", [], 0, id="no signal, nothing to wait for"),
    ],
)
def test_the_warning_before_a_requeue(hint: str, notified: list[str], lead: int) -> None:
    old = job(1, gpus=8, hint=hint, on=[share("n1", 8)])
    settings = Settings(checkpoint=CheckpointSettings(lead=45, longest_lead=110))
    result = planned(snapshot([node()], [old, held(2)]), {"2": (share(),)}, {"1": "2"}, settings=settings)
    assert [op.after for op in result.operations if op.verb is Verb.NOTIFY] == notified
    assert [op.lead for op in result.operations if op.verb is Verb.REQUEUE] == [lead]


def test_a_restarted_job_is_released_before_the_newcomer_which_waits_until_it_runs_again() -> None:
    old = job(1, gpus=4, on=[share("n1", 4, **FULL)])
    seen = snapshot([node()], [old, held(2, gpus=4)])
    targets = {"1": (share("n1", 4, cpus=12, memory=250 * GIB),), "2": (share("n1", (4, 5, 6, 7), cpus=12),)}
    result = planned(seen, targets, {"1": "2"}, order=("2", "1"))
    assert told(result) == ["requeue 1", "reshape 1 after 1", "release 1 after 1", "reshape 2", "release 2 after 1"]
    assert [op.standing for op in result.operations if op.verb is Verb.RELEASE] == [(), ("1",)]


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param("123", [("1", ()), ("2", ("1",)), ("3", ("2",))], id="each after the other"),
        pytest.param("23", [], id="none after one that does not start, nor after that"),
        pytest.param("13", [("1", ())], id="none after one that does not start"),
    ],
)
def test_jobs_start_after_those_whose_devices_slurm_chooses_first(
    jobs: str, expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    seen = snapshot([node()], [held(number) for number in (1, 2, 3)])
    decided = decision(seen.jobs, {name: (share("n1"),) for name in jobs})
    after = {"2": ("1",), "3": ("2",)}
    targets = {name: replace(target, after=after.get(name, ())) for name, target in decided.targets.items()}
    at_hand = situation(seen, None, 8)
    plan = make_plan(at_hand, replace(decided, targets=targets), OURS, Settings(), Anyone(), mode=Mode.ENFORCE)
    assert [(op.subject, op.standing) for op in plan.operations if op.verb is Verb.RELEASE] == expected


def test_only_victims_whose_room_is_needed_leave() -> None:
    olds = [job(1, gpus=4, on=[share("n1", (0, 1, 2, 3))]), job(2, gpus=4, on=[share("n1", (4, 5, 6, 7))])]
    seen = snapshot([node()], [*olds, held(3, gpus=4)])
    result = planned(seen, {"3": (share("n1", 4),)}, {"1": "3", "2": "3"})
    assert told(result) == ["requeue 2", "reshape 3", "release 3 after 2"]


def test_nobody_leaves_for_room_that_is_free_meanwhile() -> None:
    old = job(1, gpus=4, on=[share("n1", (0, 1, 2, 3))])
    result = planned(snapshot([node()], [old, held(2, gpus=4)]), {"2": (share("n1", 4),)}, {"1": "2"})
    assert told(result) == ["reshape 2", "release 2"]


def test_a_newcomer_that_nothing_holds_is_held_until_its_room_is_free() -> None:
    old = job(1, gpus=8, on=[share("n1", 8)])
    result = planned(snapshot([node()], [old, job(2, gpus=8)]), {"2": (share("n1", 8),)}, {"1": "2"})
    assert told(result) == ["hold 2", "requeue 1", "reshape 2", "release 2 after 1"]


def test_a_resize_is_a_requeue_and_a_start_of_the_same_job() -> None:
    running = job(1, gpus=4, cpus=12, hint="ckpt=usr1", on=[share("n1", 4, cpus=20)])
    result = planned(snapshot([node()], [running]), {"1": (share("n1", 4, cpus=12),)})
    assert told(result) == ["notify 1", "requeue 1", "reshape 1 after 1", "release 1 after 1"]


def test_two_jobs_may_change_places() -> None:
    jobs = [job(1, gpus=8, on=[share("n1", 8, **FULL)]), job(2, gpus=8, on=[share("n2", 8, **FULL)])]
    seen = snapshot([node(), node("n2")], jobs)
    targets = {"1": (share("n2", 8, **FULL),), "2": (share("n1", 8, **FULL),)}
    cluster = IdealCluster([node(), node("n2")], jobs)
    after = cluster.follow(planned(seen, targets))
    assert {name: after.jobs_by_id[name].nodes for name in "12"} == {"1": ("n2",), "2": ("n1",)}


@pytest.mark.parametrize(
    ("targets", "victims", "other"),
    [
        pytest.param(
            {"2": (share("n1", 8),)}, {"1": "2"}, {"fixed": {"1": Reason(ReasonCode.ASKED_TO_STAY)}}, id="fixed"
        ),
        pytest.param({"2": (share("n1", 8),)}, {}, {}, id="no victim"),
        pytest.param({"2": (share("n2", 1),)}, {}, {}, id="a drained node"),
        pytest.param({"2": (share("n9", 1),)}, {}, {}, id="a node that does not exist"),
        pytest.param({"2": (share("n1", 8),)}, {"1": "2"}, {"moves": 0}, id="no moves left"),
        pytest.param({"2": (share("n1", 8, cpus=25),)}, {"1": "2"}, {}, id="more CPUs than the node has"),
    ],
)
def test_what_cannot_be_done_is_deferred_and_disturbs_nobody(targets: Any, victims: Any, other: Any) -> None:
    old = job(1, gpus=8, on=[share("n1", 8)])
    seen = snapshot([node(), node("n2", state=NodeState.DRAINED)], [old, held(2, gpus=8)])
    result = planned(seen, targets, victims, **other)
    assert result.operations == ()
    assert set(result.deferred) == {"2"}


def test_shards_start_on_a_whole_gpu_once_its_job_left() -> None:
    wanted = NodeAllocation("n1", Resources(0, 1, 0), "v100", (0,), 4)
    seen = snapshot([node("n1", 1, shards=4)], [job(1, on=[share("n1", 1)]), held(2, request=Request(shards=4))])
    assert told(planned(seen, {"2": (wanted,)}, {"1": "2"})) == ["requeue 1", "reshape 2", "release 2 after 1"]


def test_shards_start_on_what_two_jobs_leave_of_a_gpu() -> None:
    parts = [NodeAllocation("n1", Resources(0, 1, 0), "v100", (0,), count) for count in (1, 2, 3)]
    jobs = [job(n, request=Request(shards=n), on=[parts[n - 1]]) for n in (1, 2)]
    seen = snapshot([node("n1", 1, shards=4)], [*jobs, held(3, request=Request(shards=3))])
    result = planned(seen, {"3": (parts[2],)}, {"1": "3", "2": "3"})
    assert told(result) == ["requeue 2", "reshape 3", "release 3 after 2"]


def test_a_start_that_is_not_possible_stops_no_move_for_another() -> None:
    jobs = [job(1, gpus=1, on=[share("n1", 1)]), job(5, gpus=1, on=[share("n3", 1)])]
    nodes = [node("n1", 2), node("n2", 1), node("n3", 2), node("n4", 1)]
    seen = snapshot(nodes, [*jobs, held(2, gpus=2), held(3, gpus=9), held(4, gpus=2)])
    targets = {"1": "n2", "2": "n1", "3": "n3", "5": "n4"}
    gpus = {"1": 1, "2": 2, "3": 9, "5": 1}
    decided = {number: (share(where, gpus[number]),) for number, where in targets.items()}
    result = planned(seen, decided, {"1": "2", "5": "3"})
    assert [line for line in told(result) if "requeue" in line or "release" in line] == [
        "requeue 1",
        "release 1 after 1",
        "release 2 after 1",
    ]


@pytest.mark.parametrize(
    ("cpus", "unit", "starts"),
    [
        pytest.param((7, 12), 1, False, id="ten on each, of which eight are idle"),
        pytest.param((7, 9), 1, True, id="eight on each"),
        pytest.param((8, 10), 2, True, id="the other node counts whole cores"),
    ],
)
def test_equal_nodes_have_equal_cpus_as_slurm_divides_them(cpus: tuple[int, int], unit: int, starts: bool) -> None:
    small = [node("n1", 4, cpus=12), node("n2", 4, cpus=12, cpu_unit=unit)]
    there = job(1, on=[share("n1", 1, cpus=4)])
    gang = held(2, request=Request(gpus=2, gpus_per_node=1, nodes=2, cpus=2))
    target = tuple(share(name, (1,), cpus=own) for name, own in zip(("n1", "n2"), cpus, strict=True))
    result = planned(snapshot(small, [there, gang]), {"2": target}, fixed={"1": Reason(ReasonCode.ASKED_TO_STAY)})
    assert (set(result.deferred) == {"2"}) is not starts
    assert any(operation.verb is Verb.RELEASE for operation in result.operations) is starts


def test_a_decision_that_does_not_add_up_moves_nobody() -> None:
    jobs = [job(1, gpus=4, on=[share("n1", 4)]), held(2, gpus=8), held(3, gpus=1)]
    targets = {"1": (share("n2", 4),), "2": (share("n2", 8),), "3": (share("n1", 1),)}
    result = planned(snapshot([node(), node("n2")], jobs), targets, order=("1", "2", "3"))
    assert told(result) == ["reshape 2", "release 2", "reshape 3", "release 3"]
    assert set(result.deferred) == {"1"}


def test_what_the_identity_may_not_do_is_shown_and_marked() -> None:
    result = planned(snapshot([node()], [held(1)]), {"1": (share(),)}, identity=Anyone(not_=frozenset({Verb.RELEASE})))
    assert [(op.verb, op.permitted) for op in result.operations] == [(Verb.UPDATE, True), (Verb.RELEASE, False)]


def test_observing_shows_the_plan_that_enforcing_would_run() -> None:
    seen, targets = snapshot([node()], [held(1), job(2)]), {"1": (share(),)}
    assert planned(seen, targets, mode=Mode.OBSERVE) == planned(seen, targets, mode=Mode.ENFORCE)


NOTES = Settings(nodes=NodeSettings(admin_comment=True))


def test_advice_is_only_noted() -> None:
    jobs = [held(1), job(2), job(3, admin_comment="JS1:abc"), job(4, admin_comment="synsched: old")]
    result = planned(snapshot([node()], jobs), {"1": (share(),)}, mode=Mode.ADVISE, settings=NOTES)
    waits = "synsched: waits: no nodes have 1 GPU free for it"
    assert [(op.verb, op.subject, op.after) for op in result.operations] == [
        (Verb.NOTE, "1", "synsched: is next in given order and fits"),
        (Verb.NOTE, "2", waits),
        (Verb.NOTE, "4", waits),
    ]


def test_a_note_that_says_it_already_is_not_written_again() -> None:
    jobs = [job(1, admin_comment="synsched: waits: no nodes have 1 GPU free for it")]
    assert planned(snapshot([node()], jobs), {}, mode=Mode.ADVISE, settings=NOTES).operations == ()


def test_without_leave_to_write_notes_advice_changes_nothing() -> None:
    assert planned(snapshot([node()], [held(1), job(2)]), {"1": (share(),)}, mode=Mode.ADVISE).operations == ()


def test_where_slurm_places_our_holds_and_shapes_are_given_back() -> None:
    original, stands = Request(gpus=1, cpus=2), Request(gpus=1, cpus=9, pinned=frozenset({"n1"}))
    waiting = held(1, request=original, standing=stands)
    memory = SchedulerState(original_requests={"1": original}, held=frozenset({"1"}))
    result = planned(snapshot([node()], [waiting]), {}, mode=Mode.PRIORITIZE, memory=memory)
    assert told(result) == ["reshape 1", "release 1"]
    assert {op.reason.code for op in result.operations} == {ReasonCode.GIVE_BACK}


def test_a_configuration_file_is_replaced_only_where_it_differs() -> None:
    files = [ConfigFragment("/etc/slurm/gres.conf", "old", "new"), ConfigFragment("/etc/slurm/same.conf", "x", "x")]
    (operation,) = planned(snapshot([node()], []), {}, config_fragments=files).operations
    assert operation == Operation(Verb.CONFIGURE, "/etc/slurm/gres.conf", Reason(ReasonCode.RENDER), "old", "new")


def test_nodes_are_weighted_so_that_the_fullest_fills_first() -> None:
    nodes = [
        node("cpu", gpus=0, weight=10),
        node("full", gpus=2, busy=[0, 1]),
        node("half", gpus=4, busy=[0, 1]),
        node("light", gpus=4, busy=[0]),
        node("idle"),
        node("dead", state=NodeState.DOWN),
    ]
    result = planned(snapshot(nodes), {}, settings=Settings(nodes=NodeSettings(weights=True)))
    assert {op.subject: op.after for op in result.operations} == {"full": 20, "half": 30, "light": 40, "idle": 50}
    assert result.operations[0].sentence == "full is weighted so that Slurm fills nodes in the same order"
