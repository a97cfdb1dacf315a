"""How long what jobs have done so far would have taken on their equal parts of the cluster, which change with the
number of jobs (Gavel, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slurmsched.policies.gavel.equal import equal_shares
from slurmsched.policies.gavel.problem import Floats, Problem

__all__ = ["TimeAlone"]


@dataclass(slots=True)
class TimeAlone:
    """Looked at whenever shares are computed."""

    _known: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Of each job at the last look: the seconds, steps done, steps per second on its equal part."""

    def seconds(self, problem: Problem, jobs: Sequence[str], done: Floats) -> Floats:
        """By job of the problem, of which so many steps are done. Who is not among them is forgotten."""
        now: dict[str, tuple[float, float, float]] = {}
        for job, steps, rate in zip(jobs, done.tolist(), equal_shares(problem).rates(problem).tolist(), strict=True):
            so_far, before, was = self._known.get(job, (0.0, 0.0, rate))
            now[job] = (so_far + (steps - before) / was, steps, rate)
        self._known = now
        return np.array([so_far for so_far, _, _ in now.values()])
