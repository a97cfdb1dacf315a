"""What can be wrong with copies and their steps.

The job forker: numbers for the copies of a job (section V-A).

How many of a job's steps each of its copies gets: in proportion to throughput (section V-B).

Which nodes work on which job in the coming round, and how many steps each does.

Every job has a copy for every node, so a job may use any of them, and all of them together are as fast as the sum. Then
the least mean completion time is that of the job that ends soonest going first, on all nodes; a job that can end in
this round gets only the nodes it needs for that (the last of all the fastest, the paper's beta), and the next job the
others. Nodes that nobody needs so help whoever ends last, and none is idle while any job has a step for it (theorem 3).

The Job Tracker's books of one job: every step counts exactly once (sections V-A and V-B).

A round's leases divide no more than the steps that are left. A copy reports, as often as it likes, how many steps of
its lease it has done and saved; reports that come twice, out of order, of an older round or of more than was leased
change nothing. When the round is closed the reports are summed up and what was not done goes back to be leased again:
also what a copy had under way that died.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import floor

from slurmsched.model import SynschedError


class TrackingError(SynschedError):
    """Copies that cannot be, or steps that do not add up; the message says which."""


def copy_id(parent: int, copy: int, max_job_count: int) -> int:
    """job_ID = max_job_count x i + parent_job_id, with i from 1 on. Raises TrackingError.

    `most_jobs` is one beyond the largest number that a parent may have.
    """
    if not 0 <= parent < max_job_count or copy < 1:
        raise TrackingError(
            f"copy {copy} of job {parent} has no number: jobs go from 0 to {max_job_count - 1}, copies from 1"
        )
    return max_job_count * copy + parent


def split_copy_id(round_number: int, max_job_count: int) -> tuple[int, int]:
    """The parent and which of its copies this is; copy 0 is the parent itself."""
    copy, parent = divmod(round_number, max_job_count)
    return parent, copy


def copy_ids(parent: int, count: int, max_job_count: int) -> tuple[int, ...]:
    """The numbers of all its copies. Raises TrackingError."""
    return tuple(copy_id(parent, copy, max_job_count) for copy in range(1, count + 1))


def divide_steps(steps: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Whole steps for copies that do so many a second, all of the steps in sum, so that the last copy is through as
    soon as can be. Each copy's part is less than the number of copies away from the exact proportion.

    Few steps thus go to the fastest copies alone, and the others get none: the last round's rule. Raises TrackingError
    where there are steps and nobody to do them.
    """
    if steps < 0 or any(rate < 0 for rate in rates):
        raise TrackingError(f"cannot divide {steps} steps over rates {', '.join(f'{rate:g}' for rate in rates)}")
    total_rate = sum(rates)
    if steps and not total_rate > 0:
        raise TrackingError(f"{steps} steps are left and no copy of the job can run anywhere")
    portions = [floor(steps * (rate / total_rate)) if rate else 0 for rate in rates]
    while sum(portions) > steps:  # a rate so small beside the others that its part was rounded up
        portions[max(range(len(rates)), key=portions.__getitem__)] -= 1
    through = [((portions[at] + 1) / rate, at) for at, rate in enumerate(rates) if rate > 0]
    heapify(through)
    for _ in range(steps - sum(portions)):
        _, at = heappop(through)
        portions[at] += 1
        heappush(through, ((portions[at] + 1) / rates[at], at))
    return tuple(portions)


@dataclass(frozen=True, slots=True)
class ForkedJob:
    """A job with `left` steps; `rates`: steps per second of a copy on each node, 0.0 where it cannot run."""

    job: str
    remaining: int
    rates: tuple[float, ...]


def assign_nodes(jobs: Sequence[ForkedJob], slot: float) -> Mapping[str, Mapping[int, int]]:
    """By job the steps of each of its nodes. `slot` is the seconds of a round in which there is work done."""
    queue = sorted(
        (job for job in jobs if job.remaining and any(job.rates)), key=lambda job: job.remaining / sum(job.rates)
    )
    nodes: dict[str, list[int]] = {}
    free = set(range(max((len(job.rates) for job in queue), default=0)))
    for job in queue:
        nodes[job.job] = _nodes_needed(job, free, slot, is_last=job is queue[-1])
        free.difference_update(nodes[job.job])
    for node in sorted(free):
        helped = [job for job in queue if _adds_work(job, nodes[job.job], node)]
        if helped:
            nodes[max(helped, key=lambda job: _seconds_to_end(job, nodes[job.job])).job].append(node)
    return {job.job: _portions(job, nodes[job.job]) for job in queue if nodes[job.job]}


def _nodes_needed(job: ForkedJob, free: Collection[int], slot: float, *, is_last: bool) -> list[int]:
    """The nodes on which the job ends in this round: the slowest that does it by itself, so that those behind have the
    faster ones, else the fewest fastest; all that are free where it does not end."""
    by_rate = sorted((node for node in free if job.rates[node] > 0), key=lambda node: (-job.rates[node], node))
    by_itself = [node for node in reversed(by_rate) if not is_last and _seconds_to_end(job, [node]) <= slot]
    if by_itself:
        return by_itself[:1]
    taken: list[int] = []
    for node in by_rate:
        if _seconds_to_end(job, taken) > slot and _adds_work(job, taken, node):
            taken.append(node)
    return taken


def _seconds_to_end(job: ForkedJob, nodes: Sequence[int]) -> float:
    """Until the job ends on these nodes."""
    portions = _portions(job, nodes)
    return max((steps / job.rates[node] for node, steps in portions.items()), default=float("inf"))


def _adds_work(job: ForkedJob, nodes: Sequence[int], node: int) -> bool:
    """Whether a node more would get a step of this job, and leave one to each of the others."""
    portions = _portions(job, [*nodes, node]) if job.rates[node] > 0 else {}
    return len(portions) > len(nodes)


def _portions(job: ForkedJob, nodes: Sequence[int]) -> dict[int, int]:
    steps = divide_steps(job.remaining, [job.rates[node] for node in nodes]) if nodes else ()
    return {node: count for node, count in zip(nodes, steps, strict=True) if count}


@dataclass(frozen=True, slots=True)
class StepAssignment:
    """What one copy shall do in a round, and has done of it."""

    steps: int
    done: int = 0
    ended: bool = False
    """It is through, or dead: nothing more is counted."""


@dataclass(frozen=True, slots=True)
class JobTracker:
    """`aggregated` of `total` steps are done and consolidated. `leases` are those of round `number`, by copy."""

    total: int
    aggregated: int = 0
    round_number: int = 0
    assignments: Mapping[int, StepAssignment] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        """Steps to be leased, as of the last closed round."""
        return self.total - self.aggregated

    @property
    def finished(self) -> bool:
        """All copies can be discarded."""
        return self.remaining == 0

    def begin_round(self, steps_by_copy: Mapping[int, int]) -> JobTracker:
        """The next round, with so many steps for each copy. Raises TrackingError for more than are left, and while the
        last round is not closed."""
        if self.assignments:
            raise TrackingError(f"round {self.round_number} is not closed: its steps would be done twice")
        if any(steps < 0 for steps in steps_by_copy.values()) or sum(steps_by_copy.values()) > self.remaining:
            raise TrackingError(f"cannot lease {sum(steps_by_copy.values())} steps: {self.remaining} are left")
        assignments = {copy: StepAssignment(steps) for copy, steps in steps_by_copy.items() if steps}
        return replace(self, round_number=self.round_number + 1, assignments=assignments)

    def report(self, copy: int, round_number: int, done: int) -> JobTracker:
        """A copy has done so many steps of its lease of that round, all told."""
        assignment = self.assignments.get(copy) if round_number == self.round_number else None
        if assignment is None or assignment.ended or done <= assignment.done:
            return self
        return self._with_assignment(copy, replace(assignment, done=min(done, assignment.steps)))

    def end_copy(self, copy: int, round_number: int) -> JobTracker:
        """A copy is through or dead: what it has reported counts, whatever it says later does not."""
        assignment = self.assignments.get(copy) if round_number == self.round_number else None
        return self if assignment is None else self._with_assignment(copy, replace(assignment, ended=True))

    def close_round(self) -> JobTracker:
        """The round is over: aggregate."""
        return replace(
            self, aggregated=self.aggregated + sum(lease.done for lease in self.assignments.values()), assignments={}
        )

    def _with_assignment(self, copy: int, assignment: StepAssignment) -> JobTracker:
        return replace(self, assignments={**self.assignments, copy: assignment})
