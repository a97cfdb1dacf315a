"""Stages of different systems in one policy: each is a row of at most five lines, and does what both promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import Decision, Job, NodeAllocation, ReasonCode, Request, Resources
from slurmsched.policies.finish.defragment import defragment
from slurmsched.policies.finish.restart import migrate_to_due_type
from slurmsched.policies.gandiva_fair.policy import GandivaTickets
from slurmsched.policies.hadar.policy import HadarPrices
from slurmsched.policies.orders import FirstInFirstOut, LeastAttainedService
from slurmsched.policies.pipeline import FINISH_STEPS, Pipeline
from slurmsched.policies.place.placement import CONSOLIDATED
from slurmsched.policies.place.scores import LEAST_FRAGMENTS
from slurmsched.policies.place.worth import LEAST_LOSS, UNIFIED_PLACEMENT
from slurmsched.policies.sizes import AsRequested, Proportional, Tune
from slurmsched.policies.stages import Policy
from tests.builders import job, node, share, situation
from tests.turning import Cluster, tickets

FRAGMENTS_UNDER_TUNE = Pipeline("fragments-tune", LeastAttainedService(), Tune(), LEAST_FRAGMENTS)
TICKETS_OVER_FRAGMENTS = Pipeline("fair-fragments", None, Tune(), LEAST_FRAGMENTS, entitle=GandivaTickets())
PARTS_UNDER = {
    "synergy": Pipeline("synergy", FirstInFirstOut(), Tune(), CONSOLIDATED, (defragment, *FINISH_STEPS)),
    "gandiva-fair": Pipeline(
        "gandiva-fair", None, Proportional(), CONSOLIDATED, (defragment,), entitle=GandivaTickets()
    ),
    "hadar": Pipeline(
        "hadar", None, Proportional(), CONSOLIDATED, (defragment, migrate_to_due_type), entitle=HadarPrices()
    ),
}


def shards(count: int, cpus: int = 1) -> Request:
    return Request(shards=count, cpus=cpus)


def has(count: int, gpu: int, where: str) -> NodeAllocation:
    return NodeAllocation(where, Resources(0, 1, 0), "v100", (gpu,), count)


def nodes_of(decision: Decision) -> dict[str, str]:
    return {target.job: ",".join(target.nodes) for target in decision.targets.values()}


def test_fragmentation_scores_place_what_synergy_sized() -> None:
    """n1 has all four GPUs and n2 one. The usual job takes four GPUs, so one GPU goes to n2. The sizes are Synergy's:
    an image model gets more CPUs than a language model."""
    usual = ((Request(gpus=4, gpus_per_node=4, cpus=4), 9),)
    nodes = [node("n1", 4), node("n2", 4, busy=[0, 1, 2], used_cpus=6)]
    image = job(1, request=Request(gpus=1, cpus=6), hint="model=resnet18")
    decision = FRAGMENTS_UNDER_TUNE.decide(situation(nodes, [image], recent_requests=usual))
    (target,) = decision.targets.values()
    assert (target.nodes, target.resources.cpus > 6) == (("n2",), True)
    assert [why.code for why in target.reasons][1:] == [ReasonCode.FEWEST_FRAGMENTS, ReasonCode.TUNED_UP]
    language = replace(image, id="2", hints=job(2, hint="model=gnmt").hints)
    (lean,) = FRAGMENTS_UNDER_TUNE.decide(situation(nodes, [language], recent_requests=usual)).targets.values()
    assert (lean.nodes, lean.resources.cpus <= 6) == (("n2",), True)


def test_tickets_decide_who_runs_and_fragmentation_scores_where() -> None:
    """Three tickets of four are three quarters of the GPUs, over rounds; the first three jobs go where a GPU is
    taken already and leave the other node whole for the usual job of four GPUs."""
    usual = ((Request(gpus=4, gpus_per_node=4, cpus=4), 9),)
    nodes = [node("n1", 4), node("n2", 4, busy=[0])]
    jobs = [job(number) for number in range(1, 4)]
    decision = TICKETS_OVER_FRAGMENTS.decide(situation(nodes, jobs, recent_requests=usual))
    assert nodes_of(decision) == {"1": "n2", "2": "n2", "3": "n2"}
    many = [job(number, user=f"u{number % 2}") for number in range(32)]
    cluster = Cluster([node("n1"), node("n2")], many, tickets((3, 1)), chosen=TICKETS_OVER_FRAGMENTS)
    cluster.run(48)
    had = sum(cluster.service[other.id] for other in many if other.user == "u0") / cluster.time
    assert had == pytest.approx(12.0, rel=0.06)


@pytest.mark.parametrize("policy", PARTS_UNDER.values(), ids=PARTS_UNDER)
def test_halves_of_gpus_are_placed_beside_whole_ones(policy: Policy) -> None:
    jobs = [job(1, gpus=1), job(2, request=shards(5)), job(3, request=shards(5)), job(4, request=Request(cpus=2))]
    decision = policy.decide(situation([node("n1", 2, shards=10)], jobs))
    assert set(decision.targets) == {"1", "2", "3", "4"}
    assert [decision.targets[half].allocations[0].indices for half in "23"] == [(1,), (1,)]
    assert decision.targets["4"].resources.gpus == 0


@pytest.mark.parametrize("policy", PARTS_UNDER.values(), ids=PARTS_UNDER)
def test_a_half_moves_where_that_lets_a_wide_job_start(policy: Policy) -> None:
    """Each node has one GPU in use, and a job of two GPUs waits: the half moves beside the whole one."""
    nodes = [node("n1", 2, shards=10), node("n2", 2, shards=10)]
    running: list[Job] = [
        job(1, request=shards(5), on=[has(5, 0, "n1")]),
        job(2, gpus=1, on=[share("n2", (0,), cpus=3)], run_time=60.0),
    ]
    wide = job(3, request=Request(gpus=2, gpus_per_node=2, cpus=2))
    decision = policy.decide(situation(nodes, [*running, wide]))
    assert nodes_of(decision) == {"1": "n2", "2": "n2", "3": "n1"}
    assert decision.victims == {"1": "3"}
    assert decision.targets["1"].reasons[0].code is ReasonCode.MAKES_ROOM


WORTH_AS_ASKED = Pipeline("worth", FirstInFirstOut(), AsRequested(), LEAST_LOSS)


def test_a_job_with_many_cpus_goes_where_each_idle_gpu_has_many() -> None:
    """Consolidation takes n1, which has fewer idle GPUs, and leaves one GPU without a CPU there."""
    usual = ((Request(gpus=1, cpus=2), 5), (Request(gpus=1, cpus=12), 5))
    nodes = [node("n1", 4, cpus=16, busy=[0, 1], used_cpus=4), node("n2", 4, cpus=64, busy=[0], used_cpus=4)]
    hungry = job(1, request=Request(gpus=1, cpus=12))
    worth = WORTH_AS_ASKED.decide(situation(nodes, [hungry], recent_requests=usual))
    consolidated = replace(WORTH_AS_ASKED, node_score=CONSOLIDATED)
    before = consolidated.decide(situation(nodes, [hungry], recent_requests=usual))
    assert (nodes_of(worth), nodes_of(before)) == ({"1": "n2"}, {"1": "n1"})


def test_a_gang_on_two_nodes_is_consolidated_whatever_it_loses() -> None:
    nodes = [node("n1", 4, cpus=64), node("n2", 4, cpus=16, busy=[3]), node("n3", 4, cpus=16, busy=[3])]
    gang = job(1, request=Request(gpus=6, nodes=2, gpus_per_node=3, cpus=6))
    decision = WORTH_AS_ASKED.decide(situation(nodes, [gang], recent_requests=((Request(gpus=1, cpus=12), 5),)))
    assert nodes_of(decision) == {"1": "n2,n3"}


def test_unified_consolidates_whole_gpus_and_of_equal_nodes_takes_the_one_that_loses_least() -> None:
    """n2 and n3 have the same idle, but others ask for the type of n2."""
    usual = ((Request(gpus=1, cpus=2), 1), (Request(gpus=1, cpus=2, gpu_type="p100"), 9))
    nodes = [node("n1", 4, cpus=64), node("n2", 2, "p100", cpus=16), node("n3", 2, cpus=16)]
    any_type = job(1, request=Request(gpus=1, cpus=2))
    unified = replace(WORTH_AS_ASKED, node_score=UNIFIED_PLACEMENT)
    decision = unified.decide(situation(nodes, [any_type], recent_requests=usual))
    assert nodes_of(decision) == {"1": "n3"}


def test_where_no_job_needs_a_gpu_jobs_are_consolidated() -> None:
    nodes = [node("n1", 2), node("n2", 2, busy=[0])]
    alone = job(1, request=Request(cpus=1))
    assert nodes_of(WORTH_AS_ASKED.decide(situation(nodes, [alone]))) == nodes_of(
        replace(WORTH_AS_ASKED, node_score=CONSOLIDATED).decide(situation(nodes, [alone]))
    )
