"""Logs of clusters and workloads of papers: a few lines of each, made up in their form, and the real ones."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.traces import TraceError, TraceJob
from slurmsched.traces.formats.registry import TRACE_FORMATS, detect_format, read_trace
from slurmsched.traces.trace import ImportContext, ImportedTrace

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,uAb,vcXy,2,8,1,COMPLETED,2020-06-01 10:00:00,2020-06-01 10:01:00,2020-06-01 11:01:00,3600,60
12,uCd,vcXy,16,32,2,FAILED,2020-06-01 10:10:00,2020-06-01 10:10:00,2020-06-01 10:20:00,600,0
13,uCd,vcZz,0,4,1,COMPLETED,2020-06-01 10:11:00,2020-06-01 10:11:00,2020-06-01 10:12:00,60,0
14,uCd,vcZz,1,4,1,CANCELLED,2020-06-01 10:11:00,2020-06-01 10:12:00,2020-06-01 10:12:00,0,60
"""
SEREN = """job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
1,u1,1,8,128,Other,COMPLETED,2023-03-01 01:00:00+08:00,2023-03-01 01:00:30+08:00,2023-03-01 01:10:30+08:00,600,30,4800.0
2,u1,1,1,16,Debug,RUNNING,2023-02-28 17:00:00+00:00,2023-02-28 17:00:30+00:00,,0,30,0.0
"""
KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,"
    "fail_time,stop_time,duration,queue,gpu_time\ndlc1,u2,2,16,64,100,50.0,Pretrain,FAILED,2023-05-01 10:00:00+00:00,"
    "2023-05-01 10:01:00+00:00,2023-05-01 10:05:00+00:00,2023-05-01 10:05:00+00:00,,300,60.0,4800.0\n"
)
PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:00,60.0,1,60.0,aa
2017-10-09 07:00:00,120.0,4,480.0,bb
"""
CHRONUS = """job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,best_effort,kind
0,vc_1,1,100,5000,VGG16,30,14,110,0,strict
1,vc_2,8,90,300,alexnet,60,8,128,1,best
2,vc_2,0,90,300,alexnet,60,8,128,1,best
"""
ELASTICFLOW = """job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration
0,1000,2000,cifar10,9000,4096,1,5000
1,3000,1500,bert,3100,8,4,60
"""
ITP = "job_id,submission_time,duration,num_gpu\nab-1,500,30,64\nab-2,400,10,1\n"
SIA = """name,time,application,num_replicas,batch_size
cifar10-0,10.5,cifar10,4,2048
imagenet-1,20,imagenet,10,1600
gpt-2,30,gpt_pmp,8,48
"""
SPOT = """job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
a,13,A10,20.0,1.0,1,0.0,3600.0,HP
b,57,A100-SXM4-80GB,15,2,16,60,120,Spot
c,57,A10,2,0.5,1,90,30,Spot
d,57,A10,2,0.5,3,90,30,Spot
e,57,A10,2,1,1,90,0,Spot
"""
SAMPLES = {
    "helios": HELIOS,
    "acme": SEREN,
    "philly-flat": PHILLY,
    "chronus": CHRONUS,
    "elasticflow": ELASTICFLOW,
    "itp": ITP,
    "sia": SIA,
    "spot": SPOT,
}


def read(text: str, form: str | None = None) -> ImportedTrace:
    return TRACE_FORMATS[form or detect_format(text, "t.csv")].read(text, "t.csv", ImportContext())


@pytest.mark.parametrize("form", SAMPLES)
def test_the_format_is_recognised_by_its_headings_in_any_order(form: str) -> None:
    assert detect_format(SAMPLES[form], "t.csv") == form
    head, _, rows = SAMPLES[form].partition("\n")
    assert detect_format(",".join(reversed(head.split(","))) + f"\n{rows}", "t.csv") == form
    assert detect_format("\ufeff" + SAMPLES[form].replace("\n", "\r\n"), "t.csv") == form


def test_helios_in_seconds_with_virtual_clusters_as_accounts() -> None:
    found = read(HELIOS)
    assert found.trace.jobs == (
        TraceJob("11", 0.0, 2, 3600.0, user="uAb", account="vcXy", gpus_per_node=2, cpus=8),
        TraceJob("12", 600.0, 16, 600.0, user="uCd", account="vcXy", gpus_per_node=8, cpus=32, fails_after=600.0),
    )
    assert found.skipped == {"asks for no GPU": 1, "never ran": 1}


def test_seren_leaves_out_what_still_runs() -> None:
    found = read(SEREN)
    assert found.trace.jobs == (TraceJob("1", 0.0, 8, 600.0, user="u1", gpus_per_node=8, cpus=128),)
    assert found.skipped == {"not over yet": 1}


def test_kalos_counts_the_wait_as_duration_which_is_taken_off_again() -> None:
    (job,) = read(KALOS).trace.jobs
    assert (job.duration, job.fails_after, job.gpus_per_node, job.memory) == (240.0, 240.0, 8, 204_800)


def test_philly_as_one_table_has_no_ids_so_jobs_are_called_by_their_lines() -> None:
    assert read(PHILLY).trace.jobs == (
        TraceJob("3", 0.0, 4, 120.0, account="bb"),
        TraceJob("2", 60.0, 1, 60.0, account="aa"),
    )


def test_chronus_counts_in_minutes() -> None:
    found = read(CHRONUS)
    assert found.trace.jobs == (
        TraceJob("1", 0.0, 8, 3600.0, model="alexnet", user="vc_2", iterations=300),
        TraceJob("0", 600.0, 1, 1800.0, model="vgg16", user="vc_1", iterations=5000),
    )
    assert found.skipped == {"asks for no GPU": 1}


def test_elasticflow_and_itp_count_in_seconds() -> None:
    assert read(ELASTICFLOW).trace.jobs == (
        TraceJob("0", 0.0, 1, 5000.0, model="cifar10", iterations=2000),
        TraceJob("1", 2000.0, 4, 60.0, model="bert", iterations=1500),
    )
    assert read(ITP).trace.jobs == (TraceJob("ab-2", 0.0, 1, 10.0), TraceJob("ab-1", 100.0, 64, 30.0))


def test_sia_tells_no_durations_so_that_an_application_takes_as_many_gpu_hours_as_its_authors_measured() -> None:
    found = read(SIA)
    assert [(job.id, job.arrival, job.gpus, job.model) for job in found.trace.jobs] == [
        ("cifar10-0", 0.0, 4, "cifar10"),
        ("imagenet-1", 9.5, 10, "imagenet"),
    ]
    assert [job.gpus * job.duration / 3600 for job in found.trace.jobs] == pytest.approx([1.8, 190.0])
    assert found.skipped == {"how long gpt_pmp takes is not known": 1}


def test_spot_gpus_are_asked_for_by_each_worker() -> None:
    found = read(SPOT)
    assert found.trace.jobs == (
        TraceJob("a", 0.0, 1, 3600.0, user="13", account="hp", gpu_type="a10", gpus_per_node=1, cpus=20),
        TraceJob("b", 60.0, 32, 120.0, user="57", account="spot", gpu_type="a100-sxm4-80gb", gpus_per_node=2, cpus=240),
        TraceJob("c", 90.0, 0, 30.0, user="57", account="spot", gpu_type="a10", milli_gpu=500, cpus=2),
    )
    assert found.skipped == {"asks for a part of a GPU beside others": 1, "never ran": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HELIOS.replace("2020-06-01 10:10:00,2020", "soon,2020"), r"t\.csv:3: submit_time: expected a time such as"),
        (PHILLY.replace("2017-10-09 07:00:00", ""), r"t\.csv:3: timestamp: expected a time such as .*, not ''"),
        (ITP.replace("64", "x"), r"t\.csv:2: num_gpu: expected a whole number of at least 0, not 'x'"),
        (CHRONUS.replace("0,vc_1", ",vc_1"), r"t\.csv:2: job_id: expected a name, not ''"),
        (SPOT.replace(",20.0,1.0,", ",20.0,-1,"), r"t\.csv:2: gpu_request: expected a number of at least 0, not '-1'"),
        (SIA.replace(",imagenet,10", ",imagenet,ten"), r"t\.csv:3: num_replicas: expected a whole number"),
        (
            ITP.replace(",", ";"),
            r"t\.csv:1: unknown trace format: it has the columns of itp, separated by ';' instead of ','",
        ),
        (HELIOS.replace(",", "\t"), r"columns of helios, separated by a tab instead of ','"),
        (
            ITP.replace("num_gpu", "gpus"),
            r"t\.csv:1: unknown trace format: nearest is itp, which also has num_gpu: name it with --format",
        ),
        ("a|b|c\n1|2|3\n", r"its first line is 3 columns separated by '\|': name it with --format, one of own, sacct"),
    ],
)
def test_a_mistake_names_file_line_field_and_delimiter(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read(text)


def test_a_format_that_was_named_tells_the_delimiter_that_was_found() -> None:
    with pytest.raises(TraceError, match=r"t\.csv:1: expected a column job_id: .*, separated by ',', not by ';'$"):
        read(ITP.replace(",", ";"), "itp")
    with pytest.raises(TraceError, match=r"t\.csv:1: expected a column job_id: required are [^;]*num_gpu$"):
        read(ITP.replace("job_id", "id"), "itp")


times = ["2020-01-01 00:00:00", "0001-01-01 00:00:00+14:00", "9999-12-31 23:59:59-12:00", "COMPLETED", "RUNNING"]
numbers = ["", "0", "1", "8", "0.5", "1e16", "-1", "nan", "\uff11", "\u00b2"]
cells = some.sampled_from([*times, *numbers, "cifar10", '"', "a,b", "\x00", "\x1b[31m"]) | some.text(max_size=6)


@given(some.sampled_from(sorted(SAMPLES)), some.data())
def test_hostile_cells_are_read_or_refused_in_one_line(form: str, data: some.DataObject) -> None:
    head = SAMPLES[form].partition("\n")[0]
    count = head.count(",") + 1
    rows = data.draw(some.lists(some.lists(cells, min_size=count, max_size=count), max_size=4))
    found = refusal = None
    try:
        found = read("\n".join([head, *(",".join(row) for row in rows)]), form)
    except TraceError as error:
        refusal = str(error)
    if found is None:
        assert refusal
        assert "\n" not in refusal
    else:
        jobs = found.trace.jobs
        assert all(job.duration > 0 and job.arrival >= 0 and (job.gpus > 0) != (job.milli_gpu > 0) for job in jobs)


@given(some.text(some.sampled_from('job_id,;|\t\n\r"\x00 [{num_gpu\ufeff'), max_size=80))
def test_hostile_headings_are_recognised_or_refused(text: str) -> None:
    with contextlib.suppress(TraceError):
        read(text)


DATA = os.environ.get("SLURMSCHED_DATA")
JOBS = {"philly.csv": 82_247, "philly_users.csv": 30_756, "itp/cluster01.csv": 1_595, "itp/cluster05.csv": 3_629}
"""Jobs that ask for a GPU."""


@pytest.mark.skipif(DATA is None, reason="SLURMSCHED_DATA names no data sets")
@pytest.mark.parametrize("name", JOBS)
def test_the_published_files_are_read_whole(name: str) -> None:
    file = Path(str(DATA)) / "traces" / name
    found = read_trace(file)
    assert len(found.trace.jobs) == JOBS[name]
    with file.open() as lines:
        assert len(found.trace.jobs) + sum(found.skipped.values()) == sum(bool(line.strip()) for line in lines) - 1
