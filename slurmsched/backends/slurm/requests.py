"""What a job asks for, in whichever of Slurm's ways it was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurmsched.backends.slurm.gres import Gres, gpus_in, shards_in
from slurmsched.backends.slurm.hostlist import MOST, expand
from slurmsched.backends.slurm.values import mebibytes, said, span, tres, whole
from slurmsched.model import Request

__all__ = ["PLAIN", "Form", "form_of", "request_of", "unmanageable"]


@dataclass(frozen=True, slots=True)
class Form:
    """In which words a job's request stands, as a RESHAPE has to keep to them.

    The first three say where GPUs are asked for. CPUs and memory per GPU, where they stand, overrule plain ones.
    `requeued`: the job ran before, so a begin time is Slurm's own and not its owner's.
    """

    per_node: bool = False
    per_job: bool = False
    per_task: bool = False
    cpus_per_gpu: bool = False
    memory_per_gpu: bool = False
    tasks_per_node: bool = False
    requeued: bool = False


PLAIN = Form(per_node=True)
"""A job nobody has seen yet counts as one that was submitted with `--gres`."""


def form_of(fields: Mapping[str, str]) -> Form:
    """The form that stands. Raises NotUnderstoodError."""
    return Form(
        per_node=bool(gpus_in(fields.get("TresPerNode"))),
        per_job=bool(gpus_in(fields.get("TresPerJob"))),
        per_task=bool(gpus_in(fields.get("TresPerTask"))),
        cpus_per_gpu=bool(gpus_in(fields.get("CpusPerTres"))),
        memory_per_gpu=bool(gpus_in(fields.get("MemPerTres"))),
        tasks_per_node=_tasks_per_node(fields) > 0,
        requeued=whole(fields.get("Restarts")) > 0,
    )


def unmanageable(fields: Mapping[str, str]) -> str:
    """Why no RESHAPE could say what the job asks for; empty where one can."""
    if gpus_in(fields.get("TresPerSocket")):
        return "it asks for GPUs per socket"
    if any(len(gpus_in(fields.get(key))) > 1 for key in ("TresPerJob", "TresPerNode", "TresPerTask")):
        return "it asks for GPUs of several types"
    return ""


def request_of(fields: Mapping[str, str], *, waiting: bool, most_nodes: int = MOST) -> Request:
    """The request. What runs shows its allocation in NumCPUs and NumNodes.

    Raises NotUnderstoodError, also where it names more than `most_nodes` nodes.
    """
    totals = tres(fields.get("ReqTRES") or fields.get("TRES"))
    nodes, max_nodes = _nodes(fields, totals, waiting=waiting)
    tasks = max(whole(fields.get("NumTasks"), 1), 1)
    per_node, per_job, per_task = (gpus_in(fields.get(key)) for key in ("TresPerNode", "TresPerJob", "TresPerTask"))
    each = _count(per_node)
    gpus = _count(per_job) or each * nodes or _count(per_task) * tasks or whole(totals.get("gres/gpu"))
    cpus = _cpus(fields, totals, gpus, waiting=waiting)
    types = {entry.type for entry in (*per_node, *per_job, *per_task) if entry.type}
    return Request(
        gpus=gpus,
        gpu_type=next(iter(types)) if len(types) == 1 else None,
        gpus_per_node=each or None,
        nodes=nodes,
        max_nodes=max_nodes,
        tasks=tasks,
        cpus=cpus,
        memory=_memory(fields, totals, cpus, gpus, nodes),
        shards=_shards(fields, nodes, tasks),
        features=said(fields.get("Features")),
        pinned=frozenset(expand(fields.get("ReqNodeList", ""), most_nodes)),
        excluded=frozenset(expand(fields.get("ExcNodeList", ""), most_nodes)),
        exclusive=_exclusive(fields),
    )


def _nodes(fields: Mapping[str, str], totals: Mapping[str, str], *, waiting: bool) -> tuple[int, int | None]:
    """Fewest and most. Of a waiting job NumNodes without a range is an estimate, in 22.05 often one too high; there the
    table shows the estimate as the most too."""
    fewest, most = span(fields.get("NumNodes"))
    if waiting and most is None:
        fewest = whole(totals.get("node"), fewest)
    return max(fewest, 1), most


def _cpus(fields: Mapping[str, str], totals: Mapping[str, str], gpus: int, *, waiting: bool) -> int:
    """CPUs of the whole job. Slurm 22.05 counts CPUs per GPU only when the job starts."""
    shown = whole(fields.get("NumCPUs"), 1)
    if not waiting:
        return max(whole(totals.get("cpu"), shown), 1)
    return max(shown, _count(gpus_in(fields.get("CpusPerTres"))) * gpus, 1)


def _count(entries: tuple[Gres, ...]) -> int:
    return sum(entry.count for entry in entries)


def _shards(fields: Mapping[str, str], nodes: int, tasks: int) -> int:
    per_node, per_task = shards_in(fields.get("TresPerNode")), shards_in(fields.get("TresPerTask"))
    return shards_in(fields.get("TresPerJob")) or per_node * nodes or per_task * tasks


def _memory(fields: Mapping[str, str], totals: Mapping[str, str], cpus: int, gpus: int, nodes: int) -> int:
    """MiB per node, rounded up where it follows CPUs or GPUs that no node count divides."""
    each_gpu = _count(gpus_in(fields.get("MemPerTres")))
    if each_gpu:
        return -(-each_gpu * gpus // nodes)
    if "MinMemoryCPU" in fields:
        return mebibytes(fields["MinMemoryCPU"]) * -(-cpus // nodes)
    return mebibytes(fields.get("MinMemoryNode")) or mebibytes(totals.get("mem")) // nodes


def _tasks_per_node(fields: Mapping[str, str]) -> int:
    first = fields.get("NtasksPerN:B:S:C", "").partition(":")[0]
    return whole(first)


def _exclusive(fields: Mapping[str, str]) -> bool:
    """`Exclusive` exists from 26.05 on, when `OverSubscribe=NO` came to be said of every job."""
    if "Exclusive" in fields:
        return fields["Exclusive"] not in ("NO", "")
    return fields.get("OverSubscribe") in ("NO", "EXCLUSIVE")
