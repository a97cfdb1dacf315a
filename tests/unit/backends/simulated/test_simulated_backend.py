"""The backend over the virtual cluster: what it counts, and what goes wrong when it is told to."""

from __future__ import annotations

import pytest

from slurmsched.backends.protocol import Backend, UnreachableError
from slurmsched.backends.simulated import (
    NO_FAULTS,
    Fault,
    FaultPlan,
    JobSubmitHook,
    SimulatedBackend,
    SimulatedEventKind,
    Submission,
    VirtualClock,
    VirtualCluster,
)
from slurmsched.model import Hold, JobState, NodeState, Operation, Reason, ReasonCode, Request, Result, Verb
from slurmsched.settings.definition import ManageSettings
from tests.builders import node

HOLD = tuple(Operation(Verb.HOLD, str(job), Reason(ReasonCode.TAKE_OVER)) for job in (1, 2))


def backend(disturbances: FaultPlan = NO_FAULTS) -> SimulatedBackend:
    """One node; two jobs of 8 GPUs each, the first of which runs."""
    world = SimulatedBackend(VirtualCluster([node()]), VirtualClock(), faults=disturbances)
    for user in ("alice", "bob"):
        world.submit(Submission(user, Request(gpus=8, cpus=8), 1000))
    return world


def test_it_is_a_backend_and_counts_its_calls() -> None:
    world: Backend = backend()
    world.observe()
    world.execute(HOLD)
    assert (world.name, world.calls.polls, world.calls.reads, world.calls.writes) == ("simulated", 1, 3, 2)


def test_what_is_shown_as_commands_says_that_it_is_simulated() -> None:
    assert backend().commands(HOLD[0]) == ("simulated hold 1",)


def test_a_node_dies_in_the_middle_of_a_round() -> None:
    world = backend(FaultPlan(timed=((50.0, Fault(SimulatedEventKind.NODE_DOWN, "n1")),)))
    assert world.observe().jobs_by_id["1"].state is JobState.RUNNING
    world.clock.advance(60)
    seen = world.observe()
    assert seen.nodes_by_name["n1"].state is NodeState.DOWN
    assert seen.jobs_by_id["1"].state is JobState.PENDING


def test_a_job_is_cancelled_between_plan_and_apply() -> None:
    world = backend(FaultPlan(before_execution={1: (Fault(SimulatedEventKind.CANCELLED, "2"),)}))
    assert world.observe().jobs_by_id["2"].state is JobState.PENDING
    assert [outcome.result for outcome in world.execute(HOLD)] == [Result.OVERTAKEN, Result.OVERTAKEN]
    assert world.observe().jobs_by_id["2"].state_text == "CANCELLED"


def test_a_poll_stays_unanswered_and_the_next_is_answered() -> None:
    world = backend(FaultPlan(unanswered_polls=frozenset({1})))
    with pytest.raises(UnreachableError, match="try again"):
        world.observe()
    assert len(world.observe().jobs) == 2


def test_an_execution_broken_off_has_done_its_first_part() -> None:
    world = backend(FaultPlan(interrupted_executions={1: 1}))
    with pytest.raises(UnreachableError):
        world.execute((HOLD[1], Operation(Verb.PRIORITIZE, "2", Reason(ReasonCode.RANK), 0, 5)))
    seen = world.observe().jobs_by_id["2"]
    assert (seen.hold, seen.nice) == (Hold.ADMIN, 0)


@pytest.mark.parametrize(
    ("submission", "held", "comment"),
    [
        pytest.param({"comment": "synsched:model=bert x"}, True, "synsched:model=bert,held=hook x", id="a hinted job"),
        pytest.param({"comment": "x"}, False, "x", id="a job nobody asked us to manage"),
        pytest.param({"partitions": ("ours",)}, True, "synsched:held=hook", id="a job in a managed partition"),
        pytest.param(
            {"partitions": ("never",), "comment": "synsched:"}, False, "synsched:", id="a partition left alone"
        ),
        pytest.param({"comment": "synsched:", "batch": False}, False, "synsched:", id="an interactive job"),
        pytest.param({"comment": "synsched:", "request": Request(cpus=4)}, False, "synsched:", id="a job without GPUs"),
        pytest.param({"comment": "synsched:", "held": True}, True, "synsched:", id="a hold of its owner stays his"),
    ],
)
def test_the_hook_holds_managed_jobs(submission: dict[str, object], held: bool, comment: str) -> None:
    manage = ManageSettings(partitions=("ours",), never_partitions=("never",))
    world = SimulatedBackend(VirtualCluster([node()], hook=JobSubmitHook(manage, lambda _now: True)), VirtualClock())
    given = {"user": "alice", "request": Request(gpus=1), "work": 10.0, **submission}
    world.submit(Submission(**given))  # type: ignore[arg-type]  # rows name what they need
    job = world.observe().jobs_by_id["1"]
    assert (job.hold is Hold.USER, job.comment) == (held, comment)


def test_the_hook_holds_nothing_once_the_heartbeat_is_stale() -> None:
    hook = JobSubmitHook(ManageSettings(), lambda now: now < 100)
    world = SimulatedBackend(VirtualCluster([node()], hook=hook), VirtualClock())
    hinted = Submission("alice", Request(gpus=1), 1000, comment="synsched:")
    world.submit(hinted)
    world.clock.advance(200)
    world.submit(hinted)
    seen = world.observe().jobs_by_id
    assert (seen["1"].state, seen["2"].state) == (JobState.PENDING, JobState.RUNNING)


def test_the_clock_never_goes_back() -> None:
    clock = VirtualClock(10.0)
    clock.sleep(5)
    assert (clock.now(), clock.monotonic()) == (15.0, 15.0)
    with pytest.raises(ValueError, match="go back"):
        clock.advance_to(14)
