"""Builds Slurm's commands for operations, and checks every value in them. Runs nothing.

An UPDATE keeps what the batch script and the `srun` in it see consistent. sbatch fixes the script's environment at
submission; slurmd writes some of it anew when the job starts. Measured on 22.05 and 26.05, and the commoner forms
on 24.11, each with and without the update and an `srun` inside:

| asked with                     | CPUs may change: `NumCPUs`, `CPUsPerTask` and `MinCPUsNode` together              |
|--------------------------------|------------------------------------------------------------------------------------|
| `-c`                           | yes: slurmd writes SLURM_CPUS_PER_TASK (and SLURM_TRES_PER_TASK) anew              |
| `-n`, `--ntasks-per-node/-gpu`, `--gpus-per-task`, none | yes: the same tasks have more CPUs each                   |
| `--threads-per-core`, `--hint` | yes, as with `-c`                                                                  |
| `--cpus-per-gpu`, `--exclusive` | no: SLURM_CPUS_PER_GPU stays as it was; the whole node is the job's anyway       |

| asked with                     | memory may change                                                                  |
|--------------------------------|------------------------------------------------------------------------------------|
| `--mem`                        | yes, `MinMemoryNode`: slurmd writes SLURM_MEM_PER_NODE anew                        |
| `--mem-per-cpu`, DefMemPerCPU  | only with the CPUs: SLURM_MEM_PER_CPU stays, and a second form makes srun fail     |
| `--mem-per-gpu`, `--mem=0`, `--exclusive` | no                                                                      |

The number of tasks never changes. It is repeated where there are several on a node, since 26.05 sets it to one per node
in an update of the nodes of a job with `--ntasks-per-gpu`; else not, as SLURM_NTASKS would appear in the script. (24.11
does so in every update of such a job, also the release of a hold: nothing helps there but never to hold it.)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from slurmsched.backends.slurm.errors import UnsafeCommandError
from slurmsched.backends.slurm.hostlist import fold_hostlist
from slurmsched.backends.slurm.placeholder import PLACEHOLDER
from slurmsched.backends.slurm.requests import RequestForm
from slurmsched.model import JobId, JobSpec, Operation, Verb

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


_LONGEST_LINE: Final = 4_000
"""Bytes: where Slurm was built without readline, scontrol cuts a line of its standard input after 4,095."""
_OF_TASK: Final = re.compile(r"((?:u?hold|release) [1-9][0-9]*)_[0-9]+\Z")


def join_tasks(lines: Iterable[str]) -> list[str]:
    """The lines, with one for successive tasks of an array: `hold 7_1` and `hold 7_2` become `hold 7_[1-2]`.

    slurmctld keeps an array of which it changes all waiting tasks at once as one record. Asked for one task after the
    other, it makes a record for each, which every later reading of the queue then pays for.
    """
    joined: list[str] = []
    for array, of_array in groupby(lines, lambda line: match[1] if (match := _OF_TASK.match(line)) else None):
        alike = list(of_array)
        joined += _fold_tasks(alike) if array else alike
    return joined


def _fold_tasks(lines: list[str]) -> list[str]:
    folded, half = fold_hostlist(lines), len(lines) // 2
    return [folded] if len(folded) <= _LONGEST_LINE else [*_fold_tasks(lines[:half]), *_fold_tasks(lines[half:])]


_HELD_AS: Final[Mapping[str, str]] = {"JobHeldAdmin": "hold", "JobHeldUser": "uhold"}


def lines_to_split_out(reasons: Mapping[JobId, str]) -> list[str]:
    """The lines that give waiting tasks of arrays job records of their own, by the reasons why they wait, and change
    nothing else: those that are held are held again, in the same way. Others stay as they are."""
    lines = [f"{_HELD_AS[reason]} {checked_job_id(task)}" for task, reason in reasons.items() if reason in _HELD_AS]
    return join_tasks(sorted(lines, key=lambda line: line.split()[0]))


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
    job, before, spec = checked_job_id(form.record or operation.subject), operation.before, operation.after
    if not isinstance(spec, JobSpec):
        raise UnsafeCommandError(f"not a job spec for job {job}: {spec!r}")
    old = before if isinstance(before, JobSpec) else None
    shards_change = old is not None and old.shards not in (0, spec.shards)
    gpus_change = old is None or (old.gpus, old.gpu_type) != (spec.gpus, spec.gpu_type)
    cpus_change = old is None or _cpus_per_task(old) != _cpus_per_task(spec) or _has_too_few_cpus(old, spec)
    # A separate line: Slurm 26.05 recomputes the CPUs, wrongly, in an update that sets GPUs per task.
    per_task = (f"update JobId={job} TresPerTask={_gpus_per_task(spec)}",) if form.per_task and gpus_change else ()
    fields = _update_fields(spec, form, gpus_change=gpus_change, cpus_change=cpus_change)
    fields += _shards(spec, form) if shards_change else ""
    return OperationCommands((*per_task, f"update JobId={job} {fields}"))


def _prioritize(operation: Operation, _form: RequestForm) -> OperationCommands:
    return OperationCommands((f"update JobId={checked_job_id(operation.subject)} Nice={_nice(operation.after)}",))


def _notify(operation: Operation, _form: RequestForm) -> OperationCommands:
    """With `--full` the signal also reaches the batch shell, which traps it. With `--ctld` it is sent once: else for a
    task of an array of which others wait, slurmctld sends it and tells scancel to try again, until all have started."""
    signal, job = f"--signal={_signal(operation.after)}", checked_job_id(operation.subject)
    return OperationCommands(commands=(("scancel", "--ctld", signal, "--full", job),))


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


def _update_fields(spec: JobSpec, form: RequestForm, *, gpus_change: bool, cpus_change: bool) -> str:
    """The update fields of a job spec; `gpus_change` and `cpus_change` if it has others than the current request.

    NumNodes is a range, as Slurm 22.05 takes a plain number as the minimum only. It is not said of a job that may have
    named no number of nodes: Slurm then counts the nodes that it is given.
    """
    nodes, tasks = checked_number(spec.node_count, 1), checked_number(spec.tasks, 1)
    checked_number(spec.cpus, 1)
    most = nodes if spec.max_nodes is None else checked_number(spec.max_nodes, nodes)
    repeats_tasks = tasks > nodes and not form.tasks_per_node
    fields = [
        f"ReqNodeList={fold_hostlist((*map(checked_node_name, spec.nodes), *_placeholder(spec, form, most)))}",
        *([f"NumNodes={nodes}-{most}"] if spec.counts_nodes else []),
        *_gpus(spec, form, gpus_change=gpus_change),
        *([f"NumTasks={tasks}"] if repeats_tasks else []),
        *_cpus(spec, form, cpus_change=cpus_change),
        *_memory(spec, form),
    ]
    return " ".join(fields)


def _placeholder(spec: JobSpec, form: RequestForm, most: int) -> tuple[str, ...]:
    """The placeholder, for a start that names as many nodes as it is told to have at most, and where it was there."""
    starts = form.narrows and spec.counts_nodes and len(spec.nodes) == most
    narrows = starts if spec.narrowed is None else spec.narrowed
    return (PLACEHOLDER,) if narrows and spec.nodes else ()


def _cpus(spec: JobSpec, form: RequestForm, *, cpus_change: bool) -> list[str]:
    """The CPU fields, which must change together, or the job never starts.

    They are also set where the plan has as many tasks on each node, which Slurm 22.05 may split otherwise. GPUs per
    task Slurm splits as it likes (4 and 2 of 6): an even number of CPUs would then fit no node (`BadConstraints`).
    """
    nodes, tasks = spec.node_count, max(spec.tasks, spec.node_count)
    even = spec.gpus_per_node is not None and spec.max_nodes is None and tasks % nodes == 0
    even = even and (nodes == 1 or form.per_node or form.per_job or not form.per_task)
    splits = even and tasks > nodes > 1 and not form.tasks_per_node
    if spec.keeps_cpus or form.cpus_per_gpu or not (cpus_change or splits):
        return []
    each = checked_number(_cpus_per_task(spec), 1)
    on_node = each * tasks // nodes if even else each
    return [f"NumCPUs={each * tasks}", f"CPUsPerTask={each}", f"MinCPUsNode={on_node}"]


def _has_too_few_cpus(old: JobSpec, spec: JobSpec) -> bool:
    return old.cpus * old.node_count < _cpus_per_task(spec) * max(spec.tasks, spec.node_count)


def _cpus_per_task(spec: JobSpec) -> int:
    return spec.cpus_per_task or max(1, spec.cpus * spec.node_count // max(spec.tasks, spec.node_count, 1))


def _gpus(spec: JobSpec, form: RequestForm, *, gpus_change: bool) -> list[str]:
    """The GPU fields, in the form of the original request.

    GPUs in total on several nodes also get the number on each, cleared when it is open again: Slurm would split them as
    3 and 1 instead of 2 and 2, and on 24.11 and 26.05 then not start tasks that are pinned evenly (`BadConstraints`).
    26.05 refuses both numbers where it is not told a number of nodes.
    """
    gpus, kind, each = checked_number(spec.gpus), _type_suffix(spec), spec.gpus_per_node
    fields: list[str] = []
    if not gpus:
        return fields
    open_split = each is None or not spec.counts_nodes or (spec.node_count == 1 and not form.per_node)
    if form.per_job and open_split:
        fields += ["TresPerNode="] if form.per_node else []
    elif form.per_job or form.per_node or not form.per_task:
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


def _shards(spec: JobSpec, form: RequestForm) -> str:
    """The field of shards, in the form of the original request."""
    count, key = (spec.tasks, "TresPerTask") if form.shards_per_task else (spec.node_count, "TresPerNode")
    if checked_number(spec.shards, 1) % checked_number(count, 1):
        raise UnsafeCommandError(f"{spec.shards} shards do not divide over {count} tasks or nodes")
    return f" {key}=gres/shard{_type_suffix(spec)}:{spec.shards // count}"


def _gpus_per_task(spec: JobSpec) -> str:
    gpus, tasks = checked_number(spec.gpus), checked_number(spec.tasks, 1)
    if gpus % tasks:
        raise UnsafeCommandError(f"{gpus} GPUs do not divide over {tasks} tasks, but the job asks per task")
    return f"gres/gpu{_type_suffix(spec)}:{gpus // tasks}"


def _type_suffix(spec: JobSpec) -> str:
    return f":{checked_gpu_type(spec.gpu_type)}" if spec.gpu_type else ""


def _memory(spec: JobSpec, form: RequestForm) -> list[str]:
    if checked_number(spec.memory) == 0 or spec.keeps_memory:
        return []
    keeps = form.memory_per_gpu or form.memory_per_cpu or form.whole_memory
    return [] if keeps else [f"MinMemoryNode={spec.memory}"]


def _nice(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_NICE:
        raise UnsafeCommandError(f"not a nice value: {value!r}")
    return value


def _signal(value: object) -> str:
    if not isinstance(value, str) or value not in _SIGNALS:
        raise UnsafeCommandError(f"not a checkpoint signal: {value!r}")
    return _SIGNALS[value]
