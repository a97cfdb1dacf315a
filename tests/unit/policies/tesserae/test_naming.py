"""Renaming in a live round."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurmsched.model import Job, Node
from slurmsched.policies.cluster.resources import FreeResources
from slurmsched.policies.orders import FirstInFirstOut
from slurmsched.policies.place.placement import CONSOLIDATED, Placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Proportional
from slurmsched.policies.tesserae.migration import rename_nodes
from tests.builders import MEMORY, job, node, share, situation


def running(number: int, where: str, gpus: int = 8, **other: object) -> Job:
    return job(number, gpus, on=[share(where, gpus, 3 * gpus, gpus * MEMORY // 8)], **other)


def drafted(nodes: list[Node], jobs: list[Job], moves: Mapping[str, str]) -> Session:
    """A round that displaced these jobs, each for the next, and placed them on these nodes."""
    draft = Session(situation(nodes, jobs), FirstInFirstOut(), Proportional(), CONSOLIDATED)
    for victim in moves:
        if draft.jobs[victim].allocations:
            draft.evict(victim, jobs[-1])
    for mover, where in moves.items():
        pool = next(at for at in range(len(draft.pools)) if draft.pools.node(at).name == where)
        wish = draft.demands.of(draft.jobs[mover])
        kind = int(draft.pools.kind_of[pool])
        draft.allocate(
            draft.jobs[mover], Placement(wish.gang, (pool,), (wish.gang.parts,), wish.ranges[kind].minimum, kind)
        )
    rename_nodes(draft)
    return draft


def places(draft: Session) -> dict[str, str]:
    return {one: draft.pools.node(placed.pools[0]).name for one, placed in draft.placements.items()}


THREE = [node("n1"), node("n2"), node("n3")]
ROUND = {"1": "n2", "2": "n3", "3": "n1"}
"""Figure 1: every job on the next one's node."""


def test_a_round_in_which_naming_alone_would_move_three_jobs_moves_none() -> None:
    jobs = [running(1, "n1"), running(2, "n2"), running(3, "n3")]
    draft = drafted(THREE, jobs, ROUND)
    assert places(draft) == {"1": "n1", "2": "n2", "3": "n3"}
    draft.cancel_noop_evictions()
    assert (set(draft.running), draft.placements, draft.victims) == ({"1", "2", "3"}, {}, {})


def test_what_is_free_is_the_same_whatever_the_names() -> None:
    draft = drafted([*THREE, node("n4")], [running(1, "n1", 4), running(2, "n2"), job(3, 2)], {"1": "n2", "3": "n4"})
    empty = FreeResources.of_empty_cluster(draft.pools)
    for placement in draft.placements.values():
        empty.allocate(placement.allocation(draft.pools))
    for lease in draft.running.values():
        empty.allocate(lease)
    assert empty.gpus.tolist() == draft.free_at_minimum.gpus.tolist()
    assert empty.cpus.tolist() == draft.free_at_minimum.cpus.tolist()


@pytest.mark.parametrize(
    ("nodes", "jobs", "moves"),
    [
        pytest.param(
            [node("n1"), node("n2", gpu_type="a100")],
            [running(1, "n1"), running(2, "n2")],
            {"1": "n2", "2": "n1"},
            id="nodes of two GPU types",
        ),
        pytest.param(
            [node("n1"), node("n2", cpus=48)],
            [running(1, "n1"), running(2, "n2")],
            {"1": "n2", "2": "n1"},
            id="nodes of two sizes",
        ),
        pytest.param(
            [node("n1"), node("n2")],
            [running(1, "n1", 4), running(2, "n2", 4), running(3, "n1", 2)],
            {"1": "n2", "2": "n1"},
            id="a job that stays on one of them",
        ),
        pytest.param(
            [node("n1"), node("n2", busy=[7])],
            [running(1, "n1", 4), running(2, "n2", 4)],
            {"1": "n2", "2": "n1"},
            id="somebody else's job on one of them",
        ),
    ],
)
def test_names_are_not_exchanged_between(nodes: list[Node], jobs: list[Job], moves: dict[str, str]) -> None:
    assert places(drafted(nodes, jobs, moves)) == moves


def test_a_newcomer_takes_the_node_that_is_left() -> None:
    draft = drafted(THREE, [running(1, "n1"), running(2, "n2"), job(3, 8)], {"1": "n3", "3": "n1"})
    assert places(draft) == {"1": "n1", "3": "n3"}
