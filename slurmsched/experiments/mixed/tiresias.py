"""Tiresias in the replay: least attained service in two queues (Gu et al., NSDI 2019, section 3.2), as Hadar compares
with it: nobody is promoted, and GPU types are not told apart (section V of its paper)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from slurmsched.experiments.mixed.rounds import Grant, Question
from slurmsched.experiments.mixed.work import Active
from slurmsched.policies.gavel import Entry, seated

__all__ = ["Tiresias"]


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Jobs go by queue, then by arrival; `queues` are the bounds between queues in GPU-seconds attained, of which
    Hadar's text names the number and not the size.

    A gang lies on one GPU type: on the one it had where there is room, else on that with the most GPUs left. Who is too
    wide for what is left is passed over.
    """

    queues: tuple[float, ...] = (3600.0,)
    name: str = "tiresias"

    def decide(self, question: Question) -> Sequence[Grant]:
        workers = question.workers
        left, chosen = dict(workers.gpus), {kind: dict[Entry, int]() for kind in workers.gpus}
        for name, job in sorted(question.jobs.items(), key=lambda item: bisect_right(self.queues, item[1].attained)):
            kind = _type_for(job, question, left)
            if kind is not None:
                left[kind] -= job.work.width
                chosen[kind][name,] = job.work.width
        before = {one.grant.jobs: one.grant.workers for one in question.last}
        places = (seated(widths, workers.of_type[kind], before) for kind, widths in chosen.items())
        return [Grant(entry, place) for of_type in places for entry, place in of_type.items()]


def _type_for(job: Active, question: Question, left: dict[str, int]) -> str | None:
    had = question.workers.kinds(job.workers)
    fit = [kind for kind, gpus in left.items() if gpus >= job.work.width and job.work.rates.get(kind, 0.0) > 0]
    return max(fit, key=lambda kind: (kind in had, left[kind]), default=None)
