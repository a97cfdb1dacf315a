"""Making room: the fewest moves on tiny clusters, against trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.model import Decision, Job, Node, NodeAllocation, Reason, ReasonCode, Request, Resources
from slurmsched.policies import policy
from tests.builders import job, node, situation

WAITS = 99


def whole(gpus: int, gpu_type: str | None = None) -> Request:
    return Request(gpus=gpus, gpus_per_node=gpus, gpu_type=gpu_type, cpus=gpus)


def part(shards: int) -> Request:
    return Request(shards=shards, cpus=1)


def runs(number: int, request: Request, where: str, *indices: int, **other: object) -> Job:
    gpus = 0 if request.shards else request.gpus
    share = NodeAllocation(where, Resources(gpus, request.cpus, request.memory), "v100", indices, request.shards)
    return job(number, request=request, on=[share], hint="ckpt=usr1", **other)


def decided(nodes: Sequence[Node], jobs: Sequence[Job], moves: int = 8, fixed: Sequence[int] = ()) -> Decision:
    must_stay = {str(number): Reason(ReasonCode.MIN_RUN_TIME) for number in fixed}
    asked = situation(nodes, jobs, max_moves=moves, non_preemptible=must_stay, restart_cost=100.0)
    return policy("fgd", "fifo", defragment=True).decide(asked)


TWO = [node("n1", 4, shards=10), node("n2", 4, shards=10)]


@pytest.mark.parametrize(
    ("jobs", "asked", "moved"),
    [
        pytest.param(
            [runs(1, whole(1), "n1", 0), runs(2, whole(2), "n2", 0, 1)], whole(4), {"1": "n2"}, id="the single moves"
        ),
        pytest.param(
            [runs(1, part(3), "n1", 0), runs(2, whole(2), "n2", 0, 1)], whole(4), {"1": "n2"}, id="a part moves"
        ),
        pytest.param(
            [runs(1, part(3), "n1", 0), runs(2, part(3), "n1", 0), runs(3, whole(1), "n2", 0),
             runs(4, whole(1), "n2", 1)],
            whole(4),
            {"1": "n2", "2": "n2"},
            id="both who share the GPU move, which is cheaper than two whole GPUs",
        ),
        pytest.param(
            [runs(1, part(6), "n1", 0), runs(2, part(6), "n2", 0), runs(3, whole(3), "n1", 1, 2, 3),
             runs(4, whole(3), "n2", 1, 2, 3)],
            part(7),
            {},
            id="nobody has another place",
        ),
        pytest.param([runs(1, whole(1), "n1", 0)], whole(4), {}, id="there is room without a move"),
    ],
)  # fmt: skip
def test_the_fewest_moves(jobs: Sequence[Job], asked: Request, moved: dict[str, str]) -> None:
    decision = decided(TWO, [*jobs, job(WAITS, request=asked)])
    assert {own: decision.targets[own].nodes[0] for own in decision.victims} == moved
    assert set(decision.victims.values()) <= {str(WAITS)}


def test_the_cost_is_told_and_the_cheaper_of_two_moves_is_made() -> None:
    jobs = [runs(1, whole(2), "n1", 0, 1), runs(2, whole(1), "n2", 0), job(WAITS, request=whole(4))]
    decision = decided([*TWO, node("n3", 2)], jobs)
    assert set(decision.victims) == {"2"}
    assert decision.targets[str(WAITS)].reasons[0].sentence == (
        "starts after job 2 moved to other nodes: restarting costs 100 GPU-seconds"
    )
    assert "so that job 99 can start" in decision.targets["2"].reasons[0].sentence


@pytest.mark.parametrize(
    ("moves", "fixed"),
    [pytest.param(0, (), id="no moves left"), pytest.param(8, (1,), id="it must not be moved")],
)
def test_what_may_not_move_stays(moves: int, fixed: Sequence[int]) -> None:
    jobs = [runs(1, whole(1), "n1", 0), runs(2, whole(4), "n2", 0, 1, 2, 3), job(WAITS, request=whole(4))]
    decision = decided([*TWO, node("n3", 1)], jobs, moves, fixed)
    assert not decision.victims
    assert decision.waiting[str(WAITS)].code is ReasonCode.NO_ROOM


def test_without_being_asked_nobody_moves() -> None:
    jobs = [runs(1, whole(1), "n1", 0), runs(2, whole(2), "n2", 0, 1), job(WAITS, request=whole(4))]
    assert not policy("fgd", "fifo").decide(situation(TWO, jobs)).victims


def _fits(free: dict[str, list[int]], where: str, request: Request) -> list[int] | None:
    """The devices it would take on the node, first fit, in tenths."""
    size, count = (request.shards, 1) if request.shards else (10, request.gpus)
    able = [index for index, left in enumerate(free[where]) if left >= size][:count]
    return able if len(able) == count else None


def _free(jobs: Sequence[Job], without: Sequence[Job]) -> dict[str, list[int]]:
    free = {"n1": [10] * 3, "n2": [10] * 3}
    for own in jobs:
        for share in own.allocations if own not in without else ():
            for index in share.indices:
                free[share.node][index] -= share.shards or 10
    return free


def _brute(jobs: Sequence[Job], asked: Request) -> int | None:
    """The fewest jobs that have to move, trying every set and every way to move it."""
    for size in range(len(jobs) + 1):
        for chosen in combinations(jobs, size):
            for where in ("n1", "n2"):
                if any(own.nodes[0] != where for own in chosen):
                    continue
                free = _free(jobs, chosen)
                devices = _fits(free, where, asked)
                if devices is None:
                    continue
                other = "n2" if where == "n1" else "n1"
                if _all_fit(free, other, [own.original_request for own in chosen]):
                    return size
    return None


def _all_fit(free: dict[str, list[int]], where: str, requests: Sequence[Request]) -> bool:
    for order in product(requests, repeat=len(requests)):
        if sorted(map(repr, order)) != sorted(map(repr, requests)):
            continue
        left = {where: list(free[where])}
        for request in order:
            devices = _fits(left, where, request)
            if devices is None:
                break
            for index in devices:
                left[where][index] -= request.shards or 10
        else:
            return True
    return not requests


REQUESTS = st.one_of(st.integers(1, 10).map(part), st.integers(1, 2).map(whole))


@settings(max_examples=150)
@given(st.lists(st.tuples(REQUESTS, st.sampled_from(["n1", "n2"])), max_size=5), st.integers(1, 3).map(whole))
def test_never_more_moves_than_trying_everything_finds(placed: list[tuple[Request, str]], asked: Request) -> None:
    nodes = [node("n1", 3, cpus=99, shards=10), node("n2", 3, cpus=99, shards=10)]
    jobs: list[Job] = []
    for number, (request, where) in enumerate(placed, start=1):
        devices = _fits(_free(jobs, ()), where, request)
        if devices is not None:
            jobs.append(runs(number, request, where, *devices))
    decision = decided(nodes, [*jobs, job(WAITS, request=asked)])
    fewest = _brute(jobs, asked)
    if str(WAITS) in decision.targets:
        assert len(decision.victims) == fewest
    else:
        assert fewest is None or fewest > 2, "largest first may miss a packing of three"
