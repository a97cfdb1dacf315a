"""Everything of ours given back to Slurm: shapes, nice and holds as the owners had them."""

from __future__ import annotations

from collections.abc import Iterator

from slurmsched.model import Code, Hold, Job, JobState, Memory, Operation, Plan, Reason, Snapshot, Verb
from slurmsched.rounds.holds import held_by_us
from slurmsched.rounds.set_aside import released
from slurmsched.rounds.shapes import same, shape_of

__all__ = ["placing_returned", "release_plan"]

_GIVEN_BACK = Reason(Code.GIVE_BACK)


def release_plan(snapshot: Snapshot, memory: Memory) -> Plan:
    """Original requests, original nice, our holds released: for `synsched release`, the watchdog and uninstalling.

    Only pending jobs can be changed. A hold that its owner or an administrator set stays. A job whose record cannot be
    read is let go by its number alone, however it stands: better pinned than held.
    """
    waiting = tuple(snapshot.in_state(JobState.PENDING))
    return Plan(
        (
            *(operation for job in waiting for operation in _nice_returned(job, memory)),
            *(operation for job in waiting for operation in placing_returned(job, memory)),
            *map(released, memory.held_aside),
        )
    )


def placing_returned(job: Job, memory: Memory) -> Iterator[Operation]:
    """One pending job's shape and hold, in this order: it is not let go before it is itself again."""
    original = memory.originals.get(job.id)
    if original is not None and not same(shape_of(job.standing), shape_of(original)):
        yield Operation(Verb.RESHAPE, job.id, _GIVEN_BACK, shape_of(job.standing), shape_of(original))
    if held_by_us(job, memory):
        yield Operation(Verb.RELEASE, job.id, _GIVEN_BACK, job.hold.value, Hold.NONE.value)


def _nice_returned(job: Job, memory: Memory) -> Iterator[Operation]:
    original = memory.nices.get(job.id)
    if original is not None and job.nice != original:
        yield Operation(Verb.PRIORITIZE, job.id, _GIVEN_BACK, job.nice, original)
