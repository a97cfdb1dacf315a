"""Terminal views of rounds: a planned round, replayed recordings, and a round that was run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurmsched.daemon.scheduler import RoundReport
from slurmsched.model import BlockCause, JobId, JobSpec, JobState, Operation, Reason, ReasonCode, Result, Verb
from slurmsched.model.reasons import pluralise
from slurmsched.policies.policies import order_read
from slurmsched.report.quantities import duration, local_time
from slurmsched.report.tables import Column, Listing, safe_line
from slurmsched.rounds.explainer import reason_of
from slurmsched.rounds.round import RoundResult
from slurmsched.settings.definition import Mode, Settings


@dataclass(frozen=True, slots=True)
class PlannedOperation:
    """An operation as it would be run: the exact commands, and the operation that undoes it (None if nothing can).

    It waits until the jobs in `gone` left and `lead` seconds passed since the signal.
    """

    verb: Verb
    subject: str
    sentence: str
    reason: Reason
    commands: tuple[str, ...]
    undo: Operation | None
    gone: tuple[JobId, ...]
    lead: int
    permitted: bool


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """The operations of a round in order, and its decision about every managed job, as of `at` (unix seconds).

    `ordering` is empty for a policy with an order of its own. `starts` are the nodes of jobs that would start, `keeps`
    those of jobs that keep running, `waits` the reasons of jobs that would wait. `unmanaged` counts the other jobs that
    have not ended. `dispatched` gives the number of steps for each copy of a forked job.
    """

    at: float
    mode: str
    system: str
    ordering: str
    operations: tuple[PlannedOperation, ...]
    starts: Mapping[JobId, tuple[str, ...]]
    keeps: Mapping[JobId, tuple[str, ...]]
    waits: Mapping[JobId, Reason]
    order: tuple[JobId, ...]
    unmanaged: int
    dispatched: Mapping[JobId, Reason] = field(default_factory=dict)


def planned_round(
    result: RoundResult, settings: Settings, commands: Callable[[Operation], tuple[str, ...]]
) -> PlannedRound:
    """A round's result for people; `commands` returns the commands with which the backend does an operation."""
    decision = result.decision
    running = {job.id for job in result.situation.jobs if job.state is JobState.RUNNING}
    staying = running - set(result.requeues)
    allocated = {job: target.nodes for job, target in decision.targets.items() if job not in result.plan.deferred}
    return PlannedRound(
        at=result.snapshot.time,
        mode=settings.rounds.mode.value,
        system=decision.policy,
        ordering=order_read(settings.policy.system, settings.policy.order),
        operations=tuple(_planned_operation(operation, commands) for operation in result.plan.operations),
        starts={job: nodes for job, nodes in allocated.items() if job not in staying},
        keeps={job: nodes for job, nodes in allocated.items() if job in staying},
        waits={
            job.id: reason_of(result, job)
            for job in result.snapshot.jobs
            if job.state is JobState.PENDING and job.id not in allocated and job.id not in result.unmanaged
        },
        order=tuple(ranked.job for ranked in decision.order),
        unmanaged=sum(
            job.id in result.unmanaged and job.state is not JobState.FINISHED for job in result.snapshot.jobs
        ),
        dispatched={
            job: why for job in allocated for why in decision.targets[job].reasons if why.code is ReasonCode.DISPATCHED
        },
    )


def _planned_operation(operation: Operation, commands: Callable[[Operation], tuple[str, ...]]) -> PlannedOperation:
    return PlannedOperation(
        operation.verb,
        operation.subject,
        operation.sentence,
        operation.reason,
        commands(operation),
        operation.undo(),
        operation.gone,
        operation.lead,
        operation.permitted,
    )


_EFFECT: Final = {
    "observe": "nothing is changed in mode observe; this is what mode enforce would do",
    "advise": "mode advise only writes notes",
    "prioritize": "mode prioritize only changes the order of waiting jobs",
}


def plan_view(plan: PlannedRound, with_commands: bool = False) -> RenderableType:
    """The operations with their reasons and undos, then the steps of copies and the waiting jobs."""
    queue = f"{len(plan.keeps)} stay, {len(plan.starts)} start, {len(plan.waits)} wait"
    order = f", {plan.ordering} order" if plan.ordering else ""
    header = f"{plan.system}{order}, mode {plan.mode}: {queue}"
    parts: list[RenderableType] = [safe_line(header, "bold")]
    if plan.operations:
        parts += [Text(""), _operations_table(plan, with_commands)]
    else:
        parts.append(safe_line("nothing has to change"))
    if plan.dispatched:
        steps = [(job, why.sentence) for job, why in sorted(plan.dispatched.items())]
        parts += [Text(""), Listing((Column("COPY"), Column("STEPS")), steps)]
    if plan.waits:
        waits = [(job, plan.waits[job].sentence) for job in _in_order(plan)]
        parts += [Text(""), Listing((Column("WAITING"), Column("WHY")), waits)]
    if plan.operations and (effect := _EFFECT.get(plan.mode)):
        parts += [Text(""), safe_line(effect, "dim")]
    if plan.unmanaged:
        parts.append(safe_line(f"{pluralise(plan.unmanaged, 'other job')} not managed, left alone", "dim"))
    return Group(*parts)


def _in_order(plan: PlannedRound) -> list[str]:
    ranks = {job: rank for rank, job in enumerate(plan.order)}
    return sorted(plan.waits, key=lambda job: (ranks.get(job, len(ranks)), job))


def _operations_table(plan: PlannedRound, with_commands: bool) -> RenderableType:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right")
    table.add_column()
    table.add_column(overflow="fold")
    for number, planned in enumerate(plan.operations, start=1):
        table.add_row(str(number), planned.verb.value, safe_line(planned.sentence))
        table.add_row("", "", safe_line("; ".join(_conditions(planned)), "dim"))
        for command in planned.commands if with_commands else ():
            table.add_row("", "", safe_line(f"$ {command}", "cyan"))
    return table


def _conditions(planned: PlannedOperation) -> Iterator[str]:
    if not planned.permitted:
        yield "not permitted: see 'synsched doctor'"
    if planned.lead:
        yield f"{duration(planned.lead)} after the signal"
    if planned.gone:
        yield f"after {'job' if len(planned.gone) == 1 else 'jobs'} {', '.join(planned.gone)} left"
    yield _undo(planned)


def _undo(planned: PlannedOperation) -> str:
    return "cannot be undone" if planned.undo is None else f"undo: {_undo_text(planned.undo)}"


def _undo_text(undo: Operation) -> str:
    match undo.after:
        case JobSpec() as spec:
            where = ",".join(spec.nodes) or pluralise(spec.node_count, "node")
            amounts = f"{pluralise(spec.gpus, 'GPU')}, {pluralise(spec.cpus, 'CPU')} per node"
            return f"{undo.verb.value} to {amounts} on {where}"
        case int() as number:
            return f"{undo.verb.value} {number}"
        case _:
            return undo.verb.value


@dataclass(frozen=True, slots=True)
class ReplayedRound:
    """One recording decided again: its source, the plan, and how long that took (seconds)."""

    source: str
    plan: PlannedRound
    seconds: float


def replay_view(rounds: Sequence[ReplayedRound]) -> RenderableType:
    """One line per recording."""
    columns = (
        Column("WHEN"),
        Column("STAY", right=True),
        Column("START", right=True),
        Column("REQUEUE", right=True),
        Column("WAIT", right=True),
        Column("TOOK", right=True),
        Column("RECORDING"),
    )
    return Listing(
        columns,
        [
            (
                local_time(replayed.plan.at),
                str(len(replayed.plan.keeps)),
                str(len(replayed.plan.starts)),
                str(_requeues(replayed.plan)),
                str(len(replayed.plan.waits)),
                duration(replayed.seconds),
                replayed.source,
            )
            for replayed in rounds
        ],
    )


def _requeues(plan: PlannedRound) -> int:
    return sum(operation.verb is Verb.REQUEUE for operation in plan.operations)


def round_view(report: RoundReport) -> RenderableType:
    """The round in one line, then the result of each operation."""
    tally = report.tally
    spent = sum(part or 0.0 for part in (tally.observe_s, tally.decide_s, tally.plan_s, tally.apply_s))
    queue = f"{tally.running} running, {tally.waiting} waiting of {pluralise(tally.managed, 'managed job')}"
    head = safe_line(f"round {report.id}, took {duration(spent)}: {queue}", "bold")
    columns = (Column("OPERATION"), Column("RESULT"), Column("WHAT"))
    rows = [
        (outcome.operation.verb.value, outcome.result.value, outcome.detail or outcome.operation.sentence)
        for outcome in report.outcomes
    ]
    return Group(head, Listing(columns, rows)) if rows else head


def worth_mailing(report: RoundReport, mode: Mode) -> bool:
    """Whether cron should mail the round: an operation was attempted, or mode advise has something to report."""
    return bool(report.outcomes) and (
        mode is Mode.ADVISE or any(o.result is not Result.BLOCKED for o in report.outcomes)
    )


def has_blocked_operation(report: RoundReport) -> bool:
    """Whether an operation of the round was not permitted; one that is left to the next round was."""
    return any(
        outcome.result is Result.BLOCKED and outcome.cause is not BlockCause.OUT_OF_TIME for outcome in report.outcomes
    )
