"""The jobs on a real Slurm, with rounds of our own, until the last has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.locking import sole
from slurmsched.daemon.pulse import Pulse
from slurmsched.daemon.scheduling import Site, one_round
from slurmsched.daemon.systemd import Systemd
from slurmsched.fidelity.sleeping import Sleeper
from slurmsched.model import Job, JobId, JobState, Snapshot, SynschedError
from slurmsched.store.store import Store
from slurmsched.traces import Trace

__all__ = ["Lived", "live"]


_BEAT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Lived:
    """What became of one job. `submitted` is in seconds after the first round began, `ended` likewise."""

    submitted: float
    ended: float
    restarts: int


@dataclass(slots=True)
class _Arriving:
    """Submits each job when it is due, beside the rounds."""

    trace: Trace
    sleeper: Sleeper
    clock: Clock
    queued: dict[JobId, tuple[str, float]] = field(default_factory=dict)
    """Job number to the trace's id and the time of submission, which Slurm renews when it requeues a job."""
    error: SynschedError | None = None
    stopped: Event = field(default_factory=Event)

    def run(self) -> None:
        start = self.clock.monotonic()
        for job in self.trace.jobs:
            if self.stopped.wait(max(0.0, start + job.arrival - self.clock.monotonic())):
                return
            try:
                at = self.clock.now()
                self.queued[self.sleeper.start(job)] = job.id, at
            except SynschedError as error:  # told by the thread that waits for us
                self.error = error
                return


def live(
    trace: Trace, site: Site, sleeper: Sleeper, clock: Clock, say: Callable[[str], None], *, patience: float = 3600.0
) -> Mapping[str, Lived]:
    """Run the trace; what became of each job, by its id in the trace. Jobs that have not ended after `patience` seconds
    are missing.

    Raises BackendError, StoreError, AlreadyRunningError: rounds of somebody else would mix with ours.
    """
    path = Path(site.settings.storage.path)
    arriving = _Arriving(trace, sleeper, clock)
    ended: dict[JobId, Job] = {}
    deadline = clock.monotonic() + patience
    with sole(path), closing(Store.open(path, clock.now())) as store:
        pulse = Pulse(site.settings, store.switches, clock, Systemd({}), say)
        pulse.beat()  # or job_submit lets Slurm start the jobs
        began = clock.now()
        submitting = Thread(target=arriving.run, name="submissions")
        submitting.start()
        try:
            while len(ended) < len(trace.jobs) and clock.monotonic() < deadline and arriving.error is None:
                due = clock.monotonic() + site.settings.rounds.period
                _note(one_round(site, store, clock, tick=pulse.tick).snapshot, arriving.queued, ended)
                while (left := due - clock.monotonic()) > 0:
                    clock.sleep(min(left, _BEAT))
                    pulse.tick()
                _note(site.backend.observe(), arriving.queued, ended)
        finally:
            arriving.stopped.set()
            submitting.join()
            pulse.stop()
    if arriving.error is not None:
        raise arriving.error
    return {
        arriving.queued[job.id][0]: Lived(arriving.queued[job.id][1] - began, job.end_time - began, job.restarts)
        for job in ended.values()
        if job.end_time is not None
    }


def _note(snapshot: Snapshot, ours: Mapping[JobId, object], ended: dict[JobId, Job]) -> None:
    ended.update({job.id: job for job in snapshot.in_state(JobState.FINISHED) if job.id in ours})
