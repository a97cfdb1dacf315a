"""Virtual nodes: the free resources of each, GPU by GPU, and where a request fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurmsched.model import MILLI_PER_GPU, Gpu, Node, NodeAllocation, NodeState, Request, Resources
from slurmsched.policies.cluster.eligibility import parse_constraint
from slurmsched.policies.cluster.gang import leaves_node_count
from slurmsched.policies.errors import PolicyError


class SimulatedNode:
    """A node and its free resources. `configured` is the node without allocations.

    `allocate` raises ValueError for resources that are not free, `release` for GPUs that are not allocated.
    """

    def __init__(self, configured: Node) -> None:
        if [gpu.index for gpu in configured.gpus] != list(range(len(configured.gpus))):
            raise ValueError(f"number the GPUs of {configured.name} from 0 in order")
        self.configured = configured
        self.free_cpus = configured.total.cpus
        self.free_memory = configured.total.memory
        self.idle_gpus = [gpu.index for gpu in configured.gpus]
        """Indices of the GPUs that no job uses, ascending."""
        self.used_shards: dict[int, int] = {}
        """Allocated shards of each GPU that is shared now."""
        self.allocation_count = 0
        self._view: Node | None = None

    @property
    def name(self) -> str:
        return self.configured.name

    @property
    def is_usable(self) -> bool:
        """Whether jobs may start on the node."""
        return self.configured.state is NodeState.UP

    def clone(self) -> SimulatedNode:
        """A copy whose allocations do not change this node."""
        twin = SimulatedNode.__new__(SimulatedNode)
        twin.configured, twin._view = self.configured, self._view  # noqa: SLF001  # its own class
        twin.free_cpus, twin.free_memory = self.free_cpus, self.free_memory
        twin.idle_gpus, twin.used_shards = list(self.idle_gpus), dict(self.used_shards)
        twin.allocation_count = self.allocation_count
        return twin

    def idle_gpus_by_type(self, gpu_type: str | None) -> dict[str, list[int]]:
        """Indices of the idle GPUs by type; only those of `gpu_type` if it is given."""
        by_type: dict[str, list[int]] = {}
        for index in self.idle_gpus:
            kind = self.configured.gpus[index].type
            if gpu_type in (None, kind):
                by_type.setdefault(kind, []).append(index)
        return by_type

    def update(self, **changes: object) -> None:
        """Changes the state, reason or weight."""
        self.configured = replace(self.configured, **changes)  # type: ignore[arg-type]  # replace() cannot type its keywords
        self._view = None

    def allocate(self, allocation: NodeAllocation) -> None:
        """Allocates resources. Raises ValueError unless they are free."""
        if not self.can_allocate(allocation):
            raise ValueError(f"{allocation} is not free on {self.name}")
        self.free_cpus -= allocation.resources.cpus
        self.free_memory -= allocation.resources.memory
        self.allocation_count += 1
        if allocation.shards:
            (device,) = allocation.indices
            self.used_shards[device] = self.used_shards.get(device, 0) + allocation.shards
        self.idle_gpus = [index for index in self.idle_gpus if index not in allocation.indices]
        self._view = None

    def release(self, allocation: NodeAllocation) -> None:
        """Releases an allocation. Raises ValueError if one of its GPUs is idle."""
        returned = allocation.indices
        if allocation.shards:
            (device,) = allocation.indices
            self.used_shards[device] -= allocation.shards
            returned = () if self.used_shards[device] else allocation.indices
            if returned:
                del self.used_shards[device]
        if set(returned) & set(self.idle_gpus):
            raise ValueError(f"{allocation} is not allocated on {self.name}")
        self.free_cpus += allocation.resources.cpus
        self.free_memory += allocation.resources.memory
        self.allocation_count -= 1
        self.idle_gpus = sorted((*self.idle_gpus, *returned))
        self._view = None

    def can_allocate(self, allocation: NodeAllocation) -> bool:
        """Whether exactly these resources and GPUs are free."""
        if allocation.resources.cpus > self.free_cpus or allocation.resources.memory > self.free_memory:
            return False
        if allocation.shards:
            (device,) = allocation.indices
            return (device in self.idle_gpus or device in self.used_shards) and (
                self.used_shards.get(device, 0) + allocation.shards <= self.configured.gpus[device].shards
            )
        return all(index in self.idle_gpus for index in allocation.indices)

    def take_cpus(self, amount: int) -> None:
        """Allocates CPUs only; a negative amount releases them, as for a suspended job."""
        self.free_cpus -= amount
        self._view = None

    def view(self) -> Node:
        """The node as a poll shows it."""
        if self._view is None:
            total = self.configured.total
            gpus = tuple(replace(gpu, used=self._used_milli_gpu(gpu)) for gpu in self.configured.gpus)
            gpus_used = sum(1 for gpu in gpus if not gpu.idle)
            self._view = replace(
                self.configured,
                gpus=gpus,
                used=Resources(gpus_used, total.cpus - self.free_cpus, total.memory - self.free_memory),
                state_text=self._state_text(gpus_used),
            )
        return self._view

    def _used_milli_gpu(self, gpu: Gpu) -> int:
        if gpu.index in self.used_shards:
            return MILLI_PER_GPU * self.used_shards[gpu.index] // gpu.shards
        return 0 if gpu.index in self.idle_gpus else MILLI_PER_GPU

    def _state_text(self, gpus_used: int) -> str:
        busy = (
            "IDLE" if not self.allocation_count else "ALLOCATED" if gpus_used == len(self.configured.gpus) else "MIXED"
        )
        match self.configured.state:
            case NodeState.DOWN:
                return "DOWN"
            case NodeState.DRAINED:
                return f"{busy}+DRAIN"
            case NodeState.UP:
                return busy


def fit_request(request: Request, nodes: Sequence[SimulatedNode]) -> tuple[NodeAllocation, ...] | None:
    """The allocations that this request would get now, or None. `nodes` are usable, in order of preference.

    The smallest number of nodes is tried first, and an even split before an uneven one, which only a request without
    `gpus_per_node` may get. Pinned nodes are always included, and are the only ones if there are as many as requested.
    A request without memory gets the GPU-proportional share, as with DefMemPerGPU; one with a constraint that cannot be
    planned fits nowhere.
    """
    eligible = [node for node in nodes if node.name not in request.excluded] if request.excluded else [*nodes]
    if request.exclusive:
        eligible = [node for node in eligible if not node.allocation_count]
    if not request.features:
        return _fit_on(request, eligible)
    try:
        alternatives = parse_constraint(request.features)
    except PolicyError:
        return None
    for accepts in alternatives:
        matching = [node for node in eligible if accepts(node.configured.features)]
        if allocations := _fit_on(request, matching):
            return allocations
    return None


def _fit_on(request: Request, eligible: list[SimulatedNode]) -> tuple[NodeAllocation, ...] | None:
    if request.pinned:
        eligible.sort(key=lambda node: node.name not in request.pinned)
        if not request.pinned <= {node.name for node in eligible}:
            return None
    counts = _node_counts(request, eligible)
    if request.gpus and not request.pinned:
        eligible = [node for node in eligible if node.idle_gpus]
    for count in counts:
        candidates = eligible[: len(request.pinned)] if len(request.pinned) >= count else eligible
        allocations = _fit_evenly(request, candidates, count) or _fit_unevenly(request, candidates, count)
        if allocations:
            return allocations
    return None


def _node_counts(request: Request, nodes: Sequence[SimulatedNode]) -> range:
    """The numbers of nodes to try. A request without one gets more than one only if no node is large enough."""
    if request.gpus_per_node:
        least = -(-request.gpus // request.gpus_per_node)
        return range(least, least + 1)
    least, most = max(request.nodes, len(request.pinned), 1), request.max_nodes or 0
    if request.max_nodes is None and leaves_node_count(request):
        largest = max((len(node.configured.gpus) for node in nodes), default=0)
        most = least if largest >= request.gpus else request.gpus
    return range(least, max(least, most) + 1)


def _fit_evenly(request: Request, nodes: Sequence[SimulatedNode], count: int) -> tuple[NodeAllocation, ...] | None:
    if request.gpus % count:
        return None
    allocations: list[NodeAllocation] = []
    for node in nodes:
        allocation = _allocation_on(request, node, request.gpus // count, -(-request.cpus // count))
        if allocation is not None:
            allocations.append(allocation)
            if len(allocations) == count:
                return tuple(allocations)
        elif node.name in request.pinned:
            return None
    return None


def _fit_unevenly(request: Request, nodes: Sequence[SimulatedNode], count: int) -> tuple[NodeAllocation, ...] | None:
    """Nodes with the most free GPUs first; each of the `count` nodes gives at least one GPU."""
    if request.gpus_per_node or count == 1 or request.gpus < count:
        return None
    per_gpu = request.cpus / request.gpus
    free_gpus = [(node, _max_gpus(request, node, per_gpu)) for node in nodes]
    free_gpus = sorted(
        ((node, free) for node, free in free_gpus if free),
        key=lambda item: (item[0].name not in request.pinned, -item[1]),
    )[:count]
    if len(free_gpus) < count or not request.pinned <= {node.name for node, _ in free_gpus}:
        return None
    left, allocations = request.gpus, list[NodeAllocation]()
    for index, (node, free) in enumerate(free_gpus):
        gpus = min(free, left - (count - index - 1))
        allocation = _allocation_on(request, node, gpus, -(-request.cpus * gpus // request.gpus))
        if allocation is None:
            return None
        allocations.append(allocation)
        left -= gpus
    return tuple(allocations) if not left else None


def _max_gpus(request: Request, node: SimulatedNode, cpus_per_gpu: float) -> int:
    idle = max((len(devices) for devices in node.idle_gpus_by_type(request.gpu_type).values()), default=0)
    return min(idle, int(node.free_cpus / cpus_per_gpu)) if request.memory <= node.free_memory else 0


def _allocation_on(request: Request, node: SimulatedNode, gpus: int, cpus: int) -> NodeAllocation | None:
    if request.exclusive:
        cpus = node.configured.total.cpus
    memory = request.memory or node.configured.proportional_share(gpus).memory
    if cpus > node.free_cpus or memory > node.free_memory or gpus > len(node.idle_gpus):
        return None
    if request.shards:
        return _shards_on(request, node, Resources(0, cpus, memory))
    if not gpus:
        return NodeAllocation(node.name, Resources(0, cpus, memory))
    for gpu_type, devices in node.idle_gpus_by_type(request.gpu_type).items():
        if len(devices) >= gpus:
            return NodeAllocation(node.name, Resources(gpus, cpus, memory), gpu_type, tuple(devices[:gpus]))
    return None


def _shards_on(request: Request, node: SimulatedNode, size: Resources) -> NodeAllocation | None:
    """The shards on this node: an equal number on every node, on its first GPU with enough free shards (measured on
    22.05, 24.11 and 26.05)."""
    shards = -(-request.shards // max(request.nodes, 1))
    for gpu in node.configured.gpus:
        if gpu.shards and request.gpu_type in (None, gpu.type):
            allocation = NodeAllocation(node.name, size, gpu.type, (gpu.index,), shards)
            if node.can_allocate(allocation):
                return allocation
    return None
