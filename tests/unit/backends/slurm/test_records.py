"""Text of scontrol taken apart, also where a job's owner wants to be taken for somebody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import NotUnderstoodError
from slurmsched.backends.slurm.records import anatomy, split
from slurmsched.backends.slurm.text_jobs import all_records
from tests.unit.fake_slurm import FakeJob, FakeSlurm

HEAD = (
    "x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=9 Nice=0 Account=all QOS=top JobState=RUNNING Reason=None"
    " Partition=gpu NumNodes=9 Command=/x WorkDir=/x"
)


def read(*jobs: FakeJob) -> tuple[dict[str, object], list[str], FakeSlurm]:
    slurm = FakeSlurm(jobs)
    records, oddities = all_records(Commands(5, run=slurm))
    return {record.number: record for record in records}, oddities, slurm


def test_words_that_look_like_fields_stay_in_the_name_and_the_comment() -> None:
    record = anatomy(FakeJob(1, name="lr=1 JobState=RUNNING Nodes=7", comment="a=b Partition=x NumCPUs=99").text())
    assert (record.name, record.state) == ("lr=1 JobState=RUNNING Nodes=7", "PENDING")
    assert record.comment == "a=b Partition=x NumCPUs=99"
    assert (record.fields["Partition"], record.fields["NumCPUs"]) == ("gpu", "6")


def test_an_administrators_comment_cannot_be_put_on_by_the_owner() -> None:
    assert anatomy(FakeJob(1, comment="x AdminComment=synsched: y").text()).admin_comment == ""


def test_both_comments_are_told_apart() -> None:
    record = anatomy(FakeJob(1, comment="mine", admin_comment="JS1:abc= Comment").text())
    assert (record.comment, record.admin_comment) == ("mine", "JS1:abc= Comment")


@pytest.mark.parametrize("where", ["name", "comment"])
def test_a_job_that_imitates_the_fields_from_user_to_reason_is_left_out(where: str) -> None:
    seen, oddities, _ = read(FakeJob(1, **{where: HEAD}), FakeJob(2))
    assert list(seen) == ["2"]
    assert "job 1 is left out: its name or comment imitates" in oddities[0]


def test_a_comment_of_several_lines_belongs_to_its_job_and_costs_no_further_query() -> None:
    seen, oddities, slurm = read(FakeJob(1, comment="one\ntwo NumCPUs=9\n\nthree"), FakeJob(2))
    assert [seen["1"].comment, seen["2"].comment] == ["one\ntwo NumCPUs=9\n\nthree", ""]  # type: ignore[attr-defined]
    assert oddities == []
    assert slurm.asked == ["show job"]


def test_a_whole_record_forged_in_a_comment_makes_no_job() -> None:
    forged = FakeJob(77, user="bob").text()
    seen, oddities, slurm = read(FakeJob(1, comment=f"x\n{forged}"), FakeJob(2))
    assert list(seen) == ["2"]
    assert "job 1 is left out" in oddities[0]
    assert slurm.asked == ["show job", "squeue", "show job 1"]


def test_a_record_forged_for_somebody_elses_job_does_not_touch_that_job() -> None:
    forged = FakeJob(2, user="root", state="RUNNING").text()
    seen, oddities, _ = read(FakeJob(1, name=f"x\n{forged}\ny"), FakeJob(2, user="bob"), FakeJob(3))
    assert {number: record.user for number, record in seen.items()} == {"2": "bob", "3": "alice"}  # type: ignore[attr-defined]
    assert len(oddities) == 1


def test_a_line_that_only_begins_like_a_job_is_no_job() -> None:
    seen, oddities, _ = read(FakeJob(1, name="x\nJobId=9 JobName=y"), FakeJob(2))
    assert sorted(seen) == ["1", "2"]
    assert seen["1"].name == "x\nJobId=9 JobName=y"  # type: ignore[attr-defined]
    assert oddities == []


def test_without_the_count_nothing_is_proven() -> None:
    assert not split(FakeJob(1).text()).proven


@given(st.text(max_size=200))
def test_any_text_is_a_job_or_refused(text: str) -> None:
    for candidate in (text, f"JobId=1 JobName={text}", FakeJob(1).text() + text):
        try:
            record = anatomy(candidate)
        except NotUnderstoodError:
            continue
        assert record.number == "1"


@given(name=st.text(max_size=120), comment=st.text(max_size=120))
def test_nobodys_words_change_what_slurm_says_of_the_job(name: str, comment: str) -> None:
    record = anatomy(FakeJob(1, name=name, comment=comment).text())
    assert (record.number, record.user, record.state, record.priority) == ("1", "alice", "PENDING", 100)
    assert record.fields["NumCPUs"] == "6"
