"""What is known about how fast jobs run, each number with its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from slurmsched.knowledge.speed import Scaling, SensitivityMatrix
from slurmsched.model import Job, JobId, Node, NodeAllocation


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of one model, or of a task class. `matrices`: its sensitivity to CPUs and memory by GPU type, where
    the key "" serves every other type. `scaling`: its rates by GPU type.

    `source` says where and when the numbers come from (`measured`, `imported: FILE`, `rule of thumb`). `measured` is
    when its speeds were measured in steps per second (unix seconds); where it is None their unit is free.
    """

    name: str
    task: str
    matrices: Mapping[str, SensitivityMatrix]
    source: str
    scaling: Mapping[str, Scaling] = field(default_factory=dict)
    measured: float | None = None

    def matrix(self, gpu_type: str) -> SensitivityMatrix | None:
        return self.matrices.get(gpu_type) or self.matrices.get("")


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Profiles by model and by task, and the GPU-seconds each job has attained.

    `reference` is the GPU type whose seconds a job's duration counts where the job asks for no type. `measured` is what
    jobs themselves said of their work per second, by GPU type, and `steps` how many they said they have done in all.
    """

    models: Mapping[str, Profile] = field(default_factory=dict)
    tasks: Mapping[str, Profile] = field(default_factory=dict)
    service: Mapping[JobId, float] = field(default_factory=dict)
    reference: str = ""
    own: Mapping[JobId, Profile] = field(default_factory=dict)
    """Of jobs that measured themselves; they serve nobody else."""
    measured: Mapping[JobId, Mapping[str, float]] = field(default_factory=dict)
    steps: Mapping[JobId, int] = field(default_factory=dict)

    def profile(self, job: Job) -> Profile | None:
        """The best that is known: what the job measured, else its model, else its task, else nothing (which claims no
        sensitivity)."""
        known = self.own.get(job.id) or self.models.get(job.hints.model or "")
        return known or self.tasks.get(job.hints.task or "")

    def attained_gpu_seconds(self, job: Job) -> float:
        """GPU-seconds it has had over all its runs."""
        return self.service.get(job.id, 0.0)

    def executed_seconds(self, job: Job) -> float:
        """Seconds it has run over all its runs."""
        return self.attained_gpu_seconds(job) / max(job.gpus, 1)

    def remaining_seconds(self, job: Job) -> float:
        """Seconds it still needs as its owner expects; once that has passed, as its time limit says.

        Always above zero. Infinite where nothing is known, or all that was said has passed.
        """
        executed = self.executed_seconds(job)
        limits = (job.hints.duration, job.time_limit)
        return next((seconds - executed for seconds in limits if seconds is not None and seconds > executed), inf)

    def relative_speed(self, job: Job, allocations: Iterable[NodeAllocation], nodes: Mapping[str, Node]) -> float:
        """Speed on these shares as a multiple of the speed at the GPU-proportional share of the same nodes.

        The slowest share decides: workers of a gang wait for each other. 1.0 where nothing is known.
        """
        profile = self.profile(job)
        if profile is None:
            return 1.0
        pairs = [pair for share in allocations if (pair := _speeds(profile, share, nodes)) is not None]
        return min((speed for speed, _ in pairs), default=1.0) / min((fair for _, fair in pairs), default=1.0)

    def type_speed(self, job: Job, types: Mapping[str, int], nodes: int = 1) -> float:
        """Speed on these GPUs, a number of each type, on so many nodes, as a multiple of that on as many GPUs of the
        reference type on one node; the type the job asks for is its reference.

        The slowest type holds the others back. 0.0 where the job cannot run, 1.0 where nothing is known.
        """
        profile = self.profile(job)
        reference = profile.scaling.get(job.original_request.gpu_type or self.reference) if profile else None
        gpus = sum(types.values())
        full = reference.rate_at(gpus) if reference else 0.0
        if profile is None or not full:
            return 1.0
        rates = (known.rate_at(gpus, nodes) for kind in types if (known := profile.scaling.get(kind)) is not None)
        return min(rates, default=full) / full

    def speed(
        self, job: Job, allocations: Sequence[NodeAllocation], nodes: Mapping[str, Node], partners: Iterable[Job] = ()
    ) -> float:
        """Work per second, where work is counted in seconds on the reference type at the GPU-proportional share.

        A product: the share of CPUs and memory, the GPU types and their number, whether they are on more than one node,
        and who uses the same GPUs.
        """
        types: dict[str, int] = {}
        for share in allocations:
            types[share.gpu_type] = types.get(share.gpu_type, 0) + (share.resources.gpus or 1)
        whole = self.relative_speed(job, allocations, nodes) * self.type_speed(job, types, len(allocations))
        return whole * min(
            (self.shared_gpu_speed(job, partner, kind) for partner in partners for kind in types), default=1.0
        )

    def shared_gpu_speed(self, job: Job, partner: Job, gpu_type: str) -> float:
        """The part of its speed the job keeps while the partner uses the same GPU; 1.0 where nothing is known."""
        profile = self.profile(job)
        known = profile.scaling.get(gpu_type) if profile else None
        return known.beside.get(partner.hints.model or "", 1.0) if known else 1.0


def _speeds(profile: Profile, allocation: NodeAllocation, nodes: Mapping[str, Node]) -> tuple[float, float] | None:
    """Speed on the share and on the proportional one; None where the profile or the node says nothing."""
    node, matrix = nodes.get(allocation.node), profile.matrix(allocation.gpu_type)
    gpus = allocation.resources.gpus
    if node is None or matrix is None or not node.gpus or not gpus:
        return None
    fair = node.proportional_share(gpus)
    return (
        matrix.speed_at(allocation.resources.cpus / gpus, allocation.resources.memory / gpus),
        matrix.speed_at(fair.cpus / gpus, fair.memory / gpus),
    )
