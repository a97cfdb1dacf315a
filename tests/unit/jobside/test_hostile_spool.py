"""One user lies in wait in the spool for another: nobody's files are written, read or removed but one's own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmsched.daemon.job_reports import read_reports
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.reporter import ReportLoop
from slurmsched.jobside.spool import Spool
from slurmsched.template_files import render
from tests.builders import job, share
from tests.unit.jobside.users import ALICE, BOB, CAROL, DAEMON, as_user, needs_users, open_folder

pytestmark = needs_users

REPORT = Report("77", 0, Stage.RUNNING, 1.0, 5, 4, 2.0, 2.0)
LONG_AGO = time.time() - 30 * 86400


class Site:
    """A spool as open as /tmp, and what bob has at home."""

    def __init__(self, folder: Path, mode: int = 0o1777) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.spool.mkdir()
        os.chown(self.spool, DAEMON, DAEMON)
        self.spool.chmod(mode)
        self.home = folder / "bob"
        self.home.mkdir()
        os.chown(self.home, BOB, BOB)
        self.thesis = self.home / "thesis.tex"
        self.thesis.write_text("Chapter 1")
        self.thesis.chmod(0o600)
        os.chown(self.thesis, BOB, BOB)
        self.log = folder / "log"
        self.log.touch()
        self.log.chmod(0o666)
        self.script = folder / "movable.sh"
        self.script.write_text(render("movable.sh", every=1))

    @property
    def bobs(self) -> Path:
        return self.spool / str(BOB)

    def trap(self) -> None:
        """alice makes bob's folder, with links where his job is going to write."""
        self.bobs.mkdir()
        self.bobs.chmod(0o777)
        for name in ("77.json", ".77.json.new"):
            (self.bobs / name).symlink_to(self.thesis)

    def report(self) -> None:
        """bob's job reports twice, with its standard error in the log."""
        with self.log.open("a") as log:
            sys.stderr = log
            reporter = ReportLoop(Spool(self.spool, "77"), lambda: REPORT)
            reporter.write_now()
            reporter.write_now()

    def wrapped(self) -> None:
        """bob's job runs a program in the wrapper."""
        told = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "77", "SYNSCHED_SPOOL": str(self.spool)}
        with self.log.open("a") as log:
            subprocess.run(["bash", self.script, "sleep", "2.5"], cwd=self.home, env=told, stderr=log, check=True)

    def untouched(self) -> bool:
        found = self.thesis.stat()
        return self.thesis.read_text() == "Chapter 1" and stat.S_IMODE(found.st_mode) == 0o600


@pytest.fixture
def site() -> Iterator[Site]:
    with open_folder() as folder:
        yield Site(folder)


@pytest.mark.parametrize("way", ["report", "wrapped"])
def test_a_job_does_not_write_through_the_folder_that_another_user_made_and_says_so_once(site: Site, way: str) -> None:
    as_user(ALICE, site.trap)
    as_user(BOB, getattr(site, way))
    assert site.untouched()
    assert {path.name for path in site.bobs.iterdir()} == {"77.json", ".77.json.new"}
    assert site.log.read_text().count("synsched: no reports") == 1
    assert str(site.bobs) in site.log.read_text()


@pytest.mark.parametrize("way", ["report", "wrapped"])
def test_a_job_does_not_write_through_a_link_in_the_place_of_its_folder(site: Site, way: str) -> None:
    as_user(ALICE, lambda: site.bobs.symlink_to(site.home))
    as_user(BOB, getattr(site, way))
    assert [path.name for path in site.home.iterdir()] == ["thesis.tex"]
    assert site.log.read_text().count("synsched: no reports") == 1


@pytest.mark.parametrize("way", ["report", "wrapped"])
def test_a_job_does_not_use_a_folder_of_its_own_that_others_can_write(site: Site, way: str) -> None:
    as_user(BOB, site.trap)
    as_user(BOB, getattr(site, way))
    assert site.untouched()
    assert site.log.read_text().count("synsched: no reports") == 1


def test_clearing_removes_nothing_through_a_link(site: Site) -> None:
    (site.home / "3.json").touch()
    for path in site.home.iterdir():
        os.utime(path, (LONG_AGO, LONG_AGO))
    as_user(ALICE, lambda: site.bobs.symlink_to(site.home))

    def clear() -> None:
        try:
            Spool(site.spool, "77").clear()
        except OSError:
            return

    as_user(BOB, clear)
    assert {path.name for path in site.home.iterdir()} == {"3.json", "thesis.tex"}


def test_clearing_removes_nothing_but_old_reports(site: Site) -> None:
    def use() -> None:
        site.report()
        for name in ("3.json", "4_5.json", ".6.json.0a1b", ".6.json.new", "thesis.tex", "x.json", "3.json.bak"):
            (site.bobs / name).touch()
            os.utime(site.bobs / name, (LONG_AGO, LONG_AGO))
        (site.bobs / "8.json").mkdir()
        Spool(site.spool, "77").clear()

    as_user(BOB, use)
    assert {path.name for path in site.bobs.iterdir()} == {"thesis.tex", "x.json", "3.json.bak", "8.json"}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("way", ["write", "wrapped"])
def test_reports_can_be_read_by_the_daemon_whatever_the_umask_of_the_job(site: Site, way: str, umask: int) -> None:
    write(site, way, umask)
    assert (mode(site.bobs), mode(site.bobs / "77.json")) == (0o755, 0o644)
    as_user(DAEMON, lambda: read(site))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("way", ["write", "wrapped"])
def test_reports_in_a_private_spool_are_for_the_daemon_alone(way: str, umask: int) -> None:
    with open_folder() as folder:
        site = Site(folder, 0o3773)
        write(site, way, umask)
        assert (mode(site.bobs), mode(site.bobs / "77.json")) == (0o2750, 0o640)
        as_user(DAEMON, lambda: read(site))

        def pry() -> None:
            for look in (site.spool.iterdir, site.bobs.iterdir, (site.bobs / "77.json").read_bytes):
                with pytest.raises(PermissionError):
                    list(look())

        as_user(CAROL, pry)


def write(site: Site, way: str, umask: int) -> None:
    """bob's job reports and is killed, so that its report stays."""
    if way == "write":
        as_user(BOB, lambda: Spool(site.spool, "77").write(REPORT), umask=umask)
        return

    def killed() -> None:
        told = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "77", "SYNSCHED_SPOOL": str(site.spool)}
        process = subprocess.Popen(["bash", site.script, "sleep", "5"], cwd=site.home, env=told)
        deadline = time.monotonic() + 20
        while not (site.bobs / "77.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()

    as_user(BOB, killed, umask=umask)


def read(site: Site) -> None:
    """As a round does."""
    running = [job("77", user="bob", on=[share()])]
    reports, complaints = read_reports(site.spool, running, {"77": "bob"}, lambda _user: BOB)
    assert (set(reports), complaints) == ({"77"}, ())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
