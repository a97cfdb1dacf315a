"""Whatever users, nodes and rounds do to the virtual cluster, its books stay right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.backends.simulated import SimulatedBackend, Submission, VirtualClock, VirtualCluster
from slurmsched.backends.simulated.nodes import SimulatedNode
from slurmsched.backends.simulated.scheduler import BackfillCandidate, FutureRelease, _reserve, schedule_queue
from slurmsched.model import (
    Hold,
    Job,
    JobSpec,
    JobState,
    NodeAllocation,
    NodeState,
    Operation,
    OperationValue,
    Reason,
    ReasonCode,
    Request,
    Result,
    Snapshot,
    Verb,
    encode,
)
from tests.builders import node

NODES = [node("a", 4, "v100", cpus=12, memory=400), node("b", 4, "v100", cpus=12, memory=400)]
NODES.append(node("c", 2, "k80", cpus=8, memory=100))

requests = st.one_of(
    st.builds(Request, gpus=st.integers(0, 4), cpus=st.integers(1, 8), memory=st.integers(0, 150)),
    st.builds(Request, gpus=st.just(8), gpus_per_node=st.just(4), nodes=st.just(2), cpus=st.just(8)),
    st.builds(Request, gpus=st.integers(2, 6), nodes=st.just(2), cpus=st.just(12), tasks=st.just(1)),
    st.builds(Request, gpus=st.just(1), gpu_type=st.sampled_from(["v100", "k80"])),
)
submissions = st.builds(
    Submission,
    user=st.sampled_from(["alice", "bob"]),
    request=requests,
    work=st.floats(1, 5000),
    time_limit=st.one_of(st.none(), st.integers(10, 4000)),
    held=st.booleans(),
    requeue=st.booleans(),
    checkpoint_time=st.floats(0, 100),
    checkpoint_every=st.one_of(st.none(), st.floats(10, 1000)),
)
shapes = st.builds(
    JobSpec,
    nodes=st.sampled_from([(), ("a",), ("b",), ("c",)]),
    node_count=st.just(1),
    gpus=st.integers(1, 4),
    gpus_per_node=st.none(),
    gpu_type=st.sampled_from([None, "v100"]),
    cpus=st.integers(1, 12),
    memory=st.integers(0, 400),
    tasks=st.just(1),
)
jobs = st.integers(1, 12).map(str)
operations: st.SearchStrategy[tuple[Verb, str, OperationValue]] = st.one_of(
    st.tuples(st.sampled_from([Verb.HOLD, Verb.RELEASE, Verb.NOTIFY, Verb.REQUEUE]), jobs, st.none()),
    st.tuples(st.just(Verb.UPDATE), jobs, shapes),
    st.tuples(st.just(Verb.PRIORITIZE), jobs, st.integers(-100, 100)),
)
mishaps = st.tuples(st.sampled_from(["down", "drain", "up", "cancel", "suspend", "resume"]), st.integers(0, 11))
step = st.tuples(st.floats(0, 800), st.one_of(submissions, operations, mishaps))
lives = st.lists(step, max_size=40)


class Metered(SimulatedBackend):
    """Also sums up the GPUs in use over time, from what each poll shows."""

    gpu_seconds = 0.0

    def pass_time(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            busy = sum(machine.used.gpus for machine in self.observe().nodes)
            following = self.cluster.events.next_time
            step = min(until, until if following is None else following) - self.clock.now()
            self.gpu_seconds += busy * step
            self.clock.advance(step)
        self.observe()


def nothing(_world: SimulatedBackend, _seen: Snapshot) -> None:
    """No check."""


def live(steps: list[tuple[float, object]], check: Callable[[SimulatedBackend, Snapshot], None] = nothing) -> Metered:
    """Let all this happen; `check` looks at every state in between."""
    speed = {"a": 2.0, "b": 1.0, "c": 0.5}
    world = Metered(VirtualCluster(NODES, speed=lambda _job, shares, _partners: speed[shares[0].node]), VirtualClock())
    for wait, what in steps:
        world.pass_time(wait)
        match what:
            case Submission():
                world.submit(what)
            case (Verb() as verb, str() as subject, None | int() | JobSpec() as after):
                world.execute([Operation(verb, subject, Reason(ReasonCode.START), None, after)])
            case (str() as mishap, int() as which):
                happen(world, mishap, which)
        check(world, world.observe())
    return world


def happen(world: SimulatedBackend, mishap: str, which: int) -> None:
    cluster = world.cluster
    states = {"down": NodeState.DOWN, "drain": NodeState.DRAINED, "up": NodeState.UP}
    job = cluster.jobs.get(str(which))
    if mishap in states:
        cluster.set_node("abc"[which % 3], states[mishap])
    elif job is not None and mishap == "cancel":
        cluster.lifecycle.cancel(job, cluster.now)
    elif job is not None and mishap == "suspend" and job.state is JobState.RUNNING:
        cluster.lifecycle.suspend(job, cluster.now)
    elif job is not None and job.state is JobState.SUSPENDED:
        free = all(cluster.nodes[share.node].free_cpus >= share.resources.cpus for share in job.allocations)
        if free:
            cluster.lifecycle.resume(job, cluster.now)


@given(lives)
@settings(max_examples=50)
def test_no_device_is_booked_twice_and_the_books_of_a_node_are_the_sum_of_its_jobs(
    steps: list[tuple[float, object]],
) -> None:
    def check(world: SimulatedBackend, seen: Snapshot) -> None:
        for machine in seen.nodes:
            having = [(job, share) for job in seen.jobs for share in job.allocations if share.node == machine.name]
            devices = [index for _, share in having for index in share.indices]
            assert len(devices) == len(set(devices))
            assert {gpu.index for gpu in machine.gpus if not gpu.idle} == set(devices)
            assert machine.used.gpus == sum(share.resources.gpus for _, share in having)
            assert machine.used.memory == sum(share.resources.memory for _, share in having)
            assert machine.used.cpus == sum(
                share.resources.cpus for job, share in having if not world.cluster.jobs[job.id].cpus_released
            )
            assert machine.used.fits_in(machine.total)

    live(steps, check)


@given(lives)
@settings(max_examples=50)
def test_a_job_that_runs_has_what_it_asks_for_and_one_that_waits_has_nothing(steps: list[tuple[float, object]]) -> None:
    def check(_world: SimulatedBackend, seen: Snapshot) -> None:
        for job in seen.jobs:
            if job.state is JobState.RUNNING:
                assert job.allocated.gpus == job.current_request.gpus
                assert job.allocated.cpus >= job.current_request.cpus
                assert job.current_request.pinned <= set(job.nodes)
            elif job.state in (JobState.PENDING, JobState.FINISHED):
                assert not job.allocations

    live(steps, check)


@given(lives)
@settings(max_examples=50)
def test_a_held_job_never_starts(steps: list[tuple[float, object]]) -> None:
    held: dict[str, int] = {}

    def check(_world: SimulatedBackend, seen: Snapshot) -> None:
        for job in seen.jobs:
            was = held.pop(job.id, None)
            if job.hold is not Hold.NONE:
                assert job.state is JobState.PENDING
                held[job.id] = job.restarts if was is None else was
                assert held[job.id] == job.restarts

    live(steps, check)


@given(lives)
@settings(max_examples=50)
def test_gpu_seconds_in_the_accounts_are_what_was_taken(steps: list[tuple[float, object]]) -> None:
    world = live(steps)
    for job in world.cluster.jobs.values():
        world.cluster.lifecycle.cancel(job, world.cluster.now)
    world.pass_time(10)
    intervals = world.cluster.lifecycle.usage_intervals
    assert sum(interval.gpu_seconds for interval in intervals) == pytest.approx(world.gpu_seconds)
    ends: dict[str, float] = {}
    for interval in sorted(intervals, key=lambda interval: interval.start):
        assert 0 <= interval.useful_seconds <= interval.end - interval.start
        assert interval.start >= ends.get(interval.job, 0.0)
        ends[interval.job] = interval.end


@given(lives)
@settings(max_examples=50)
def test_work_is_done_once(steps: list[tuple[float, object]]) -> None:
    world = SimulatedBackend(VirtualCluster(NODES), VirtualClock())
    for wait, what in steps:
        world.clock.advance(wait)
        world.observe()
        if isinstance(what, Submission):
            world.submit(replace(what, time_limit=None, requeue=True, held=False))
        elif isinstance(what, tuple) and what[0] in (Verb.REQUEUE, Verb.NOTIFY, Verb.RELEASE):
            world.execute([Operation(what[0], what[1], Reason(ReasonCode.START))])
    world.execute([Operation(Verb.RELEASE, str(job), Reason(ReasonCode.START)) for job in range(41)])
    world.clock.advance(1e7)
    world.observe()
    world.execute([Operation(Verb.RELEASE, str(job), Reason(ReasonCode.START)) for job in range(41)])
    world.clock.advance(1e7)
    world.observe()
    kept: dict[str, float] = {}
    for interval in world.cluster.lifecycle.usage_intervals:
        kept[interval.job] = kept.get(interval.job, 0.0) + interval.useful_seconds
    for job in world.cluster.lifecycle.ended.values():
        assert kept[job.id] == pytest.approx(job.submission.work)


@given(lives)
@settings(max_examples=25)
def test_the_same_calls_give_the_same_bytes(steps: list[tuple[float, object]]) -> None:
    def bytes_of() -> list[str]:
        seen: list[str] = []
        live(steps, lambda _world, snapshot: seen.append(encode(snapshot)))
        return seen

    assert bytes_of() == bytes_of()


@given(st.lists(submissions, min_size=1, max_size=6), st.data())
def test_undo_after_an_operation_is_as_if_nothing_had_happened(given_: list[Submission], data: st.DataObject) -> None:
    world = SimulatedBackend(VirtualCluster(NODES), VirtualClock())
    for machine in NODES:
        world.submit(Submission("root", Request(pinned=frozenset({machine.name}), exclusive=True), 1e9))
    for submission in given_:
        cpus = submission.request.cpus * submission.request.nodes
        world.submit(replace(submission, request=replace(submission.request, cpus=cpus), begin=1e9))
    before = world.observe()
    job = data.draw(st.sampled_from(before.jobs[len(NODES) :]))
    held = job.hold is not Hold.NONE
    asked = data.draw(
        st.sampled_from([release(job) if held else hold(job), reshape(job, data.draw(shapes)), nice(job)])
    )
    undo = asked.undo()
    assert undo is not None
    assert [o.result for o in world.execute([asked, undo])] == [Result.DONE, Result.DONE]
    after = world.observe()
    if asked.verb is Verb.RELEASE:  # now the hold is an administrator's
        assert after.jobs_by_id[job.id].hold is Hold.ADMIN
    else:
        assert after == before


def hold(job: Job) -> Operation:
    return Operation(Verb.HOLD, job.id, Reason(ReasonCode.TAKE_OVER))


def release(job: Job) -> Operation:
    return Operation(Verb.RELEASE, job.id, Reason(ReasonCode.START))


def nice(job: Job) -> Operation:
    return Operation(Verb.PRIORITIZE, job.id, Reason(ReasonCode.RANK), job.nice, 77)


def reshape(job: Job, shape: JobSpec) -> Operation:
    standing = job.current_request
    stood = JobSpec(
        tuple(sorted(standing.pinned)),
        standing.nodes,
        standing.gpus,
        standing.gpus_per_node,
        standing.gpu_type,
        standing.cpus // standing.nodes,
        standing.memory,
        standing.tasks,
        standing.max_nodes,
    )
    return Operation(Verb.UPDATE, job.id, Reason(ReasonCode.START), stood, shape)


waiting = st.builds(
    BackfillCandidate,
    job=st.just("job"),
    request=requests.map(lambda request: replace(request, gpu_type=None)),
    node_lists=st.just((("a", "b", "c"),)),
    time_limit=st.one_of(st.none(), st.integers(1, 500)),
)


@given(st.lists(waiting, max_size=6), st.lists(waiting, min_size=1, max_size=8))
def test_backfill_never_delays_the_first_blocked_job(
    earlier: list[BackfillCandidate], queue: list[BackfillCandidate]
) -> None:
    floor = {machine.name: SimulatedNode(machine) for machine in NODES}
    running = [started(floor, shares, candidate) for candidate, shares in begun(earlier, [], floor)]
    reached = begun(queue, running, floor)
    blocked = next((c for c in queue if c.job not in {candidate.job for candidate, _ in reached}), None)
    place = None if blocked is None else queue.index(blocked)
    for candidate, shares in reached:
        if place is not None and queue.index(candidate) < place:
            running.append(started(floor, shares, candidate))
    promised = None if blocked is None else _reserve(blocked, running, floor)
    for candidate, shares in reached:
        if place is not None and queue.index(candidate) > place:
            running.append(started(floor, shares, candidate))
    if blocked is not None and promised is not None:
        later = _reserve(blocked, running, floor)
        assert later is not None
        assert later.start <= promised.start


def begun(
    queue: list[BackfillCandidate], running: list[FutureRelease], floor: dict[str, SimulatedNode]
) -> list[tuple[BackfillCandidate, tuple[NodeAllocation, ...]]]:
    """Who of the queue starts; the queue's jobs are numbered in place so that they can be told apart."""
    queue[:] = [replace(candidate, job=f"{place}") for place, candidate in enumerate(queue)]
    by_id = {candidate.job: candidate for candidate in queue}
    return [(by_id[job], shares) for job, shares in schedule_queue(queue, lambda: running, floor, 0.0, {})]


def started(
    floor: dict[str, SimulatedNode], shares: tuple[NodeAllocation, ...], candidate: BackfillCandidate
) -> FutureRelease:
    for share in shares:
        floor[share.node].allocate(share)
    return FutureRelease(shares, inf if candidate.time_limit is None else candidate.time_limit)
