"""Operations done and read back.

Consecutive changes go to Slurm as one batch, and nothing is believed before it is seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import Answer, Commands
from slurmsched.backends.slurm.errors import UnsafeError, explained, last_words
from slurmsched.backends.slurm.files import content, replace_content
from slurmsched.backends.slurm.nodes import node_of
from slurmsched.backends.slurm.requests import PLAIN, Form
from slurmsched.backends.slurm.text_jobs import jobs_now
from slurmsched.backends.slurm.verdicts import Verdict, complaints, of_job
from slurmsched.backends.slurm.wording import Wording, worded
from slurmsched.backends.slurm.words import is_job_id
from slurmsched.model import Job, JobId, JobState, Operation, Outcome, Result, Verb

__all__ = ["Applying"]

_OURS: Final = "synsched"
_OF_JOBS: Final = frozenset(Verb) - {Verb.WEIGH, Verb.CONFIGURE}


@dataclass(slots=True)
class Applying:
    """One batch on its way. `forms` tell how the jobs' requests stand."""

    commands: Commands
    forms: Mapping[JobId, Form]
    _words: dict[str, str] = field(default_factory=dict)
    _wordings: dict[int, Wording] = field(default_factory=dict)
    _verdicts: dict[int, Verdict] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Do them in order and look. Raises UnreachableError when nobody answers, NoSlurmError."""
        notes = {op.subject for op in operations if op.verb is Verb.NOTE and op.permitted}
        self._keep_off(operations, self._jobs(notes))
        for place, operation in enumerate(operations):
            if place not in self._verdicts:
                self._do(place, operation)
        self._flush()
        self._read_back(operations)
        return tuple(self._outcome(place, operation) for place, operation in enumerate(operations))

    def _keep_off(self, operations: Sequence[Operation], noted: Mapping[str, Job]) -> None:
        """AdminComment belongs to other tools at many sites: only an empty one, or ours, is written."""
        for place, operation in enumerate(operations):
            if not operation.permitted:
                self._verdicts[place] = Result.BLOCKED, "not permitted to this identity"
            elif operation.verb is Verb.NOTE and operation.subject in noted:
                theirs = noted[operation.subject].admin_comment
                if theirs and not theirs.startswith(_OURS):
                    self._verdicts[place] = Result.OVERTAKEN, "its AdminComment is somebody else's"

    def _do(self, place: int, operation: Operation) -> None:
        try:
            wording = worded(operation, self.forms.get(operation.subject, PLAIN))
        except UnsafeError as error:
            self._verdicts[place] = Result.REFUSED, str(error)
            return
        self._wordings[place] = wording
        if operation.verb is Verb.CONFIGURE:
            self._flush()
            self._verdicts[place] = self._configure(operation)
            return
        self._lines += wording.lines
        for argv in wording.argvs:
            self._flush()
            self._hear(self.commands.change(*argv), operation.subject)

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._hear(self.commands.change_many(lines), "")

    def _hear(self, answer: Answer, subject: str) -> None:
        """Keep what was said. What names no job is about the one command, where there was only one."""
        error = explained("scontrol", answer.error)
        if isinstance(error, UnreachableError):
            raise error
        for job, words in complaints(answer.error).items():
            self._words.setdefault(job or subject, words)

    def _read_back(self, operations: Sequence[Operation]) -> None:
        open_ones = [(place, op) for place, op in enumerate(operations) if place not in self._verdicts]
        jobs = self._jobs({op.subject for _, op in open_ones if op.verb in _OF_JOBS})
        weights = self._weights({op.subject for _, op in open_ones if op.verb is Verb.WEIGH})
        for place, operation in open_ones:
            words = self._words.get(operation.subject, "")
            if operation.verb is Verb.WEIGH:
                self._verdicts[place] = self._weighed(operation, weights.get(operation.subject))
            else:
                self._verdicts[place] = of_job(operation, jobs.get(operation.subject), words)
        started = [op.subject for _, op in open_ones if op.verb is Verb.HOLD and _held_running(jobs.get(op.subject))]
        if started:
            # They started before the hold came: it would show only when they are requeued.
            self.commands.change_many([f"release {job}" for job in started])

    def _jobs(self, ids: set[str]) -> dict[JobId, Job]:
        """The jobs as they are now; the ones that are gone, or make no sense, are missing."""
        return jobs_now(self.commands, (job for job in ids if is_job_id(job)))[0]

    def _weights(self, names: set[str]) -> dict[str, int]:
        """The nodes' weights now; those that do not exist are missing."""
        if not names:
            return {}
        lines = self.commands.read("scontrol", "-a", "-o", "show", "node").splitlines()
        nodes = (node_of(line) for line in lines if line.startswith("NodeName="))
        return {node.name: node.weight for node in nodes if node.name in names}

    def _weighed(self, operation: Operation, weight: int | None) -> Verdict:
        if weight is None:
            return Result.OVERTAKEN, f"there is no node {operation.subject}"
        if weight == operation.after:
            return Result.DONE, ""
        return Result.REFUSED, self._words.get("") or f"its weight is {weight}"

    def _configure(self, operation: Operation) -> Verdict:
        """Write, have Slurm read it, and put the former text back where Slurm will not."""
        path, before, after = operation.subject, operation.before, operation.after
        if not isinstance(after, str | None) or not isinstance(before, str | None):
            return Result.REFUSED, "a configuration file is text"
        try:
            found = content(path)
            if found not in (before, after):
                return Result.OVERTAKEN, f"{path} was changed by somebody else meanwhile"
            replace_content(path, after)
            answer = self.commands.change("scontrol", "reconfigure")
            if answer.code == 0 and not answer.error:
                return Result.DONE, ""
            replace_content(path, found)
        except OSError as error:
            return Result.FAILED, f"cannot write {path}: {error.strerror}"
        except UnsafeError as error:
            return Result.REFUSED, str(error)
        return Result.REFUSED, last_words(answer.error)

    def _outcome(self, place: int, operation: Operation) -> Outcome:
        result, detail = self._verdicts[place]
        wording = self._wordings.get(place)
        return Outcome(operation, result, wording.shown if wording else (), detail)


def _held_running(job: Job | None) -> bool:
    return job is not None and job.state is JobState.RUNNING and job.priority == 0
