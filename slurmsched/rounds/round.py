"""One round's pure half: from what was seen and is remembered to a decision and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.refining import latest_rates, own_profiles
from slurmsched.model import Decision, JobId, Memory, Operation, Plan, Reason, Snapshot, Verb
from slurmsched.policies.protocol import Situation, System
from slurmsched.policies.systems import system
from slurmsched.rounds.guards import fixed
from slurmsched.rounds.notified import awaited
from slurmsched.rounds.outlook import Outlook
from slurmsched.rounds.planning import Fragment, Rights, plan
from slurmsched.rounds.scope import unmanaged
from slurmsched.rounds.standing import recalled
from slurmsched.rounds.startable import stopped
from slurmsched.rounds.usable import avoiding_reservations, usable_nodes
from slurmsched.settings.definition import Settings

__all__ = ["RoundResult", "run_round"]


@dataclass(frozen=True)
class RoundResult:
    """What a round found and wants. Every job of the snapshot is in the situation, in `stopped` or in `unmanaged`.

    `snapshot` has the owners' original requests; `stopped` are managed jobs that could not start now, room aside.
    """

    snapshot: Snapshot
    situation: Situation
    decision: Decision
    plan: Plan
    unmanaged: Mapping[JobId, Reason]
    stopped: Mapping[JobId, Reason] = field(default_factory=dict)

    @cached_property
    def rank(self) -> dict[JobId, int]:
        """Each ranked job's place in the order, 1 first."""
        return {ranked.job: place for place, ranked in enumerate(self.decision.order, 1)}

    @cached_property
    def start(self) -> dict[JobId, Operation]:
        """The RELEASE of each job that the plan starts."""
        return {op.subject: op for op in self.plan.operations if op.verb is Verb.RELEASE}

    @cached_property
    def outlook(self) -> Outlook:
        """The cluster once those jobs have started."""
        starting = (target for job, target in self.decision.targets.items() if job in self.start)
        promised = tuple(share for target in starting for share in target.shares)
        return Outlook(self.snapshot, self.situation.usable, promised)

    @cached_property
    def displacement(self) -> dict[JobId, Operation]:
        """The REQUEUE of each job that the plan displaces."""
        return {op.subject: op for op in self.plan.operations if op.verb is Verb.REQUEUE}


def run_round(
    snapshot: Snapshot,
    memory: Memory,
    settings: Settings,
    knowledge: Knowledge,
    identity: Rights,
    *,
    deciding: System | None = None,
    fragments: Sequence[Fragment] = (),
) -> RoundResult:
    """Decide and plan, changing nothing. `deciding` replaces the system that the settings name."""
    seen = recalled(snapshot, memory)
    foreign = {job.id: why for job in seen.jobs if (why := unmanaged(job, settings)) is not None}
    managed = [job for job in seen.jobs if job.id not in foreign]
    waiting = stopped(managed, memory, seen)
    saving = awaited(seen, memory, settings)
    newcomers = {job: own.waits(seen.time) for own in saving for job in own.newcomers if job != own.job}
    waiting |= {job.id: newcomers[job.id] for job in managed if job.id in newcomers and job.id not in waiting}
    jobs = [avoiding_reservations(job, seen) for job in managed if job.id not in waiting]
    situation = Situation(
        snapshot=seen,
        jobs=tuple(jobs),
        knowledge=replace(
            knowledge,
            service=memory.service,
            own=own_profiles(knowledge, jobs, memory.measured),
            measured=latest_rates(memory.measured),
            steps=memory.steps,
        ),
        fixed={own.job: own.stays(seen.time) for own in saving} | fixed(seen, jobs, memory, settings),
        usable=usable_nodes(seen),
        moves=settings.guards.moves_per_round,
        restart_cost=settings.guards.restart_cost,
        period=settings.rounds.period,
        state=memory.policy_state,
        usual=memory.usual,
        tickets=settings.tickets,
    )
    policy = deciding or system(
        settings.policy.system,
        settings.policy.order,
        settings.policy.las_queues,
        defragment=settings.policy.defragment,
    )
    decision = policy.decide(situation)
    wanted = plan(
        situation,
        decision,
        memory,
        settings,
        identity,
        mode=settings.rounds.mode,
        stopped=waiting,
        fragments=fragments,
    )
    return RoundResult(seen, situation, decision, wanted, foreign, waiting)
