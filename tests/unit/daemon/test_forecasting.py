"""The daemon's own forecasts and its page: processes beside the rounds that nobody waits for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from slurmsched.backends.simulated import VirtualClock
from slurmsched.daemon.keepalive import SystemdNotifier
from slurmsched.daemon.loop import DaemonLoop
from slurmsched.daemon.process import ClockWhileParentLives, ForecastProcess, PageProcess, SignalRequests
from slurmsched.model import Decision, ExpectedTime, QueueForecast, StartForecast, encode
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.stages import Situation
from slurmsched.settings.definition import LearningSettings, Mode
from slurmsched.store.errors import BusyStoreError
from slurmsched.store.publication import DocumentKind, read_published
from slurmsched.store.read_only import open_read_only
from tests.unit.daemon.world import PERIOD, START, World, log_to

SOON = ExpectedTime(START + 100.0, START + 200.0, START + 300.0)
ANSWER = QueueForecast(START, START + 1e6, 9, (StartForecast("2", SOON, SOON, 9, 0),), {}, ("x",))
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


def printing(text: str, *, ends: int = 0) -> tuple[str, ...]:
    """A command that prints this, whatever it is called with."""
    return (sys.executable, "-c", f"import sys; print({text!r}); sys.stdout.flush(); sys.exit({ends})")


def process(
    command: Sequence[str], said: list[str] | None = None, clock: VirtualClock | None = None
) -> ForecastProcess:
    return ForecastProcess(command, clock or VirtualClock(), (said if said is not None else []).append)


def awaited(child: ForecastProcess) -> QueueForecast | None:
    """Its answer, once it has ended."""
    for _ in range(2000):
        answer = child.collect()
        if answer is not None or child._child is None:
            return answer
        time.sleep(0.02)
    raise AssertionError("it did not end")


def alive(pid: int) -> bool:
    """Whether there is such a process, a zombie among them."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_its_answer_is_read_once_it_has_ended(tmp_path: Path) -> None:
    called = tmp_path / "called"
    said: list[str] = []
    code = f"import sys; open({str(called)!r}, 'w').write(' '.join(sys.argv[1:])); print({encode(ANSWER)!r})"
    child = process((sys.executable, "-c", code, "forecast"), said)
    child.start("observe", 20.0)
    assert awaited(child) == ANSWER
    assert called.read_text() == "forecast --mode observe --budget 20"
    assert child.collect() is None, "once"
    assert said == []


def test_an_answer_longer_than_a_pipe_holds_is_read_too(tmp_path: Path) -> None:
    jobs = tuple(replace(ANSWER.jobs[0], job=str(number)) for number in range(10_000))
    (tmp_path / "answer").write_text(encode(replace(ANSWER, jobs=jobs)))
    child = process((sys.executable, "-c", f"print(open({str(tmp_path / 'answer')!r}).read())"))
    child.start("observe", 20.0)
    told = awaited(child)
    assert told is not None
    assert told.jobs == jobs


FAILURES = [
    pytest.param(printing("{}"), "an answer of 3 characters that is no forecast", id="no forecast"),
    pytest.param(printing('{"at": "\x1b[2J", "job": 1' * 100), "that is no forecast", id="a hostile answer"),
    pytest.param(printing("", ends=7), "it ended with status 7", id="it fails without a word"),
    pytest.param(
        (sys.executable, "-c", "import sys; sys.exit('synsched: cannot\\n \\x1b[2J read ' + 'x' * 10000)"),
        "read xxx",
        id="it fails and says why",
    ),
    pytest.param((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), "status -9", id="it is killed"),
    pytest.param(("/nonexistent/python",), "No such file", id="there is no such command"),
]


@pytest.mark.parametrize(("command", "why"), FAILURES)
def test_a_failure_is_one_line_in_the_log(command: Sequence[str], why: str) -> None:
    said: list[str] = []
    child = process(command, said)
    child.start("observe", 20.0)
    assert awaited(child) is None
    (line,) = said
    assert line.startswith("nothing is forecast: ")
    assert why in line
    assert len(line) < 400
    assert line.isprintable()


def test_one_that_takes_far_too_long_is_killed_and_leaves_nothing() -> None:
    clock, said = VirtualClock(), list[str]()
    child = ForecastProcess(SLEEPS, clock, said.append)
    child.start("observe", 20.0)
    assert child._child is not None
    pid = child._child.process.pid
    clock.advance(100.0)
    assert child.collect() is None
    assert alive(pid)
    clock.advance(100.0)
    assert child.collect() is None
    assert not alive(pid), "not as a zombie either"
    assert said == ["nothing is forecast: it took too long"]


def test_while_one_runs_no_other_is_started() -> None:
    child = process(SLEEPS)
    child.start("observe", 3600.0)
    first = child._child
    child.start("observe", 3600.0)
    assert child._child is first
    child.stop()
    child.stop()


def test_without_its_parent_all_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ClockWhileParentLives()
    assert clock.monotonic() < inf
    monkeypatch.setattr("slurmsched.daemon.process.os.getppid", lambda: 1)
    assert clock.monotonic() == inf


class Forecasting:
    """A daemon with job 1 running and job 2 waiting, that forecasts by a command."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        budget: float = 20.0,
        mode: Mode = Mode.ENFORCE,
        recordings: int = 200,
    ) -> None:
        self.world = World(folder, clock=_Clock(), mode=mode)
        self.world.settings = replace(
            self.world.settings,
            learning=LearningSettings(forecast_budget=budget),
            rounds=replace(self.world.settings.rounds, early_interval=0.0),
            storage=replace(self.world.settings.storage, keep_snapshots=recordings),
        )
        self.world.submit(8)
        self.world.submit(8)
        self.requests, self.said = SignalRequests(), list[str]()
        self.loop = DaemonLoop(
            self.world.site(),
            self.world.site,
            self.world.store,
            self.world.clock,
            requests=self.requests,
            systemd=SystemdNotifier({}),
            log=log_to(self.said),
            forecast=command,
        )

    def child_ends(self) -> None:
        """Wait, in real time, for a forecast that is being made."""
        if (child := self.loop._forecast._child) is not None:
            child.process.wait(timeout=60.0)

    def run(self, periods: float, wait: Callable[[], object] = lambda: None) -> list[float]:
        """So long, then a stop; returns when rounds began."""
        clock = self.world.clock
        assert isinstance(clock, _Clock)
        clock.until, clock.stop, clock.wait = START + periods * PERIOD, self.requests, wait
        self.loop.run(keep_holds=True)
        rows = self.world.store.database.rows("SELECT started FROM rounds WHERE mode != 'release' ORDER BY id")
        return [row["started"] - START for row in rows]


class _Clock(VirtualClock):
    """Asks for a stop at a time, and waits in real time for something while it passes."""

    until, stop = START, SignalRequests()

    def __init__(self) -> None:
        super().__init__(START)
        self.wait: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.wait()
        if self.now() >= self.until:
            self.stop.stop = True


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.OBSERVE])
def test_what_was_forecast_is_stored_and_published(tmp_path: Path, mode: Mode) -> None:
    daemon = Forecasting(tmp_path, printing(encode(ANSWER)), mode=mode)
    daemon.run(1.5, wait=daemon.child_ends)
    with open_read_only(daemon.world.path) as store:
        assert store.start_forecasts()["2"].start == SOON
    (document,) = read_published(tmp_path / "export", (DocumentKind.CURRENT,)).documents
    assert [row["job"] for row in document.tables["start_forecasts"]] == ["2"]
    assert daemon.said == []


def test_no_round_waits_for_it_and_a_stop_ends_it(tmp_path: Path) -> None:
    daemon = Forecasting(tmp_path, SLEEPS, budget=36_000.0)
    seen = set[int]()

    def note() -> None:
        if daemon.loop._forecast._child is not None:
            seen.add(daemon.loop._forecast._child.process.pid)

    assert daemon.run(3.5, wait=note) == [0, 300, 600, 900]
    (pid,) = seen
    assert not alive(pid)


@pytest.mark.parametrize("command", [printing("nonsense"), ("/nonexistent",), printing("", ends=1)])
def test_its_failure_costs_no_round_and_is_said_once(tmp_path: Path, command: Sequence[str]) -> None:
    daemon = Forecasting(tmp_path, command)
    assert daemon.run(3.5, wait=daemon.child_ends) == [0, 300, 600, 900]
    assert len(daemon.said) == 1


def test_a_database_that_is_locked_costs_the_forecast_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Forecasting(tmp_path, printing(encode(ANSWER)))

    def busy(*_: object) -> int:
        raise BusyStoreError("it is locked")

    monkeypatch.setattr("slurmsched.store.start_forecasts.ForecastStore.record", busy)
    assert daemon.run(2.5, wait=daemon.child_ends) == [0, 300, 600]
    assert daemon.said == ["nothing is forecast: it is locked"]


@pytest.mark.parametrize("what", ["budget", "waiting jobs", "recordings"])
def test_without_one_of_these_nothing_is_forecast(tmp_path: Path, what: str) -> None:
    budget, recordings = 0.0 if what == "budget" else 20.0, 0 if what == "recordings" else 1
    daemon = Forecasting(tmp_path, ("/nonexistent",), budget, recordings=recordings)
    if what == "waiting jobs":
        daemon.world.cluster.jobs.clear()
    daemon.run(1.5)
    assert daemon.said == []


def test_where_a_decision_takes_long_no_process_is_begun_that_could_not_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, decide = Forecasting(tmp_path, ("/nonexistent",)), Pipeline.decide

    def slow(policy: Pipeline, situation: Situation) -> Decision:
        daemon.world.clock.sleep(6.0)
        return decide(policy, situation)

    monkeypatch.setattr(Pipeline, "decide", slow)
    assert daemon.run(2.5) == [0, 300, 600]
    assert daemon.said == [
        "nothing is forecast: a decision takes 6 s, too long for a learning.forecast_budget of 20 s"
    ], "once"


class Paging(Forecasting):
    """A daemon that has its page written by a command."""

    def __init__(self, folder: Path, command: Sequence[str], page: str) -> None:
        super().__init__(folder, ())
        self.world.settings = replace(self.world.settings, storage=replace(self.world.settings.storage, page=page))
        self.loop._page = PageProcess(command, self.world.clock, self.loop._log.once)
        self.loop._context = self.world.site()

    def child_ends(self) -> None:
        if (child := self.loop._page._child) is not None:
            child.process.wait(timeout=60.0)


def noting(folder: Path) -> tuple[str, ...]:
    """A command that appends how it was called."""
    code = f"import sys; open({str(folder / 'called')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
    return (sys.executable, "-c", code, "report")


def test_the_page_is_written_after_each_round_by_a_process_of_its_own(tmp_path: Path) -> None:
    daemon = Paging(tmp_path, noting(tmp_path), "/www/page.html")
    assert daemon.run(2.5, wait=daemon.child_ends) == [0, 300, 600]
    assert (tmp_path / "called").read_text() == "report --out /www/page.html\n" * 3
    assert daemon.said == []


def test_rounds_that_follow_each_other_share_a_page(tmp_path: Path) -> None:
    """Early rounds may come every few seconds: a page each would cost more than they do."""
    clock, said = VirtualClock(), list[str]()
    pages = PageProcess(noting(tmp_path), clock, said.append)
    for _ in range(70):
        pages.published()
        pages.go_on("page.html")
        if pages._child is not None:
            pages._child.process.wait(timeout=60.0)
        clock.advance(1.0)
    assert (tmp_path / "called").read_text().count("\n") == 3
    assert said == []


def test_without_a_new_round_or_a_path_no_page_is_written(tmp_path: Path) -> None:
    clock = VirtualClock()
    pages = PageProcess(noting(tmp_path), clock, pytest.fail)
    pages.go_on("page.html")
    pages.published()
    pages.go_on("")
    assert not pages.runs
    assert not (tmp_path / "called").exists()


def test_no_round_waits_for_a_page_and_a_stop_ends_its_process(tmp_path: Path) -> None:
    daemon = Paging(tmp_path, SLEEPS, "/www/page.html")
    seen = set[int]()

    def note() -> None:
        if daemon.loop._page._child is not None:
            seen.add(daemon.loop._page._child.process.pid)

    assert daemon.run(3.5, wait=note) == [0, 300, 600, 900]
    assert daemon.said[0] == "the page is not written: it took too long"
    assert not any(map(alive, seen))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        pytest.param(("/nonexistent",), "No such file or directory", id="there is no such command"),
        pytest.param(printing("", ends=1), "it ended with status 1", id="it fails without a word"),
        pytest.param(
            (sys.executable, "-c", "import sys; sys.exit('cannot write\\n \\x1b[2J it')"),
            "cannot write ?[2J it",
            id="it fails and says why",
        ),
    ],
)
def test_a_page_that_cannot_be_written_costs_no_round_and_is_said_once(
    tmp_path: Path, command: Sequence[str], why: str
) -> None:
    daemon = Paging(tmp_path, command, "/www/page.html")
    assert daemon.run(3.5, wait=daemon.child_ends) == [0, 300, 600, 900]
    (line,) = daemon.said
    assert line.startswith("the page is not written: ")
    assert line.endswith(why)


def test_what_a_round_saw_of_gpus_is_kept_for_the_page(tmp_path: Path) -> None:
    daemon = Paging(tmp_path, noting(tmp_path), "")
    daemon.run(2.5)
    with open_read_only(daemon.world.path) as store:
        assert [(row.gpus, row.used, row.down, row.running, row.waiting) for row in store.use_history(START)] == [
            (8, 0, 0, 0, 2), (8, 8, 0, 1, 1), (8, 8, 0, 1, 1),
        ]  # fmt: skip
    assert not (tmp_path / "called").exists()
