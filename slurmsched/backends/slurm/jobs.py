"""Builds the model's jobs from Slurm's records, and checks each request against the cluster's totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

from slurmsched.backends.slurm.errors import SlurmParseError, unread_reason
from slurmsched.backends.slurm.gres import parse_gpus, parse_gres
from slurmsched.backends.slurm.hostlist import MAX_NAMES, expand_hostlist, expand_numbers, parse_ranges
from slurmsched.backends.slurm.records import (
    JobRecord,
    RawAllocation,
    or_empty,
    parse_count,
    parse_mebibytes,
    parse_seconds,
    parse_time,
)
from slurmsched.backends.slurm.requests import RequestForm, parse_form, parse_request, unmanageable_reason
from slurmsched.backends.slurm.sbatch_options import let_go_reason
from slurmsched.model import (
    Hold,
    Job,
    JobId,
    JobState,
    Node,
    NodeAllocation,
    Partition,
    Request,
    Resources,
    SetAsideJob,
    parse_hints,
)

_MAX_COUNT: Final = 2**31
"""An upper bound of every count of a real cluster, and of its memory in MiB."""
_FORMER_NODES: Final = 1_000
"""Removed nodes that a list of nodes may still name."""


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The cluster's totals: nodes, GPUs, CPUs and memory in MiB."""

    nodes: int = _MAX_COUNT
    gpus: int = _MAX_COUNT
    cpus: int = _MAX_COUNT
    memory: int = _MAX_COUNT

    @property
    def max_node_names(self) -> int:
        """The most nodes that a list may name: the present ones, and some that were removed since."""
        return min(self.nodes + _FORMER_NODES, MAX_NAMES)

    def check(self, request: Request) -> None:
        """Raises SlurmParseError if a request is negative or exceeds all nodes together."""
        amounts = {
            "nodes": (request.nodes, self.nodes),
            "GPUs": (max(request.gpus, request.gpus_per_node or 0), self.gpus),
            "CPUs": (request.cpus, self.cpus),
            "MiB of memory on each node": (request.memory, self.memory),
            "tasks": (request.tasks, _MAX_COUNT),
            "shards": (request.shards, _MAX_COUNT),
        }
        for what, (amount, most) in amounts.items():
            if amount < 0 or amount > most:
                raise SlurmParseError(f"it asks for {amount} {what}, but the cluster has {most}")


NO_LIMITS: Final = ClusterLimits()
"""Limits for a cluster whose nodes are unknown."""


def limits_from_totals(totals: Iterable[Resources]) -> ClusterLimits:
    """The sums over nodes with these totals; no limits without nodes."""
    known = tuple(totals)
    if not known:
        return NO_LIMITS
    return ClusterLimits(
        nodes=len(known),
        gpus=sum(total.gpus for total in known),
        cpus=sum(total.cpus for total in known),
        memory=sum(total.memory for total in known),
    )


def node_allocations(
    raw_allocations: Sequence[RawAllocation], fields: Mapping[str, str], max_nodes: int = MAX_NAMES
) -> tuple[NodeAllocation, ...]:
    """One allocation per node, in Slurm's order. Raises SlurmParseError, also for more than `max_nodes` nodes.

    Slurm no longer shows the GPUs of a completing job by node: its total is split then, if it divides evenly.
    """
    allocations: list[NodeAllocation] = []
    for raw in raw_allocations:
        allocations += _expand_allocation(raw, max_nodes - len(allocations))
    job_gpus = parse_gpus(fields.get("JOB_GRES"))
    total = sum(entry.count for entry in job_gpus)
    if not job_gpus or any(allocation.resources.gpus for allocation in allocations) or total % max(len(allocations), 1):
        return tuple(allocations)
    each, kind = total // len(allocations), job_gpus[0].type if len(job_gpus) == 1 else ""
    return tuple(
        NodeAllocation(allocation.node, Resources(each, allocation.resources.cpus, allocation.resources.memory), kind)
        for allocation in allocations
    )


def _expand_allocation(allocation: RawAllocation, max_nodes: int) -> list[NodeAllocation]:
    entries = parse_gres(allocation.gres)
    gpus = [entry for entry in entries if entry.name == "gpu" and entry.count]
    resources = Resources(
        gpus=sum(entry.count for entry in gpus),
        cpus=len(expand_numbers(allocation.cpus)),
        memory=parse_mebibytes(allocation.memory),
    )
    types = {entry.type for entry in gpus}
    shared = [entry for entry in entries if entry.name == "shard" and entry.count]
    devices = {index for entry in (*gpus, *shared) for index in entry.indices}
    devices |= {index for entry in shared for index, (taken, _) in enumerate(entry.shards_by_device) if taken}
    indices, shards = tuple(sorted(devices)), sum(entry.count for entry in shared)
    kind = types.pop() if len(types) == 1 else ""
    return [
        NodeAllocation(node, resources, kind, indices, shards) for node in expand_hostlist(allocation.nodes, max_nodes)
    ]


MAX_ARRAY_TASKS: Final = 2_000
"""The most pending tasks of one array that become jobs; the others follow as these leave the queue."""

_STATES: Final = {
    "PENDING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "POWER_UP_NODE": JobState.RUNNING,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "SUSPENDED": JobState.SUSPENDED,
}
_HOLD_REASONS: Final = {"JobHeldUser": Hold.USER, "JobHeldAdmin": Hold.ADMIN}
_NO_TASK: Final = "4294967294"


@dataclass(frozen=True, slots=True)
class ParsedJob:
    """A job and the form of its request."""

    job: Job
    request_form: RequestForm


def with_gpu_defaults(job: Job, partitions: Iterable[Partition]) -> Job:
    """The job with what its partitions give by GPU to a job that waits and does not ask for CPUs or memory.

    Slurm adds that only when it looks for nodes, and shows one CPU per task and the memory per CPU until then, which
    is the current request; an update to more CPUs holds (24.11 and 26.05). A job that asks for just one CPU per task is
    read alike.
    """
    request, known = job.original_request, tuple(partitions)
    if job.state is not JobState.PENDING or not request.gpus or not known:
        return job
    cpus, memory = (max(getattr(of, name) for of in known) for name in ("cpus_per_gpu", "memory_per_gpu"))
    if cpus * request.gpus > request.cpus and not request.cpus_per_gpu and request.cpus <= request.tasks:
        by_gpu = -(-cpus * request.gpus // request.tasks) * request.tasks
        request = replace(request, cpus=by_gpu, cpus_by_default=True)
    unasked = request.whole_memory or request.memory_per_cpu in {of.memory_per_cpu for of in known if of.memory_per_cpu}
    if memory and unasked and not request.memory_per_gpu:
        on_node = -(-memory * request.gpus // request.nodes)
        request = replace(request, memory_per_gpu=memory, memory=on_node, memory_per_cpu=0, whole_memory=False)
    return job if request is job.original_request else replace(job, original_request=request)


def with_types_of_shards(job: Job, nodes: Mapping[str, Node]) -> Job:
    """The job with the GPU type that its shards on each node are of, which Slurm does not show: that of their GPUs, or
    of all GPUs with shards there where it does not show these either; none where types differ."""
    if not any(share.shards and not share.gpu_type for share in job.allocations):
        return job
    return replace(job, allocations=tuple(_with_type(share, nodes.get(share.node)) for share in job.allocations))


def _with_type(share: NodeAllocation, node: Node | None) -> NodeAllocation:
    if node is None or share.gpu_type or not share.shards:
        return share
    types = {gpu.type for gpu in node.gpus if (gpu.index in share.indices if share.indices else gpu.shards)}
    return replace(share, gpu_type=types.pop()) if len(types) == 1 else share


def without_shards_by_task(job: Job, form: RequestForm) -> Job:
    """The job, left to Slurm if it asks for shards for each of several tasks on a node.

    With MULTIPLE_SHARING_GRES_PJ these are of several GPUs, with `--gres-flags=one-task-per-sharing` always, without it
    where halves are open. Which GPUs depends on what is open: two such jobs may have only one in common (24.11, 26.05).
    """
    request = job.original_request
    if not form.shards_per_task or request.tasks <= request.nodes or job.unmanageable:
        return job
    return replace(job, unmanageable=let_go_reason("--tres-per-task=shards"))


def without_memory(job: Job) -> Job:
    """The job as Slurm sees it where it shares out no memory: an amount is only what a node must have at least."""
    asked, current = map(_without_memory, (job.original_request, job.current_request))
    has = (replace(share, resources=replace(share.resources, memory=0)) for share in job.allocations)
    return replace(job, original_request=asked, current_request=current, allocations=tuple(has))


def _without_memory(request: Request) -> Request:
    memory = 0 if request.whole_memory else request.memory
    return replace(
        request, memory=memory, memory_per_cpu=0, memory_per_gpu=0, whole_memory=False, memory_unscheduled=True
    )


def parse_jobs(
    records: Iterable[JobRecord], limits: ClusterLimits
) -> tuple[list[ParsedJob], list[SetAsideJob], list[str]]:
    """The jobs, those that cannot be parsed, and a warning for each array with more than `MAX_ARRAY_TASKS` pending."""
    jobs: list[ParsedJob] = []
    set_aside: list[SetAsideJob] = []
    warnings: list[str] = []
    for record in records:
        try:
            jobs += parse_record(record, limits)
            if record.array_tasks.endswith("...") or len(_parse_tasks(record.array_tasks)) > MAX_ARRAY_TASKS:
                warnings.append(
                    f"array {record.array_id} has more than {MAX_ARRAY_TASKS} pending tasks: the others follow later"
                )
        except Exception as error:
            set_aside.append(_unreadable(record, error))
    return jobs, set_aside, warnings


def parse_record(record: JobRecord, limits: ClusterLimits) -> list[ParsedJob]:
    """One job, or the first `MAX_ARRAY_TASKS` pending tasks of an array. Raises SlurmParseError."""
    job, form = _parse_job(record, limits), parse_form(record.fields)
    tasks = _parse_tasks(record.array_tasks)[:MAX_ARRAY_TASKS]
    if job.state is not JobState.PENDING and (tasks or record.het_id):
        job = replace(job, number=record.number)
    if record.array_tasks.isdecimal() and record.number != record.array_id:
        form = replace(form, record=record.number)
    return [ParsedJob(replace(job, id=f"{record.array_id}_{task}"), form) for task in tasks] or [ParsedJob(job, form)]


def parse_state(text: str) -> JobState:
    """The model's state for Slurm's. An unknown state counts as finished, so that the job is left alone."""
    return _STATES.get(text, JobState.FINISHED)


def _unreadable(record: JobRecord, error: Exception) -> SetAsideJob:
    pending = parse_state(record.state) is JobState.PENDING and record.priority != 0
    job = f"{record.array_id}_{record.array_tasks}" if record.array_tasks.isdecimal() else _job_id(record)
    by_hook = is_hooked(record.reason, record.comment, record.fields.get("Restarts", ""))
    return SetAsideJob(job, unread_reason(error), record.user, record.fields.get("Partition", ""), pending, by_hook)


def is_hooked(reason: str, comment: str, restarts: str) -> bool:
    """Return whether the submit hook holds the job: its mark tells nothing on a job that has run since."""
    return reason == "JobHeldUser" and restarts == "0" and parse_hints(comment).held_by_hook


def _parse_tasks(expression: str) -> list[int]:
    """The task ids of `0-9:3,12%2`, at most `MAX_ARRAY_TASKS` + 1; none for a job outside an array.

    The last entry of a list that Slurm cut off with `...` is incomplete and left out.
    """
    listed = expression.partition("%")[0]
    if listed in ("", _NO_TASK):
        return []
    if listed.endswith("..."):
        listed = listed.rpartition(",")[0]
    return list(islice(chain.from_iterable(parse_ranges(listed)), MAX_ARRAY_TASKS + 1))


def _parse_job(record: JobRecord, limits: ClusterLimits) -> Job:
    fields, hints = record.fields, parse_hints(record.comment)
    state = parse_state(record.state)
    has_resources = state in (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
    request = parse_request(fields, waiting=state is JobState.PENDING, max_nodes_named=limits.max_node_names)
    if state is not JobState.FINISHED:  # what waits may ask for more than there is: a round gives it back to Slurm
        (NO_LIMITS if state is JobState.PENDING else limits).check(request)
    return Job(
        id=_job_id(record),
        user=record.user,
        original_request=request,
        current_request=request,
        state=state,
        state_text=record.state,
        name=record.name,
        account=or_empty(record.account),
        partitions=tuple(filter(None, or_empty(fields.get("Partition")).split(","))),
        qos=or_empty(record.qos),
        reason=or_empty(record.reason),
        hold=_hold(record, state),
        allocations=node_allocations(record.allocations, fields, limits.max_node_names) if has_resources else (),
        submit_time=parse_time(fields.get("SubmitTime")) or 0.0,
        eligible_time=parse_time(fields.get("EligibleTime")),
        start_time=parse_time(fields.get("StartTime")),
        end_time=parse_time(fields.get("EndTime")),
        run_time=float(parse_seconds(fields.get("RunTime")) or 0),
        time_limit=parse_seconds(fields.get("TimeLimit")),
        priority=record.priority,
        nice=record.nice,
        batch=fields.get("BatchFlag") == "1",
        requeue=fields.get("Requeue") == "1",
        restarts=parse_count(fields.get("Restarts")),
        dependency=or_empty(fields.get("Dependency")),
        reservation=or_empty(fields.get("Reservation")),
        array_job=record.array_id,
        throttle=record.throttle,
        comment=record.comment,
        admin_comment=record.admin_comment,
        hints=hints,
        unmanageable=unmanageable_reason(fields, hints.left or ""),
    )


def _job_id(record: JobRecord) -> JobId:
    return f"{record.het_id}+{record.het_offset}" if record.het_id else record.number


def _hold(record: JobRecord, state: JobState) -> Hold:
    """The kind of hold. Priority 0 without a known reason counts as ADMIN, which no user may release; but Slurm gives
    another reason to a job that the hook holds if one of its partitions does not admit it."""
    if state is not JobState.PENDING:
        return Hold.NONE
    reason = record.reason.lower()
    if "requeued" in reason and "held" in reason:
        return Hold.REQUEUED
    if record.reason in _HOLD_REASONS:
        return _HOLD_REASONS[record.reason]
    if is_hooked("JobHeldUser", record.comment, record.fields.get("Restarts", "")) and record.priority == 0:
        return Hold.USER
    return Hold.ADMIN if record.priority == 0 else Hold.NONE
