"""Slurm's own scheduler: priority, then backfill that keeps the promise to the first blocked job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.simulated.nodes import SimulatedNode
from slurmsched.backends.simulated.scheduler import BackfillCandidate, FutureRelease, NodeCopies, schedule_queue
from slurmsched.model import NodeAllocation, Request, Resources
from tests.builders import node

HOUR = 3600


def waiting(job: str, gpus: int, limit: int | None = HOUR, array: str = "", **request: object) -> BackfillCandidate:
    wanted = Request(gpus=gpus, cpus=gpus, memory=1, **request)  # type: ignore[arg-type]  # rows name what they need
    return BackfillCandidate(job, wanted, (("n1", "n2"),), limit, array)


def floor(taken: dict[str, int]) -> tuple[dict[str, SimulatedNode], list[FutureRelease]]:
    """Two nodes of 4 GPUs; on each so many are taken, until 1 hour on n1 and 2 hours on n2."""
    machines = {name: SimulatedNode(node(name, 4, cpus=12)) for name in ("n1", "n2")}
    running = []
    for name, gpus in taken.items():
        share = NodeAllocation(name, Resources(gpus, gpus, 1), "v100", tuple(range(gpus)))
        machines[name].allocate(share)
        running.append(FutureRelease((share,), HOUR if name == "n1" else 2 * HOUR))
    return machines, running


@pytest.mark.parametrize(
    ("taken", "queue", "started"),
    [
        pytest.param({}, [waiting("1", 4), waiting("2", 4), waiting("3", 1)], "12", id="in order while there is room"),
        pytest.param({"n1": 2}, [waiting("1", 4), waiting("2", 2)], "12", id="each where it fits"),
        pytest.param(
            {"n1": 2, "n2": 4},
            [waiting("1", 4), waiting("2", 2, HOUR)],
            "2",
            id="a later job that ends before the first can start is backfilled",
        ),
        pytest.param(
            {"n1": 2, "n2": 4},
            [waiting("1", 4), waiting("2", 2, HOUR + 1)],
            "",
            id="a later job that would delay the first is not",
        ),
        pytest.param(
            {"n1": 3, "n2": 3},
            [waiting("1", 4), waiting("2", 1, None)],
            "2",
            id="a job without a limit goes where the reserved job will not be",
        ),
        pytest.param(
            {"n1": 3},
            [waiting("1", 5, gpus_per_node=5), waiting("2", 4, None)],
            "2",
            id="a job that can never fit blocks nobody",
        ),
        pytest.param(
            {"n1": 2, "n2": 4},
            [waiting("1", 3), waiting("2", 1, None)],
            "2",
            id="a long job uses what the reserved job leaves over",
        ),
        pytest.param(
            {}, [waiting("1", 1, array="a"), waiting("2", 1, array="a")], "1", id="an array runs so many at once"
        ),
        pytest.param(
            {"n2": 4},
            [waiting("1", 1, pinned=frozenset({"n2"})), waiting("2", 4, None)],
            "2",
            id="a pinned job waits for its node and nobody else's",
        ),
    ],
)
def test_these_jobs_start(taken: dict[str, int], queue: list[BackfillCandidate], started: str) -> None:
    machines, running = floor(taken)
    assert "".join(job for job, _ in schedule_queue(queue, lambda: running, machines, 0.0, {"a": 1})) == started


def test_looking_at_the_queue_takes_nothing() -> None:
    machines, running = floor({})
    first = list(schedule_queue([waiting("1", 4)], lambda: running, machines, 0.0, {}))
    assert first == list(schedule_queue([waiting("1", 4)], lambda: running, machines, 0.0, {}))


def test_what_copies_of_nodes_allocate_is_theirs_alone() -> None:
    """A pass that has changed a node, and the reservation that it then makes, each allocate on the same node."""
    machines, _ = floor({})
    passing = NodeCopies(machines)
    one, other = (NodeAllocation("n1", Resources(1, 1, 1), "v100", (index,)) for index in (0, 1))
    passing.own("n1").allocate(one)
    reserved = NodeCopies(passing)
    reserved.own("n1").allocate(other)
    passing.own("n2").allocate(replace(one, node="n2"))
    passing.own("n1").allocate(replace(other, indices=(2,)))
    assert machines["n1"].idle_gpus == [0, 1, 2, 3]
    assert (passing["n1"].idle_gpus, passing["n2"].idle_gpus) == ([1, 3], [1, 2, 3])
    assert (reserved["n1"].idle_gpus, reserved["n2"].idle_gpus) == ([2, 3], [0, 1, 2, 3])
