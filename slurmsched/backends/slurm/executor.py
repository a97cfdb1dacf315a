"""Carries out operations and reads back what the cluster shows.

Consecutive changes go to scontrol as one batch. An operation's result is decided by the state read back; Slurm's
messages only give the reason. Configuration files are replaced atomically.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.cluster import parse_node
from slurmsched.backends.slurm.command_source import read_jobs
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.errors import SlurmParseError, UnsafeCommandError, error_from_stderr, last_message
from slurmsched.backends.slurm.hostlist import expand_numbers
from slurmsched.backends.slurm.operation_commands import (
    OperationCommands,
    commands_for,
    is_job_id,
    join_tasks,
    lines_to_split_out,
)
from slurmsched.backends.slurm.requests import DEFAULT_FORM, RequestForm
from slurmsched.backends.slurm.squeue_table import read_task_records
from slurmsched.model import (
    Hold,
    Job,
    JobId,
    JobSpec,
    JobState,
    Operation,
    Outcome,
    Request,
    Result,
    SetAsideJob,
    Snapshot,
    Verb,
)
from slurmsched.model.reasons import pluralise

Verdict = tuple[Result, str]

_MESSAGES: Final = (
    re.compile(r"(?:scancel: error: )?Kill job error on job id (?P<job>[\d_+]+): (?P<message>.+)"),
    re.compile(r"(?P<message>.+) for job (?P<job>[\d_+]+)\Z"),
    re.compile(r"(?P<job>\d+(?:_[\d,-]+)?): (?P<message>.+)"),
)
_NO_MESSAGE: Final = "No error"
"""What scontrol says of the tasks of an array for which a command succeeded, if it did not for others."""


def messages_by_job(stderr: str) -> dict[str, str]:
    """Slurm's first message for each job; under the empty string the first one that names no job."""
    messages: dict[str, str] = {}
    for line in stderr.splitlines():
        match = next((match for form in _MESSAGES if (match := form.match(line.strip()))), None)
        if match is None:
            if line.strip():
                messages.setdefault("", line.strip())
        elif match["message"] != _NO_MESSAGE:
            for job in _named_jobs(match["job"]):
                messages.setdefault(job, match["message"])
    return messages


def _named_jobs(named: str) -> Sequence[str]:
    """The job ids in `7`, `7_1` or `7_2,5-9`."""
    array, _, tasks = named.partition("_")
    if "-" not in tasks and "," not in tasks:
        return (named,)
    try:
        return [f"{array}_{task}" for task in expand_numbers(tasks)]
    except SlurmParseError:
        return (named,)


def job_verdict(operation: Operation, job: Job | None, message: str, unreadable: SetAsideJob | None = None) -> Verdict:
    """The result of an operation on a job, from the job's state after it and Slurm's message.

    `job` is None if Slurm no longer knows the job, or, with `unreadable`, if its record could not be parsed.
    """
    if unreadable is not None and job is None:
        return _unreadable_verdict(operation, unreadable, message)
    if job is None or job.state is JobState.FINISHED:
        ended = "is gone" if job is None else f"is {job.state_text.lower()}"
        return Result.OVERTAKEN, f"job {operation.subject} {ended}"
    result, otherwise = _CHECKS[operation.verb](operation, job)
    if operation.verb is Verb.NOTIFY and message and result is Result.DONE:
        result = Result.REFUSED  # a signal cannot be read back: only scancel's message tells
    return result, "" if result is Result.DONE else (message if result is Result.REFUSED and message else otherwise)


def _unreadable_verdict(operation: Operation, unreadable: SetAsideJob, message: str) -> Verdict:
    """The result of an operation on a job whose record cannot be parsed: only whether it waits unheld is known.

    That decides HOLD and RELEASE. Every other verb is FAILED, as its effect is unknown; the store then keeps its record
    of the job as it is.
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
    """Whether the job's current request is what the spec asks for. Slurm counts at least one task per node."""
    tasks = max(spec.tasks, spec.node_count)
    cpus = spec.cpus_per_task * tasks if spec.cpus_per_task else spec.cpus * spec.node_count
    return (
        current.pinned == frozenset(spec.nodes)
        and spec.narrowed in (None, current.narrowed)
        and (current.nodes == spec.node_count or not spec.counts_nodes)
        and (current.gpus, current.gpu_type) == (spec.gpus, spec.gpu_type)
        and max(current.tasks, spec.node_count) == tasks
        and (spec.keeps_cpus or current.cpus == cpus)
        and (spec.keeps_memory or spec.memory in (0, current.memory))
        and spec.shards in (0, current.shards)
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
    shards = f", {pluralise(now.shards, 'shard')}" if now.shards else ""
    return Result.REFUSED, (
        f"it now asks for {pluralise(now.nodes, 'node')}{where}, {kind}{pluralise(now.gpus, 'GPU')},"
        f" {pluralise(now.cpus, 'CPU')}, {now.memory} MiB per node, {pluralise(now.tasks, 'task')}{shards}"
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
            requeued = "held" in job.reason.lower()
            return (Result.DONE, "") if requeued else (Result.OVERTAKEN, "it is ending by itself")
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
    return (Result.DONE, "") if same else (Result.REFUSED, "its AdminComment is not the note")


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
    """The file's text, None if it does not exist. Raises OSError, UnsafeCommandError."""
    with suppress(FileNotFoundError):
        return _absolute_path(path).read_text(encoding="utf-8")
    return None


def replace_config_file(path: str, text: str | None) -> None:
    """Replaces the file atomically, keeping owner and mode; None removes it. Raises OSError, UnsafeCommandError."""
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
        status = target.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, 0o644)
        return
    os.fchmod(descriptor, status.st_mode & 0o7777)
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, status.st_uid, status.st_gid)


def _absolute_path(path: str) -> Path:
    if not Path(path).is_absolute():
        raise UnsafeCommandError(f"not an absolute path: {path[:80]!r}")
    return Path(path)


_NOTE_PREFIX: Final = "synsched"
_MANY_TASKS: Final = 16
"""Tasks of an array in a batch from which they get job records of their own before they are updated. For an update by a
task's name scontrol loads all records of the array: 9 ms each for the first 200 tasks of an array, 23 ms for the third
200 (24.11, 12,500 nodes). By the number of its own record it takes 3 ms, and 200 tasks get those in 30 ms."""
_JOB_VERBS: Final = frozenset(Verb) - {Verb.WEIGH, Verb.CONFIGURE}


@dataclass(slots=True)
class BatchExecutor:
    """Carries out one batch of operations. `forms` are the request forms of the jobs; use an executor once."""

    commands: Commands
    forms: Mapping[JobId, RequestForm]
    _messages: dict[str, str] = field(default_factory=dict)
    _records: dict[JobId, str] = field(default_factory=dict)
    """The numbers of the records that tasks have got in this batch."""
    _subjects: dict[str, JobId] = field(default_factory=dict)
    """The tasks of arrays by the numbers of their records, which commands may name instead."""
    _commands_of: dict[int, OperationCommands] = field(default_factory=dict)
    _verdicts: dict[int, Verdict] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Carries out the operations in order and reads back. Raises UnreachableError and other BackendErrors."""
        notes = {op.subject for op in operations if op.verb is Verb.NOTE and op.permitted}
        self._reject_unwritable(operations, self._read_jobs(notes, frozenset())[0])
        self._split_out_tasks(op for index, op in enumerate(operations) if index not in self._verdicts)
        for index, operation in enumerate(operations):
            if index not in self._verdicts:
                self._run(index, operation)
        self._flush()
        self._read_back(operations)
        return tuple(self._outcome(index, operation) for index, operation in enumerate(operations))

    def _reject_unwritable(self, operations: Sequence[Operation], noted: Mapping[str, Job]) -> None:
        """Blocks what is not permitted, and notes over an AdminComment that another program wrote."""
        for index, operation in enumerate(operations):
            if not operation.permitted:
                self._verdicts[index] = Result.BLOCKED, "not permitted to this identity"
            elif operation.verb is Verb.NOTE and operation.subject in noted:
                comment = noted[operation.subject].admin_comment
                if comment and not comment.startswith(_NOTE_PREFIX):
                    self._verdicts[index] = Result.OVERTAKEN, "its AdminComment was written by another program"

    def _split_out_tasks(self, operations: Iterable[Operation]) -> None:
        """Gives tasks of an array of which many are updated job records of their own. Raises BackendError."""
        by_array: defaultdict[str, list[JobId]] = defaultdict(list)
        for operation in operations:
            array, _, task = operation.subject.partition("_")
            of_array = operation.verb is Verb.UPDATE and task and is_job_id(operation.subject)
            if of_array and not self._form(operation.subject).record:
                by_array[array].append(operation.subject)
        for array, tasks in by_array.items():
            if len(tasks) < _MANY_TASKS:
                continue
            known = read_task_records(self.commands, array)
            sharing = [task for task in known if not known[task].number]
            named = [task for task in tasks if task in known and not known[task].number]
            if len(named) == len(sharing):
                named = named[:-1]  # one has the array's number: what changes all at once would leave them together
            if lines := lines_to_split_out({task: known[task].reason for task in named}):
                error = error_from_stderr("scontrol", self.commands.change_many(lines).stderr)
                if isinstance(error, UnreachableError):
                    raise error
                known = read_task_records(self.commands, array)
            self._records |= {task: known[task].number for task in tasks if task in known}

    @property
    def forms_now(self) -> Mapping[JobId, RequestForm]:
        """The forms, with the records that tasks have got."""
        return {**self.forms, **{job: self._form(job) for job in self._records}} if self._records else self.forms

    def _form(self, job: JobId) -> RequestForm:
        form, record = self.forms.get(job, DEFAULT_FORM), self._records.get(job)
        return replace(form, record=record) if record else form

    def _run(self, index: int, operation: Operation) -> None:
        form = self._form(operation.subject)
        try:
            run = commands_for(operation, form)
        except UnsafeCommandError as error:
            self._verdicts[index] = Result.REFUSED, str(error)
            return
        self._commands_of[index] = run
        if form.record:
            self._subjects[form.record] = operation.subject
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
            self._keep_messages(self.commands.change_many(join_tasks(lines)), "")

    def _keep_messages(self, answer: CommandResult, subject: str) -> None:
        """Keeps the messages of a command. One that names no job counts for `subject`. Raises UnreachableError."""
        error = error_from_stderr("scontrol", answer.stderr)
        if isinstance(error, UnreachableError):
            raise error
        for job, message in messages_by_job(answer.stderr).items():
            self._messages.setdefault(self._subjects.get(job, job) or subject, message)

    def _read_back(self, operations: Sequence[Operation]) -> None:
        unread = [(index, op) for index, op in enumerate(operations) if index not in self._verdicts]
        jobs, aside = self._read_jobs(
            {op.subject for _, op in unread if op.verb in _JOB_VERBS},
            {op.subject for _, op in unread if op.verb is Verb.UPDATE},
        )
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
            # They started before the hold, which would take effect when they are requeued.
            self.commands.change_many(join_tasks(f"release {job}" for job in started))

    def _read_jobs(self, ids: set[str], detailed: Set[str]) -> tuple[dict[JobId, Job], dict[JobId, SetAsideJob]]:
        """The jobs now, and those whose record cannot be parsed. A job that is gone is in neither.

        Only those in `detailed` have allocations and a memory request that is not in doubt: for all jobs that a batch
        has started, scontrol would print the records of the whole cluster.
        """
        safe = {job for job in ids if is_job_id(job)}
        records = {job: form.record for job in safe if (form := self._form(job)).record}
        jobs, unreadable_jobs = read_jobs(self.commands, safe, detailed & safe, records)
        if unreadable_jobs:  # one may only have changed between the two commands of a read
            jobs, unreadable_jobs = read_jobs(self.commands, safe, detailed & safe, records)
        aside = {job: SetAsideJob(job, "its name is not a job id") for job in ids - safe}
        for unreadable in unreadable_jobs:
            covered = (job for job in safe - jobs.keys() if unreadable.job in (job, job.partition("_")[0]))
            aside |= {job: replace(unreadable, job=job) for job in covered}
        return jobs, aside

    def _read_weights(self, names: set[str]) -> dict[str, int]:
        """The current weights of these nodes; nodes that do not exist are missing."""
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
        """Writes a configuration file and runs `scontrol reconfigure`; restores the file if that fails."""
        path, before, after = operation.subject, operation.before, operation.after
        if not isinstance(after, str | None) or not isinstance(before, str | None):
            return Result.REFUSED, "a configuration file is text"
        try:
            current = read_config_file(path)
            if current not in (before, after):
                return Result.OVERTAKEN, f"{path} was changed by another program meanwhile"
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


_RESTART_DELAY: Final = 1.1
"""Seconds: a whole one of slurmctld's clock, also while that is being corrected."""


class RestartDelays:
    """From when on a job that was requeued may be started again. `monotonic` returns seconds.

    Slurm ends a run with a message that bears slurmctld's time in whole seconds, and a node then refuses to launch the
    job by a credential that is not younger, in whole seconds too (slurmd: `already killed, do not launch`): the job
    fails with exit code 1 before the first line of its script. Slurm itself lets a requeued job wait for minutes; who
    clears this wait has to let a second pass. Of restarts within one second all failed on 22.05 and 24.11, and none on
    26.05.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: Mapping[JobId, tuple[int, float]] = {}

    def see(self, snapshot: Snapshot) -> None:
        """Take in a poll that has just been read: the last run of a job that waits in it ended before now."""
        now, known = self._monotonic(), self._waiting
        self._waiting = {
            job.id: of if (of := known.get(job.id)) is not None and of[0] == job.restarts else (job.restarts, now)
            for job in snapshot.jobs_in_state(JobState.PENDING)
            if job.restarts
        }

    def seconds_left(self, released: Iterable[JobId]) -> float:
        """Seconds until all of these jobs may be started; 0 for at once."""
        since = max((self._waiting[job][1] for job in released if job in self._waiting), default=None)
        return 0.0 if since is None else max(0.0, since + _RESTART_DELAY - self._monotonic())
