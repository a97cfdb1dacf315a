"""What is known about how fast jobs run, each number with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmsched.knowledge.sensitivity import SensitivityMatrix
from slurmsched.model import Job, JobId

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
