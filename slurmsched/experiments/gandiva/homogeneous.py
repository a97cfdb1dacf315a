"""Fair shares on one kind of GPU (slide 14): 48 P100, 70 users with one job each, of 1, 2, 4 or 8 GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.gandiva.plain import plain_utilisation
from slurmsched.experiments.gandiva.slicing import SLURM, SUSPENDED, Slicing, had_by_user, sliced
from slurmsched.model.wording import counted
from slurmsched.policies.gandiva_fair import Strider
from slurmsched.simulation import World
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generating.drawing import PHILLY_WIDTHS, drawn, stream

__all__ = ["homogeneous"]

USERS: Final = 70
SERVERS, EACH = 6, 8
HOUR, DAY = 3600.0, 86400.0
NEAR: Final = 0.05
"""A user within this part of the fair share has it."""

_ENDLESS: Final = 1e7
_WIDTHS: Final = (
    "The talk says that each user is close to the fair share, in a plot. Widths are drawn as Gavel and Synergy have"
    " them after the Philly trace; slices of a minute, as Gandiva suspends and resumes."
)
_REQUEUES: Final = "The same jobs over a day in slices of 20 minutes, each of which ends with a requeue and costs 60 s."


def homogeneous(task: Task) -> Outcome:
    """A row for each seed, and for the widths of the first."""
    rows = [row for seed in task.tracked(task.seeds, "slicing") for row in _rows(seed, first=seed == task.seeds[0])]
    return Outcome("gandiva-homogeneous", tuple(rows))


def _rows(seed: int, *, first: bool) -> Iterator[Row]:
    widths = drawn(PHILLY_WIDTHS, USERS, stream(seed, "widths"))
    shares, used = _measured(widths, SUSPENDED, HOUR)
    near = float(np.mean([abs(share - 1) <= NEAR for share in shares.values()]))
    yield Row(
        f"seed {seed}: users within 5 % of the fair share", "part", near, 0.95, None, 0.0, Bound.AT_LEAST, note=_WIDTHS
    )
    queue = [Strider(user, 1.0, width) for user, width in zip(shares, widths, strict=True)]
    plain = plain_utilisation(queue, SERVERS, EACH, round(HOUR / SUSPENDED.quantum))
    yield Row(f"seed {seed}: utilisation over plain stride", "part", used, None, plain, 0.0, Bound.AT_LEAST)
    if not first:
        return
    for width in sorted(set(widths)):
        own = [share for share, its in zip(shares.values(), widths, strict=True) if its == width]
        yield Row(
            f"share of users with {counted(width, 'GPU')}", "x", float(np.mean(own)), 1.0, None, NEAR, Bound.EQUAL
        )
    shares, used = _measured(widths, SLURM, DAY)
    near = float(np.mean([abs(share - 1) <= NEAR for share in shares.values()]))
    yield Row("requeues: users within 5 % of the fair share", "part", near, bound=Bound.STATED, note=_REQUEUES)
    yield Row("requeues: utilisation", "part", used, bound=Bound.STATED, note=_REQUEUES)


def _measured(widths: Sequence[int], slicing: Slicing, until: float) -> tuple[Mapping[str, float], float]:
    """What each user had of an even part, and what part of all GPU time was used."""
    jobs = tuple(
        TraceJob(str(number), 0.0, width, _ENDLESS, user=f"user{number:02}") for number, width in enumerate(widths, 1)
    )
    world = World(load_cluster(f"p100:{SERVERS}x{EACH}").nodes, Trace("one job for each user", jobs))
    had = {
        user: sum(kinds.values()) for user, kinds in had_by_user(sliced(world, slicing, until), slicing.restart).items()
    }
    whole = SERVERS * EACH * until
    return {job.user: had.get(job.user, 0.0) * USERS / whole for job in jobs}, sum(had.values()) / whole
