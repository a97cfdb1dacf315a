"""How far one plan has come, in the journal and on the cluster: the state of an application."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurmsched.backends.protocol import Backend
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.journalling import Journalling
from slurmsched.model import Job, JobId, Operation, Outcome, Plan, Result, Snapshot, Verb
from slurmsched.rounds.progress import Done, Progress
from slurmsched.store.journal import Entry

__all__ = ["Course"]


@dataclass(slots=True)
class Course:
    """One plan on its way. Operations of the plan are numbered by place; what takes them back comes after.

    Nothing reaches the backend without an intent in the journal before and an outcome after.
    """

    round_id: int
    plan: Plan
    snapshot: Snapshot
    backend: Backend
    journal: Journalling
    clock: Clock
    done: dict[int, Done] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    undone: set[tuple[Verb, str]] = field(default_factory=set)
    outdated: bool = False
    """Something was executed since the snapshot was taken."""
    saved: frozenset[JobId] = frozenset()
    """Jobs that were notified and say that their checkpoint is written."""
    _offset: float = 0.0

    def __post_init__(self) -> None:
        self._offset = self.clock.now() - self.clock.monotonic()

    @property
    def now(self) -> float:
        """Unix seconds as of the start of the plan, then counted steadily: leads are not cut short by a set clock."""
        return self._offset + self.clock.monotonic()

    @property
    def progress(self) -> Progress:
        """Where it stands, for the pure rules."""
        return Progress(self.plan, self.done, self.snapshot, self.now, self.saved)

    @property
    def notified(self) -> tuple[Job, ...]:
        """Jobs that were told to write a checkpoint and that nobody has requeued yet."""
        requeued = {subject for subject, place in self.progress.requeues.items() if place in self.done}
        told = (self.plan.operations[place] for place in self.done)
        names = dict.fromkeys(op.subject for op in told if op.verb is Verb.NOTIFY and op.subject not in requeued)
        return tuple(self.snapshot.job[name] for name in names if name in self.snapshot.job)

    def look(self) -> None:
        """See the cluster as it is now."""
        self.snapshot, self.outdated = self.backend.observe(), False

    @property
    def steps(self) -> int:
        """How much has been decided one way or the other; grows while there is progress."""
        return len(self.done) + len(self.undone)

    def forgo(self, places: Iterable[int], became: Result, detail: str) -> None:
        """These operations of the plan are not done."""
        numbered = [(place, self.plan.operations[place]) for place in places]
        if numbered:
            self.journal.forgo(self.round_id, numbered, became, detail, self.clock.now())
        for place, operation in numbered:
            self.done[place] = Done(became, self.now)
            self.outcomes.append(Outcome(operation, became, self.backend.commands(operation), detail))

    def execute(self, places: Sequence[int]) -> None:
        """Do these operations of the plan as one batch."""
        became = self._execute([(place, self.plan.operations[place]) for place in places])
        for entry, outcome in became:
            self.entries[entry.position] = entry
            self.done[entry.position] = Done(outcome.result, self.now)

    def take_back(self, operations: Sequence[Operation]) -> None:
        """Do these, which undo starts that did not happen. A start is undone once its job is held again."""
        first = len(self.plan.operations) + len(self.undone)
        self.undone |= {(operation.verb, operation.subject) for operation in operations}
        became = self._execute(list(enumerate(operations, first)))
        starts = self.progress.starts
        for _, outcome in became:
            place = starts.get(outcome.operation.subject)
            held_again = outcome.operation.verb is Verb.HOLD and outcome.result is Result.DONE
            if held_again and place is not None and self.progress.succeeded(place):
                self._mark_undone(place)

    def _execute(self, numbered: Sequence[tuple[int, Operation]]) -> Sequence[tuple[Entry, Outcome]]:
        entries = self.journal.intend(self.round_id, numbered, self.clock.now())
        self.outdated = True
        became = tuple(zip(entries, self.backend.execute([operation for _, operation in numbered]), strict=True))
        self.journal.record(became, self.clock.now())
        self.outcomes.extend(outcome for _, outcome in became)
        return became

    def _mark_undone(self, place: int) -> None:
        operation = self.plan.operations[place]
        job = self.snapshot.job.get(operation.subject)
        said = "" if job is None else job.reason
        self.journal.mark_undone(self.entries[place], said)
        self.done[place] = Done(Result.UNDONE, self.now)
        self.outcomes.append(Outcome(operation, Result.UNDONE, detail=said))
