"""The reasons of a decision: why each job runs as it does, waits, or could never fit into the cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Job,
    JobId,
    NodeAllocation,
    Reason,
    ReasonCode,
    Request,
    Resources,
    Snapshot,
    Target,
)
from slurmsched.model.reasons import format_percent, pluralise, shorter_limit, time_of_day
from slurmsched.policies.closed import ClosedNodes
from slurmsched.policies.cluster.demand import DemandCache, DemandClasses, DemandLevel, ResourceDemand
from slurmsched.policies.cluster.eligibility import Eligibility, closed_nodes, parse_constraint
from slurmsched.policies.cluster.gang import Gang, leaves_node_count, why_single_type
from slurmsched.policies.cluster.resources import FreeResources, Pools, managed_gpus
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.placement import FIRST_FIT, find_placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Sizing, resources_on_node


class EmptyCluster:
    """The cluster with nothing on it, all nodes in any state: tells what a job requests beyond it."""

    def __init__(
        self,
        pools: Pools,
        snapshot: Snapshot,
        knowledge: Knowledge,
        sizing: Sizing,
        *,
        gpu_types: Mapping[JobId, frozenset[str]] | None = None,
        classes: DemandClasses | None = None,
    ) -> None:
        """`classes` are those of the same knowledge, if others have them too."""
        self._free = FreeResources.of_empty_cluster(pools)
        names = {partition for node in snapshot.nodes for partition in node.partitions}
        nodes = {name: frozenset(n.name for n in snapshot.nodes if name in n.partitions) for name in names}
        self._eligibility = Eligibility(pools, snapshot, nodes, ever=True)
        self._demands = DemandCache(pools, self._eligibility, knowledge, sizing, gpu_types=gpu_types, classes=classes)
        self._answers: dict[ResourceDemand, str] = {}
        self._choices: dict[tuple[Request, tuple[str, ...]], str] = {}
        self._mixes = not bool(pools.on_single_type_node.all())

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
        return f"{pluralise(each, 'shard')} of one GPU; the GPUs have {most}" if each > most else ""

    def slurm_chooses(self, job: Job) -> str:
        """Return why only Slurm can place a waiting job: it divides GPUs unevenly over nodes; and to a job that names
        no GPU type it may give several types of a node, and chooses the GPU of shards there. Empty where there are no
        such nodes, and where whole GPUs of one type would do once they are free."""
        request = job.original_request
        divides = request.gpus > 1 and leaves_node_count(request) and request.max_nodes is None
        if not divides and (not self._mixes or request.gpu_type or not (request.shards or request.gpus)):
            return ""
        key = request, job.partitions
        if key not in self._choices:
            self._choices[key] = self._choice_of_slurm(job)
        return self._choices[key]

    def _choice_of_slurm(self, job: Job) -> str:
        request, pools = job.original_request, self._free.pools
        if not request.shards and not self.unmet_demand(job):
            return ""
        nodes = max(request.nodes, 1)
        shards, gpus = -(-request.shards // nodes), request.gpus_per_node or -(-request.gpus // nodes)
        anywhere = replace(job, original_request=replace(request, shards=0))
        types = defaultdict[str, Counter[str]](Counter)
        for pool in np.flatnonzero(np.logical_or.reduce(self._eligibility.pool_masks(anywhere) or [[False]])):
            node = pools.node(int(pool))
            if not request.pinned or node.name in request.pinned:
                types[node.name] = Counter(gpu.type for gpu in node.gpus if gpu.shards >= shards)
        mixed = [of_node for of_node in types.values() if len(of_node) > 1 and of_node.total() >= gpus]
        if not mixed or request.gpu_type:
            there = sum(of_node.total() for of_node in types.values())
            uneven = leaves_node_count(request) and request.max_nodes is None and there >= request.gpus > 1
            if uneven and any(of_node.total() >= request.gpus for of_node in types.values()):
                return "no node has the CPUs and memory for all its GPUs, and only Slurm knows if it may divide them"
            return "its nodes would have different numbers of its GPUs, and Slurm divides them" if uneven else ""
        if request.shards:
            choice = "it asks for shards of any GPU type, and Slurm chooses one on nodes with several"
            return f"{choice}: name one, as in --gres=shard:{min(min(mixed, key=min))}:{shards}"
        return "only nodes with GPUs of several types have so many of any type, and Slurm chooses among them"

    def _too_many_cpus_or_memory(self, demand: ResourceDemand, pools: Ints) -> str:
        parts = demand.gang.parts_per_node or -(-demand.gang.parts // demand.gang.max_nodes)
        of_pools = self._free.pools
        nodes = of_pools.node_of[pools]
        cpus, memory = _least_on_node(of_pools, demand, parts, {int(kind) for kind in of_pools.kind_of[pools]})
        if cpus > (largest := int(of_pools.cpus[nodes].max())):
            return f"{pluralise(cpus, 'CPU')} on one node; the largest has {largest}"
        if memory > (largest := int(of_pools.memory[nodes].max())):
            return f"{memory} MiB of memory on one node; the largest has {largest}"
        return "this combination of GPUs, CPUs and memory on its nodes"


def _least_on_node(pools: Pools, demand: ResourceDemand, parts: int, kinds: Iterable[int]) -> tuple[int, int]:
    """Return the fewest CPUs and the least MiB that so many parts take on a node of one of these kinds."""
    on_node = [
        resources_on_node(
            demand.gang,
            demand.ranges[kind].minimum.cpus,
            demand.ranges[kind].minimum.memory,
            parts,
            memory_parts=parts,
            units=pools.kinds[kind].cpu_units(demand.gang.request.threads_per_core),
        )
        for kind in kinds
    ]
    return min((cpus for cpus, _ in on_node), default=0), min((memory for _, memory in on_node), default=0)


def _too_many_gpus(gang: Gang, gpus: Ints) -> str:
    """Return what is too much by GPUs alone, empty if nothing is. `gpus` is by pool, the largest first."""
    asked, largest = gang.request.gpus, int(gpus[: gang.max_nodes].sum())
    parts = gang.parts_per_node or -(-gang.parts // gang.max_nodes)
    enough = int((gpus >= parts * gang.gpus_per_part).sum())
    if gang.max_nodes == 1 and largest < asked:
        any_number = leaves_node_count(gang.request) and gang.request.max_nodes is None
        whole = f"; the nodes that it may use have {int(gpus.sum())} in all"
        return pluralise(asked, "GPU") + (whole if any_number else f" on one node; the largest has {largest}")
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
            no_choice = session.demands.of(job).needs_mix and not session.entitlement.mixes_types
            leading = (first,) if no_choice else _with_mix(first, allocations)
            where = (Reason(session.node_score.reason),) if session.node_score.reason else ()
            reasons = (*leading, *where, *_size_reason(session, job, allocations))
            targets[job.id] = _target(session, job, allocations, reasons)
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


def _target(session: Session, job: Job, allocations: tuple[NodeAllocation, ...], reasons: tuple[Reason, ...]) -> Target:
    situation = session.situation
    speed = session.shared_speed.get(job.id)
    if speed is None:
        speed = situation.knowledge.relative_speed(job, allocations, situation.snapshot.nodes_by_name)
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
    return sum(managed_gpus(situation.snapshot, situation.jobs, situation.open_nodes).values()) - given


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
        demand = self._session.demands.of(job)
        if not self._alike:
            return self._empty.unmet_demand(job)
        if demand not in self._known:
            self._known[demand] = self._empty.unmet_demand(job)
        return self._known[demand]


def _waiting_reason(session: Session, job: Job, order_name: str, shortage: _Shortage, never: _NeverFits) -> Reason:
    if what := never.unmet_demand(job):
        return Reason(ReasonCode.NEVER_FITS, {"what": what})
    demand = session.demands.of(job)
    if out := shortage.closed_nodes.reason(job, demand):
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
        least = _least_on_node(pools, demand, gang.max_parts_per_node, with_gpus)
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
