"""The cluster with nothing on it: what a job requests beyond it, and what only Slurm could place there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from slurmsched.arrays import Ints
from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, Snapshot
from slurmsched.model.reasons import pluralise
from slurmsched.policies.cluster.demand import DemandCache, DemandClass, DemandClasses, DemandLevel, ResourceDemand
from slurmsched.policies.cluster.eligibility import Eligibility, parse_constraint
from slurmsched.policies.cluster.gang import Gang, leaves_node_count
from slurmsched.policies.cluster.resources import FreeResources, Pools
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.placement import FIRST_FIT, find_placement
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
        self._choices: dict[DemandClass, str] = {}
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
        alike = self._demands.classes.of(job)
        if alike not in self._choices:
            self._choices[alike] = self._choice_of_slurm(job)
        return self._choices[alike]

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
        cpus, memory = least_on_node(of_pools, demand, parts, {int(kind) for kind in of_pools.kind_of[pools]})
        if cpus > (largest := int(of_pools.cpus[nodes].max())):
            return f"{pluralise(cpus, 'CPU')} on one node; the largest has {largest}"
        if memory > (largest := int(of_pools.memory[nodes].max())):
            return f"{memory} MiB of memory on one node; the largest has {largest}"
        return "this combination of GPUs, CPUs and memory on its nodes"


def least_on_node(pools: Pools, demand: ResourceDemand, parts: int, kinds: Iterable[int]) -> tuple[int, int]:
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
