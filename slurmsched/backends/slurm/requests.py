"""Parses a job's resource request, and the sbatch options it was made with (its form)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from slurmsched.backends.slurm.gres import Gres, count_shards, parse_gpus, parse_gres, parse_shards
from slurmsched.backends.slurm.hostlist import MAX_NAMES, expand_hostlist
from slurmsched.backends.slurm.placeholder import PLACEHOLDER
from slurmsched.backends.slurm.records import or_empty, parse_count, parse_count_range, parse_mebibytes, parse_tres
from slurmsched.backends.slurm.sbatch_options import let_go_reason, marked_let_go_reason, shown_let_go_reasons
from slurmsched.model import Request


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The options by which a job asks for resources; an UPDATE has to use the same ones.

    The first three tell how GPUs are requested. CPUs per GPU and memory per CPU, per GPU or of whole nodes (`--mem=0`)
    stand in the environment of its script, so that no UPDATE may ask for them in another form.
    `requeued`: the job ran before, so Slurm set its begin time, not a user. `narrows`: a start may name the
    placeholder. `record` is the number of a task's own job record, empty where it has none: to look a task up by its
    array, scontrol loads the records of all its tasks before each update that names nodes.
    """

    per_node: bool = False
    per_job: bool = False
    per_task: bool = False
    cpus_per_gpu: bool = False
    memory_per_gpu: bool = False
    tasks_per_node: bool = False
    memory_per_cpu: bool = False
    whole_memory: bool = False
    shards_per_task: bool = False
    requeued: bool = False
    narrows: bool = False
    record: str = ""


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
        memory_per_cpu=_memory_per_cpu(fields) > 0,
        whole_memory=_asks_whole_memory(fields),
        shards_per_task=count_shards(fields.get("TresPerTask")) > 0,
        requeued=parse_count(fields.get("Restarts")) > 0,
    )


def unmanageable_reason(fields: Mapping[str, str], mark: str = "") -> str:
    """Return why the job is left to Slurm whatever the cluster looks like, in the words of `sbatch_options.toml`.

    Empty if it can be managed; `rounds.scope` judges its constraint. `mark` is the option that the submit hook names in
    the job's comment.
    """
    return next(chain(filter(None, [marked_let_go_reason(mark)]), _let_go(fields), shown_let_go_reasons(fields)), "")


def _let_go(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons that follow from several fields, or from a part of one."""
    yield from _let_go_devices(fields)
    if "license/" in or_empty(fields.get("TresPerTask")):
        yield let_go_reason("--licenses")
    if {fields.get("Exclusive"), fields.get("OverSubscribe")} & {"USER", "MCS", "TOPO"}:
        yield let_go_reason("--exclusive=user")
    if "," in or_empty(fields.get("Reservation")):
        yield let_go_reason("--reservation=one,two")
    cpus, nodes = parse_count(fields.get("NumCPUs")), parse_count_range(fields.get("NumNodes"))[0]
    tasks, on_node = parse_count(fields.get("NumTasks")), _tasks_per_node(fields)
    if on_node and tasks and tasks != nodes * on_node:
        yield let_go_reason("--ntasks-per-node=other")
    if 0 < cpus < tasks:
        yield let_go_reason("--overcommit")
    if 0 < cpus < parse_count(fields.get("MinCPUsNode")) * nodes:
        yield let_go_reason("--mincpus=more")


def _let_go_devices(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons that follow from the devices that are asked for."""
    asked = [parse_gres(fields.get(key)) for key in ("TresPerJob", "TresPerNode", "TresPerTask", "TresPerSocket")]
    if parse_gpus(fields.get("TresPerSocket")):
        yield let_go_reason("--gpus-per-socket")
    if parse_gpus(fields.get("TresPerTask")) and parse_gpus(fields.get("TresPerJob")):
        yield let_go_reason("--gpus-per-task=of-all")
    kinds = [Counter(entry.name for entry in entries if entry.count) for entries in asked]
    if any(of_name["gpu"] > 1 or of_name["shard"] > 1 for of_name in kinds):
        yield let_go_reason("--gpus=type,type")
    if any(entry.name not in ("gpu", "shard") and entry.count for entries in asked for entry in entries):
        yield let_go_reason("--gres=other")


def parse_request(fields: Mapping[str, str], *, waiting: bool, max_nodes_named: int = MAX_NAMES) -> Request:
    """The request. NumCPUs and NumNodes of a job that is not `waiting` show its allocation.

    Raises SlurmParseError, also if it names more than `max_nodes_named` nodes.
    """
    totals = parse_tres(fields.get("ReqTRES") or fields.get("TRES"))
    nodes, max_nodes = _nodes(fields, totals, waiting=waiting)
    tasks = max(parse_count(fields.get("NumTasks"), 1), 1)
    per_node, per_job, per_task = (parse_gpus(fields.get(key)) for key in ("TresPerNode", "TresPerJob", "TresPerTask"))
    each = _count(per_node)
    gpus = _count(per_job) or each * nodes or _count(per_task) * tasks or parse_count(totals.get("gres/gpu"))
    cpus = _cpus(fields, totals, gpus, waiting=waiting)
    shards = [e for key in ("TresPerJob", "TresPerNode", "TresPerTask") for e in parse_shards(fields.get(key))]
    types = {entry.type for entry in (*per_node, *per_job, *per_task, *shards) if entry.type}
    named = frozenset(expand_hostlist(fields.get("ReqNodeList", ""), max_nodes_named))
    pinned = named - {PLACEHOLDER} or named
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
        pinned=pinned,
        excluded=frozenset(expand_hostlist(fields.get("ExcNodeList", ""), max_nodes_named)),
        exclusive=_exclusive(fields),
        memory_per_cpu=_memory_per_cpu(fields),
        memory_per_gpu=_count(parse_gpus(fields.get("MemPerTres"))),
        cpus_per_gpu=_count(parse_gpus(fields.get("CpusPerTres"))),
        whole_memory=_asks_whole_memory(fields),
        threads_per_core=parse_count(fields.get("SCT", "").rpartition(":")[2]),
        narrowed=pinned != named,
    )


def _nodes(fields: Mapping[str, str], totals: Mapping[str, str], *, waiting: bool) -> tuple[int, int | None]:
    """Minimum and maximum. A pending job's NumNodes without a range is an estimate, in 22.05 often one too high, which
    squeue's table there shows as the maximum too. squeue shows one node at most both for `-N1` and for no number at all
    (22.05 to 26.05): there is no maximum then, as Slurm alone knows."""
    fewest, most = parse_count_range(fields.get("NumNodes"))
    if waiting:
        fewest = min(fewest, parse_count(totals.get("node"), fewest))
    return max(fewest, 1), None if waiting and most == 1 else most


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
    each_cpu = _memory_per_cpu(fields)
    if each_cpu:
        return each_cpu * -(-cpus // nodes)
    return parse_mebibytes(fields.get("MinMemoryNode")) or parse_mebibytes(totals.get("mem")) // nodes


def _memory_per_cpu(fields: Mapping[str, str]) -> int:
    """MiB; 0 if memory is asked in another form. Memory per GPU counts before it."""
    return 0 if parse_gpus(fields.get("MemPerTres")) else parse_mebibytes(fields.get("MinMemoryCPU"))


def _asks_whole_memory(fields: Mapping[str, str]) -> bool:
    """Whether it asks for all memory of its nodes, which Slurm shows as none (`--mem=0`, or no default)."""
    per_node = fields.get("MinMemoryNode")
    return per_node is not None and not parse_mebibytes(per_node) and not parse_gpus(fields.get("MemPerTres"))


def _tasks_per_node(fields: Mapping[str, str]) -> int:
    return parse_count(fields.get("NtasksPerN:B:S:C", "").partition(":")[0])


def _exclusive(fields: Mapping[str, str]) -> bool:
    """Slurm 26.05 added `Exclusive`, and shows `OverSubscribe=NO` for every job."""
    if "Exclusive" in fields:
        return fields["Exclusive"] not in ("NO", "")
    return fields.get("OverSubscribe") in ("NO", "EXCLUSIVE")
