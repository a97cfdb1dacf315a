"""What is compared, as a value: it can be written down, sent to another machine, and taken up again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slurmsched.knowledge import Knowledge
from slurmsched.model import Node
from slurmsched.simulation import Options, Policy, SimulationError
from slurmsched.traces import Trace

__all__ = ["Cell", "Sweep", "loaded", "sweep"]

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation: a policy over one of the sweep's traces. `load` is in jobs per hour, where loads are compared."""

    policy: Policy
    trace: int
    options: Options
    load: float | None = None

    @property
    def name(self) -> str:
        """`synergy/srtf at 9/h, seed 1`."""
        at = "" if self.load is None else f" at {self.load:g}/h"
        return f"{self.policy.name}{at}, seed {self.options.seed}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that the cells need. The first policy is the one that the others are held against."""

    nodes: tuple[Node, ...]
    knowledge: Knowledge
    traces: tuple[Trace, ...]
    cells: tuple[Cell, ...]
    cluster: str = ""
    command: str = ""


def sweep(
    nodes: Sequence[Node],
    knowledge: Knowledge,
    policies: Sequence[Policy],
    trace_of: Callable[[int, float | None], Trace],
    options: Options,
    *,
    seeds: Sequence[int] = (1,),
    loads: Sequence[float | None] = (None,),
    cluster: str = "",
    command: str = "",
) -> Sweep:
    """The product of policies, loads and seeds; `trace_of` gives the trace of a seed and a load, so that all policies
    get the same."""
    traces: list[Trace] = []
    cells: list[Cell] = []
    for load in loads:
        for seed in seeds:
            traces.append(trace_of(seed, load))
            own = replace(options, seed=seed)
            cells += (Cell(policy, len(traces) - 1, own, load) for policy in policies)
    return Sweep(tuple(nodes), knowledge, tuple(traces), tuple(cells), cluster, command)


def loaded(trace: Trace, load: float | None) -> Trace:
    """The trace with its arrivals drawn together, or apart, to so many jobs per hour. Raises SimulationError."""
    if load is None:
        return trace
    span = trace.jobs[-1].arrival - trace.jobs[0].arrival
    if not span:
        raise SimulationError(f"{trace.name}: all its jobs arrive at once, so it has no load to change")
    factor = (len(trace.jobs) - 1) / load * HOUR / span
    jobs = tuple(replace(job, arrival=round(job.arrival * factor, 3)) for job in trace.jobs)
    return replace(trace, jobs=jobs, source=f"{trace.source}, at {load:g} jobs/h")
