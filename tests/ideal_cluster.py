"""A cluster on which every operation works at once: what a plan comes to when nothing goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from slurmsched.model import (
    Hold,
    Job,
    JobId,
    JobSpec,
    JobState,
    Node,
    NodeAllocation,
    Operation,
    Plan,
    Request,
    Resources,
    Result,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.rounds.progress import FinishedOperation, is_settled, ready_operations
from tests.builders import snapshot

MANY = 1000


class IdealCluster:
    """Mutable. `used` of a node is what its running jobs have beside what the node was given with."""

    def __init__(self, nodes: Iterable[Node], jobs: Iterable[Job], time: float = 10_000.0) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.jobs = {job.id: job for job in jobs}
        self.time = time
        self.executed: list[Operation] = []

    def observe(self) -> Snapshot:
        return snapshot(self.nodes.values(), self.jobs.values(), self.time)

    def execute(self, operation: Operation) -> Result:
        """Do it; a RELEASE of a pinned job starts it where it is pinned, if that is free."""
        self.executed.append(operation)
        if operation.verb is Verb.WEIGH:
            assert isinstance(operation.after, int)
            self.nodes[operation.subject] = replace(self.nodes[operation.subject], weight=operation.after)
        elif operation.verb is not Verb.CONFIGURE:
            self.jobs[operation.subject] = _CHANGES[operation.verb](self.jobs[operation.subject], operation)
        if operation.verb is Verb.RELEASE:
            self._start(operation.subject)
        return Result.DONE

    def follow(self, plan: Plan) -> Snapshot:
        """Execute the whole plan as the daemon would, checking after each batch that no node gives more than it has."""
        done: dict[int, FinishedOperation] = {}
        for _ in range(MANY):
            batch = ready_operations(plan, done, self.observe(), self.time)
            for index in batch:
                done[index] = FinishedOperation(self.execute(plan.operations[index]), self.time)
                self.assert_no_node_is_overcommitted()
            if not batch and is_settled(plan, done, self.observe(), self.time):
                return self.observe()
            self.time += 0 if batch else 60
        raise AssertionError(f"the plan does not settle: {plan}")

    def assert_no_node_is_overcommitted(self) -> None:
        for node in self.observe().nodes:
            taken = sum(
                (s.resources for j in self.jobs.values() for s in j.allocations if s.node == node.name), Resources()
            )
            assert (taken + self.nodes[node.name].used).fits_in(node.total), node.name

    def remembered(self, before: Snapshot) -> SchedulerState:
        """What a store would know: requests as they were, and holds set by us since."""
        ours = {op.subject for op in self.executed if op.verb in (Verb.HOLD, Verb.REQUEUE)}
        held = frozenset(job for job in ours if self.jobs[job].hold is not Hold.NONE)
        nices = {op.subject: before.jobs_by_id[op.subject].nice for op in self.executed if op.verb is Verb.PRIORITIZE}
        return SchedulerState(
            original_requests={job.id: job.current_request for job in before.jobs}, held=held, nices=nices
        )

    def _start(self, job_id: JobId) -> None:
        job = self.jobs[job_id]
        if job.state is JobState.PENDING and job.current_request.pinned:
            shares = self._room_for(job.current_request)
            if shares:
                self.jobs[job_id] = replace(
                    job, state=JobState.RUNNING, allocations=shares, run_time=0.0, start_time=self.time
                )

    def _room_for(self, request: Request) -> tuple[NodeAllocation, ...]:
        """Where it fits now. GPUs that are asked for as a total are split as there is room for them, as Slurm does."""
        seen, shares, left = self.observe(), list[NodeAllocation](), request.gpus
        for further, name in reversed([*enumerate(sorted(request.pinned, reverse=True))]):
            node = seen.nodes_by_name[name]
            idle = [gpu for gpu in node.gpus if gpu.idle and request.gpu_type in (None, gpu.type)]
            here = idle[: request.gpus_per_node or max(left - further, 0)]
            size = Resources(len(here), request.cpus // len(request.pinned), request.memory)
            if not here or len(here) < (request.gpus_per_node or 1) or not size.fits_in(node.free):
                return ()
            left -= len(here)
            shares.append(NodeAllocation(name, size, here[0].type, tuple(gpu.index for gpu in here)))
        return tuple(shares) if request.gpus_per_node or not left else ()


def _reshaped(job: Job, operation: Operation) -> Job:
    shape = operation.after
    assert isinstance(shape, JobSpec)
    standing = replace(
        job.current_request,
        gpus=shape.gpus,
        gpu_type=shape.gpu_type,
        gpus_per_node=shape.gpus_per_node,
        nodes=shape.node_count,
        max_nodes=shape.max_nodes,
        tasks=shape.tasks,
        cpus=shape.cpus * shape.node_count,
        memory=shape.memory,
        pinned=frozenset(shape.nodes),
    )
    return replace(job, current_request=standing)


def _reprioritized(job: Job, operation: Operation) -> Job:
    assert isinstance(operation.after, int)
    return replace(job, nice=operation.after, priority=job.priority + job.nice - operation.after)


def _requeued(job: Job, _: Operation) -> Job:
    return replace(
        job, state=JobState.PENDING, hold=Hold.REQUEUED, allocations=(), start_time=None, restarts=job.restarts + 1
    )


_CHANGES: dict[Verb, Callable[[Job, Operation], Job]] = {
    Verb.HOLD: lambda job, operation: replace(job, hold=Hold(str(operation.after))),
    Verb.UPDATE: _reshaped,
    Verb.RELEASE: lambda job, _: replace(job, hold=Hold.NONE),
    Verb.NOTIFY: lambda job, _: job,
    Verb.REQUEUE: _requeued,
    Verb.PRIORITIZE: _reprioritized,
    Verb.NOTE: lambda job, operation: replace(job, admin_comment=str(operation.after)),
}
