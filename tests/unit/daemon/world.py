"""A simulated cluster with a daemon's parts around it. No time passes but the virtual clock's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurmsched.backends.protocol import Backend
from slurmsched.backends.simulated import (
    NO_FAULTS,
    FaultPlan,
    JobSubmitHook,
    SimulatedBackend,
    Submission,
    VirtualClock,
    VirtualCluster,
)
from slurmsched.daemon.log import DaemonLog, LogEntry
from slurmsched.daemon.scheduler import RoundReport, SchedulerContext, schedule_round
from slurmsched.knowledge import Knowledge
from slurmsched.model import Hold, JobId, JobState, Node, Request
from slurmsched.settings.definition import (
    GuardSettings,
    HookSettings,
    ManageSettings,
    Mode,
    PolicySettings,
    RoundSettings,
    Settings,
    StorageSettings,
)
from slurmsched.store.store import Store
from tests.builders import node

START = 1_000_000.0
PERIOD = 300.0
DAY = 86400.0


def settings_in(folder: Path, mode: Mode = Mode.ENFORCE) -> Settings:
    """Rounds every five minutes in order of attained service, everything movable, all files in `folder`."""
    return Settings(
        rounds=RoundSettings(mode=mode, period=PERIOD),
        policy=PolicySettings(system="synergy", order="las", las_queues=(20_000.0,)),
        guards=GuardSettings(min_run_time=0.0),
        hook=HookSettings(heartbeat=str(folder / "heartbeat"), disable_file=str(folder / "disable")),
        storage=StorageSettings(path=str(folder / "synsched.db")),
    )


def log_to(said: list[str]) -> DaemonLog:
    """A log that adds what concerns the daemon to `said`; not that it starts and stops, nor what is done to jobs."""

    def write(entry: LogEntry) -> None:
        usual = entry.fields.get("verb") == "run" or entry.message in ("stopped", "stopped; held jobs stay held")
        if entry.shown and not usual:
            said.append(entry.message)

    return DaemonLog(write)


@dataclass
class World:
    """The cluster lives on while daemons come and go: `backend` may be wrapped, `store` opened anew."""

    folder: Path
    nodes: Iterable[Node] = (node("n1"),)
    mode: Mode = Mode.ENFORCE
    disturbances: FaultPlan = NO_FAULTS
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START))

    def __post_init__(self) -> None:
        self.settings = settings_in(self.folder, self.mode)
        self.knowledge = Knowledge()
        self.hook_holds = self.mode is Mode.ENFORCE
        hook = JobSubmitHook(ManageSettings(), lambda _now: self.hook_holds)
        self.cluster = VirtualCluster(self.nodes, start=self.clock.now(), hook=hook)
        self.simulated = SimulatedBackend(self.cluster, self.clock, faults=self.disturbances)
        self.backend: Backend = self.simulated
        self.store = self.opened()

    @property
    def path(self) -> Path:
        return self.folder / "synsched.db"

    def opened(self) -> Store:
        """The database, as a new process would open it; only that no test loses power."""
        store = Store.open(self.path, self.clock.now())
        store.database._database.conn.execute("PRAGMA synchronous = OFF")
        return store

    def restart(self) -> None:
        """A new process over the same database and the same cluster."""
        self.store.close()
        self.backend, self.store = self.simulated, self.opened()

    def in_mode(self, mode: Mode) -> None:
        self.settings = replace(self.settings, rounds=replace(self.settings.rounds, mode=mode))

    def site(self) -> SchedulerContext:
        return SchedulerContext(self.settings, self.backend, self.knowledge)

    def submit(self, gpus: int, hint: str = "ckpt=usr1@30", work: float = DAY, **other: object) -> JobId:
        request = Request(gpus=gpus, gpus_per_node=gpus, cpus=3 * gpus)
        comment = f"synsched:{hint}" if hint else ""
        return self.simulated.submit(Submission("alice", request, work, comment=comment, **other))

    def round(self) -> RoundReport:
        """One round now."""
        return schedule_round(self.site(), self.store, self.clock)

    def rounds(self, count: int) -> None:
        """So many, a period apart."""
        for _ in range(count):
            began = self.clock.now()
            self.round()
            self.clock.advance_to(max(self.clock.now(), began + PERIOD))

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.cluster.advance(self.clock.now())

    def where(self) -> dict[JobId, tuple[str, ...]]:
        """Each living job and its nodes; none for one that waits."""
        return {
            job.id: job.nodes
            for job in self.simulated.observe().jobs
            if job.state not in (JobState.FINISHED, JobState.COMPLETING)
        }

    def held(self) -> set[JobId]:
        return {job.id for job in self.simulated.observe().jobs if job.hold is not Hold.NONE}

    def pinned(self) -> set[JobId]:
        """Waiting jobs that do not stand as they were submitted."""
        return {
            job.id
            for job in self.simulated.observe().jobs_in_state(JobState.PENDING)
            if job.current_request != self.cluster.jobs[job.id].submission.request
        }
