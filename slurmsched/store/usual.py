"""Which stored requests may count as usual: those that the cluster could meet at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurmsched.model import Node, Request

__all__ = ["possible"]


def possible(usual: Iterable[tuple[Request, int]], nodes: Collection[Node]) -> tuple[tuple[Request, int], ...]:
    """The requests, each with how often it was made, that are no larger than the cluster in any amount.

    What is stored may be older than the cluster, or of a reader that believed too much: no round is decided by it.
    """
    gpus = sum(len(node.gpus) for node in nodes)
    per_node = max((len(node.gpus) for node in nodes), default=0)
    shards = sum(gpu.shards for node in nodes for gpu in node.gpus)
    cpus = sum(node.total.cpus for node in nodes)
    memory = max((node.total.memory for node in nodes), default=0)

    def fits(asked: Request) -> bool:
        return (
            0 <= asked.gpus <= gpus
            and 0 <= (asked.gpus_per_node or 0) <= per_node
            and 1 <= asked.nodes <= len(nodes)
            and 0 <= asked.cpus <= cpus
            and 0 <= asked.memory <= memory
            and 0 <= asked.shards <= shards
        )

    return tuple((asked, times) for asked, times in usual if fits(asked))
