"""Rounds of the system `synergy` on tiny clusters: who starts, with what, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from slurmsched.knowledge import Knowledge, Profile
from slurmsched.knowledge.usage import use_profiles
from slurmsched.model import (
    CpuNeed,
    Decision,
    Job,
    JobState,
    MeasuredUse,
    Node,
    NodeState,
    Reason,
    ReasonCode,
    Request,
    Reservation,
    Resources,
)
from slurmsched.policies import Situation, policy
from tests.builders import GIB, MEMORY, job, node, profile, share, situation, snapshot

HOUR = 3600.0


def got(decision: Decision) -> dict[str, dict[str, tuple[int, int, int]]]:
    """Node, GPUs, CPUs and GiB of every job that shall run."""
    return {
        target.job: {
            share.node: (share.resources.gpus, share.resources.cpus, share.resources.memory // GIB)
            for share in target.allocations
        }
        for target in decision.targets.values()
    }


def cpus(decision: Decision) -> dict[str, int]:
    return {target.job: target.resources.cpus for target in decision.targets.values()}


def codes(decision: Decision, number: int) -> list[ReasonCode]:
    return [reason.code for reason in decision.targets[str(number)].reasons]


TABLE_1 = {
    "resnet18": profile("resnet18", {3: 1, 5.75: 2}, {62.5: 1, 100: 2}),
    "m5": profile("m5", {1.5: 1, 3: 2}, {62.5: 1, 112.5: 2}),
    "transformer": profile("transformer", {0.25: 1}, {25: 1}),
    "gnmt": profile("gnmt", {1.5: 0.5, 3: 1}, {12.5: 1}),
}
"""Models that want what table 3 gives them."""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "proportional",
            {
                "1": {"s1": (4, 12, 250)},
                "2": {"s1": (4, 12, 250)},
                "3": {"s2": (4, 12, 250)},
                "4": {"s2": (4, 12, 250)},
            },
            id="table 2: GPU-proportional allocation",
        ),
        pytest.param(
            "synergy",
            {
                "1": {"s1": (4, 23, 400)},
                "2": {"s2": (4, 12, 450)},
                "3": {"s1": (4, 1, 100)},
                "4": {"s2": (4, 12, 50)},
            },
            id="table 3: resource-sensitive allocation",
        ),
    ],
)
def test_the_example_of_synergys_section_2(name: str, expected: dict[str, dict[str, tuple[int, int, int]]]) -> None:
    jobs = [job(at, 4, hint=f"model={model},cpus=tune", submit_time=at) for at, model in enumerate(TABLE_1, start=1)]
    asked = situation([node("s1"), node("s2")], jobs, Knowledge(TABLE_1))
    assert got(policy(name, "fifo").decide(asked)) == expected


def test_a_cpu_hungry_job_has_more_cpus_than_its_share_and_a_language_job_fewer() -> None:
    jobs = [job(1, 4, hint="model=alexnet"), job(2, 4, hint="model=bert")]
    decision = policy("synergy").decide(situation([node()], jobs))
    assert cpus(decision) == {"1": 20, "2": 4}
    assert codes(decision, 1) == [ReasonCode.FIRST_IN_ORDER, ReasonCode.TUNED_UP]
    assert codes(decision, 2) == [ReasonCode.FIRST_IN_ORDER, ReasonCode.TUNED_DOWN]
    assert decision.targets["1"].speed > 1.5
    assert decision.targets["2"].speed == 1.0


def test_jobs_of_one_round_make_room_for_each_other_but_keep_the_speed_of_their_share() -> None:
    jobs = [job(number, hint="model=alexnet", submit_time=number) for number in range(8)]
    decision = policy("synergy").decide(situation([node()], jobs))
    assert set(cpus(decision).values()) == {3}
    assert all(target.speed == 1.0 for target in decision.targets.values())


def test_spare_cpus_go_where_they_bring_most() -> None:
    known = Knowledge(
        {
            "steep": profile("steep", {3: 1, 6: 4}),
            "flat": profile("flat", {3: 1, 6: 1.5}),
        }
    )
    jobs = [job(1, 4, hint="model=flat", submit_time=1), job(2, 4, hint="model=steep", submit_time=2)]
    decision = policy("synergy", "fifo").decide(situation([node(cpus=36)], jobs, known))
    assert cpus(decision) == {"1": 18, "2": 18}
    decision = policy("synergy", "fifo").decide(situation([node(cpus=36, gpus=12)], jobs, known))
    assert cpus(decision) == {"1": 12, "2": 24}


def test_a_job_of_which_nothing_is_known_gets_its_share_of_cpus() -> None:
    decision = policy("synergy").decide(situation([node()], [job(1, 2, cpus=5, memory=7 * GIB)]))
    assert got(decision) == {"1": {"n1": (2, 6, 7)}}


def test_a_job_of_which_nothing_is_known_gets_exactly_what_it_asked_for_if_that_is_more() -> None:
    decision = policy("synergy").decide(situation([node()], [job(1, 2, cpus=7, memory=7 * GIB)]))
    assert got(decision) == {"1": {"n1": (2, 7, 7)}}
    assert codes(decision, 1) == [ReasonCode.FIRST_IN_ORDER, ReasonCode.AS_REQUESTED]


def test_no_job_has_more_than_its_least_before_one_of_which_nothing_is_known_has_its_share() -> None:
    jobs = [job(1, 4, hint="model=alexnet"), job(2, 4, cpus=4)]
    assert cpus(policy("synergy").decide(situation([node()], jobs))) == {"1": 12, "2": 12}


def test_where_others_have_its_share_it_starts_with_what_it_asked_for() -> None:
    theirs = job(1, 6, on=[share(gpus=6, cpus=20)])
    for asked, cpus_left in ((1, 4), (4, 4)):
        mine = job(2, 2, cpus=asked)
        assert cpus(policy("synergy").decide(situation([node()], [theirs, mine], managed=[mine]))) == {"2": cpus_left}


HUNGRY, MODEST, IDLE, MEMORY_ONLY = (
    MeasuredUse("name", 3, 0.0, needs, 9.0)
    for needs in (
        (CpuNeed("v100", 16.0, spares=False),),
        (CpuNeed("v100", 2.0, spares=True),),
        (CpuNeed("v100", 2.0, spares=False, suffices=True),),
        (),
    )
)
"""What runs used: all of their eight CPUs; one of them, beside busy GPUs or unknown ones; and nobody knows how many."""


def decided(one: Node, jobs: Sequence[Job], by: MeasuredUse, **models: Profile) -> Decision:
    """The decision where runs of the work of all jobs that name no model used this."""
    use = use_profiles({one.id: by for one in jobs if one.hints.model is None})
    asked = replace(situation([one], jobs), knowledge=Knowledge(models, by_use=use))
    return policy("synergy", "fifo").decide(asked)


@pytest.mark.parametrize(
    ("by", "each"),
    [
        pytest.param(HUNGRY, 6, id="hungry"),
        pytest.param(IDLE, 6, id="idle"),
        pytest.param(MEMORY_ONLY, 6, id="memory only"),
        pytest.param(MODEST, 4, id="modest: twice what they used is less than their share"),
    ],
)
def test_jobs_that_can_checkpoint_lend_cpus_above_their_share_so_that_no_gpu_is_idle(
    by: MeasuredUse, each: int
) -> None:
    jobs = [job(number, 2, cpus=16, hint="ckpt=usr1", submit_time=number) for number in range(1, 5)]
    assert cpus(decided(node(), jobs, by)) == dict.fromkeys("1234", each)


def test_fewer_cpus_than_the_share_are_given_only_to_a_job_that_could_get_them_back() -> None:
    jobs = [job(1, 2, cpus=6), job(2, 2, cpus=6, hint="ckpt=usr1", submit_time=1)]
    assert cpus(decided(node(), jobs, MODEST)) == {"1": 6, "2": 4}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(job(1, 2, cpus=16), id="it has no checkpoint"),
        pytest.param(job(1, 2, cpus=16, hint="ckpt=usr1", requeue=False), id="it may not be requeued"),
        pytest.param(job(1, 2, cpus=16, hint="ckpt=usr1,move=no"), id="its owner wants it to stay"),
        pytest.param(job(1, 2, cpus=16, hint="ckpt=usr1,cpus=keep"), id="its owner wants these CPUs"),
    ],
)
def test_a_job_that_could_not_get_them_back_lends_no_cpus(other: Job) -> None:
    jobs = [other, job(2, 2, cpus=16, hint="ckpt=usr1", submit_time=1)]
    assert cpus(decided(node(cpus=20), jobs, HUNGRY))["1"] >= 16
    jobs[0] = replace(other, hints=jobs[1].hints, requeue=True)
    assert set(cpus(decided(node(cpus=20), jobs, HUNGRY))) == {"1", "2"}


@pytest.mark.parametrize("by", [HUNGRY, MEMORY_ONLY], ids=["all were busy", "nobody knows how many it needs"])
def test_a_job_that_lent_cpus_gets_them_back_before_others_get_more_than_their_share(by: MeasuredUse) -> None:
    jobs = [job(1, 4, hint="model=steep"), job(2, 1, cpus=8, hint="ckpt=usr1", submit_time=1)]
    steep = profile("steep", {3: 1, 6: 99})
    assert cpus(decided(node(), jobs, by, steep=steep)) == {"1": 16, "2": 8}
    assert cpus(decided(node(), jobs, MODEST, steep=steep)) == {"1": 22, "2": 2}, "two are enough"
    assert cpus(decided(node(), jobs, IDLE, steep=steep)) == {"1": 21, "2": 3}, "others gain by them"


def test_what_a_job_lent_and_nobody_gains_by_it_has_itself_unless_runs_proved_that_less_is_enough() -> None:
    jobs = [job(1, 1, cpus=8, hint="ckpt=usr1"), job(2, 1, 1, hint="model=gentle", submit_time=1)]
    gentle = profile("gentle", {1: 1})
    assert cpus(decided(node(), jobs, IDLE, gentle=gentle)) == {"1": 8, "2": 1}
    assert cpus(decided(node(), jobs, MODEST, gentle=gentle)) == {"1": 2, "2": 1}


@pytest.mark.parametrize(
    ("hint", "gib"),
    [
        pytest.param("model=lean", 200, id="memory that was asked for is kept"),
        pytest.param("model=lean,mem=tune", 20, id="unless its owner lets it shrink"),
    ],
)
def test_memory_shrinks_only_where_its_owner_said_so(hint: str, gib: int) -> None:
    known = Knowledge({"lean": profile("lean", {1: 1}, {20: 1})})
    decision = policy("synergy").decide(situation([node()], [job(1, memory=200 * GIB, hint=hint)], known))
    assert got(decision)["1"]["n1"][2] == gib


def test_a_running_job_keeps_exactly_what_it_has() -> None:
    running = job(1, hint="model=alexnet", on=[share(cpus=3)])
    decision = policy("synergy").decide(situation([node()], [running]))
    assert decision.targets["1"].allocations == running.allocations
    assert codes(decision, 1) == [ReasonCode.KEEPS_LEASE]


def test_a_job_whose_gpus_cannot_be_had_is_passed_over_and_smaller_ones_fill_in() -> None:
    jobs = [job(1, on=[share()]), job(2, 8, submit_time=1), job(3, 1, submit_time=2), job(4, 2, submit_time=3)]
    decision = policy("synergy", "fifo").decide(situation([node()], jobs))
    assert set(decision.targets) == {"1", "3", "4"}
    assert codes(decision, 3)[0] == codes(decision, 4)[0] == ReasonCode.FILLS_IN
    assert decision.waiting["2"] == Reason(ReasonCode.BEHIND, {"count": 1, "order": "fifo", "last": "1"})


def test_gpus_that_lie_apart_are_no_room_for_a_gang() -> None:
    nodes = [node("a", busy=range(4)), node("b", busy=range(4))]
    jobs = [job(1, 8, submit_time=1), job(2, 1, on=[share("a", [4], cpus=1)])]
    decision = policy("synergy", "fifo").decide(situation(nodes, jobs))
    assert decision.waiting["1"] == Reason(ReasonCode.BEHIND, {"count": 1, "order": "fifo", "last": "2"})
    jobs = [job(1, 6)]
    assert policy("synergy").decide(situation(nodes, jobs)).waiting["1"] == Reason(ReasonCode.NO_ROOM, {"gpus": 6})


def test_a_job_waits_for_those_that_are_ending_rather_than_displace_somebody() -> None:
    ending = job(1, 4, on=[share(gpus=[0, 1, 2, 3], cpus=12, memory=MEMORY // 2)], state=JobState.COMPLETING)
    running = job(2, 4, on=[share(gpus=[4, 5, 6, 7], cpus=12, memory=MEMORY // 2)])
    jobs = [ending, running, job(3, 4)]
    asked = situation([node()], jobs, service={"2": 9e5}, managed=jobs[1:])
    decision = policy("synergy").decide(asked)
    assert decision.waiting["3"] == Reason(ReasonCode.FREED_SOON, {"jobs": "1", "nodes": "n1"})
    assert not decision.victims


def test_room_that_is_kept_for_one_job_is_not_given_to_the_next() -> None:
    ending = job(1, 7, on=[share(gpus=7, cpus=7, memory=GIB)], state=JobState.COMPLETING)
    jobs = [ending, job(2, 8, submit_time=1), job(3, 1, submit_time=2)]
    decision = policy("synergy", "fifo").decide(situation([node()], jobs, managed=jobs[1:]))
    assert not decision.targets
    assert [reason.code for reason in decision.waiting.values()] == [ReasonCode.FREED_SOON, ReasonCode.NO_ROOM]


@pytest.mark.parametrize(
    ("one", "what"),
    [
        pytest.param(
            job(1, request=Request(gpus=9, max_nodes=1)),
            "9 GPUs on one node; the largest has 8",
            id="more GPUs than a node has",
        ),
        pytest.param(
            job(1, 21), "21 GPUs; the nodes that it may use have 20 in all", id="more GPUs than the cluster has"
        ),
        pytest.param(
            job(1, request=Request(gpus=32, nodes=4, gpus_per_node=8, tasks=4, cpus=4)),
            "32 GPUs on 4 nodes; the largest have 20 together",
            id="more nodes than there are",
        ),
        pytest.param(
            job(1, request=Request(gpus=1, nodes=2, tasks=2, cpus=2)),
            "a GPU on each of 2 nodes, but only 1 GPU in all",
            id="fewer GPUs than nodes",
        ),
        pytest.param(
            job(1, request=Request(gpus=16, nodes=2, gpus_per_node=8, tasks=2, cpus=2, gpu_type="v100")),
            "",
            id="two full nodes of two there are",
        ),
        pytest.param(
            job(1, request=Request(gpus=18, nodes=3, gpus_per_node=6, tasks=3, cpus=3)),
            "3 nodes with 6 GPUs each; 2 have that many",
            id="more nodes with so many GPUs than there are",
        ),
        pytest.param(
            job(1, request=Request(gpus=1, gpu_type="h100")),
            "nodes with h100 GPUs in partition gpu; there are none",
            id="a GPU type that does not exist",
        ),
        pytest.param(
            job(1, request=Request(gpus=1, features="ib")),
            "nodes with GPUs in partition gpu that match its constraint and node lists; there are none",
            id="a constraint that no node meets",
        ),
        pytest.param(
            job(1, request=Request(gpus=1, features="[a*2&b]")),
            "constraint '[a*2&b]' is not of the form a&b, a|b, (a|b)&c or [a|b]",
            id="a constraint that cannot be read",
        ),
        pytest.param(job(1, cpus=25), "25 CPUs on one node; the largest has 24", id="more CPUs than a node has"),
        pytest.param(
            job(1, memory=501 * GIB),
            f"{501 * GIB} MiB of memory on one node; the largest has {500 * GIB}",
            id="more memory than a node has",
        ),
    ],
)
def test_what_never_fits_says_what_is_too_much(one: Job, what: str) -> None:
    nodes = [node("a"), node("b", busy=[0]), node("c", gpus=4, gpu_type="k80")]
    reason = policy("synergy").decide(situation(nodes, [one])).waiting["1"]
    assert reason == (
        Reason(ReasonCode.NEVER_FITS, {"what": what}) if what else Reason(ReasonCode.NO_ROOM, {"gpus": 16})
    )


def test_a_node_that_is_down_now_may_be_up_again() -> None:
    decision = policy("synergy").decide(situation([node(state=NodeState.DOWN)], [job(1)]))
    assert decision.waiting["1"] == Reason(ReasonCode.NODES_CLOSED, {"nodes": "n1 is down"})


@pytest.mark.parametrize("name", ["synergy", "gandiva-fair", "slurm"])
@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Request(gpus=1, pinned=frozenset({"n1"})), "n1 is drained"),
        (Request(gpus=1, gpu_type="p100"), "p1 is drained, p2 is drained, p3 is drained and 1 more"),
    ],
    ids=["the node that it names", "the nodes of its type"],
)
def test_nodes_out_of_service_are_named(name: str, request_: Request, told: str) -> None:
    drained = [node(f"p{number}", 2, "p100", state=NodeState.DRAINED) for number in range(1, 5)]
    nodes = [node("n1", state=NodeState.DRAINED), node("n2"), *drained]
    decision = policy(name).decide(situation(nodes, [job(1, request=request_)]))
    assert decision.waiting["1"] == Reason(ReasonCode.NODES_CLOSED, {"nodes": told})


def test_nodes_that_are_reserved_are_named() -> None:
    held = Reservation("course", frozenset({"n1"}), 0, 1e9)
    seen = snapshot([node()], [job(1)], reservations=(held,))
    decision = policy("synergy").decide(situation([], [], seen=seen, open_nodes={"gpu": frozenset()}))
    assert decision.waiting["1"] == Reason(ReasonCode.RESERVED, {"reservation": "course"})


def test_other_peoples_jobs_are_facts() -> None:
    theirs = job(1, 6, on=[share(gpus=6, cpus=20, memory=100 * GIB)])
    decision = policy("synergy").decide(situation([node()], [theirs, job(2, 2, cpus=4)], managed=[job(2, 2, cpus=4)]))
    assert cpus(decision) == {"2": 4}
    decision = policy("synergy").decide(situation([node()], [theirs, job(2, 2, cpus=5)], managed=[job(2, 2, cpus=5)]))
    assert decision.waiting["2"].code is ReasonCode.BESIDE_GPUS


def test_a_node_whose_job_wants_it_alone_takes_nobody_else() -> None:
    alone = job(1, request=Request(gpus=1, exclusive=True), on=[share(cpus=1)])
    decision = policy("synergy").decide(situation([node()], [alone, job(2)]))
    assert "2" in decision.waiting


def test_a_job_that_wants_a_node_alone_gets_all_its_cpus_and_memory() -> None:
    decision = policy("synergy").decide(situation([node()], [job(1, request=Request(gpus=2, exclusive=True)), job(2)]))
    assert decision.targets["1"].resources == Resources(2, 24, MEMORY)
    assert "2" in decision.waiting


def test_a_suspended_job_keeps_its_gpus() -> None:
    asleep = job(1, 8, on=[share(gpus=8, cpus=24, memory=MEMORY)], state=JobState.SUSPENDED)
    asked: Situation = situation([node()], [asleep, job(2)], service={"1": 9e5})
    decision = policy("synergy").decide(asked)
    assert set(decision.targets) == {"1"}
    assert not decision.victims


def test_a_job_that_lacks_cpus_beside_idle_gpus_is_not_told_that_gpus_are_missing() -> None:
    jobs = [job(1, 4, 24, on=[share(gpus=4, cpus=24)]), job(2, 1, 2)]
    decision = policy("synergy", "fifo").decide(situation([node()], jobs))
    assert decision.waiting["2"].sentence == "waits: it lacks 2 CPUs beside 1 free GPU"


def test_a_job_that_asks_for_all_memory_is_told_that_others_have_some_of_it() -> None:
    whole = job(2, 1, 2)
    asks = replace(whole.original_request, whole_memory=True)
    jobs = [job(1, 4, 12, on=[share(gpus=4, cpus=12)]), replace(whole, original_request=asks, current_request=asks)]
    decision = policy("synergy", "fifo").decide(situation([node()], jobs))
    assert decision.waiting["2"].sentence == "waits: it lacks all memory of their nodes beside 1 free GPU"


def test_a_job_waits_for_those_that_have_what_it_could_use() -> None:
    nodes = [node("a", 1), node("b", 1, "k80", cpus=4)]
    jobs = [
        job(1, on=[share("a", cpus=1)], submit_time=1),
        job(2, on=[share("b", cpus=1, gpu_type="k80")], submit_time=2),
        job(3, request=Request(gpus=1, cpus=1, gpu_type="v100"), submit_time=3),
    ]
    decision = policy("synergy", "fifo").decide(situation(nodes, jobs))
    assert decision.waiting["3"] == Reason(ReasonCode.BEHIND, {"count": 1, "order": "fifo", "last": "1"})
