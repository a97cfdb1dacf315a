"""From records to jobs: requests in every form, holds, arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmsched.backends.slurm.command_source import CommandJobReader
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.jobs import MAX_ARRAY_TASKS, NO_LIMITS, ClusterLimits, ParsedJob, parse_jobs
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.model import Hold, Job, JobState, SetAsideJob
from tests.unit.fake_slurm import FakeJob, FakeSlurm


def records(*jobs: FakeJob) -> list[JobRecord]:
    found, left = CommandJobReader().read_records(Commands(5, runner=FakeSlurm(jobs)))
    assert left == []
    return found


def read(**other: Any) -> list[ParsedJob]:
    jobs, left, longer = parse_jobs(records(FakeJob(7, **other)), NO_LIMITS)
    assert (left, longer) == ([], [])
    return jobs


def one(**other: Any) -> Job:
    [only] = read(**other)
    return only.job


@pytest.mark.parametrize(
    ("asked", "fields", "gpus", "each", "kind"),
    [
        pytest.param({"TresPerNode": "gres/gpu:v100:4"}, {"NumNodes": "2-2"}, 8, 4, "v100", id="--gres"),
        pytest.param({"TresPerNode": "gres:gpu:4"}, {}, 4, 4, None, id="--gres on 22.05, no type"),
        pytest.param({"TresPerJob": "gres/gpu:v100:3"}, {}, 3, None, "v100", id="--gpus"),
        pytest.param({"TresPerTask": "cpu=2,gres/gpu=1"}, {"NumTasks": "5"}, 5, None, None, id="--gpus-per-task"),
        pytest.param({}, {"ReqTRES": "cpu=1,node=1,gres/gpu=2"}, 2, None, None, id="only in the totals"),
        pytest.param({"TresPerNode": "gres/shard:5"}, {}, 0, None, None, id="shards only"),
        pytest.param({"TresPerNode": "gres/shard:a100:5"}, {}, 0, None, "a100", id="shards of a type"),
    ],
)
def test_gpus_are_counted_however_they_were_asked_for(
    asked: dict[str, str], fields: dict[str, str], gpus: int, each: int | None, kind: str | None
) -> None:
    totals = {"ReqTRES": f"node={fields.get('NumNodes', '1')[0]}"} | fields
    request = one(asked=asked, fields=totals).original_request
    assert (request.gpus, request.gpus_per_node, request.gpu_type) == (gpus, each, kind)


@pytest.mark.parametrize(
    ("fields", "asked", "memory"),
    [
        pytest.param({"MinMemoryNode": "20G"}, {}, 20_480, id="per node"),
        pytest.param({"MinMemoryCPU": "2G", "NumCPUs": "8", "NumNodes": "2-2"}, {}, 8_192, id="per CPU"),
        pytest.param({}, {"MemPerTres": "gres/gpu:10240"}, 20_480, id="per GPU"),
        pytest.param({"MinMemoryNode": "0", "ReqTRES": "cpu=1,mem=3G,node=1"}, {}, 3_072, id="only in the totals"),
        pytest.param({"MinMemoryNode": "0", "ReqTRES": "cpu=1,node=1"}, {}, 0, id="never said"),
    ],
)
def test_memory_is_counted_per_node_however_it_was_asked_for(
    fields: dict[str, str], asked: dict[str, str], memory: int
) -> None:
    totals = {"ReqTRES": f"node={fields.get('NumNodes', '1')[0]}"} | fields
    job = one(fields=totals, asked={"TresPerJob": "gres/gpu:2"} | asked)
    assert job.original_request.memory == memory


def test_cpus_per_gpu_count_before_slurm_has_counted_them() -> None:
    job = one(fields={"NumCPUs": "1"}, asked={"TresPerJob": "gres:gpu:2", "CpusPerTres": "gres:gpu:3"})
    assert job.original_request.cpus == 6


def test_an_estimate_of_nodes_is_not_taken_for_a_request() -> None:
    """Slurm 22.05 shows NumNodes=2 for a waiting job of one node."""
    request = one(fields={"NumNodes": "2", "ReqTRES": "cpu=6,node=1"}).original_request
    assert (request.nodes, request.max_nodes, request.gpus) == (1, None, 2)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"TresPerSocket": "gres/gpu:1"}, "it asks for GPUs per socket"),
        ({"TresPerJob": "gres/gpu:v100:1,gres/gpu:k80:1"}, "it asks for GPUs of several types"),
        ({"TresPerNode": "gres/gpu:v100:1"}, ""),
    ],
)
def test_what_no_shape_could_say_is_left_to_slurm(asked: dict[str, str], why: str) -> None:
    assert one(asked=asked).unmanageable == why


@pytest.mark.parametrize(
    ("reason", "priority", "hold"),
    [
        ("JobHeldUser", 0, Hold.USER),
        ("JobHeldAdmin", 0, Hold.ADMIN),
        ("job_requeued_in_held_state", 0, Hold.REQUEUED),
        ("launch_failed_requeued_held", 0, Hold.REQUEUED),
        pytest.param("Dependency", 0, Hold.ADMIN, id="a hold that does not say whose it is"),
        ("Priority", 5, Hold.NONE),
    ],
)
def test_a_hold_is_known_by_its_reason_or_by_its_priority(reason: str, priority: int, hold: Hold) -> None:
    assert one(reason=reason, priority=priority).hold is hold


def test_a_running_job_is_not_held_whatever_its_priority() -> None:
    assert one(state="RUNNING", reason="JobHeldAdmin", priority=0).hold is Hold.NONE


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("CONFIGURING", JobState.RUNNING),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("STAGE_OUT", JobState.COMPLETING),
        ("OUT_OF_MEMORY", JobState.FINISHED),
        pytest.param("SOMETHING_NEW", JobState.FINISHED, id="a state of a later release is not touched"),
    ],
)
def test_slurms_states_come_down_to_a_few(word: str, state: JobState) -> None:
    job = one(state=word)
    assert (job.state, job.state_text) == (state, word)


def test_the_tasks_of_a_large_array_are_told_apart_up_to_a_bound_and_the_rest_is_said() -> None:
    jobs, _, oddities = parse_jobs(records(FakeJob(7, array="7_0-999999%4")), NO_LIMITS)
    assert [jobs[0].job.id, len(jobs)] == ["7_0", MAX_ARRAY_TASKS]
    assert oddities == ["array 7 has more than 2000 pending tasks: the others follow later"]


def test_a_list_of_tasks_that_slurm_cut_off_is_read_as_far_as_it_is_whole() -> None:
    jobs, _, oddities = parse_jobs(records(FakeJob(7, array="7_1,3,5,71...")), NO_LIMITS)
    assert [one.job.id for one in jobs] == ["7_1", "7_3", "7_5"]
    assert len(oddities) == 1


def test_a_job_that_makes_no_sense_is_set_aside_by_itself() -> None:
    jobs, left, _ = parse_jobs(records(FakeJob(7, fields={"ReqNodeList": "n[1-"}), FakeJob(8)), NO_LIMITS)
    assert [seen.job.id for seen in jobs] == ["8"]
    assert left == [SetAsideJob("7", "brackets do not match in the hostlist 'n[1-'", "alice", "gpu", pending=True)]


def test_an_error_that_nobody_thought_of_costs_only_the_job_it_is_about() -> None:
    [odd, good] = records(FakeJob(7), FakeJob(8))
    broken = replace(odd, fields={**odd.fields, "Requeue": None, "ReqNodeList": 7})  # type: ignore[dict-item]
    jobs, left, _ = parse_jobs([broken, good], NO_LIMITS)
    assert [seen.job.id for seen in jobs] == ["8"]
    assert [(one.job, one.reason) for one in left] == [("7", "reading it fails (TypeError)")]


CLUSTER = ClusterLimits(nodes=4, gpus=32, cpus=96, memory=2_000_000)


@pytest.mark.parametrize(
    ("asked", "fields", "what"),
    [
        ({"TresPerJob": "gres/gpu:999999999"}, {}, "999999999 GPUs, but the cluster has 32"),
        ({"TresPerNode": "gres/gpu:1"}, {"NumNodes": "999999-999999"}, "999999 nodes, but the cluster has 4"),
        ({}, {"NumCPUs": "1000000"}, "1000000 CPUs, but the cluster has 96"),
        ({}, {"MinMemoryNode": "999999E"}, "MiB of memory on each node, but the cluster has 2000000"),
        ({}, {"MinMemoryCPU": "999999999999999E"}, "MiB of memory on each node, but the cluster has 2000000"),
        ({"MemPerTres": "gres/gpu:999999999", "TresPerJob": "gres/gpu:32"}, {}, "MiB of memory on each node"),
        ({"TresPerNode": "gres/gpu:1"}, {"ReqNodeList": "n[1-99999]"}, "expands to more than"),
    ],
)
def test_what_is_more_than_the_cluster_has_is_set_aside(
    asked: dict[str, str], fields: dict[str, str], what: str
) -> None:
    jobs, [left], _ = parse_jobs(records(FakeJob(7, asked=asked, fields=fields)), CLUSTER)
    assert jobs == []
    assert what in left.reason


def test_a_total_of_no_nodes_is_one_node() -> None:
    request = one(fields={"ReqTRES": "node=0,mem=10G", "NumNodes": "0"}).original_request
    assert (request.nodes, request.memory) == (1, 1000)
