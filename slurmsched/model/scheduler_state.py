"""The scheduler's state between rounds: what the store knows that Slurm does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from slurmsched.model.job import JobId, NodeAllocation, Request
from slurmsched.model.reasons import Reason, ReasonCode, format_duration, pluralise


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A job's measured `rate` in steps per second, with `gpus` GPUs of one type on `nodes` nodes.

    `cpus` and `memory` (MiB) are per GPU; `fair_cpus` and `fair_memory` are the GPU-proportional share of the same
    nodes. `at` is the time of the last measurement (unix seconds).
    """

    gpu_type: str
    gpus: int
    nodes: int
    cpus: float
    memory: float
    fair_cpus: float
    fair_memory: float
    rate: float
    at: float


@dataclass(frozen=True, slots=True)
class PairRate:
    """Steps per second that jobs of a family (`Job.family`) measured on `gpus` GPUs of one type with `cpus` CPUs, each
    GPU shared with one job of the family `other`, or with nobody if that is empty. `at` is the time of the last
    measurement (unix seconds)."""

    family: str
    other: str
    gpu_type: str
    gpus: int
    cpus: float
    rate: float
    at: float


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A job of `owner` and `model` ran out of memory at `at` (unix seconds), beside a job of `other_owner` and
    `other_model` on the same GPU."""

    owner: str
    model: str
    other_owner: str
    other_model: str
    at: float


class RunEnd(StrEnum):
    """How a run of a job ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    FAILED = "failed"
    REQUEUED = "requeued"
    """Preempted or requeued: the job runs again."""


@dataclass(frozen=True, slots=True)
class AccountedRun:
    """A run of a job that has ended, as Slurm's accounting has it. Everything that its owner wrote is only compared.

    `script` is a digest of the batch script, or of its path; empty if unknown, as is `folder`, where it ran. `model` is
    the hinted one. `cpus` and `memory` (MiB) are those of all its nodes together; `seconds` are those that it ran.
    `cpu_seconds` are what its processes used at least, `gathered` tells whether Slurm watched all of them, so that it
    was no more either. `peak_memory` is the most on one node (MiB), without the page cache. `gpu_use` is the mean use
    of its GPUs from 0 to 1, `peak_gpu_use` the highest that was seen, `gpu_memory` the most of one GPU's (MiB),
    `idle_gpus` how many of them were hardly used. None: not measured. `gpu_source` says who told the mean use.
    """

    job: JobId
    owner: str
    name: str
    ended: float
    seconds: float
    end: RunEnd
    gpus: int
    cpus: int
    memory: int
    nodes: int = 1
    gpu_type: str = ""
    time_limit: int | None = None
    array_job: JobId = ""
    folder: str = ""
    script: str = ""
    model: str = ""
    cpu_seconds: float | None = None
    gathered: bool = False
    peak_memory: int | None = None
    gpu_use: float | None = None
    peak_gpu_use: float | None = None
    gpu_memory: int | None = None
    idle_gpus: int | None = None
    gpu_source: str = ""


@dataclass(frozen=True, slots=True)
class CpuNeed:
    """CPUs for each GPU of a type that runs of a work need, or could use.

    `spares` says that fewer were measured to be enough: what a job has above them may be given away. Otherwise they
    only tell that runs used all of what they had; or, with `suffices`, that runs left CPUs idle beside GPUs of which
    nothing is known, so that a job which asked for less needs no more.
    """

    gpu_type: str
    cpus: float
    spares: bool
    suffices: bool = False

    @property
    def lessens(self) -> bool:
        """Whether it may leave a job with less than one of which nothing is known."""
        return self.spares or self.suffices


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """What earlier runs of an owner's work used, by Slurm's accounting: so many `runs`, the last of which ended at `at`
    (unix seconds). `kind` tells what they have in common with the job. `memory` is the most MiB for each GPU that they
    had in use, without the page cache; 0 if unknown. `gpu_sources` are those that told the use of GPUs, each with the
    number of its runs. `widths` are the CPUs for each GPU that runs with as many GPUs had, also those that failed, as
    long as there were only a few such runs."""

    kind: str
    runs: int
    at: float
    needs: tuple[CpuNeed, ...] = ()
    memory: float = 0.0
    gpu_sources: tuple[tuple[str, int], ...] = ()
    widths: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedLength:
    """How long a job still runs, in seconds, by what earlier `runs` of its owner took that have `kind` in common with
    it, of which the last ended `age` seconds ago: the mean, the median, the ends of the 80 % range, and `latest`,
    within which 19 of 20 such jobs end. Without such runs it comes from what all owners' jobs tell together."""

    mean: float
    median: float
    low: float
    high: float
    latest: float
    kind: str = ""
    runs: int = 0
    age: float | None = None


@dataclass(frozen=True, slots=True)
class IdleGpus:
    """A running job of `owner`: `idle` of its `gpus` GPUs have hardly been used since `since`, as told at `at` (unix
    seconds). `agreed` is whether the owner lets it rank last meanwhile."""

    job: JobId
    owner: str
    gpus: int
    idle: int
    since: float
    at: float
    agreed: bool = False

    @property
    def text(self) -> str:
        """`2 of 4 GPUs idle for 3 h`."""
        return (
            f"{self.idle} of {pluralise(self.gpus, 'GPU')} idle for {format_duration(max(self.at - self.since, 0.0))}"
        )

    @property
    def idle_gpu_hours(self) -> float:
        """The GPU-hours for which GPUs have been idle."""
        return self.idle * max(self.at - self.since, 0.0) / 3600

    def why_end(self, newcomer: JobId) -> Reason:
        """Returns why the job is preempted for this newcomer."""
        idle_for = format_duration(max(self.at - self.since, 0.0))
        return Reason(
            ReasonCode.IDLE_GPUS,
            {"newcomer": newcomer, "idle": self.idle, "gpus": self.gpus, "idle_for": idle_for},
        )


@dataclass(frozen=True, slots=True)
class NotifiedJob:
    """A running job that was told at `at` (unix seconds) to write its checkpoint and is requeued in a later round.

    `newcomers` are the jobs that it gives way to; `saved` is whether it reports that the checkpoint is written.
    """

    at: float
    newcomers: tuple[JobId, ...]
    saved: bool = False


@dataclass(frozen=True, slots=True)
class OpenStart:
    """A start that an earlier round planned and that has not happened yet: what the job is promised, and the jobs that
    leave for it, itself included if it is moved."""

    allocations: tuple[NodeAllocation, ...]
    gone: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """The state that a round starts from, by job id. Times are unix seconds.

    `original_requests`: the request of a job before a round updated it.
    `held`: pending jobs that the daemon holds, or the hook for it.
    `service`: attained GPU-seconds over all runs of a job, up to the snapshot's time.
    `service_by_type`: the same by the GPU type of the runs, empty where that is not known.
    `moves`: the times at which a job was preempted or moved.
    `nices`: the owner's nice value of a job that has one of ours now.
    `stalled`: Slurm's reason for not starting a job as we planned, until the next attempt is due; it may run meanwhile.
    `retry_at`: when that attempt is due at the latest.
    `refused_before`: waiting jobs whose start was refused before and may be tried again.
    `like_refused`: waiting jobs that have something in common with one just refused: how much, from 1.
    `let_go`: jobs that Slurm refused so often that they are left to it as they were submitted.
    `policy_state`: the policy's own state, JSON-safe.
    `usual`: the requests of managed jobs of the last days, and how many jobs made each.
    `submitted`: the first submit time of a job whose submit time a requeue has renewed.
    `measured`: the rates that a job has reported, one for each allocation.
    `family_rates`: the same over all jobs of a family (`Job.family`), also those that have ended.
    `steps`: the steps that a job has reported over all its runs.
    `restart_seconds`: how long a job's last restart took, from its start to its first step, if it reported that.
    `notified`: running jobs that were told to write their checkpoint and are not requeued yet.
    `set_aside`: the time since which a job is set aside: nothing is decided about it.
    `held_aside`: the same for set-aside jobs that we hold, or that belong to an array that is set aside.
    `starting`: jobs that an earlier round starts and that do not run yet.
    `out_of_memory`: jobs that ran out of memory on a shared GPU, as long as that counts.
    `pair_rates`: what families of jobs measured on shared GPUs, and alone.
    `use`: what earlier runs of the owner's same work used, by Slurm's accounting.
    `lengths`: how long jobs still run by earlier runs of their owners, if that is learnt.
    `idle`: running jobs with GPUs that are idle for long, as they were last told.
    """

    original_requests: Mapping[JobId, Request] = field(default_factory=dict)
    held: frozenset[JobId] = frozenset()
    service: Mapping[JobId, float] = field(default_factory=dict)
    service_by_type: Mapping[JobId, Mapping[str, float]] = field(default_factory=dict)
    moves: Mapping[JobId, tuple[float, ...]] = field(default_factory=dict)
    nices: Mapping[JobId, int] = field(default_factory=dict)
    stalled: Mapping[JobId, str] = field(default_factory=dict)
    policy_state: Mapping[str, object] = field(default_factory=dict)
    submitted: Mapping[JobId, float] = field(default_factory=dict)
    usual: tuple[tuple[Request, int], ...] = ()
    measured: Mapping[JobId, tuple[MeasuredRate, ...]] = field(default_factory=dict)
    steps: Mapping[JobId, int] = field(default_factory=dict)
    restart_seconds: Mapping[JobId, float] = field(default_factory=dict)
    notified: Mapping[JobId, NotifiedJob] = field(default_factory=dict)
    set_aside: Mapping[JobId, float] = field(default_factory=dict)
    held_aside: Mapping[JobId, float] = field(default_factory=dict)
    starting: Mapping[JobId, OpenStart] = field(default_factory=dict)
    retry_at: Mapping[JobId, float] = field(default_factory=dict)
    let_go: frozenset[JobId] = frozenset()
    refused_before: frozenset[JobId] = frozenset()
    like_refused: Mapping[JobId, int] = field(default_factory=dict)
    family_rates: Mapping[str, tuple[MeasuredRate, ...]] = field(default_factory=dict)
    out_of_memory: tuple[OutOfMemory, ...] = ()
    pair_rates: tuple[PairRate, ...] = ()
    use: Mapping[JobId, MeasuredUse] = field(default_factory=dict)
    lengths: Mapping[JobId, ExpectedLength] = field(default_factory=dict)
    idle: Mapping[JobId, IdleGpus] = field(default_factory=dict)
