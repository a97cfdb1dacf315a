"""Time slices as the authors have them, and as Slurm has them, in the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.settings.definition import Checkpoint, Guards, Rounds, Settings, Tickets
from slurmsched.simulation import Options, Policy, Run, World
from slurmsched.simulation.engine import simulate

__all__ = ["SLURM", "SUSPENDED", "Slicing", "had_by_user", "sliced"]


@dataclass(frozen=True, slots=True)
class Slicing:
    """`quantum` is a slice, and the time between two rounds; `restart` what going on costs. Seconds."""

    quantum: float
    restart: float


SUSPENDED: Final = Slicing(60.0, 0.0)
"""Gandiva's own primitive: jobs are suspended and resumed every minute, at next to no cost."""

SLURM: Final = Slicing(1200.0, 60.0)
"""Slurm's: a checkpoint, a requeue, a minute to start again."""


def sliced(world: World, slicing: Slicing, until: float, *, trading: bool = True, migrations: int = 32) -> Run:
    """The daemon's own rounds up to that moment. No guard stands against the slices: they are what is measured."""
    unguarded = 10**9
    settings = Settings(
        rounds=Rounds(settle_interval=0.1),
        guards=Guards(
            min_run_time=0.0,
            moves_per_round=unguarded,
            moves_per_job_day=unguarded,
            restart_cost=slicing.restart,
        ),
        checkpoint=Checkpoint(lead=0.0),
        tickets=Tickets(quantum=slicing.quantum, wide_quantum=slicing.quantum, trading=trading, migrations=migrations),
    )
    options = Options(period=slicing.quantum, overhead=slicing.restart, until=until)
    return simulate(world, Policy("gandiva-fair"), options, settings)


def had_by_user(run: Run, restart: float) -> Mapping[str, Mapping[str, float]]:
    """GPU-seconds in which jobs made progress, by user and type of GPU."""
    found = defaultdict[str, dict[str, float]](dict)
    for job in run.jobs:
        working = 1 - job.restarts * restart * job.gpus / job.service if job.service else 0.0
        for kind, had in job.by_type.items():
            found[job.user][kind] = found[job.user].get(kind, 0.0) + had * working
    return found
