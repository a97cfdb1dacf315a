"""The reasons of a decision: why each job runs as it does, waits, or could never fit into the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.model import (
    Job,
    JobId,
    NodeAllocation,
    Reason,
    ReasonCode,
    Resources,
    Target,
)
from slurmsched.model.reasons import format_percent, pluralise, shorter_limit, time_of_day
from slurmsched.policies.cluster.demand import DemandCache, DemandLevel, ResourceDemand
from slurmsched.policies.cluster.eligibility import ClosedNodes, Eligibility, closed_nodes
from slurmsched.policies.cluster.gang import why_single_type
from slurmsched.policies.empty_cluster import EmptyCluster, least_on_node
from slurmsched.policies.place.placement import FIRST_FIT, find_placement
from slurmsched.policies.session import Session


def explain(session: Session, order_name: str) -> tuple[dict[JobId, Target], dict[JobId, Reason]]:
    """Return the targets and the waiting jobs of a finished session, each with its reasons."""
    targets, waits, passed_over = dict[JobId, Target](), list[Job](), False
    speeds, keeps = _RelativeSpeeds(session), Reason(ReasonCode.KEEPS_LEASE)
    for ranked in session.ranking:
        job = session.jobs[ranked.job]
        if job.id in session.running:
            why = session.reasons.get(job.id, keeps)
            targets[job.id] = _target(session, speeds, job, job.allocations, (why,))
        elif job.id in session.placements:
            allocations = session.placements[job.id].node_allocations(session.pools)
            first = session.reasons.get(job.id) or _starting_reason(session, job, order_name, passed_over)
            no_choice = session.demands.of(job).needs_mix and not session.entitlement.mixes_types
            leading = (first,) if no_choice else _with_mix(first, allocations)
            where = (Reason(session.node_score.reason),) if session.node_score.reason else ()
            reasons = (*leading, *where, *_size_reason(session, speeds, job, allocations))
            targets[job.id] = _target(session, speeds, job, allocations, reasons)
        else:
            waits.append(job)
            passed_over = True
    situation, types, known = session.situation, session.entitlement.gpu_types, session.demands.classes
    observed, knowledge = situation.snapshot, situation.knowledge
    empty = EmptyCluster(session.pools, observed, knowledge, session.sizing, gpu_types=types, classes=known)
    idle = _idle_managed_gpus(session) if session.entitlement.mixes_types else 0
    shortage = _Shortage(session)
    due = session.entitlement.why_wait(session.allocations()) if session.entitlement.why_wait else {}
    waiting, reservations = {}, _ComingReservations(session)
    never = _NeverFits(session, empty)
    for job in waits:
        chosen = empty.slurm_chooses(job)
        why = (
            (Reason(ReasonCode.UNMANAGED, {"why": chosen}) if chosen else session.reasons.get(job.id))
            or shortage.instead_of(due.get(job.id), job)
            or _waiting_reason(session, job, order_name, shortage, never)
        )
        why = _single_type_reason(why, job, idle) if session.entitlement.mixes_types else why
        waiting[job.id] = _reservation_reason(why, reservations.reason(job))
    return targets, waiting


class _RelativeSpeeds:
    """`Knowledge.relative_speed`, computed once for jobs with the same matrices and as much of nodes that are alike."""

    def __init__(self, session: Session) -> None:
        self._knowledge, self._nodes = session.situation.knowledge, session.situation.snapshot.nodes_by_name
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, job: Job, allocations: tuple[NodeAllocation, ...]) -> float:
        profile = self._knowledge.profile(job)
        if profile is None:
            return 1.0
        key = id(profile.matrices), *[self._on_node(allocation) for allocation in allocations]
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._knowledge.relative_speed(job, allocations, self._nodes)
        return known

    def _on_node(self, allocation: NodeAllocation) -> tuple[object, ...] | None:
        """Return what the speed there depends on; None if the node is not known."""
        node, has = self._nodes.get(allocation.node), allocation.resources
        if node is None:
            return None
        of_node = len(node.gpus), node.total.cpus, node.total.memory, node.cpu_unit
        return allocation.gpu_type, has.gpus, has.cpus, has.memory, *of_node


def _target(
    session: Session,
    speeds: _RelativeSpeeds,
    job: Job,
    allocations: tuple[NodeAllocation, ...],
    reasons: tuple[Reason, ...],
) -> Target:
    speed = session.shared_speed.get(job.id)
    if speed is None:
        speed = speeds.of(job, allocations)
    if job.id in session.remarks:
        reasons = (*reasons, session.remarks[job.id])
    beside, after = session.beside.get(job.id, ()), session.starts_after.get(job.id, ())
    once_left = session.starts_once_left.get(job.id, ())
    return Target(job.id, allocations, reasons, speed, beside, session.steps.get(job.id), after, once_left)


def _starting_reason(session: Session, job: Job, order_name: str, passed_over: bool) -> Reason:
    if passed_over:
        return Reason(ReasonCode.FILLS_IN)
    why_start = session.entitlement.why_start
    return why_start(job) if why_start else Reason(ReasonCode.FIRST_IN_ORDER, {"order": order_name})


def _with_mix(why: Reason, allocations: Iterable[NodeAllocation]) -> tuple[Reason, ...]:
    """Add a reason for the GPU types if there are several. People see the first reason."""
    gpus = Counter[str]()
    for on_node in allocations:
        gpus[on_node.gpu_type] += on_node.resources.gpus
    if len(gpus) <= 1:
        return (why,)
    mixed = Reason(ReasonCode.MIXED, {"mix": format_type_mix(gpus)})
    uninformative = why.code in (ReasonCode.FIRST_IN_ORDER, ReasonCode.FILLS_IN)
    return (mixed, why) if uninformative else (why, mixed)


def format_type_mix(types: Mapping[str, int]) -> str:
    """Return the GPUs of each type as text: `2 p100 + 2 v100`."""
    return " + ".join(f"{gpus} {kind}" for kind, gpus in sorted(types.items()))


_MOST_NAMED: Final = 3
"""Most nodes out of service that a reason names."""
_PROMISES: Final = frozenset(
    {
        ReasonCode.PROMISED_START,
        ReasonCode.EXPECTED_START,
        ReasonCode.OVERTAKEN,
        ReasonCode.NODES_DRAIN,
        ReasonCode.FREED_NOW,
    }
)
"""They say when a job starts, not what it lacks."""

_LACKS_NODES: Final = frozenset(
    {
        ReasonCode.NO_ROOM,
        ReasonCode.BEHIND,
        ReasonCode.BESIDE_GPUS,
        ReasonCode.RESERVED,
        ReasonCode.AWAITS_TURN,
        ReasonCode.SHARE_HELD,
        ReasonCode.NO_SHARDS,
        ReasonCode.NO_CPUS,
    }
)


def _single_type_reason(why: Reason, job: Job, idle: int) -> Reason:
    """Replace the reason of a job that could run on the idle GPUs if it could use several types; where it is promised a
    start, say both."""
    request = job.original_request
    obstacle = why_single_type(request) if 1 < request.gpus <= idle else ""
    if not obstacle:
        return why
    lacks = Reason(ReasonCode.ONE_TYPE, {"gpus": request.gpus, "why": obstacle})
    return _instead_of(why, lacks, (ReasonCode.NO_ROOM, ReasonCode.BEHIND))


def _reservation_reason(why: Reason, reserved: Reason | None) -> Reason:
    """Replace the reason of a job that lacks only time before a reservation; where it is promised a start, say both."""
    return why if reserved is None else _instead_of(why, reserved, _LACKS_NODES)


def _instead_of(why: Reason, other: Reason, replaced: Collection[ReasonCode]) -> Reason:
    """Return the other reason where the code is one of these; for a promised start say both."""
    if why.code in _PROMISES:
        return replace(why, details={**why.details, "also": f"it {other.sentence}"})
    return other if why.code in replaced else why


def _idle_managed_gpus(session: Session) -> int:
    """Return the GPUs on open nodes that the round gives to no job."""
    situation, given = session.situation, sum(sum(held.gpus) for held in session.allocations().values())
    return sum(situation.managed_gpus().values()) - given


def _size_reason(
    session: Session, speeds: _RelativeSpeeds, job: Job, allocations: tuple[NodeAllocation, ...]
) -> tuple[Reason, ...]:
    """Return how the job's CPUs compare with its GPU-proportional share; nothing for a job without whole GPUs."""
    if not session.demands.of(job).gang.gpus_per_part:
        return ()
    nodes, profile = session.situation.snapshot.nodes_by_name, session.situation.knowledge.profile(job)
    has = sum((on_node.resources for on_node in allocations), Resources()).cpus
    shares = (nodes[on_node.node].proportional_share(on_node.resources.gpus) for on_node in allocations)
    share = sum(shares, Resources()).cpus
    gain = speeds.of(job, allocations) - 1
    tuned = profile is not None and session.sizing.by_sensitivity
    if profile is not None and profile.probes and tuned and has != (others := max(share, job.original_request.cpus)):
        return (Reason(ReasonCode.PROBES_CPUS, {"cpus": has, "others": others}),)
    if profile is not None and tuned and ((has < share and gain >= 0) or (has > share and gain > 0)):
        code = ReasonCode.TUNED_DOWN if has < share else ReasonCode.TUNED_UP
        return (Reason(code, {"cpus": has, "share": share, "model": profile.name, "gain": format_percent(gain)}),)
    # a request is rounded up for each part of a gang, and to whole cores or sockets of each node
    rounding = max(job.original_request.gpus, sum(nodes[on_node.node].cpu_unit for on_node in allocations))
    asked = has != share and 0 <= has - job.original_request.cpus < rounding
    return (Reason(ReasonCode.AS_REQUESTED if asked else ReasonCode.PROPORTIONAL, {"cpus": has}),)


class _ComingReservations:
    """Tells which waiting jobs would start now if no reservation began before they would end."""

    def __init__(self, session: Session) -> None:
        situation = session.situation
        grounds = Eligibility(session.pools, situation.snapshot, situation.open_nodes, ever=True)
        self._session = session
        self._demands = DemandCache(
            session.pools, grounds, situation.knowledge, session.sizing, gpu_types=session.entitlement.gpu_types,
            cap=session.limits.cap, classes=session.demands.classes,
        )  # fmt: skip

    def reason(self, job: Job) -> Reason | None:
        session, snapshot = self._session, self._session.situation.snapshot
        closed = closed_nodes(job, snapshot, snapshot.time)
        if not closed:
            return None
        demand = self._demands.of(job)
        placement = session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum, demand=demand)
        nodes = closed & {session.pools.node(pool).name for pool in (placement.pools if placement else ())}
        coming = [r for r in snapshot.reservations if r.start > snapshot.time and r.nodes & nodes]
        if not coming:
            return None
        first = min(coming, key=lambda reservation: reservation.start)
        details = {
            "nodes": ", ".join(sorted(nodes)),
            "reservation": first.name,
            "when": time_of_day(first.start, snapshot.time),
            **shorter_limit(first.start - snapshot.time),
        }
        return Reason(ReasonCode.RESERVED_FROM, details)


class _NeverFits:
    """What waiting jobs request beyond the empty cluster, computed once for jobs with the same demand."""

    def __init__(self, session: Session, empty: EmptyCluster) -> None:
        self._session, self._empty = session, empty
        self._alike = not session.entitlement.gpu_types and not session.entitlement.anti_affinity
        """Whether the demand of a job is that of its request alone."""
        self._known = dict[ResourceDemand, str]()

    def unmet_demand(self, job: Job) -> str:
        if not self._alike:
            return self._empty.unmet_demand(job)
        demand = self._session.demands.of(job)
        if demand not in self._known:
            self._known[demand] = self._empty.unmet_demand(job)
        return self._known[demand]


def _waiting_reason(session: Session, job: Job, order_name: str, shortage: _Shortage, never: _NeverFits) -> Reason:
    if what := never.unmet_demand(job):
        return Reason(ReasonCode.NEVER_FITS, {"what": what})
    demand = session.demands.of(job)
    if out := shortage.closed_nodes.reason(job, fits=bool(demand.single_node)):
        return out
    if demand.gang.shards:
        return Reason(ReasonCode.NO_SHARDS, {"shards": demand.gang.shards})
    if not job.original_request.gpus:
        return Reason(ReasonCode.NO_CPUS, {"cpus": job.original_request.cpus})
    return shortage.reason(job, demand, order_name)


class _Shortage:
    """What waiting jobs lack as a round ends, and which jobs have it; answers are kept for jobs that ask alike."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.closed_nodes = ClosedNodes(session.situation.snapshot)
        self._beside = dict[ResourceDemand, str]()
        self._holding, self._on_pools = dict[ResourceDemand, tuple[Ints, int]](), dict[bytes, tuple[Ints, int]]()
        held = session.allocations()
        holders = [
            (rank, held[ranked.job].pools)
            for rank, ranked in enumerate(session.ranking)
            if ranked.job in held and any(held[ranked.job].gpus)
        ]
        self._holders = np.array([rank for rank, _ in holders], dtype=np.int64)
        self._held_pools = np.array([pool for _, pools in holders for pool in pools], dtype=np.int64)
        self._first_held = np.cumsum([0, *(len(pools) for _, pools in holders)])[:-1]

    def reason(self, job: Job, demand: ResourceDemand, order_name: str) -> Reason:
        """Return why the job with GPUs waits: for what is beside idle GPUs, for GPUs on one node, or for other jobs."""
        if why := self._beside_gpus(job, demand):
            return why
        if demand not in self._holding:
            self._holding[demand] = self._holders_and_idle(demand)
        holders, idle = self._holding[demand]
        ahead = int(np.searchsorted(holders, self._session.rank_of[job.id]))
        if idle >= job.original_request.gpus or not ahead:
            return Reason(ReasonCode.NO_ROOM, {"gpus": job.original_request.gpus})
        last = self._session.ranking[holders[ahead - 1]].job
        return Reason(ReasonCode.BEHIND, {"count": ahead, "order": order_name, "last": last})

    def _holders_and_idle(self, demand: ResourceDemand) -> tuple[Ints, int]:
        """Return the ranks of the jobs with GPUs of the pools that the demand could use, and the idle GPUs there; the
        same object for demands that could use the same."""
        pools, usable = self._session.pools, [option.mask for option in demand.single_node]
        mask = np.logical_or.reduce([np.zeros(len(pools), dtype=np.bool_), *usable])
        if 0 < len(demand.required_nodes) >= demand.gang.max_nodes:
            mask = mask & np.isin(pools.node_of, demand.required_nodes)
        if (key := mask.tobytes()) not in self._on_pools:
            holds = mask[self._held_pools]
            holds = np.logical_or.reduceat(holds, self._first_held) if len(holds) else holds
            idle = int(self._session.free_at_minimum.gpus[mask].clip(min=0).sum())
            self._on_pools[key] = self._holders[holds], idle
        return self._on_pools[key]

    def instead_of(self, why: Reason | None, job: Job) -> Reason | None:
        """Return what is missing beside idle GPUs where it is told that no nodes have the GPUs; else what is told."""
        if why is None or why.code is not ReasonCode.NO_ROOM or not job.original_request.gpus:
            return why
        return self._beside_gpus(job, self._session.demands.of(job)) or why

    def _beside_gpus(self, job: Job, demand: ResourceDemand) -> Reason | None:
        if demand not in self._beside:
            self._beside[demand] = self._missing(demand)
        what = self._beside[demand]
        return Reason(ReasonCode.BESIDE_GPUS, {"gpus": job.original_request.gpus, "what": what}) if what else None

    def _missing(self, demand: ResourceDemand) -> str:
        pools, gang = self._session.pools, demand.gang
        with_gpus = {kind for kind, of in enumerate(pools.kinds) if of.gpus}
        least = least_on_node(pools, demand, gang.max_parts_per_node, with_gpus)
        cpus, whole = pluralise(least[0], "CPU"), gang.request.whole_memory
        memory = "all memory of their nodes" if whole else f"{least[1]} MiB of memory"

        def fits(*, with_cpus: bool, with_memory: bool) -> bool:
            free = self._session.free_at_minimum.copy()
            free.cpus = pools.cpus.copy() if with_cpus else free.cpus
            free.memory = pools.memory.copy() if with_memory else free.memory
            return find_placement(demand, DemandLevel.MINIMUM, free, FIRST_FIT) is not None

        if not fits(with_cpus=True, with_memory=True):  # first, since jobs mostly wait for GPUs
            return ""
        if gang.request.exclusive:
            return "all other resources of their nodes"
        if fits(with_cpus=True, with_memory=False):
            return cpus
        return memory if fits(with_cpus=False, with_memory=True) else f"{cpus} and {memory}"
