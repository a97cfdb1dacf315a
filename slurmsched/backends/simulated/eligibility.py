"""What keeps a pending job from starting apart from room, and where it may start: Slurm's rules before the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

from slurmsched.backends.simulated.job import SimulatedJob
from slurmsched.backends.simulated.machine import Machine
from slurmsched.model import Hold, JobId, JobState, Node, Partition, Reservation

__all__ = ["Places", "default_partitions", "dependency_left", "obstacle"]

_HOLD_REASONS: Final[Mapping[Hold, str]] = {
    Hold.USER: "JobHeldUser",
    Hold.ADMIN: "JobHeldAdmin",
    Hold.REQUEUED: "job_requeued_in_held_state",
}


def obstacle(job: SimulatedJob, now: float) -> str:
    """Slurm's reason why this pending job may not start whatever is free, empty when it may. Its dependency is what
    `dependency_left` left of it."""
    if job.hold is not Hold.NONE:
        return _HOLD_REASONS[job.hold]
    if job.begin is not None and job.begin > now:
        return "BeginTime"
    return "Dependency" if job.dependency else ""


def dependency_left(dependency: str, jobs: Mapping[JobId, SimulatedJob], ended: Mapping[JobId, SimulatedJob]) -> str:
    """The conditions still unmet, as --dependency writes them. Known are after, afterany, afterok and afternotok, all
    of which must hold; any other is never met. A job Slurm does not know counts as long gone."""
    return ",".join(part for part in dependency.split(",") if part and not _met(part, jobs, ended))


def _met(condition: str, jobs: Mapping[JobId, SimulatedJob], ended: Mapping[JobId, SimulatedJob]) -> bool:
    kind, *ids = condition.split(":")
    known = {**ended, **jobs}
    others = [job for job in known.values() if job.id in ids or job.array_job in ids]
    match kind:
        case "after":
            return all(job.state is not JobState.PENDING for job in others)
        case "afterany":
            return all(job.state is JobState.FINISHED for job in others)
        case "afterok":
            return all(job.state_text == "COMPLETED" for job in others)
        case "afternotok":
            return all(job.state is JobState.FINISHED and job.state_text != "COMPLETED" for job in others)
        case _:
            return False


class Places:
    """Where jobs may start during one look at the queue: up, in one of their partitions, not promised to others."""

    def __init__(
        self,
        machines: Mapping[str, Machine],
        partitions: Iterable[Partition],
        reservations: Iterable[Reservation],
        now: float,
    ) -> None:
        usable = [machine for machine in machines.values() if machine.usable]
        self._usable = [m.name for m in sorted(usable, key=lambda m: m.facts.weight)]
        self._partitions = {partition.name: partition for partition in partitions}
        self._reservations = tuple(reservations)
        self._now = now
        self._known: dict[tuple[tuple[str, ...], frozenset[str]], tuple[tuple[str, ...], ...]] = {}

    def of(self, job: SimulatedJob) -> tuple[tuple[str, ...], ...]:
        """The nodes for this job, partition by partition as it names them, lightest weight first."""
        limit = inf if job.submission.time_limit is None else job.submission.time_limit
        named = [self._partitions[name] for name in job.submission.partitions if name in self._partitions]
        admitting = tuple(p.name for p in named if p.up and (p.max_time is None or limit <= p.max_time))
        key = admitting, self._barred(job, self._now + limit)
        if key not in self._known:
            free = [name for name in self._usable if name not in key[1]]
            nodes = [self._partitions[name].nodes for name in admitting]
            self._known[key] = tuple(tuple(name for name in free if name in inside) for inside in nodes)
        return self._known[key]

    def _barred(self, job: SimulatedJob, end: float) -> frozenset[str]:
        mine = [r for r in self._reservations if r.name == job.submission.reservation and _invited(job, r)]
        barred = {
            n for r in self._reservations if r not in mine and r.start < end and self._now < r.end for n in r.nodes
        }
        if job.submission.reservation:
            inside = {name for r in Reservation.active(mine, self._now) for name in r.nodes}
            barred |= {name for name in self._usable if name not in inside}
        return frozenset(barred)


def _invited(job: SimulatedJob, reservation: Reservation) -> bool:
    given = job.submission
    return given.user in reservation.users or given.account in reservation.accounts


def default_partitions(nodes: Iterable[Node]) -> tuple[Partition, ...]:
    """One partition for every name the nodes know, up and without limits."""
    nodes = tuple(nodes)
    names = sorted({name for node in nodes for name in node.partitions})
    return tuple(Partition(name, frozenset(n.name for n in nodes if name in n.partitions)) for name in names)
