"""The short form of a soak: a day of rounds with a fault of every kind; and soaks of a daemon that is broken."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from threading import Thread, get_ident

import pytest

from slurmsched.backends.simulated import VirtualClock
from slurmsched.daemon import loop
from slurmsched.endurance.faults import SoakFault, SoakTime
from slurmsched.endurance.sickness import DatabaseSickness
from slurmsched.endurance.soak import MEASURES, SoakOptions, SoakResult, run_soak
from slurmsched.model import Outcome
from slurmsched.report.soak import soak_page, soak_plots
from slurmsched.store.errors import StoreError
from slurmsched.store.finished_runs import AccountingCursor
from slurmsched.store.journal import Journal, JournalEntry
from slurmsched.store.store import Store

SHORT = SoakOptions(days=0.5, keep_days=1, seed=17)
"""With a clock that is ahead by two hours for a while, and set back."""


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> SoakResult:
    return run_soak(SHORT, tmp_path_factory.mktemp("soak"))


def test_nothing_is_lost_in_half_a_day_of_faults(soaked: SoakResult) -> None:
    assert soaked.problems == ()
    assert {fault.value for fault in SoakFault} <= soaked.faults.keys()
    assert soaked.faults["daemon killed in a step of its own"] >= 1
    assert soaked.starts > soaked.faults["daemon killed in a step of its own"]
    assert (soaked.submitted, soaked.audit.lost) == (soaked.ended, 0)
    assert soaked.audit.carried_out == soaked.audit.written_down > 50
    assert soaked.failed_rounds > 0, "faults are felt"


def test_runs_that_ended_while_the_clock_was_ahead_are_learnt_once_it_is_set_back(
    soaked: SoakResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert soaked.audit.unlearnt == 0
    monkeypatch.setattr(AccountingCursor, "with_clock", lambda cursor, _now: cursor)
    assert run_soak(SHORT, tmp_path).audit.unlearnt > 0, "without reading again they are lost"


def test_everything_is_measured_every_hour_and_half_a_day_is_too_short_to_tell(soaked: SoakResult) -> None:
    assert {name: len(points) for name, points in soaked.samples.items()}.keys() == {one.name for one in MEASURES}
    assert all(len(points) >= 10 for points in soaked.samples.values())
    assert {trend.grows for trend in soaked.trends} == {None}


def test_the_page_has_a_plot_of_each_measure(soaked: SoakResult) -> None:
    assert [plot.title for plot in soak_plots(soaked)] == [measure.name for measure in MEASURES]
    page = soak_page(soaked, "synsched bench soak", 0.0)
    assert page.count("<figure>") == len(MEASURES)
    assert "Nothing grows and nothing is lost." in page


def test_a_journal_that_forgets_what_was_done_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(_journal: Journal, outcomes: Iterable[tuple[JournalEntry, Outcome]], _at: float) -> None:
        for entry, _ in outcomes:
            _journal._database.write("DELETE FROM operations WHERE id = ?", (entry.row,))

    monkeypatch.setattr(Journal, "record_outcomes", forgets)
    found = run_soak(SoakOptions(days=0.25, keep_days=1, seed=4), tmp_path)
    assert found.audit.unwritten > 0
    assert any("the journal does not have" in problem for problem in found.problems)


def test_holds_that_a_stopping_daemon_keeps_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.DaemonLoop, "_release_all", lambda _loop: 0)
    found = run_soak(SoakOptions(days=0.25, keep_days=1, seed=4, load=3.0), tmp_path)
    assert found.audit.holds > 0
    assert found.audit.lost >= found.audit.holds
    assert any(problem.startswith("waiting jobs that are still held") for problem in found.problems)


def test_what_is_due_while_another_thread_sleeps_happens_in_the_thread_that_has_the_database() -> None:
    soak_time, happened = SoakTime(VirtualClock(0.0)), list[int]()
    soak_time.at(5.0, lambda: happened.append(get_ident()))
    polls = Thread(target=soak_time.sleep, args=(10.0,))
    polls.start()
    polls.join()
    assert (happened, soak_time.clock.now()) == ([], 10.0)
    soak_time.sleep(1.0)
    assert (happened, soak_time.clock.now()) == ([get_ident()], 11.0)


def test_a_process_that_opens_a_locked_database_has_the_faults_and_waits_no_seconds_for_it(tmp_path: Path) -> None:
    path = tmp_path / "synsched.db"
    with closing(Store.open(path, 0.0)) as store:
        sickness = DatabaseSickness(path)
        sickness.begin(SoakFault.LOCKED)
        sickness.treat(store)
        sickness.begin(SoakFault.READ_ONLY)
        set_to = [[*store.database.rows(f"PRAGMA {name}")[0].values()] for name in ("busy_timeout", "query_only")]
        assert set_to == [[2], [1]]
        with pytest.raises(StoreError):
            store.database.write("DELETE FROM jobs")
