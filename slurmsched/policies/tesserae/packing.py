"""Which waiting job shares the GPUs of which running one (Tesserae, section 4.2, algorithm 4).

Placed jobs are on one side of a graph, pending ones on the other. An edge joins two that ask for as many GPUs, that fit
into the memory of a GPU together and that both allow it; its weight is what the two together do of what each does
alone. A matching has at most one edge at each job, so never more than two jobs are on a GPU.

Jobs of one kind have the same edges. So it is enough to say how many of each kind are packed with how many of each
other: a transport problem over kinds whose size does not grow with the queue. Where most jobs are of a kind of their
own, the matching of single jobs is smaller.

The best way to divide 3D-parallel jobs for a pair (Tesserae, section 4.2, figures 7 and 8).

Pairs in a live round: who shares whose GPUs, and whether Slurm made it so (Tesserae, sections 4.2 and 5).

On Slurm a job that may share asks for half of the shards of each GPU it uses (`gres/shard`), or says `pack=yes`. Who
gets the other half is decided here; the device is Slurm's choice, so it is read back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csr_matrix

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId
from slurmsched.policies.cluster.pools import Ints
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.tesserae.migration import Floats


@dataclass(frozen=True, slots=True)
class PackingJob:
    """A job as packing sees it. `kind` is its row in the weights; one that is not `willing` has no edges: its owner
    said no, or it is urgent."""

    gpus: int
    job_type: int
    may_share: bool = True


EdgeWeights = Floats
"""Combined normalised throughput of a placed kind (row) with a pending kind (column); 0 where there is no edge."""


def pack(
    placed: Sequence[PackingJob], pending: Sequence[PackingJob], weights: EdgeWeights
) -> tuple[tuple[int, int], ...]:
    """Pairs of places, one in each sequence, whose weights add up to the most there is. Of pending jobs that are alike
    the first ones are packed, with the first placed ones. Raises PolicyError."""
    pairs: list[tuple[int, int]] = []
    for hosts, guests in _groups_by_width(placed, pending):
        host_kinds = np.array([placed[place].job_type for place in hosts])
        guest_kinds = np.array([pending[place].job_type for place in guests])
        kinds = len(np.unique(host_kinds)) * len(np.unique(guest_kinds))
        way = match_job_types if kinds * _PROGRAM_COST_FACTOR < len(hosts) * len(guests) else match_jobs
        pairs += [(hosts[host], guests[guest]) for host, guest in way(host_kinds, guest_kinds, weights)]
    return tuple(sorted(pairs))


_PROGRAM_COST_FACTOR = 1000
"""A linear program costs as much as a matching with so many times its entries."""


def _groups_by_width(
    placed: Sequence[PackingJob], pending: Sequence[PackingJob]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Places of the willing jobs that ask for as many GPUs, where there are some on both sides."""
    sides: list[defaultdict[int, list[int]]] = []
    for jobs in (placed, pending):
        by_width = defaultdict[int, list[int]](list)
        for index, job in enumerate(jobs):
            if job.may_share:
                by_width[job.gpus].append(index)
        sides.append(by_width)
    for width in sorted(sides[0].keys() & sides[1].keys()):
        yield sides[0][width], sides[1][width]


def match_jobs(hosts: Ints, guests: Ints, weights: EdgeWeights) -> list[tuple[int, int]]:
    """The matching of single jobs, given the kind of each."""
    each = weights[np.ix_(hosts, guests)]
    rows, columns = linear_sum_assignment(each, maximize=True)
    edges = each[rows, columns] > 0
    return list(zip(rows[edges].tolist(), columns[edges].tolist(), strict=True))


def match_job_types(hosts: Ints, guests: Ints, weights: EdgeWeights) -> list[tuple[int, int]]:
    """The same by counts of kinds. Raises PolicyError where the program has no answer."""
    from_host, hosts_of = np.unique(hosts, return_inverse=True)
    from_guest, guests_of = np.unique(guests, return_inverse=True)
    table = weights[np.ix_(from_host, from_guest)]
    row, column = np.nonzero(table > 0)
    if not len(row):
        return []
    edges = np.arange(len(row))
    at_most = csr_matrix(
        (
            np.ones(2 * len(edges)),
            (np.concatenate((row, column + len(from_host))), np.concatenate((edges, edges))),
        ),
        shape=(len(from_host) + len(from_guest), len(edges)),
    )
    there_are = np.concatenate((np.bincount(hosts_of), np.bincount(guests_of)))
    answer = milp(
        -table[row, column],
        integrality=np.ones(len(edges), dtype=np.int64),
        constraints=LinearConstraint(at_most, -np.inf, there_are),
    )
    if answer.x is None:
        raise PolicyError(f"no packing was found: {answer.message}")
    return _pairs_of_jobs(hosts_of, guests_of, row, column, np.rint(answer.x).astype(np.int64))


def _pairs_of_jobs(hosts_of: Ints, guests_of: Ints, row: Ints, column: Ints, counts: Ints) -> list[tuple[int, int]]:
    """Pairs of single jobs from counts of pairs of kinds."""
    free_hosts, free_guests = _indices_by_type(hosts_of), _indices_by_type(guests_of)
    return [
        (next(free_hosts[host]), next(free_guests[guest]))
        for host, guest, count in zip(row.tolist(), column.tolist(), counts.tolist(), strict=True)
        for _ in range(count)
    ]


def _indices_by_type(kinds: Ints) -> list[Iterator[int]]:
    order = np.argsort(kinds, kind="stable")
    return [iter(group.tolist()) for group in np.split(order, np.cumsum(np.bincount(kinds))[:-1])]


PairRates = Mapping[tuple[str, str], tuple[float, float]]
"""What part of its rate alone each of two jobs keeps beside the other, by their strategies; 0.0 for both where they do
not fit into memory together. Alone means with the strategy that is best alone. A data-parallel job has the one
strategy ""."""


@dataclass(frozen=True, slots=True)
class PackingEdge:
    """Two kinds of jobs on the same GPUs: the strategy of each and what part of its rate alone each keeps."""

    strategies: tuple[str, str] = ("", "")
    relative_rates: tuple[float, float] = (0.0, 0.0)

    @property
    def weight(self) -> float:
        """Combined normalised throughput; 0.0 is no edge."""
        return sum(self.relative_rates)


NO_EDGE = PackingEdge()


def best_edge(rates: PairRates) -> PackingEdge:
    """The strategies with the highest combined throughput; no edge where no two of them fit."""
    edges = (PackingEdge(strategies, kept) for strategies, kept in rates.items() if min(kept) > 0)
    return max(edges, key=lambda edge: edge.weight, default=NO_EDGE)


def best_edges(rates: Sequence[Sequence[PairRates]], min_weight: float = 0.0) -> tuple[list[list[PackingEdge]], Floats]:
    """The edge of each placed kind (row) with each pending kind (column), and their weights for `pack`.

    A pair that together does no more than `least` has no edge: 1.0 leaves out those that do less than one job alone.
    """
    edges = [[best_edge(pair) for pair in row] for row in rates]
    edges = [[edge if edge.weight > min_weight else NO_EDGE for edge in row] for row in edges]
    return edges, np.array([[edge.weight for edge in row] for row in edges], dtype=np.float64)


_MIN_EDGE_WEIGHT = 1.0
"""Two jobs have to do more together than one of them alone."""

_JOBS_PER_GPU = 2
"""Jobs on a GPU, at most."""


@dataclass(frozen=True, slots=True)
class PackedPair:
    """A placed job, the pending one that shall share its GPUs, and what part of its rate alone each keeps."""

    host: JobId
    guest: JobId
    relative_rates: tuple[float, float]


def may_share(job: Job) -> bool:
    """Whether its owner lets another job use its GPUs: by asking for shards or by `pack=yes`; `pack=no` is final."""
    if job.original_request.exclusive or job.hints.pack is False:
        return False
    return job.hints.pack is True or job.original_request.shards > 0


def match_pairs(
    placed: Sequence[Job],
    pending: Sequence[Job],
    *,
    types: Mapping[JobId, str],
    knowledge: Knowledge,
    shards_per_gpu: int,
    urgent: Collection[JobId] = (),
    fits: Callable[[Job, Job], bool] | None = None,
) -> tuple[PackedPair, ...]:
    """The heaviest matching of placed jobs with pending ones, both in order. `types` has the GPU type of each placed
    job; `shards_per_gpu` is how many a device is cut into. `urgent` jobs, of high priority or with a deadline, share
    with nobody, nor do two whose rates together are not known. `fits` says whether a pending job, the second, may go
    where a placed one is; it is asked once of pending jobs that ask alike. Raises PolicyError.
    """

    def host_kind(job: Job) -> Hashable:
        return _model(job), types[job.id], job.id if fits else ""

    def guest_kind(job: Job) -> Hashable:
        return (_model(job), job.original_request, job.partitions, job.reservation) if fits else _model(job)

    def rates(host: Job, guest: Job) -> PairRates:
        both = relative_rates_of_pair(knowledge, host, guest, types[host.id])
        return {} if both is None or not (fits is None or fits(host, guest)) else {("", ""): both}

    rows, hosts = _number_types(placed, host_kind)
    columns, guests = _number_types(pending, guest_kind)
    edges, weights = best_edges([[rates(host, guest) for guest in guests] for host in hosts], _MIN_EDGE_WEIGHT)

    def packable(job: Job, kind: int) -> PackingJob:
        return PackingJob(_gpus_used(job, shards_per_gpu), kind, job.id not in urgent and may_share(job))

    found = pack(list(map(packable, placed, rows)), list(map(packable, pending, columns)), weights)
    return tuple(
        PackedPair(placed[host].id, pending[guest].id, edges[rows[host]][columns[guest]].relative_rates)
        for host, guest in found
    )


def relative_rates_of_pair(knowledge: Knowledge, host: Job, guest: Job, gpu_type: str) -> tuple[float, float] | None:
    """What part of its rate alone each keeps beside the other; None where that was not measured of both."""
    first = _colocated_rate(knowledge, _model(host), _model(guest), gpu_type)
    second = _colocated_rate(knowledge, _model(guest), _model(host), gpu_type)
    return None if first is None or second is None else (first, second)


@dataclass(frozen=True, slots=True)
class SeparatedPair:
    """A pair that Slurm did not put on the same devices: those of each, as node and index."""

    host: JobId
    guest: JobId
    devices: tuple[frozenset[tuple[str, int]], frozenset[tuple[str, int]]]


def separated_pairs(decided: Iterable[tuple[JobId, JobId]], running: Mapping[JobId, Job]) -> tuple[SeparatedPair, ...]:
    """Of the pairs that run, those whose devices are not the same ones."""
    found = []
    for host, guest in decided:
        if host in running and guest in running:
            devices = _devices_of(running[host]), _devices_of(running[guest])
            if devices[0] != devices[1]:
                found.append(SeparatedPair(host, guest, devices))
    return tuple(found)


def _model(job: Job) -> str:
    return job.hints.model or ""


def _number_types(jobs: Sequence[Job], kind: Callable[[Job], Hashable]) -> tuple[list[int], list[Job]]:
    """The kind of each job as a number, and one job of each kind."""
    first = dict[Hashable, Job]()
    for job in jobs:
        first.setdefault(kind(job), job)
    number = {one: index for index, one in enumerate(first)}
    return [number[kind(job)] for job in jobs], list(first.values())


def _gpus_used(job: Job, shards_per_gpu: int) -> int:
    """GPUs it uses, whole or by half."""
    return job.original_request.gpus or -(-_JOBS_PER_GPU * job.original_request.shards // max(shards_per_gpu, 1))


def _colocated_rate(knowledge: Knowledge, model: str, other: str, gpu_type: str) -> float | None:
    profile = knowledge.models.get(model)
    scaling = profile.scaling.get(gpu_type) if profile else None
    return scaling.beside.get(other) if scaling else None


def _devices_of(job: Job) -> frozenset[tuple[str, int]]:
    return frozenset((share.node, index) for share in job.allocations for index in share.indices)
