"""Pairs in a live round: who shares whose GPUs, and whether Slurm made it so (Tesserae, sections 4.2 and 5).

On Slurm a job that may share asks for half of the shards of each GPU it uses (`gres/shard`), or says `pack=yes`. Who
gets the other half is decided here; the device is Slurm's choice, so it is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId
from slurmsched.policies.tesserae.packing import Packable, pack
from slurmsched.policies.tesserae.strategies import PairRates, best_edges

__all__ = ["Apart", "Pair", "apart", "kept_by_both", "may_share", "pairs"]

_WORTH = 1.0
"""Two jobs have to do more together than one of them alone."""

_SHARING = 2
"""Jobs on a GPU, at most."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A placed job, the pending one that shall share its GPUs, and what part of its rate alone each keeps."""

    host: JobId
    guest: JobId
    kept: tuple[float, float]


def may_share(job: Job) -> bool:
    """Whether its owner lets another job use its GPUs: by asking for shards or by `pack=yes`; `pack=no` is final."""
    if job.request.exclusive or job.hints.pack is False:
        return False
    return job.hints.pack is True or job.request.shards > 0


def pairs(
    placed: Sequence[Job],
    pending: Sequence[Job],
    *,
    types: Mapping[JobId, str],
    knowledge: Knowledge,
    shards_per_gpu: int,
    urgent: Collection[JobId] = (),
    fits: Callable[[Job, Job], bool] | None = None,
) -> tuple[Pair, ...]:
    """The heaviest matching of placed jobs with pending ones, both in order. `types` has the GPU type of each placed
    job; `shards_per_gpu` is how many a device is cut into. `urgent` jobs, of high priority or with a deadline, share
    with nobody, nor do two whose rates together are not known. `fits` says whether a pending job, the second, may go
    where a placed one is; it is asked once of pending jobs that ask alike. Raises PolicyError.
    """

    def host_kind(job: Job) -> Hashable:
        return _model(job), types[job.id], job.id if fits else ""

    def guest_kind(job: Job) -> Hashable:
        return (_model(job), job.request, job.partitions, job.reservation) if fits else _model(job)

    def rates(host: Job, guest: Job) -> PairRates:
        both = kept_by_both(knowledge, host, guest, types[host.id])
        return {} if both is None or not (fits is None or fits(host, guest)) else {("", ""): both}

    rows, hosts = _by_kind(placed, host_kind)
    columns, guests = _by_kind(pending, guest_kind)
    edges, weights = best_edges([[rates(host, guest) for guest in guests] for host in hosts], _WORTH)

    def packable(job: Job, kind: int) -> Packable:
        return Packable(_gpus(job, shards_per_gpu), kind, job.id not in urgent and may_share(job))

    found = pack(list(map(packable, placed, rows)), list(map(packable, pending, columns)), weights)
    return tuple(
        Pair(placed[host].id, pending[guest].id, edges[rows[host]][columns[guest]].kept) for host, guest in found
    )


def kept_by_both(knowledge: Knowledge, host: Job, guest: Job, gpu_type: str) -> tuple[float, float] | None:
    """What part of its rate alone each keeps beside the other; None where that was not measured of both."""
    first = _beside(knowledge, _model(host), _model(guest), gpu_type)
    second = _beside(knowledge, _model(guest), _model(host), gpu_type)
    return None if first is None or second is None else (first, second)


@dataclass(frozen=True, slots=True)
class Apart:
    """A pair that Slurm did not put on the same devices: those of each, as node and index."""

    host: JobId
    guest: JobId
    devices: tuple[frozenset[tuple[str, int]], frozenset[tuple[str, int]]]


def apart(decided: Iterable[tuple[JobId, JobId]], running: Mapping[JobId, Job]) -> tuple[Apart, ...]:
    """Of the pairs that run, those whose devices are not the same ones."""
    found = []
    for host, guest in decided:
        if host in running and guest in running:
            devices = _devices(running[host]), _devices(running[guest])
            if devices[0] != devices[1]:
                found.append(Apart(host, guest, devices))
    return tuple(found)


def _model(job: Job) -> str:
    return job.hints.model or ""


def _by_kind(jobs: Sequence[Job], kind: Callable[[Job], Hashable]) -> tuple[list[int], list[Job]]:
    """The kind of each job as a number, and one job of each kind."""
    first = dict[Hashable, Job]()
    for job in jobs:
        first.setdefault(kind(job), job)
    number = {one: place for place, one in enumerate(first)}
    return [number[kind(job)] for job in jobs], list(first.values())


def _gpus(job: Job, shards_per_gpu: int) -> int:
    """GPUs it uses, whole or by half."""
    return job.request.gpus or -(-_SHARING * job.request.shards // max(shards_per_gpu, 1))


def _beside(knowledge: Knowledge, model: str, other: str, gpu_type: str) -> float | None:
    profile = knowledge.models.get(model)
    scaling = profile.scaling.get(gpu_type) if profile else None
    return scaling.beside.get(other) if scaling else None


def _devices(job: Job) -> frozenset[tuple[str, int]]:
    return frozenset((share.node, index) for share in job.shares for index in share.indices)
