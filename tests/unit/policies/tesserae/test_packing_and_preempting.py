"""Rounds in which newcomers preempt jobs on shared GPUs, and those who gave way are packed in the same round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.model import (
    Decision,
    Job,
    JobId,
    JobSpec,
    JobState,
    Node,
    NodeAllocation,
    Operation,
    Reason,
    ReasonCode,
    Request,
    SchedulerState,
    Verb,
)
from slurmsched.policies import policy
from slurmsched.policies.stages import Situation
from slurmsched.policies.tesserae.packing import may_share, relative_rates_of_pair
from slurmsched.rounds.feasibility import check_feasible
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import ManageSettings, Mode, PolicySettings, RoundSettings, Settings
from tests.builders import job, node, share, situation, snapshot
from tests.unit.policies.tesserae.test_packed import BOTH, ONE, RATES, SHARDS, TWO, devices, half, has, shards, users

LONG = 100_000.0
"""GPU-seconds attained by a job that has run for long: those of the first queue come before it."""


def asked(nodes: Sequence[Node], jobs: Sequence[Job], service: Mapping[JobId, float], **other: Any) -> Situation:
    widens = other.pop("widens", True)
    seen = replace(snapshot(nodes, jobs), widens_shards=widens)
    return situation(nodes, jobs, RATES, service, seen=seen, **other)


def decided(nodes: Sequence[Node], jobs: Sequence[Job], served: Sequence[JobId], **other: Any) -> Decision:
    return policy("tesserae-packed", "las").decide(asked(nodes, jobs, dict.fromkeys(served, LONG), **other))


def whole(index: int, where: str = "n1") -> NodeAllocation:
    return has(index, where, SHARDS)


@pytest.mark.parametrize(
    ("nodes", "jobs", "expected", "victims"),
    [
        pytest.param(
            [ONE],
            [half(1, "a", on=[whole(0)]), half(2, "b")],
            {"1": "n1:0", "2": "n1:0"},
            {"1": "2"},
            id="who gives way is the guest of whom it gave way to",
        ),
        pytest.param(
            [ONE],
            [half(1, "x", on=[whole(0)]), half(2, "b")],
            {"2": "n1:0"},
            {"1": "2"},
            id="it waits if nobody knows their rates",
        ),
        pytest.param(
            BOTH,
            [half(1, "a", on=[whole(0)]), half(2, "c", on=[has(0, "n2")]), half(3, "b")],
            {"1": "n2:0", "2": "n2:0", "3": "n1:0"},
            {"1": "3"},
            id="it is the guest of the job with which it does most",
        ),
        pytest.param(
            [ONE],
            [half(1, "a", on=[has(0)]), half(2, "b", on=[has(0)]), half(3, "c")],
            {"1": "n1:0", "3": "n1:0"},
            {"2": "3"},
            id="of a pair only the one gives way that does less beside the newcomer",
        ),
        pytest.param(
            [ONE],
            [half(1, "b", on=[has(0)]), half(2, "a", on=[has(0)]), half(3, "c", "pack=no")],
            {"3": "n1:0"},
            {"1": "3", "2": "3"},
            id="both of a pair give way to one that shares with nobody",
        ),
        pytest.param(
            [TWO],
            [
                half(1, "a", on=[whole(0)]),
                half(2, "a", on=[whole(1)]),
                job(3, 2, request=Request(gpus=2, gpus_per_node=2)),
            ],
            {"3": "n1:0,n1:1"},
            {"1": "3", "2": "3"},
            id="jobs with shards give way to one with whole GPUs",
        ),
        pytest.param(
            [TWO],
            [job(1, 2, on=[share("n1", 2)]), half(2, "a"), half(3, "b")],
            {"2": "n1:0", "3": "n1:1"},
            {"1": "2"},
            id="a job of whole GPUs gives way, and newcomers with a GPU each are no pair",
        ),
    ],
)
def test_who_gives_way_and_is_packed(
    nodes: Sequence[Node], jobs: Sequence[Job], expected: dict[str, str], victims: dict[str, str]
) -> None:
    decision = decided(nodes, jobs, [one.id for one in jobs if one.allocations and one.hints.model != "c"])
    assert devices(decision) == expected
    assert dict(decision.victims.items()) == victims


def test_who_gives_way_is_told_to_whom_and_with_whom_it_goes_on() -> None:
    decision = decided([ONE], [half(1, "a", on=[whole(0)]), half(2, "b")], ["1"])
    assert shards(decision) == {"1": 5, "2": 5}
    assert [decision.targets[name].speed for name in "12"] == [0.8, 0.7]
    codes = [reason.code for reason in decision.targets["1"].reasons]
    assert (codes[0], codes[-1]) == (ReasonCode.NEWCOMER_FIRST, ReasonCode.SHARES_GPU)


@pytest.mark.parametrize(
    ("other", "hosts_part"),
    [
        pytest.param({"non_preemptible": {"1": Reason(ReasonCode.MIN_RUN_TIME)}}, 5, id="a guard protects who runs"),
        pytest.param({"max_moves": 0}, 5, id="the round has no moves left"),
        pytest.param({"starts_only": True}, 5, id="in an early round"),
    ],
)
def test_a_newcomer_that_may_not_preempt_is_the_guest_of_an_open_half(other: Any, hosts_part: int) -> None:
    jobs = [half(1, "a", on=[has(0, shards=hosts_part)]), half(2, "b")]
    decision = decided([ONE], jobs, ["1"], **other)
    assert devices(decision) == {"1": "n1:0", "2": "n1:0"}
    assert not decision.victims


def test_nobody_gives_way_to_shards_where_requests_cannot_be_widened() -> None:
    decision = decided([ONE], [half(1, "b", on=[has(0)]), half(2, "b")], ["1"], widens=False)
    assert devices(decision) == {"1": "n1:0", "2": "n1:0"}
    assert not decision.victims


def test_without_queues_a_job_with_shards_is_preempted_only_by_one_a_round_behind_it() -> None:
    """Two like it would take turns in every round, at a restart each."""
    jobs = [half(1, "x", on=[whole(0)]), half(2, "b")]
    made = policy("tesserae-packed", "las", ())
    for attained, victims in ((149.0, {}), (151.0, {"1": "2"})):
        now = asked([ONE], jobs, {"1": attained}, period=300.0)
        parts = {one.id: now.snapshot.part_of_gpu(one) for one in jobs}
        assert made.decide(replace(now, knowledge=replace(now.knowledge, parts_of_gpu=parts))).victims == victims


def planned(jobs: Sequence[Job], nodes: Sequence[Node], service: Mapping[JobId, float]) -> list[tuple[Verb, str, Any]]:
    settings = Settings(
        policy=PolicySettings(system="tesserae-packed", order="las"),
        rounds=RoundSettings(mode=Mode.ENFORCE),
        manage=ManageSettings(partitions=("gpu",)),
    )
    state = SchedulerState(service=dict(service))
    result = run_round(snapshot(nodes, jobs), state, settings, RATES, Identity("synsched", Privilege.OPERATOR))
    return [(op.verb, op.subject, _shards_or_standing(op)) for op in result.plan.operations]


def _shards_or_standing(operation: Operation) -> int | tuple[JobId, ...] | None:
    """The shards of an update, or the jobs that run before a release."""
    if isinstance(operation.after, JobSpec):
        return operation.after.shards
    return operation.standing if operation.verb is Verb.RELEASE else None


def test_the_plan_requeues_with_a_checkpoint_and_starts_both_with_half_of_the_shards() -> None:
    old = replace(half(1, "a", "ckpt=usr1", on=[whole(0)]), start_time=1.0, run_time=9000.0)
    old = replace(old, current_request=replace(old.current_request, shards=SHARDS))
    assert planned([old, half(2, "b")], [ONE], {"1": LONG}) == [
        (Verb.HOLD, "2", None),
        (Verb.NOTIFY, "1", None),
        (Verb.REQUEUE, "1", None),
        (Verb.UPDATE, "1", 5),
        (Verb.RELEASE, "1", ()),
        (Verb.UPDATE, "2", 5),
        (Verb.RELEASE, "2", ("1",)),
    ]


def test_a_guest_that_starts_after_a_newcomer_is_not_awaited_by_it() -> None:
    """Job 5 gets the GPU of job 1, which goes on as the last to start on that node: neither waits for the other."""
    runs = [
        replace(half(at + 1, model, "ckpt=usr1", on=[whole(at)]), start_time=1.0, run_time=9000.0)
        for at, model in enumerate("ax")
    ]
    newcomers = [half(5, "x", "pack=no"), half(6, "b")]
    now = asked([TWO], [*runs, *newcomers], {"1": LONG, "2": LONG})
    decision = policy("tesserae-packed", "las").decide(now)
    where = devices(decision)
    assert where["1"] == where["6"] != where["5"]
    assert decision.targets["1"].after == decision.targets["6"].after == ("5",)
    operations = planned([*runs, *newcomers], [TWO], {"1": LONG, "2": LONG})
    releases = {name: standing for verb, name, standing in operations if verb is Verb.RELEASE}
    assert releases == {"5": (), "1": ("5",), "6": ("5",)}


def paired(seconds: int, **other: Any) -> Decision:
    """Job 1 of a and its guest of b, which keeps 0.7 of its rate, both with so many seconds left; a GPU is idle."""
    both = [half(at + 1, model, f"duration={seconds}", on=[has(0)]) for at, model in enumerate("ab")]
    jobs = [replace(one, start_time=1.0 + at) for at, one in enumerate(both)]
    return decided(other.pop("nodes", [TWO]), [*jobs, *other.pop("more", ())], [], restart_cost=120.0, **other)


def test_a_pair_is_moved_apart_once_a_gpu_is_idle_and_that_pays_for_the_restart() -> None:
    """Both would end after at least 1,500 s together; the guest gains 0.3 of that, more than three restarts."""
    decision = paired(1200)
    assert devices(decision) == {"1": "n1:0", "2": "n1:1"}
    assert shards(decision) == {"1": 5, "2": SHARDS}
    assert [decision.targets[name].beside for name in "12"] == [(), ()]
    assert decision.targets["1"].speed == 1.0
    assert decision.targets["2"].reasons[0].details == {"saving": "7 min 30 s", "cost": "2 min"}


def test_the_host_moves_if_its_guest_may_not() -> None:
    decision = paired(1800, non_preemptible={"2": Reason(ReasonCode.NO_CHECKPOINT)})
    assert devices(decision) == {"1": "n1:1", "2": "n1:0"}


@pytest.mark.parametrize(
    ("seconds", "other"),
    [
        pytest.param(900, {}, id="where it would not pay"),
        pytest.param(1200, {"nodes": [ONE]}, id="where no GPU is idle"),
        pytest.param(1200, {"more": [half(3, "x")]}, id="where one that waits takes the idle GPU"),
        pytest.param(
            1200,
            {"non_preemptible": dict.fromkeys("12", Reason(ReasonCode.NO_CHECKPOINT))},
            id="if guards protect both",
        ),
        pytest.param(1200, {"starts_only": True}, id="in an early round"),
        pytest.param(1200, {"widens": False}, id="where it would not be certain of the whole GPU"),
    ],
)
def test_a_pair_stays_together(seconds: int, other: Any) -> None:
    assert {name: where for name, where in devices(paired(seconds, **other)).items() if name != "3"} == {
        "1": "n1:0", "2": "n1:0"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ran", "hint", "guest_on"),
    [
        pytest.param(0.0, "", "n1:0", id="stays together at first"),
        pytest.param(900.0, "", "n1:0", id="stays while what it ran would not pay for a restart"),
        pytest.param(1200.0, "", "n1:1", id="is moved apart once that would pay if it ran as long again"),
        pytest.param(1200.0, "duration=1500", "n1:0", id="unless the end of one is known to be near"),
    ],
)
def test_a_pair_of_which_nobody_knows_how_long_it_runs(ran: float, hint: str, guest_on: str) -> None:
    both = half(1, "a", hint, on=[has(0)]), half(2, "b", on=[has(0)])
    jobs = [replace(one, start_time=1.0 + at) for at, one in enumerate(both)]
    decision = policy("tesserae-packed", "las").decide(asked([TWO], jobs, dict.fromkeys("12", ran), restart_cost=120.0))
    assert devices(decision) == {"1": "n1:0", "2": guest_on}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Job], dict[JobId, float]]:
    nodes = [node(f"n{at}", draw(st.integers(1, 3)), shards=SHARDS) for at in range(draw(st.integers(1, 2)))]
    jobs = list[Job]()
    for own in nodes:
        for gpu in own.gpus:
            for part in draw(st.sampled_from(((), (SHARDS,), (SHARDS,), (5,), (5, 5), (0,)))):
                model = draw(st.sampled_from("abc"))
                if part:
                    jobs.append(half(len(jobs) + 1, model, on=[has(gpu.index, own.name, part)]))
                else:
                    whole_gpu = Request(gpus=1, gpus_per_node=1)
                    jobs.append(job(len(jobs) + 1, request=whole_gpu, on=[share(own.name, (gpu.index,), 1, 0)]))
    service = {one.id: draw(st.sampled_from((0.0, LONG))) for one in jobs}
    for _ in range(draw(st.integers(1, 4))):
        hint = draw(st.sampled_from(("", "", "pack=no")))
        request = draw(st.sampled_from((None, None, None, Request(gpus=1, gpus_per_node=1))))
        name = len(jobs) + 1
        jobs.append(half(name, draw(st.sampled_from("abc")), hint) if request is None else job(name, request=request))
    return nodes, jobs, service


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.data())
def test_however_jobs_leave_and_start_only_the_pairs_of_the_round_share_a_gpu(data: st.DataObject) -> None:
    nodes, jobs, service = data.draw(clusters())
    now = asked(nodes, jobs, service)
    decision = policy("tesserae-packed", "las").decide(now)
    check = check_feasible(now, decision)
    assert not check.deferred
    on = {one.id: list(one.allocations) for one in jobs if one.allocations}
    leaving, starts = list(check.requeued), {start.job.id: start for start in check.starts}
    assert set(leaving) == set(decision.victims)
    while leaving or starts:
        up = on.keys() - set(leaving)
        ready = [
            name
            for name, start in starts.items()
            if up.issuperset(start.target.after) and not set(start.gone) & set(leaving)
        ]
        rooms = {
            name: room for name in ready if (room := found(nodes, on, starts[name].target.allocations)) is not None
        }
        event = data.draw(st.sampled_from([*(f"-{name}" for name in leaving), *rooms]), label="next")
        if event.startswith("-"):
            leaving.remove(event[1:])
            del on[event[1:]]
        else:
            on[event] = rooms[event]
            del starts[event]
    running = {
        one.id: replace(one, allocations=tuple(on[one.id]), state=JobState.RUNNING) for one in jobs if one.id in on
    }
    assert running.keys() == decision.targets.keys()
    before = {frozenset(names) for names in users([one for one in jobs if one.allocations]).values()}
    for names in users(list(running.values())).values():
        if len(names) == 1 or frozenset(names) in before:
            continue
        one, other = (running[name] for name in names)
        assert decision.targets[one.id].beside == (other.id,)
        assert may_share(one)
        assert may_share(other)
        both = relative_rates_of_pair(RATES, one, other, "v100")
        assert both is not None
        assert sum(both) > 1


def found(
    nodes: Sequence[Node], on: Mapping[JobId, Sequence[NodeAllocation]], wanted: Sequence[NodeAllocation]
) -> list[NodeAllocation] | None:
    """What Slurm gives a job that is to start: for shards the first device with enough left, else idle ones."""
    (asks,) = wanted
    used = {gpu.index: 0 for own in nodes if own.name == asks.node for gpu in own.gpus}
    for own in (own for shares in on.values() for own in shares if own.node == asks.node):
        for index in own.indices:
            used[index] += own.shards or SHARDS
    room = [index for index, taken in used.items() if taken + (asks.shards or SHARDS) <= SHARDS]
    count = 1 if asks.shards else asks.resources.gpus
    return [replace(asks, indices=tuple(room[:count]))] if len(room) >= count else None
