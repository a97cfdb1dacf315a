"""Runs that have ended, as sacct of each release was recorded to show them, and text that poses as a run."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.accounting import (
    _RUN_COLUMNS,
    finished_query,
    format_finished,
    parse_finished,
    parse_jobstats,
    read_finished,
)
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.model import AccountedRun, RunEnd
from tests.slurm.record_finished import MARK, POSING

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = sorted(file.parent.name for file in RECORDED.glob("*/sacct_finished.txt"))
RUN = {
    "JobIDRaw": "7",
    "JobID": "7",
    "User": "alice",
    "JobName": "train",
    "State": "COMPLETED",
    "Start": "2026-11-23T10:00:00",
    "End": "2026-11-23T11:00:00",
    "ElapsedRaw": "3600",
    "TimelimitRaw": "120",
    "AllocTRES": "billing=4,cpu=4,gres/gpu:v100=2,gres/gpu=2,mem=8192M,node=1",
    "TotalCPU": "01:00:00",
    "WorkDir": "/home/alice",
    "Comment": "synsched:model=resnet50",
}
STEP = {
    "JobIDRaw": "7.batch",
    "Start": "2026-11-23T10:00:00",
    "End": "2026-11-23T11:00:00",
    "AllocTRES": "cpu=4,mem=8192M,node=1",
    "NTasks": "1",
}


def output(*rows: dict[str, str]) -> str:
    return format_finished(rows, MARK)


def run_of(*rows: dict[str, str]) -> AccountedRun:
    (run,) = parse_finished(output(*rows), MARK).runs
    return run


def recorded(release: str) -> dict[str, list[AccountedRun]]:
    page = parse_finished((RECORDED / release / "sacct_finished.txt").read_text(), MARK)
    assert page.unread == 0
    runs: dict[str, list[AccountedRun]] = {}
    for run in page.runs:
        runs.setdefault(run.name, []).append(run)
    return runs


def test_something_was_recorded() -> None:
    assert {"bookworm", "trixie", "sid"} <= set(RELEASES)


@pytest.mark.parametrize("release", RELEASES)
def test_each_run_that_started_with_gpus_is_read_with_its_end(release: str) -> None:
    runs = recorded(release)
    ends = {name: [run.end for run in found] for name, found in runs.items()}
    again, failed = ends.pop("again"), ends.pop("failed", [])
    assert ends == {
        "burner": [RunEnd.COMPLETED],
        "sleeper": [RunEnd.COMPLETED],
        "eater": [RunEnd.COMPLETED],
        "steps": [RunEnd.COMPLETED],
        "timed out": [RunEnd.TIMED_OUT],
        "array": [RunEnd.COMPLETED] * 3,
        "gang": [RunEnd.COMPLETED],
        "cancelled": [RunEnd.CANCELLED],
        "ResNet 50: ünïcode": [RunEnd.COMPLETED],
        POSING: [RunEnd.COMPLETED],
    }, "one was cancelled before it started, one has no GPU"
    assert RunEnd.REQUEUED in again
    assert failed in ([], [RunEnd.FAILED]), "it ran for less than a second"


@pytest.mark.parametrize("release", RELEASES)
def test_amounts_of_a_run_are_those_of_all_its_nodes(release: str) -> None:
    runs = recorded(release)
    (gang,), (sleeper,), (late,) = runs["gang"], runs["sleeper"], runs["timed out"]
    assert (gang.nodes, gang.gpus, gang.cpus, gang.memory) == (2, 4, 2, 2048)
    assert (sleeper.gpus, sleeper.cpus, sleeper.memory, sleeper.time_limit) == (2, 8, 4096, 3600)
    assert 60 <= late.seconds <= 120
    assert late.time_limit == 60
    assert {run.array_job for run in runs["array"]} == {runs["array"][0].job.partition("_")[0]}
    assert {run.job.partition("_")[2] for run in runs["array"]} == {"1", "2", "3"}


def test_the_tasks_of_an_array_have_numbers_of_their_own() -> None:
    task = {**RUN, "JobIDRaw": "12", "JobID": "7_3"}
    assert parse_finished(output(task, RUN), MARK).numbers == {"7_3": "12", "7": "7"}


@pytest.mark.parametrize("release", RELEASES)
def test_a_burner_is_told_from_a_sleeper_by_the_time_of_its_processes(release: str) -> None:
    runs = recorded(release)
    (burner,), (sleeper,) = runs["burner"], runs["sleeper"]
    assert burner.cpu_seconds is not None
    assert burner.cpu_seconds > 0.3 * burner.cpus * burner.seconds, "the machine of the recording was busy"
    assert sleeper.cpu_seconds is not None
    assert 0 < sleeper.cpu_seconds < 1, "the shell took some milliseconds"
    assert (burner.model, burner.folder, burner.owner) == ("burner", "/home/alice", "alice")


@pytest.mark.parametrize("release", RELEASES)
def test_a_name_that_poses_as_a_record_is_a_name(release: str) -> None:
    (run,) = recorded(release)[POSING]
    assert (run.owner, run.name) == ("mallory", POSING)


@pytest.mark.parametrize("release", RELEASES)
def test_what_jobstats_wrote_is_read(release: str) -> None:
    (late,) = recorded(release)["timed out"]
    assert late.gathered
    assert late.cpu_seconds == pytest.approx(9.5)
    assert late.peak_memory == 300


def test_memory_is_the_peak_of_steps_at_the_same_time_on_one_node() -> None:
    batch = {**STEP, "MaxRSS": "1024K", "TRESUsageInTot": "cpu=00:00:10,mem=1024K"}
    first = {**STEP, "JobIDRaw": "7.0", "End": "2026-11-23T10:30:00", "NTasks": "4", "MaxRSS": "204800K"}
    second = {**first, "JobIDRaw": "7.1", "Start": "2026-11-23T10:30:00", "End": "2026-11-23T11:00:00"}
    assert run_of(RUN, batch, first).peak_memory == 4 * 201 + 2
    assert run_of(RUN, batch, first, second).peak_memory == 4 * 201 + 2, "one after the other"
    at_once = {**second, "Start": "2026-11-23T10:29:00"}
    assert run_of(RUN, batch, first, at_once).peak_memory == 2 * 4 * 201 + 2


def test_use_of_cpus_counts_processes_that_nobody_waited_for_and_gpus_are_a_peak() -> None:
    usage = "cpu=03:00:00,mem=2048K,gres/gpumem=4096M,gres/gpuutil=37"
    run = run_of(RUN, {**STEP, "MaxRSS": "2048K", "TRESUsageInTot": usage, "TRESUsageInMax": usage})
    assert (run.cpu_seconds, run.gathered, run.peak_gpu_use, run.gpu_use) == (3 * 3600, True, 0.37, None)
    assert (run.gpu_type, run.model) == ("v100", "resnet50")


def test_without_gathering_the_time_of_processes_is_a_lower_bound() -> None:
    assert run_of(RUN, STEP).cpu_seconds == 3600
    assert not run_of(RUN, STEP).gathered
    assert run_of({**RUN, "TotalCPU": "00:00:00"}, STEP).cpu_seconds is None


def summary(nodes: int = 1, **changes: object) -> str:
    node = {
        "cpus": 4,
        "gpu_used_memory": {"0": 2**30, "1": 2**31},
        "gpu_utilization": {"0": 90.0, "1": 50.0},
        "total_memory": 2**33,
        "total_time": 7200.0,
        "used_memory": 2**32,
    } | changes
    text = json.dumps({"gpus": 2, "nodes": {f"n{number}": node for number in range(nodes)}, "total_time": 3600})
    return "JS1:" + base64.b64encode(gzip.compress(text.encode())).decode()


def test_a_summary_of_jobstats_has_means_of_gpus_and_the_peak_of_memory() -> None:
    run = run_of({**RUN, "AdminComment": summary()}, STEP)
    assert (run.gpu_use, run.gpu_source, run.gpu_memory, run.peak_memory) == (0.7, "jobstats", 2048, 4096)
    assert (run.cpu_seconds, run.gathered) == (7200, True)


def test_a_gpu_that_a_job_hardly_used_is_counted() -> None:
    half = summary(gpu_utilization={"0": 4.9, "1": 99.0})
    assert run_of({**RUN, "AdminComment": half}, STEP).idle_gpus == 1
    assert run_of({**RUN, "AdminComment": summary()}, STEP).idle_gpus == 0
    assert run_of(RUN, STEP).idle_gpus is None


BOMB = "JS1:" + base64.b64encode(gzip.compress(b"[" * 30_000_000)).decode()
HOSTILE_SUMMARIES = {
    "nothing recorded": "JS1:Short",
    "another note": "watched by jobstats",
    "no base64": "JS1:ü",
    "no gzip": "JS1:" + base64.b64encode(b"{}").decode(),
    "a list": "JS1:" + base64.b64encode(gzip.compress(b"[1]")).decode(),
    "deeply nested": "JS1:" + base64.b64encode(gzip.compress(b"[" * 100_000)).decode(),
    "30 MB in 40 kB": BOMB,
    "more time of CPUs than there was": summary(total_time=1e6),
    "below zero": summary(total_time=-1.0),
    "no number": summary(used_memory="much"),
    "not finite": summary(used_memory=float("inf")),
    "a truth": summary(total_time=True),
    "use that is no table": summary(gpu_utilization=[1]),
}


@pytest.mark.parametrize("comment", HOSTILE_SUMMARIES.values(), ids=HOSTILE_SUMMARIES)
def test_a_summary_that_jobstats_cannot_have_written_counts_as_none(comment: str) -> None:
    assert parse_jobstats(comment, 3600, 2) == {}
    assert run_of({**RUN, "AdminComment": comment}, STEP).cpu_seconds == 3600


@pytest.mark.parametrize(
    "comment",
    [
        pytest.param(summary(cpus=4000, total_time=1e6), id="more CPUs than the run had"),
        pytest.param(summary(used_memory=2**59), id="more memory than the run had"),
    ],
)
def test_a_summary_of_more_than_the_run_had_is_not_of_this_run(comment: str) -> None:
    assert parse_jobstats(comment, 3600, 2), "by itself it could be"
    run = run_of({**RUN, "AdminComment": comment}, STEP)
    assert (run.cpu_seconds, run.peak_memory, run.gpu_use) == (3600, None, None)


def test_use_of_other_gpus_than_the_jobs_is_left_out() -> None:
    assert "gpu" not in parse_jobstats(summary(), 3600, 3)


@given(comment=st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: "JS1:" + base64.b64encode(raw).decode()))
def test_any_comment_gives_amounts_of_zero_or_more(comment: str) -> None:
    assert all(0 <= value < 2**61 for value in parse_jobstats(comment, 3600, 2).values())


hostile = st.text(max_size=60).filter(lambda text: MARK not in text) | st.sampled_from(
    ["|", "\n7\n", "8|root|x", "7.batch", "None", "-1", "9" * 400, "1e999", "gres/gpu=9", "\x00", "🦙\r\n"]
)


@given(
    texts=st.fixed_dictionaries(dict.fromkeys(("JobName", "WorkDir", "Comment", "AdminComment"), hostile)),
    other=st.integers(1, 9),
)
def test_what_an_owner_writes_changes_nothing_of_another_run_nor_amounts_of_its_own(
    texts: dict[str, str], other: int
) -> None:
    plain = {**RUN, "JobIDRaw": "9", "JobID": "9", "User": "bob", "AllocTRES": f"cpu={other},gres/gpu=1,node=1"}
    page = parse_finished(output({**RUN, **texts}, STEP, plain), MARK)
    mine, others = sorted(page.runs, key=lambda run: run.job)
    assert others == run_of(plain)
    assert (mine.owner, mine.gpus, mine.seconds, mine.cpu_seconds) == ("alice", 2, 3600, 3600)


@given(column=st.sampled_from(_RUN_COLUMNS), text=hostile)
def test_a_run_that_cannot_be_read_is_counted_and_the_others_are_read(column: str, text: str) -> None:
    # Of two records of one job the later one counts.
    plain = {**RUN, "JobIDRaw": "90210", "JobID": "90210", "User": "bob"}
    assume(text != "90210")
    page = parse_finished(output(plain, {**RUN, column: text}), MARK)
    assert run_of(plain) in page.runs
    assert len(page.runs) + page.unread <= 2
    assert all(run.seconds > 0 and (run.cpu_seconds or 0) >= 0 for run in page.runs)


@pytest.mark.parametrize("text", ["x", "x" + MARK, output(RUN)[:-40], output(RUN) + "sacct: error"])
def test_output_without_the_columns_is_an_error(text: str) -> None:
    with pytest.raises(SlurmParseError):
        parse_finished(text, MARK)


def commands(answer: CommandResult | TimeoutError, asked: list[Sequence[str]]) -> Commands:
    def run(argv: Sequence[str], _stdin: str, timeout: float, _env: object) -> CommandResult:
        asked.append(argv)
        assert timeout <= 20
        if isinstance(answer, TimeoutError):
            raise answer
        return answer

    return Commands(300.0, runner=run)


def test_the_mark_is_another_one_each_time() -> None:
    asked: list[Sequence[str]] = []
    for _ in range(2):
        assert read_finished(commands(CommandResult(0, "", ""), asked), 0.0, 60.0).runs == ()
    assert asked[0] != asked[1]
    assert [*asked[0]] == [*finished_query(0.0, 60.0, next(w for w in asked[0] if "delim" in w).partition("=")[2])]
    assert "1970-01-01T00:01:00" in asked[0]


@pytest.mark.parametrize(
    "answer",
    [
        TimeoutError(),
        CommandResult(
            1, "", "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection"
        ),
        CommandResult(1, "Slurm accounting storage is disabled\n", ""),
    ],
)
def test_a_slurmdbd_that_does_not_answer_is_an_error_that_says_so(answer: CommandResult | TimeoutError) -> None:
    with pytest.raises(BackendError, match=r"sacct"):
        read_finished(commands(answer, []), 0.0, 60.0)


@pytest.mark.parametrize("message", ["", "sacct: error: " + "x" * 9000])
def test_what_sacct_printed_of_users_before_it_failed_is_in_no_message(message: str) -> None:
    def cut_off(argv: Sequence[str], stdin: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        mark = next(word for word in argv if word.startswith("--delimiter=")).partition("=")[2]
        return CommandResult(1, format_finished([RUN, STEP], mark)[:-40], message)

    with pytest.raises(BackendError, match=r"^sacct failed: (sacct: error: x|it printed no message)") as told:
        read_finished(Commands(5, runner=cut_off), 0.0, 60.0)
    assert "alice" not in str(told.value)
    assert len(str(told.value)) < 400
