"""A trace at a glance: the figures, and how they are drawn in a terminal of 80 columns."""

from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.cells import cell_len
from rich.console import Console

from slurmsched.report.traces import ColumnChart, trace_view
from slurmsched.traces import TraceJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.statistics import JobGroup, TraceSummary, summarise_trace
from slurmsched.traces.trace import ImportedTrace, build_trace

HOUR = 3600.0
JOBS = (
    TraceJob("a", 0.0, 4, 2 * HOUR, user="alice", gpu_type="v100"),
    TraceJob("b", HOUR, 4, 2 * HOUR, user="bob"),
    TraceJob("c", 4 * HOUR, 1, 30.0, user="bob", gpu_type="k80"),
)


def summary(*jobs: TraceJob, cluster: str = "", skipped: dict[str, int] | None = None) -> TraceSummary:
    imported = ImportedTrace(build_trace("t", jobs, "made up"), skipped or {})
    return summarise_trace(imported, load_cluster(cluster) if cluster else None)


def shown(made: TraceSummary, width: int = 80) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=width, markup=False, highlight=False).print(trace_view(made))
    return stream.getvalue().splitlines()


def test_gpus_busy_over_time_if_each_job_starts_when_it_arrives() -> None:
    made = summary(*JOBS)
    assert (made.peak_gpus, made.span_h) == (8.0, 4.0)
    assert made.curves.step_h == pytest.approx(1 / 12)
    by_hour = [sum(made.curves.gpus[at : at + 12]) / 12 for at in range(0, 48, 12)]
    assert by_hour == pytest.approx([4.0, 8.0, 4.0, 0.0])
    assert (made.curves.jobs[0], made.curves.jobs[12], sum(made.curves.jobs)) == (1, 1, 3)


def test_who_asks_for_how_much() -> None:
    made = summary(*JOBS)
    assert [(group.name, group.jobs) for group in made.by_gpus] == [("1", 1), ("3-4", 2)]
    assert [(group.name, group.jobs) for group in made.by_duration] == [("1 min", 1), ("6 h", 2)]
    assert made.by_user[0] == JobGroup("bob", 2, pytest.approx(8.0 + 30 / HOUR))
    assert made.user_count == 2


def test_the_load_on_a_cluster_and_what_cannot_run_there() -> None:
    load = summary(*JOBS, cluster="v100:1x6").cluster
    assert load is not None
    assert (load.gpus, load.too_wide) == (6, 1)
    assert load.load == pytest.approx((16 + 30 / HOUR) / 24)
    assert load.over == pytest.approx(0.25)


def test_a_queue_at_a_glance() -> None:
    lines = shown(summary(*JOBS, cluster="v100:1x6", skipped={"never ran": 1, "asks for no GPU": 7}))
    assert lines[0] == "t (made up)"
    assert lines[1:8] == [
        "3 jobs of 16 GPU-hours, arriving in 4 h",
        "half of the jobs run at most 2 h, the longest 2 h",
        "started on arrival they keep 4 GPUs busy on average, 8 at most",
        "v100:1x6 (6 GPUs): 67 % load; 25 % of the time more GPUs are wanted",
        "v100:1x6 (6 GPUs): 1 job cannot run: too few GPUs of their types",
        "left out: 7 jobs (asks for no GPU)",
        "left out: 1 job (never ran)",
    ]
    assert any(line.startswith("3-4") and "67" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_no_mean_is_above_the_most() -> None:
    """Two jobs of eight hours that arrive an hour apart: 16 GPU-hours in an hour, and never more than two GPUs."""
    lines = shown(summary(TraceJob("a", 0.0, 1, 8 * HOUR), TraceJob("b", HOUR, 1, 8 * HOUR)))
    assert "16 GPU-hours arrive in an hour; started on arrival they keep at most 2 GPUs busy" in lines


def test_jobs_that_arrive_at_once_have_no_curves() -> None:
    lines = shown(summary(TraceJob("a", 5.0, 2, HOUR), TraceJob("b", 5.0, 1, HOUR), cluster="v100:1x1"))
    assert "2 jobs of 3 GPU-hours, all arriving at once" in lines
    assert "v100:1x1 (1 GPU): the work takes 3 h at least" in lines
    assert not any("arrive in" in line for line in lines)


@pytest.mark.parametrize(
    ("encoding", "drawn"), [("utf-8", ["   █", " ▄ █", "▁█ █"]), ("ascii", ["   %", " = %", ".% %"])]
)
def test_columns_from_0_to_the_highest(encoding: str, drawn: list[str]) -> None:
    class Stream(StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]  # as a terminal says it
            return encoding

    stream = Stream()
    Console(file=stream, width=80).print(ColumnChart((0.01, 6, 0, 12), height=3))
    assert stream.getvalue().splitlines() == drawn


amounts = some.integers(0, 10**7).map(float)
traced = some.builds(
    TraceJob,
    id=some.uuids().map(str),
    arrival=amounts,
    gpus=some.integers(0, 4096),
    duration=amounts,
    user=some.text(max_size=90),
    milli_gpu=some.just(0),
)


@given(some.lists(traced, min_size=1, max_size=12, unique_by=lambda job: job.id), some.sampled_from(["", "v100:2x4"]))
def test_any_trace_adds_up_and_fits_80_columns(jobs: list[TraceJob], cluster: str) -> None:
    made = summary(*jobs, cluster=cluster)
    work = sum(job.gpus * job.duration for job in jobs) / HOUR
    for groups in (made.by_gpus, made.by_duration):
        assert sum(group.jobs for group in groups) == len(jobs)
        assert sum(group.gpu_hours for group in groups) == pytest.approx(work)
    assert sum(made.curves.jobs) == (len(jobs) if made.span_h else 0)
    assert len(made.curves.jobs) <= 61
    assert max(made.curves.gpus, default=0) <= made.peak_gpus * (1 + 1e-6) + 1e-6
    assert max(map(cell_len, shown(made))) <= 80
