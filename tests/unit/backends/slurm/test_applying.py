"""Operations done on a fake Slurm, and what is made of what it shows afterwards."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.executor import job_verdict, matches_spec, messages_by_job
from slurmsched.backends.slurm.operation_commands import join_tasks
from slurmsched.model import (
    JobSpec,
    Operation,
    OperationValue,
    Outcome,
    Reason,
    ReasonCode,
    Request,
    Result,
    SetAsideJob,
    Verb,
)
from tests.unit.fake_slurm import FakeJob, FakeNode, FakeSlurm

WHY = Reason(ReasonCode.START)
SHAPE = JobSpec(("n1",), 1, 2, 2, "v100", 12, 2000, 1)
HELD = {"priority": 0, "reason": "JobHeldUser"}


def op(verb: Verb, subject: int | str = 1, after: OperationValue = None, before: OperationValue = None) -> Operation:
    return Operation(verb, str(subject), WHY, before, after)


def connected(slurm: FakeSlurm) -> SlurmBackend:
    return SlurmBackend(Commands(5, runner=slurm), CommandSource(), clock=lambda: 1000.0, user=lambda: "synsched")


def done(slurm: FakeSlurm, *operations: Operation) -> tuple[Outcome, ...]:
    backend = connected(slurm)
    backend.observe()
    return backend.execute(operations)


def one(slurm: FakeSlurm, operation: Operation) -> tuple[Result, str]:
    [outcome] = done(slurm, operation)
    return outcome.result, outcome.detail


@pytest.mark.parametrize(
    ("job", "operation"),
    [
        (FakeJob(1), op(Verb.HOLD)),
        (FakeJob(1, **HELD), op(Verb.RELEASE)),
        (FakeJob(1, **HELD), op(Verb.UPDATE, after=SHAPE)),
        (FakeJob(1, state="RUNNING"), op(Verb.REQUEUE)),
        (FakeJob(1, state="RUNNING"), op(Verb.NOTIFY, after="usr1")),
        (FakeJob(1), op(Verb.PRIORITIZE, after=-7)),
        (FakeJob(1), op(Verb.NOTE, after="synsched: waits behind 3 jobs")),
        (FakeJob(1, array="5_3"), op(Verb.HOLD, "5_3")),
    ],
)
def test_an_operation_is_done_when_it_is_seen_to_be_done(job: FakeJob, operation: Operation) -> None:
    assert one(FakeSlurm([job]), operation) == (Result.DONE, "")


def test_many_changes_are_one_batch_in_order_and_each_is_read_back() -> None:
    slurm = FakeSlurm([FakeJob(1, **HELD), FakeJob(2)])
    outcomes = done(slurm, op(Verb.UPDATE, 1, SHAPE), op(Verb.RELEASE, 1), op(Verb.HOLD, 2))
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * 3
    assert [line.split()[0] for line in slurm.ran] == ["update", "release", "hold"]
    assert slurm.asked[-1] == "squeue"


def test_for_many_jobs_all_are_read_back_at_once() -> None:
    slurm = FakeSlurm([FakeJob(number) for number in range(1, 40)])
    outcomes = done(slurm, *(op(Verb.HOLD, number) for number in range(1, 40)))
    assert {outcome.result for outcome in outcomes} == {Result.DONE}
    assert slurm.asked[-1] == "squeue"


def test_a_change_that_slurm_takes_without_doing_it_is_not_believed() -> None:
    slurm = FakeSlurm([FakeJob(1, **HELD)])
    slurm.ignored = {"NumCPUs"}
    result, detail = one(slurm, op(Verb.UPDATE, after=SHAPE))
    assert result is Result.REFUSED
    assert detail == "it now asks for 1 node on n1, v100:2 GPUs, 6 CPUs, 2000 MiB per node, 1 task"


@pytest.mark.parametrize(
    ("job", "operation", "words"),
    [
        pytest.param(FakeJob(1), op(Verb.HOLD), "Access/permission denied", id="hold"),
        pytest.param(FakeJob(1, **HELD), op(Verb.RELEASE), "Access/permission denied", id="release"),
        pytest.param(FakeJob(1), op(Verb.PRIORITIZE, after=3), "Access/permission denied", id="nice"),
        pytest.param(FakeJob(1), op(Verb.UPDATE, after=SHAPE), "Invalid node name specified", id="shape"),
        pytest.param(
            FakeJob(1, state="RUNNING"), op(Verb.REQUEUE), "Requested operation is presently disabled", id="requeue"
        ),
    ],
)
def test_a_refusal_is_told_in_slurms_words(job: FakeJob, operation: Operation, words: str) -> None:
    slurm = FakeSlurm([job])
    slurm.refusals = {"": words}
    assert one(slurm, operation) == (Result.REFUSED, words)


def test_a_task_with_a_record_of_its_own_is_updated_by_its_number() -> None:
    """For an update that names nodes scontrol loads all tasks of the array that `7_3` names."""
    tasks = [FakeJob(12, array="7_3", **HELD), FakeJob(7, array="7_4", **HELD), FakeJob(13, array="7_5-6", **HELD)]
    slurm = FakeSlurm(tasks, [FakeNode("n1")])
    outcomes = done(slurm, *(op(Verb.UPDATE, f"7_{task}", SHAPE) for task in (3, 4)), op(Verb.RELEASE, "7_3"))
    assert [line.partition(" Req")[0] for line in slurm.ran] == ["update JobId=12", "update JobId=7_4", "release 7_3"]
    assert outcomes[0].commands == (f"scontrol {slurm.ran[0]}",)
    assert slurm.jobs[12].fields["ReqNodeList"] == "n1"


def test_a_refusal_that_names_a_tasks_number_is_that_tasks() -> None:
    slurm = FakeSlurm([FakeJob(12, array="7_3", **HELD), FakeJob(13, array="7_4", **HELD)], [FakeNode("n1")])
    slurm.refusals = {"JobId=12": "Access/permission denied"}
    first, second = done(slurm, *(op(Verb.UPDATE, f"7_{task}", SHAPE) for task in (3, 4)))
    assert (first.result, first.detail) == (Result.REFUSED, "Access/permission denied")
    assert "denied" not in second.detail


def test_a_refusal_of_one_does_not_stop_the_others() -> None:
    slurm = FakeSlurm([FakeJob(1), FakeJob(2)])
    slurm.refusals = {"hold 1": "Access/permission denied"}
    assert [outcome.result for outcome in done(slurm, op(Verb.HOLD, 1), op(Verb.HOLD, 2))] == [
        Result.REFUSED,
        Result.DONE,
    ]


@pytest.mark.parametrize(
    ("verb", "after"),
    [(Verb.HOLD, None), (Verb.RELEASE, None), (Verb.UPDATE, SHAPE), (Verb.REQUEUE, None), (Verb.NOTIFY, "usr1")],
)
@pytest.mark.parametrize("how", ["ended", "forgotten"])
def test_a_job_that_ended_meanwhile_has_overtaken_us(verb: Verb, after: OperationValue, how: str) -> None:
    slurm = FakeSlurm([FakeJob(1, state="RUNNING" if verb in (Verb.REQUEUE, Verb.NOTIFY) else "PENDING")])

    def meanwhile(there: FakeSlurm) -> None:
        if how == "forgotten":
            del there.jobs[1]
        else:
            there.jobs[1].state = "COMPLETED"

    slurm.meanwhile = meanwhile
    result, detail = one(slurm, op(verb, after=after))
    assert result is Result.OVERTAKEN
    assert detail == ("job 1 is gone" if how == "forgotten" else "job 1 is completed")


def test_a_job_that_started_before_its_hold_came_does_not_keep_the_hold() -> None:
    slurm = FakeSlurm([FakeJob(1)])

    def starts(there: FakeSlurm) -> None:
        there.jobs[1].state = "RUNNING"

    slurm.meanwhile = starts
    assert one(slurm, op(Verb.HOLD)) == (Result.OVERTAKEN, "job 1 is running")
    assert slurm.ran == ["hold 1", "release 1"]
    assert slurm.jobs[1].priority > 0


@pytest.mark.parametrize(
    ("reason", "result"),
    [
        pytest.param("job_requeued_in_held_state", Result.DONE, id="on its way back into the queue"),
        pytest.param("None", Result.OVERTAKEN, id="ending by itself"),
    ],
)
def test_a_completing_job_was_requeued_or_has_overtaken_us(reason: str, result: Result) -> None:
    assert one(FakeSlurm([FakeJob(1, state="COMPLETING", reason=reason)]), op(Verb.REQUEUE))[0] is result


def test_a_signal_that_scancel_could_not_send_is_refused() -> None:
    slurm = FakeSlurm([FakeJob(1, state="RUNNING")])
    slurm.refusals = {"1": "Access/permission denied"}
    assert one(slurm, op(Verb.NOTIFY, after="usr1")) == (Result.REFUSED, "Access/permission denied")


def test_somebody_elses_admin_comment_is_never_written_over() -> None:
    slurm = FakeSlurm([FakeJob(1, admin_comment="JS1:abc")])
    result, detail = one(slurm, op(Verb.NOTE, after="synsched: x"))
    assert (result, detail) == (Result.OVERTAKEN, "its AdminComment was written by another program")
    assert slurm.ran == []


def test_what_is_not_permitted_is_not_tried() -> None:
    slurm = FakeSlurm([FakeJob(1)])
    assert one(slurm, replace(op(Verb.HOLD), permitted=False))[0] is Result.BLOCKED
    assert slurm.ran == []


@pytest.mark.parametrize("subject", ["1,2", "1 Priority=5", "-1", "1\nhold 2"])
@pytest.mark.parametrize(("verb", "after"), [(Verb.HOLD, None), (Verb.NOTE, "synsched: x")])
def test_what_is_no_job_id_never_reaches_slurm(verb: Verb, after: OperationValue, subject: str) -> None:
    slurm = FakeSlurm([FakeJob(1), FakeJob(2)])
    result, detail = one(slurm, op(verb, subject, after))
    assert result is Result.REFUSED
    assert detail.startswith("not a job id")
    assert slurm.ran == []


def test_when_nobody_answers_that_is_said_and_nothing_is_claimed() -> None:
    slurm = FakeSlurm([FakeJob(1)])
    backend = connected(slurm)
    backend.observe()
    slurm.down = True
    with pytest.raises(UnreachableError):
        backend.execute([op(Verb.HOLD)])


@pytest.mark.parametrize(
    ("name", "result"), [("n1", Result.DONE), pytest.param("n9", Result.OVERTAKEN, id="a node that is gone")]
)
def test_a_weight_is_read_back_from_the_node(name: str, result: Result) -> None:
    slurm = FakeSlurm(nodes=[FakeNode("n1")])
    assert one(slurm, op(Verb.WEIGH, name, 20))[0] is result


def test_undoing_a_reshape_gives_the_request_as_it_was() -> None:
    slurm = FakeSlurm([FakeJob(1, **HELD)])
    backend = connected(slurm)
    before = backend.observe().jobs_by_id["1"].current_request
    asked = JobSpec((), 1, 2, 2, "v100", 6, 1000, 1)
    forth = op(Verb.UPDATE, after=SHAPE, before=asked)
    back = forth.undo()
    assert back is not None
    assert [outcome.result for outcome in backend.execute([forth])] == [Result.DONE]
    assert backend.observe().jobs_by_id["1"].current_request != before
    assert [outcome.result for outcome in backend.execute([back])] == [Result.DONE]
    assert backend.observe().jobs_by_id["1"].current_request == before


class TestConfiguring:
    """A configuration file replaced, and read by Slurm."""

    def test_the_file_is_written_and_read(self, tmp_path: Path) -> None:
        file = tmp_path / "gres.conf"
        file.write_text("old\n")
        file.chmod(0o640)
        slurm = FakeSlurm()
        assert one(slurm, op(Verb.CONFIGURE, str(file), "new\n", "old\n")) == (Result.DONE, "")
        assert (file.read_text(), file.stat().st_mode & 0o777) == ("new\n", 0o640)
        assert slurm.ran == ["reconfigure"]
        assert [path.name for path in tmp_path.iterdir()] == ["gres.conf"]

    def test_a_file_that_was_changed_meanwhile_is_left_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "gres.conf"
        file.write_text("by hand\n")
        slurm = FakeSlurm()
        assert one(slurm, op(Verb.CONFIGURE, str(file), "new\n", "old\n"))[0] is Result.OVERTAKEN
        assert (file.read_text(), slurm.ran) == ("by hand\n", [])

    def test_a_file_that_slurm_will_not_read_is_put_back(self, tmp_path: Path) -> None:
        file = tmp_path / "gres.conf"
        file.write_text("old\n")
        slurm = FakeSlurm()
        slurm.configuration_error = "slurm_reconfigure error: Invalid user id\n"
        assert one(slurm, op(Verb.CONFIGURE, str(file), "new\n", "old\n")) == (
            Result.REFUSED,
            "slurm_reconfigure error: Invalid user id",
        )
        assert file.read_text() == "old\n"

    def test_undoing_a_new_file_removes_it(self, tmp_path: Path) -> None:
        file = tmp_path / "new.conf"
        slurm = FakeSlurm()
        there = op(Verb.CONFIGURE, str(file), "x\n", None)
        gone = there.undo()
        assert gone is not None
        assert [outcome.result for outcome in done(slurm, there, gone)] == [Result.DONE, Result.DONE]
        assert not file.exists()

    def test_where_we_may_not_write_that_is_said(self, tmp_path: Path) -> None:
        file = tmp_path / "missing" / "gres.conf"
        result, detail = one(FakeSlurm(), op(Verb.CONFIGURE, str(file), "x\n", None))
        assert (result, detail) == (Result.FAILED, f"cannot write {file}: No such file or directory")


def test_a_job_whose_record_cannot_be_read_any_more_is_not_said_to_be_gone() -> None:
    slurm = FakeSlurm([FakeJob(1, state="RUNNING")])
    slurm.meanwhile = lambda _: slurm.jobs[1].fields.update(NumCPUs="many")
    result, detail = one(slurm, op(Verb.REQUEUE))
    assert result is Result.FAILED
    assert "gone" not in detail


def test_among_many_one_that_cannot_be_read_any_more_is_judged_by_its_hold_alone() -> None:
    slurm = FakeSlurm([FakeJob(number) for number in range(1, 40)])
    operations = [op(Verb.HOLD, number) for number in range(1, 40)]
    slurm.meanwhile = lambda _: slurm.jobs[7].fields.update(NumCPUs="many")
    outcomes = done(slurm, *operations)
    assert {outcome.result for outcome in outcomes} == {Result.DONE}


def test_among_many_one_that_slurm_knows_no_more_has_overtaken_us() -> None:
    slurm = FakeSlurm([FakeJob(number) for number in range(1, 40)])
    slurm.meanwhile = lambda _: slurm.jobs.pop(7) and None
    outcomes = {
        outcome.operation.subject: outcome for outcome in done(slurm, *(op(Verb.HOLD, n) for n in range(1, 40)))
    }
    assert (outcomes["7"].result, outcomes["7"].detail) == (Result.OVERTAKEN, "job 7 is gone")


@pytest.mark.parametrize(
    ("verb", "pending", "words", "result"),
    [
        pytest.param(Verb.HOLD, True, "", Result.REFUSED, id="a hold, and it waits without one"),
        pytest.param(Verb.HOLD, False, "", Result.DONE, id="a hold, and it does not wait without one"),
        pytest.param(Verb.HOLD, False, "Access denied", Result.FAILED, id="a hold that slurm complained of"),
        pytest.param(Verb.RELEASE, True, "", Result.DONE, id="a release that shows"),
        pytest.param(Verb.RELEASE, False, "", Result.FAILED, id="a release that does not show"),
        *(
            pytest.param(verb, pending, "", Result.FAILED, id=f"{verb}, pending {pending}")
            for verb in (Verb.UPDATE, Verb.REQUEUE, Verb.NOTIFY, Verb.PRIORITIZE, Verb.NOTE)
            for pending in (True, False)
        ),
    ],
)
def test_what_can_be_told_of_a_job_that_cannot_be_read(verb: Verb, pending: bool, words: str, result: Result) -> None:
    aside = SetAsideJob("1", "its record cannot be read", pending=pending)
    assert job_verdict(op(verb, after=SHAPE), None, words, aside)[0] is result


@pytest.mark.parametrize(
    ("spec", "now", "done"),
    [
        pytest.param(
            JobSpec(("n1", "n2"), 2, 5, None, None, 3, 23040, 5, cpus_per_task=1, keeps_memory=True),
            Request(gpus=5, nodes=2, cpus=5, tasks=5, memory=30720, memory_per_cpu=7680),
            True,
            id="--gpus=5 -n5: five CPUs, not three on each of two nodes",
        ),
        pytest.param(
            JobSpec(("n1", "n2"), 2, 6, None, None, 3, 100, 6, cpus_per_task=1),
            Request(gpus=6, nodes=2, cpus=6, tasks=6, memory=100),
            True,
            id="--gpus-per-task=1 -n 6",
        ),
        pytest.param(
            JobSpec(("n1", "n2"), 2, 8, 4, None, 1, 0, 1, cpus_per_task=1),
            Request(gpus=8, nodes=2, cpus=2, tasks=2),
            True,
            id="--gpus=8 on two nodes: Slurm counts a task on each",
        ),
        pytest.param(
            JobSpec(("n1", "n2"), 1, 2, 2, None, 2, 100, 2, cpus_per_task=1),
            Request(gpus=2, cpus=1, tasks=1, memory=100),
            False,
            id="--gpus=2 --ntasks=2 --ntasks-per-gpu=1: Slurm 24.11 made one task of them",
        ),
        pytest.param(
            JobSpec(("n1", "n2"), 1, 2, 2, None, 4, 100, 1, cpus_per_task=4, keeps_cpus=True),
            Request(gpus=2, cpus=1, memory=100, cpus_per_gpu=2),
            True,
            id="CPUs per GPU are counted by Slurm, in 22.05 only at the start",
        ),
    ],
)
def test_an_update_is_done_when_slurm_shows_what_it_makes_of_it(spec: JobSpec, now: Request, done: bool) -> None:
    assert matches_spec(spec, replace(now, pinned=frozenset({"n1", "n2"}))) == done


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        pytest.param(["hold 7_0", "hold 7_1", "hold 7_2", "hold 7_9"], ["hold 7_[0-2,9]"], id="tasks of one array"),
        pytest.param(["hold 7_4"], ["hold 7_4"], id="one task"),
        pytest.param(["hold 7_1", "hold 8_1", "hold 8_2"], ["hold 7_1", "hold 8_[1-2]"], id="two arrays"),
        pytest.param(["hold 7_1", "release 7_1", "release 7_2"], ["hold 7_1", "release 7_[1-2]"], id="two changes"),
        pytest.param(["hold 7_1", "hold 8", "hold 7_2"], ["hold 7_1", "hold 8", "hold 7_2"], id="in order"),
        pytest.param(["hold 7+1", "hold 7+2"], ["hold 7+1", "hold 7+2"], id="parts of a heterogeneous job"),
        pytest.param(
            ["update JobId=7_1 Nice=3", "update JobId=7_2 Nice=3", "requeuehold Incomplete 7_1"],
            ["update JobId=7_1 Nice=3", "update JobId=7_2 Nice=3", "requeuehold Incomplete 7_1"],
            id="other changes are each its own",
        ),
    ],
)
def test_tasks_of_an_array_are_held_and_released_by_one_line(lines: list[str], sent: list[str]) -> None:
    assert join_tasks(lines) == sent


def test_no_line_is_longer_than_scontrol_reads() -> None:
    lines = join_tasks([f"hold 4294967295_{task}" for task in range(0, 20_000, 2)])
    assert max(map(len, lines)) < 4_096
    assert {task for line in lines for task in re.findall(r"[0-9]+", line.partition("_")[2])} == {
        str(task) for task in range(0, 20_000, 2)
    }


@pytest.mark.parametrize(
    ("said", "messages"),
    [
        ("7_2-4,7: No error\n7_3: Job has already finished", {"7_3": "Job has already finished"}),
        ("7_1,5-6: Access denied", dict.fromkeys(("7_1", "7_5", "7_6"), "Access denied")),
        ("7_5-1: Access denied", {"7_5-1": "Access denied"}),
        ("7_1-: Access denied", {"7_1-": "Access denied"}),
    ],
)
def test_a_message_for_several_tasks_is_one_for_each(said: str, messages: dict[str, str]) -> None:
    assert messages_by_job(said) == messages


def test_an_array_of_which_all_tasks_are_held_stays_one_record() -> None:
    slurm = FakeSlurm([FakeJob(7, array="7_0-9"), FakeJob(20, array="7_10"), FakeJob(21)])
    tasks = [op(Verb.HOLD, f"7_{task}") for task in range(11)]
    outcomes = done(slurm, *tasks, op(Verb.HOLD, 21))
    assert slurm.ran == ["hold 7_[0-10]", "hold 21"]
    assert {outcome.result for outcome in outcomes} == {Result.DONE}
    assert [outcome.commands for outcome in outcomes[:2]] == [("scontrol hold 7_0",), ("scontrol hold 7_1",)]


def an_array(reason: str = "JobHeldAdmin") -> FakeSlurm:
    return FakeSlurm([FakeJob(7, array="7_0-49", priority=0, reason=reason), FakeJob(8)], [FakeNode("n1")])


@pytest.mark.parametrize(
    ("reason", "split"),
    [
        pytest.param("JobHeldAdmin", "hold 7_[5-34]", id="held by us"),
        pytest.param("JobHeldUser", "uhold 7_[5-34]", id="held by the submit hook"),
    ],
)
def test_many_tasks_get_records_of_their_own_before_they_are_updated(reason: str, split: str) -> None:
    """By a task's name scontrol loads all records of the array for each update, by its number one."""
    slurm = an_array(reason)
    outcomes = done(slurm, *(op(Verb.UPDATE, f"7_{task}", SHAPE) for task in range(5, 35)))
    assert slurm.ran[0] == split, "they are held again as they were held, which changes nothing else"
    named = [re.match(r"update JobId=(\d+) ", line) for line in slurm.ran[1:]]
    assert [int(match[1]) for match in named if match] == [
        job.number for job in slurm.jobs.values() if job.number > 8 and job.fields.get("ReqNodeList") == "n1"
    ]
    assert len(slurm.ran) == 31
    assert slurm.jobs[7].array == "7_" + ",".join(map(str, [*range(5), *range(35, 50)])), "others stay together"
    assert "ReqNodeList" not in slurm.jobs[7].fields
    assert [outcome.operation.subject for outcome in outcomes] == [f"7_{task}" for task in range(5, 35)]


def test_tasks_that_got_records_are_read_by_their_numbers_until_the_next_poll() -> None:
    slurm = an_array()
    backend = connected(slurm)
    backend.observe()
    tasks = [f"7_{task}" for task in range(30)]
    backend.execute([op(Verb.UPDATE, task, SHAPE) for task in tasks])
    slurm.asked.clear()
    released = backend.execute([op(Verb.RELEASE, task) for task in tasks])
    assert slurm.asked == ["squeue"], "not with all tasks of the array, which takes three"
    assert {outcome.result for outcome in released} == {Result.DONE}


@pytest.mark.parametrize(
    ("reason", "tasks"),
    [
        pytest.param("JobHeldAdmin", 5, id="few: a look at the array takes longer"),
        pytest.param("Resources", 30, id="not held: a hold would change it"),
    ],
)
def test_else_tasks_are_updated_by_their_names(reason: str, tasks: int) -> None:
    slurm = an_array(reason)
    done(slurm, *(op(Verb.UPDATE, f"7_{task}", SHAPE) for task in range(tasks)))
    assert [line.split()[1] for line in slurm.ran] == [f"JobId=7_{task}" for task in range(tasks)]


def test_the_last_task_of_an_array_has_its_number_and_is_updated_by_its_name() -> None:
    """Slurm would keep tasks together that are all changed at once."""
    slurm = an_array()
    done(slurm, *(op(Verb.UPDATE, f"7_{task}", SHAPE) for task in range(50)))
    assert slurm.ran[0] == "hold 7_[0-48]"
    assert [line.split()[1] for line in slurm.ran[1:]] == [
        *(f"JobId={number}" for number in range(9, 58)),
        "JobId=7_49",
    ]
