"""What jobs have on their nodes, read from text in which their owners wrote."""

from __future__ import annotations

import re
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandJobReader, CommandSource, read_jobs
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.gres import Gres, parse_gres
from slurmsched.backends.slurm.hostlist import expand_hostlist
from slurmsched.backends.slurm.job_details import parse_details
from slurmsched.backends.slurm.squeue_table import read_squeue
from slurmsched.model import JobState, Snapshot
from slurmsched.rounds.round import paused_collector
from tests.unit.fake_slurm import FakeJob, FakeNode, FakeSlurm

ON_N1 = {
    "NodeList": "n1",
    "StartTime": "2026-11-21T01:30:00",
    "JOB_GRES": "gpu:v100:1",
    "Nodes": "n1",
    "CPU_IDs": "0-5",
    "Mem": "1000",
    "GRES": "gpu:v100:1(IDX:3)",
}
POSING = (
    "x Nodes=n2 CPU_IDs=0-23 Mem=511992 GRES=gpu:v100:8(IDX:0-7) MinCPUsNode=1 MinMemoryNode=1 TresPerJob=gres/gpu:99"
)
MANY = 40
"""More jobs than are asked for one by one."""


def running(number: int, **other: Any) -> FakeJob:
    return FakeJob(number, state="RUNNING", **{"fields": dict(ON_N1), "asked": {"TresPerNode": "gres/gpu:1"}} | other)


def observed(*jobs: FakeJob) -> tuple[Snapshot, FakeSlurm]:
    slurm = FakeSlurm(jobs, [FakeNode("n1"), FakeNode("n2")])
    return SlurmBackend(Commands(5, runner=slurm), CommandSource(), lambda: 1000.0).observe(), slurm


def crowd(*jobs: FakeJob, others: int) -> list[FakeJob]:
    """These jobs, and so many more that run."""
    return [*jobs, *(running(1000 + number, user="bob") for number in range(others))]


@pytest.mark.parametrize("others", [0, MANY])
@pytest.mark.parametrize(
    "owned",
    [
        pytest.param({"fields": ON_N1 | {"Network": POSING}}, id="network"),
        pytest.param({"fields": ON_N1 | {"Network": "x ReqTRES=node=0,mem=10G"}}, id="totals in the network"),
        pytest.param({"fields": ON_N1 | {"Network": "x MinMemoryCPU=999999999999999E"}}, id="memory in the network"),
        pytest.param({"asked": {"TresPerNode": "gres/gpu:1", "MailUser": "x TresPerJob=gres/gpu:7"}}, id="mail"),
        pytest.param({"name": POSING}, id="name"),
        pytest.param({"comment": f"synsched: {POSING}"}, id="comment"),
        pytest.param({"arguments": f"a WorkDir=x Comment=z {POSING}"}, id="arguments"),
        pytest.param({"account": f"a {POSING}"[:60]}, id="account"),
        pytest.param({"wckey": f"a {POSING}"}, id="wckey"),
        pytest.param({"submitted_on": f"a:3 ReqNodeList=(null) ExcNodeList=(null) NodeList=n1 {POSING}"}, id="host"),
    ],
)
def test_what_an_owner_writes_changes_nothing_of_what_his_job_has_or_asks_for(
    owned: dict[str, Any], others: int
) -> None:
    snapshot, _ = observed(*crowd(running(1, **owned), others=others))
    honest, _ = observed(*crowd(running(1), others=others))
    assert (snapshot.jobs_by_id["1"].allocations, snapshot.jobs_by_id["1"].original_request) == (
        honest.jobs_by_id["1"].allocations,
        honest.jobs_by_id["1"].original_request,
    )
    assert snapshot.set_aside == ()


def test_a_comment_is_no_request_of_a_waiting_job() -> None:
    snapshot, _ = observed(FakeJob(1, comment="synsched: TresPerJob=gres/gpu:999999999"))
    assert (
        snapshot.jobs_by_id["1"].original_request.gpus,
        snapshot.jobs_by_id["1"].original_request.gpus_per_node,
    ) == (2, 2)


def test_records_forged_for_all_jobs_of_another_user_hide_none_of_them() -> None:
    """Of 120 jobs each is named by a line in the texts of one job, those that run by whole records."""
    waiting = [FakeJob(number, user="bob") for number in range(100, 160)]
    started = [running(number, user="bob") for number in range(160, 220)]
    lines = "\n".join(f"JobId={number} " for number in range(100, 220))
    whole = "\n".join(replace(job, fields=job.fields | {"Mem": "9"}).text() for job in started)
    poser = FakeJob(1, name=f"x\n{lines}"[:1000], comment=lines[:1000], arguments=f"\n{whole}\n")
    snapshot, _ = observed(poser, *waiting, *started)
    assert (len(snapshot.jobs), snapshot.set_aside) == (121, ())
    for job in started:
        assert snapshot.jobs_by_id[str(job.number)].allocations[0].resources.memory == 1000
    assert {job.user for job in snapshot.jobs if job.id != "1"} == {"bob"}


@pytest.mark.parametrize("others", [0, MANY])
def test_a_job_that_poses_as_itself_is_read_from_its_first_byte(others: int) -> None:
    forged = running(1, fields=ON_N1 | {"Mem": "9"}).text()
    snapshot, _ = observed(*crowd(running(1, arguments=f"\n{forged}" * 20), others=others))
    assert (snapshot.jobs_by_id["1"].allocations[0].resources.memory, snapshot.set_aside) == (1000, ())


def test_a_job_that_poses_as_itself_where_its_number_stands_for_others_too_is_the_one_set_aside() -> None:
    """It is not the first in its owner's text then, as the first part of a heterogeneous job."""
    forged = running(5).text()
    tasks = [running(6, array="5_1", arguments=f"\n{forged}"), running(5, fields=ON_N1 | {"Mem": "9"})]
    snapshot, _ = observed(*tasks, running(2, user="bob"))
    assert sorted(job.id for job in snapshot.jobs) == ["2", "5_1"]
    [left] = snapshot.set_aside
    assert (left.job, left.user, left.pending, left.reason) == (
        "5",
        "alice",
        False,
        "text of its owner looks like a second record of it",
    )
    assert not snapshot.is_gone("5_7")


def test_a_job_whose_text_is_longer_than_slurm_should_take_is_set_aside() -> None:
    snapshot, _ = observed(FakeJob(1, wckey="x" * 2000), FakeJob(2))
    assert [job.id for job in snapshot.jobs] == ["2"]
    assert [(left.job, left.pending) for left in snapshot.set_aside] == [("1", True)]


def test_a_layout_is_read_once_for_each_run() -> None:
    slurm = FakeSlurm([running(1)], [FakeNode("n1"), FakeNode("n2")])
    backend = SlurmBackend(Commands(5, runner=slurm), CommandSource(), lambda: 1000.0)
    backend.observe()
    assert slurm.asked[-1] == "show job 1"
    slurm.asked.clear()
    assert backend.observe().jobs_by_id["1"].allocations[0].indices == (3,)
    assert sorted(slurm.asked) == ["show node", "show reservation", "squeue"]
    again = {"StartTime": "2026-11-21T02:00:00", "GRES": "gpu:v100:1(IDX:5)"}
    slurm.jobs[1].fields |= again
    assert backend.observe().jobs_by_id["1"].allocations[0].indices == (5,)


@pytest.mark.parametrize("others", [0, MANY])
def test_how_many_tasks_may_run_at_once_is_known_once_each_task_is_a_job_of_its_own(others: int) -> None:
    """As tasks are that were held, released or requeued one by one. squeue says it only of tasks that still stand
    together."""
    started = running(11, array="9_1", throttle=2)
    waiting = [FakeJob(number, array=f"9_{task}", throttle=2) for number, task in ((12, 2), (9, 3))]
    together = [FakeJob(21, array="20_1"), FakeJob(20, array="20_2-3%1")]
    free = [FakeJob(31, array="30_1"), FakeJob(30, array="30_2")]
    snapshot, _ = observed(*crowd(started, *waiting, *together, *free, others=others))
    throttles = {name: snapshot.jobs_by_id[name].throttle for name in snapshot.jobs_by_id if "_" in name}
    assert throttles == dict.fromkeys(("9_1", "9_2", "9_3"), 2) | dict.fromkeys(
        ("20_1", "20_2", "20_3"), 1
    ) | dict.fromkeys(("30_1", "30_2"))


def test_a_changed_number_of_tasks_at_once_counts_from_the_next_look_on() -> None:
    slurm = FakeSlurm([FakeJob(12, array="9_2", throttle=1), FakeJob(9, array="9_3", throttle=1)], [FakeNode("n1")])
    backend = SlurmBackend(Commands(5, runner=slurm), CommandSource(), lambda: 1000.0)
    assert backend.observe().jobs_by_id["9_2"].throttle == 1
    for job in slurm.jobs.values():
        job.throttle = 4
    assert backend.observe().jobs_by_id["9_2"].throttle == 4


@pytest.mark.parametrize(
    ("tasks", "asked"),
    [
        pytest.param([FakeJob(9, array="9_3"), FakeJob(12, array="9_2")], "show job 12", id="waiting"),
        pytest.param([FakeJob(9, array="9_3-7"), running(11, array="9_1")], "show job 11", id="running"),
        pytest.param([FakeJob(9, array="9_3")], "show job 9_3", id="no other is left"),
    ],
)
def test_how_many_may_run_is_asked_by_the_number_of_one_task(tasks: list[FakeJob], asked: str) -> None:
    """Asked by the array's number, slurmctld sends the records of all its tasks."""
    slurm = FakeSlurm(tasks, [FakeNode("n1")])
    backend = SlurmBackend(Commands(5, runner=slurm), CommandSource(), lambda: 1000.0)
    backend.observe()
    slurm.asked.clear()
    backend.observe()
    assert [line for line in slurm.asked if line.startswith("show job")] == [asked]


def test_a_job_that_ends_between_the_two_commands_is_gone() -> None:
    slurm = FakeSlurm([running(1), FakeJob(2)])

    def run(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        answer = slurm(argv, given, timeout, env)
        slurm.jobs.pop(1, None)
        return answer

    jobs, left = read_jobs(Commands(5, runner=run), {"1", "2"})
    assert (sorted(jobs), left) == (["2"], ())


def test_a_controller_that_stops_answering_is_not_a_job_that_is_gone() -> None:
    slurm = FakeSlurm([running(1)])

    def run(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        answer = slurm(argv, given, timeout, env)
        if not given:
            return answer
        unanswered = re.sub(r"(?m)^JobId=.*\n", "", answer.stdout)
        return CommandResult(
            1, unanswered, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
        )

    with pytest.raises(BackendError):
        read_jobs(Commands(5, runner=run), {"1"})


def test_jobs_are_read_anew_with_those_that_exist_and_cannot_be_read() -> None:
    slurm = FakeSlurm([FakeJob(1), FakeJob(2, wckey="x" * 2000), FakeJob(5, array="5_3-4")])
    jobs, left = read_jobs(Commands(5, runner=slurm), {"1", "2", "5_3", "77"})
    assert (sorted(jobs), [one.job for one in left]) == (["1", "5_3"], ["2"])


@pytest.mark.parametrize(
    ("detailed", "records"),
    [
        pytest.param(None, 2, id="all details of both"),
        pytest.param(["1"], 1, id="those of one of them"),
        pytest.param([], 0, id="none: nothing is asked beyond the table"),
    ],
)
def test_only_the_details_that_are_asked_for_are_read(detailed: list[str] | None, records: int) -> None:
    runs = {"NodeList": "n1", "Nodes": "n1", "CPU_IDs": "0-5", "Mem": "1000", "GRES": "gpu:v100:2(IDX:0-1)"}
    slurm = FakeSlurm([FakeJob(number, state="RUNNING", fields=runs) for number in (1, 2)])
    jobs, left = read_jobs(Commands(5, runner=slurm), {"1", "2"}, detailed)
    assert (sorted(jobs), left) == (["1", "2"], ())
    assert all(one.state is JobState.RUNNING for one in jobs.values())
    assert sum(bool(one.allocations) for one in jobs.values()) == records


class Changing:
    """A Slurm in which a job changes once, right before the texts of jobs are first asked for."""

    def __init__(self, slurm: FakeSlurm, change: Callable[[FakeSlurm], object]) -> None:
        self.slurm, self.change, self.asked = slurm, change, 0

    def __call__(self, argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        if argv[0] == "scontrol" and "job" in " ".join([*argv, given]):
            self.asked += 1
            if self.asked == 1:
                self.change(self.slurm)
        return self.slurm(argv, given, timeout, env)

    def observed(self, jobs: CommandJobReader) -> Snapshot:
        return SlurmBackend(Commands(5, runner=self), CommandSource(jobs), lambda: 1000.0).observe()


def waits_again(slurm: FakeSlurm) -> None:
    slurm.jobs[1] = FakeJob(1)


def moved(slurm: FakeSlurm) -> None:
    slurm.jobs[1].fields.update(NodeList="n2", Nodes="n2")


@pytest.mark.parametrize(("change", "state", "nodes"), [(waits_again, "pending", ()), (moved, "running", ("n2",))])
def test_a_job_that_changes_between_the_table_and_the_texts_is_read_once_more(
    change: Callable[[FakeSlurm], None], state: str, nodes: tuple[str, ...]
) -> None:
    slurm = Changing(FakeSlurm([running(1), running(2)], [FakeNode("n1"), FakeNode("n2")]), change)
    snapshot = slurm.observed(CommandJobReader())
    assert (snapshot.set_aside, snapshot.jobs_by_id["1"].state, snapshot.jobs_by_id["1"].nodes) == ((), state, nodes)
    assert snapshot.jobs_by_id["2"].nodes == ("n1",)


def test_a_job_that_ends_between_the_table_and_the_texts_is_in_neither_list() -> None:
    slurm = Changing(FakeSlurm([running(1), running(2)], [FakeNode("n1")]), lambda slurm: slurm.jobs.pop(1))
    snapshot = slurm.observed(CommandJobReader())
    assert (snapshot.set_aside, sorted(snapshot.jobs_by_id)) == ((), ["2"])


def test_a_record_that_is_never_understood_costs_a_second_look_only_once() -> None:
    class Spoilt(Changing):
        def __call__(self, argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
            answer = super().__call__(argv, given, timeout, env)
            return replace(answer, raw_stdout=answer.stdout_bytes.replace(b" UserId=", b" Owner="))

    slurm, jobs, asked = Spoilt(FakeSlurm([running(1)], [FakeNode("n1")]), lambda _: None), CommandJobReader(), []
    for _ in range(3):
        assert [one.job for one in slurm.observed(jobs).set_aside] == ["1"]
        asked.append(slurm.asked - sum(asked))
    assert asked == [2, 1, 1]


def test_memory_is_asked_of_the_record_where_the_table_does_not_tell() -> None:
    """Slurm 22.05 counts CPUs per GPU only at the start, so the total is the same per CPU and per node."""
    fields = {"MinMemoryCPU": "2000M", "NumCPUs": "1", "ReqTRES": "cpu=1,mem=2000M,node=1"}
    asked = {"TresPerJob": "gres/gpu:2", "CpusPerTres": "gres/gpu:3"}
    snapshot, slurm = observed(FakeJob(1, fields=fields, asked=asked))
    assert snapshot.jobs_by_id["1"].original_request.memory == 12_000
    assert "show job 1" in slurm.asked


def test_gpus_without_files_are_counted() -> None:
    assert parse_gres("gpu:v100(CNT:2)") == (Gres("gpu", "v100", 2),)
    assert parse_gres("gpu:v100:3(CNT:2),gpu(CNT:1)") == (Gres("gpu", "v100", 2), Gres("gpu", "", 1))
    snapshot, _ = observed(running(1, fields=ON_N1 | {"GRES": "gpu:v100(CNT:2)"}))
    [share] = snapshot.jobs_by_id["1"].allocations
    assert (share.resources.gpus, share.gpu_type, share.indices) == (2, "v100", ())


class TestCost:
    """Time and memory, however long a text is."""

    @pytest.mark.parametrize(
        "arguments",
        [
            pytest.param("a WorkDir=x Comment=z" + " " * 520_000 + "y", id="blanks"),
            pytest.param("a " + "MinMemoryNode=" * 37_000, id="fields"),
            pytest.param("\n" + "JobId=1 JobName=train UserId=" * 18_000, id="records"),
            pytest.param("\n" + "JobId=1 \n" * 60_000, id="lines"),
        ],
    )
    def test_arguments_of_half_a_megabyte_cost_milliseconds(self, arguments: str) -> None:
        """Of the processor: others may use it too."""
        commands = Commands(5, runner=FakeSlurm([running(1, arguments=arguments)]))
        [row] = read_squeue(commands).values()
        data = running(1, arguments=arguments).text().encode()
        with paused_collector():  # as in a round
            start = time.process_time()
            parse_details(data, 0, row)
            parsed = time.process_time()
            CommandJobReader().read_records(commands)
            read = time.process_time()
        assert (parsed - start < 0.005, read - parsed < 1.0) == (True, True)

    @pytest.mark.parametrize(
        "text",
        ["a" * 60_000, "gpu:" + "x1" * 30_000 + "!", "gpu:" + "1" * 60_000, "gpu:a(" * 10_000, "gpu:,," * 10_000],
    )
    def test_a_list_of_gres_takes_time_in_proportion_to_its_length(self, text: str) -> None:
        def seconds(of: str) -> float:
            with paused_collector(), suppress(SlurmParseError):
                start = time.process_time()
                parse_gres(of)
            return time.process_time() - start

        whole = min(seconds(text) for _ in range(3))
        assert whole < 0.05 + 10 * min(seconds(text[: len(text) // 4]) for _ in range(3))

    @pytest.mark.parametrize(
        "text", ["n[1-99999]," * 90, f"n[{'1-99999,' * 100}1]", "n" + "[1-2]" * 200, "[" * 1000, "n" * 2_000_000]
    )
    def test_a_hostlist_stands_for_no_more_names_than_are_wanted(self, text: str) -> None:
        tracemalloc.start()
        with paused_collector():
            start = time.process_time()
            with pytest.raises(SlurmParseError):
                expand_hostlist(text, 2000)
            spent = time.process_time() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (spent < 0.1, peak < 5_000_000) == (True, True)


PIECES = st.sampled_from(
    [
        *(" Nodes=n2", " CPU_IDs=0-23", " Mem=5", " GRES=gpu:v100:8(IDX:0-7)", " MinMemoryNode=9M", " ReqTRES=node=0"),
        *(" MinCPUsNode=1", " Comment=x", " Network=", " Command=", " NodeList=n1", " AllocNode:Sid=login:33", "\n"),
        *("JobId=1 JobName=train", " UserId=alice(2001)", " JobState=RUNNING Reason=None", " TresPerJob=gres/gpu:9"),
        *(running(1).text(), "x", "学", " ", "=", "(", ":"),
    ]
)
HOSTILE = st.lists(PIECES, max_size=12).map("".join)


@given(name=HOSTILE, comment=HOSTILE, arguments=HOSTILE, network=HOSTILE, account=HOSTILE, wckey=HOSTILE, host=HOSTILE)
def test_hostile_text_in_every_owned_field_gives_the_same_job_or_one_that_is_set_aside(
    name: str, comment: str, arguments: str, network: str, account: str, wckey: str, host: str
) -> None:
    own = {"name": name[:300], "comment": comment[:300], "account": account[:300], "wckey": wckey[:300]}
    job = running(1, fields=ON_N1 | {"Network": network}, arguments=arguments, submitted_on=host[:300], **own)
    hostile, _ = observed(job, running(2, user="bob"))
    honest, _ = observed(running(1), running(2, user="bob"))
    assert hostile.jobs_by_id["2"] == honest.jobs_by_id["2"]
    if "1" in hostile.jobs_by_id:
        seen = replace(
            hostile.jobs_by_id["1"], name="train", comment="", account="vision", hints=honest.jobs_by_id["1"].hints
        )
        assert seen == honest.jobs_by_id["1"]
    else:
        assert [left.job for left in hostile.set_aside] == ["1"]
