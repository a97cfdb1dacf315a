"""What a job has on each of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurmsched.backends.slurm.gres import gpus_in, parse
from slurmsched.backends.slurm.hostlist import MOST, expand, numbers
from slurmsched.backends.slurm.records import Placement
from slurmsched.backends.slurm.values import mebibytes
from slurmsched.model import Resources, Share

__all__ = ["shares_of"]


def shares_of(placements: Sequence[Placement], fields: Mapping[str, str], most_nodes: int = MOST) -> tuple[Share, ...]:
    """One share per node, in Slurm's order. Raises NotUnderstoodError, also for more than `most_nodes` nodes.

    A completing job no longer says which GPUs it has, though it still has them: then its total, if it divides evenly.
    """
    shares: list[Share] = []
    for placement in placements:
        shares += _on_each(placement, most_nodes - len(shares))
    had = gpus_in(fields.get("JOB_GRES"))
    total = sum(entry.count for entry in had)
    if not had or any(share.resources.gpus for share in shares) or total % max(len(shares), 1):
        return tuple(shares)
    each, kind = total // len(shares), had[0].type if len(had) == 1 else ""
    return tuple(
        Share(share.node, Resources(each, share.resources.cpus, share.resources.memory), kind) for share in shares
    )


def _on_each(placement: Placement, most_nodes: int) -> list[Share]:
    entries = parse(placement.gres)
    gpus = [entry for entry in entries if entry.name == "gpu" and entry.count]
    resources = Resources(
        gpus=sum(entry.count for entry in gpus),
        cpus=len(numbers(placement.cpus)),
        memory=mebibytes(placement.memory),
    )
    types = {entry.type for entry in gpus}
    cut = [entry for entry in entries if entry.name == "shard" and entry.count]
    devices = {index for entry in (*gpus, *cut) for index in entry.indices}
    devices |= {index for entry in cut for index, (taken, _) in enumerate(entry.parts) if taken}
    indices, shards = tuple(sorted(devices)), sum(entry.count for entry in cut)
    kind = types.pop() if len(types) == 1 else ""
    return [Share(node, resources, kind, indices, shards) for node in expand(placement.nodes, most_nodes)]
