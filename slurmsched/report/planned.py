"""What a round would do now, as `plan`, `replay` and `--json` show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slurmsched.model import Code, JobId, JobState, Operation, Reason, Verb
from slurmsched.rounds.explaining import reason_of
from slurmsched.rounds.round import RoundResult
from slurmsched.settings.definition import Settings

__all__ = ["Planned", "PlannedRound", "planned"]


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation as it would be run: the exact commands, and what takes it back (None: nothing can)."""

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
    """The operations in their order, and what becomes of every managed job. `at` in unix seconds.

    `starts` are jobs that would be given nodes, `keeps` those that stay where they are, `waits` why others do not run.
    `dispatched` says of copies of forked jobs how many steps each of them would do.
    """

    at: float
    mode: str
    system: str
    ordering: str
    operations: tuple[Planned, ...]
    starts: Mapping[JobId, tuple[str, ...]]
    keeps: Mapping[JobId, tuple[str, ...]]
    waits: Mapping[JobId, Reason]
    order: tuple[JobId, ...]
    unmanaged: int
    dispatched: Mapping[JobId, Reason] = field(default_factory=dict)


def planned(result: RoundResult, settings: Settings, commands: Callable[[Operation], tuple[str, ...]]) -> PlannedRound:
    """A round's result for people; `commands` says how the backend would do an operation."""
    decision = result.decision
    runs = {job.id for job in result.situation.jobs if job.state is JobState.RUNNING}
    stays = runs - set(result.displacement)
    places = {job: target.nodes for job, target in decision.targets.items() if job not in result.plan.deferred}
    return PlannedRound(
        at=result.snapshot.time,
        mode=settings.rounds.mode.value,
        system=decision.policy,
        ordering=settings.policy.order,
        operations=tuple(_operation(operation, commands) for operation in result.plan.operations),
        starts={job: nodes for job, nodes in places.items() if job not in stays},
        keeps={job: nodes for job, nodes in places.items() if job in stays},
        waits={
            job.id: reason_of(result, job)
            for job in result.snapshot.jobs
            if job.state is JobState.PENDING and job.id not in places and job.id not in result.unmanaged
        },
        order=tuple(ranked.job for ranked in decision.order),
        unmanaged=len(result.unmanaged),
        dispatched={job: why for job in places for why in decision.targets[job].reasons if why.code is Code.DISPATCHED},
    )


def _operation(operation: Operation, commands: Callable[[Operation], tuple[str, ...]]) -> Planned:
    return Planned(
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
