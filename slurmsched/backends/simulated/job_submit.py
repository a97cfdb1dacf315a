"""hooks/job_submit.lua for the virtual cluster: holds managed jobs at submission while the heartbeat is fresh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slurmsched.backends.simulated.job import Submission
from slurmsched.model import parse_hints
from slurmsched.settings.definition import ManageSettings

_HELD_BY_HOOK = "held=hook"


@dataclass(frozen=True, slots=True)
class JobSubmitHook:
    """The job_submit hook. It holds no job unless `is_heartbeat_fresh(now)`.

    With `parts` it also holds jobs that request shards, and jobs without GPUs.
    """

    manage: ManageSettings
    is_heartbeat_fresh: Callable[[float], bool]
    parts: bool = False

    def __call__(self, submission: Submission, now: float) -> Submission:
        """The submission that Slurm accepts: unchanged, or held with `held=hook` in its hints."""
        if submission.held or not self.is_heartbeat_fresh(now) or not self._manages(submission):
            return submission
        words = submission.comment.split()
        hint_index = next((index for index, word in enumerate(words) if word.startswith("synsched:")), None)
        if hint_index is None:
            words.insert(0, f"synsched:{_HELD_BY_HOOK}")
        elif _HELD_BY_HOOK not in words[hint_index]:
            words[hint_index] += f",{_HELD_BY_HOOK}"
        return replace(submission, held=True, comment=" ".join(words))

    def _manages(self, submission: Submission) -> bool:
        whole_gpus = submission.request.gpus > 0 and not submission.request.shards
        if not submission.batch or not (whole_gpus or self.parts):
            return False
        partitions = set(submission.partitions)
        if partitions and partitions <= set(self.manage.never_partitions):
            return False
        return (
            bool(partitions & set(self.manage.partitions))
            or submission.qos in self.manage.qos
            or (self.manage.opt_in and parse_hints(submission.comment).opts_in)
        )
