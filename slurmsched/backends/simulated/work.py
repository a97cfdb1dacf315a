"""How a simulated job gets on: work, speed, checkpoints and what a restart costs.

Work is counted in seconds at the GPU-proportional share, on the type that the job's duration is of. An allocation never
changes while a run lasts; its speed does when somebody comes to or leaves a GPU that it uses. So the moment a job
finishes is exact and lies where it falls between rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, Node, Share

__all__ = ["Interval", "Run", "Speed", "Work", "profiled_speed", "proportional_speed"]

Speed = Callable[[Job, Sequence[Share], Sequence[Job]], float]
"""Work per second of a job on these shares, while those other jobs use the same GPUs; above 0."""

STANDSTILL: Final = 1e-9
"""The speed of a job where it cannot run: it holds its GPUs, and never ends."""


def proportional_speed(_job: Job, _shares: Sequence[Share], _partners: Sequence[Job]) -> float:
    """Neither place nor company makes a difference."""
    return 1.0


def profiled_speed(knowledge: Knowledge, nodes: Iterable[Node]) -> Speed:
    """Jobs run as fast as their profiles say; 1.0 where nothing is known."""
    by_name = {node.name: node for node in nodes}
    return lambda job, shares, partners: max(STANDSTILL, knowledge.speed(job, shares, by_name, partners))


@dataclass(frozen=True, slots=True)
class Interval:
    """One run in the accounts: the job had `gpus`, parts of one counted as such, from `start` to `end`, resources held
    while completing included.

    `kept` seconds of it did work that was not lost to an end without a checkpoint, nor spent on restarting. `rate` is
    the work done per second while it did any.
    """

    job: JobId
    start: float
    end: float
    gpus: float
    kept: float
    cpus: int = 0
    memory: int = 0
    nodes: tuple[str, ...] = ()
    rate: float = 1.0

    @property
    def gpu_seconds(self) -> float:
        return self.gpus * (self.end - self.start)


@dataclass(slots=True)
class Run:
    """The current run. `rate` is work per second; nothing is done before `productive`, when it has restarted.

    `began` is the work done before the run. Since the speed last changed, at `productive`, `done_before` had been done,
    in `worked` seconds of this run.
    """

    start: float
    rate: float
    productive: float
    began: float
    done_before: float = 0.0
    worked: float = 0.0
    paused: float | None = None
    """Since when the job is suspended."""

    def __post_init__(self) -> None:
        self.done_before = self.began

    def _since(self, now: float) -> float:
        until = now if self.paused is None else self.paused
        return max(0.0, until - self.productive)

    def done(self, now: float) -> float:
        """Work done in all, checkpointed or not."""
        return self.done_before + self.rate * self._since(now)

    def finish(self, total: float) -> float:
        """When `total` work will be done."""
        return self.productive + max(0.0, total - self.done_before) / self.rate

    def average(self, now: float) -> float:
        """Work per second of this run, of the seconds in which any was done."""
        seconds = self.worked + self._since(now)
        return (self.done(now) - self.began) / seconds if self.worked and seconds else self.rate

    def change(self, now: float, rate: float) -> None:
        """From now on it is this fast."""
        self.done_before, self.worked = self.done(now), self.worked + self._since(now)
        self.productive, self.rate = max(self.productive, now if self.paused is None else self.paused), rate

    def pause(self, now: float) -> None:
        self.paused = now

    def resume(self, now: float) -> None:
        """Goes on where it was paused; every later moment of the run shifts by the pause."""
        if self.paused is not None:
            self.productive += now - self.paused
            self.paused = None


@dataclass(slots=True)
class Work:
    """A job's work over all its runs. `saved` is what the last checkpoint holds.

    `every` is the productive time between the checkpoints the job writes of its own accord, None for a job that
    writes one only when it is signalled.
    """

    total: float
    every: float | None = None
    saved: float = 0.0
    run: Run | None = None

    def begin(self, now: float, rate: float, overhead: float) -> Run:
        """A run from the last checkpoint, `overhead` seconds of which pass before any work is done."""
        self.run = Run(now, rate, now + overhead, self.saved)
        return self.run

    def checkpoint(self, now: float) -> None:
        """What is done by now survives the end of the run."""
        if self.run is not None:
            self.saved = min(self.total, max(self.saved, self.run.done(now)))

    def complete(self) -> None:
        """All of it is done and nothing can be lost any more."""
        self.saved = self.total

    def stop(self, now: float) -> float:
        """The run ends, finished or not; what no checkpoint holds is lost. The seconds of work it kept."""
        kept, self.saved, self.run = self.kept(now), self._safe(now), None
        return kept

    def kept(self, now: float) -> float:
        """The seconds of work the current run would keep if it ended now."""
        run = self.run
        return 0.0 if run is None else max(0.0, self._safe(now) - run.began) / run.average(now)

    def _safe(self, now: float) -> float:
        """The work that would survive if the run ended now."""
        run = self.run
        if run is None or not self.every:
            return self.saved
        step = self.every * run.average(now)
        return max(self.saved, run.began + step * ((run.done(now) - run.began) // step))

    @property
    def finished(self) -> bool:
        return self.saved >= self.total
