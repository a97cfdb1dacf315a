"""What one simulated run left behind: everything that figures and plots are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Ran", "Run", "Sample"]


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one job. Times in seconds from the trace's start, None for what never happened.

    `work` is its trace duration. `service` are the GPU-seconds it held, `by_type` the same by type of GPU (of its first
    node where nodes have several), `useful` those of them whose work was kept,
    `cpu_service` the CPU-seconds. `migrations` are restarts on other nodes, part of `restarts`.
    """

    job: str
    arrival: float
    work: float
    gpus: float
    user: str = ""
    account: str = ""
    model: str = ""
    start: float | None = None
    end: float | None = None
    state: str = "UNFINISHED"
    """Slurm's word for how it ended: COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL; or UNFINISHED."""
    service: float = 0.0
    by_type: Mapping[str, float] = field(default_factory=dict)
    useful: float = 0.0
    cpu_service: float = 0.0
    restarts: int = 0
    migrations: int = 0

    @property
    def completed(self) -> bool:
        return self.state == "COMPLETED" and self.end is not None

    @property
    def jct(self) -> float:
        """Job completion time: from arrival to end; infinite while there is no end."""
        return float("inf") if self.end is None else self.end - self.arrival


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment (seconds from the trace's start). CPU and memory count what is allocated.

    `speed` is the work done per second by all jobs together, in GPU-seconds at the proportional share. `stranded` are
    idle GPUs that the largest waiting job's single-node part could not use.
    """

    time: float
    running: int
    waiting: int
    gpus: float
    cpus: float
    memory: float
    speed: float
    stranded: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One policy over one trace. `total_*` are the cluster's; `window` are the places in order of arrival, first and
    one beyond last, of the jobs that count in means and percentiles (None: all of them). `decisions` are seconds, one
    for each decision taken; `wall_s` and `cpu_s` are what the simulation itself took."""

    policy: str
    order: str
    trace: str
    seed: int
    jobs: tuple[Ran, ...]
    samples: tuple[Sample, ...]
    total_gpus: float
    total_cpus: float
    total_memory: float
    rounds: int
    decisions: tuple[float, ...]
    wall_s: float
    cpu_s: float
    window: tuple[int, int] | None = None
    load: float | None = None
    """Jobs per hour, where the trace was generated for a sweep."""

    @property
    def measured(self) -> tuple[Ran, ...]:
        """The jobs that count."""
        first, beyond = self.window or (0, len(self.jobs))
        return self.jobs[first:beyond]
