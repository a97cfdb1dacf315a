"""Jobs that nothing is decided about: never better off than a managed job, and never anybody's victim.

Slurm would start such a job ahead of all that wait held. It is held too, by its number alone, until no managed job
waits for resources, for a day at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from slurmsched.model import Code, Hold, JobId, JobState, Memory, Operation, Reason, SetAside, Snapshot, Verb
from slurmsched.settings.definition import Manage

__all__ = ["LONGEST", "held_back", "released", "without"]

LONGEST: Final = 86400.0
"""Seconds for which a job is kept waiting because nothing can be decided about it."""


def without(snapshot: Snapshot, reasons: Mapping[JobId, str]) -> Snapshot:
    """The snapshot with these jobs set aside, each for its reason. What they have stays taken on their nodes."""
    if not reasons:
        return snapshot
    aside = tuple(
        SetAside(
            job.id,
            reasons[job.id],
            job.user,
            ",".join(job.partitions),
            pending=job.state is JobState.PENDING and job.hold is Hold.NONE,
        )
        for job in snapshot.jobs
        if job.id in reasons
    )
    rest = tuple(job for job in snapshot.jobs if job.id not in reasons)
    return replace(snapshot, jobs=rest, set_aside=(*snapshot.set_aside, *aside))


def held_back(snapshot: Snapshot, memory: Memory, manage: Manage, *, somebody_waits: bool) -> Iterator[Operation]:
    """Holds of set-aside jobs in managed partitions, and the release of those whose time has come.

    `somebody_waits` is whether a managed job waits for resources.
    """
    now = snapshot.time
    if somebody_waits:
        overdue = frozenset(job for job, since in memory.set_aside.items() if now - since >= LONGEST)
        for aside in snapshot.set_aside:
            if aside.pending and aside.job not in overdue and _in_scope(aside, manage):
                why = Reason(Code.SET_ASIDE, {"why": aside.reason})
                yield Operation(Verb.HOLD, aside.job, why, Hold.NONE.value, Hold.ADMIN.value)
        yield from (released(job) for job, since in memory.held_aside.items() if now - since >= LONGEST)
    else:
        yield from map(released, memory.held_aside)


def released(job: JobId) -> Operation:
    """Gives a hold of ours back by the job's number alone: what else stands of the job cannot be read."""
    return Operation(Verb.RELEASE, job, Reason(Code.GIVE_BACK), Hold.ADMIN.value, Hold.NONE.value)


def _in_scope(aside: SetAside, manage: Manage) -> bool:
    partitions = set(aside.partition.split(","))
    return bool(partitions & set(manage.partitions)) and not partitions <= set(manage.never_partitions)
