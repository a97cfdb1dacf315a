"""Table 5's static trace: 100 one-GPU jobs that all arrive at once, on four servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.synergy.jobs import Replay, Work
from slurmsched.experiments.synergy.models import load_models
from slurmsched.experiments.synergy.reference import CPU_SECONDS, MAKESPAN_PAPER, MAKESPAN_THEIRS
from slurmsched.experiments.synergy.replay import run_replay
from slurmsched.knowledge import load_synergy_profiles
from slurmsched.knowledge.synergy import iteration_seconds
from slurmsched.policies.synergy import AUTHORS, PAPER
from slurmsched.simulation import Options, Policy, Run, World
from slurmsched.simulation.engine import simulate
from slurmsched.traces import TraceError
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.imported import Sources
from slurmsched.traces.importing import synergy_rows
from slurmsched.traces.lines import read_text
from slurmsched.traces.reading import read_trace

__all__ = ["ROUND", "hours", "makespan", "recorded", "static"]

ROUND: Final = 300
HOUR: Final = 3600.0
TENTH: Final = -0.9
"""A tolerance below which at most a tenth of the reference is as asked."""

_TWENTY_MINUTES: Final = 1200
_THEIRS: Final = "Seconds of CPU depend on the machine: theirs is the least disturbed of three runs."
_RESTART: Final = 60.0
_LIVE: Final = (
    "The daemon's own rounds on the virtual cluster: jobs keep what they have from round to round, and one that is"
    " restarted on more loses 60 s."
)
_PAPER: Final = (
    "The text's own reading: best fit on the fewest servers, packing by demand, only the excess reverted, speeds from"
    " the matrix, jobs that end when they end. Table 5's runs used none of these; its round of 20 minutes is a guess."
)


def recorded(trace: Path, profiles: Path) -> Replay:
    """A trace of that form on 4 x (8 GPU, 24 CPU, 500 GB). Raises TraceError, ProfileError."""
    models, text = load_models(profiles), read_text(trace)
    jobs: list[Work] = []
    for row in synergy_rows(text, trace.name):
        if row.model not in models:
            raise TraceError(f"{row.place}: model: expected one of {', '.join(sorted(models))}, not '{row.model}'")
        jobs.append(Work(row.id, row.arrival, row.iterations, row.gpus, models[row.model]))
    if not jobs:
        raise TraceError(f"{trace.name}: there are no jobs in it")
    return Replay(sorted(jobs, key=lambda job: job.arrival))


def makespan(run: Run) -> float:
    """Seconds from the clock's start to the last end."""
    return max(job.end or 0.0 for job in run.jobs)


def hours(seconds: float) -> float:
    return seconds / HOUR


def static(task: Task) -> Outcome:
    """FIFO makespans and the CPU seconds of each replay, as the authors' simulator has them and as the paper's text
    has them. Raises ExperimentError, TraceError, ProfileError."""
    replay = recorded(task.file("synergy", "static_100.csv"), task.file("synergy", "profiles.json"))
    return Outcome("synergy-static", tuple(_rows(replay, task)))


def _rows(replay: Replay, task: Task) -> Iterator[Row]:
    for mechanism, period in task.tracked(tuple(MAKESPAN_THEIRS), "replaying"):
        run = run_replay(replay, mechanism, "fifo", AUTHORS, period=period)
        name = f"fifo {mechanism}" + ("" if period == ROUND else f" {period} s")
        yield Row(
            f"{name} makespan",
            "h",
            hours(makespan(run)),
            MAKESPAN_PAPER.get(mechanism),
            MAKESPAN_THEIRS[mechanism, period],
            0.005,
        )
        if period == ROUND:
            theirs = CPU_SECONDS[mechanism]
            yield Row(f"{name} cpu_s", "s", run.cpu_s, None, theirs, TENTH, Bound.AT_MOST, note=_THEIRS)
    for mechanism in CPU_SECONDS:
        for period in (ROUND, _TWENTY_MINUTES):
            run = run_replay(replay, mechanism, "fifo", PAPER, period=period)
            name = f"paper: fifo {mechanism}" + ("" if period == ROUND else f" {period} s")
            published = MAKESPAN_PAPER.get(mechanism)
            yield Row(f"{name} makespan", "h", hours(makespan(run)), published, bound=Bound.STATED, note=_PAPER)
    yield from _live(task)


def _live(task: Task) -> Iterator[Row]:
    """The systems that run on real clusters, with leases that last and restarts that cost."""
    profiles = task.file("synergy", "profiles.json")
    seconds = Sources(iteration_seconds(profiles))
    trace = read_trace(task.file("synergy", "static_100.csv"), sources=seconds).trace
    world = World(load_cluster("v100:4x8:24:500G").nodes, trace, load_synergy_profiles(profiles))
    for system, published in (("proportional", "proportional"), ("synergy", "tune")):
        run = simulate(world, Policy(system, "fifo"), Options(overhead=_RESTART))
        end = hours(makespan(run))
        yield Row(f"live: {system}/fifo makespan", "h", end, MAKESPAN_PAPER[published], bound=Bound.STATED, note=_LIVE)
