"""Operations in Slurm's words. Pure; the table of what a running scontrol is told."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.backends.slurm.errors import UnsafeError
from slurmsched.backends.slurm.hostlist import fold
from slurmsched.backends.slurm.requests import Form
from slurmsched.backends.slurm.words import gpu_type, job_id, node_name, note, number
from slurmsched.model import Operation, Shape, Verb

__all__ = ["Wording", "worded"]

_MOST_NICE: Final = 2_000_000_000
_SIGNALS: Final = {"usr1": "USR1", "usr2": "USR2", "term": "TERM", "int": "INT", "hup": "HUP"}


@dataclass(frozen=True, slots=True)
class Wording:
    """An operation's commands: lines that scontrol takes on its standard input, or whole commands."""

    lines: tuple[str, ...] = ()
    argvs: tuple[tuple[str, ...], ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """As a person would type them."""
        return tuple(f"scontrol {line}" for line in self.lines) + tuple(shlex.join(argv) for argv in self.argvs)


def worded(operation: Operation, form: Form) -> Wording:
    """What to run for an operation on a job whose request stands in this form. Raises UnsafeError."""
    return _WORDINGS[operation.verb](operation, form)


def _hold(operation: Operation, _form: Form) -> Wording:
    return Wording((f"hold {job_id(operation.subject)}",))


def _release(operation: Operation, form: Form) -> Wording:
    """Slurm lets a requeued job wait some two minutes; a begin time of the owner's own is left alone."""
    job = job_id(operation.subject)
    begin = (f"update JobId={job} StartTime=now",) if form.requeued else ()
    return Wording((*begin, f"release {job}"))


def _requeue(operation: Operation, _form: Form) -> Wording:
    """`Incomplete`: a job that has just ended is not run again."""
    return Wording((f"requeuehold Incomplete {job_id(operation.subject)}",))


def _reshape(operation: Operation, form: Form) -> Wording:
    job, before, shape = job_id(operation.subject), operation.before, operation.after
    if not isinstance(shape, Shape):
        raise UnsafeError(f"no shape for job {job}: {shape!r}")
    known = before if isinstance(before, Shape) else None
    asked = known is None or (known.gpus, known.gpu_type) != (shape.gpus, shape.gpu_type)
    # A line of its own: Slurm 26.05 counts the CPUs anew, and wrongly, in an update that sets GPUs per task.
    per_task = (f"update JobId={job} TresPerTask={_for_each_task(shape)}",) if form.per_task and asked else ()
    return Wording((*per_task, f"update JobId={job} {_reshaped(shape, form, asked=asked)}"))


def _prioritize(operation: Operation, _form: Form) -> Wording:
    return Wording((f"update JobId={job_id(operation.subject)} Nice={_nice(operation.after)}",))


def _notify(operation: Operation, _form: Form) -> Wording:
    """`--full`: the batch shell gets it too, and it is the one that traps it."""
    return Wording(argvs=(("scancel", f"--signal={_signal(operation.after)}", "--full", job_id(operation.subject)),))


def _note(operation: Operation, _form: Form) -> Wording:
    """scontrol keeps quotes that it reads from standard input: a text with blanks is an argument."""
    text = f"AdminComment={note(operation.after)}"
    return Wording(argvs=(("scontrol", "update", f"JobId={job_id(operation.subject)}", text),))


def _weigh(operation: Operation, _form: Form) -> Wording:
    return Wording((f"update NodeName={node_name(operation.subject)} Weight={number(operation.after)}",))


def _configure(_operation: Operation, _form: Form) -> Wording:
    return Wording(argvs=(("scontrol", "reconfigure"),))


_WORDINGS: Final[Mapping[Verb, Callable[[Operation, Form], Wording]]] = {
    Verb.HOLD: _hold,
    Verb.RESHAPE: _reshape,
    Verb.RELEASE: _release,
    Verb.NOTIFY: _notify,
    Verb.REQUEUE: _requeue,
    Verb.PRIORITIZE: _prioritize,
    Verb.NOTE: _note,
    Verb.WEIGH: _weigh,
    Verb.CONFIGURE: _configure,
}


def _reshaped(shape: Shape, form: Form, *, asked: bool) -> str:
    """The fields of a shape; `asked` where it has other GPUs than stand.

    CPUs, CPUs per task and the least per node change together or the job never starts. NumNodes is a range, as Slurm
    22.05 takes a plain number for the fewest only.
    """
    nodes, tasks = number(shape.node_count, 1), number(shape.tasks, 1)
    cpus = number(shape.cpus, 1) * nodes
    per_task = max(1, cpus // tasks)
    open_split = shape.max_nodes is not None or (shape.gpus_per_node is None and nodes > 1)
    most = nodes if shape.max_nodes is None else number(shape.max_nodes, nodes)
    words = [
        f"ReqNodeList={fold(node_name(node) for node in shape.nodes)}",
        f"NumNodes={nodes}-{most}",
        *_gpus(shape, form, asked=asked),
        f"NumTasks={tasks}",
        *([f"TasksPerNode={-(-tasks // nodes)}"] if form.tasks_per_node else []),
        f"NumCPUs={cpus}",
        f"CPUsPerTask={per_task}",
        f"MinCPUsNode={per_task if open_split else shape.cpus}",
        *(["CpusPerTres="] if form.cpus_per_gpu else []),
        *_memory(shape, form),
    ]
    return " ".join(words)


def _gpus(shape: Shape, form: Form, *, asked: bool) -> list[str]:
    """GPUs stay in the form their owner chose, as far as they change at all."""
    gpus, kind = number(shape.gpus), _of_type(shape)
    words: list[str] = []
    if not gpus:
        return words  # parts of GPUs, or none: that never changes
    if form.per_node or not (form.per_job or form.per_task):
        each = shape.gpus_per_node
        if each is None:
            if gpus % shape.node_count:
                raise UnsafeError(f"{gpus} GPUs do not divide over {shape.node_count} nodes, and the job asks per node")
            each = gpus // shape.node_count
        words.append(f"TresPerNode=gres/gpu{kind}:{number(each)}")
    if form.per_job and asked:
        words.append(f"TresPerJob=gres/gpu{kind}:{gpus}")
    return words


def _for_each_task(shape: Shape) -> str:
    gpus, tasks = number(shape.gpus), number(shape.tasks, 1)
    if gpus % tasks:
        raise UnsafeError(f"{gpus} GPUs do not divide over {tasks} tasks, and the job asks per task")
    return f"gres/gpu{_of_type(shape)}:{gpus // tasks}"


def _of_type(shape: Shape) -> str:
    return f":{gpu_type(shape.gpu_type)}" if shape.gpu_type else ""


def _memory(shape: Shape, form: Form) -> list[str]:
    """Memory per GPU is cleared where it stands, as it would count instead; Slurm 22.05 cannot set it anew."""
    if number(shape.memory) == 0:
        return []
    return [*(["MemPerTres="] if form.memory_per_gpu else []), f"MinMemoryNode={shape.memory}"]


def _nice(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_NICE:
        raise UnsafeError(f"not a nice: {value!r}")
    return value


def _signal(value: object) -> str:
    if not isinstance(value, str) or value not in _SIGNALS:
        raise UnsafeError(f"not a checkpoint signal: {value!r}")
    return _SIGNALS[value]
