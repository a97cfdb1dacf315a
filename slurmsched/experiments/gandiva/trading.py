"""What trading brings where GPUs differ (slide 15): 12 V100, 24 P100 and 64 or 128 K80, four users with many jobs of 1,
2 or 4 GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.gandiva.slicing import SUSPENDED, had_by_user, sliced
from slurmsched.knowledge import sample_speedups
from slurmsched.simulation import World
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generating.drawing import drawn, stream

__all__ = ["trading"]

MODELS: Final = ("vae", "superresolution", "resnext50", "dcgan")
"""One for each user, by speed-up from K80 to V100: 1.25, 1.87, 6.33 and 6.42 (slide 11)."""

LOW: Final = ("user1", "user2")
WIDTHS: Final[Mapping[int, float]] = {1: 0.5, 2: 0.3, 4: 0.2}
JOBS: Final = 150
SLOW: Final = (64, 128)
HOURS: Final = 2.0

_GAIN: Final = 0.30
_ABOUT: Final = 0.30
_NOISE: Final = 0.02
_ENDLESS: Final = 1e8
_SETUP: Final = (
    "The talk names neither the users' models nor how many jobs they had, and says 100 GPUs where it counts 164: both"
    " are measured. A gain is the aggregate mini-batch rate with trading over that without."
)
_GAINS: Final = (
    "The talk has two users gain about 30 %. At the second price all that the one buyer has of the slow GPUs goes to"
    " the sellers, and that bounds what they gain."
)


def trading(task: Task) -> Outcome:
    """The gain of every user, for either number of slow GPUs."""
    counts = SLOW[-1:] if task.quick else SLOW
    return Outcome(
        "gandiva-trading",
        tuple(row for slow in task.tracked(counts, "trading") for row in _rows(slow, task.seeds[0], quick=task.quick)),
    )


def _rows(slow: int, seed: int, *, quick: bool) -> Iterator[Row]:
    hours = HOURS / 2 if quick else HOURS
    without = _rates(slow, seed, hours, trades=False)
    traded = _rates(slow, seed, hours, trades=True)
    gains = {user: traded[user] / without[user] - 1 for user in without}
    for (user, gain), model in zip(gains.items(), MODELS, strict=True):
        yield Row(f"{slow} slow: gain of {user}, {model}", "part", gain, bound=Bound.STATED, note=_SETUP)
    low, held = sum(gains[user] for user in LOW) / len(LOW), Bound.EQUAL if slow == SLOW[-1] else Bound.STATED
    yield Row(f"{slow} slow: mean gain of the low speed-ups", "part", low, _GAIN, None, _ABOUT, held, note=_GAINS)
    worst = 1 + min(gains.values())
    yield Row(f"{slow} slow: the worst user's rate, traded over not", "x", worst, 1.0, None, _NOISE, Bound.AT_LEAST)
    whole = sum(traded.values()) / sum(without.values())
    yield Row(f"{slow} slow: whole cluster in K80s, traded over not", "x", whole, 1.0, None, 0.0, Bound.AT_LEAST)


def _rates(slow: int, seed: int, hours: float, *, trades: bool) -> Mapping[str, float]:
    """Each user's aggregate rate, in K80s."""
    random, jobs = stream(seed, "widths"), list[TraceJob]()
    for number, model in enumerate(MODELS, 1):
        widths = drawn(WIDTHS, JOBS, random)
        jobs += (
            TraceJob(f"{number}-{place}", 0.0, width, _ENDLESS, model=model, user=f"user{number}")
            for place, width in enumerate(widths)
        )
    known = sample_speedups()
    world = World(load_cluster(f"v100:3x4,p100:6x4,k80:{slow // 4}x4").nodes, Trace("four users", tuple(jobs)), known)
    had = had_by_user(sliced(world, SUSPENDED, hours * 3600, trading=trades), SUSPENDED.restart)
    found: dict[str, float] = {}
    for number, model in enumerate(MODELS, 1):
        scaling, user = known.models[model].scaling, f"user{number}"
        slowest = scaling["k80"].at(1)
        found[user] = sum(gpus * scaling[kind].at(1) / slowest for kind, gpus in had[user].items()) / (hours * 3600)
    return found
