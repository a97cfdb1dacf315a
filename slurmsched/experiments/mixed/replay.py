"""A lean replay of jobs on mixed GPU types, round by round, as the simulators of Gavel and Hadar have it.

A round ends when its slowest job has done its steps of it. A job that ends sooner ends when it ends, but its GPUs are
free at the round's end only. Arrivals are seen at the next round. All of it is simulated; the same inputs give the same
bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Final

from slurmsched.experiments.mixed.figures import Replayed, RoundRecord
from slurmsched.experiments.mixed.rounds import Grant, Question, RoundPolicy, Served
from slurmsched.experiments.mixed.serving import after, serve
from slurmsched.experiments.mixed.work import Active, Work
from slurmsched.experiments.mixed.workers import Workers
from slurmsched.model import SynschedError

__all__ = ["ReplayError", "replay"]

_IN_VAIN: Final = 200
"""Rounds in a row in which nothing is done, though jobs wait and none will arrive: then nothing ever will be."""


class ReplayError(SynschedError):
    """A replay that cannot go on: a policy granted what there is not, or nothing for ever."""


def replay(
    work: Iterable[Work], workers: Workers, policy: RoundPolicy, *, period: float = 360.0, overhead: float = 0.0
) -> Replayed:
    """Run all jobs to their end. `period` and `overhead` in seconds; see `Question`. Raises ReplayError."""
    jobs = tuple(sorted(work, key=lambda job: job.arrival))
    coming = list(reversed(jobs))
    active, ends = dict[str, Active](), dict[str, float]()
    last: tuple[Served, ...] = ()
    records: list[RoundRecord] = []
    decisions: list[float] = []
    now, in_vain = 0.0, 0
    while coming or active:
        if not active:
            now = max(now, coming[-1].arrival)
        while coming and coming[-1].arrival <= now:
            newcomer = coming.pop()
            active[newcomer.id] = Active(newcomer)
        question = Question(len(records), now, period, overhead, active, workers, last)
        began = perf_counter()
        grants = policy.decide(question)
        decisions.append(perf_counter() - began)
        _check(question, grants, policy.name)
        last, progress = serve(question, grants)
        in_vain = 0 if coming or any(own.steps for own in progress.values()) else in_vain + 1
        if in_vain > _IN_VAIN:
            raise ReplayError(f"{policy.name} never runs {next(iter(active))} and {len(active) - 1} other jobs")
        length = max((one.seconds for one in last), default=period)
        records.append(_record(question, last, length))
        left = after(active, last, progress)
        ends |= {job: now + own.through for job, own in progress.items() if job not in left}
        active, now = left, now + length
    return Replayed(policy.name, jobs, ends, workers.gpus, tuple(records), tuple(decisions))


def _record(question: Question, served: Sequence[Served], length: float) -> RoundRecord:
    busy, granted, types = defaultdict[str, float](float), Counter[str](), question.workers.types
    for one in served:
        for worker in one.grant.workers:
            busy[types[worker]] += one.seconds
            granted[types[worker]] += 1
    running = {job for one in served for job in one.grant.jobs}
    had = {one.grant for one in question.last}
    return RoundRecord(
        question.time,
        length,
        dict(busy),
        dict(granted),
        len(running),
        len(question.jobs) - len(running),
        sum(one.grant in had for one in served),
        sum(any(job in question.jobs for job in one.grant.jobs) for one in question.last),
    )


def _check(question: Question, grants: Iterable[Grant], policy: str) -> None:
    """Raises ReplayError for what cannot be granted."""
    taken = set[int]()
    for grant in grants:
        for wrong in _wrong(grant, question, taken):
            raise ReplayError(f"{policy} cannot grant {','.join(grant.jobs)} workers {grant.workers}: {wrong}")
        taken.update(grant.workers)


def _wrong(grant: Grant, question: Question, taken: set[int]) -> Iterator[str]:
    if len({*grant.jobs}) != len(grant.jobs) or len(grant.jobs) not in (1, 2):
        yield "expected one job or two"
    if unknown := [job for job in grant.jobs if job not in question.jobs]:
        yield f"{unknown[0]} is not there"
    elif not grant.workers or any(not 0 <= worker < len(question.workers) for worker in grant.workers):
        yield "there are no such workers"
    elif len({*grant.workers}) < len(grant.workers) or not taken.isdisjoint(grant.workers):
        yield "a worker is granted twice"
