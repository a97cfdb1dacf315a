"""How a simulated job gets on: work, speed, checkpoints and what a restart costs.

Work is counted in seconds at the GPU-proportional share. A run has one speed, since an allocation never changes while
it lasts, so the moment a job finishes is exact and lies where it falls between rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, Node, Share

__all__ = ["Interval", "Run", "Speed", "Work", "profiled_speed", "proportional_speed"]

Speed = Callable[[Job, Sequence[Share]], float]
"""How fast a job runs on these shares, relative to its GPU-proportional share there; above 0."""


def proportional_speed(_job: Job, _shares: Sequence[Share]) -> float:
    """CPUs and memory make no difference."""
    return 1.0


def profiled_speed(knowledge: Knowledge, nodes: Iterable[Node]) -> Speed:
    """Jobs run as fast as their profiles say; 1.0 where nothing is known."""
    by_name = {node.name: node for node in nodes}
    return lambda job, shares: knowledge.relative_speed(job, shares, by_name)


@dataclass(frozen=True, slots=True)
class Interval:
    """One run in the accounts: the job had `gpus` from `start` to `end`, resources held while completing included.

    `kept` seconds of it did work that was not lost to an end without a checkpoint, nor spent on restarting. `rate` is
    the work done per second while it did any.
    """

    job: JobId
    start: float
    end: float
    gpus: int
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
    """The current run. `rate` is work per second; nothing is done before `productive`, when it has restarted."""

    start: float
    rate: float
    productive: float
    done_before: float
    paused: float | None = None
    """Since when the job is suspended."""

    def done(self, now: float) -> float:
        """Work done in all, checkpointed or not."""
        until = now if self.paused is None else self.paused
        return self.done_before + self.rate * max(0.0, until - self.productive)

    def finish(self, total: float) -> float:
        """When `total` work will be done."""
        return self.productive + max(0.0, total - self.done_before) / self.rate

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
        kept, run, self.run = self.kept(now), self.run, None
        if run is not None:
            self.saved = max(self.saved, run.done_before + kept * run.rate)
        return kept

    def kept(self, now: float) -> float:
        """The seconds of work the current run would keep if it ended now."""
        run = self.run
        if run is None:
            return 0.0
        saved = self.saved
        if self.every:
            step = self.every * run.rate
            saved = max(saved, run.done_before + step * ((run.done(now) - run.done_before) // step))
        return max(0.0, saved - run.done_before) / run.rate

    @property
    def finished(self) -> bool:
        return self.saved >= self.total
