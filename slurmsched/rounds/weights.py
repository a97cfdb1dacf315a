"""Node weights, so that whatever Slurm places itself leans the same way as our rounds."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from slurmsched.model import Code, Node, NodeState, Operation, Reason, Snapshot, Verb

__all__ = ["Lean", "lean", "weights"]


class Lean(IntEnum):
    """The few weights there are; Slurm fills the lightest nodes first. Few, so that they change rarely."""

    NO_GPU = 10
    """CPU-only jobs belong where no GPU can be stranded."""
    ALL_GPUS_BUSY = 20
    MOSTLY_BUSY = 30
    PARTLY_BUSY = 40
    IDLE = 50
    """Whole nodes are kept for gangs."""


def weights(snapshot: Snapshot) -> Iterator[Operation]:
    """A new weight for every node that is up and has another one."""
    for node in snapshot.nodes:
        wanted = lean(node)
        if node.state is NodeState.UP and node.weight != wanted:
            yield Operation(Verb.WEIGH, node.name, Reason(Code.LEAN), node.weight, int(wanted))


def lean(node: Node) -> Lean:
    """Its place in the order: no GPUs, then the fullest first."""
    total, idle = len(node.gpus), sum(gpu.idle for gpu in node.gpus)
    if not total:
        return Lean.NO_GPU
    if not idle:
        return Lean.ALL_GPUS_BUSY
    if idle == total:
        return Lean.IDLE
    return Lean.MOSTLY_BUSY if 2 * idle <= total else Lean.PARTLY_BUSY
