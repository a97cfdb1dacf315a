"""What is known about how fast jobs run, each number with its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from slurmsched.knowledge.sensitivity import SensitivityMatrix
from slurmsched.model import Job, JobId, Node, Share

__all__ = ["Knowledge", "Profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One model's (or task class's) sensitivity. `matrices` by GPU type; the key "" serves every other type.

    `source` says where the numbers come from (`measured`, `imported: FILE`, `rule of thumb`).
    """

    name: str
    task: str
    matrices: Mapping[str, SensitivityMatrix]
    source: str

    def matrix(self, gpu_type: str) -> SensitivityMatrix | None:
        return self.matrices.get(gpu_type) or self.matrices.get("")


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Profiles by model and by task, and the GPU-seconds each job has attained."""

    models: Mapping[str, Profile] = field(default_factory=dict)
    tasks: Mapping[str, Profile] = field(default_factory=dict)
    service: Mapping[JobId, float] = field(default_factory=dict)

    def profile(self, job: Job) -> Profile | None:
        """The best that is known: the job's model, else its task, else nothing (which claims no sensitivity)."""
        known = self.models.get(job.hints.model or "")
        return known or self.tasks.get(job.hints.task or "")

    def attained(self, job: Job) -> float:
        """GPU-seconds it has had over all its runs."""
        return self.service.get(job.id, 0.0)

    def executed(self, job: Job) -> float:
        """Seconds it has run over all its runs."""
        return self.attained(job) / max(job.gpus, 1)

    def remaining(self, job: Job) -> float:
        """Seconds it still needs as its owner expects; once that has passed, as its time limit says.

        Always above zero. Infinite where nothing is known, or all that was said has passed.
        """
        executed = self.executed(job)
        said = (job.hints.duration, job.time_limit)
        return next((seconds - executed for seconds in said if seconds is not None and seconds > executed), inf)

    def relative_speed(self, job: Job, shares: Iterable[Share], nodes: Mapping[str, Node]) -> float:
        """Speed on these shares as a multiple of the speed at the GPU-proportional share of the same nodes.

        The slowest share decides: workers of a gang wait for each other. 1.0 where nothing is known.
        """
        profile = self.profile(job)
        if profile is None:
            return 1.0
        pairs = [pair for share in shares if (pair := _speeds(profile, share, nodes)) is not None]
        return min((own for own, _ in pairs), default=1.0) / min((fair for _, fair in pairs), default=1.0)


def _speeds(profile: Profile, share: Share, nodes: Mapping[str, Node]) -> tuple[float, float] | None:
    """Speed on the share and on the proportional one; None where the profile or the node says nothing."""
    node, matrix = nodes.get(share.node), profile.matrix(share.gpu_type)
    gpus = share.resources.gpus
    if node is None or matrix is None or not node.gpus or not gpus:
        return None
    fair = node.proportional(gpus)
    return (
        matrix.at(share.resources.cpus / gpus, share.resources.memory / gpus),
        matrix.at(fair.cpus / gpus, fair.memory / gpus),
    )
