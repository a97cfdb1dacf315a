"""The room on the nodes, part by part: what is free now, and what each displaced job will leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.model import MILLI, JobId, Node, Share, Snapshot

__all__ = ["Room"]

Amounts = Counter[str]
"""CPUs, MiB and GPUs by type, under the names below."""

_CPUS: Final = "cpus"
_MEMORY: Final = "memory"
_GPUS: Final = "gpus:"
_SHARDS: Final = "shards:"
"""With a device's index: how many are left of a GPU that is cut into shards."""


@dataclass(slots=True)
class _Part:
    """Room on one node; `owners` are the jobs that all have to leave first, none for what is free now."""

    owners: tuple[JobId, ...]
    left: Amounts


class Room:
    """Every claim is drawn from parts that nobody else draws from, so any claim whose owners have left can be met."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = snapshot.node
        self._leaving: dict[tuple[str, int], list[tuple[JobId, int]]] = {}
        self._parts = {node.name: [_Part((), _free(node))] for node in snapshot.nodes}

    def vacate(self, job: JobId, shares: Iterable[Share]) -> None:
        """The job may leave: what it has can be claimed by those who wait for it to be gone."""
        for share in shares:
            if share.node in self._parts:
                self._parts[share.node].append(_Part((job,), _amounts(share, self._nodes[share.node])))
                self._uncut(job, share)

    def _uncut(self, job: JobId, share: Share) -> None:
        """A GPU in shards is whole again once everybody who shares it has left."""
        node = self._nodes[share.node]
        for gpu in (gpu for gpu in node.gpus if share.shards and gpu.index in share.indices):
            leaving = self._leaving.setdefault((node.name, gpu.index), [])
            leaving.append((job, share.shards))
            if MILLI * sum(shards for _, shards in leaving) // gpu.shards >= gpu.used:
                owners = tuple(own for own, _ in leaving)
                self._parts[node.name].append(_Part(owners, Counter({_GPUS + gpu.type: 1})))

    def claim(
        self, shares: Sequence[Share], reluctance: Callable[[JobId], int | None]
    ) -> tuple[tuple[JobId, ...], Callable[[], None]] | None:
        """Take these shares, first from what is free now, then from those of least `reluctance` (None: never).

        Gives the jobs that have to leave first, in the order found, and the way to take the claim back. None, and
        nothing taken, where it does not fit.
        """
        drawn: list[tuple[_Part, str, int]] = []

        def take_back() -> None:
            for part, kind, amount in drawn:
                part.left[kind] += amount

        for share in shares:
            if not self._draw(share, reluctance, drawn):
                take_back()
                return None
        owners = dict.fromkeys(owner for part, _, _ in drawn for owner in part.owners)
        return tuple(owners), take_back

    def _draw(
        self, share: Share, reluctance: Callable[[JobId], int | None], drawn: list[tuple[_Part, str, int]]
    ) -> bool:
        if share.node not in self._parts:
            return False
        ranked = [
            (_most_reluctant(part.owners, reluctance), place, part)
            for place, part in enumerate(self._parts[share.node])
        ]
        parts = [part for rank, _, part in sorted((r, p, q) for r, p, q in ranked if r is not None)]
        if share.shards and not self._cut(share, drawn):
            return False
        for kinds, wanted in _needs(share, self._nodes[share.node]):
            needed = wanted
            for part in parts:
                for kind in kinds:
                    amount = min(needed, part.left[kind])
                    if amount > 0:
                        part.left[kind] -= amount
                        drawn.append((part, kind, amount))
                        needed -= amount
            if needed:
                return False
        return True

    def _cut(self, share: Share, drawn: list[tuple[_Part, str, int]]) -> bool:
        """Draw the shards from the device they are expected on, which is free in part, or whole and then cut."""
        free, node = self._parts[share.node][0], self._nodes[share.node]
        for index in share.indices:
            kind, device = f"{_SHARDS}{index}", next((gpu for gpu in node.gpus if gpu.index == index), None)
            if device is None:
                return False
            if kind not in free.left and free.left[_GPUS + device.type] > 0:
                drawn += [(free, _GPUS + device.type, 1), (free, kind, -device.shards)]
                free.left[_GPUS + device.type] -= 1
                free.left[kind] += device.shards
            if free.left[kind] < share.shards:
                return False
            free.left[kind] -= share.shards
            drawn.append((free, kind, share.shards))
        return True


def _most_reluctant(owners: Iterable[JobId], reluctance: Callable[[JobId], int | None]) -> int | None:
    """-1 for what is free; None where one of them may never leave."""
    said = [reluctance(owner) for owner in owners]
    return None if None in said else max((own for own in said if own is not None), default=-1)


def _free(node: Node) -> Amounts:
    free = Counter({_CPUS: max(node.free.cpus, 0), _MEMORY: max(node.free.memory, 0)})
    free.update(_GPUS + gpu.type for gpu in node.gpus if gpu.idle)
    free.update({f"{_SHARDS}{g.index}": (MILLI - g.used) * g.shards // MILLI for g in node.gpus if g.shards and g.used})
    return free


def _amounts(share: Share, node: Node) -> Amounts:
    """What a running job's share gives back; GPUs of unknown type are found by their indices."""
    amounts = Counter({_CPUS: share.resources.cpus, _MEMORY: share.resources.memory})
    types = {gpu.index: gpu.type for gpu in node.gpus}
    if share.shards:
        amounts.update({f"{_SHARDS}{index}": share.shards for index in share.indices})
        return amounts
    if share.gpu_type or len(share.indices) != share.resources.gpus:
        amounts[_GPUS + (share.gpu_type or _only_type(node))] += share.resources.gpus
    else:
        amounts.update(_GPUS + types.get(index, "") for index in share.indices)
    return amounts


def _needs(share: Share, node: Node) -> tuple[tuple[tuple[str, ...], int], ...]:
    """The amounts of a share to be taken, scarcest first; GPUs of no stated type may be of any."""
    types = (share.gpu_type,) if share.gpu_type else tuple(sorted(node.gpu_types))
    return (
        (tuple(_GPUS + gpu_type for gpu_type in types), share.resources.gpus),
        ((_CPUS,), share.resources.cpus),
        ((_MEMORY,), share.resources.memory),
    )


def _only_type(node: Node) -> str:
    return next(iter(node.gpu_types)) if len(node.gpu_types) == 1 else ""
