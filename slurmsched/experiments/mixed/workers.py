"""The GPUs of a cluster of several types, each a worker by number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Workers"]


@dataclass(frozen=True)
class Workers:
    """GPU type and server of each worker, whose number is its place. Workers of one server lie side by side."""

    types: tuple[str, ...]
    servers: tuple[int, ...]

    @classmethod
    def of(cls, gpus: Mapping[str, int], per_server: int = 4) -> Workers:
        """So many GPUs of each type, on servers of one type each; a type's last server may have fewer."""
        shape = [min(per_server, count - first) for count in gpus.values() for first in range(0, count, per_server)]
        kinds = [kind for kind, count in gpus.items() for _ in range(count)]
        return cls(tuple(kinds), tuple(server for server, size in enumerate(shape) for _ in range(size)))

    def __len__(self) -> int:
        return len(self.types)

    @cached_property
    def gpus(self) -> dict[str, int]:
        """How many of each type, in the cluster's own order of types."""
        return {kind: len(workers) for kind, workers in self.of_type.items()}

    @cached_property
    def of_type(self) -> dict[str, tuple[int, ...]]:
        """Each type's workers, server after server."""
        kinds = dict.fromkeys(self.types)
        return {kind: tuple(at for at, other in enumerate(self.types) if other == kind) for kind in kinds}

    def kinds(self, workers: Iterable[int]) -> frozenset[str]:
        """The types among these."""
        return frozenset(self.types[worker] for worker in workers)
