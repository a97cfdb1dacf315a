"""Whether a job would fit into the whole cluster with nothing else on it, and what is too much if not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, Snapshot
from slurmsched.model.wording import counted
from slurmsched.policies.allocating import Allocating
from slurmsched.policies.allocating.portion import memory_on_node
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gang import Gang
from slurmsched.policies.ledger import Ledger
from slurmsched.policies.placing import FIRST_FIT, Grounds, Level, Wish, Wishes, place
from slurmsched.policies.placing.features import constraint
from slurmsched.policies.pools import Ints, Pools

__all__ = ["EmptyCluster"]


class EmptyCluster:
    """All nodes of each partition, whatever their state, with nothing on them."""

    def __init__(
        self,
        pools: Pools,
        snapshot: Snapshot,
        knowledge: Knowledge,
        allocating: Allocating,
        mixed: Mapping[JobId, frozenset[str]] | None = None,
    ) -> None:
        self._ledger = Ledger.empty(pools)
        names = {partition for node in snapshot.nodes for partition in node.partitions}
        nodes = {name: frozenset(n.name for n in snapshot.nodes if name in n.partitions) for name in names}
        self._wishes = Wishes(pools, Grounds(pools, snapshot, nodes), knowledge, allocating, mixed=mixed)
        self._known: dict[Wish, str] = {}

    def lacks(self, job: Job) -> str:
        """What the job asks for beyond what there is, for people; empty where it would fit."""
        job = replace(job, reservation="") if job.reservation else job
        wish = self._wishes.of(job)
        if wish not in self._known:
            fits = place(wish, Level.LEAST, self._ledger, FIRST_FIT) is not None
            self._known[wish] = "" if fits else self._too_much(job, wish)
        return self._known[wish]

    def _too_much(self, job: Job, wish: Wish) -> str:
        request, partition = job.request, ",".join(job.partitions)
        try:
            constraint(request.features)
        except PolicyError as error:
            return str(error)
        if not wish.options:
            wanted = f"nodes with {request.gpu_type or 'any'} GPUs"
            beside = " as its constraint and node lists want them" if _particular(job) else ""
            return f"{wanted} in partition {partition}{beside}; there are none"
        pools = np.flatnonzero(np.logical_or.reduce([option.mask for option in wish.options]))
        gpus = np.sort(self._ledger.gpus[pools])[::-1]
        return _gpus_lacking(wish.gang, gpus) or self._besides_gpus(wish, pools)

    def _besides_gpus(self, wish: Wish, pools: Ints) -> str:
        parts = wish.gang.each or -(-wish.gang.parts // wish.gang.most)
        of_pools, least = self._ledger.pools, [terms.least for terms in wish.terms]
        nodes = of_pools.node_of[pools]
        cpus = min(least[int(of_pools.kind_of[pool])].cpus for pool in pools) * parts
        memory = min(memory_on_node(wish.gang, least[int(of_pools.kind_of[pool])], parts) for pool in pools)
        if cpus > (largest := int(of_pools.cpus[nodes].max())):
            return f"{cpus} CPUs on a node; the largest has {largest}"
        if memory > (largest := int(of_pools.memory[nodes].max())):
            return f"{memory} MiB of memory on a node; the largest has {largest}"
        return "this many GPUs, CPUs and this much memory together on its nodes"


def _gpus_lacking(gang: Gang, gpus: Ints) -> str:
    """What is too much by GPUs alone, given those of each pool, the largest first."""
    asked, largest = gang.request.gpus, int(gpus[: gang.most].sum())
    parts = gang.each or -(-gang.parts // gang.most)
    enough = int((gpus >= parts * gang.gpus).sum())
    if gang.most == 1 and largest < asked:
        return f"{counted(asked, 'GPU')} on one node; the largest has {largest}"
    if gang.parts < gang.fewest:
        return f"a GPU on each of {gang.fewest} nodes, and {counted(asked, 'GPU')} in all"
    if largest < asked:
        return f"{asked} GPUs on {counted(gang.most, 'node')}; the largest have {largest}"
    if enough < gang.fewest:
        return f"{gang.fewest} nodes with {counted(parts * gang.gpus, 'GPU')} each; {enough} have that many"
    return ""


def _particular(job: Job) -> bool:
    return bool(job.request.features or job.request.pinned or job.request.excluded)
