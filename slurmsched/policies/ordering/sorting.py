"""The sort every ordering ends in."""

from __future__ import annotations

from collections.abc import Callable

from slurmsched.model import Job, Ranked
from slurmsched.policies.protocol import Situation

__all__ = ["nobody", "ranked"]


def ranked(
    situation: Situation, key: Callable[[Job], tuple[float, ...]], said: Callable[[Job], str]
) -> tuple[Ranked, ...]:
    """The jobs by ascending key, ties by submission, then by id; `said` tells people what the key was."""
    in_order = sorted(situation.jobs, key=lambda job: (key(job), job.submit_time, _number(job.id)))
    return tuple(Ranked(job.id, said(job)) for job in in_order)


def nobody(newcomer: Job, running: Job) -> bool:  # noqa: ARG001 as every `Outranks` is called
    """Of orders in which no running job is displaced."""
    return False


def _number(job_id: str) -> tuple[int, int, str]:
    """`7_2` as numbers, so that 9 comes before 10; the text itself settles what is no number."""
    job, _, task = job_id.partition("_")
    return (int(job) if job.isdecimal() else 0, int(task) if task.isdecimal() else -1, job_id)
