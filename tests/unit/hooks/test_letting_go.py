"""Jobs that the hook leaves to plain Slurm: options that no plan knows, and what Slurm shall refuse itself."""

from __future__ import annotations

import pytest

from slurmsched.backends.slurm.sbatch_options import let_go_reason
from slurmsched.daemon.keepalive import totals_line
from slurmsched.model import Request
from slurmsched.rounds.scope import partition_totals
from tests.builders import GIB, node, snapshot
from tests.unit.hooks.controller import LuaValue, Slurmctld

HELD, AS_IT_WAS = "0", "4294967294"
CLUSTER = snapshot([node(f"v{i}", 4, cpus=12, memory=100 * GIB) for i in (1, 2)] + [node("p1", 2, "p100", 8, 60 * GIB)])
TOTALS = totals_line(partition_totals(CLUSTER))

SEEN: list[tuple[str, dict[str, LuaValue]]] = [
    ("--gpus-per-socket", {"tres_per_node": None, "tres_per_socket": "gres/gpu:1"}),
    ("--gpus=type,type", {"tres_per_node": None, "tres_per_job": "gres/gpu:v100:1,gres/gpu:p100:1"}),
    ("--gres=other", {"tres_per_node": "gres:gpu:1,gres:nic:1"}),
    ("--licenses", {"licenses": "matlab:2"}),
    ("--bb", {"burst_buffer": "capacity=1G"}),
    ("--tmp", {"pn_min_tmp_disk": 10240}),
    ("--mincpus=more", {"pn_min_cpus": 4, "min_cpus": 1}),
    ("--ntasks-per-node=other", {"num_tasks": 1, "ntasks_per_node": 4, "min_nodes": 1}),
    ("--ntasks-per-node=other", {"num_tasks": 3, "ntasks_per_node": 2}),
    ("--ntasks-per-core", {"ntasks_per_core": 1}),
    ("--ntasks-per-socket", {"ntasks_per_socket": 1}),
    ("--tres-per-task=shards", {"bitflags": 275381239808}),
    ("--sockets-per-node", {"sockets_per_node": 1}),
    ("--cores-per-socket", {"cores_per_socket": 4}),
    ("--overcommit", {"num_tasks": 4, "min_cpus": 1}),
    ("--oversubscribe", {"shared": 1}),
    ("--core-spec", {"core_spec": 1}),
    ("--prefer", {"prefer": "v100"}),
    ("--exclusive=user", {"shared": 2}),
    ("--contiguous", {"contiguous": 1}),
    ("--switches", {"req_switch": 1}),
    ("--segment", {"segment_size": 1}),
    ("--reboot", {"reboot": 1}),
    ("--time-min", {"time_min": 5}),
    ("--reservation=one,two", {"reservation": "one,two"}),
]
MARKED: list[tuple[str, str, dict[str, LuaValue]]] = [
    ("--gres-flags=enforce-binding", "gres-flags", {"bitflags": 503316496}),
    ("--spread-job", "spread-job", {"bitflags": 503316736}),
    ("--batch", "batch", {"batch_features": "v100"}),
    ("--extra", "extra", {"extra": "rack=1"}),
    ("--ntasks-per-gpu", "ntasks-per-gpu", {"ntasks_per_gpu": 2}),
    ("--nodes=range", "nodes", {"min_nodes": 1, "max_nodes": 3, "num_tasks": 1}),
]


@pytest.mark.parametrize(("option", "fields"), SEEN, ids=[option for option, _ in SEEN])
def test_a_job_that_no_plan_knows_how_to_place_is_not_held_and_told_why(
    slurmctld: Slurmctld, option: str, fields: dict[str, LuaValue]
) -> None:
    job = slurmctld.submit(**fields)
    assert (job["priority"], job.get("comment", "")) == (AS_IT_WAS, "")
    assert job["said"] == f"synsched: the job is left to Slurm: {let_go_reason(option)}"


@pytest.mark.parametrize(("option", "mark", "fields"), MARKED, ids=[option for option, _, _ in MARKED])
def test_what_squeue_does_not_show_is_marked_in_the_comment(
    slurmctld: Slurmctld, option: str, mark: str, fields: dict[str, LuaValue]
) -> None:
    job = slurmctld.submit(comment="synsched:model=x,left=licenses mine", **fields)
    assert (job["priority"], job["comment"]) == (AS_IT_WAS, f"synsched:model=x,left={mark} mine")
    assert let_go_reason(option) in job["said"]


def test_a_mark_of_the_owner_is_taken_away(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(comment="synsched:left=spread-job")["comment"] == "synsched:held=hook"
    slurmctld.beat("observe")
    assert slurmctld.submit(comment="synsched:left=spread-job,model=x")["comment"] == "synsched:model=x"


def test_a_job_that_was_left_to_slurm_stays_so_when_its_owner_changes_it(slurmctld: Slurmctld) -> None:
    standing = {
        "comment": "synsched:left=batch",
        "tres_per_node": "gres/gpu:1",
        "partition": "gpu",
        "script": "#!/bin/sh",
    }
    assert slurmctld.modify(standing, comment="mine")["comment"] == "mine synsched:left=batch"
    assert slurmctld.modify(standing, num_tasks=2)["priority"] == AS_IT_WAS


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"bitflags": 503840768}, id="--gres-flags=disable-binding"),
        pytest.param({"threads_per_core": 1}, id="--threads-per-core"),
        pytest.param({"ntasks_per_core": 65535}, id="--hint=multithread"),
        pytest.param({"pn_min_cpus": 4, "min_cpus": 4, "cpus_per_task": 4, "tres_per_task": "cpu=4"}, id="-c"),
        pytest.param(
            {"pn_min_cpus": 65534, "min_cpus": 2, "num_tasks": 2, "ntasks_per_node": 2}, id="--ntasks-per-node"
        ),
        pytest.param({"reboot": 65534, "contiguous": 0, "shared": 65534, "segment_size": 0}, id="nothing given"),
        pytest.param({"pn_min_tmp_disk": 4294967294, "req_switch": 4294967294}, id="nothing given in 32 bits"),
        pytest.param({"tres_per_node": "gres/gpu:1,gres/nic:0"}, id="no such device"),
        pytest.param({"min_nodes": 2, "max_nodes": 2, "num_tasks": 2}, id="-N2"),
        pytest.param({"min_nodes": 1, "max_nodes": 4294967294}, id="no most number of nodes"),
        pytest.param({"min_nodes": 1, "max_nodes": 3, "num_tasks": 3}, id="-N1-3 with tasks for all of them"),
        pytest.param(
            {"tres_per_node": None, "tres_per_job": "gres/gpu:4", "min_nodes": 1, "max_nodes": 3},
            id="-N1-3 with GPUs in all",
        ),
    ],
)
def test_what_is_planned_or_kept_is_held(slurmctld: Slurmctld, fields: dict[str, LuaValue]) -> None:
    assert slurmctld.submit(**fields)["priority"] == HELD


GPU_JOB: dict[str, LuaValue] = {"tres_per_node": None}
NEVER: list[tuple[str, dict[str, LuaValue], Request, str]] = [
    ("--gpus=64", GPU_JOB | {"tres_per_job": "gres/gpu:64"}, Request(gpus=64), "64 GPUs; the partition has 10"),
    (
        "-N9",
        GPU_JOB | {"tres_per_job": "gres:gpu:9", "min_nodes": 9},
        Request(gpus=9, nodes=9),
        "9 nodes; the partition has 3",
    ),
    (
        "--gpus=p100:3",
        GPU_JOB | {"tres_per_job": "gres/gpu:p100:3"},
        Request(gpus=3, gpu_type="p100"),
        "3 p100 GPUs; the partition has 2",
    ),
    (
        "--gres=gpu:8",
        {"tres_per_node": "gres/gpu:8"},
        Request(gpus=8, gpus_per_node=8),
        "8 GPUs on one node; the largest has 4",
    ),
    (
        "--gres=gpu:k80:1",
        {"tres_per_node": "gpu:k80:1"},
        Request(gpus=1, gpu_type="k80"),
        "1 k80 GPU; the partition has 0",
    ),
    (
        "-N1 -n 5 --gpus-per-task=1",
        GPU_JOB | {"tres_per_task": "gres/gpu:1", "num_tasks": 5, "min_cpus": 5, "min_nodes": 1, "max_nodes": 1},
        Request(gpus=5, gpus_per_node=5, tasks=5, cpus=5),
        "5 GPUs on one node; the largest has 4",
    ),
    (
        "-c 99",
        {"cpus_per_task": 99, "pn_min_cpus": 99, "min_cpus": 99},
        Request(gpus=1, cpus=99),
        "99 CPUs; the partition has 32",
    ),
    (
        "-c 20",
        {"cpus_per_task": 20, "pn_min_cpus": 20, "min_cpus": 20},
        Request(gpus=1, cpus=20),
        "20 CPUs on one node; the largest has 12",
    ),
    ("-n 99", {"num_tasks": 99, "min_cpus": 99}, Request(gpus=1, cpus=99, tasks=99), "99 CPUs; the partition has 32"),
    (
        "--mem=900G",
        {"min_mem_per_node": 900 * GIB},
        Request(gpus=1, memory=900 * GIB),
        "921600 MiB of memory on one node; the largest has 102400",
    ),
]


# What squeue does not show, so that a round cannot tell it.
SEEN_AT_SUBMISSION: list[tuple[str, dict[str, LuaValue]]] = [
    ("-N1 -n 13", {"num_tasks": 13, "min_cpus": 13, "min_nodes": 1, "max_nodes": 1}),
    ("--ntasks-per-node=13", {"num_tasks": 13, "ntasks_per_node": 13, "min_cpus": 13}),
]


@pytest.mark.parametrize("fields", [row[1] for row in SEEN_AT_SUBMISSION], ids=[row[0] for row in SEEN_AT_SUBMISSION])
def test_what_a_named_number_of_nodes_never_has_is_slurms_to_refuse(
    slurmctld: Slurmctld, fields: dict[str, LuaValue]
) -> None:
    slurmctld.beat(more=TOTALS)
    job = slurmctld.submit(**fields)
    why = "synsched: the job asks for what the cluster does not have: 13 CPUs on one node; the largest has 12"
    assert (job["priority"], job["said"]) == (AS_IT_WAS, why)


@pytest.mark.parametrize(("fields", "asked", "what"), [row[1:] for row in NEVER], ids=[row[0] for row in NEVER])
def test_what_the_partition_never_has_is_slurms_to_refuse_and_the_round_says_the_same(
    slurmctld: Slurmctld, fields: dict[str, LuaValue], asked: Request, what: str
) -> None:
    slurmctld.beat(more=TOTALS)
    job = slurmctld.submit(**fields)
    assert (job["priority"], job["said"]) == (
        AS_IT_WAS,
        f"synsched: the job asks for what the cluster does not have: {what}",
    )
    assert partition_totals(CLUSTER)["gpu"].excess(asked) == what


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(GPU_JOB | {"tres_per_job": "gres/gpu:10"}, id="all GPUs"),
        pytest.param({"tres_per_node": "gres/gpu:v100:4", "min_nodes": 2}, id="all nodes of a type"),
        pytest.param({"min_mem_per_node": 0}, id="--mem=0"),
        pytest.param({"min_mem_per_cpu": 8192, "cpus_per_task": 12}, id="all memory, by CPUs"),
        pytest.param(
            {"tres_per_node": "gres/gpu:8", "partition": "gpu,other"}, id="where another partition may suffice"
        ),
    ],
)
def test_what_may_fit_is_held(slurmctld: Slurmctld, fields: dict[str, LuaValue]) -> None:
    slurmctld.beat(more=TOTALS)
    assert slurmctld.submit(**fields)["priority"] == HELD


def test_without_totals_nothing_is_judged(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(tres_per_node="gres/gpu:99")["priority"] == HELD


def test_names_that_would_break_the_line_and_too_many_partitions_are_left_out() -> None:
    totals = partition_totals(CLUSTER)["gpu"]
    assert totals_line({"a b": totals, "": totals, "ok": totals}).startswith("largest = ok=3,32,12,102400,:4:10,")
    assert len(totals_line({f"partition{i}": totals for i in range(9999)})) < 49_000
