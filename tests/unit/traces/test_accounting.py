"""What sacct prints, read as jobs with what Slurm did to them; and what people give in its place."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.traces.accounting import IMPOSSIBLE, SACCT_COMMAND, UNREADABLE, Accounting, read_accounting
from slurmsched.traces.formats.sacct import SACCT_FIELDS
from slurmsched.traces.trace import TraceError

HEAD = "|".join(SACCT_FIELDS)


def row(job: str = "1", **given: str) -> str:
    """A job of one GPU that waits five minutes and runs for an hour."""
    usual = {
        "JobIDRaw": job,
        "User": "alice",
        "Partition": "gpu",
        "State": "COMPLETED",
        "Submit": "2026-10-01T00:00:00",
        "Start": "2026-10-01T00:05:00",
        "End": "2026-10-01T01:05:00",
        "Elapsed": "01:00:00",
        "Timelimit": "02:00:00",
        "NNodes": "1",
        "ReqTRES": "cpu=4,mem=16G,gres/gpu=1",
        "AllocTRES": "cpu=4,mem=16G,gres/gpu=1",
        "JobName": "train",
    }
    return "|".join({"JobID": job, **usual, **given}.get(field, "") for field in SACCT_FIELDS)


def read(*rows: str, head: str = HEAD) -> Accounting:
    return read_accounting("\n".join([head, *rows]) + "\n", "month.txt")


FIRST_OF_OCTOBER = 1_790_812_800.0


def test_a_job_has_what_it_asked_for_and_when_it_really_ran() -> None:
    (job,) = read(row(ReqTRES="cpu=4,mem=16G,gres/gpu:A100=2", AllocTRES="cpu=4,gres/gpu:a100=2,gres/gpu=2")).jobs
    assert (job.job.arrival, job.start, job.end) == (FIRST_OF_OCTOBER, FIRST_OF_OCTOBER + 300, FIRST_OF_OCTOBER + 3900)
    assert (job.job.gpus, job.job.gpu_type, job.ran_on, job.job.name, job.partition) == (
        2,
        "a100",
        "a100",
        "train",
        "gpu",
    )
    assert (job.job.duration, job.job.time_limit, job.job.cpus, job.job.memory) == (3600.0, 7200.0, 4, 16384)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        pytest.param("gres/gpu:a100=4,gres/gpu=4", 4, id="typed and untyped say the same"),
        pytest.param("gres/gpu=4", 4, id="untyped only"),
        pytest.param("gres/gpu:a100=4", 4, id="typed only"),
        pytest.param("gres/gpu:a100=2,gres/gpu:v100=2", 4, id="two types"),
    ],
)
def test_gpus_are_counted_once(text: str, gpus: int) -> None:
    assert read(row(ReqTRES=text, AllocTRES=text)).jobs[0].job.gpus == gpus


@pytest.mark.parametrize(
    ("memory", "mebibytes"), [("512M", 512), ("4194304K", 4096), ("1.50G", 1536), ("2T", 2 * 1024**2), ("700", 700)]
)
def test_memory_has_every_suffix(memory: str, mebibytes: int) -> None:
    assert read(row(ReqTRES=f"cpu=4,mem={memory},gres/gpu=1")).jobs[0].job.memory == mebibytes


@pytest.mark.parametrize(
    ("changed", "arrival"),
    [
        pytest.param({"Eligible": "2026-10-01T00:04:00"}, 240, id="a dependency ended four minutes later"),
        pytest.param({"Eligible": "2026-10-02T00:00:00"}, 0, id="an eligible time after the start is not believed"),
        pytest.param({"Eligible": "Unknown"}, 0, id="unknown"),
        pytest.param({"Submit": "2026-10-01T00:06:00"}, 300, id="submitted after its start (requeued)"),
    ],
)
def test_a_job_waits_from_when_it_could_start(changed: dict[str, str], arrival: float) -> None:
    assert read(row(**changed)).jobs[0].job.arrival == FIRST_OF_OCTOBER + arrival


@pytest.mark.parametrize("shown", ["UNLIMITED", "Partition_Limit", ""])
def test_a_limit_that_nobody_knows_is_none_and_said(shown: str) -> None:
    found = read(row(Timelimit=shown))
    assert found.jobs[0].job.time_limit is None
    assert found.notes == ("1 job without a time limit in sacct: Slurm backfills none of them",)


def test_what_is_left_out_is_counted_by_reason() -> None:
    found = read(
        row("1"),
        row("2", State="CANCELLED by 1000", Start="None", Elapsed="00:00:00", End="2026-10-01T00:05:00"),
        row("3", State="PENDING", Start="Unknown", End="Unknown", Elapsed="00:00:00"),
        row("4", ReqTRES="cpu=4,mem=1G", AllocTRES="cpu=4,mem=1G"),
        row("5", ReqTRES="cpu=1,gres/shard=1", AllocTRES="cpu=1,gres/shard=1"),
        row("6_[7-90%4]", State="PENDING", Start="Unknown", End="Unknown", Elapsed="00:00:00"),
    )
    assert [job.job.id for job in found.jobs] == ["1"]
    assert found.left_out == {
        "jobs that ended before they ran (cancelled while they waited)": 1,
        "jobs that still wait": 2,
        "jobs without GPUs": 1,
        "jobs that share a GPU (gres/shard)": 1,
    }


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"Submit": "1970-01-01T00:00:10"}, id="a node whose clock was not set"),
        pytest.param({"Submit": "999999999999999", "Start": "999999999999999"}, id="a damaged database"),
        pytest.param({"End": "9999-01-01T00:00:00"}, id="an end that never comes"),
        pytest.param({"Elapsed": "99999-00:00:00"}, id="centuries of run time"),
        pytest.param({"AllocTRES": "cpu=4,gres/gpu=999999999999"}, id="more GPUs than there are"),
    ],
)
def test_what_cannot_be_so_is_left_out_and_does_not_stretch_the_period(given: dict[str, str]) -> None:
    found = read(row("1"), row("2", **given))
    assert ([job.job.id for job in found.jobs], found.left_out) == (["1"], {IMPOSSIBLE: 1})


def test_a_time_longer_than_any_number_of_seconds_is_not_read() -> None:
    assert read(row("1"), row("2", Elapsed="9999999999999999-00:00:00")).left_out == {UNREADABLE: 1}


def test_where_there_is_nothing_to_simulate_one_job_is_not_several() -> None:
    with pytest.raises(TraceError, match="found only 1 job without GPUs, 1 row that"):
        read(row(ReqTRES="cpu=4", AllocTRES="cpu=4"), "x|y")


def test_what_is_taken_for_granted_is_said() -> None:
    found = read(
        row("1", State="FAILED"),
        row("2", State="TIMEOUT"),
        row("3", State="RUNNING", End="Unknown"),
        "4.batch" + row("4")[1:],
        row("4", State="REQUEUED", Elapsed="00:10:00"),
        row("4", Start="2026-10-01T02:00:00", End="2026-10-01T03:00:00"),
    )
    by_id = {job.job.id: job for job in found.jobs}
    assert by_id["3"].end is None
    assert (by_id["4"].runs, by_id["4"].job.duration, by_id["4"].start) == (2, 4200.0, FIRST_OF_OCTOBER + 300)
    assert by_id["4"].end == FIRST_OF_OCTOBER + 3 * 3600
    assert by_id["1"].job.time_limit == 7200.0
    assert [note.split()[0:2] for note in found.notes] == [["1", "job"]] * 4 + [["1", "row"]]
    assert "of job steps" in found.notes[-1]


def test_tasks_of_an_array_are_jobs() -> None:
    found = read(row("10_1", JobIDRaw="11"), row("10_2", JobIDRaw="12"))
    assert [job.job.id for job in found.jobs] == ["11", "12"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "month.txt is empty: write it with 'SLURM_TIME_FORMAT=%s sacct -a -XDP", id="an empty file"),
        pytest.param("\n\n", "is empty", id="blank lines"),
        pytest.param(HEAD + "\n", "month.txt has no jobs: choose another period", id="no job"),
        pytest.param('{"jobs": []}', "month.txt has no jobs: choose another period", id="no job in JSON"),
        pytest.param(row() + "\n", "it begins with a job, expected headings (no --noheader)", id="no headings"),
        pytest.param(
            HEAD.replace("|", ",") + "\n1,1", "separated by commas, expected '|' (no --delimiter)", id="commas"
        ),
        pytest.param(HEAD.replace("|", "\t") + "\n1\t1", "separated by tabs", id="tabs"),
        pytest.param(
            "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode\n------------ ----------",
            "padded with blanks, expected '|' (--parsable2)",
            id="as it is without options",
        ),
        pytest.param(HEAD.replace("|Elapsed", "") + "\n", "the column Elapsed is missing", id="a column is missing"),
        pytest.param(
            "JobID|State|Submit|Start|Elapsed\n1|COMPLETED|1|2|00:01:00\n",
            "the column AllocTRES is missing",
            id="no column with GPUs",
        ),
        pytest.param(HEAD + "\n" + row(Elapsed="soon"), "month.txt:2: Elapsed: expected a time such as", id="no time"),
        pytest.param(
            HEAD + "\n" + row(Submit="yesterday"), "month.txt:2: Submit: expected a time such as 2026", id="no date"
        ),
        pytest.param(HEAD + "\n" + row(ReqTRES="gpus: 4"), "month.txt:2: ReqTRES: expected amounts", id="no amounts"),
        pytest.param(HEAD + "\n1|1|alice", "expected a field for each heading, not 3 fields under 17", id="cut off"),
        pytest.param("Hello,\nworld", "expected the headings of sacct, among them JobID", id="something else"),
        pytest.param('{"jobs": 3}', "jobs: expected the list that sacct --json prints", id="JSON of something else"),
        pytest.param(
            HEAD + "\n" + row(ReqTRES="cpu=1", AllocTRES="cpu=1"),
            "expected jobs that ran on GPUs, found only 1 job without GPUs",
            id="no GPUs at all",
        ),
    ],
)
def test_what_is_no_accounting_says_what_it_looks_like(text: str, words: str) -> None:
    with pytest.raises(TraceError) as raised:
        read_accounting(text, "month.txt")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_times_with_zones_in_unix_seconds_and_with_blank_lines_and_windows_line_ends() -> None:
    zoned = row("1", Submit="2026-10-01T02:00:00+02:00")
    unix = row("2", Submit=f"{FIRST_OF_OCTOBER:.0f}")
    found = read_accounting("\ufeff" + "\r\n".join([HEAD, zoned, "", unix]) + "\r\n", "month.txt")
    assert [job.job.arrival for job in found.jobs] == [FIRST_OF_OCTOBER, FIRST_OF_OCTOBER]


def test_a_bar_behind_each_line_is_no_column() -> None:
    assert len(read_accounting(f"{HEAD}|\n{row()}|\n", "month.txt").jobs) == 1


def test_one_unreadable_row_in_twenty_is_left_out_and_counted() -> None:
    found = read(*(row(str(number)) for number in range(1, 20)), row("20", Elapsed="soon"))
    assert len(found.jobs) == 19
    assert sum(found.left_out.values()) == 1


def test_json_is_read_too() -> None:
    at = FIRST_OF_OCTOBER
    job = {
        "job_id": 7,
        "user": "bob",
        "name": "eval",
        "partition": "gpu",
        "state": {"current": ["COMPLETED"]},
        "time": {"submission": at, "eligible": at + 60, "start": at + 100, "end": at + 160, "elapsed": 60},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}]},
    }
    (found,) = read_accounting(json.dumps({"jobs": [job]}), "month.json").jobs
    assert (found.job.id, found.job.arrival, found.start, found.end) == ("7", at + 60, at + 100, at + 160)
    assert (found.job.gpus, found.job.name, found.partition) == (2, "eval", "gpu")


@given(name=some.text(max_size=12), comment=some.text(max_size=12))
def test_what_an_owner_writes_changes_no_job_of_another(name: str, comment: str) -> None:
    honest = [row(str(number), User="alice") for number in range(1, 16)]
    hostile = row("99", User="mallory", JobName=name, Comment=comment)
    found = read(*honest, hostile)
    others = [job for job in found.jobs if job.job.user != "mallory"]
    assert [job.job.id for job in others] == sorted(str(number) for number in range(1, 16))
    assert {(job.job.gpus, job.job.duration, job.job.name) for job in others} == {(1, 3600.0, "train")}


@given(some.text())
def test_any_text_is_accounting_or_a_trace_error(text: str) -> None:
    for given_text in (text, f"{HEAD}\n{text}", HEAD + "\n" + row(ReqTRES=text, Timelimit=text)):
        with contextlib.suppress(TraceError):
            found = read_accounting(given_text, "month.txt")
            assert all(job.job.gpus > 0 and job.job.duration > 0 for job in found.jobs)


def test_the_command_asks_for_what_is_read() -> None:
    assert SACCT_COMMAND.endswith(HEAD.replace("|", ","))
