"""A cluster some of whose jobs cannot be read for a while: they exist, and nothing else is known of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurmsched.backends.protocol import CallCounts, FinishedPage, Identity, JobOrigin
from slurmsched.backends.simulated import SimulatedBackend
from slurmsched.backends.slurm.executor import job_verdict
from slurmsched.model import Hold, Job, JobId, JobState, Operation, Outcome, Result, SetAsideJob, Snapshot

WHY = "its record cannot be read"


def aside(job: Job) -> SetAsideJob:
    """What is known of a job whose record cannot be read."""
    pending = job.state is JobState.PENDING and job.hold is Hold.NONE
    return SetAsideJob(job.id, WHY, job.user, ",".join(job.partitions), pending)


@dataclass
class Hiding:
    """The simulated backend with jobs that cannot be read; `choose` says anew at each look, reading back too, which."""

    backend: SimulatedBackend
    hidden: frozenset[JobId] = frozenset()
    choose: Callable[[Snapshot], frozenset[JobId]] | None = None
    looks: int = 0
    name: str = "simulated"
    operation_seconds: float = 0.0
    simply_ignores: int = 0
    """So many operations on jobs that cannot be read have no effect, and nobody says so."""

    @property
    def calls(self) -> CallCounts:
        return self.backend.calls

    def observe(self) -> Snapshot:
        seen = self.backend.observe()
        self.looks += 1
        if self.choose is not None:
            self.hidden = self.choose(seen)
        return self._without(seen)

    def activity(self) -> str:
        return self.backend.activity()

    def finished_runs(self, since: float, until: float) -> FinishedPage:
        return self.backend.finished_runs(since, until)

    def origins(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobOrigin]:
        return self.backend.origins(jobs)

    def identity(self) -> Identity:
        return self.backend.identity()

    def commands(self, operation: Operation) -> tuple[str, ...]:
        return self.backend.commands(operation)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """They are done all the same; what became of them is told from what can be read."""
        ignored = [op for op in operations if op.subject in self.hidden][: self.simply_ignores]
        self.simply_ignores -= len(ignored)
        done = self.backend.execute([op for op in operations if op not in ignored])
        done = (*done, *(Outcome(operation, Result.DONE) for operation in ignored))
        seen = self.backend.cluster.snapshot()
        self.looks += 1
        if self.choose is not None:
            self.hidden = self.choose(seen)
        order = {id(operation): place for place, operation in enumerate(operations)}
        return tuple(self._told(own, seen) for own in sorted(done, key=lambda own: order[id(own.operation)]))

    def _told(self, outcome: Outcome, seen: Snapshot) -> Outcome:
        subject = outcome.operation.subject
        if subject not in self.hidden or subject not in seen.jobs_by_id or outcome.result is Result.BLOCKED:
            return outcome
        said = "" if outcome.result is Result.DONE else outcome.detail
        result, detail = job_verdict(outcome.operation, None, said, aside(seen.jobs_by_id[subject]))
        return replace(outcome, result=result, detail=detail)

    def _without(self, seen: Snapshot) -> Snapshot:
        lost = [job for job in seen.jobs if job.id in self.hidden and job.state is not JobState.FINISHED]
        if not lost:
            return seen
        rest = tuple(job for job in seen.jobs if job not in lost)
        return replace(seen, jobs=rest, set_aside=tuple(map(aside, lost)))
