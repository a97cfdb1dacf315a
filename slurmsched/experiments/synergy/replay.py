"""Rounds over a list of jobs, placed anew each time: no lease is kept and no restart costs anything.

Exact and fast: a round that has the same jobs to place in the same order as the one before has the same outcome, so it
is not computed again; in arrival order a whole stretch of such rounds is taken at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Final

from slurmsched.experiments.experiment import ExperimentError
from slurmsched.experiments.synergy.deciding import MECHANISMS, Deciding, Pace
from slurmsched.experiments.synergy.jobs import Replay
from slurmsched.experiments.synergy.orders import ORDERS, Progress
from slurmsched.policies.synergy import Reading
from slurmsched.simulation import Ran, Run

__all__ = ["run_replay"]

_PATIENCE: Final = 1000 * 3600.0
"""Seconds without running after which a job goes before all others (the authors' guard against starvation)."""

_STATIC: Final = 1.0
"""Jobs that all arrive within the first second are there from the start: rounds begin at this second."""

_ROUNDING: Final = 1e-9


def run_replay(
    replay: Replay,
    mechanism: str,
    order: str,
    reading: Reading,
    *,
    period: float = 300.0,
    window: tuple[int, int] | None = None,
) -> Run:
    """Run until every job, or every one in the `window` of places, has ended. Rounds are `period` seconds apart.

    Raises ExperimentError for an unknown mechanism or order, and for a job that no server can ever hold.
    """
    for kind, name, known in (("mechanism", mechanism, MECHANISMS), ("order", order, ORDERS)):
        if name not in known:
            raise ExperimentError(f"there is no {kind} '{name}': known are {', '.join(known)}")
    wide = next((job for job in replay.jobs if job.gpus > replay.servers * replay.gpus), None)
    if wide is not None:
        raise ExperimentError(f"job {wide.id} asks for {wide.gpus} GPUs, and there are {replay.servers * replay.gpus}")
    began, cpu = time.perf_counter(), time.process_time()
    replaying = _Replaying(replay, mechanism, order, reading, period)
    replaying.run(*(window or (0, len(replay.jobs))))
    return Run(
        policy=mechanism,
        order=order,
        trace="replay",
        seed=0,
        jobs=tuple(
            Ran(
                job=str(job.id),
                arrival=job.arrival,
                work=job.iterations * job.model.seconds,
                gpus=job.gpus,
                model=job.model.name,
                end=end,
                state="UNFINISHED" if end is None else "COMPLETED",
            )
            for job, end in zip(replay.jobs, replaying.ends, strict=True)
        ),
        samples=(),
        total_gpus=replay.servers * replay.gpus,
        total_cpus=replay.servers * replay.cpus,
        total_memory=replay.servers * replay.memory * 1024,
        rounds=replaying.rounds,
        decisions=tuple(replaying.decisions),
        wall_s=time.perf_counter() - began,
        cpu_s=time.process_time() - cpu,
        window=window,
    )


class _Replaying:
    """The state between two rounds. Jobs go by their place in the replay."""

    def __init__(self, replay: Replay, mechanism: str, order: str, reading: Reading, period: float) -> None:
        self.replay, self.reading, self.period = replay, reading, period
        self.key, self.timeless = ORDERS[order], order == "fifo"
        self.skips_the_hungry = mechanism == "greedy" and order != "las"
        self.widest_first = mechanism == "tune" and order == "las" and not reading.sorts_by_demand
        self.deciding: Deciding = MECHANISMS[mechanism](replay, reading)
        self.progress = [Progress(job, hoped=self.deciding.hope(place)) for place, job in enumerate(replay.jobs)]
        self.ends: list[float | None] = [None] * len(replay.jobs)
        self.runnable: list[int] = []
        self.paces: Mapping[int, Pace] = {}
        self.coming = 0
        self.rounds = 0
        self.decisions: list[float] = []

    def run(self, first: int, beyond: int) -> None:
        """Until the jobs from `first` up to `beyond` have ended."""
        asked: list[int] = []
        now = self._first_round()
        while any(end is None for end in self.ends[first:beyond]):
            self._arrive(now)
            if not self.runnable:
                now = self._boundary(self.replay.jobs[self.coming].arrival, now)
                continue
            self.runnable.sort(key=lambda place: self.key(self.progress[place], now))
            chosen = self._chosen()
            if chosen != asked:
                self._decide(chosen)
                asked = chosen
            self._age(now)
            count = self._alike(now)
            self._work(now, count)
            self.rounds += count
            now += count * self.period

    def _first_round(self) -> float:
        arrivals = [job.arrival for job in self.replay.jobs]
        if not self.reading.whole_iterations:
            return arrivals[0]
        return _STATIC if arrivals[-1] < _STATIC else self.period * ceil(arrivals[0] / self.period)

    def _boundary(self, arrival: float, now: float) -> float:
        """The first round that sees an arrival, when nobody is there before."""
        return now + self.period * max(1, ceil((arrival - now) / self.period))

    def _arrive(self, now: float) -> None:
        jobs = self.replay.jobs
        while self.coming < len(jobs) and jobs[self.coming].arrival <= now:
            self.runnable.append(self.coming)
            self.coming += 1

    def _chosen(self) -> list[int]:
        """Who is to be placed: everybody in order whose GPUs can be had (section 4.2), CPUs and memory aside. Greedy
        goes through all, since it passes over jobs for other reasons than GPUs."""
        if self.skips_the_hungry:
            return list(self.runnable)
        free, chosen = self.replay.servers * self.replay.gpus, list[int]()
        for place in self.runnable:
            gpus = self.replay.jobs[place].gpus
            if gpus <= free:
                chosen.append(place)
                free -= gpus
                if not free:
                    break
        if self.widest_first:
            chosen.sort(key=lambda place: -self.replay.jobs[place].gpus)
        return chosen

    def _decide(self, chosen: Sequence[int]) -> None:
        began = time.perf_counter()
        for place in self.paces:
            self.progress[place].hoped = self.deciding.hope(place)
        self.paces = self.deciding.decide(chosen)
        for place, pace in self.paces.items():
            self.progress[place].hoped = pace.hoped
        self.decisions.append(time.perf_counter() - began)

    def _age(self, now: float) -> None:
        if self.timeless or now - self.replay.jobs[0].arrival <= _PATIENCE:
            return
        for place in self.runnable:
            progress = self.progress[place]
            since = progress.job.arrival if progress.last_run < 0 else progress.last_run
            progress.aged = progress.aged or now - since > _PATIENCE

    def _each_round(self, place: int) -> float:
        """Iterations a running job does in a round."""
        seconds = self.replay.jobs[place].model.seconds / self.paces[place].rate
        return floor(self.period / seconds) if self.reading.whole_iterations else self.period / seconds

    def _alike(self, now: float) -> int:
        """Rounds, this one included, that are the same as this one: in arrival order all until somebody ends or
        comes."""
        if not self.timeless:
            return 1
        steps = [(self.progress[place], self._each_round(place)) for place in self.paces]
        rounds = [ceil((p.job.iterations - p.done) / each - _ROUNDING) for p, each in steps if each]
        if self.coming < len(self.replay.jobs):
            rounds.append(ceil((self.replay.jobs[self.coming].arrival - now) / self.period))
        if not rounds:
            stuck = self.replay.jobs[next(iter(self.paces))]
            raise ExperimentError(f"job {stuck.id} never ends: one of its iterations is longer than a round")
        return max(1, min(rounds))

    def _work(self, now: float, count: int) -> None:
        for place, pace in self.paces.items():
            progress, each = self.progress[place], self._each_round(place)
            before, total = progress.done, progress.job.iterations
            progress.done = min(total, before + count * each)
            progress.service += count * self.period
            progress.last_run = now + count * self.period
            if progress.done < total - _ROUNDING:
                continue
            self.ends[place] = progress.last_run
            if not self.reading.whole_iterations:
                self.ends[place] = now + (total - before) * progress.job.model.seconds / pace.rate
            self.runnable.remove(place)
