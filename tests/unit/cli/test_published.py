"""What a user sees who may not read the database: the same as before, from what the daemon publishes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from slurmsched.cli import invocation
from slurmsched.daemon.exporter import Exporter
from slurmsched.model import ExpectedTime, QueueForecast, Snapshot, StartForecast
from slurmsched.settings.file import load_settings_file
from slurmsched.store.start_forecasts import ForecastStore
from tests.unit.cli.conftest import NOON, Site
from tests.unit.cli.test_status import BUSY, tell_idle

VIEWS = (
    ["status"],
    ["status", "--nodes"],
    ["free"],
    ["explain", "11,13"],
    ["history", "11", "--commands"],
    ["profile", "measured"],
)


class _NoRights:
    """`os` for somebody who may not read the database."""

    R_OK = 4
    environ: ClassVar[dict[str, str]] = {}

    @staticmethod
    def access(_path: Path, _mode: int) -> bool:
        return False


@pytest.fixture
def ordinary(site: Site) -> Site:
    """A round was run and published; from here on the database is not ours to read."""
    site.round(BUSY, order=["11", "12", "13"])
    site.beat()
    return site


def foretell(site: Site) -> None:
    """When the waiting job starts and ends, of which the end tells how long it runs."""
    database, soon = site.opened(), ExpectedTime(NOON + 600, NOON + 900, None)
    told = QueueForecast(NOON - 60, NOON + 86_400, 50, (StartForecast("13", soon, soon, 50, 0),))
    ForecastStore(database).record(told, NOON - 40)
    database.close()


def publish(site: Site, seen: Snapshot = BUSY) -> None:
    said: list[str] = []
    Exporter(load_settings_file(site.config).settings.storage, site.clock, said.append, serves=False).publish(seen)
    assert said == []


def without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation, "os", _NoRights)


def test_every_view_is_as_from_the_database(ordinary: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [(ordinary.lines(*view), ordinary.json(*view[:2])) for view in VIEWS]
    publish(ordinary)
    without_rights(monkeypatch)
    ordinary.database.chmod(0o000)
    ordinary.database.rename(ordinary.folder / "out-of-reach")
    assert [(ordinary.lines(*view), ordinary.json(*view[:2])) for view in VIEWS] == expected


def test_starts_are_foretold_to_everybody_and_ends_are_in_no_file(
    ordinary: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    foretell(ordinary)
    assert any(line.startswith("ends") for line in ordinary.lines("explain", "13"))
    publish(ordinary)
    without_rights(monkeypatch)
    (job,) = (job for job in ordinary.json("status")["jobs"] if job["id"] == "13")  # type: ignore[attr-defined]
    assert (job["start"]["low"], job["end"]) == (NOON + 600, None)
    lines = ordinary.lines("explain", "13")
    assert any(line.startswith("starts") for line in lines)
    assert not any(line.startswith("ends") for line in lines)


def test_whose_gpus_are_idle_is_in_no_file_and_its_absence_is_no_fault(
    ordinary: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_idle(ordinary)
    assert "running jobs with idle GPUs" in ordinary.lines("status")
    publish(ordinary)
    without_rights(monkeypatch)
    shown = ordinary.run("status")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "idle GPUs" not in shown.stdout
    assert "77" not in (ordinary.folder / "export" / "current.json").read_text()


def test_with_private_jobs_the_rest_is_shown_and_one_line_says_why(
    ordinary: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ordinary, replace(BUSY, private_data=frozenset({"jobs", "usage"})))
    without_rights(monkeypatch)
    shown = ordinary.run("status")
    assert shown.exit_code == 0
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.startswith("synsched: PrivateData of slurm.conf hides jobs, usage: only a running daemon on")
    assert "v100-1 v100  8/8 ████████" in shown.stdout
    for word in ("alice", "bob", "carol", "JOBID", "modle"):
        assert word not in shown.stdout
    hidden = ordinary.run("explain", "11")
    assert hidden.exit_code == 1
    assert hidden.stderr.splitlines()[-1].endswith(
        "ask an administrator if it ended more than 1 d ago or belongs to another user"
    )


def test_before_anything_was_published_one_line_says_so(ordinary: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    without_rights(monkeypatch)
    result = ordinary.run("status")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"synsched: nothing has been published in {ordinary.folder}/export yet: is 'synsched"
    )
