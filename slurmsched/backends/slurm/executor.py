"""What became of an operation, told from the cluster as it was read back. Slurm's words only say why.

A configuration file replaced in one step, so that Slurm never reads half of one.

Operations done and read back.

Consecutive changes go to Slurm as one batch, and nothing is believed before it is seen.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.cluster import parse_node
from slurmsched.backends.slurm.command_source import read_jobs
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.errors import UnsafeCommandError, error_from_stderr, last_message
from slurmsched.backends.slurm.operation_commands import OperationCommands, commands_for, is_job_id
from slurmsched.backends.slurm.requests import DEFAULT_FORM, RequestForm
from slurmsched.model import Hold, Job, JobId, JobSpec, JobState, Operation, Outcome, Request, Result, SetAsideJob, Verb

Verdict = tuple[Result, str]

_MESSAGES: Final = (
    re.compile(r"(?:scancel: error: )?Kill job error on job id (?P<job>[\d_+]+): (?P<words>.+)"),
    re.compile(r"(?P<words>.+) for job (?P<job>[\d_+]+)\Z"),
    re.compile(r"(?P<job>[\d_]+): (?P<words>.+)"),
)


def messages_by_job(stderr: str) -> dict[str, str]:
    """Slurm's words by job, the first ones for each; under an empty name what names no job."""
    messages: dict[str, str] = {}
    for line in stderr.splitlines():
        match = next((match for form in _MESSAGES if (match := form.match(line.strip()))), None)
        if match:
            messages.setdefault(match["job"], match["words"])
        elif line.strip():
            messages.setdefault("", line.strip())
    return messages


def job_verdict(operation: Operation, job: Job | None, message: str, unreadable: SetAsideJob | None = None) -> Verdict:
    """How an operation on a job ended, the job being what it is now.

    `job` is None where Slurm knows it no more, or, with `aside`, where it exists and its record could not be read.
    """
    if unreadable is not None and job is None:
        return _unreadable_verdict(operation, unreadable, message)
    if job is None or job.state is JobState.FINISHED:
        ended = "is gone" if job is None else f"is {job.state_text.lower()}"
        return Result.OVERTAKEN, f"job {operation.subject} {ended}"
    result, otherwise = _CHECKS[operation.verb](operation, job)
    if operation.verb is Verb.NOTIFY and message and result is Result.DONE:
        result = Result.REFUSED  # a signal cannot be read back: here what scancel says is all there is
    return result, "" if result is Result.DONE else (message if result is Result.REFUSED and message else otherwise)


def _unreadable_verdict(operation: Operation, unreadable: SetAsideJob, message: str) -> Verdict:
    """Of a job whose record cannot be read no more is known than whether it waits without a hold.

    A hold that does not show was not made, and a release that shows was. Whether anything else happened is not known:
    FAILED says so, and whatever is ours of the job stays ours.
    """
    match operation.verb, unreadable.pending:
        case Verb.HOLD, True:
            return Result.REFUSED, message or "it is not held"
        case Verb.HOLD, False:
            return (Result.FAILED, message) if message else (Result.DONE, "")
        case Verb.RELEASE, True:
            return Result.DONE, ""
    return Result.FAILED, message or f"whether it took effect is not known: {unreadable.reason}"


def matches_spec(spec: JobSpec, current: Request) -> bool:
    """Whether this request is the shape."""
    return (
        current.pinned == frozenset(spec.nodes)
        and current.nodes == spec.node_count
        and (current.gpus, current.gpu_type) == (spec.gpus, spec.gpu_type)
        and (current.cpus, current.tasks) == (spec.cpus * spec.node_count, spec.tasks)
        and spec.memory in (0, current.memory)
    )


def _unexpected_state(job: Job) -> str:
    return f"job {job.id} is {job.state_text.lower()}"


def _check_hold(_operation: Operation, job: Job) -> Verdict:
    if job.state is not JobState.PENDING:
        return Result.OVERTAKEN, _unexpected_state(job)
    return (Result.REFUSED, "it is not held") if job.hold is Hold.NONE else (Result.DONE, "")


def _check_release(_operation: Operation, job: Job) -> Verdict:
    return (Result.DONE, "") if job.hold is Hold.NONE else (Result.REFUSED, f"it is still held: {job.reason}")


def _check_update(operation: Operation, job: Job) -> Verdict:
    spec, now = operation.after, job.current_request
    if isinstance(spec, JobSpec) and matches_spec(spec, now):
        return Result.DONE, ""
    if job.state is not JobState.PENDING:
        return Result.OVERTAKEN, _unexpected_state(job)
    kind = f"{now.gpu_type}:" if now.gpu_type else ""
    where = f" on {','.join(sorted(now.pinned))}" if now.pinned else ""
    return Result.REFUSED, (
        f"it now asks for {now.nodes} nodes{where}, {kind}{now.gpus} GPUs, {now.cpus} CPUs,"
        f" {now.memory} MiB per node, {now.tasks} tasks"
    )


def _check_notify(_operation: Operation, job: Job) -> Verdict:
    return (Result.DONE, "") if job.state is JobState.RUNNING else (Result.OVERTAKEN, _unexpected_state(job))


def _check_requeue(_operation: Operation, job: Job) -> Verdict:
    match job.state:
        case JobState.PENDING:
            return (
                (Result.DONE, "") if job.hold is not Hold.NONE else (Result.REFUSED, "it waits again, but is not held")
            )
        case JobState.COMPLETING:
            on_its_way = "held" in job.reason.lower()
            return (Result.DONE, "") if on_its_way else (Result.OVERTAKEN, "it is ending by itself")
        case _:
            return Result.REFUSED, f"it is still {job.state_text.lower()}"


def _check_prioritize(operation: Operation, job: Job) -> Verdict:
    if job.nice == operation.after:
        return Result.DONE, ""
    pending = job.state is JobState.PENDING
    return (Result.REFUSED, f"its nice is {job.nice}") if pending else (Result.OVERTAKEN, _unexpected_state(job))


def _check_note(operation: Operation, job: Job) -> Verdict:
    text = operation.after if isinstance(operation.after, str) else ""
    same = job.admin_comment == text.rstrip()
    return (Result.DONE, "") if same else (Result.REFUSED, "the note is not there")


_CHECKS: Final[Mapping[Verb, Callable[[Operation, Job], Verdict]]] = {
    Verb.HOLD: _check_hold,
    Verb.UPDATE: _check_update,
    Verb.RELEASE: _check_release,
    Verb.NOTIFY: _check_notify,
    Verb.REQUEUE: _check_requeue,
    Verb.PRIORITIZE: _check_prioritize,
    Verb.NOTE: _check_note,
}


def read_config_file(path: str) -> str | None:
    """What the file holds, None where there is none. Raises OSError, UnsafeCommandError."""
    with suppress(FileNotFoundError):
        return _absolute_path(path).read_text(encoding="utf-8")
    return None


def replace_config_file(path: str, text: str | None) -> None:
    """Put `text` there, keeping owner and mode; None removes the file. Raises OSError, UnsafeCommandError."""
    target = _absolute_path(path)
    if text is None:
        target.unlink(missing_ok=True)
        return
    target = target.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            _copy_owner_and_mode(target, file.fileno())
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _copy_owner_and_mode(target: Path, descriptor: int) -> None:
    try:
        known = target.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, 0o644)
        return
    os.fchmod(descriptor, known.st_mode & 0o7777)
    if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, known.st_uid, known.st_gid)


def _absolute_path(path: str) -> Path:
    if not Path(path).is_absolute():
        raise UnsafeCommandError(f"not an absolute path: {path[:80]!r}")
    return Path(path)


_OUR_PREFIX: Final = "synsched"
_JOB_VERBS: Final = frozenset(Verb) - {Verb.WEIGH, Verb.CONFIGURE}


@dataclass(slots=True)
class BatchExecutor:
    """One batch on its way. `forms` tell how the jobs' requests stand."""

    commands: Commands
    forms: Mapping[JobId, RequestForm]
    _messages: dict[str, str] = field(default_factory=dict)
    _commands_of: dict[int, OperationCommands] = field(default_factory=dict)
    _verdicts: dict[int, Verdict] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Do them in order and look. Raises UnreachableError when nobody answers, NoSlurmError."""
        notes = {op.subject for op in operations if op.verb is Verb.NOTE and op.permitted}
        self._reject_unwritable(operations, self._read_jobs(notes)[0])
        for index, operation in enumerate(operations):
            if index not in self._verdicts:
                self._run(index, operation)
        self._flush()
        self._read_back(operations)
        return tuple(self._outcome(index, operation) for index, operation in enumerate(operations))

    def _reject_unwritable(self, operations: Sequence[Operation], noted: Mapping[str, Job]) -> None:
        """AdminComment belongs to other tools at many sites: only an empty one, or ours, is written."""
        for index, operation in enumerate(operations):
            if not operation.permitted:
                self._verdicts[index] = Result.BLOCKED, "not permitted to this identity"
            elif operation.verb is Verb.NOTE and operation.subject in noted:
                theirs = noted[operation.subject].admin_comment
                if theirs and not theirs.startswith(_OUR_PREFIX):
                    self._verdicts[index] = Result.OVERTAKEN, "its AdminComment is somebody else's"

    def _run(self, index: int, operation: Operation) -> None:
        try:
            run = commands_for(operation, self.forms.get(operation.subject, DEFAULT_FORM))
        except UnsafeCommandError as error:
            self._verdicts[index] = Result.REFUSED, str(error)
            return
        self._commands_of[index] = run
        if operation.verb is Verb.CONFIGURE:
            self._flush()
            self._verdicts[index] = self._configure(operation)
            return
        self._lines += run.lines
        for argv in run.commands:
            self._flush()
            self._keep_messages(self.commands.change(*argv), operation.subject)

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._keep_messages(self.commands.change_many(lines), "")

    def _keep_messages(self, answer: CommandResult, subject: str) -> None:
        """Keep what was said. What names no job is about the one command, where there was only one."""
        error = error_from_stderr("scontrol", answer.stderr)
        if isinstance(error, UnreachableError):
            raise error
        for job, message in messages_by_job(answer.stderr).items():
            self._messages.setdefault(job or subject, message)

    def _read_back(self, operations: Sequence[Operation]) -> None:
        unread = [(index, op) for index, op in enumerate(operations) if index not in self._verdicts]
        jobs, aside = self._read_jobs({op.subject for _, op in unread if op.verb in _JOB_VERBS})
        weights = self._read_weights({op.subject for _, op in unread if op.verb is Verb.WEIGH})
        for index, operation in unread:
            message = self._messages.get(operation.subject, "")
            if operation.verb is Verb.WEIGH:
                self._verdicts[index] = self._check_weight(operation, weights.get(operation.subject))
            else:
                subject = operation.subject
                self._verdicts[index] = job_verdict(operation, jobs.get(subject), message, aside.get(subject))
        started = [op.subject for _, op in unread if op.verb is Verb.HOLD and _held_running(jobs.get(op.subject))]
        if started:
            # They started before the hold came: it would show only when they are requeued.
            self.commands.change_many([f"release {job}" for job in started])

    def _read_jobs(self, ids: set[str]) -> tuple[dict[JobId, Job], dict[JobId, SetAsideJob]]:
        """The jobs as they are now, and those that exist and cannot be read; who is gone is in neither."""
        safe = {job for job in ids if is_job_id(job)}
        jobs, unreadable_jobs = read_jobs(self.commands, safe)
        aside = {job: SetAsideJob(job, "it has no number that Slurm could be asked for") for job in ids - safe}
        for unreadable in unreadable_jobs:
            covered = (job for job in safe - jobs.keys() if unreadable.job in (job, job.partition("_")[0]))
            aside |= {job: replace(unreadable, job=job) for job in covered}
        return jobs, aside

    def _read_weights(self, names: set[str]) -> dict[str, int]:
        """The nodes' weights now; those that do not exist are missing."""
        if not names:
            return {}
        lines = self.commands.read("scontrol", "-a", "-o", "show", "node").splitlines()
        nodes = (parse_node(line) for line in lines if line.startswith("NodeName="))
        return {node.name: node.weight for node in nodes if node.name in names}

    def _check_weight(self, operation: Operation, weight: int | None) -> Verdict:
        if weight is None:
            return Result.OVERTAKEN, f"there is no node {operation.subject}"
        if weight == operation.after:
            return Result.DONE, ""
        return Result.REFUSED, self._messages.get("") or f"its weight is {weight}"

    def _configure(self, operation: Operation) -> Verdict:
        """Write, have Slurm read it, and put the former text back where Slurm will not."""
        path, before, after = operation.subject, operation.before, operation.after
        if not isinstance(after, str | None) or not isinstance(before, str | None):
            return Result.REFUSED, "a configuration file is text"
        try:
            current = read_config_file(path)
            if current not in (before, after):
                return Result.OVERTAKEN, f"{path} was changed by somebody else meanwhile"
            replace_config_file(path, after)
            answer = self.commands.change("scontrol", "reconfigure")
            if answer.exit_code == 0 and not answer.stderr:
                return Result.DONE, ""
            replace_config_file(path, current)
        except OSError as error:
            return Result.FAILED, f"cannot write {path}: {error.strerror}"
        except UnsafeCommandError as error:
            return Result.REFUSED, str(error)
        return Result.REFUSED, last_message(answer.stderr)

    def _outcome(self, index: int, operation: Operation) -> Outcome:
        result, detail = self._verdicts[index]
        run = self._commands_of.get(index)
        return Outcome(operation, result, run.shown if run else (), detail)


def _held_running(job: Job | None) -> bool:
    return job is not None and job.state is JobState.RUNNING and job.priority == 0
