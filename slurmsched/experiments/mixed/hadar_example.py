"""Hadar's example of three jobs on 2 V100, 3 P100 and 1 K80 (section II-A, figure 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.mixed.figures import Replayed
from slurmsched.experiments.mixed.hadar import HadarRounds
from slurmsched.experiments.mixed.replay import replay
from slurmsched.experiments.mixed.rounds import Grant, Question, RoundPolicy
from slurmsched.experiments.mixed.work import Work
from slurmsched.experiments.mixed.workers import Workers
from slurmsched.policies.hadar import Hadar, timely

__all__ = ["example", "fewest_rounds", "slowest_decides", "tasks_add_up"]

ROUND: Final = 360.0
CLUSTER: Final = {"v100": 2, "p100": 3, "k80": 1}
EPOCHS: Final[Mapping[str, tuple[int, int, tuple[int, int, int]]]] = {
    "J1": (3, 80, (40, 20, 30)),
    "J2": (2, 30, (5, 15, 5)),
    "J3": (2, 50, (10, 2, 20)),
}
"""GPUs, epochs to do, and epochs in a round on each type."""

Y_GAVEL: Final[Mapping[str, tuple[float, float, float]]] = {
    "J1": (0.6, 0.4, 0.0),
    "J2": (0.2, 0.6, 0.2),
    "J3": (0.2, 0.0, 0.8),
}
"""Gavel's allocation as the paper has it: parts of time on each type."""

_SHARES: Final = "Epochs counted whole: GPUs granted over all GPUs of all rounds, as figure 1 counts."
_GANGS: Final = (
    "Five rounds cannot be had under the paper's own constraints: gangs of 3, 2 and 2 keep at most 5 of 6 GPUs busy,"
    " and while J3 runs in all five at 10 epochs, J1 needs four of them and J2 two. They can be had if the tasks of a"
    " mixed gang add up, against equation 1b; 87 % busy cannot be had with gangs in any way."
)

Pace = Callable[[Sequence[int], tuple[int, int, int]], float]
"""Epochs a gang does in a round, given its GPUs of each type and the epochs of a whole gang on each."""


@dataclass(slots=True)
class _ByPriority:
    """Gavel's rounds as the paper tells them: Y over the rounds received, whole gangs on one type."""

    name: str = "gavel"
    _rounds: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def decide(self, question: Question) -> Sequence[Grant]:
        types = tuple(question.workers.gpus)
        free = {kind: list(workers) for kind, workers in question.workers.of_type.items()}
        grants: dict[str, Grant] = {}
        for job, kind in sorted(product(question.jobs, range(len(types))), key=lambda pair: -self._priority(*pair)):
            width, left = question.jobs[job].work.width, free[types[kind]]
            if job not in grants and self._priority(job, kind) > 0 and len(left) >= width:
                grants[job] = Grant((job,), tuple(left[:width]))
                del left[:width]
                self._rounds[job, kind] += 1
        return [*grants.values()]

    def _priority(self, job: str, kind: int) -> float:
        received = self._rounds.get((job, kind), 0)
        return Y_GAVEL[job][kind] / received if received else Y_GAVEL[job][kind] * 1e9


def example(_task: Task) -> Outcome:
    """Raises ReplayError."""
    gavel, ours = _run(_ByPriority()), _run(HadarRounds(Hadar(valuing=timely, restart=0.0)))
    fewest, added = fewest_rounds(slowest_decides), fewest_rounds(tasks_add_up)
    return Outcome(
        "hadar-example",
        (
            Row("Gavel: rounds", "", len(gavel.rounds), 6.0, tolerance=0.0),
            Row("Gavel: utilisation", "", _granted(gavel), 0.78, tolerance=0.01, note=_SHARES),
            Row("Hadar: rounds", "", len(ours.rounds), 5.0, float(fewest), tolerance=0.0, note=_GANGS),
            Row("Hadar: utilisation", "", _granted(ours), 0.87, bound=Bound.STATED, note=_GANGS),
            Row("fewest rounds of whole gangs", "", fewest, 5.0, bound=Bound.STATED, note=_GANGS),
            Row("fewest rounds if tasks add up", "", added, 5.0, bound=Bound.STATED, note=_GANGS),
        ),
    )


def _run(policy: RoundPolicy) -> Replayed:
    """An epoch is a round's seconds of steps, so that every rate is a whole number."""
    work = [
        Work(job, width, round(epochs * ROUND), dict(zip(CLUSTER, map(float, pace), strict=True)))
        for job, (width, epochs, pace) in EPOCHS.items()
    ]
    return replay(work, Workers.of(CLUSTER), policy, period=ROUND)


def _granted(run: Replayed) -> float:
    held = sum(sum(record.granted.values()) for record in run.rounds)
    return held / (len(run.rounds) * sum(run.gpus.values()))


def slowest_decides(gpus: Sequence[int], pace: tuple[int, int, int]) -> float:
    """Equation 1b."""
    return min(own for count, own in zip(gpus, pace, strict=True) if count)


def tasks_add_up(gpus: Sequence[int], pace: tuple[int, int, int]) -> float:
    """As if no task waited for another."""
    return sum(count * own for count, own in zip(gpus, pace, strict=True)) / sum(gpus)


def fewest_rounds(pace: Pace) -> int:
    """Rounds that the best of all schedules needs, found by trying them all. Gangs may change place every round."""
    ways, waiting, rounds = tuple(_ways(pace)), {tuple(float(epochs) for _, epochs, _ in EPOCHS.values())}, 0
    while not any(max(left) <= 0 for left in waiting):
        rounds += 1
        reached = {
            tuple(max(0.0, had - did) for had, did in zip(left, way, strict=True)) for left in waiting for way in ways
        }
        waiting = {left for left in reached if not any(_better(other, left) for other in reached)}
    return rounds


def _better(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _ways(pace: Pace) -> Iterator[tuple[float, ...]]:
    """What each job does in a round, for all ways of sharing out the GPUs."""
    rooms = tuple(CLUSTER.values())
    places = [
        [None, *(gpus for gpus in product(*(range(room + 1) for room in rooms)) if sum(gpus) == width)]
        for width, _, _ in EPOCHS.values()
    ]
    for chosen in product(*places):
        taken = [sum(gpus[kind] for gpus in chosen if gpus) for kind in range(len(rooms))]
        if all(used <= room for used, room in zip(taken, rooms, strict=True)):
            paces = (own for _, _, own in EPOCHS.values())
            yield tuple(pace(gpus, own) if gpus else 0.0 for gpus, own in zip(chosen, paces, strict=True))
