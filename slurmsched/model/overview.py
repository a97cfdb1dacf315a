"""What is in use on each node, and when jobs are expected to start: what is shown without asking Slurm again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import exp, log
from typing import ClassVar, Final

from slurmsched.model.job import JobId
from slurmsched.model.node import Node, NodeState, Resources
from slurmsched.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One GPU: how much of it is used, in milli-GPU, and by which jobs, if Slurm shows the indices."""

    index: int
    type: str
    used: int = 0
    jobs: tuple[JobId, ...] = ()
    shards: int = 0


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """One node: its GPUs, its resources and how much of them is used."""

    name: str
    gpus: tuple[GpuUsage, ...]
    total: Resources
    used: Resources
    state: NodeState = NodeState.UP
    state_text: str = ""
    partitions: tuple[str, ...] = ()
    reason: str = ""
    reservation: str = ""
    """The active reservation that it is kept for; empty for none."""

    @property
    def free(self) -> Resources:
        return self.total - self.used

    def idle_gpus(self, gpu_type: str | None = None) -> int:
        """Returns the number of wholly idle GPUs, of one type or of any."""
        return sum(gpu.used == 0 and gpu_type in (None, gpu.type) for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class NodeFragmentation:
    """Fragmentation of one node, or of all, in GPUs: the idle ones, and how many of them a typical job cannot use, by
    cause. `lost` is the sum of the causes without `no_gpu_asked`, which no placement could change."""

    node: str
    idle: float
    lack_gpu: float
    lack_cpu: float
    lack_both: float
    other_type: float
    no_gpu_asked: float

    @property
    def lost(self) -> float:
        return self.lack_gpu + self.lack_cpu + self.lack_both + self.other_type

    @property
    def columns(self) -> tuple[float, ...]:
        """The columns of a table: idle, lost, and the lost ones by cause (GPUs, CPUs, both, other type)."""
        return self.idle, self.lost, self.lack_gpu, self.lack_cpu, self.lack_both, self.other_type


@dataclass(frozen=True, slots=True)
class ClusterFragmentation:
    """`sentence` tells it for the typical job that can use least of the idle GPUs; empty if nothing is lost."""

    all: NodeFragmentation
    nodes: tuple[NodeFragmentation, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """The cluster at `time` (unix seconds), with nodes in the snapshot's order; stored as JSON with each round."""

    time: float
    nodes: tuple[NodeUsage, ...]
    cluster: str = ""
    release: str = ""
    oddities: tuple[str, ...] = ()
    fragments: ClusterFragmentation | None = None
    """None if it was not computed."""


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """A time in unix seconds: the median and the ends of the 80 % range; None where that is after the horizon."""

    low: float | None
    median: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class StartRanges:
    """By how much 80 % ranges of starts are widened or narrowed: the part of a range that lies `below` the median, and
    the part `above` it, count so many times, by the logarithm of the time ahead.

    `counted` first forecasts have been compared with what became of the job, of which `covered` were right, the last
    ones at the time `at`. The rule is adaptive conformal inference (Gibbs and Candes, NeurIPS 2021): each factor moves
    so that one start in ten comes before its range and one in ten after it, whatever the forecasts are like. Jobs that
    start together err alike, so that all of two hours count as one, by the part of them that was outside. A start is
    compared with its range by the factors of now, not by those of when it was told: else a factor would go on growing
    while hours of starts that were told before are not known. The factors are bounded, and move by a fixed step at
    most.
    """

    LEAST: ClassVar[float] = 0.1
    MOST: ClassVar[float] = 20.0
    STEP: ClassVar[float] = 0.05
    """By 0.9 of it the logarithm of a factor grows if all starts were outside, by 0.1 of it it falls if none was."""
    EVERY: ClassVar[float] = 7200.0
    """Seconds from one correction to the next, at least."""
    OUTSIDE: ClassVar[float] = 0.1
    """The part of starts that come before an 80 % range, and the part that come after it."""
    SETTLING: ClassVar[float] = 300.0
    """Seconds that are added to times ahead: a start in a minute and one in two differ little."""
    NARROWEST: ClassVar[float] = 0.1
    """The least logarithm that either part is widened from: draws that agree do not make a start certain."""

    below: float = 1.0
    above: float = 1.0
    counted: int = 0
    covered: int = 0
    at: float = 0.0

    def range_of(self, drawn: ExpectedTime, at: float, until: float) -> ExpectedTime:
        """Returns the range of a start of which `drawn` was forecast `at` that time, widened or narrowed.

        What is after `until`, to which was looked ahead, is not known: no range that reached it is narrowed. All times
        are in unix seconds.
        """
        low, middle, high = (until if time is None else time for time in (drawn.low, drawn.median, drawn.high))
        first = low if drawn.low is None and self.below < 1 else self._moved(low, middle, at, -1.0, self.below)
        last = high if drawn.high is None else self._moved(high, middle, at, 1.0, self.above)
        return ExpectedTime(*(time if time < until else None for time in (first, middle, last)))

    def applied(self, forecast: QueueForecast) -> QueueForecast:
        """Returns the forecast with these ranges of starts. What widens a start widens the end of the job as much."""
        jobs = []
        for one in forecast.jobs:
            start = self.range_of(one.start, forecast.at, forecast.until)
            low, high = one.end.low, one.end.high
            if low is not None and start.low is not None and one.start.low is not None:
                low = max(low - max(one.start.low - start.low, 0.0), start.low)
            if high is not None:
                later = None if start.high is None or one.start.high is None else max(start.high - one.start.high, 0.0)
                high = None if later is None or high + later >= forecast.until else high + later
            jobs.append(replace(one, start=start, end=replace(one.end, low=low, high=high)))
        return replace(forecast, jobs=tuple(jobs))

    def is_outside(
        self, drawn: ExpectedTime, at: float, until: float, time: float, *, started: bool
    ) -> tuple[bool, bool] | None:
        """Whether a start is before the range and whether it is after it, of a job that has started at `time` or still
        waits then; None where that is not known yet."""
        told = self.range_of(drawn, at, until)
        after = told.high is not None and time > told.high
        if not started:
            return (False, True) if after else None
        return time < (until if told.low is None else told.low), after

    def after(self, outcomes: Sequence[tuple[bool, bool]], covered: int, at: float) -> StartRanges:
        """Returns the ranges after these outcomes, at least one, of which what was told had `covered` so many."""
        below, above = (
            min(max(factor * exp(self.STEP * (sum(missed) / len(missed) - self.OUTSIDE)), self.LEAST), self.MOST)
            for factor, missed in zip((self.below, self.above), zip(*outcomes, strict=True), strict=True)
        )
        return StartRanges(below, above, self.counted + len(outcomes), self.covered + covered, at)

    def _moved(self, end: float, middle: float, at: float, side: float, factor: float) -> float:
        """The end of a range that is `factor` times as far from its median on this side, and never before `at`."""
        if factor == 1.0:
            return end
        of_end, of_middle = (log(max(time - at, 0.0) + self.SETTLING) for time in (end, middle))
        length = abs(of_end - of_middle)
        more = (factor - 1.0) * (max(length, self.NARROWEST) if factor > 1.0 else length)
        return at + max(exp(min(of_end + side * more, _MOST_AHEAD)) - self.SETTLING, 0.0)


_MOST_AHEAD: Final = log(1e12)


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a waiting job starts and when it ends, by so many `draws`, in `not_started` of which it did not start within
    the horizon."""

    job: JobId
    start: ExpectedTime
    end: ExpectedTime
    draws: int
    not_started: int


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """The forecasts of all jobs that waited `at` (unix seconds), in the order of their median starts.

    `left_out` are those of which nothing can be told, each with why. `remarks` are sentences on what is simulated in
    another way than it is. `until` is the horizon.
    """

    at: float
    until: float
    draws: int
    jobs: tuple[StartForecast, ...] = ()
    left_out: Mapping[JobId, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class StrandedCause(StrEnum):
    """Why idle GPUs cannot be used, or only below the GPU-proportional share: a code for programs."""

    RESERVED = "reserved"
    NODE_STATE = "node_state"
    CPU = "cpu"
    MEMORY = "memory"
    SHARE = "below_share"


@dataclass(frozen=True, slots=True)
class UsableGpus:
    """Idle GPUs of one type on one node: `usable` of them have enough free CPUs and memory, `at_share` their full
    GPU-proportional share. `cause` is what strands the others, or keeps usable ones below their share."""

    idle: int
    usable: int
    at_share: int
    cause: StrandedCause | None


def usable_gpus(node: NodeUsage, gpu_type: str, cpus: int = 1, memory: int = 0) -> UsableGpus:
    """Return how many idle GPUs of the type a job could use that needs `cpus` and `memory` (MiB) for each."""
    idle, left, up = node.idle_gpus(gpu_type), node.free, node.state is NodeState.UP and not node.reservation
    by_cpus, by_memory = _gpus_served(left.cpus, cpus), _gpus_served(left.memory, memory)
    devices = len(node.gpus)
    total = node.total
    share = min(left.cpus * devices // max(total.cpus, 1), left.memory * devices // max(total.memory, 1))
    usable, at_share = (min(idle, by_cpus, by_memory), min(idle, max(share, 0))) if up else (0, 0)
    cause = None
    if not idle:
        pass
    elif node.reservation:
        cause = StrandedCause.RESERVED
    elif node.state is not NodeState.UP:
        cause = StrandedCause.NODE_STATE
    elif usable < idle:
        cause = StrandedCause.CPU if by_cpus == usable else StrandedCause.MEMORY
    elif at_share < idle:
        cause = StrandedCause.SHARE
    return UsableGpus(idle, usable, at_share, cause)


def _gpus_served(left: int, each: int) -> int:
    """How many GPUs `left` suffices for at `each` per GPU; where `each` is 0, any number while something is left."""
    if left <= 0:
        return 0
    return left // each if each else left


def cluster_overview(snapshot: Snapshot) -> ClusterOverview:
    """Returns the use of each node by all jobs of a snapshot, managed or not."""
    return ClusterOverviews().of(snapshot)


class ClusterOverviews:
    """The overviews of one cluster, look after look: the use of a node that is as it was at the last look is the same
    object, so that what follows from it need not be worked out again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Node, Sequence[tuple[int, JobId]], NodeUsage]] = {}

    def of(self, snapshot: Snapshot) -> ClusterOverview:
        """Returns what `cluster_overview` does."""
        held, last = defaultdict[str, list[tuple[int, JobId]]](list), self._known
        self._known, nodes = {}, list[NodeUsage]()
        for job in snapshot.jobs:
            for allocation in job.allocations:
                held[allocation.node] += [(index, job.id) for index in allocation.indices]
        for node in snapshot.nodes:
            jobs, known = held.get(node.name, []), last.get(node.name)
            if known is None or known[0] is not node or known[1] != jobs:
                known = node, jobs, _node_usage(node, jobs)
            self._known[node.name] = known
            nodes.append(known[2])
        return ClusterOverview(snapshot.time, tuple(nodes), snapshot.cluster, snapshot.release, snapshot.oddities)


def _node_usage(node: Node, held: Iterable[tuple[int, JobId]]) -> NodeUsage:
    """Returns the use of a node; `held` has the GPUs that jobs have there, by index."""
    jobs_of = defaultdict[int, list[JobId]](list)
    for index, job in held:
        jobs_of[index].append(job)
    gpus = tuple(
        [GpuUsage(gpu.index, gpu.type, gpu.used, tuple(jobs_of.get(gpu.index, ())), gpu.shards) for gpu in node.gpus]
    )
    partitions = tuple(sorted(node.partitions))
    return NodeUsage(
        node.name, gpus, node.total, node.used, node.state, node.state_text, partitions, node.reason, node.reservation
    )
