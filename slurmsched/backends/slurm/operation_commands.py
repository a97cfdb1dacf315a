"""Builds Slurm's commands for operations, and checks every value in them. Runs nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.backends.slurm.errors import UnsafeCommandError
from slurmsched.backends.slurm.hostlist import fold_hostlist
from slurmsched.backends.slurm.requests import RequestForm
from slurmsched.model import JobSpec, Operation, Verb

_JOB: Final = re.compile(r"[1-9][0-9]{0,9}(?:[_+][0-9]{1,9})?\Z")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_MAX_NOTE_CHARACTERS: Final = 1000


def checked_job_id(text: str) -> str:
    """The text, which must be a job id. Raises UnsafeCommandError."""
    return _checked(_JOB, text, "a job id")


def is_job_id(text: str) -> bool:
    """Whether the text is a job id."""
    return _JOB.match(text) is not None


def checked_node_name(text: str) -> str:
    """The text, which must be a node name. Raises UnsafeCommandError."""
    return _checked(_NODE, text, "a node name")


def checked_gpu_type(text: str) -> str:
    """The text, which must be a GPU type. Raises UnsafeCommandError."""
    return _checked(_TYPE, text, "a GPU type")


def checked_number(value: object, minimum: int = 0) -> int:
    """The value, which must be an integer of at least `minimum`. Raises UnsafeCommandError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UnsafeCommandError(f"not a number of at least {minimum}: {value!r}")
    return value


def checked_note(text: object) -> str:
    """The text, which must be one printable line without quotes or backslashes. Raises UnsafeCommandError."""
    if (
        not isinstance(text, str)
        or not text.isprintable()
        or len(text) > _MAX_NOTE_CHARACTERS
        or set(text) & set("\"'\\")
    ):
        raise UnsafeCommandError(f"not one line of text without quotes: {str(text)[:60]!r}")
    return text


def _checked(form: re.Pattern[str], text: str, what: str) -> str:
    if not form.match(text):
        raise UnsafeCommandError(f"not {what}: {text[:60]!r}")
    return text


_MAX_NICE: Final = 2_000_000_000
_SIGNALS: Final = {"usr1": "USR1", "usr2": "USR2", "term": "TERM", "int": "INT", "hup": "HUP"}


@dataclass(frozen=True, slots=True)
class OperationCommands:
    """An operation's commands: lines for scontrol's standard input, or whole commands."""

    lines: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """The commands as typed in a shell."""
        return tuple(f"scontrol {line}" for line in self.lines) + tuple(shlex.join(argv) for argv in self.commands)


def commands_for(operation: Operation, form: RequestForm) -> OperationCommands:
    """The commands for an operation on a job with this request form. Raises UnsafeCommandError."""
    return _COMMANDS[operation.verb](operation, form)


def _hold(operation: Operation, _form: RequestForm) -> OperationCommands:
    return OperationCommands((f"hold {checked_job_id(operation.subject)}",))


def _release(operation: Operation, form: RequestForm) -> OperationCommands:
    """Resets the begin time that Slurm sets two minutes ahead at a requeue, but not a user's begin time."""
    job = checked_job_id(operation.subject)
    begin = (f"update JobId={job} StartTime=now",) if form.requeued else ()
    return OperationCommands((*begin, f"release {job}"))


def _requeue(operation: Operation, _form: RequestForm) -> OperationCommands:
    """With `Incomplete` a job that has just completed is not run again."""
    return OperationCommands((f"requeuehold Incomplete {checked_job_id(operation.subject)}",))


def _update(operation: Operation, form: RequestForm) -> OperationCommands:
    job, before, spec = checked_job_id(operation.subject), operation.before, operation.after
    if not isinstance(spec, JobSpec):
        raise UnsafeCommandError(f"not a job spec for job {job}: {spec!r}")
    old = before if isinstance(before, JobSpec) else None
    gpus_change = old is None or (old.gpus, old.gpu_type) != (spec.gpus, spec.gpu_type)
    # A separate line: Slurm 26.05 recomputes the CPUs, wrongly, in an update that sets GPUs per task.
    per_task = (f"update JobId={job} TresPerTask={_gpus_per_task(spec)}",) if form.per_task and gpus_change else ()
    return OperationCommands((*per_task, f"update JobId={job} {_update_fields(spec, form, gpus_change=gpus_change)}"))


def _prioritize(operation: Operation, _form: RequestForm) -> OperationCommands:
    return OperationCommands((f"update JobId={checked_job_id(operation.subject)} Nice={_nice(operation.after)}",))


def _notify(operation: Operation, _form: RequestForm) -> OperationCommands:
    """With `--full` the signal also reaches the batch shell, which traps it."""
    return OperationCommands(
        commands=(("scancel", f"--signal={_signal(operation.after)}", "--full", checked_job_id(operation.subject)),)
    )


def _note(operation: Operation, _form: RequestForm) -> OperationCommands:
    """The note is an argument, as scontrol keeps the quotes of text that it reads from standard input."""
    text = f"AdminComment={checked_note(operation.after)}"
    return OperationCommands(commands=(("scontrol", "update", f"JobId={checked_job_id(operation.subject)}", text),))


def _weigh(operation: Operation, _form: RequestForm) -> OperationCommands:
    return OperationCommands(
        (f"update NodeName={checked_node_name(operation.subject)} Weight={checked_number(operation.after)}",)
    )


def _configure(_operation: Operation, _form: RequestForm) -> OperationCommands:
    return OperationCommands(commands=(("scontrol", "reconfigure"),))


_COMMANDS: Final[Mapping[Verb, Callable[[Operation, RequestForm], OperationCommands]]] = {
    Verb.HOLD: _hold,
    Verb.UPDATE: _update,
    Verb.RELEASE: _release,
    Verb.NOTIFY: _notify,
    Verb.REQUEUE: _requeue,
    Verb.PRIORITIZE: _prioritize,
    Verb.NOTE: _note,
    Verb.WEIGH: _weigh,
    Verb.CONFIGURE: _configure,
}


def _update_fields(spec: JobSpec, form: RequestForm, *, gpus_change: bool) -> str:
    """The update fields of a job spec; `gpus_change` if it has other GPUs than the current request.

    CPUs, CPUs per task and CPUs per node must change together, or the job never starts. NumNodes is a range, as Slurm
    22.05 takes a plain number as the minimum only.
    """
    nodes, tasks = checked_number(spec.node_count, 1), checked_number(spec.tasks, 1)
    cpus = checked_number(spec.cpus, 1) * nodes
    per_task = max(1, cpus // tasks)
    uneven_split = spec.max_nodes is not None or (spec.gpus_per_node is None and nodes > 1)
    most = nodes if spec.max_nodes is None else checked_number(spec.max_nodes, nodes)
    fields = [
        f"ReqNodeList={fold_hostlist(checked_node_name(node) for node in spec.nodes)}",
        f"NumNodes={nodes}-{most}",
        *_gpus(spec, form, gpus_change=gpus_change),
        f"NumTasks={tasks}",
        *([f"TasksPerNode={-(-tasks // nodes)}"] if form.tasks_per_node else []),
        f"NumCPUs={cpus}",
        f"CPUsPerTask={per_task}",
        f"MinCPUsNode={per_task if uneven_split else spec.cpus}",
        *(["CpusPerTres="] if form.cpus_per_gpu else []),
        *_memory(spec, form),
    ]
    return " ".join(fields)


def _gpus(spec: JobSpec, form: RequestForm, *, gpus_change: bool) -> list[str]:
    """The GPU fields, in the form of the original request."""
    gpus, kind = checked_number(spec.gpus), _type_suffix(spec)
    fields: list[str] = []
    if not gpus:
        return fields  # a request for shards or for no GPU never changes
    if form.per_node or not (form.per_job or form.per_task):
        each = spec.gpus_per_node
        if each is None:
            if gpus % spec.node_count:
                raise UnsafeCommandError(
                    f"{gpus} GPUs do not divide over {spec.node_count} nodes, but the job asks per node"
                )
            each = gpus // spec.node_count
        fields.append(f"TresPerNode=gres/gpu{kind}:{checked_number(each)}")
    if form.per_job and gpus_change:
        fields.append(f"TresPerJob=gres/gpu{kind}:{gpus}")
    return fields


def _gpus_per_task(spec: JobSpec) -> str:
    gpus, tasks = checked_number(spec.gpus), checked_number(spec.tasks, 1)
    if gpus % tasks:
        raise UnsafeCommandError(f"{gpus} GPUs do not divide over {tasks} tasks, but the job asks per task")
    return f"gres/gpu{_type_suffix(spec)}:{gpus // tasks}"


def _type_suffix(spec: JobSpec) -> str:
    return f":{checked_gpu_type(spec.gpu_type)}" if spec.gpu_type else ""


def _memory(spec: JobSpec, form: RequestForm) -> list[str]:
    """The memory fields. Memory per GPU is cleared, as it would take precedence; Slurm 22.05 cannot set it again."""
    if checked_number(spec.memory) == 0:
        return []
    return [*(["MemPerTres="] if form.memory_per_gpu else []), f"MinMemoryNode={spec.memory}"]


def _nice(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_NICE:
        raise UnsafeCommandError(f"not a nice value: {value!r}")
    return value


def _signal(value: object) -> str:
    if not isinstance(value, str) or value not in _SIGNALS:
        raise UnsafeCommandError(f"not a checkpoint signal: {value!r}")
    return _SIGNALS[value]
