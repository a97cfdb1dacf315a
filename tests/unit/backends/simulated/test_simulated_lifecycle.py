"""The life of a job: it runs as long as its work takes, and loses what no checkpoint holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.simulated import Delays, SimulatedEventKind, Submission, VirtualCluster
from slurmsched.backends.simulated.events import Event
from slurmsched.model import Gpu, Hold, Job, JobState, NodeState, Partition, Request, Reservation
from tests.builders import node

DELAYS = Delays(restart=60, completing=5, requeue=120, min_job_age=300)


def cluster(gpus: int = 4, nodes: int = 1, speed: float = 1.0, **other: object) -> VirtualCluster:
    machines = [node(f"n{i}", gpus, cpus=12) for i in range(1, nodes + 1)]
    return VirtualCluster(machines, delays=DELAYS, speed=lambda _job, _shares, _partners: speed, **other)  # type: ignore[arg-type]


def wants(gpus: int = 1, work: float = 1000.0, **other: object) -> Submission:
    return Submission("alice", Request(gpus=gpus, cpus=gpus), work, **other)  # type: ignore[arg-type]


def after(world: VirtualCluster, time: float, job: str = "1") -> Job:
    world.advance(time)
    return world.snapshot().jobs_by_id[job]


def test_a_job_runs_for_its_work_at_its_speed() -> None:
    world = cluster(speed=2.0)
    world.submit(wants(work=1000))
    assert after(world, 499).state is JobState.RUNNING
    assert after(world, 500).state is JobState.COMPLETING
    assert after(world, 505).state is JobState.FINISHED
    assert world.lifecycle.ended["1"].end_time == 500


def test_a_finished_job_is_shown_for_min_job_age() -> None:
    world = cluster()
    world.submit(wants(work=100))
    assert after(world, 404).state_text == "COMPLETED"
    world.advance(405)
    assert not world.snapshot().jobs


def test_a_completing_job_still_has_its_gpus() -> None:
    world = cluster(gpus=1)
    world.submit(wants(work=100))
    world.submit(wants(work=100))
    assert after(world, 104, "2").state is JobState.PENDING
    assert after(world, 105, "2").state is JobState.RUNNING


def test_the_time_limit_ends_a_run() -> None:
    world = cluster()
    world.submit(wants(work=1000, time_limit=600))
    assert after(world, 610).state_text == "TIMEOUT"
    assert world.lifecycle.ended["1"].end_time == 600


def test_a_held_job_never_starts() -> None:
    world = cluster()
    world.submit(wants(held=True))
    held = after(world, 1e6)
    assert (held.state, held.hold, held.reason, held.priority) == (JobState.PENDING, Hold.USER, "JobHeldUser", 0)


def test_a_requeued_job_waits_for_its_begin_time_and_starts_over() -> None:
    world = cluster()
    world.submit(wants(work=1000))
    world.advance(400)
    world.lifecycle.requeue(world.jobs["1"], held=False, now=400)
    assert after(world, 404).state is JobState.COMPLETING
    waits = after(world, 405)
    assert (waits.state, waits.eligible_time, waits.restarts, waits.allocations) == (JobState.PENDING, 525, 1, ())
    runs = after(world, 525)
    assert (runs.state, runs.start_time) == (JobState.RUNNING, 525)
    world.advance(1e5)
    assert world.lifecycle.ended["1"].end_time == 525 + 60 + 1000


@pytest.mark.parametrize(
    ("submission", "signalled", "requeued", "saved"),
    [
        pytest.param(wants(), None, 400, 0, id="without a checkpoint all is lost"),
        pytest.param(wants(checkpoint_time=10), 300, 400, 310, id="a checkpoint keeps what was done when written"),
        pytest.param(wants(checkpoint_time=10), 395, 400, 0, id="a checkpoint that was not finished keeps nothing"),
        pytest.param(wants(checkpoint_every=150), None, 400, 300, id="a job that saves by itself loses little"),
    ],
)
def test_a_requeue_keeps_what_the_last_checkpoint_holds(
    submission: Submission, signalled: float | None, requeued: float, saved: float
) -> None:
    world = cluster()
    world.submit(submission)
    if signalled is not None:
        world.advance(signalled)
        world.lifecycle.signal(world.jobs["1"], signalled)
    world.advance(requeued)
    world.lifecycle.requeue(world.jobs["1"], held=False, now=requeued)
    world.advance(1e5)
    restarted = requeued + 5 + 120
    assert world.lifecycle.ended["1"].end_time == restarted + 60 + 1000 - saved
    assert sum(interval.useful_seconds for interval in world.lifecycle.usage_intervals) == 1000


def test_a_suspended_job_keeps_its_gpus_and_stands_still() -> None:
    world = cluster()
    world.submit(wants(gpus=4, work=1000))
    world.advance(400)
    world.lifecycle.suspend(world.jobs["1"], 400)
    seen = after(world, 900)
    assert (seen.state, seen.run_time, seen.gpus) == (JobState.SUSPENDED, 400, 4)
    assert world.snapshot().nodes_by_name["n1"].used.gpus == 4
    assert world.snapshot().nodes_by_name["n1"].used.cpus == 0
    world.lifecycle.resume(world.jobs["1"], 900)
    world.advance(1e5)
    assert world.lifecycle.ended["1"].end_time == 1500


def test_a_suspended_job_whose_cpus_are_taken_cannot_resume() -> None:
    world = cluster()
    world.submit(wants(gpus=1))
    world.submit(Submission("bob", Request(cpus=12), 1000))
    world.advance(10)
    world.lifecycle.suspend(world.jobs["1"], 10)
    world.schedule()
    assert world.jobs["2"].state is JobState.RUNNING
    with pytest.raises(ValueError, match="CPUs are allocated"):
        world.lifecycle.resume(world.jobs["1"], 10)


def test_a_job_cancelled_while_suspended_gives_back_what_it_had_once() -> None:
    world = cluster()
    world.submit(wants(gpus=2))
    world.advance(10)
    world.lifecycle.suspend(world.jobs["1"], 10)
    world.lifecycle.cancel(world.jobs["1"], 10)
    world.advance(20)
    node_now = world.snapshot().nodes_by_name["n1"]
    assert (node_now.used.gpus, node_now.used.cpus, node_now.used.memory) == (0, 0, 0)


def test_a_node_that_dies_takes_its_jobs_back_into_the_queue() -> None:
    world = cluster()
    world.submit(wants())
    world.submit(wants(requeue=False))
    world.events.push(Event(100, SimulatedEventKind.NODE_DOWN, "n1"))
    assert after(world, 110, "1").state is JobState.PENDING
    assert after(world, 110, "2").state_text == "NODE_FAIL"
    assert after(world, 1000, "1").state is JobState.PENDING
    world.set_node("n1", NodeState.UP)
    assert after(world, 1001, "1").state is JobState.RUNNING


def test_a_drained_node_runs_what_it_runs_and_takes_nothing_new() -> None:
    world = cluster()
    world.submit(wants(work=500))
    world.advance(10)
    world.set_node("n1", NodeState.DRAINED)
    world.submit(wants())
    assert after(world, 100, "1").state is JobState.RUNNING
    assert after(world, 600, "2").state is JobState.PENDING


def test_an_array_runs_as_many_tasks_as_its_throttle_allows() -> None:
    world = cluster()
    number = world.submit(wants(work=100), tasks=4, throttle=2)
    world.advance(1)
    states = [job.state for job in world.snapshot().jobs]
    assert [job.id for job in world.snapshot().jobs] == ["1_1", "1_2", "1_3", "1_4"]
    assert {job.array_job for job in world.snapshot().jobs} == {number}
    assert states.count(JobState.RUNNING) == 2
    world.advance(1000)
    assert len(world.lifecycle.ended) == 4


@pytest.mark.parametrize(
    ("dependency", "first", "starts"),
    [
        pytest.param("afterok:1", wants(work=100), 105, id="afterok, and it was"),
        pytest.param("afterok:1", wants(work=100, time_limit=50), None, id="afterok, and it ran out of time"),
        pytest.param("afternotok:1", wants(work=100, time_limit=50), 55, id="afternotok, and it ran out of time"),
        pytest.param("afterany:1", wants(work=100, time_limit=50), 55, id="afterany"),
        pytest.param("after:1", wants(work=100), 0, id="after it has started"),
        pytest.param("afterok:99", wants(work=100), 0, id="a job nobody knows is long gone"),
        pytest.param("burst_buffer", wants(work=100), None, id="what is not understood is never met"),
    ],
)
def test_a_dependency_is_waited_for(dependency: str, first: Submission, starts: float | None) -> None:
    world = cluster()
    world.submit(first)
    world.submit(wants(work=1e6, dependency=dependency))
    world.advance(0)
    world.lifecycle.changed = True
    assert after(world, 10_000, "2").start_time == starts


def test_a_begin_time_is_waited_for() -> None:
    world = cluster()
    world.submit(wants(begin=500.0))
    assert after(world, 499).reason == "BeginTime"
    assert after(world, 501).start_time == 500


def test_a_reserved_node_is_left_to_those_invited() -> None:
    promise = Reservation("course", frozenset({"n1"}), 0.0, 1000.0, users=frozenset({"bob"}))
    world = cluster(reservations=[promise])
    world.submit(wants(work=10))
    world.submit(Submission("bob", Request(gpus=1), 10, reservation="course"))
    assert after(world, 5, "2").state is JobState.RUNNING
    assert after(world, 999, "1").state is JobState.PENDING
    assert after(world, 1001, "1").start_time == 1000


def test_a_partition_that_is_down_starts_nothing() -> None:
    world = cluster(partitions=[Partition("gpu", frozenset({"n1"}), up=False)])
    world.submit(wants())
    assert after(world, 100).state is JobState.PENDING


def test_jobs_arrive_when_they_are_expected() -> None:
    world = cluster()
    world.submit(wants(work=10), at=300.0)
    world.advance(299)
    assert not world.snapshot().jobs
    assert after(world, 300).submit_time == 300


def crowded(shards: int = 2) -> VirtualCluster:
    """One GPU in shards; everybody on it runs at 1 / the number of jobs there."""
    machine = replace(node("n1", 1, cpus=12), gpus=(Gpu(0, "v100", shards=shards),))
    return VirtualCluster([machine], delays=DELAYS, speed=lambda _job, _shares, partners: 1 / (1 + len(partners)))


def half(work: float) -> Submission:
    return Submission("alice", Request(shards=1, cpus=1), work)


def test_a_partner_slows_a_job_down_for_as_long_as_it_is_there() -> None:
    world = crowded()
    world.submit(half(1000))
    world.submit(half(100), at=500)
    world.advance(1e5)
    ended = {job.id: job.end_time for job in world.lifecycle.ended.values()}
    assert ended["2"] == 500 + 200
    assert ended["1"] == 500 + 205 + (500 - 205 / 2)  # the partner's shard is free once it is done completing
    own = next(interval for interval in world.lifecycle.usage_intervals if interval.job == "1")
    assert own.useful_seconds * own.rate == pytest.approx(1000)
    assert own.useful_seconds == pytest.approx(ended["1"])


def test_a_partner_that_comes_while_it_restarts_costs_only_its_own_time() -> None:
    world = crowded()
    world.submit(half(1000))
    world.advance(100)
    world.lifecycle.signal(world.jobs["1"], 90)
    world.advance(101)
    world.lifecycle.requeue(world.jobs["1"], held=False, now=101)
    world.submit(half(100), at=230)  # the job is back at 226 and works from 286
    world.advance(1e5)
    assert world.lifecycle.ended["2"].end_time == 430
    done = 100 + (435 - 286) / 2
    assert world.lifecycle.ended["1"].end_time == pytest.approx(435 + 1000 - done)
