"""The daemon in time: periods, failures, reloads, stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from pwd import getpwuid

import pytest

from slurmsched.backends.protocol import Identity, Privilege, UnreachableError
from slurmsched.backends.simulated import FaultPlan, SimulatedEventKind, Submission, VirtualClock
from slurmsched.backends.simulated.events import Event
from slurmsched.daemon.heartbeat import PAUSED, STOPPED, HeartbeatFile, HeartbeatRecord, ProcessIdentity
from slurmsched.daemon.keepalive import SystemdNotifier
from slurmsched.daemon.lock import AlreadyRunningError, exclusive_lock
from slurmsched.daemon.log import DaemonLog
from slurmsched.daemon.loop import DaemonLoop, run_daemon
from slurmsched.daemon.process import SignalRequests
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.daemon.single_round import RoundsSkippedError, run_once
from slurmsched.model import AccountedRun, Node, NodeState, Request, RunEnd, Snapshot
from slurmsched.report.quantities import local_time
from slurmsched.report.status import cluster_status
from slurmsched.settings.definition import Mode, Settings
from slurmsched.settings.file import SettingsError
from slurmsched.store.errors import FullStoreError
from slurmsched.store.finished_runs import AccountingCursor
from slurmsched.store.publication import DocumentKind, ask_to_forget, read_published
from slurmsched.store.read_only import open_read_only
from tests.builders import node
from tests.unit.daemon.hiding import Hiding
from tests.unit.daemon.world import PERIOD, START, World, log_to


def quiet(_settings: Settings) -> DaemonLog:
    return DaemonLog()


NODE_UP = SimulatedEventKind.NODE_UP


class Scripted(VirtualClock):
    """A virtual clock on which things happen when their time has come."""

    def __init__(self) -> None:
        super().__init__(START)
        self._turns = count()
        self.script: list[tuple[float, int, Callable[[], object]]] = []
        """A heap by time and turn, since a daemon sleeps a hundred thousand times beside hundreds of them."""

    def after(self, seconds: float, happens: Callable[[], object]) -> None:
        heappush(self.script, (START + seconds, next(self._turns), happens))

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        due = []
        while self.script and self.script[0][0] <= self.now():
            due.append(heappop(self.script))
        for _, _, happens in sorted(due, key=lambda entry: entry[1]):
            happens()


@dataclass
class Running:
    """A world with a loop in it."""

    world: World
    clock: Scripted
    requests: SignalRequests = field(default_factory=SignalRequests)
    said: list[str] = field(default_factory=list)
    assemble: Callable[[], SchedulerContext] | None = None
    log: DaemonLog | None = None

    def run(self, seconds: float, *, keep_holds: bool = False) -> None:
        """So long, then SIGTERM."""
        self.clock.after(seconds, lambda: self.requests.handle(signal.SIGTERM))
        loop = DaemonLoop(
            self.world.site(),
            self._assembled,
            self.world.store,
            self.clock,
            requests=self.requests,
            systemd=SystemdNotifier({}),
            log=self.log or log_to(self.said),
        )
        loop.run(keep_holds=keep_holds)

    def _assembled(self) -> SchedulerContext:
        return (self.assemble or self.world.site)()

    def starts(self) -> list[float]:
        """When scheduling rounds began, in seconds since the start."""
        rows = self.world.store.database.rows("SELECT started FROM rounds WHERE mode != 'release' ORDER BY id")
        return [row["started"] - START for row in rows]

    def problems(self) -> tuple[str, ...]:
        """What `status` tells as problems."""
        with open_read_only(self.world.path) as store:
            return cluster_status(store, self.world.settings, self.clock.now(), self.beat()).problems

    def beat(self) -> HeartbeatRecord | None:
        return HeartbeatFile(Path(self.world.settings.hook.heartbeat)).read()


def running(
    folder: Path,
    disturbances: FaultPlan | None = None,
    *,
    early: float = 0.0,
    mode: Mode = Mode.ENFORCE,
    nodes: tuple[Node, ...] = (node("n1"),),
) -> Running:
    """`early` is the least time between early rounds; without it there are none."""
    clock = Scripted()
    world = World(folder, nodes, clock=clock, disturbances=disturbances or FaultPlan(), mode=mode)
    world.settings = replace(world.settings, rounds=replace(world.settings.rounds, early_interval=early))
    return Running(world, clock)


def held_and_waiting(daemon: Running) -> None:
    """Job 1 will run, job 2 will wait under the hook's hold."""
    daemon.world.submit(8)
    daemon.world.submit(8)


def test_rounds_begin_a_period_apart(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    daemon.run(3.5 * PERIOD)
    assert daemon.starts() == [0, 300, 600, 900]


def test_a_round_that_takes_time_does_not_delay_the_next(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    daemon.world.submit(8)
    daemon.clock.after(3000.0, lambda: daemon.world.submit(8))
    daemon.run(3700.0)
    assert daemon.starts() == [PERIOD * count for count in range(13)]
    assert daemon.world.where() == {"1": (), "2": ("n1",)}


def submitting(*times: float) -> Callable[[Running], None]:
    def script(daemon: Running) -> None:
        for at in times:
            daemon.clock.after(at, lambda: daemon.world.submit(1))

    return script


def a_node_that_comes_back(daemon: Running) -> None:
    daemon.world.cluster.set_node("n1", NodeState.DRAINED)
    daemon.clock.after(100.0, lambda: daemon.world.cluster.events.push(Event(START + 100, NODE_UP, "n1")))


def a_begin_time(daemon: Running) -> None:
    daemon.world.submit(1, begin=START + 100.0)


@pytest.mark.parametrize(
    ("happens", "early", "mode", "expected"),
    [
        pytest.param(submitting(), 10.0, Mode.ENFORCE, [], id="nothing happens: no early round"),
        pytest.param(submitting(100), 10.0, Mode.ENFORCE, [100, 112], id="a job comes; its start is looked after"),
        pytest.param(submitting(3), 10.0, Mode.ENFORCE, [10, 22], id="not sooner than the interval allows"),
        pytest.param(
            submitting(*range(100, 120)), 10.0, Mode.ENFORCE, [100, 110, 120], id="many jobs come: they share them"
        ),
        pytest.param(submitting(100), 60.0, Mode.ENFORCE, [100, 160], id="a longer interval"),
        pytest.param(submitting(100), 0.0, Mode.ENFORCE, [], id="switched off"),
        pytest.param(submitting(100), 10.0, Mode.OBSERVE, [], id="nobody waits for a round that only looks"),
        pytest.param(a_node_that_comes_back, 10.0, Mode.ENFORCE, [100], id="a node comes back"),
        pytest.param(a_begin_time, 10.0, Mode.ENFORCE, [100, 112], id="a begin time passes"),
    ],
)
def test_a_round_comes_early_when_something_happens(
    tmp_path: Path, happens: Callable[[Running], None], early: float, mode: Mode, expected: list[float]
) -> None:
    daemon = running(tmp_path, early=early, mode=mode)
    happens(daemon)
    daemon.run(2.5 * PERIOD)
    between = [at for at in daemon.starts() if at % PERIOD]
    assert [at for at in daemon.starts() if not at % PERIOD] == [0, 300, 600], "full rounds keep their times"
    assert between == pytest.approx(expected, abs=3.0)


def test_an_early_round_preempts_nobody_and_the_full_one_does(tmp_path: Path) -> None:
    daemon = running(tmp_path, early=10.0)
    daemon.world.submit(8)
    daemon.clock.after(10_000.0, lambda: daemon.world.submit(8))
    seen: list[dict[str, tuple[str, ...]]] = []
    daemon.clock.after(10_150.0, lambda: seen.append(daemon.world.where()))
    daemon.run(10_700.0)
    assert seen == [{"1": ("n1",), "2": ()}]
    assert daemon.world.where() == {"1": (), "2": ("n1",)}


def a_forked_job(daemon: Running, seconds: float) -> None:
    """Two copies, which share work of so many seconds."""
    request = Request(gpus=8, gpus_per_node=8, cpus=24)
    forked = Submission("alice", request, 2 * seconds, comment="synsched:fork=1000,ckpt=usr1@30", steps=1000)
    daemon.world.simulated.submit(forked, tasks=2)


def test_a_full_round_comes_early_when_a_forked_job_ends_and_the_next_one_a_period_later(tmp_path: Path) -> None:
    """The first job ends after some 400 s."""
    daemon = running(tmp_path, early=10.0, nodes=(node("n1"), node("n2")))
    daemon.world.settings = replace(
        daemon.world.settings,
        policy=replace(daemon.world.settings.policy, system="hadare"),
        guards=replace(daemon.world.settings.guards, restart_cost=60.0),
    )
    a_forked_job(daemon, 400.0)
    a_forked_job(daemon, 10_000.0)
    seen: list[dict[str, tuple[str, ...]]] = []
    daemon.clock.after(500.0, lambda: seen.append(daemon.world.where()))
    daemon.run(1150.0)
    assert seen == [{"2_1": ("n1",), "2_2": ("n2",)}]
    clock = [at for at in daemon.starts() if at in (0.0, 300.0, 600.0, 900.0)]
    assert clock == [0.0, 300.0], "the period is counted from the full round that came early"


@dataclass
class Unread(Hiding):
    """A backend that does not know its rights, and has them."""

    def identity(self) -> Identity:
        return UNREAD


UNREAD = Identity("synsched", Privilege.NONE, unread="sacctmgr: connection refused")


@pytest.mark.parametrize(
    ("identity", "line"),
    [
        pytest.param(
            UNREAD,
            "jobs are left to Slurm: the rights of synsched are unknown, since Slurm's accounting does not answer"
            " (sacctmgr: connection refused)",
            id="unknown",
        ),
        pytest.param(
            Identity("synsched", Privilege.NONE),
            "jobs are left to Slurm: synsched has too few rights in Slurm: 'synsched doctor' shows which are missing",
            id="too few",
        ),
    ],
)
def test_while_our_rights_are_not_known_to_be_enough_the_hook_holds_nothing(
    tmp_path: Path, identity: Identity, line: str
) -> None:
    daemon = running(tmp_path, early=10.0)
    world = daemon.world
    world.simulated._identity = identity
    beats: list[str] = []

    def look() -> None:
        beat = daemon.beat()
        assert beat is not None
        beats.append(beat.mode)
        world.hook_holds = beat.mode == "enforce"

    for at in (1.0, 250.0, 1000.0):
        daemon.clock.after(at, look)
    daemon.clock.after(400.0, lambda: world.submit(4))
    daemon.clock.after(650.0, lambda: beats.append(str(world.where())))
    daemon.clock.after(700.0, lambda: setattr(world.simulated, "_identity", Identity("synsched", Privilege.OPERATOR)))
    daemon.run(1150.0)
    assert beats == ["observe", "observe", "{'1': ('n1',)}", "enforce"], "Slurm starts it itself"
    assert daemon.said == [line, "jobs are managed again: synsched has the rights for it"]


def test_what_is_held_is_given_back_while_our_rights_are_unknown(tmp_path: Path) -> None:
    """As after a restart that kept holds, while slurmdbd is down: slurmctld may know the rights all the same."""
    daemon = running(tmp_path)
    held_and_waiting(daemon)
    daemon.run(100.0, keep_holds=True)
    assert daemon.world.held() == {"2"}
    daemon.requests = SignalRequests()
    daemon.world.backend = Unread(daemon.world.simulated)
    seen: list[set[str]] = []
    daemon.clock.after(250.0, lambda: seen.append(daemon.world.held()))
    daemon.run(300.0, keep_holds=True)
    assert seen == [set()]
    assert len(daemon.said) == 1, "it is told once"


def test_after_failed_rounds_it_waits_longer_each_time_and_tells_the_trouble_once(tmp_path: Path) -> None:
    daemon = running(tmp_path, FaultPlan(unanswered_polls=frozenset(range(1, 8))))
    daemon.run(1150.0)
    assert daemon.starts() == [0, 10, 30, 70, 150, 310, 610, 910]
    assert [line.partition(":")[0] for line in daemon.said] == [
        "the simulated slurmctld does not answer",
        "rounds succeed again after 7 failures",
    ]


def test_who_cannot_schedule_gives_no_sign_of_life(tmp_path: Path) -> None:
    daemon = running(tmp_path, FaultPlan(unanswered_polls=frozenset(range(2, 100))))
    seen: list[HeartbeatRecord | None] = []
    daemon.clock.after(1400.0, lambda: seen.append(daemon.beat()))
    daemon.run(1500.0)
    (beat,) = seen
    assert beat is not None
    assert beat.at == pytest.approx(START + PERIOD, abs=15.0)


def test_the_heartbeat_is_fresh_between_rounds_and_says_mode_and_period(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    seen: list[HeartbeatRecord | None] = []
    daemon.clock.after(250.0, lambda: seen.append(daemon.beat()))
    daemon.run(260.0)
    (beat,) = seen
    assert beat is not None
    assert (beat.mode, beat.period) == ("enforce", PERIOD)
    assert START + 250.0 - beat.at <= 15.0


def test_the_heartbeat_tells_the_hook_the_settings_in_force(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    texts: list[str] = []
    daemon.clock.after(50.0, lambda: texts.append(Path(daemon.world.settings.hook.heartbeat).read_text()))
    daemon.run(60.0)
    assert "\nopt_in = yes\n" in texts[0]


def test_while_paused_the_heartbeat_says_so_and_the_hook_holds_nothing_new(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    modes: list[str] = []
    daemon.world.store.switches.pause("root", "", START)
    daemon.clock.after(50.0, lambda: modes.append(getattr(daemon.beat(), "mode", "")))
    daemon.run(60.0)
    assert modes == [PAUSED]


def test_an_ordinary_stop_gives_everything_back(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    held_and_waiting(daemon)
    daemon.run(400.0)
    assert daemon.world.held() == set()
    assert daemon.said == ["stopped; 1 job was given back to Slurm"]
    assert getattr(daemon.beat(), "mode", "") == STOPPED


def test_a_stop_that_keeps_holds_leaves_jobs_and_heartbeat_for_the_next_start(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    held_and_waiting(daemon)
    daemon.run(400.0, keep_holds=True)
    assert daemon.world.held() == {"2"}
    assert getattr(daemon.beat(), "mode", "") == "enforce"


def test_a_stop_during_a_lead_leaves_the_victim_where_it_runs(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    daemon.world.submit(8, "ckpt=usr1@10m")
    daemon.clock.after(3500.0, lambda: daemon.world.submit(8))
    daemon.run(3700.0)
    assert daemon.world.where() == {"1": ("n1",), "2": ()}
    assert (daemon.world.held(), daemon.world.pinned()) == (set(), set())


def test_a_user_who_asks_is_forgotten_after_the_next_round(tmp_path: Path) -> None:
    daemon, user = running(tmp_path), getpwuid(os.geteuid()).pw_name
    ended = AccountedRun("1", user, "train", START, 600.0, RunEnd.COMPLETED, gpus=1, cpus=2, memory=9)
    daemon.world.store.finished_runs.record(AccountingCursor(START), [ended, replace(ended, job="2", owner="bob")])
    left = list[list[str]]()
    look = lambda: left.append([run.owner for run in daemon.world.store.finished_runs.runs(0.0)])  # noqa: E731
    daemon.clock.after(PERIOD - 2, lambda: ask_to_forget(tmp_path / "export"))
    daemon.clock.after(PERIOD - 1, look)
    daemon.clock.after(PERIOD + 1, look)
    daemon.run(2 * PERIOD)
    assert left == [[user, "bob"], ["bob"]]
    assert [line for line in daemon.said if "deleted" in line] == [
        f"what was learnt of {user} was deleted, as {user} asked"
    ]


def test_a_reload_takes_new_settings_without_a_restart(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    held_and_waiting(daemon)
    daemon.clock.after(100.0, lambda: daemon.world.in_mode(Mode.OBSERVE))
    daemon.clock.after(110.0, lambda: daemon.requests.handle(signal.SIGHUP))
    seen: list[set[str]] = []
    daemon.clock.after(350.0, lambda: seen.append(daemon.world.held()))
    daemon.run(360.0)
    assert 'the settings were read again: rounds.mode = "observe"' in daemon.said
    assert seen == [set()]


def test_a_broken_settings_file_keeps_the_old_settings_and_says_so(tmp_path: Path) -> None:
    daemon = running(tmp_path)

    def broken() -> SchedulerContext:
        raise SettingsError(Path("synsched.toml"), ["rounds.period: expected a time such as 5m"])

    daemon.assemble = broken
    daemon.clock.after(100.0, lambda: daemon.requests.handle(signal.SIGHUP))
    told: list[tuple[str, ...]] = []
    daemon.clock.after(400.0, lambda: told.append(daemon.problems()))
    daemon.clock.after(500.0, lambda: setattr(daemon, "assemble", daemon.world.site))
    daemon.clock.after(500.0, lambda: daemon.requests.handle(signal.SIGHUP))
    daemon.clock.after(600.0, lambda: told.append(daemon.problems()))
    daemon.run(650.0)
    mistake = "synsched.toml: rounds.period: expected a time such as 5m"
    assert daemon.said == [
        f"the settings stay as they were: {mistake}",
        "the settings were read again: nothing in force has changed",
    ]
    assert daemon.starts() == [0, 300, 600]
    since = local_time(START + 100.0)
    assert told == [(f"the daemon keeps the settings from before {since}: {mistake}",), ()]


def test_with_a_full_disk_it_stops_and_its_last_sign_of_life_says_so(tmp_path: Path) -> None:
    daemon = running(tmp_path)

    def fill() -> None:
        database = daemon.world.store.database
        (pages,) = database.rows("PRAGMA page_count")
        database.rows(f"PRAGMA max_page_count = {pages['page_count']}")
        with pytest.raises(FullStoreError):
            begin_rounds_for_ever(daemon.world)

    daemon.clock.after(100.0, fill)
    with pytest.raises(FullStoreError, match=r"^no space left for .*: free some, then start again$"):
        daemon.run(1000.0)
    assert getattr(daemon.beat(), "mode", "") == STOPPED


def begin_rounds_for_ever(world: World) -> None:
    while True:
        world.store.journal.begin_round(START, "x" * 50, "", "")


def test_served_it_stops_at_sigterm_and_leaves_the_lock_and_the_handlers_as_they_were(tmp_path: Path) -> None:
    clock, said = Scripted(), list[str]()
    world = World(tmp_path, clock=clock)
    clock.after(400.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    world.submit(8)
    world.submit(8)
    run_daemon(world.site, clock, {}, lambda _settings: log_to(said))
    assert signal.getsignal(signal.SIGTERM) is before
    assert said == ["stopped; 1 job was given back to Slurm"]
    with exclusive_lock(world.path):
        assert world.held() == set()


def test_a_second_daemon_is_told_of_the_first_and_touches_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, clock=Scripted())
    with (
        exclusive_lock(world.path),
        pytest.raises(AlreadyRunningError, match=f"process {os.getpid()} already schedules"),
    ):
        run_daemon(world.site, world.clock, {}, quiet)
    assert world.simulated.calls.polls == 0


def test_one_round_from_cron_does_its_work_and_gives_a_sign_of_life(tmp_path: Path) -> None:
    world = World(tmp_path, clock=Scripted())
    world.submit(8)
    report = run_once(world.site, world.clock, quiet)
    assert report is not None
    assert world.where() == {"1": ("n1",)}
    assert HeartbeatFile(tmp_path / "heartbeat").read() == HeartbeatRecord(
        int(world.clock.now()), "enforce", PERIOD, ProcessIdentity.current()
    )


def test_one_round_from_cron_ends_quietly_while_another_is_under_way(tmp_path: Path) -> None:
    world = World(tmp_path, clock=Scripted())
    with exclusive_lock(world.path):
        assert run_once(world.site, world.clock, quiet) is None
    assert world.simulated.calls.polls == 0


def test_the_third_round_from_cron_in_a_row_that_is_skipped_says_who_is_in_the_way(tmp_path: Path) -> None:
    world = World(tmp_path, clock=Scripted())
    HeartbeatFile(tmp_path / "heartbeat").write(START - 40, "enforce", PERIOD, daemon=ELSEWHERE)
    with exclusive_lock(world.path):
        assert run_once(world.site, world.clock, quiet) is None
        assert run_once(world.site, world.clock, quiet) is None
        for count in (3, 4):
            with pytest.raises(RoundsSkippedError) as told:
                run_once(world.site, world.clock, quiet)
            assert str(told.value).startswith(f"{count} rounds in a row were skipped: process {os.getpid()} already")
            assert str(told.value).endswith("the last heartbeat by process 7 on ctl2 is 40 s old")
    assert run_once(world.site, world.clock, quiet) is not None
    with exclusive_lock(world.path):
        assert run_once(world.site, world.clock, quiet) is None


ELSEWHERE = ProcessIdentity(7, "ctl2", "b00", 12)


def test_beside_a_daemon_on_another_host_nothing_is_changed_and_its_heartbeat_stands(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    held_and_waiting(daemon)
    heartbeat = HeartbeatFile(tmp_path / "heartbeat")
    for after in range(0, 900, 10):
        beat = partial(heartbeat.write, START + after, "enforce", PERIOD, daemon=ELSEWHERE)
        daemon.clock.after(after, beat)
    heartbeat.write(START, "enforce", PERIOD, daemon=ELSEWHERE)
    daemon.run(890.0)
    assert daemon.world.where() == {"1": (), "2": ()}
    assert daemon.world.simulated.calls.writes == 0
    assert daemon.world.held() == {"1", "2"}
    last = daemon.beat()
    assert last is not None
    assert (last.daemon, last.mode) == (ELSEWHERE, "enforce")
    assert [line for line in daemon.said if "process 7 on ctl2 schedules this cluster too" in line] == daemon.said


def test_once_the_other_daemon_is_silent_ours_takes_over(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    held_and_waiting(daemon)
    HeartbeatFile(tmp_path / "heartbeat").write(START - 500, "enforce", PERIOD, daemon=ELSEWHERE)
    daemon.run(1000.0, keep_holds=True)
    assert daemon.world.where()["1"] == ("n1",)
    last = daemon.beat()
    assert last is not None
    assert last.daemon == ProcessIdentity.current()
    assert daemon.said[-1] == "the other scheduler's heartbeat is stale: this daemon takes over"


def test_a_daemon_that_was_killed_here_does_not_make_the_next_one_wait(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    held_and_waiting(daemon)
    dead = replace(ProcessIdentity.current(), started=0)
    HeartbeatFile(tmp_path / "heartbeat").write(START - 1, "enforce", PERIOD, daemon=dead)
    daemon.run(10.0, keep_holds=True)
    assert daemon.world.where()["1"] == ("n1",)


def test_each_round_is_published_also_one_that_fails_and_nothing_is_told_after_a_stop(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    held_and_waiting(daemon)
    folder = tmp_path / "export"
    found: list[tuple[list[str], float, str]] = []

    def look() -> None:
        document = read_published(folder, [DocumentKind.CURRENT]).documents[0]
        latest = max(document.tables["rounds"], key=lambda row: row["id"])
        found.append(([row["id"] for row in document.tables["jobs"]], document.at, latest["error"]))

    daemon.clock.after(50.0, look)
    daemon.clock.after(60.0, lambda: setattr(daemon.world.backend, "observe", _unreachable))
    daemon.clock.after(PERIOD + 50.0, look)
    daemon.run(PERIOD + 100.0, keep_holds=True)
    assert [jobs for jobs, _, _ in found] == [["1", "2"], ["1", "2"]]
    assert found[0][2] == ""
    assert "nobody answers" in found[1][2]
    assert found[1][1] > found[0][1]
    assert sorted(file.name for file in folder.iterdir()) == ["current.json", "history.json"]


def _unreachable() -> Snapshot:
    raise UnreachableError("nobody answers: is slurmctld up?")


def test_a_heartbeat_that_cannot_be_written_later_is_told_once_and_the_rounds_go_on(tmp_path: Path) -> None:
    daemon = running(tmp_path)
    elsewhere = tmp_path / "run"
    elsewhere.mkdir()
    world = daemon.world
    world.settings = replace(world.settings, hook=replace(world.settings.hook, heartbeat=str(elsewhere / "heartbeat")))

    def lose() -> None:
        (elsewhere / "heartbeat").unlink()
        elsewhere.rmdir()

    daemon.clock.after(100.0, lose)
    daemon.run(950.0)
    assert len(daemon.starts()) >= 4
    assert sum("cannot write the heartbeat" in line for line in daemon.said) == 1
