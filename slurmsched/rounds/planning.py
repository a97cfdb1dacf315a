"""From a decision to a plan: what has to change, in order, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slurmsched.model import (
    Code,
    Decision,
    Job,
    JobId,
    JobState,
    Memory,
    Operation,
    Plan,
    Reason,
    Verb,
)
from slurmsched.policies.protocol import Situation
from slurmsched.rounds.enforcing import enforcing
from slurmsched.rounds.giving_back import placing_returned
from slurmsched.rounds.leads import Leads, later_round
from slurmsched.rounds.noting import noting
from slurmsched.rounds.prioritizing import prioritizing
from slurmsched.rounds.seating import seat
from slurmsched.rounds.set_aside import held_back
from slurmsched.rounds.weights import weights
from slurmsched.settings.definition import Mode, Settings

__all__ = ["Fragment", "Rights", "plan"]


class Rights(Protocol):
    """What the acting identity may do (`backends.Identity` is one)."""

    def may(self, verb: Verb) -> bool: ...


@dataclass(frozen=True, slots=True)
class Fragment:
    """A configuration file: what it holds now (None: there is none) and what the settings make of it."""

    path: str
    standing: str | None
    wanted: str


def plan(
    situation: Situation,
    decision: Decision,
    memory: Memory,
    settings: Settings,
    identity: Rights,
    *,
    mode: Mode,
    stopped: Mapping[JobId, Reason] | None = None,
    fragments: Sequence[Fragment] = (),
) -> Plan:
    """What this mode does to follow the decision, least disruptive first; empty where everything stands already.

    `stopped` are the managed jobs that could not start now and are not in the situation. In OBSERVE the plan is the
    one of ENFORCE: it is shown, not run. Operations that `identity` may not do are in it, marked.
    """
    stopped = stopped or {}
    managed = [situation.snapshot.job[job] for job in (*(job.id for job in situation.jobs), *stopped)]
    operations: list[Operation] = []
    deferred: Mapping[JobId, Reason] = {}
    if mode in (Mode.OBSERVE, Mode.ENFORCE):
        leads = Leads(situation.snapshot, memory, settings)
        seating = later_round(seat(situation, decision), leads)
        deferred = seating.deferred
        operations += enforcing(situation, decision, seating, stopped, leads)
        waits = any(job.state is JobState.PENDING for job in situation.jobs)
        waits = waits or any(why.code is Code.AWAITS_CHECKPOINT for why in stopped.values())
        operations += held_back(situation.snapshot, memory, settings.manage, somebody_waits=waits)
    if mode is Mode.PRIORITIZE:
        operations += _placed_by_slurm(managed, memory)
        operations += prioritizing(situation.snapshot, decision, memory, settings.policy.order)
    if settings.nodes.admin_comment:
        operations += noting(managed, decision, {**stopped, **deferred})
    if mode is not Mode.ADVISE:
        operations += weights(situation.snapshot) if settings.nodes.weights else ()
        operations += _configured(fragments)
    return Plan(tuple(replace(op, permitted=identity.may(op.verb)) for op in operations), deferred)


def _placed_by_slurm(managed: Iterable[Job], memory: Memory) -> Iterable[Operation]:
    """Where Slurm places, nothing stays held or pinned from a time when we did."""
    return (op for job in managed if job.state is JobState.PENDING for op in placing_returned(job, memory))


def _configured(fragments: Iterable[Fragment]) -> Iterable[Operation]:
    return (
        Operation(Verb.CONFIGURE, fragment.path, Reason(Code.RENDER), fragment.standing, fragment.wanted)
        for fragment in fragments
        if fragment.standing != fragment.wanted
    )
