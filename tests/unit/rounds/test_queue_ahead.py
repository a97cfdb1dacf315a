"""Who is ahead of a waiting job, and where it may start: told for thousands of jobs at once as for each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from slurmsched.model import Decision, Job, JobId, NodeState, RankedJob, Request, Reservation, Snapshot, Target
from slurmsched.rounds.forecast import QueueAhead
from slurmsched.rounds.scope import EligibleNodeCache, eligible_nodes, usable_nodes
from tests.builders import job, node, share, snapshot

NODES = ("n1", "n2", "n3", "n4")
SOME_NODES = st.frozensets(st.sampled_from(NODES), max_size=3)


@st.composite
def waiting_jobs(draw: st.DrawFn) -> list[Job]:
    def one(number: int) -> Job:
        pinned, excluded = draw(SOME_NODES), draw(SOME_NODES)
        request = Request(
            gpus=1, gpu_type=draw(st.sampled_from([None, "v100", "p100"])), pinned=pinned, excluded=excluded
        )
        partitions = draw(st.sampled_from([("gpu",), ("gpu", "long"), ("long",), ()]))
        limit = draw(st.sampled_from([None, 600, 60_000]))
        return job(
            number, request=request, partitions=partitions, time_limit=limit,
            reservation=draw(st.sampled_from(["", "maint", "course"])),
        )  # fmt: skip

    return [one(number) for number in range(1, draw(st.integers(2, 9)) + 1)]


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    nodes = [
        node(
            name,
            state=draw(st.sampled_from([NodeState.UP, NodeState.UP, NodeState.DOWN])),
            partitions=frozenset(draw(st.sampled_from([("gpu",), ("gpu", "long")]))),
        )
        for name in NODES
    ]
    reservations = tuple(
        Reservation(name, draw(SOME_NODES), start, start + 5_000.0)
        for name, start in (("maint", 9_000.0), ("course", 12_000.0))
    )
    return snapshot(nodes, draw(waiting_jobs()), 10_000.0, reservations=reservations)


@given(clusters())
def test_nodes_that_are_told_once_for_jobs_that_ask_alike_are_those_of_each(seen: Snapshot) -> None:
    usable = usable_nodes(seen)
    eligible = EligibleNodeCache(seen, usable)
    for one in (*seen.jobs, *seen.jobs):
        assert eligible.of(one) == eligible_nodes(one, seen, usable) - one.original_request.excluded


def walked(one: Job, seen: Snapshot, order: Sequence[JobId], targets: Mapping[JobId, Target], most: int) -> list[JobId]:
    """By a walk from the job towards the front of the order."""
    nodes = eligible_nodes(one, seen, usable_nodes(seen)) - one.original_request.excluded
    wanted = one.original_request.gpu_type

    def has_something(name: JobId) -> bool:
        held = targets[name].allocations if name in targets else ()
        return any(had.node in nodes and (not wanted or had.gpu_type in ("", wanted)) for had in held)

    return list(islice(filter(has_something, reversed(order[: order.index(one.id)])), most))


@given(clusters(), st.data())
def test_the_nearest_ahead_are_those_that_a_walk_along_the_order_meets_first(
    seen: Snapshot, data: st.DataObject
) -> None:
    order = data.draw(st.permutations([one.id for one in seen.jobs]))
    types = st.sampled_from(["v100", "p100", ""])
    targets = {
        name: Target(name, tuple(share(where, gpu_type=data.draw(types)) for where in sorted(data.draw(SOME_NODES))))
        for name in order
        if data.draw(st.booleans())
    }
    ahead = QueueAhead(
        seen, Decision("any", tuple(RankedJob(name, "") for name in order), targets, {}), usable_nodes(seen)
    )
    for one in seen.jobs:
        found = [ranked.job for ranked in ahead.nearest(one, order.index(one.id), 3)]
        assert found == walked(one, seen, order, targets, 3)
