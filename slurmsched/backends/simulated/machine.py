"""A virtual node: what of it is free, device by device."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from slurmsched.model import MILLI, Gpu, Node, NodeState, Resources, Share

__all__ = ["Machine"]


class Machine:
    """A node's ledger. `facts` is the node as configured; claims and refunds keep what is free.

    Raises ValueError for a claim of what is taken and for a refund of what is free: a device is never booked twice.
    """

    def __init__(self, facts: Node) -> None:
        if [gpu.index for gpu in facts.gpus] != list(range(len(facts.gpus))):
            raise ValueError(f"number the GPUs of {facts.name} from 0 in order")
        self.facts = facts
        self.cpus = facts.total.cpus
        self.memory = facts.total.memory
        self.idle = [gpu.index for gpu in facts.gpus]
        """Devices nobody uses, ascending."""
        self.sharded: dict[int, int] = {}
        """Shards taken on each device that is cut into shards now."""
        self.claims = 0
        self._view: Node | None = None

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def usable(self) -> bool:
        """Whether something may start here."""
        return self.facts.state is NodeState.UP

    def twin(self) -> Machine:
        """A ledger of the same state that can be claimed from without touching this one."""
        twin = copy(self)
        twin.idle, twin.sharded = list(self.idle), dict(self.sharded)
        return twin

    def idle_by_type(self, gpu_type: str | None) -> dict[str, list[int]]:
        """Idle devices by type, of one type where it is named."""
        found: dict[str, list[int]] = {}
        for index in self.idle:
            kind = self.facts.gpus[index].type
            if gpu_type in (None, kind):
                found.setdefault(kind, []).append(index)
        return found

    def change(self, **facts: object) -> None:
        """Another state, reason or weight."""
        self.facts = replace(self.facts, **facts)  # type: ignore[arg-type]  # replace() cannot type its keywords
        self._view = None

    def claim(self, share: Share) -> None:
        """Take the share."""
        if not self.holds(share):
            raise ValueError(f"{share} is not free on {self.name}")
        self.cpus -= share.resources.cpus
        self.memory -= share.resources.memory
        self.claims += 1
        if share.shards:
            (device,) = share.indices
            self.sharded[device] = self.sharded.get(device, 0) + share.shards
        self.idle = [index for index in self.idle if index not in share.indices]
        self._view = None

    def refund(self, share: Share) -> None:
        """Give the share back."""
        returned = share.indices
        if share.shards:
            (device,) = share.indices
            self.sharded[device] -= share.shards
            returned = () if self.sharded[device] else share.indices
            if returned:
                del self.sharded[device]
        if set(returned) & set(self.idle):
            raise ValueError(f"{share} is not taken on {self.name}")
        self.cpus += share.resources.cpus
        self.memory += share.resources.memory
        self.claims -= 1
        self.idle = sorted((*self.idle, *returned))
        self._view = None

    def holds(self, share: Share) -> bool:
        """Whether exactly this share is free."""
        if share.resources.cpus > self.cpus or share.resources.memory > self.memory:
            return False
        if share.shards:
            (device,) = share.indices
            return (device in self.idle or device in self.sharded) and (
                self.sharded.get(device, 0) + share.shards <= self.facts.gpus[device].shards
            )
        return all(index in self.idle for index in share.indices)

    def cpus_taken(self, amount: int) -> None:
        """CPUs alone change hands: a suspended job leaves them (negative), a resumed one has them again."""
        self.cpus -= amount
        self._view = None

    def view(self) -> Node:
        """The node as a poll sees it."""
        if self._view is None:
            total = self.facts.total
            gpus = tuple(replace(gpu, used=self._used(gpu)) for gpu in self.facts.gpus)
            taken = sum(1 for gpu in gpus if not gpu.idle)
            self._view = replace(
                self.facts,
                gpus=gpus,
                used=Resources(taken, total.cpus - self.cpus, total.memory - self.memory),
                state_text=self._state_text(taken),
            )
        return self._view

    def _used(self, gpu: Gpu) -> int:
        if gpu.index in self.sharded:
            return MILLI * self.sharded[gpu.index] // gpu.shards
        return 0 if gpu.index in self.idle else MILLI

    def _state_text(self, gpus_taken: int) -> str:
        busy = "IDLE" if not self.claims else "ALLOCATED" if gpus_taken == len(self.facts.gpus) else "MIXED"
        match self.facts.state:
            case NodeState.DOWN:
                return "DOWN"
            case NodeState.DRAINED:
                return f"{busy}+DRAIN"
            case NodeState.UP:
                return busy
