"""Operations on the virtual cluster end as they would on Slurm."""

from __future__ import annotations

import pytest

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.simulated import SimulatedBackend, Submission, VirtualClock, VirtualCluster
from slurmsched.model import (
    Hold,
    JobSpec,
    JobState,
    Operation,
    OperationValue,
    Outcome,
    Reason,
    ReasonCode,
    Request,
    Result,
    Verb,
)
from tests.builders import node

SHAPE = JobSpec(("n2",), 1, 2, 2, "v100", 8, 5000, 2)


def backend(identity: Identity | None = None) -> SimulatedBackend:
    """Two nodes; job 1 runs on all of n1, job 2 waits for 4 GPUs, job 3 is held by its owner, job 4 is over."""
    world = SimulatedBackend(VirtualCluster([node("n1", 4, cpus=12), node("n2", 4, cpus=12)]), VirtualClock(), identity)
    for submission in (
        Submission("alice", Request(gpus=4, cpus=12), 1e6, comment="synsched:ckpt=usr1"),
        Submission("bob", Request(gpus=4, cpus=12), 1e6, begin=1e6),
        Submission("carol", Request(gpus=2, cpus=2, memory=100), 1e6, held=True),
        Submission("carol", Request(gpus=1), 10),
    ):
        world.submit(submission)
    world.clock.advance(100)
    world.observe()
    return world


def operation(verb: Verb, subject: str, after: OperationValue = None, before: OperationValue = None) -> Operation:
    return Operation(verb, subject, Reason(ReasonCode.START), before, after)


def execute(world: SimulatedBackend, *operations: Operation) -> Outcome:
    return world.execute(operations)[-1]


@pytest.mark.parametrize(
    ("asked", "result"),
    [
        pytest.param(operation(Verb.HOLD, "2"), Result.DONE, id="a pending job can be held"),
        pytest.param(operation(Verb.HOLD, "1"), Result.OVERTAKEN, id="a running job is past holding"),
        pytest.param(operation(Verb.RELEASE, "3"), Result.DONE, id="a held job can be released"),
        pytest.param(operation(Verb.UPDATE, "3", SHAPE), Result.DONE, id="a held job can be reshaped"),
        pytest.param(operation(Verb.UPDATE, "1", SHAPE), Result.OVERTAKEN, id="a running job keeps its allocation"),
        pytest.param(
            operation(Verb.UPDATE, "3", JobSpec(("nowhere",), 1, 2, 2, None, 2, 1, 1)),
            Result.REFUSED,
            id="a node that does not exist is refused",
        ),
        pytest.param(operation(Verb.NOTIFY, "1", "usr1"), Result.DONE, id="a running job can be signalled"),
        pytest.param(operation(Verb.NOTIFY, "2", "usr1"), Result.OVERTAKEN, id="a waiting job has nobody to signal"),
        pytest.param(operation(Verb.REQUEUE, "1"), Result.DONE, id="a running job can be requeued"),
        pytest.param(operation(Verb.REQUEUE, "4"), Result.OVERTAKEN, id="a job that is over is not run again"),
        pytest.param(operation(Verb.PRIORITIZE, "2", 50), Result.DONE, id="a pending job has a nice"),
        pytest.param(operation(Verb.NOTE, "2", "synsched: waits"), Result.DONE, id="an empty note is ours to write"),
        pytest.param(operation(Verb.WEIGH, "n1", 7), Result.DONE, id="a node can be weighted"),
        pytest.param(operation(Verb.WEIGH, "n9", 7), Result.REFUSED, id="an unknown node cannot"),
        pytest.param(operation(Verb.CONFIGURE, "/etc/x", "text"), Result.DONE, id="a file can be written"),
        pytest.param(operation(Verb.HOLD, "99"), Result.OVERTAKEN, id="an unknown job is gone"),
    ],
)
def test_an_operation_ends_like_this(asked: Operation, result: Result) -> None:
    assert execute(backend(), asked).result is result


def test_a_released_job_starts_on_exactly_the_nodes_of_its_shape() -> None:
    world = backend()
    execute(world, operation(Verb.UPDATE, "3", SHAPE), operation(Verb.RELEASE, "3"))
    (share,) = world.observe().jobs_by_id["3"].allocations
    assert (share.node, share.indices, share.resources.cpus, share.resources.memory) == ("n2", (0, 1), 8, 5000)


def test_a_job_whose_pinned_node_is_full_waits_although_another_is_free() -> None:
    world = backend()
    full = JobSpec(("n1",), 1, 2, 2, "v100", 8, 5000, 2)
    execute(world, operation(Verb.UPDATE, "3", full), operation(Verb.RELEASE, "3"))
    assert world.observe().jobs_by_id["3"].state is JobState.PENDING


def test_a_preempted_job_comes_back_held_and_a_release_starts_it_at_once() -> None:
    world = backend()
    execute(world, operation(Verb.REQUEUE, "1"))
    assert world.observe().jobs_by_id["1"].state is JobState.COMPLETING
    world.clock.advance(5)
    assert world.observe().jobs_by_id["1"].hold is Hold.REQUEUED
    execute(world, operation(Verb.RELEASE, "1"))
    seen = world.observe().jobs_by_id["1"]
    assert (seen.state, seen.start_time, seen.restarts) == (JobState.RUNNING, 105.0, 1)


def test_a_release_leaves_a_begin_time_of_the_owner_alone() -> None:
    world = backend()
    execute(world, operation(Verb.HOLD, "2"), operation(Verb.RELEASE, "2"))
    assert world.observe().jobs_by_id["2"].eligible_time == 1e6


def test_a_note_of_somebody_else_is_left_alone() -> None:
    world = backend()
    world.cluster.jobs["2"].admin_comment = "jobstats"
    assert execute(world, operation(Verb.NOTE, "2", "synsched: waits")).result is Result.REFUSED


@pytest.mark.parametrize(
    ("privilege", "verb", "subject", "after"),
    [
        pytest.param(Privilege.NONE, Verb.HOLD, "2", None, id="an ordinary user holds nobody's job"),
        pytest.param(Privilege.OPERATOR, Verb.NOTE, "2", "synsched", id="an operator writes no AdminComment"),
        pytest.param(Privilege.ADMINISTRATOR, Verb.WEIGH, "n1", 5, id="an administrator weighs no node"),
    ],
)
def test_missing_rights_are_refused_and_change_nothing(
    privilege: Privilege, verb: Verb, subject: str, after: OperationValue
) -> None:
    world = backend(Identity("synsched", privilege))
    before = world.observe()
    assert execute(world, operation(verb, subject, after)).result is Result.REFUSED
    assert world.observe() == before


def test_an_operation_marked_as_not_permitted_is_not_tried() -> None:
    world = backend()
    asked = Operation(Verb.HOLD, "2", Reason(ReasonCode.TAKE_OVER), permitted=False)
    assert execute(world, asked).result is Result.BLOCKED
    assert world.observe().jobs_by_id["2"].hold is Hold.NONE


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(operation(Verb.HOLD, "2"), id="hold"),
        pytest.param(
            operation(Verb.UPDATE, "3", SHAPE, JobSpec((), 1, 2, None, None, 2, 100, 1)),
            id="reshape",
        ),
        pytest.param(operation(Verb.PRIORITIZE, "2", 100, 0), id="prioritize"),
        pytest.param(operation(Verb.WEIGH, "n1", 9, 1), id="weigh"),
    ],
)
def test_an_undo_takes_the_operation_back(asked: Operation) -> None:
    world = backend()
    before = world.observe()
    execute(world, asked)
    assert world.observe() != before
    undo = asked.undo()
    assert undo is not None
    assert execute(world, undo).result is Result.DONE
    assert world.observe() == before


def test_the_undo_of_a_release_that_did_not_start_the_job_holds_it_again() -> None:
    world = backend()
    execute(world, operation(Verb.UPDATE, "3", JobSpec(("n1",), 1, 2, 2, "v100", 8, 5000, 2)))
    asked = operation(Verb.RELEASE, "3")
    undo = asked.undo()
    assert undo is not None
    execute(world, asked, undo)
    assert world.observe().jobs_by_id["3"].priority == 0
