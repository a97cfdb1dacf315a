"""Slurm's own scheduler: priority order with EASY backfill.

What may start is tried in order of priority. The first job that does not fit gets a reservation at the moment the time
limits of the running jobs promise it room; a later one starts only if it leaves that promise whole, because it ends
before or uses what the reserved job does not need. (sched/backfill with bf_max_job_part unlimited and one reservation.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf

from slurmsched.backends.simulated.fitting import fit
from slurmsched.backends.simulated.machine import Machine
from slurmsched.model import JobId, Request, Share

__all__ = ["Candidate", "Ending", "starts"]

Floor = Mapping[str, Machine]
_Kind = tuple[Request, tuple[tuple[str, ...], ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pending job that nothing but room keeps from starting. `places` are the nodes it may use, partition by
    partition, each in order of preference; `limit` its time limit in seconds, None for none. `array` is set where the
    array allows only so many tasks at once."""

    job: JobId
    request: Request
    places: tuple[tuple[str, ...], ...]
    limit: int | None
    array: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """What a running or completing job will give back by `end` at the latest."""

    shares: tuple[Share, ...]
    end: float


@dataclass(frozen=True, slots=True)
class _Promise:
    at: float
    floor: Floor
    """The nodes as they will be then, the reserved job's shares taken."""
    nodes: frozenset[str]
    """Where the reserved job will be."""

    def kept_by(self, shares: Sequence[Share]) -> bool:
        """Whether these shares can stay beyond `at`; if so they are taken there too. Devices of a type are alike."""
        alike = [_alike(share, self.floor[share.node]) for share in shares]
        found = [share for share in alike if share is not None]
        if len(found) < len(alike):
            return False
        for share in found:
            self.floor[share.node].claim(share)
        return True


def starts(
    queue: Iterable[Candidate], running: Sequence[Ending], floor: Floor, now: float, slots: Mapping[str, int]
) -> Iterator[tuple[JobId, tuple[Share, ...]]]:
    """Which of the queue (highest priority first) start now, and on what. `slots` says how many more tasks of an array
    may run. Works on copies: `floor` is not changed."""
    floor = {name: machine.twin() for name, machine in floor.items()}
    slots, running = dict(slots), list(running)
    promise: _Promise | None = None
    unfit, unkept = set[_Kind](), set[_Kind]()
    for candidate in queue:
        kind = (candidate.request, candidate.places)
        if kind in unfit or (candidate.array and slots.get(candidate.array, 0) <= 0):
            continue  # room only shrinks while one pass lasts
        end = now + candidate.limit if candidate.limit is not None else inf
        shares = _first_fit(candidate, floor)
        if shares is None:
            unfit.add(kind)
            promise = promise or _promise(candidate, running, floor)
            continue
        if promise is not None and end > promise.at:
            shares = None if kind in unkept else _backfilled(candidate, floor, promise, shares)
            if shares is None:
                unkept.add(kind)
                continue
        for share in shares:
            floor[share.node].claim(share)
        running.append(Ending(shares, end))
        if candidate.array:
            slots[candidate.array] -= 1
        yield candidate.job, shares


def _backfilled(
    candidate: Candidate, floor: Floor, promise: _Promise, shares: tuple[Share, ...]
) -> tuple[Share, ...] | None:
    """Shares that leave the promise whole: these, or others away from the reserved nodes."""
    if promise.kept_by(shares):
        return shares
    elsewhere = _first_fit(candidate, floor, avoiding=promise.nodes)
    return elsewhere if elsewhere is not None and promise.kept_by(elsewhere) else None


def _first_fit(candidate: Candidate, floor: Floor, avoiding: frozenset[str] = frozenset()) -> tuple[Share, ...] | None:
    for names in candidate.places:
        shares = fit(candidate.request, [floor[name] for name in names if name not in avoiding])
        if shares is not None:
            return shares
    return None


def _promise(candidate: Candidate, running: Sequence[Ending], floor: Floor) -> _Promise | None:
    """When and where the blocked job will fit; None if it would not fit even on nodes that run nothing."""
    later = {name: machine.twin() for name, machine in floor.items()}
    for end, group in groupby(sorted(running, key=lambda ending: ending.end), key=lambda ending: ending.end):
        for share in (share for ending in group for share in ending.shares):
            later[share.node].refund(share)
        shares = _first_fit(candidate, later)
        if shares is not None:
            for share in shares:
                later[share.node].claim(share)
            return _Promise(end, later, frozenset(share.node for share in shares))
    return None


def _alike(share: Share, machine: Machine) -> Share | None:
    """The same amount on the same node, on whichever of its devices are free there."""
    idle = machine.idle_by_type(share.gpu_type).get(share.gpu_type, []) if share.gpu_type else []
    if not share.shards:
        share = replace(share, indices=tuple(idle[: share.resources.gpus]))
    complete = share.shards or len(share.indices) == share.resources.gpus
    return share if complete and machine.holds(share) else None
