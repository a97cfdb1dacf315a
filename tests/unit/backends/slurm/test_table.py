"""The table of jobs: what an owner wrote is never taken for another column or another job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.rate_limit import RateLimit
from slurmsched.backends.slurm.squeue_table import columns_query, read_squeue
from tests.unit.fake_slurm import FakeJob, FakeSlurm

FORGED = FakeJob(2, user="root", state="RUNNING").text().rstrip()


def test_words_that_look_like_fields_or_records_stay_in_the_name_and_the_comment() -> None:
    job = FakeJob(1, name=f"x\n{FORGED}"[:1000], comment=f"a TresPerJob=gres/gpu:9\n{FORGED}"[:1000])
    table = read_squeue(Commands(5, runner=FakeSlurm([job, FakeJob(2, user="bob")])))
    assert {number: row.text("UserName") for number, row in table.items()} == {"1": "alice", "2": "bob"}
    assert (table["1"].text("Name"), table["1"].text("Comment")) == (job.name, job.comment)


def test_characters_of_several_bytes_and_bytes_that_are_no_characters_do_not_move_a_column() -> None:
    job = FakeJob(1, name="学" * 300, comment="\udcff\udc80 ü")
    row = read_squeue(Commands(5, runner=FakeSlurm([job])))["1"]
    assert (row.text("Name"), row.text("Comment")) == ("学" * 300, "\ufffd\ufffd ü")


def test_a_value_that_fills_its_column_is_asked_for_once_more_and_wider() -> None:
    nodes = ",".join(f"node{number}" for number in range(200))
    slurm = FakeSlurm([FakeJob(1, fields={"ExcNodeList": nodes}), FakeJob(2)])
    table = read_squeue(Commands(5, runner=slurm))
    assert (table["1"].text("ExcNodes"), table["1"].too_long) == (nodes, frozenset())
    assert slurm.asked == ["squeue", "squeue"]


def test_a_value_that_is_too_long_even_so_is_known_to_be_cut() -> None:
    table = read_squeue(Commands(5, runner=FakeSlurm([FakeJob(1, wckey="x" * 2000), FakeJob(2)])))
    assert (table["1"].too_long, table["2"].too_long) == ({"WCKey"}, frozenset())


def test_a_job_that_went_between_the_two_queries_is_left_as_it_was_seen() -> None:
    slurm = FakeSlurm([FakeJob(1, fields={"Features": "x" * 200})])

    class Going:
        def __call__(self, argv, given, timeout, env):  # type: ignore[no-untyped-def]
            answer = slurm(argv, given, timeout, env)
            slurm.jobs.clear()
            return answer

    assert read_squeue(Commands(5, runner=Going()))["1"].too_long == {"Feature"}


def test_slurm_22_05_has_the_excluded_nodes_in_its_short_form_only() -> None:
    slurm = FakeSlurm([FakeJob(1, fields={"ExcNodeList": "n[1-2]"}), FakeJob(2)])
    slurm.unknown_columns = frozenset({"ExcNodes", "Exclusive"})
    table = read_squeue(Commands(5, runner=slurm))
    assert [table[number].text("ExcNodes") for number in "12"] == ["n[1-2]", ""]


def test_a_release_without_a_column_that_is_needed_is_an_error() -> None:
    slurm = FakeSlurm([FakeJob(1)])
    slurm.unknown_columns = frozenset({"tres-alloc"})
    with pytest.raises(BackendError, match="squeue does not know the columns tres-alloc"):
        read_squeue(Commands(5, runner=slurm))


@pytest.mark.parametrize("spoilt", [b"x", b"\n" * 9])
def test_text_of_another_length_is_no_table(spoilt: bytes) -> None:
    raw = FakeSlurm([FakeJob(1)])(columns_query(), "", 5, {}).stdout_bytes + spoilt
    with pytest.raises(BackendError, match="squeue prints records of another length"):
        read_squeue(
            Commands(
                5,
                runner=lambda *_: CommandResult(
                    0, "", "squeue: error: Invalid job format specification: Exclusive", raw
                ),
            )
        )


def test_jobs_asked_for_by_number_are_those_that_exist_and_the_tasks_of_arrays() -> None:
    slurm = FakeSlurm([FakeJob(1), FakeJob(5, array="5_4-9"), FakeJob(6, array="5_3"), FakeJob(8)])
    assert sorted(read_squeue(Commands(5, runner=slurm), ["1", "5", "99"])) == ["1", "5", "6"]
    assert read_squeue(Commands(5, runner=slurm), ["99"]) == {}
    many = [str(number) for number in range(5, 900)]
    assert sorted(read_squeue(Commands(5, runner=slurm), many)) == ["5", "6", "8"]


def test_asking_for_one_task_of_an_array_prints_no_wide_columns_for_the_thousands_of_others() -> None:
    printed = 0
    others = (FakeJob(6000 + task, array=f"6000_{task}") for task in range(1, 200))
    slurm = FakeSlurm([FakeJob(6000, array="6000_0", wckey="x" * 40), *others])

    class Counting:
        def __call__(self, argv, given, timeout, env):  # type: ignore[no-untyped-def]
            nonlocal printed
            answer = slurm(argv, given, timeout, env)
            printed += len(answer.stdout_bytes)
            return answer

    table = read_squeue(Commands(5, runner=Counting()), ["6000"])
    assert (len(table), table["6000"].text("WCKey"), table["6000"].too_long) == (200, "x" * 40, frozenset())
    assert printed < 200 * 12_000


def test_a_waiting_task_that_was_changed_by_itself_is_read_although_squeue_shows_its_array_only() -> None:
    combined = FakeSlurm([FakeJob(5, array="5_3-6"), FakeJob(8)])
    apart = FakeSlurm([FakeJob(6, array="5_3", fields={"ReqNodeList": "n1"})])
    tasks = "".join(f"{number:>12}{5:>12}{task:>12}\n" for number, task in ((6, 3), (5, 4), (5, 5), (5, 6)))

    def squeue(argv, given, timeout, env):  # type: ignore[no-untyped-def]
        if "-r" in argv:
            return CommandResult(0, tasks, "", tasks.encode())
        return (apart if argv[-1] == "5_3" else combined)(argv, given, timeout, env)

    for ids in (None, ["5", "8"]):
        table = read_squeue(Commands(5, runner=squeue), ids)
        assert {number: row.text("ArrayTaskID") for number, row in table.items()} == {
            "5": "4,5,6",
            "6": "3",
            "8": "N/A",
        }
        assert (table["6"].text("ReqNodes"), table["5"].text("ReqNodes")) == ("n1", "")


@pytest.mark.parametrize(
    ("shown", "last", "tasks"),
    [
        pytest.param([2, 4, 6, 8, 10], 12, [2, 4, 6, 8, 10, 12], id="the last of a step is missing"),
        pytest.param([2, 4, 6, 8, 10, 12], None, [2, 4, 6, 8, 10, 12], id="it is there, as Slurm wrote no step"),
        pytest.param([2, 3, 4, 5, 6], None, [2, 3, 4, 5, 6], id="no step"),
        pytest.param([2, 4, 6], 8, [2, 4, 6], id="too few for Slurm to write a step"),
    ],
)
@pytest.mark.parametrize("wckey", ["own", "x" * 40])
def test_the_last_task_of_a_step_which_squeue_leaves_out_is_read(
    shown: list[int], last: int | None, tasks: list[int], wckey: str
) -> None:
    """With a column that is read again and wider too: squeue then shows all waiting tasks of the array once more."""
    every = ",".join(map(str, [0, *tasks]))
    combined = FakeSlurm([FakeJob(5, array=f"5_{every}%3", wckey=wckey), FakeJob(8)])
    apart = FakeSlurm([FakeJob(6, array="5_0")])
    end = FakeSlurm([FakeJob(5, array=f"5_{last}")] if last else [FakeJob(99)])
    numbers = "".join(f"{number:>12}{5:>12}{task:>12}\n" for number, task in ((6, 0), *((5, task) for task in shown)))

    def squeue(argv, given, timeout, env):  # type: ignore[no-untyped-def]
        if "-r" in argv:
            return CommandResult(0, numbers, "", numbers.encode())
        return {"5_0": apart, f"5_{shown[-1] + shown[1] - shown[0]}": end}.get(argv[-1], combined)(
            argv, given, timeout, env
        )

    table = read_squeue(Commands(5, runner=squeue))
    assert {number: row.text("ArrayTaskID") for number, row in table.items()} == {
        "5": f"{','.join(map(str, tasks))}%3",
        "6": "0",
        "8": "N/A",
    }
    assert table["5"].text("WCKey") == wckey


def test_hundreds_of_such_tasks_are_one_query_since_slurmctld_lists_all_jobs_for_each() -> None:
    combined = FakeSlurm([FakeJob(5, array="5_900-901")])
    apart = FakeSlurm([FakeJob(6 + task, array=f"5_{task}") for task in range(900)])
    tasks = "".join(f"{6 + task:>12}{5:>12}{task:>12}\n" for task in range(900))
    queries = list[str]()

    def squeue(argv, given, timeout, env):  # type: ignore[no-untyped-def]
        queries.append(argv[-1])
        if "-r" in argv:
            return CommandResult(0, tasks, "", tasks.encode())
        return (apart if argv[-1].startswith("5_") else combined)(argv, given, timeout, env)

    assert len(read_squeue(Commands(5, runner=squeue), ["5"])) == 901
    assert len(queries) == 3


@pytest.mark.parametrize(
    ("others", "queries"),
    [
        pytest.param(602, ["5", "6"], id="each takes less than a list of all jobs"),
        pytest.param(601, ["5,6"], id="which a query of two of them is"),
    ],
)
def test_of_a_long_queue_a_few_arrays_are_asked_for_one_by_one(others: int, queries: list[str]) -> None:
    arrays = [FakeJob(5, array="5_1-2"), FakeJob(6, array="6_1-2")]
    slurm = FakeSlurm([*arrays, *(FakeJob(7 + number) for number in range(others))])
    asked = list[str]()

    def squeue(argv, given, timeout, env):  # type: ignore[no-untyped-def]
        if "-r" not in argv:
            return slurm(argv, given, timeout, env)
        asked.append(argv[-1])
        tasks = "".join(f"{array:>12}{array:>12}{task:>12}\n" for array in argv[-1].split(",") for task in (1, 2))
        return CommandResult(0, tasks, "", tasks.encode())

    assert len(read_squeue(Commands(5, runner=squeue))) == 2 + others
    assert asked == queries

    limited = Commands(5, runner=squeue)
    limited.rate_limit, asked = RateLimit(30, 2.0), []
    assert len(read_squeue(limited)) == 2 + others
    assert asked == ["5,6"], "the site limits our requests"


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)


@given(name=TEXT, comment=TEXT, account=TEXT, wckey=TEXT, host=TEXT, features=TEXT)
def test_nobodys_words_change_a_column_that_is_not_his(
    name: str, comment: str, account: str, wckey: str, host: str, features: str
) -> None:
    plain, other = FakeJob(1), FakeJob(2, user="bob")
    hostile = FakeJob(
        1, name=name, comment=comment, account=account, wckey=wckey, submitted_on=host, fields={"Features": features}
    )
    seen = read_squeue(Commands(5, runner=FakeSlurm([hostile, other])))
    expected = read_squeue(Commands(5, runner=FakeSlurm([plain, other])))
    owned = {"Name", "Comment", "Account", "WCKey", "AllocNodes", "Feature"}
    assert list(seen) == list(expected)
    assert seen["2"] == expected["2"]
    for column in seen["1"].layout.columns.keys() - owned:
        assert seen["1"].value(column) == expected["1"].value(column)
