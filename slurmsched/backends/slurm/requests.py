"""Parses a job's resource request, and the sbatch options it was made with (its form)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.backends.slurm.gres import Gres, count_shards, parse_gpus, parse_shards
from slurmsched.backends.slurm.hostlist import MAX_NAMES, expand_hostlist
from slurmsched.backends.slurm.records import or_empty, parse_count, parse_count_range, parse_mebibytes, parse_tres
from slurmsched.model import Request


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The options by which a job asks for resources; an UPDATE has to use the same ones.

    The first three tell how GPUs are requested. CPUs and memory per GPU override the plain amounts.
    `requeued`: the job ran before, so Slurm set its begin time, not a user.
    """

    per_node: bool = False
    per_job: bool = False
    per_task: bool = False
    cpus_per_gpu: bool = False
    memory_per_gpu: bool = False
    tasks_per_node: bool = False
    requeued: bool = False


DEFAULT_FORM = RequestForm(per_node=True)
"""The form of a job that no poll has shown yet: submitted with `--gres`."""


def parse_form(fields: Mapping[str, str]) -> RequestForm:
    """The form of the current request. Raises SlurmParseError."""
    return RequestForm(
        per_node=bool(parse_gpus(fields.get("TresPerNode"))),
        per_job=bool(parse_gpus(fields.get("TresPerJob"))),
        per_task=bool(parse_gpus(fields.get("TresPerTask"))),
        cpus_per_gpu=bool(parse_gpus(fields.get("CpusPerTres"))),
        memory_per_gpu=bool(parse_gpus(fields.get("MemPerTres"))),
        tasks_per_node=_tasks_per_node(fields) > 0,
        requeued=parse_count(fields.get("Restarts")) > 0,
    )


_GRES_KEYS: Final = ("TresPerNode", "TresPerJob", "TresPerTask")


def unmanageable_reason(fields: Mapping[str, str]) -> str:
    """Why no UPDATE can express the job's request; empty if one can."""
    if parse_gpus(fields.get("TresPerSocket")):
        return "it asks for GPUs per socket"
    if any(len(parse(fields.get(key))) > 1 for key in _GRES_KEYS for parse in (parse_gpus, parse_shards)):
        return "it asks for GPUs of several types"
    return ""


def parse_request(fields: Mapping[str, str], *, waiting: bool, max_nodes_named: int = MAX_NAMES) -> Request:
    """The request. NumCPUs and NumNodes of a job that is not `waiting` show its allocation.

    Raises SlurmParseError, also if it names more than `max_nodes_named` nodes.
    """
    totals = parse_tres(fields.get("ReqTRES") or fields.get("TRES"))
    nodes, max_nodes = _nodes(fields, totals, waiting=waiting)
    tasks = max(parse_count(fields.get("NumTasks"), 1), 1)
    per_node, per_job, per_task = (parse_gpus(fields.get(key)) for key in _GRES_KEYS)
    each = _count(per_node)
    gpus = _count(per_job) or each * nodes or _count(per_task) * tasks or parse_count(totals.get("gres/gpu"))
    cpus = _cpus(fields, totals, gpus, waiting=waiting)
    shards = [entry for key in _GRES_KEYS for entry in parse_shards(fields.get(key))]
    types = {entry.type for entry in (*per_node, *per_job, *per_task, *shards) if entry.type}
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
        features=or_empty(fields.get("Features")),
        pinned=frozenset(expand_hostlist(fields.get("ReqNodeList", ""), max_nodes_named)),
        excluded=frozenset(expand_hostlist(fields.get("ExcNodeList", ""), max_nodes_named)),
        exclusive=_exclusive(fields),
    )


def _nodes(fields: Mapping[str, str], totals: Mapping[str, str], *, waiting: bool) -> tuple[int, int | None]:
    """Minimum and maximum. A pending job's NumNodes without a range is an estimate, in 22.05 often one too high, which
    squeue's table there shows as the maximum too."""
    fewest, most = parse_count_range(fields.get("NumNodes"))
    if waiting and most is None:
        fewest = parse_count(totals.get("node"), fewest)
    return max(fewest, 1), most


def _cpus(fields: Mapping[str, str], totals: Mapping[str, str], gpus: int, *, waiting: bool) -> int:
    """CPUs of the whole job. Slurm 22.05 adds CPUs per GPU only when the job starts."""
    shown = parse_count(fields.get("NumCPUs"), 1)
    if not waiting:
        return max(parse_count(totals.get("cpu"), shown), 1)
    return max(shown, _count(parse_gpus(fields.get("CpusPerTres"))) * gpus, 1)


def _count(entries: tuple[Gres, ...]) -> int:
    return sum(entry.count for entry in entries)


def _shards(fields: Mapping[str, str], nodes: int, tasks: int) -> int:
    per_node, per_task = count_shards(fields.get("TresPerNode")), count_shards(fields.get("TresPerTask"))
    return count_shards(fields.get("TresPerJob")) or per_node * nodes or per_task * tasks


def _memory(fields: Mapping[str, str], totals: Mapping[str, str], cpus: int, gpus: int, nodes: int) -> int:
    """MiB per node, rounded up if CPUs or GPUs do not divide evenly over the nodes."""
    each_gpu = _count(parse_gpus(fields.get("MemPerTres")))
    if each_gpu:
        return -(-each_gpu * gpus // nodes)
    if "MinMemoryCPU" in fields:
        return parse_mebibytes(fields["MinMemoryCPU"]) * -(-cpus // nodes)
    return parse_mebibytes(fields.get("MinMemoryNode")) or parse_mebibytes(totals.get("mem")) // nodes


def _tasks_per_node(fields: Mapping[str, str]) -> int:
    return parse_count(fields.get("NtasksPerN:B:S:C", "").partition(":")[0])


def _exclusive(fields: Mapping[str, str]) -> bool:
    """Slurm 26.05 added `Exclusive`, and shows `OverSubscribe=NO` for every job."""
    if "Exclusive" in fields:
        return fields["Exclusive"] not in ("NO", "")
    return fields.get("OverSubscribe") in ("NO", "EXCLUSIVE")
