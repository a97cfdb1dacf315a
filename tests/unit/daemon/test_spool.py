"""Files that anybody may have put there: read where they are what they should be, named where they are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmsched.daemon import job_reports as reading
from slurmsched.daemon.job_reports import read_reports, uid_of
from slurmsched.jobside.report import MAX_REPORT_BYTES, Report, Stage, encode_report
from slurmsched.jobside.spool import Spool
from slurmsched.model import Job
from tests.builders import job, share

ME = os.getuid()
OTHER = ME + 1


def users(user: str) -> int | None:
    """alice is who runs the test, mallory the next one."""
    return {"alice": ME, "mallory": OTHER}.get(user)


def report(of: str = "1", **other: object) -> Report:
    return Report(**{"job": of, "run": 0, "stage": Stage.RUNNING, "at": 1.0, "steps": 5, "done": 4, "busy": 2.0,
                     "rate": 2.0, **other})  # type: ignore[arg-type]  # rows  # fmt: skip


def running(*jobs: tuple[str, str]) -> list[Job]:
    return [job(number, user=user, on=[share()]) for number, user in jobs]


def read(root: Path, jobs: list[Job]) -> tuple[set[str], list[str]]:
    found, complaints = read_reports(root, jobs, {job.id: job.user for job in jobs}, users)
    return set(found), [f"{complaint.subject}: {complaint.sentence}" for complaint in complaints]


def test_a_report_is_found_under_its_owners_number(tmp_path: Path) -> None:
    Spool(tmp_path, "1").write(report())
    assert read(tmp_path, running(("1", "alice"), ("2", "alice"))) == ({"1"}, [])


@pytest.mark.parametrize(
    ("put", "said"),
    [
        pytest.param(lambda file: file.write_bytes(b"\0" * 100), "is no JSON", id="garbage"),
        pytest.param(
            lambda file: file.write_bytes(b" " * (MAX_REPORT_BYTES + 1)), "longer than", id="a file that is too long"
        ),
        pytest.param(lambda file: file.touch(), "is no JSON", id="an empty file"),
        pytest.param(lambda file: file.write_bytes(encode_report(report("2"))[:80]), "is no JSON", id="half a report"),
        pytest.param(
            lambda file: file.write_bytes(b"9" * MAX_REPORT_BYTES), "not of version", id="a number of 4096 digits"
        ),
        pytest.param(lambda file: file.symlink_to("1.json"), "cannot be read", id="a link to a report of his own"),
        pytest.param(lambda file: file.symlink_to("/etc/passwd"), "cannot be read", id="a link to another file"),
        pytest.param(lambda file: file.mkdir(), "not a regular file", id="a folder"),
        pytest.param(os.mkfifo, "not a regular file", id="a pipe, that would be waited for"),
        pytest.param(
            lambda file: os.truncate(file, 2**40) if file.touch() is None else None, "longer than", id="a huge hole"
        ),
    ],
)
def test_what_is_no_report_is_named_and_the_others_are_read(
    tmp_path: Path, put: Callable[[Path], object], said: str
) -> None:
    Spool(tmp_path, "1").write(report())
    put(tmp_path / str(ME) / "2.json")
    found, (complaint,) = read(tmp_path, running(("1", "alice"), ("2", "alice")))
    assert found == {"1"}
    assert complaint.startswith("job 2 of alice: ")
    assert said in complaint


def test_a_folder_that_somebody_else_made_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / str(OTHER)).mkdir()
    (tmp_path / str(OTHER) / "1.json").write_bytes(encode_report(report()))
    found, (complaint,) = read(tmp_path, running(("1", "mallory")))
    assert not found
    assert (
        complaint
        == f"user mallory: the spool folder {OTHER} is not read: it belongs to user number {ME}: have it removed"
    )


@pytest.mark.skipif(ME != 0, reason="only root can give files away")
def test_a_file_that_belongs_to_somebody_else_is_not_read(tmp_path: Path) -> None:
    Spool(tmp_path, "1").write(report())
    os.chown(tmp_path / str(ME) / "1.json", OTHER, -1)
    found, (complaint,) = read(tmp_path, running(("1", "alice")))
    assert not found
    assert f"belongs to user id {OTHER}" in complaint


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    Spool(tmp_path, "1").write(report())
    (tmp_path / str(OTHER)).symlink_to(tmp_path / str(ME))
    found, (complaint,) = read(tmp_path, running(("1", "mallory")))
    assert not found
    assert complaint.startswith(f"user mallory: the spool folder {OTHER} is not read: it is a link")


def test_a_folder_that_others_can_write_is_not_looked_into(tmp_path: Path) -> None:
    Spool(tmp_path, "1").write(report())
    (tmp_path / str(ME)).chmod(0o775)
    found, (complaint,) = read(tmp_path, running(("1", "alice")))
    assert not found
    assert complaint.endswith("it can be written by others: chmod go-w")


def test_who_reports_about_anothers_job_is_named_and_not_read(tmp_path: Path) -> None:
    Spool(tmp_path, "2").write(report("2"))
    found, (complaint,) = read(tmp_path, running(("1", "alice"), ("2", "mallory")))
    assert not found
    assert complaint == "user alice: reports about job 2, which is mallory's: not read"


def test_who_floods_the_spool_is_named_and_slows_nobody_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LISTED", 5)
    Spool(tmp_path, "1").write(report())
    for number in range(5):
        (tmp_path / str(ME) / f"x{number}").touch()
    assert read(tmp_path, running(("1", "alice"))) == (
        {"1"},
        ["user alice: has 5 files or more in the spool: have them removed"],
    )


def test_names_that_are_no_text_disturb_nobody(tmp_path: Path) -> None:
    Spool(tmp_path, "1").write(report())
    for name in (b"\xff\xfe.json", "\u202e1.json".encode(), b"2.json\n", b"..json"):
        (tmp_path / str(ME) / os.fsdecode(name)).write_bytes(encode_report(report()))
    assert read(tmp_path, running(("1", "alice"), ("2", "mallory"))) == ({"1"}, [])


def test_a_user_that_this_host_does_not_know_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, running(("1", "bob")))[1] == [
        "user bob: is not known on this host: their reports are not read"
    ]
    assert uid_of("root") == 0
    assert uid_of("nobody knows this one") is None


def test_a_spool_that_is_not_there_has_no_reports(tmp_path: Path) -> None:
    assert read(tmp_path / "none", running(("1", "alice"))) == (set(), [])
