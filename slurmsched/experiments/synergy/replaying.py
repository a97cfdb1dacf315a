"""Any trace of the form that Synergy's simulator replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from slurmsched.experiments.experiment import Bound, ExperimentError, Outcome, Row, Task
from slurmsched.experiments.synergy.deciding import MECHANISMS
from slurmsched.experiments.synergy.orders import ORDERS
from slurmsched.experiments.synergy.replay import run_replay
from slurmsched.experiments.synergy.static import ROUND, hours, makespan, recorded
from slurmsched.policies.synergy import AUTHORS, PAPER, Reading
from slurmsched.simulation import Run

__all__ = ["replaying"]


def replaying(task: Task) -> Outcome:
    """`trace` in `order` by every mechanism, on 4 x (8 GPU, 24 CPU, 500 GB). The plain rows are what the authors'
    simulator gives, job for job; those with `paper:` the text's own reading.

    Raises ExperimentError, TraceError, ProfileError.
    """
    trace, order = task.options.get("trace"), task.options.get("order", "fifo")
    if trace is None:
        raise ExperimentError("synergy-replay needs --trace FILE with job_id,model,arrival_s,iterations,num_gpus")
    if order not in ORDERS:
        raise ExperimentError(f"there is no order '{order}': known are {', '.join(ORDERS)}")
    profiles = task.options.get("profiles")
    replay = recorded(Path(trace), Path(profiles) if profiles else task.file("synergy", "profiles.json"))
    period = _seconds(task.options.get("round", str(ROUND)))
    rows: list[Row] = []
    for label, reading in (("", AUTHORS), ("paper: ", PAPER)):
        for mechanism in task.tracked(tuple(MECHANISMS), "replaying"):
            run = run_replay(replay, mechanism, order, reading, period=period)
            rows += _rows(f"{label}{order} {mechanism}", run, reading)
    return Outcome("synergy-replay", tuple(rows))


def _seconds(said: str) -> float:
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 1e6:  # noqa: PLR2004  # a second to eleven days
        raise ExperimentError(f"--round {said}: write the seconds of a round, as in 300")
    return seconds


def _rows(name: str, run: Run, reading: Reading) -> Iterator[Row]:
    times = np.array([job.jct for job in run.jobs])
    figures = {
        "makespan": makespan(run),
        "avg_jct": float(np.mean(times)),
        "median_jct": float(np.median(times)),
        "p99_jct": float(np.percentile(times, 99)),
    }
    for figure, seconds in figures.items():
        yield Row(f"{name} {figure}", "h", hours(seconds), bound=Bound.STATED)
    yield Row(f"{name} rounds", "rounds", run.rounds, bound=Bound.STATED)
    if reading is AUTHORS:
        yield Row(f"{name} cpu_s", "s", run.cpu_s, bound=Bound.STATED)
