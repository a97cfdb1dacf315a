"""A soak: weeks of the daemon's loop under a compressed clock, on a simulated cluster with faults of every kind.

The loop, its rounds, the database in a file and the published documents are those of the daemon; time is virtual, so
that a month takes minutes. At the end the daemon stops as for good, and what it leaves is compared with the cluster:
the journal with what was carried out, every hold, every request, and whether each job ends under plain Slurm.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Final

from slurmsched.backends.simulated import JobSubmitHook, SimulatedBackend, VirtualClock, VirtualCluster
from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.daemon.keepalive import SystemdNotifier
from slurmsched.daemon.log import DaemonLog, text_writer
from slurmsched.daemon.loop import DaemonLoop
from slurmsched.daemon.process import SignalRequests
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.endurance.audit import Audit, audit_end
from slurmsched.endurance.faults import (
    DaemonClock,
    DrawnFault,
    FaultyBackend,
    KilledError,
    SoakFault,
    SoakTime,
    draw_faults,
)
from slurmsched.endurance.jobs import SoakJobs, soak_nodes
from slurmsched.endurance.sickness import DatabaseSickness
from slurmsched.endurance.trends import Trend, find_trend
from slurmsched.knowledge import Knowledge
from slurmsched.model import NodeState, SynschedError
from slurmsched.settings.definition import (
    HookSettings,
    ManageSettings,
    Mode,
    PolicySettings,
    RoundSettings,
    Settings,
    StorageSettings,
)
from slurmsched.store.store import Store

_START: Final = 1_700_000_000.0
_HOUR: Final = 3600.0
_DAY: Final = 86400.0
_RESTART: Final = 30.0
"""Seconds after which a process that has failed is started again (`RestartSec` of the unit)."""
_QUIET: Final = 2 * _HOUR
"""Seconds without new faults or jobs before the daemon is stopped."""
_LONGEST_STALE: Final = 900.0
_DEFAULT_POLICY: Final = PolicySettings().system
_KEPT_ENDS: Final = 2 * _DAY
"""Seconds for which the simulated cluster remembers ended runs: its own memory is not measured."""


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """How long, in days, of rounds every `period` seconds; `keep_days` is storage.keep_days, and warm-up is a day more.
    `seed` is of the jobs and the faults."""

    days: float = 30.0
    seed: int = 1
    policy: str = _DEFAULT_POLICY
    keep_days: int = 7
    period: float = 300.0
    load: float = 0.7


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a soak came to. `samples` has for each measure its points, seconds since the start and the value."""

    options: SoakOptions
    took_s: float
    rounds: int
    failed_rounds: int
    starts: int
    """Processes of the daemon."""
    faults: Mapping[str, int]
    submitted: int
    hostile: int
    ended: int
    audit: Audit
    trends: tuple[Trend, ...]
    samples: Mapping[str, tuple[tuple[float, float], ...]]

    @property
    def problems(self) -> tuple[str, ...]:
        """What grows or was lost, one sentence each; empty for a soak that succeeded."""
        grown = (f"{trend.measure} grows: {_change(trend)}" for trend in self.trends if trend.grows)
        return (*self.audit.problems, *grown)


def _change(trend: Trend) -> str:
    _, middle, last = trend.thirds
    return f"{middle:.3g} {trend.unit} in the middle third, {last:.3g} in the last".replace("  ", " ")


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured every hour: its unit, the least growth that is one, and what it is."""

    name: str
    unit: str
    resolution: float
    caption: str


MEASURES: Final = (
    Measure("memory", "MB", 2.0, "Resident memory of the process, the simulated cluster with it."),
    Measure("database", "MB", 0.5, "Size of the database file."),
    Measure("published", "MB", 0.2, "Size of the documents that other users read."),
    Measure("log per hour", "kB", 2.0, "What the daemon logged in an hour."),
    Measure("round", "ms", 3.0, "Processor time of a round, the median of an hour, without the simulated cluster's."),
    Measure("open files", "", 1.0, "Open files of the process."),
    Measure("jobs", "", 10.0, "Jobs that run or wait, on which memory and rounds depend."),
)


def run_soak(options: SoakOptions, folder: Path, tell: Callable[[float], None] = lambda _part: None) -> SoakResult:
    """Run a soak with its files in `folder`, which is empty; `tell` gets the part that is over. Raises SoakError."""
    return _Soak(options, folder, tell).run()


class SoakError(SynschedError):
    """A soak that grew, lost something, or could not be run."""


def soak_settings(options: SoakOptions, folder: Path) -> Settings:
    """The settings of the daemon: those of a site, with its files in the folder."""
    defaults = Settings()
    return replace(
        defaults,
        manage=ManageSettings(partitions=("gpu",)),
        rounds=RoundSettings(mode=Mode.ENFORCE, period=options.period),
        policy=replace(defaults.policy, system=options.policy),
        hook=HookSettings(heartbeat=str(folder / "heartbeat"), disable_file=str(folder / "disable")),
        storage=StorageSettings(path=str(folder / "synsched.db"), keep_days=options.keep_days),
    )


@dataclass(slots=True)
class _Soak:
    options: SoakOptions
    folder: Path
    tell: Callable[[float], None]
    random: Random = field(init=False)
    time: SoakTime = field(init=False)
    cluster: VirtualCluster = field(init=False)
    backend: FaultyBackend = field(init=False)
    arrivals: SoakJobs = field(init=False)
    sickness: DatabaseSickness = field(init=False)
    settings: Settings = field(init=False)
    requests: SignalRequests = field(default_factory=SignalRequests)
    starts: int = 0
    down_for: float = _RESTART
    met: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    took: list[float] = field(default_factory=list)
    """Processor seconds of the rounds since the last look."""
    logged: int = 0
    nodes_away: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        seed = self.options.seed
        self.random, clock, nodes = Random(seed), VirtualClock(_START), soak_nodes()  # noqa: S311
        self.time, self.settings = SoakTime(clock), soak_settings(self.options, self.folder)
        hook = JobSubmitHook(self.settings.manage, self._is_alive)
        self.cluster = VirtualCluster(nodes, start=_START, hook=hook)
        simulated = SimulatedBackend(self.cluster, clock)
        self.backend = FaultyBackend(simulated, self.time, Random(seed + 1))  # noqa: S311
        gpus = sum(len(node.gpus) for node in nodes)
        self.arrivals = SoakJobs(simulated, Random(seed + 2), gpus * self.options.load)  # noqa: S311
        self.sickness = DatabaseSickness(self.folder / "synsched.db")

    def run(self) -> SoakResult:
        began, end = perf_counter(), _START + self.options.days * _DAY
        faults = draw_faults(self.random, tuple(self.cluster.nodes), self.options.days * _DAY - _QUIET)
        for fault in faults:
            self.time.at(_START + fault.at, lambda fault=fault: self._begin(fault))  # type: ignore[misc]
        self._arrive(end - _QUIET)
        self._look(end)
        self.time.at(end, lambda: setattr(self.requests, "stop", True))
        while not self.requests.stop:
            with self._daemon() as daemon:
                daemon.run()
            if not self.requests.stop:
                self.time.sleep(self.down_for)
                self.down_for = _RESTART
        with self._store() as store:
            audit = audit_end(store, self.cluster, self.arrivals, self.backend, self.options.keep_days)
            rounds = store.database.rows(
                "SELECT max(id) AS number, sum(error != '' AND mode != 'release') AS failed FROM rounds"
            )[0]
        return SoakResult(
            self.options,
            perf_counter() - began,
            rounds["number"] or 0,
            rounds["failed"] or 0,
            self.starts,
            dict(sorted(self.met.items())),
            self.arrivals.submitted,
            self.arrivals.hostile,
            self.arrivals.submitted - len(self.arrivals.open),
            audit,
            tuple(self._trends()),
            {name: tuple(points) for name, points in self.samples.items()},
        )

    def _trends(self) -> Iterator[Trend]:
        warm_up = (self.options.keep_days + 1) * _DAY
        for measure in MEASURES:
            points = self.samples.get(measure.name, ())
            yield find_trend(measure.name, measure.unit, points, warm_up=warm_up, resolution=measure.resolution)

    @contextmanager
    def _store(self) -> Iterator[Store]:
        """The database, opened again while it cannot be, as by a process that is started again."""
        while True:
            try:
                store = Store.open(self.folder / "synsched.db", self.time.clock.now() + self.time.offset)
                break
            except SynschedError:
                self.time.sleep(_RESTART)
        try:
            self.sickness.treat(store)
            yield store
        finally:
            self.sickness.forget()
            with suppress(SynschedError):
                store.close()

    @contextmanager
    def _daemon(self) -> Iterator[DaemonLoop]:
        """One process of the daemon, to its end; what ends it is what would end the process."""
        self.starts += 1
        self.time.revive()
        context = SchedulerContext(self.settings, self.backend, Knowledge())
        clock = DaemonClock(self.time, self._sleeps)
        with (self.folder / "log").open("a", encoding="utf-8") as log, self._store() as store:
            try:
                yield DaemonLoop(
                    context,
                    lambda: context,
                    store,
                    clock,
                    requests=self.requests,
                    systemd=SystemdNotifier({}),
                    log=DaemonLog(text_writer(log, once=False)),
                )
            except KilledError:
                self.met["daemon killed in a step of its own"] += 1
            except SynschedError as error:
                self.met[f"daemon ended by {type(error).__name__}"] += 1

    def _is_alive(self, now: float) -> bool:
        """What the submit hook reads of the heartbeat, on slurmctld's host."""
        beat = HeartbeatFile(Path(self.settings.hook.heartbeat)).read()
        return beat is not None and beat.mode == Mode.ENFORCE.value and not beat.is_stale(now, _LONGEST_STALE)

    def _sleeps(self) -> None:
        """The loop sleeps: what it did since it woke was a round if it polled."""
        if (took := self.backend.round_took()) is not None:
            self.took.append(took)
        if self.time.steps_left is None:
            self.time.counting = False

    def _arrive(self, until: float) -> None:
        """Have the next job come."""
        at = self.time.clock.now() + self.arrivals.next_gap(self.time.clock.now())
        if at < until:
            self.time.at(at, lambda: self._submit(at, until))

    def _submit(self, at: float, until: float) -> None:
        self.arrivals.submit(at)
        self._arrive(until)

    def _begin(self, fault: DrawnFault) -> None:
        self.met[fault.kind.value] += 1
        end, active = self.time.clock.now() + fault.seconds, self.backend.active
        match fault.kind:
            case SoakFault.NODE_DOWN | SoakFault.NODE_DRAINED:
                state = NodeState.DOWN if fault.kind is SoakFault.NODE_DOWN else NodeState.DRAINED
                self.cluster.advance(self.time.clock.now())
                self.cluster.set_node(fault.subject, state, fault.kind.value)
                self.nodes_away[fault.subject] += 1
            case SoakFault.CLOCK:
                self.time.offset = fault.amount
            case SoakFault.KILLED:
                self.time.steps_left, self.down_for = int(fault.amount), fault.seconds
                return
            case SoakFault.LOCKED | SoakFault.FULL | SoakFault.READ_ONLY:
                self.sickness.begin(fault.kind)
            case _:
                active[fault.kind] = fault.amount
        self.time.at(end, lambda: self._end(fault))

    def _end(self, fault: DrawnFault) -> None:
        match fault.kind:
            case SoakFault.NODE_DOWN | SoakFault.NODE_DRAINED:
                self.nodes_away[fault.subject] -= 1
                if not self.nodes_away[fault.subject]:
                    self.cluster.advance(self.time.clock.now())
                    self.cluster.set_node(fault.subject, NodeState.UP)
            case SoakFault.CLOCK:
                self.time.offset = 0.0
            case SoakFault.LOCKED | SoakFault.FULL | SoakFault.READ_ONLY:
                self.sickness.end(fault.kind)
            case _:
                self.backend.active.pop(fault.kind, None)

    def _look(self, end: float) -> None:
        """Measure, and again in an hour."""
        now = self.time.clock.now()
        self.tell(min(1.0, (now - _START) / (end - _START)))
        self._forget_ends(now)
        log = (self.folder / "log").stat().st_size if (self.folder / "log").exists() else 0
        values = {
            "memory": _resident_mb(),
            "database": _size(self.folder.glob("synsched.db*")) / 1e6,
            "published": _size((self.folder / "export").glob("*")) / 1e6,
            "log per hour": (log - self.logged) / 1e3,
            "open files": float(sum(1 for _ in Path("/proc/self/fd").iterdir())),
            "jobs": float(len(self.arrivals.open)),
            **({"round": 1000 * median(self.took)} if self.took else {}),
        }
        for name, value in values.items():
            self.samples.setdefault(name, []).append((now - _START, value))
        self.took.clear()
        self.logged = log
        if now + _HOUR <= end:
            self.time.at(now + _HOUR, lambda: self._look(end))

    def _forget_ends(self, now: float) -> None:
        """Forget what the simulated cluster and the truth keep of long ago."""
        lifecycle, executed = self.cluster.lifecycle, self.backend.executed
        self.arrivals.note_ends(lifecycle.ended)
        kept = next((n for n, run in enumerate(lifecycle.usage_intervals) if run.end > now - _KEPT_ENDS), 0)
        del lifecycle.usage_intervals[:kept]
        for job in [job for job, ended in lifecycle.ended.items() if (ended.end_time or 0.0) < now - _KEPT_ENDS]:
            del lifecycle.ended[job]
        while executed and executed[0].at < now - (self.options.keep_days + 1) * _DAY:
            executed.popleft()


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _size(files: Iterator[Path]) -> int:
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total
