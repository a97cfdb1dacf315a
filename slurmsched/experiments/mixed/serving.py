"""What becomes of a round's grants: steps done, seconds busy, jobs that end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurmsched.experiments.mixed.rounds import Grant, Question, Served
from slurmsched.experiments.mixed.work import Active, Work, rate

__all__ = ["Progress", "after", "serve"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps a job did in a round, in all its copies, and when, in seconds from the round's start, it was through."""

    steps: int
    through: float


@dataclass(frozen=True, slots=True)
class _Copy:
    """One job of one grant: it starts after `delay` seconds and does at most `most` steps this round."""

    place: int
    rate: float
    delay: float
    most: int

    @property
    def seconds(self) -> float:
        return self.delay + (self.most / self.rate if self.rate else 0.0)


def serve(question: Question, grants: Sequence[Grant]) -> tuple[tuple[Served, ...], dict[str, Progress]]:
    """What became of each grant, and how far each job came that ran. Steps are whole."""
    copies = defaultdict[str, list[_Copy]](list)
    for copy, job in _copies(question, grants):
        copies[job].append(copy)
    busy, ended = [0.0] * len(grants), defaultdict[int, list[str]](list)
    progress = dict[str, Progress]()
    for job, own in copies.items():
        remaining = question.jobs[job].remaining
        most = sum(copy.most for copy in own)
        ends = most >= remaining
        through = _through(own, remaining) if ends else max(copy.seconds for copy in own)
        progress[job] = Progress(min(most, remaining), through)
        for copy in own:
            busy[copy.place] = max(busy[copy.place], min(copy.seconds, through))
            if ends:
                ended[copy.place].append(job)
    return tuple(Served(grant, busy[at], tuple(ended[at])) for at, grant in enumerate(grants)), progress


def after(jobs: Mapping[str, Active], served: Sequence[Served], progress: Mapping[str, Progress]) -> dict[str, Active]:
    """The jobs that have not ended, as the next round finds them."""
    workers, attained = defaultdict[str, list[int]](list), defaultdict[str, float](float)
    for one in served:
        for job in one.grant.jobs:
            workers[job] += one.grant.workers
            attained[job] += one.seconds * len(one.grant.workers)
    left = dict[str, Active]()
    for name, was in jobs.items():
        own = progress.get(name)
        if own is None:
            left[name] = Active(was.work, was.done, was.seconds, was.attained) if was.workers else was
        elif own.steps < was.remaining:
            left[name] = Active(
                was.work,
                was.done + own.steps,
                was.seconds + own.through,
                was.attained + attained[name],
                tuple(sorted(workers[name])),
            )
    return left


def _copies(question: Question, grants: Sequence[Grant]) -> Iterator[tuple[_Copy, str]]:
    before = {one.grant for one in question.last}
    for place, grant in enumerate(grants):
        kinds = question.workers.kinds(grant.workers)
        delay = 0.0 if grant in before else min(question.overhead, question.period)
        for job in grant.jobs:
            partner = _partner(grant, job, question.jobs)
            speed = rate(question.jobs[job].work, kinds, partner)
            yield _Copy(place, speed, delay, int(speed * (question.period - delay))), job


def _partner(grant: Grant, job: str, jobs: Mapping[str, Active]) -> Work | None:
    return next((jobs[other].work for other in grant.jobs if other != job), None)


def _through(copies: Sequence[_Copy], steps: int) -> float:
    """When all copies together have done the steps: the soonest that the first n to start would have, over all n."""
    speed = head = 0.0
    soonest = float("inf")
    for copy in sorted(copies, key=lambda copy: copy.delay):
        speed += copy.rate
        head += copy.rate * copy.delay
        if speed:
            soonest = min(soonest, (steps + head) / speed)
    return soonest
