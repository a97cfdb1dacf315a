"""Hadar on a cluster that runs: its places say who runs on which GPU types, and all systems here place alike.

Who runs where is decided by prices; nodes, CPUs, memory, leases and the limit on moves are those of every system. A
gang on several types reaches Slurm as a job on several nodes that it is pinned to, with GPUs of no type: so it must ask
for no type itself, and may lie on several nodes. Other jobs stay on one type, and say why where that makes them wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slurmsched.model import Decision, Job, JobId, Ranked
from slurmsched.policies.allocating import Proportional
from slurmsched.policies.composed import Composed
from slurmsched.policies.enlarging import enlarge
from slurmsched.policies.gavel.moving import Moving
from slurmsched.policies.gavel.rates import managed_gpus
from slurmsched.policies.growing import grow
from slurmsched.policies.hadar.deciding import Hadar
from slurmsched.policies.hadar.questions import Question, question_of
from slurmsched.policies.hadar.saying import listed, said, waits
from slurmsched.policies.hadar.spreading import Spreading
from slurmsched.policies.hadar.staying import remembering, with_newcomers_fixed
from slurmsched.policies.hadar.utilities import Valuing, timely
from slurmsched.policies.ordering.sorting import ranked
from slurmsched.policies.placing import CONSOLIDATED
from slurmsched.policies.pools import Pools
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["HadarSystem"]


@dataclass(frozen=True, slots=True)
class HadarSystem:
    """A round by payoff. With `forks` the copies of a job are on nodes of their own, and on every one that is idle."""

    valuing: Valuing = timely
    name: str = "hadar"
    forks: bool = False

    def decide(self, situation: Situation) -> Decision:
        question = question_of(situation)
        hadar = Hadar(self.valuing, restart=situation.restart_cost, period=situation.period)
        # Prices and utilities are of all jobs: else the worth of two rounds is not comparable, and they may alternate.
        situation = with_newcomers_fixed(situation)
        types = _types(question, hadar.decide(question.queue, question.servers, question.running))
        jobs = tuple(_on(job, types.get(job.id)) for job in situation.jobs)
        mixed = {job: frozenset(kinds) for job, kinds in types.items() if len(kinds) > 1}
        copies = {job.id: job for job in situation.jobs if self.forks and job.copy_of}
        apart = {job.id: job.copy_of for job in copies.values()}
        steps = (_moving(question, types), Spreading(copies), grow, enlarge)
        system = Composed(self.name, _ByPayoff(types), Proportional(), CONSOLIDATED, steps, mixed, apart)
        decision = system.decide(replace(situation, jobs=jobs))
        if decision.victims:
            spared = system.decide(replace(situation, jobs=jobs, moves=0))
            if self._worth(hadar, question, situation, decision) <= self._worth(hadar, question, situation, spared):
                decision = spared
        requests = {job.id: job.request for job in situation.jobs}
        idle = _idle(situation, decision)
        waiting = {job: waits(why, requests[job], idle) for job, why in decision.waiting.items()}
        targets = {job: said(target) for job, target in decision.targets.items()}
        return remembering(replace(decision, targets=targets, waiting=waiting))

    @staticmethod
    def _worth(hadar: Hadar, question: Question, situation: Situation, decision: Decision) -> float:
        """What the nodes that were found are worth: they may be others than the prices foresaw, for want of CPUs or
        memory, and nobody is displaced for less."""
        pools, asked = Pools(situation.snapshot.nodes), {ask.job for ask in question.queue}
        claims = {job: pools.claim(target.shares) for job, target in decision.targets.items() if job in asked}
        places = {job: tuple(sorted(zip(claim.pools, claim.gpus, strict=True))) for job, claim in claims.items()}
        return hadar.worth(question.queue, question.servers, places, question.running)


@dataclass(frozen=True, slots=True)
class _ByPayoff:
    """First those that were given a place and run there already or wait, then those that were given another, then
    those that were given none; each by submission."""

    types: Mapping[JobId, Mapping[str, int]]
    name: str = "hadar"

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        return ranked(situation, lambda job: (not self._stays(job), job.id not in self.types), self._said)

    def outranks(self, situation: Situation) -> Outranks:
        fixed = situation.fixed
        return lambda newcomer, running: self._stays(newcomer) and not self._stays(running) and running.id not in fixed

    def _stays(self, job: Job) -> bool:
        """Whether it has a place by price, and is not on other types."""
        kinds = self.types.get(job.id)
        return kinds is not None and (not job.shares or _held(job) == Counter(kinds))

    def _said(self, job: Job) -> str:
        kinds = self.types.get(job.id)
        return f"pays for {listed(kinds)}" if kinds else "pays for no place"


def _types(question: Question, places: Mapping[JobId, tuple[tuple[int, int], ...]]) -> dict[JobId, dict[str, int]]:
    """GPUs of each type by job."""
    servers = question.servers
    return {
        job: {servers.types[kind]: gpus for kind, gpus in servers.counts(place).items()}
        for job, place in places.items()
    }


def _moving(question: Question, types: Mapping[JobId, Mapping[str, int]]) -> Moving:
    """Running jobs that were given another type; onto several types at once nobody is moved."""
    kinds = {job: next(iter(given)) for job, given in types.items() if len(given) == 1}
    known = question.servers.types
    speed = {
        (ask.job, kind): rate for ask in question.queue for kind, rate in zip(known, ask.speeds.together, strict=True)
    }
    return Moving(kinds, speed)


def _on(job: Job, kinds: Mapping[str, int] | None) -> Job:
    """The job as if it asked for the one type it was given."""
    if kinds is None or len(kinds) > 1 or job.request.gpu_type:
        return job
    return replace(job, request=replace(job.request, gpu_type=next(iter(kinds))))


def _held(job: Job) -> Counter[str]:
    held = Counter[str]()
    for share in job.shares:
        held[share.gpu_type] += share.resources.gpus
    return held


def _idle(situation: Situation, decision: Decision) -> int:
    """GPUs of any type that nobody was given, on nodes that jobs may start on."""
    types = {gpu.type for node in situation.snapshot.nodes for gpu in node.gpus}
    managed = sum(managed_gpus(situation, sorted(types)).values())
    return managed - sum(target.resources.gpus for target in decision.targets.values())
