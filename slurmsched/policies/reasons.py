"""The reasons of a decision: why each job runs as it does, waits, or could never fit into the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, NodeAllocation, Reason, ReasonCode, Reservation, Resources, Snapshot, Target
from slurmsched.model.reasons import pluralise
from slurmsched.policies.cluster.demand import DemandCache, DemandLevel, ResourceDemand
from slurmsched.policies.cluster.eligibility import Eligibility, parse_constraint
from slurmsched.policies.cluster.gang import Gang, why_single_type
from slurmsched.policies.cluster.resources import FreeResources, Pools, managed_gpus
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.placement import FIRST_FIT, find_placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Sizing, memory_on_node


class EmptyCluster:
    """The cluster with nothing on it, all nodes in any state: tells what a job requests beyond it."""

    def __init__(
        self,
        pools: Pools,
        snapshot: Snapshot,
        knowledge: Knowledge,
        sizing: Sizing,
        gpu_types: Mapping[JobId, frozenset[str]] | None = None,
    ) -> None:
        self._free = FreeResources.of_empty_cluster(pools)
        names = {partition for node in snapshot.nodes for partition in node.partitions}
        nodes = {name: frozenset(n.name for n in snapshot.nodes if name in n.partitions) for name in names}
        self._eligibility = Eligibility(pools, snapshot, nodes)
        self._demands = DemandCache(pools, self._eligibility, knowledge, sizing, gpu_types=gpu_types)
        self._answers: dict[ResourceDemand, str] = {}

    def unmet_demand(self, job: Job) -> str:
        """Return what the job requests beyond the empty cluster, for people; empty where it fits."""
        job = replace(job, reservation="") if job.reservation else job
        demand = self._demands.of(job)
        if demand not in self._answers:
            fits = find_placement(demand, DemandLevel.MINIMUM, self._free, FIRST_FIT) is not None
            self._answers[demand] = "" if fits else self._too_much(job, demand)
        return self._answers[demand]

    def _too_much(self, job: Job, demand: ResourceDemand) -> str:
        request, partition = job.original_request, ",".join(job.partitions)
        try:
            parse_constraint(request.features)
        except PolicyError as error:
            return str(error)
        if demand.gang.shards and (missing := self._missing_shards(job, demand.gang.shards)):
            return missing
        if not demand.single_node:
            wanted = f"nodes with {request.gpu_type} GPUs" if request.gpu_type else "nodes with GPUs"
            wanted = wanted if request.gpus or request.shards else "nodes"
            matching = " that match its constraint and node lists" if _has_node_constraints(job) else ""
            return f"{wanted} in partition {partition}{matching}; there are none"
        pools = np.flatnonzero(np.logical_or.reduce([option.mask for option in demand.single_node]))
        gpus = np.sort(self._free.gpus[pools])[::-1]
        return _too_many_gpus(demand.gang, gpus) or self._too_many_cpus_or_memory(demand, pools)

    def _missing_shards(self, job: Job, each: int) -> str:
        anywhere = replace(job, original_request=replace(job.original_request, shards=0))
        masks = self._eligibility.pool_masks(anywhere)
        most = max((int(self._free.pools.shards[mask].max(initial=0)) for mask in masks if mask.any()), default=each)
        if not most:
            return "shards, but the GPUs it may use have none: see gres/shard in slurm.conf"
        if each > most:
            return f"{pluralise(each, 'shard')} of one GPU; the GPUs have {most}"
        if job.original_request.gpu_type or any(mask.any() for mask in self._eligibility.pool_masks(job)):
            return ""
        types = {self._free.pools.gpu_types[pool] for mask in masks for pool in np.flatnonzero(mask)}
        several = "shards of any GPU type on nodes that have several types: name one, as in --gres=shard:{}:{}"
        return several.format(min(types), each) if types else ""

    def _too_many_cpus_or_memory(self, demand: ResourceDemand, pools: Ints) -> str:
        parts = demand.gang.parts_per_node or -(-demand.gang.parts // demand.gang.max_nodes)
        of_pools, minimum = self._free.pools, [ranges.minimum for ranges in demand.ranges]
        nodes = of_pools.node_of[pools]
        cpus = min(minimum[int(of_pools.kind_of[pool])].cpus for pool in pools) * parts
        memory = min(memory_on_node(demand.gang, minimum[int(of_pools.kind_of[pool])], parts) for pool in pools)
        if cpus > (largest := int(of_pools.cpus[nodes].max())):
            return f"{pluralise(cpus, 'CPU')} on one node; the largest has {largest}"
        if memory > (largest := int(of_pools.memory[nodes].max())):
            return f"{memory} MiB of memory on one node; the largest has {largest}"
        if demand.gang.min_nodes > 1 and len({of_pools.gpu_types[pool] for pool in pools} - {""}) > 1:
            return f"GPUs of one type on {demand.gang.min_nodes} nodes, with its CPUs and memory"
        return "this combination of GPUs, CPUs and memory on its nodes"


def _too_many_gpus(gang: Gang, gpus: Ints) -> str:
    """Return what is too much by GPUs alone, empty if nothing is. `gpus` is by pool, the largest first."""
    asked, largest = gang.request.gpus, int(gpus[: gang.max_nodes].sum())
    parts = gang.parts_per_node or -(-gang.parts // gang.max_nodes)
    enough = int((gpus >= parts * gang.gpus_per_part).sum())
    if gang.max_nodes == 1 and largest < asked:
        return f"{pluralise(asked, 'GPU')} on one node; the largest has {largest}"
    if asked and gang.parts < gang.min_nodes:
        return f"a GPU on each of {gang.min_nodes} nodes, but only {pluralise(asked, 'GPU')} in all"
    if largest < asked:
        return f"{asked} GPUs on {pluralise(gang.max_nodes, 'node')}; the largest have {largest} together"
    if enough < gang.min_nodes and not asked:
        return f"{pluralise(gang.min_nodes, 'node')}; only {enough} {'is' if enough == 1 else 'are'} suitable"
    if enough < gang.min_nodes:
        nodes, each = pluralise(gang.min_nodes, "node"), pluralise(parts * gang.gpus_per_part, "GPU")
        return f"{nodes} with {each} each; {enough} {'has' if enough == 1 else 'have'} that many"
    return ""


def _has_node_constraints(job: Job) -> bool:
    return bool(job.original_request.features or job.original_request.pinned or job.original_request.excluded)


def explain(session: Session, order_name: str) -> tuple[dict[JobId, Target], dict[JobId, Reason]]:
    """Return the targets and the waiting jobs of a finished session, each with its reasons."""
    targets, waits, passed_over = dict[JobId, Target](), list[Job](), False
    for ranked in session.ranking:
        job = session.jobs[ranked.job]
        if job.id in session.running:
            why = session.reasons.get(job.id, Reason(ReasonCode.KEEPS_LEASE))
            targets[job.id] = _target(session, job, job.allocations, (why,))
        elif job.id in session.placements:
            allocations = session.placements[job.id].node_allocations(session.pools)
            first = session.reasons.get(job.id) or _starting_reason(session, job, order_name, passed_over)
            leading = _with_mix(first, allocations)
            where = (Reason(session.node_score.reason),) if session.node_score.reason else ()
            reasons = (*leading, *where, *_size_reason(session, job, allocations))
            targets[job.id] = _target(session, job, allocations, reasons)
        else:
            waits.append(job)
            passed_over = True
    placed = (ranked.job for ranked in reversed(session.ranking) if ranked.job in targets)
    last = next((job for job in placed if session.jobs[job].original_request.gpus), None)
    situation = session.situation
    empty = EmptyCluster(
        session.pools, situation.snapshot, situation.knowledge, session.sizing, session.entitlement.gpu_types
    )
    idle = _idle_managed_gpus(session) if session.entitlement.mixes_types else 0
    due = session.entitlement.why_wait(session.allocations()) if session.entitlement.why_wait else {}
    waiting = {}
    for job in waits:
        why = session.reasons.get(job.id) or due.get(job.id) or _waiting_reason(session, job, order_name, last, empty)
        waiting[job.id] = _single_type_reason(why, job, idle) if session.entitlement.mixes_types else why
    return targets, waiting


def _target(session: Session, job: Job, allocations: tuple[NodeAllocation, ...], reasons: tuple[Reason, ...]) -> Target:
    situation = session.situation
    speed = session.shared_speed.get(job.id)
    if speed is None:
        speed = situation.knowledge.relative_speed(job, allocations, situation.snapshot.nodes_by_name)
    if job.id in session.remarks:
        reasons = (*reasons, session.remarks[job.id])
    return Target(job.id, allocations, reasons, speed, session.beside.get(job.id, ()), session.steps.get(job.id))


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


def _single_type_reason(why: Reason, job: Job, idle: int) -> Reason:
    """Replace the reason of a job that could run on the idle GPUs if it could use several types."""
    request, obstacle = job.original_request, why_single_type(job.original_request)
    waits_for_gpus = why.code in (ReasonCode.NO_ROOM, ReasonCode.BEHIND) and 1 < request.gpus <= idle
    return Reason(ReasonCode.ONE_TYPE, {"gpus": request.gpus, "why": obstacle}) if waits_for_gpus and obstacle else why


def _idle_managed_gpus(session: Session) -> int:
    """Return the GPUs on open nodes that the round gives to no job."""
    given = sum(sum(allocation.gpus) for allocation in session.allocations().values())
    return (
        sum(managed_gpus(session.situation.snapshot, session.situation.jobs, session.situation.open_nodes).values())
        - given
    )


def _size_reason(session: Session, job: Job, allocations: tuple[NodeAllocation, ...]) -> tuple[Reason, ...]:
    """Return how the job's CPUs compare with its GPU-proportional share; nothing for a job without whole GPUs."""
    if not session.demands.of(job).gang.gpus_per_part:
        return ()
    nodes, profile = session.situation.snapshot.nodes_by_name, session.situation.knowledge.profile(job)
    has = sum((on_node.resources for on_node in allocations), Resources()).cpus
    shares = (nodes[on_node.node].proportional_share(on_node.resources.gpus) for on_node in allocations)
    share = sum(shares, Resources()).cpus
    gain = session.situation.knowledge.relative_speed(job, allocations, nodes) - 1
    tuned = profile is not None and session.sizing.by_sensitivity
    if profile is not None and tuned and ((has < share and gain >= 0) or (has > share and gain > 0)):
        code = ReasonCode.TUNED_DOWN if has < share else ReasonCode.TUNED_UP
        return (Reason(code, {"cpus": has, "share": share, "model": profile.name, "gain": f"{gain:.0%}"}),)
    # a request is rounded up for each part of a gang
    asked = has != share and 0 <= has - job.original_request.cpus < job.original_request.gpus
    return (Reason(ReasonCode.AS_REQUESTED if asked else ReasonCode.PROPORTIONAL, {"cpus": has}),)


def reserved_reason(demand: ResourceDemand, snapshot: Snapshot) -> Reason | None:
    """Return that reservations are in the way if a job that fits the empty cluster may start on no node now."""
    if demand.single_node:
        return None
    names = sorted(r.name for r in Reservation.active(snapshot.reservations, snapshot.time))
    return Reason(ReasonCode.RESERVED, {"reservation": ", ".join(names)}) if names else None


def _waiting_reason(session: Session, job: Job, order_name: str, last: JobId | None, empty: EmptyCluster) -> Reason:
    if what := empty.unmet_demand(job):
        return Reason(ReasonCode.NEVER_FITS, {"what": what})
    demand = session.demands.of(job)
    if why := reserved_reason(demand, session.situation.snapshot):
        return why
    if demand.gang.shards:
        return Reason(ReasonCode.NO_SHARDS, {"shards": demand.gang.shards})
    if not job.original_request.gpus:
        return Reason(ReasonCode.NO_CPUS, {"cpus": job.original_request.cpus})
    idle = max(
        (int(session.free_at_minimum.gpus[option.mask].clip(min=0).sum()) for option in demand.single_node), default=0
    )
    if idle >= job.original_request.gpus or last is None or not session.rank_of[job.id]:
        return Reason(ReasonCode.NO_ROOM, {"gpus": job.original_request.gpus})
    return Reason(ReasonCode.BEHIND, {"count": session.rank_of[job.id], "order": order_name, "last": last})
