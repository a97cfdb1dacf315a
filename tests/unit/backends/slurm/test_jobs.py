"""From records to jobs: requests in every form, holds, arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmsched.backends.slurm.command_source import CommandJobReader
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.jobs import (
    MAX_ARRAY_TASKS,
    NO_LIMITS,
    ClusterLimits,
    ParsedJob,
    parse_jobs,
    with_gpu_defaults,
)
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.model import Hold, Job, JobState, Partition, Request, SetAsideJob
from tests.builders import job
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


@pytest.mark.parametrize(
    ("fields", "asked", "form"),
    [
        pytest.param({"MinMemoryNode": "20G"}, {}, (0, 0, 0, False), id="--mem"),
        pytest.param({"MinMemoryNode": "0"}, {}, (0, 0, 0, True), id="--mem=0"),
        pytest.param({"MinMemoryCPU": "7.50G"}, {}, (7_680, 0, 0, False), id="--mem-per-cpu or the site's default"),
        pytest.param({"MinMemoryNode": "0"}, {"MemPerTres": "gres:gpu:4096"}, (0, 4_096, 0, False), id="--mem-per-gpu"),
        pytest.param({"MinMemoryCPU": "2G"}, {"CpusPerTres": "gres/gpu:3"}, (2_048, 0, 3, False), id="--cpus-per-gpu"),
    ],
)
def test_the_form_of_cpus_and_memory_is_kept(
    fields: dict[str, str], asked: dict[str, str], form: tuple[int, int, int, bool]
) -> None:
    [parsed] = read(fields={"ReqTRES": "cpu=1,mem=60G,node=1"} | fields, asked={"TresPerJob": "gres/gpu:2"} | asked)
    request, seen = parsed.job.original_request, parsed.request_form
    assert (request.memory_per_cpu, request.memory_per_gpu, request.cpus_per_gpu, request.whole_memory) == form
    assert (seen.memory_per_cpu, seen.memory_per_gpu, seen.cpus_per_gpu, seen.whole_memory) == tuple(map(bool, form))


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
        ({"TresPerSocket": "gres/gpu:1"}, "it asks for GPUs per socket (--gpus-per-socket)"),
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


def test_a_hold_of_the_hook_stays_one_where_slurm_gives_another_reason() -> None:
    kept_out = {"reason": "Job's account not permitted to use this partition (narrow allows language)", "priority": 0}
    assert one(comment="synsched:held=hook", **kept_out).hold is Hold.USER
    assert one(comment="synsched:held=hook", fields={"Restarts": "1"}, **kept_out).hold is Hold.ADMIN
    assert one(**kept_out).hold is Hold.ADMIN


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
    jobs, _, oddities = parse_jobs(records(FakeJob(7, array="7_0-49999%4")), NO_LIMITS)
    assert [jobs[0].job.id, len(jobs)] == ["7_0", MAX_ARRAY_TASKS]
    assert oddities == ["array 7 has more than 2000 pending tasks: the others follow later"]


def test_a_running_task_of_an_array_keeps_slurms_own_number() -> None:
    running = [FakeJob(12, array="7_3", state="RUNNING"), FakeJob(13, state="RUNNING"), FakeJob(14, array="7_4")]
    jobs, _, _ = parse_jobs(records(*running), NO_LIMITS)
    assert {one.job.id: one.job.number for one in jobs} == {"7_3": "12", "13": "", "7_4": ""}


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
        ({}, {"MinMemoryNode": "999999E"}, "MiB of memory on each node"),
        ({}, {"MinMemoryCPU": "999999999999999E"}, "MiB of memory on each node"),
        ({"MemPerTres": "gres/gpu:999999999", "TresPerJob": "gres/gpu:32"}, {}, "MiB of memory on each node"),
        ({"TresPerNode": "gres/gpu:1"}, {"ReqNodeList": "n[1-99999]"}, "expands to more than"),
    ],
)
def test_what_no_cluster_can_have_is_set_aside(asked: dict[str, str], fields: dict[str, str], what: str) -> None:
    jobs, [left], _ = parse_jobs(records(FakeJob(7, asked=asked, fields=fields)), CLUSTER)
    assert jobs == []
    assert what in left.reason


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ({"TresPerJob": "gres/gpu:64"}, {}),
        ({"TresPerNode": "gres/gpu:1"}, {"NumNodes": "9-9"}),
        ({}, {"NumCPUs": "1000"}),
        ({}, {"MinMemoryNode": "900G"}),
    ],
)
def test_what_waits_and_asks_for_more_than_the_cluster_has_is_read_so_that_a_round_gives_it_back(
    asked: dict[str, str], fields: dict[str, str]
) -> None:
    [read], left, _ = parse_jobs(records(FakeJob(7, asked=asked, fields=fields)), CLUSTER)
    assert (read.job.id, left) == ("7", [])


def test_a_total_of_no_nodes_is_one_node() -> None:
    request = one(fields={"ReqTRES": "node=0,mem=10G", "NumNodes": "0"}).original_request
    assert (request.nodes, request.memory) == (1, 1000)


@pytest.mark.parametrize(
    ("given", "by_hook"),
    [
        ({"comment": "synsched:held=hook", "reason": "JobHeldUser", "priority": 0}, True),
        ({"comment": "synsched:held=hook", "reason": "JobHeldAdmin", "priority": 0}, False),
        ({"comment": "synsched:", "reason": "JobHeldUser", "priority": 0}, False),
    ],
)
def test_of_a_job_that_cannot_be_read_it_is_known_whether_the_hook_holds_it(
    given: dict[str, Any], by_hook: bool
) -> None:
    _, [left], _ = parse_jobs(records(FakeJob(7, fields={"ReqNodeList": "n[1-"}, **given)), NO_LIMITS)
    assert left.held_by_hook is by_hook


@pytest.mark.parametrize(
    ("shown", "most"),
    [
        pytest.param("1-3", 3, id="as asked"),
        pytest.param("4-3", 3, id="an estimate above the most that is asked for"),
        pytest.param("2-1", None, id="no number at all"),
    ],
)
def test_the_most_nodes_of_a_waiting_job(shown: str, most: int | None) -> None:
    [parsed], _, _ = parse_jobs(records(FakeJob(7, fields={"NumNodes": shown})), NO_LIMITS)
    assert parsed.job.original_request.max_nodes == most


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(
            Request(gpus=2, memory=100, memory_per_cpu=100),
            Request(gpus=2, cpus=6, memory=4000, memory_per_gpu=2000, cpus_by_default=True),
            id="nothing asked: both by GPU",
        ),
        pytest.param(
            Request(gpus=2, cpus=2, memory=900),
            Request(gpus=2, cpus=2, memory=900),
            id="-c 2 --mem=900: as asked",
        ),
        pytest.param(
            Request(gpus=1, tasks=4, cpus=4, memory=900),
            Request(gpus=1, tasks=4, cpus=4, memory=900),
            id="more tasks than that: a CPU for each",
        ),
        pytest.param(
            Request(gpus=2, tasks=4, cpus=4, memory=900),
            Request(gpus=2, tasks=4, cpus=8, memory=900, cpus_by_default=True),
            id="tasks that do not divide them: rounded up",
        ),
        pytest.param(
            Request(gpus=1, cpus=2, whole_memory=True),
            Request(gpus=1, cpus=2, memory=2000, memory_per_gpu=2000),
            id="no default per CPU, which Slurm shows as all memory",
        ),
        pytest.param(Request(cpus=1, memory=900), Request(cpus=1, memory=900), id="no GPU"),
    ],
)
def test_a_waiting_job_that_asks_for_none_has_what_its_partition_gives_by_gpu(
    request_: Request, expected: Request
) -> None:
    partition = Partition("gpu", frozenset({"n1"}), cpus_per_gpu=3, memory_per_gpu=2000, memory_per_cpu=100)
    found = with_gpu_defaults(job(1, request=request_), [partition])
    assert (found.original_request, found.current_request) == (expected, request_)
    runs = job(1, request=request_, state=JobState.RUNNING)
    assert with_gpu_defaults(runs, [partition]) is runs
