"""HadarE's job forker and job tracker (Sultana et al., 2025, sections V-A and V-B): ids of copies, division of steps,
assignment of nodes to jobs, and the count of steps done.

Node assignment: every job has a copy for every node, and all copies together run at the sum of their rates. Mean
completion time is lowest when the job that ends first goes first, on all nodes. A job that can end in this round gets
only the nodes it needs (the last job the fastest, the paper's beta), and the next job gets the others. Nodes that are
left help the job that ends last, so no node is idle while a job has a step for it (theorem 3).

Job tracker: a round assigns no more than the remaining steps. A copy reports, any number of times, how many of its
assigned steps it has done and saved. A report that is repeated, late, of an older round, or above the assignment counts
no step twice. Closing the round adds up the reports; steps that were not done, also those of a copy that died, are
assigned again, so every step counts exactly once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import floor

from slurmsched.model import SynschedError


class TrackingError(SynschedError):
    """An invalid copy number or an inconsistent number of steps."""


def copy_id(parent: int, copy: int, max_job_count: int) -> int:
    """Returns the job id of a copy: max_job_count x copy + parent, with copies from 1 (section V-A).

    `max_job_count` is one more than the largest id of a parent. Raises TrackingError.
    """
    if not 0 <= parent < max_job_count or copy < 1:
        raise TrackingError(
            f"copy {copy} of job {parent} has no id: jobs are numbered from 0 to {max_job_count - 1}, copies from 1"
        )
    return max_job_count * copy + parent


def split_copy_id(job_id: int, max_job_count: int) -> tuple[int, int]:
    """Returns the parent and the number of the copy; copy 0 is the parent itself."""
    copy, parent = divmod(job_id, max_job_count)
    return parent, copy


def copy_ids(parent: int, count: int, max_job_count: int) -> tuple[int, ...]:
    """Returns the ids of copies 1 to `count`. Raises TrackingError."""
    return tuple(copy_id(parent, copy, max_job_count) for copy in range(1, count + 1))


def divide_steps(steps: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Divides the steps over copies with these rates in steps per second, so that the last copy ends earliest.

    Each copy's portion differs from the exact proportion by less than the number of copies. A few steps go to the
    fastest copies only (the rule of the last round). Raises TrackingError if there are steps but no rate is above 0.
    """
    if steps < 0 or any(rate < 0 for rate in rates):
        raise TrackingError(f"cannot divide {steps} steps over rates {', '.join(f'{rate:g}' for rate in rates)}")
    total_rate = sum(rates)
    if steps and not total_rate > 0:
        raise TrackingError(f"no copy of the job can run on any node, but {steps} steps are left")
    portions = [floor(steps * (rate / total_rate)) if rate else 0 for rate in rates]
    while sum(portions) > steps:  # the portion of a very small rate may be rounded up
        portions[max(range(len(rates)), key=portions.__getitem__)] -= 1
    ends = [((portions[copy] + 1) / rate, copy) for copy, rate in enumerate(rates) if rate > 0]
    heapify(ends)
    for _ in range(steps - sum(portions)):
        _, copy = heappop(ends)
        portions[copy] += 1
        heappush(ends, ((portions[copy] + 1) / rates[copy], copy))
    return tuple(portions)


@dataclass(frozen=True, slots=True)
class ForkedJob:
    """A job with `remaining` steps. `rates` are the steps per second of a copy on each node, 0.0 if it cannot run."""

    job: str
    remaining: int
    rates: tuple[float, ...]


def assign_nodes(jobs: Sequence[ForkedJob], slot: float) -> Mapping[str, Mapping[int, int]]:
    """Returns by job the steps of each of its nodes. `slot` is the seconds of work in a round."""
    queue = sorted(
        (job for job in jobs if job.remaining and any(job.rates)), key=lambda job: job.remaining / sum(job.rates)
    )
    nodes: dict[str, list[int]] = {}
    free = set(range(max((len(job.rates) for job in queue), default=0)))
    for job in queue:
        nodes[job.job] = _nodes_needed(job, free, slot, is_last=job is queue[-1])
        free.difference_update(nodes[job.job])
    for node in sorted(free):
        helpable = [job for job in queue if _adds_work(job, nodes[job.job], node)]
        if helpable:
            nodes[max(helpable, key=lambda job: _seconds_to_end(job, nodes[job.job])).job].append(node)
    return {job.job: _portions(job, nodes[job.job]) for job in queue if nodes[job.job]}


def _nodes_needed(job: ForkedJob, free: Collection[int], slot: float, *, is_last: bool) -> list[int]:
    """Returns the nodes on which the job ends in this round: the slowest single node that suffices, which leaves faster
    ones to later jobs, else the fewest fastest; all free nodes if the job does not end."""
    by_rate = sorted((node for node in free if job.rates[node] > 0), key=lambda node: (-job.rates[node], node))
    sufficient = [node for node in reversed(by_rate) if not is_last and _seconds_to_end(job, [node]) <= slot]
    if sufficient:
        return sufficient[:1]
    taken: list[int] = []
    for node in by_rate:
        if _seconds_to_end(job, taken) > slot and _adds_work(job, taken, node):
            taken.append(node)
    return taken


def _seconds_to_end(job: ForkedJob, nodes: Sequence[int]) -> float:
    """Returns the seconds until the job ends on these nodes."""
    portions = _portions(job, nodes)
    return max((steps / job.rates[node] for node, steps in portions.items()), default=float("inf"))


def _adds_work(job: ForkedJob, nodes: Sequence[int], node: int) -> bool:
    """Returns whether one more node would get a step of this job and leave one to each of `nodes`."""
    portions = _portions(job, [*nodes, node]) if job.rates[node] > 0 else {}
    return len(portions) > len(nodes)


def _portions(job: ForkedJob, nodes: Sequence[int]) -> dict[int, int]:
    steps = divide_steps(job.remaining, [job.rates[node] for node in nodes]) if nodes else ()
    return {node: count for node, count in zip(nodes, steps, strict=True) if count}


@dataclass(frozen=True, slots=True)
class StepAssignment:
    """The steps assigned to a copy in a round, and how many of them it has done."""

    steps: int
    done: int = 0
    ended: bool = False
    """The copy has finished or died; later reports do not count."""


@dataclass(frozen=True, slots=True)
class JobTracker:
    """Counts the steps of a forked job: `aggregated` of `total` are done in closed rounds.

    `assignments`, by copy, are those of the open round `round_number`; empty between rounds.
    """

    total: int
    aggregated: int = 0
    round_number: int = 0
    assignments: Mapping[int, StepAssignment] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        """Steps still to be assigned, as of the last closed round."""
        return self.total - self.aggregated

    @property
    def finished(self) -> bool:
        """Whether all steps are done, so that all copies can be discarded."""
        return self.remaining == 0

    def begin_round(self, steps_by_copy: Mapping[int, int]) -> JobTracker:
        """Begins the next round with these steps for each copy.

        Raises TrackingError for more steps than are left, or while the last round is open.
        """
        if self.assignments:
            raise TrackingError(
                f"round {self.round_number} is still open: close it first, or its steps would be done twice"
            )
        if any(steps < 0 for steps in steps_by_copy.values()) or sum(steps_by_copy.values()) > self.remaining:
            raise TrackingError(f"cannot assign {sum(steps_by_copy.values())} steps: {self.remaining} are left")
        assignments = {copy: StepAssignment(steps) for copy, steps in steps_by_copy.items() if steps}
        return replace(self, round_number=self.round_number + 1, assignments=assignments)

    def report(self, copy: int, round_number: int, done: int) -> JobTracker:
        """Records that a copy has done `done` of its assigned steps of that round in total."""
        assignment = self.assignments.get(copy) if round_number == self.round_number else None
        if assignment is None or assignment.ended or done <= assignment.done:
            return self
        return self._with_assignment(copy, replace(assignment, done=min(done, assignment.steps)))

    def end_copy(self, copy: int, round_number: int) -> JobTracker:
        """Ends a copy that has finished or died: its earlier reports count, later ones do not."""
        assignment = self.assignments.get(copy) if round_number == self.round_number else None
        return self if assignment is None else self._with_assignment(copy, replace(assignment, ended=True))

    def close_round(self) -> JobTracker:
        """Closes the round and adds its reported steps to `aggregated`."""
        return replace(
            self,
            aggregated=self.aggregated + sum(assignment.done for assignment in self.assignments.values()),
            assignments={},
        )

    def _with_assignment(self, copy: int, assignment: StepAssignment) -> JobTracker:
        return replace(self, assignments={**self.assignments, copy: assignment})
