"""Packing: which pending job shares the GPUs of which placed job (Tesserae, section 4.2, algorithm 4).

Packing is a maximum-weight matching in a bipartite graph of placed and pending jobs. An edge joins two jobs that ask
for the same number of GPUs, fit together into GPU memory and both allow sharing. Its weight is the sum of their
relative rates; for 3D-parallel jobs that of their best strategies (figures 7 and 8). A matching has at most one edge at
each job, so at most two jobs share a GPU.

Jobs of one type have the same edges, so the matching can be solved as a transport problem over job types, whose size
does not grow with the queue. Where most jobs have a type of their own, matching single jobs is cheaper.

On Slurm a job that may share asks for half of the shards of each of its GPUs (`gres/shard`), or has the hint
`pack=yes`. Slurm chooses the device, so the devices of a pair are read back (section 5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.estimation import gpu_spec
from slurmsched.knowledge.knowledge import OUT_OF_MEMORY_SECONDS
from slurmsched.model import Job, JobId, NodeAllocation, Reason, ReasonCode
from slurmsched.model.reasons import time_of_day
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.session import Session


@dataclass(frozen=True, slots=True)
class PackingJob:
    """A job to pack. `job_type` is its row or column in the weights; without `may_share` it has no edges."""

    gpus: int
    job_type: int
    may_share: bool = True


EdgeWeights = Floats
"""Sum of relative rates of a placed job type (row) with a pending one (column); 0 where there is no edge."""


def pack(
    placed: Sequence[PackingJob], pending: Sequence[PackingJob], weights: EdgeWeights
) -> tuple[tuple[int, int], ...]:
    """Returns the maximum-weight matching as pairs of indices into `placed` and `pending`.

    Of jobs of one type the first are matched. Raises PolicyError.
    """
    pairs: list[tuple[int, int]] = []
    for hosts, guests in _groups_by_width(placed, pending):
        host_types = np.array([placed[index].job_type for index in hosts])
        guest_types = np.array([pending[index].job_type for index in guests])
        type_pairs = len(np.unique(host_types)) * len(np.unique(guest_types))
        match = match_job_types if type_pairs * _PROGRAM_COST_FACTOR < len(hosts) * len(guests) else match_jobs
        pairs += [(hosts[host], guests[guest]) for host, guest in match(host_types, guest_types, weights)]
    return tuple(sorted(pairs))


_PROGRAM_COST_FACTOR = 1000
"""An integer program costs as much as a matching with this many times its entries."""


def _groups_by_width(
    placed: Sequence[PackingJob], pending: Sequence[PackingJob]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yields the indices of placed and pending jobs that may share, by number of GPUs."""
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
    """Returns the matching over single jobs, given the type of each."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 every round imports this module, few match

    each = weights[np.ix_(hosts, guests)]
    rows, columns = linear_sum_assignment(each, maximize=True)
    edges = each[rows, columns] > 0
    return list(zip(rows[edges].tolist(), columns[edges].tolist(), strict=True))


def match_job_types(hosts: Ints, guests: Ints, weights: EdgeWeights) -> list[tuple[int, int]]:
    """Returns the matching over counts of job types. Raises PolicyError if the program has no solution."""
    from scipy.optimize import LinearConstraint, milp  # noqa: PLC0415 as above
    from scipy.sparse import csr_matrix  # noqa: PLC0415

    host_types, hosts_of = np.unique(hosts, return_inverse=True)
    guest_types, guests_of = np.unique(guests, return_inverse=True)
    table = weights[np.ix_(host_types, guest_types)]
    row, column = np.nonzero(table > 0)
    if not len(row):
        return []
    edges = np.arange(len(row))
    incidence = csr_matrix(
        (
            np.ones(2 * len(edges)),
            (np.concatenate((row, column + len(host_types))), np.concatenate((edges, edges))),
        ),
        shape=(len(host_types) + len(guest_types), len(edges)),
    )
    type_counts = np.concatenate((np.bincount(hosts_of), np.bincount(guests_of)))
    answer = milp(
        -table[row, column],
        integrality=np.ones(len(edges), dtype=np.int64),
        constraints=LinearConstraint(incidence, -np.inf, type_counts),
    )
    if answer.x is None:
        raise PolicyError(f"the packing program has no solution: {answer.message}")
    return _pairs_of_jobs(hosts_of, guests_of, row, column, np.rint(answer.x).astype(np.int64))


def _pairs_of_jobs(hosts_of: Ints, guests_of: Ints, row: Ints, column: Ints, counts: Ints) -> list[tuple[int, int]]:
    """Returns pairs of single jobs from counts of pairs of job types."""
    free_hosts, free_guests = _indices_by_type(hosts_of), _indices_by_type(guests_of)
    return [
        (next(free_hosts[host]), next(free_guests[guest]))
        for host, guest, count in zip(row.tolist(), column.tolist(), counts.tolist(), strict=True)
        for _ in range(count)
    ]


def _indices_by_type(types: Ints) -> list[Iterator[int]]:
    order = np.argsort(types, kind="stable")
    return [iter(group.tolist()) for group in np.split(order, np.cumsum(np.bincount(types))[:-1])]


PairRates = Mapping[tuple[str, str], tuple[float, float]]
"""The relative rates of two jobs that share GPUs, by their strategies: each job's rate over its rate alone with the
strategy that is best alone. 0.0 for both where they do not fit into memory together. A data-parallel job has the one
strategy ""."""


@dataclass(frozen=True, slots=True)
class PackingEdge:
    """Two job types on the same GPUs: the strategy and the relative rate of each."""

    strategies: tuple[str, str] = ("", "")
    relative_rates: tuple[float, float] = (0.0, 0.0)

    @property
    def weight(self) -> float:
        """Sum of the relative rates; 0.0 means no edge."""
        return sum(self.relative_rates)


NO_EDGE = PackingEdge()


def best_edge(rates: PairRates) -> PackingEdge:
    """Returns the edge of the strategies with the highest weight; `NO_EDGE` where no two of them fit."""
    edges = (PackingEdge(strategies, relative) for strategies, relative in rates.items() if min(relative) > 0)
    return max(edges, key=lambda edge: edge.weight, default=NO_EDGE)


def best_edges(rates: Sequence[Sequence[PairRates]], min_weight: float = 0.0) -> tuple[list[list[PackingEdge]], Floats]:
    """Returns the edge of each placed type (row) with each pending type (column), and their weights for `pack`.

    A pair has no edge unless its weight is above `min_weight`; 1.0 leaves out pairs that do no more than one job alone.
    """
    edges = [[best_edge(pair) for pair in row] for row in rates]
    edges = [[edge if edge.weight > min_weight else NO_EDGE for edge in row] for row in edges]
    return edges, np.array([[edge.weight for edge in row] for row in edges], dtype=np.float64)


_MIN_EDGE_WEIGHT = 1.0
"""Two jobs must do more work together than one of them alone."""

_JOBS_PER_GPU = 2
"""Largest number of jobs on a GPU."""


@dataclass(frozen=True, slots=True)
class PackedPair:
    """A placed job (host), the pending job that is to share its GPUs (guest), and their relative rates."""

    host: JobId
    guest: JobId
    relative_rates: tuple[float, float]


_MIN_ESTIMATED_WEIGHT = 1.1
"""Estimates are off by a tenth and more, and whoever is paired by one may have to be restarted."""


@dataclass(frozen=True, slots=True)
class TriedPairs:
    """Pairs that nobody has measured and that may be tried, by estimates for each GPU type.

    Only the guest can be moved apart again, so it is one of `movable`; and since no rate tells that both fit into GPU
    memory, both owners must say so.
    """

    estimates: Mapping[str, Mapping[tuple[str, str], float]]
    movable: Collection[JobId]

    def rates(self, knowledge: Knowledge, host: Job, guest: Job, gpu_type: str) -> tuple[float, float] | None:
        """Returns the estimated relative rates of the two; None if they are not to be tried."""
        said = host.hints.gpu_memory is not None and guest.hints.gpu_memory is not None
        if not said or gpu_spec(gpu_type) is None or _exceed_gpu_memory(host, guest, gpu_type):
            return None
        estimated = self.estimates.get(gpu_type, {})
        first, second = (
            estimated.get((_model(one), _model(other))) if known is None else known
            for one, other in ((host, guest), (guest, host))
            for known in (knowledge.known_rate_beside(one, other, gpu_type),)
        )
        if first is None or second is None or first + second < _MIN_ESTIMATED_WEIGHT:
            return None
        return first, second


def may_share(job: Job) -> bool:
    """Returns whether its owner allows sharing, by a request for shards or `pack=yes`; `pack=no` overrides both."""
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
    tried: TriedPairs | None = None,
) -> tuple[PackedPair, ...]:
    """Returns the maximum-weight matching of placed with pending jobs, both in order.

    `types` has the GPU type of each placed job; `shards_per_gpu` is the shards of a device. `urgent` jobs do not share,
    nor do two jobs whose relative rates are unknown or whose like ran out of memory together. `fits(host, guest)`
    returns whether a pending job may run where a placed one is; it is called once for pending jobs with equal requests.
    With `tried` these pairs count as estimated. Raises PolicyError.
    """

    def kind(job: Job) -> tuple[Hashable, ...]:
        owner = job.family if knowledge.differs_by_owner(job) else ""
        return _model(job), job.hints.gpu_memory, owner, tried is not None and job.id in tried.movable

    def host_type(job: Job) -> Hashable:
        return (*kind(job), types[job.id], job.id if fits else "")

    def guest_type(job: Job) -> Hashable:
        return (*kind(job), job.original_request, job.partitions, job.reservation) if fits else kind(job)

    def rates(host: Job, guest: Job) -> PairRates:
        both = relative_rates_of_pair(knowledge, host, guest, types[host.id])
        if both is None and tried is not None and guest.id in tried.movable:
            both = tried.rates(knowledge, host, guest, types[host.id])
        if both is None or knowledge.out_of_memory.last(host, guest) is not None:
            return {}
        return {("", ""): both} if fits is None or fits(host, guest) else {}

    rows, hosts = _number_types(placed, host_type)
    columns, guests = _number_types(pending, guest_type)
    edges, weights = best_edges([[rates(host, guest) for guest in guests] for host in hosts], _MIN_EDGE_WEIGHT)

    def packing_job(job: Job, job_type: int) -> PackingJob:
        return PackingJob(_gpus_used(job, shards_per_gpu), job_type, job.id not in urgent and may_share(job))

    pairs = pack(list(map(packing_job, placed, rows)), list(map(packing_job, pending, columns)), weights)
    return tuple(
        PackedPair(placed[host].id, pending[guest].id, edges[rows[host]][columns[guest]].relative_rates)
        for host, guest in pairs
    )


def relative_rates_of_pair(knowledge: Knowledge, host: Job, guest: Job, gpu_type: str) -> tuple[float, float] | None:
    """Returns the relative rates of two jobs that share GPUs, as jobs like them measured, else as profiles say.

    None unless both are known, and where both together say that they need more memory than the GPU type has."""
    if _exceed_gpu_memory(host, guest, gpu_type):
        return None
    first = knowledge.known_rate_beside(host, guest, gpu_type)
    second = knowledge.known_rate_beside(guest, host, gpu_type)
    return None if first is None or second is None else (first, second)


def _exceed_gpu_memory(host: Job, guest: Job, gpu_type: str) -> bool:
    """Returns whether the owners of both said how much memory they need, and it is more than the data sheet has."""
    spec, needed = gpu_spec(gpu_type), (host.hints.gpu_memory, guest.hints.gpu_memory)
    return spec is not None and None not in needed and sum(amount or 0 for amount in needed) > 1024 * spec.memory


def _model(job: Job) -> str:
    return job.hints.model or ""


def _number_types(jobs: Sequence[Job], type_of: Callable[[Job], Hashable]) -> tuple[list[int], list[Job]]:
    """Returns the type of each job as a number, and the first job of each type."""
    first, number, numbers = list[Job](), dict[Hashable, int](), list[int]()
    for job in jobs:
        numbers.append(number.setdefault(type_of(job), len(first)))
        if numbers[-1] == len(first):
            first.append(job)
    return numbers, first


def _gpus_used(job: Job, shards_per_gpu: int) -> int:
    """Returns the GPUs it uses, whole or half."""
    return job.original_request.gpus or -(-_JOBS_PER_GPU * job.original_request.shards // max(shards_per_gpu, 1))


class GpuSharers:
    """Records who shares a GPU with whom, managed or not, and how fast each is."""

    def __init__(self, session: Session, tried: TriedPairs | None = None) -> None:
        self._snapshot, self._knowledge = session.situation.snapshot, session.situation.knowledge
        self._managed, self._tried = frozenset(session.jobs), tried

    def describe_users(self, node: str, gpu: int) -> str:
        """Returns the jobs on this device as text: `jobs 4, 7`."""
        return _format_jobs(self._snapshot.jobs_on(node, gpu))

    def record(self, session: Session, job: Job) -> None:
        """Records the sharers of a job that keeps running and its speed beside them, if there are any."""
        others = tuple(other for other in self._snapshot.sharers_of(job) if other.id not in session.victims)
        if not others:
            return
        gpu_type = job.gpu_type_held
        speed = min(self._knowledge.shared_gpu_speed(job, other, gpu_type) for other in others)
        if len(others) == 1 and self._is_pair(job, others[0]):
            both = relative_rates_of_pair(self._knowledge, job, others[0], gpu_type)
            tried = self._tried.rates(self._knowledge, job, others[0], gpu_type) if self._tried and not both else None
            if rates := both or tried:
                why = shares_gpu_reason(job.allocations, others[0].id, rates, tried=both is None)
                session.share(job.id, (others[0].id,), speed if both else rates[0], why)
                return
        why = Reason(
            ReasonCode.SHARES_UNASKED, {"devices": _device_names(job.allocations), "jobs": _format_jobs(others)}
        )
        session.share(job.id, (), speed, why)

    def _is_pair(self, job: Job, other: Job) -> bool:
        """Returns whether the other is managed too, both allow sharing, and they use the same devices."""
        may_pair = other.id in self._managed and may_share(job) and may_share(other)
        return may_pair and set(job.devices) == set(other.devices)


def shares_gpu_reason(
    allocations: Sequence[NodeAllocation], partner: JobId, relative_rates: tuple[float, float], *, tried: bool = False
) -> Reason:
    """Returns the reason for a shared allocation; `work` is that of both jobs over that of one job alone."""
    work = str(round(sum(relative_rates), 2))
    code = ReasonCode.TRIES_SHARING if tried else ReasonCode.SHARES_GPU
    return Reason(code, {"devices": _device_names(allocations), "job": partner, "work": work})


def _device_names(allocations: Sequence[NodeAllocation]) -> str:
    """Returns the devices as text: `GPU 0 of v100-1`."""
    return ", ".join(f"GPU {index} of {share.node}" for share in allocations for index in share.indices)


def _format_jobs(jobs: Sequence[Job]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(job.id for job in jobs)}"


class NeverTogether:
    """Why a waiting job shares no GPU with one of `alone`, the jobs without a partner, although their rates would let
    them; each question is answered once for an owner's jobs of one model."""

    def __init__(self, session: Session, alone: Sequence[Job]) -> None:
        self._session, self._knowledge = session, session.situation.knowledge
        self._models = self._knowledge.out_of_memory.models
        self._hosts = {self._kind(job): job for job in reversed(alone) if job.hints.model in self._models}
        self._reasons = dict[tuple[str, str | None, int | None, bool], Reason | None]()

    def why(self, job: Job) -> Reason | None:
        """Returns the reason, or None."""
        if job.hints.model not in self._models or self._session.demands.of(job).milli is None:
            return None
        kind = self._kind(job)
        if kind not in self._reasons:
            reasons = (self._why_not_beside(job, host) for host in self._hosts.values())
            self._reasons[kind] = next((why for why in reasons if why is not None), None)
        return self._reasons[kind]

    @staticmethod
    def _kind(job: Job) -> tuple[str, str | None, int | None, bool]:
        return job.user, job.hints.model, job.hints.gpu_memory, may_share(job)

    def _why_not_beside(self, job: Job, host: Job) -> Reason | None:
        at = self._knowledge.out_of_memory.last(job, host)
        if at is None or not (may_share(job) and may_share(host)):
            return None
        held = self._session.running.get(host.id) or self._session.placements[host.id]
        gpu_type = self._session.pools.gpu_types[held.pools[0]]
        if relative_rates_of_pair(self._knowledge, host, job, gpu_type) is None:
            return None
        models, now = sorted((job.hints.model or "", host.hints.model or "")), self._session.situation.snapshot.time
        details = {
            "job": host.id,
            "models": " and ".join(models) if models[0] != models[1] else f"two of {models[0]}",
            "when": time_of_day(at, now),
            "until": time_of_day(at + OUT_OF_MEMORY_SECONDS, now),
        }
        return Reason(ReasonCode.NEVER_TOGETHER, details)
