"""Guards that protect running jobs from preemption: a table of checks, of which the first reason counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode, SchedulerState, Snapshot
from slurmsched.model.reasons import format_duration
from slurmsched.policies.policies import changes_types, settings_problems, takes_turns
from slurmsched.policies.stages import RUN_OVER_RESTART, Situation
from slurmsched.rounds.scope import eligible_nodes, scope_problems
from slurmsched.settings.definition import CheckpointSettings, GuardSettings, Settings
from slurmsched.settings.file import LoadedSettings, setting_rows

_DAY: Final = 86400.0

_MAX_RESTART_RATIO: Final = 5.0
"""Most that a measured restart counts, in `guards.restart_cost`."""


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What a guard looks at beside the job; one for all jobs of a round."""

    snapshot: Snapshot
    state: SchedulerState
    settings: Settings
    knowledge: Knowledge


Guard = Callable[[Job, GuardContext], Reason | None]


def guarded_jobs(jobs: Iterable[Job], context: GuardContext) -> dict[JobId, Reason]:
    """The running jobs among `jobs` that must not be preempted, each with the reason of the first guard."""
    reasons = ((job.id, _first_reason(job, context)) for job in jobs if _runs(job))
    return {job: reason for job, reason in reasons if reason is not None}


def _first_reason(job: Job, context: GuardContext) -> Reason | None:
    return next((reason for guard in GUARDS.values() if (reason := guard(job, context)) is not None), None)


def guard_reasons(job: Job, context: GuardContext) -> dict[str, Reason]:
    """The reasons of all guards that protect this running job now, by name."""
    reasons = {name: guard(job, context) for name, guard in GUARDS.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


_PASSING: Final = frozenset({"min-run-time", "exempt-time"})
"""The guards that a job grows out of while it runs."""


def preemptible_from(jobs: Iterable[Job], context: GuardContext) -> dict[JobId, float]:
    """When those of the running jobs may be preempted that have only not run long enough, in unix seconds."""
    times = dict[JobId, float]()
    for job in filter(_runs, jobs):
        if any(guard(job, context) is not None for name, guard in GUARDS.items() if name not in _PASSING):
            continue
        left = max(_min_run_seconds(job, context), _exempt_seconds(job, context)) - job.run_time
        if left > 0:
            times[job.id] = context.snapshot.time + left
    return times


_WAITS_FOR_ROOM: Final = frozenset({"", "None", "Resources", "Priority"})
"""Slurm's reasons for a job that it starts as soon as there is room."""


def contested_jobs(
    snapshot: Snapshot,
    jobs: Iterable[Job],
    left_to_slurm: Collection[JobId],
    open_nodes: Mapping[str, frozenset[str]],
) -> dict[JobId, Reason]:
    """The running jobs among `jobs` whose GPUs a waiting job that is left to Slurm could take, with the reason to stay:
    Slurm would start that one before the newcomer for which they leave is released, and they ran on under plain Slurm.

    `open_nodes` are those of each partition on which jobs may start.
    """
    waiting = (job for job in snapshot.jobs_in_state(JobState.PENDING) if job.id in left_to_slurm)
    able = (job for job in waiting if _starts_if_room(job, snapshot.time))
    first = dict[object, Job]()
    for job in able:
        first.setdefault((job.original_request, job.partitions, job.reservation), job)
    takers = dict[str, list[tuple[int, Job]]]()
    for job in first.values():
        asked = job.original_request
        on_node = asked.gpus_per_node or ceil(asked.gpus / max(asked.nodes, 1)) or 1
        for node in eligible_nodes(job, snapshot, open_nodes):
            takers.setdefault(node, []).append((on_node, job))
    contested = dict[JobId, Reason]()
    for job in filter(_runs, jobs) if takers else ():
        for share in job.allocations:
            free = snapshot.nodes_by_name[share.node].free.gpus + share.resources.gpus
            for gpus, taker in takers.get(share.node, ()):
                if gpus <= free and taker.original_request.gpu_type in (None, share.gpu_type):
                    contested[job.id] = Reason(ReasonCode.CONTESTED, {"jobs": taker.id})
    return contested


def _starts_if_room(job: Job, now: float) -> bool:
    """Whether Slurm starts this job as soon as some GPUs are free."""
    waits = job.is_queued(now) and job.reason in _WAITS_FOR_ROOM
    return waits and bool(job.original_request.gpus or job.original_request.shards)


_LASTING: Final = frozenset(
    {ReasonCode.NO_REQUEUE, ReasonCode.NOT_BATCH, ReasonCode.ASKED_TO_STAY, ReasonCode.NO_CHECKPOINT}
)
"""Why a job may not be preempted as long as it runs, whatever else changes."""


def preemptible_times(situation: Situation) -> dict[JobId, float]:
    """From when on each running job may be preempted or moved, in unix seconds: when it has run long enough, or, if it
    is not protected or by a guard that may end at any time, now. Those that never may are left out."""
    now, protected = situation.snapshot.time, situation.non_preemptible
    movable = (job.id for job in situation.jobs if _runs(job))
    return {
        job: situation.preemptible_from.get(job, now)
        for job in movable
        if job not in protected or protected[job].code not in _LASTING
    }


def cannot_move(job: Job, context: GuardContext) -> bool:
    """Whether guards would protect this job from every move while it runs, so that it keeps what it is started with."""
    lasting = ("no-requeue", "not-batch", "asked-to-stay", "no-checkpoint", "moves-per-job-day")
    return any(GUARDS[name](job, context) is not None for name in lasting)


def checkpoint_lead(job: Job, checkpoint: CheckpointSettings) -> int:
    """Seconds between the checkpoint signal and the requeue; 0 for a job without a signal."""
    if job.hints.checkpoint_signal is None:
        return 0
    requested = checkpoint.lead if job.hints.lead is None else job.hints.lead
    return round(min(requested, checkpoint.longest_lead))


def restart_costs(jobs: Iterable[Job], state: SchedulerState, settings: Settings) -> dict[JobId, float]:
    """What a restart counts for each job, in seconds: what its last one took, else `guards.restart_cost`, and for a job
    with a checkpoint signal the lead of the settings. Nothing for any of them where the setting is 0.

    Slices are as long as restarts are slow, and the owner decides how slow they are: hence a measured cost is bounded,
    and the lead that the owner names does not count.
    """
    cost = settings.guards.restart_cost
    if not cost:
        return {}
    return {
        job.id: min(state.restart_seconds.get(job.id, cost), _MAX_RESTART_RATIO * cost)
        + (settings.checkpoint.lead if job.hints.checkpoint_signal else 0.0)
        for job in jobs
    }


def max_moves(settings: Settings, jobs: int) -> int:
    """How many jobs a round may preempt or move. Where jobs take turns and the setting is left at its default, it is at
    least what their moves of a day come to."""
    guards = settings.guards
    if not takes_turns(settings.policy.system) or guards.moves_per_round != GuardSettings().moves_per_round:
        return guards.moves_per_round
    return max(guards.moves_per_round, ceil(jobs * guards.moves_per_job_day * settings.rounds.period / _DAY))


def guards_problems(settings: Settings, changed: Collection[str]) -> Iterator[str]:
    """What guards make impossible that the policy is for, each in a sentence that says what to do.

    `changed` are the names of the settings that differ from their defaults.
    """
    system, guards, quantum = settings.policy.system, settings.guards, settings.tickets.quantum
    for name, moves in (("moves_per_job_day", guards.moves_per_job_day), ("moves_per_round", guards.moves_per_round)):
        if not moves and takes_turns(system):
            yield f"guards.{name} is 0: under {system} jobs take turns, and none could be preempted; set at least 1"
        elif not moves and changes_types(system):
            yield f"guards.{name} is 0: under {system} jobs change GPU types, and none could be moved; set at least 1"
        elif not moves and settings.policy.defragment:
            yield f"guards.{name} is 0: policy.defragment moves jobs, and none could be: set at least 1"
    if takes_turns(system) and "tickets.quantum" in changed and guards.min_run_time > quantum:
        minimum, slices = format_duration(guards.min_run_time), format_duration(quantum)
        yield f"guards.min_run_time is {minimum}: it must not be longer than slices, and tickets.quantum is {slices}"


def _timing_problems(settings: Settings, changed: Collection[str]) -> Iterator[str]:
    rounds = settings.rounds
    if "rounds.settle_timeout" in changed and rounds.settle_timeout > rounds.period:
        period, timeout = format_duration(rounds.period), format_duration(rounds.settle_timeout)
        yield (
            f"rounds.settle_timeout is {timeout}: a start that Slurm refuses would keep its GPUs from others for more"
            f" than a round, and rounds.period is {period}; set at most that"
        )


def settings_contradictions(settings: Settings, given: Collection[str] = ()) -> tuple[str, ...]:
    """What settings say in vain or against each other, each in a sentence that says what to do.

    `given` are the names of those in the file: one that chose an order and no policy was written for a policy that has
    orders, also where the order is the default.
    """
    changed = {row.name for row in setting_rows(LoadedSettings(settings)) if row.value != row.default}
    if "policy.system" not in given:
        changed |= {"policy.order"} & set(given)
    policy = settings.policy
    return (
        *_timing_problems(settings, changed),
        *settings_problems(policy.system, policy.order, changed),
        *guards_problems(settings, changed),
        *scope_problems(settings.manage),
    )


def _runs(job: Job) -> bool:
    return job.state is JobState.RUNNING


def _no_requeue(job: Job, _: GuardContext) -> Reason | None:
    return None if job.requeue else Reason(ReasonCode.NO_REQUEUE)


def _not_batch(job: Job, _: GuardContext) -> Reason | None:
    return None if job.batch else Reason(ReasonCode.NOT_BATCH)


def _asked_to_stay(job: Job, _: GuardContext) -> Reason | None:
    return Reason(ReasonCode.ASKED_TO_STAY) if job.hints.move is False else None


def _no_checkpoint(job: Job, context: GuardContext) -> Reason | None:
    required = context.settings.guards.require_checkpoint
    return Reason(ReasonCode.NO_CHECKPOINT) if required and job.hints.checkpoint_signal is None else None


def _min_run_time(job: Job, context: GuardContext) -> Reason | None:
    minimum = _min_run_seconds(job, context)
    if job.run_time >= minimum:
        return None
    return Reason(ReasonCode.MIN_RUN_TIME, {"run": format_duration(job.run_time), "minimum": format_duration(minimum)})


_LAUNCH: Final = 0.1
"""Fraction of a round in which the jobs start that it releases. `guards.min_run_time` is four rounds by default: a job
that Slurm starts a second after its round would be kept for five otherwise."""


def _min_run_seconds(job: Job, context: GuardContext) -> float:
    """The shortest run of the job; after a restart so long, to the nearest round, that this one cost no more than a
    twentieth of it: as the slices of policies whose jobs take turns, which it would double otherwise."""
    settings = context.settings
    shortest = settings.guards.min_run_time
    shortest -= _LAUNCH * min(settings.rounds.period, shortest)
    if not job.restarts:
        return shortest
    cost = restart_costs((job,), context.state, settings).get(job.id, 0.0)
    return max(shortest, RUN_OVER_RESTART * cost - settings.rounds.period / 2)


def _exempt_time(job: Job, context: GuardContext) -> Reason | None:
    minimum = _exempt_seconds(job, context)
    return Reason(ReasonCode.EXEMPT_TIME, {"minimum": format_duration(minimum)}) if job.run_time < minimum else None


def _exempt_seconds(job: Job, context: GuardContext) -> float:
    return max((partition.preempt_exempt_time for partition in context.snapshot.partitions_of(job)), default=0)


def _moves_spent(job: Job, context: GuardContext) -> Reason | None:
    since = context.snapshot.time - _DAY
    count = sum(at > since for at in context.state.moves.get(job.id, ()))
    return (
        Reason(ReasonCode.JOB_MOVES_SPENT, {"count": count})
        if count >= context.settings.guards.moves_per_job_day
        else None
    )


def _ends_soon(job: Job, context: GuardContext) -> Reason | None:
    left = _time_left(job, context)
    move_cost = context.settings.guards.restart_cost + checkpoint_lead(job, context.settings.checkpoint)
    return (
        Reason(ReasonCode.ENDS_SOON, {"left": format_duration(left)}) if left is not None and left < move_cost else None
    )


def _time_left(job: Job, context: GuardContext) -> float | None:
    """Seconds until its time limit or the end of its hint's `duration=`, whichever is sooner; None if neither is known.

    A duration that is exceeded is ignored: a short `duration=` must not protect a job for ever.
    """
    limit = None if job.time_limit is None else max(0.0, job.time_limit - job.run_time)
    expected = context.knowledge.duration_left_there(job)
    known = [left for left in (limit, expected) if left is not None]
    return min(known, default=None)


GUARDS: Final[Mapping[str, Guard]] = {
    "no-requeue": _no_requeue,
    "not-batch": _not_batch,
    "asked-to-stay": _asked_to_stay,
    "no-checkpoint": _no_checkpoint,
    "min-run-time": _min_run_time,
    "exempt-time": _exempt_time,
    "moves-per-job-day": _moves_spent,
    "ends-soon": _ends_soon,
}
"""The guards by name; of several reasons the first in this order is given."""
