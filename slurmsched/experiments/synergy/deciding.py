"""One round of a replay: who runs, and how fast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from slurmsched.experiments.synergy.jobs import Replay, Work, ask, speedup
from slurmsched.policies.synergy import (
    Ask,
    Grant,
    Kind,
    Pooled,
    Reading,
    Servers,
    greedy,
    proportional,
    tune,
)

__all__ = ["MECHANISMS", "Deciding", "Pace"]

Mechanism = Callable[[Sequence[Ask], Servers, Reading], list[Grant]]


class Deciding(Protocol):
    """A mechanism over the jobs of one replay."""

    def decide(self, chosen: Sequence[int]) -> Mapping[int, Pace]:
        """How fast each of these jobs runs this round, for those that do. `chosen` are places in the replay's jobs."""

    def hope(self, place: int) -> float:
        """The speed-up by which the order reckons what is left of a job that does not run."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`rate` is the speed this round, relative to the proportional share; `hoped` the one by which the order reckons
    what is left (the authors' SRTF and FTF)."""

    rate: float
    hoped: float


class Placing:
    """Proportional, Greedy or Tune."""

    def __init__(self, mechanism: Mechanism, replay: Replay, reading: Reading) -> None:
        self._mechanism, self._replay, self._reading = mechanism, replay, reading
        self._asks = [ask(place, job, replay) for place, job in enumerate(replay.jobs)]
        self._speedups = [speedup(job, self._asks[place], replay) for place, job in enumerate(replay.jobs)]

    def grants(self, chosen: Sequence[int]) -> list[Grant]:
        """Who runs where with what."""
        replay = self._replay
        servers = Servers.equal(replay.servers, replay.gpus, replay.cpus, replay.memory)
        return self._mechanism([self._asks[place] for place in chosen], servers, self._reading)

    def decide(self, chosen: Sequence[int]) -> Mapping[int, Pace]:
        pace = self._by_matrix if self._reading.reads_matrix else self._by_speedup
        return {grant.ask.job: pace(grant) for grant in self.grants(chosen)}

    def hope(self, place: int) -> float:
        hopeless = self._reading.reads_matrix or self._mechanism is proportional
        return 1.0 if hopeless else self._speedups[place]

    def _by_matrix(self, grant: Grant) -> Pace:
        matrix = self._replay.jobs[grant.ask.job].model.matrix
        return Pace(matrix.at(*grant.each) / matrix.at(*grant.ask.fair), 1.0)

    def _by_speedup(self, grant: Grant) -> Pace:
        full = self._speedups[grant.ask.job]
        return Pace(1.0 if grant.reverted or grant.replaced else full, 1.0 if grant.reverted else full)


class Ideal:
    """Opt: the pooled integer program. Its answer is not placed on servers: it is the bound that the others are held
    against (section 4.1.3)."""

    def __init__(self, replay: Replay, reading: Reading) -> None:
        self._replay, self._reading = replay, reading
        self._pool = Pooled(replay.servers * replay.cpus, replay.servers * replay.memory)
        self._speedups = [speedup(job, ask(place, job, replay), replay) for place, job in enumerate(replay.jobs)]

    def decide(self, chosen: Sequence[int]) -> Mapping[int, Pace]:
        alike: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for place in chosen:
            job = self._replay.jobs[place]
            alike[job.model.name, job.gpus].append(place)
        kinds = [self._kind(self._replay.jobs[places[0]], len(places)) for places in alike.values()]
        paces: dict[int, Pace] = {}
        for places, kind, counts in zip(alike.values(), kinds, self._pool.most_throughput(kinds), strict=True):
            # The first in the policy's order get the fastest points.
            fastest = sorted(range(len(counts)), key=lambda point: -kind.speed[point])
            speeds = [kind.speed[point] for point in fastest for _ in range(counts[point])]
            for place, speed in zip(places, speeds, strict=True):
                paces[place] = Pace(speed / kind.fair, self.hope(place))
        return paces

    def hope(self, place: int) -> float:
        return 1.0 if self._reading.reads_matrix else self._speedups[place]

    def _kind(self, job: Work, count: int) -> Kind:
        matrix = job.model.matrix
        points = [
            (cpus, memory, speed)
            for cpus, row in zip(matrix.cpus, matrix.speed, strict=True)
            for memory, speed in zip(matrix.memory, row, strict=True)
        ]
        return Kind(
            count,
            tuple(job.gpus * cpus for cpus, _, _ in points),
            tuple(job.gpus * memory for _, memory, _ in points),
            tuple(speed for _, _, speed in points),
            matrix.at(*self._replay.fair),
        )


MECHANISMS: Final[Mapping[str, Callable[[Replay, Reading], Deciding]]] = {
    "proportional": lambda replay, reading: Placing(proportional, replay, reading),
    "greedy": lambda replay, reading: Placing(greedy, replay, reading),
    "tune": lambda replay, reading: Placing(tune, replay, reading),
    "opt": Ideal,
}
"""Synergy's mechanisms and the baseline, by name."""
