"""Traces of every form, read from what those who write them write."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.traces import Trace, TraceError, TraceJob
from slurmsched.traces.formats.native import read_native, to_csv
from slurmsched.traces.formats.registry import TRACE_FORMATS, detect_format, read_trace
from slurmsched.traces.trace import ImportContext, build_trace

SACCT = """JobID|JobIDRaw|User|Account|State|Submit|Start|Elapsed|Timelimit|NNodes|ReqTRES|AllocTRES|Comment
11|11|alice|vision|COMPLETED|2026-01-31T12:00:00|2026-01-31T12:05:00|01:00:00|02:00:00|1|cpu=8,mem=64G,gres/gpu:v100=2|cpu=8,mem=64G,gres/gpu=2|synsched:model=resnet50
12_3|14|bob|language|TIMEOUT|2026-01-31T12:10:00|2026-01-31T12:10:01|1-00:00:05|1-00:00:00|2|cpu=4,gres/gpu=16|cpu=4,mem=8000M,gres/gpu=16|
15|15|bob|language|FAILED|2026-01-31T12:20:00|2026-01-31T12:20:00|00:10:00|UNLIMITED|1|cpu=4,gres/gpu=1|cpu=4,gres/gpu=1|
16|16|bob|language|RUNNING|2026-01-31T12:20:00|2026-01-31T12:20:00|00:10:00|UNLIMITED|1|cpu=4,gres/gpu=1|cpu=4,gres/gpu=1|
17|17|bob|language|CANCELLED by 1000|2026-01-31T12:20:00|None|00:00:00|UNLIMITED|1|cpu=4,gres/gpu=1||
18|18|bob|language|COMPLETED|2026-01-31T12:20:00|2026-01-31T12:20:00|00:10:00|UNLIMITED|1|cpu=4|cpu=4|
11.batch|11.batch|||COMPLETED|2026-01-31T12:05:00|2026-01-31T12:05:00|01:00:00||1||cpu=8|
"""


def read(tmp_path: Path, text: str, name: str = "trace.txt", form: str | None = None, **sources: float) -> Trace:
    path = tmp_path / name
    path.write_text(text)
    return read_trace(path, form, ImportContext(sources)).trace


def test_a_month_of_sacct(tmp_path: Path) -> None:
    path = tmp_path / "month.txt"
    path.write_text(SACCT)
    found = read_trace(path)
    first, second, third = found.trace.jobs
    assert (first.id, first.arrival, first.duration, first.gpus, first.gpu_type) == ("11", 0.0, 3600.0, 2, "v100")
    assert (first.cpus, first.memory, first.time_limit, first.model, first.user) == (
        8,
        65536,
        7200.0,
        "resnet50",
        "alice",
    )
    assert (second.id, second.gpus, second.gpus_per_node, second.duration) == ("14", 16, 8, 86400.0)
    assert (third.arrival, third.fails_after, third.time_limit) == (1200.0, 600.0, None)
    assert found.skipped == {"not over yet": 1, "never ran": 1, "has no GPUs": 1}


def test_where_no_job_of_sacct_can_be_replayed_it_says_why(tmp_path: Path) -> None:
    lines = SACCT.splitlines()
    with pytest.raises(TraceError, match=r"found 1 job left out \(not over yet\), 1 job left out \(has no GPUs\)"):
        read(tmp_path, "\n".join([lines[0], lines[4], lines[6]]))


def test_a_comment_of_an_owner_may_hold_what_others_take_for_the_end_of_a_line(tmp_path: Path) -> None:
    text = SACCT.replace("synsched:model=resnet50", "a\x0bb\x1cc\u2028d\x85e")
    assert len(read(tmp_path, text).jobs) == 3


def test_the_runs_of_a_requeued_job_count_together_from_its_first_submission(tmp_path: Path) -> None:
    head = "JobID|State|Submit|Start|Elapsed|AllocTRES\n"
    runs = "7|REQUEUED|100|110|00:01:00|gres/gpu=1\n7|COMPLETED|200|250|00:02:00|gres/gpu=1\n"
    (job,) = read(tmp_path, head + runs).jobs
    assert (job.duration, job.arrival) == (180.0, 0.0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1|COMPLETED|yesterday|1|00:01:00|", r"trace\.txt:2: Submit: expected a time such as 2026-01-31T12:00:00"),
        ("1|COMPLETED|1|1|an hour|", r"trace\.txt:2: Elapsed: expected a time such as 1-02:03:04, not 'an hour'"),
        ("1|COMPLETED|1|1|00:01:00|gres/gpu=x", r"trace\.txt:2: AllocTRES: expected amounts such as cpu=4,mem=16G"),
        ("1|COMPLETED|1|1", r"trace\.txt:2: expected one field for each heading, not 4 fields under 6"),
    ],
)
def test_a_mistake_in_sacct_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read(tmp_path, f"JobID|State|Submit|Start|Elapsed|AllocTRES\n{line}\n")


def number(value: int) -> dict[str, object]:
    return {"set": True, "infinite": False, "number": value}


TRES = {"requested": [{"type": "gres", "name": "gpu:v100", "count": 2}], "allocated": [
    {"type": "cpu", "name": "", "count": 8}, {"type": "mem", "name": "", "count": 4096},
    {"type": "gres", "name": "gpu", "count": 2}]}  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(
            {"job_id": 5, "state": {"current": "COMPLETED"}, "tres": TRES, "user": "alice", "comment": {"job": ""},
             "time": {"submission": 1000, "start": 1010, "elapsed": 60, "limit": 10}}, id="22.05"),
        pytest.param(
            {"job_id": 5, "state": {"current": ["COMPLETED"]}, "tres": TRES, "user": "alice", "comment": {"job": ""},
             "time": {"submission": 1000, "start": 1010, "elapsed": 60, "limit": number(10)},
             "array": {"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0}}}, id="24.11"),
    ],
)  # fmt: skip
def test_sacct_json_of_both_shapes(tmp_path: Path, job: dict[str, object]) -> None:
    (found,) = read(tmp_path, json.dumps({"jobs": [job]}), "sacct.json").jobs
    assert (found.id, found.gpus, found.gpu_type, found.cpus, found.memory) == ("5", 2, "v100", 8, 4096)
    assert (found.duration, found.time_limit) == (60.0, 600.0)


def test_philly(tmp_path: Path) -> None:
    ran = {"start_time": "2017-10-03 01:00:00", "end_time": "2017-10-03 02:00:00",
           "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0", "gpu1"]}]}  # fmt: skip
    jobs = [
        {"jobid": "a", "user": "u", "vc": "v", "submitted_time": "2017-10-03 00:30:00", "attempts": [ran, ran]},
        {"jobid": "b", "user": "u", "vc": "v", "submitted_time": "2017-10-03 00:40:00", "attempts": []},
    ]
    (job,) = read(tmp_path, json.dumps(jobs), "cluster_job_log").jobs
    assert (job.id, job.gpus, job.duration, job.user, job.account) == ("a", 4, 7200.0, "u", "v")


def test_openb_parts_of_a_gpu_and_pods_without_one(tmp_path: Path) -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,6500,12288,1,460,,LS,Running,100,400,100\np1,1000,1024,2,1000,V100M16|V100M32,LS,Running,160,760,170\n"
        "p2,1000,1024,0,0,,LS,Running,0,9,0\n"
    )
    part, whole = read(tmp_path, text, "pods.csv").jobs
    assert (part.gpus, part.milli_gpu, part.cpus, part.arrival, part.duration) == (0, 460, 7, 0.0, 300.0)
    assert (whole.gpus, whole.gpu_type, whole.arrival) == (2, "v100m16|v100m32", 60.0)


def test_synergy_needs_to_know_how_long_an_iteration_takes(tmp_path: Path) -> None:
    text = "0,res18,0.0,100,1\n"
    (job,) = read(tmp_path, text, form="synergy", res18=0.5).jobs
    assert (job.model, job.duration, job.iterations) == ("resnet18", 50.0, 100)
    with pytest.raises(TraceError, match=r":2: model: the seconds of an iteration of res18 are not known: name a file"):
        read(tmp_path, text, form="synergy")


def test_gavel(tmp_path: Path) -> None:
    head = "job_id,job_type,model,batch_size,scale_factor,total_steps,arrival_s,duration_v100_s,priority_weight\n"
    (job,) = read(tmp_path, f"{head}0,ResNet-50 (batch size 64),ResNet-50,64,4,19605,10,3600,1.0\n").jobs
    assert (job.model, job.gpus, job.duration, job.iterations) == ("resnet-50-batch-size-64", 4, 3600.0, 19605)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense\n", r"trace\.txt:1: unknown trace format: name it with --format, one of own, sacct"),
        ("job_id,arrival_s,gpus,duration_s\n", r"expected at least one job"),
        ("job_id,arrival_s,gpus,duration_s\na,0,1,5\na,0,1,5\n", r"job_id: expected unique ids, but 'a' occurs twice"),
        (
            "job_id,arrival_s,gpus,duration_s\na,0,two,5\n",
            r":2: gpus: expected a whole number of at least 0, not 'two'",
        ),
        (
            "job_id,arrival_s,gpus,duration_s,milli_gpu\na,0,0,5,1000\n",
            r":2: milli_gpu: expected a fraction of one GPU",
        ),
        ("job_id,arrival_s,gpus,duration_s\na,nan,1,5\n", r":2: arrival_s: expected a number of at least 0, not 'nan'"),
        (
            "job_id,arrival_s,gpus,duration_s,fork\na,0,1,5,2\nb,0,1,5,-1\n",
            r":3: fork: expected a whole number of at least 0, not '-1'",
        ),
        ("job_id,arrival_s,gpus,duration_s,fork\na,0,1,5,1.5\n", r":2: fork: expected a whole number"),
        ("job_id,arrival_s,gpus,duration_s,fork\na,0,1,5,2001\n", r":2: fork: expected a number of copies, 0 to 2000"),
        (
            "job_id,arrival_s,gpus,duration_s,milli_gpu,fork\na,0,0,5,500,2\n",
            r":2: fork: expected no copies of a job without whole GPUs, not '2'",
        ),
    ],
)
def test_a_mistake_in_our_own_form_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read(tmp_path, text)


def test_copies_of_a_job(tmp_path: Path) -> None:
    text = "job_id,arrival_s,gpus,duration_s,fork\na,0,1,5,3\nb,0,1,5,\nc,0,1,5,0\nd,0,1,5,1\n"
    assert [job.fork for job in read(tmp_path, text).jobs] == [3, 0, 0, 0]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*none\.csv: No such file"):
        read_trace(tmp_path / "none.csv")


words = some.text(
    some.characters(codec="utf-8", categories=["L", "N"], include_characters=" -_.:|,\"'"), max_size=12
).map(str.strip)
amounts = some.floats(0, 1e6, allow_nan=False).map(lambda value: round(value, 3))
jobs = some.builds(
    TraceJob,
    id=some.integers(0, 10**6).map(str),
    arrival=amounts,
    gpus=some.integers(1, 64),
    duration=amounts,
    model=words,
    user=words,
    gpu_type=words,
    cpus=some.none() | some.integers(1, 512),
    memory=some.none() | some.integers(0, 10**6),
    time_limit=some.none() | amounts,
    fails_after=some.none() | amounts,
    fork=some.just(0) | some.integers(2, 2000),
)


@given(some.lists(jobs, min_size=1, max_size=8, unique_by=lambda job: job.id))
def test_what_is_written_reads_back_the_same(some_jobs: list[TraceJob]) -> None:
    trace = build_trace("t", some_jobs, "")
    assert read_native(to_csv(trace), "t", ImportContext()).trace.jobs == trace.jobs


@given(some.sampled_from(sorted(TRACE_FORMATS)), some.text(max_size=200))
def test_any_text_is_a_trace_or_refused(form: str, text: str) -> None:
    with contextlib.suppress(TraceError):
        TRACE_FORMATS[form].read(text, "t", ImportContext())
    with contextlib.suppress(TraceError):
        detect_format(text, "t")


@given(
    some.lists(
        some.sampled_from(["1", "", "x", "1-00:00:00", "gres/gpu=1", "a|b", "-1", "9e99", "2026-01-31T12:00:00"]),
        min_size=6,
        max_size=6,
    )
)
def test_hostile_lines_of_sacct_are_read_or_refused(fields: list[str]) -> None:
    text = "JobID|State|Submit|Start|Elapsed|AllocTRES\n" + "|".join(fields)
    with contextlib.suppress(TraceError):
        TRACE_FORMATS["sacct"].read(text, "t", ImportContext())
