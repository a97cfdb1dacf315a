"""The `JobSpec` of a request, of a target or of a running job, whether two specs are equivalent, which holds and
changed requests are ours, and the plan that gives all jobs back to Slurm."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
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
    Reason,
    ReasonCode,
    Request,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.rounds.set_aside import release_by_id


def spec_of(request: Request) -> JobSpec:
    """The spec of this request, with the owner's pinned nodes; `max_nodes` only if it exceeds the node count."""
    max_nodes, nodes = request.max_nodes, max(request.nodes, len(request.pinned))
    return JobSpec(
        nodes=tuple(sorted(request.pinned)),
        node_count=nodes,
        gpus=request.gpus,
        gpus_per_node=request.gpus_per_node,
        gpu_type=request.gpu_type,
        cpus=-(-request.cpus // max(nodes, 1)),
        memory=request.memory,
        tasks=request.tasks,
        max_nodes=max_nodes if max_nodes is not None and max_nodes > nodes else None,
        cpus_per_task=max(1, request.cpus // max(request.tasks, nodes, 1)),
        keeps_cpus=request.keeps_cpus,
        keeps_memory=request.keeps_memory,
        shards=request.shards,
        counts_nodes=not _leaves_count(request),
        narrowed=request.narrowed,
    )


def _leaves_count(request: Request) -> bool:
    """Whether the owner may have left the number of nodes to Slurm, which shows one node for that too."""
    return request.max_nodes is None and request.nodes <= 1 and request.gpus_per_node is None


def pinned_spec(allocations: Sequence[NodeAllocation], request: Request, nodes: Mapping[str, Node]) -> JobSpec:
    """The request pinned to exactly these allocations.

    The GPU type is named if the request names one or a node has several types. Slurm makes an uneven split itself: CPUs
    are then the mean per node (Slurm divides them by task), and memory is the most that any node needs.
    """
    ordered = sorted(allocations, key=lambda allocation: allocation.node)
    gpus, count = [allocation.resources.gpus for allocation in ordered], max(len(allocations), 1)
    cpus, tasks = sum(allocation.resources.cpus for allocation in ordered), max(request.tasks, count)
    if len(set(gpus)) == 1:
        tasks = -(-tasks // count) * count  # equal nodes have CPUs for as many tasks each
    cpus = request.cpus if request.exclusive else cpus
    types = {allocation.gpu_type for allocation in ordered if allocation.gpu_type}
    names_type = request.gpu_type is not None or any(
        len(nodes[a.node].gpu_types) > 1 for a in ordered if a.node in nodes
    )
    return JobSpec(
        nodes=tuple(allocation.node for allocation in ordered),
        node_count=len(ordered),
        gpus=sum(gpus),
        gpus_per_node=gpus[0] if len(set(gpus)) == 1 else None,
        gpu_type=next(iter(types)) if names_type and len(types) == 1 else request.gpu_type,
        cpus=-(-cpus // count),
        memory=max((allocation.resources.memory for allocation in ordered), default=0),
        tasks=request.tasks,
        cpus_per_task=_cpus_per_task(ordered, request, tasks, nodes),
        keeps_cpus=request.keeps_cpus or (request.cpus_by_default and cpus <= request.cpus),
        keeps_memory=request.keeps_memory,
        shards=sum(allocation.shards for allocation in ordered),
        counts_nodes=len(ordered) <= 1 or not _leaves_count(request),
    )


def _cpus_per_task(
    allocations: Sequence[NodeAllocation], request: Request, tasks: int, nodes: Mapping[str, Node]
) -> int:
    """What each task asks for of CPUs that are charged in whole cores or sockets: what its owner asked for, unless the
    job is charged for more than that comes to."""
    if request.exclusive:
        return max(1, request.cpus // tasks)
    cpus, rounding, most = 0, 0, request.threads_per_core
    for allocation in allocations:
        node = nodes.get(allocation.node)
        unit, threads = (node.cpu_unit, node.threads_per_core) if node else (1, 1)
        usable = unit // threads * min(most or threads, threads)
        cpus += allocation.resources.cpus // unit * usable
        rounding += usable - 1
    asked = request.cpus // max(request.tasks, request.nodes, 1)
    return max(1, asked if 0 <= cpus - asked * tasks <= rounding else cpus // tasks)


def running_spec(job: Job, nodes: Mapping[str, Node]) -> JobSpec:
    """The spec that would start a running job again exactly where it runs."""
    return pinned_spec(job.allocations, job.original_request, nodes)


def equivalent(first: JobSpec, second: JobSpec) -> bool:
    """Whether Slurm treats both alike. `gpus_per_node` is ignored if one of them has none, CPUs and memory that the
    request keeps are, and CPUs are compared by task, and shards and whether it is narrowed, where both know them. Slurm
    counts at least one task per node."""
    if None not in (first.narrowed, second.narrowed) and first.narrowed != second.narrowed:
        return False
    if None in (first.gpus_per_node, second.gpus_per_node):
        first, second = replace(first, gpus_per_node=None), replace(second, gpus_per_node=None)
    if first.keeps_cpus or second.keeps_cpus:
        first, second = (replace(spec, cpus=0, cpus_per_task=0, keeps_cpus=True) for spec in (first, second))
    if first.cpus_per_task and second.cpus_per_task:
        first, second = replace(first, cpus=0), replace(second, cpus=0)
    else:
        first, second = replace(first, cpus_per_task=0), replace(second, cpus_per_task=0)
    if first.keeps_memory or second.keeps_memory:
        first, second = (replace(spec, memory=0, keeps_memory=True) for spec in (first, second))
    if 0 in (first.shards, second.shards):
        first, second = replace(first, shards=0), replace(second, shards=0)
    first, second = (replace(spec, tasks=max(spec.tasks, spec.node_count)) for spec in (first, second))
    return first == second


def held_by_us(job: Job, state: SchedulerState) -> bool:
    """Whether a pending job is held by us: by the daemon, or by the submit hook on its behalf."""
    if job.hold is Hold.NONE or held_by_owner(job):
        return False
    return job.held_by_hook or job.id in state.held


def held_by_owner(job: Job) -> bool:
    """Whether the hold is certainly the owner's: the hook removes its mark when an owner holds a job.

    It is not certain without a hint, since an operator may have replaced the comment, nor on a job that has run, since
    Slurm may show what the daemon requeued as held by its owner.
    """
    hints = job.hints
    return job.hold is Hold.USER and job.restarts == 0 and hints.given and not hints.held_by_hook


_RELEASE_REASON = Reason(ReasonCode.GIVE_BACK)


def release_plan(snapshot: Snapshot, state: SchedulerState, placed: Container[JobId] = ()) -> Plan:
    """Restore original requests and nice and release our holds: for `synsched release`, the watchdog, uninstalling.
    The jobs in `placed` keep the request and the hold that they have.

    Only pending jobs can be changed. A hold by the owner or an administrator stays. A job whose record cannot be read
    is released by its id alone, whatever its request is: a pinned job is better than a held one.
    """
    waiting = tuple(snapshot.jobs_in_state(JobState.PENDING))
    hooked = (aside.job for aside in snapshot.set_aside if aside.held_by_hook)
    return Plan(
        (
            *(operation for job in waiting for operation in _restore_nice(job, state)),
            *(operation for job in waiting if job.id not in placed for operation in restore_placement(job, state)),
            *map(release_by_id, dict.fromkeys((*state.held_aside, *hooked))),
        )
    )


def restore_placement(job: Job, state: SchedulerState) -> Iterator[Operation]:
    """Restore a pending job's original request, then release its hold: it must not start with our request."""
    original = state.original_requests.get(job.id)
    if original is not None and not equivalent(spec_of(job.current_request), spec_of(original)):
        yield Operation(Verb.UPDATE, job.id, _RELEASE_REASON, spec_of(job.current_request), spec_of(original))
    if held_by_us(job, state):
        yield Operation(Verb.RELEASE, job.id, _RELEASE_REASON, job.hold.value, Hold.NONE.value)


def _restore_nice(job: Job, state: SchedulerState) -> Iterator[Operation]:
    original = state.nices.get(job.id)
    if original is not None and job.nice != original:
        yield Operation(Verb.PRIORITIZE, job.id, _RELEASE_REASON, job.nice, original)


def with_original_requests(snapshot: Snapshot, state: SchedulerState) -> Snapshot:
    """The snapshot with each changed job's `original_request` and each requeued job's first `submit_time`.

    `current_request` stays what Slurm shows.
    """
    if not state.original_requests and not state.submitted:
        return snapshot
    return replace(snapshot, jobs=tuple(_with_original_request(job, state) for job in snapshot.jobs))


def _with_original_request(job: Job, state: SchedulerState) -> Job:
    original, submitted = state.original_requests.get(job.id), state.submitted.get(job.id)
    if original is None and submitted is None:
        return job
    return job.as_submitted(
        job.original_request if original is None else original, job.submit_time if submitted is None else submitted
    )
