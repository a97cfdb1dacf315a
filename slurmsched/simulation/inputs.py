"""The inputs of a simulation: cluster, trace, profiles, policy and options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final

from slurmsched.backends.simulated import Submission, VirtualCluster
from slurmsched.jobside.report import Report
from slurmsched.knowledge import Knowledge, load_knowledge, shipped_profiles
from slurmsched.knowledge.published import GAVEL_MODEL_NAMES, is_gavel_file, is_synergy_file, iteration_seconds
from slurmsched.model import AccountedRun, JobId, Node, SynschedError
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.policies import DEFAULT_LAS_QUEUES, EVENNESS, POLICIES, order_read, policy
from slurmsched.traces import Trace
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.formats.registry import read_trace
from slurmsched.traces.generators import generate
from slurmsched.traces.trace import ImportContext, ImportedTrace

PLAIN_SLURM: Final = "slurm"
"""The policy without rounds: Slurm's own scheduler, simulated, in priority order with EASY backfill."""

CLOCK_START: Final = 1_800_000_000.0
"""The virtual clock's start in unix seconds; times in results count from it."""


class SimulationError(SynschedError):
    """A simulation cannot run, or cannot end; the message says what to change."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, a trace, and the profiles of jobs, which policies estimate by and simulated jobs run by.

    `real` is how fast jobs run where that is not what policies know of them; policies then also see which of their
    numbers are rules of thumb. `reports` returns what jobs report of themselves at a time, in place of what copies of a
    forked job do. `submissions` are, by the trace's ids, those of jobs that are not submitted as
    `build_submission` would: without hints, say, or in a partition that is not managed. `earlier` are runs that ended
    before the clock's start, and `accounting` returns a run with what Slurm's accounting tells of its use; without it
    nobody measures any.
    """

    nodes: tuple[Node, ...]
    trace: Trace
    knowledge: Knowledge = field(default_factory=Knowledge)
    real: Knowledge | None = None
    submissions: Mapping[str, Submission] = field(default_factory=dict)
    earlier: tuple[AccountedRun, ...] = ()
    accounting: Callable[[AccountedRun], AccountedRun] | None = None
    reports: Callable[[VirtualCluster], Mapping[JobId, Report]] = VirtualCluster.reports


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy (`system`) and an order of `policies.policies`; `las_queues` are the queues' bounds in GPU-seconds, and
    `evenness` is that of `unified` where it is not that of the settings."""

    system: str
    order: str = "las"
    las_queues: tuple[float, ...] = DEFAULT_LAS_QUEUES
    evenness: float | None = None

    @property
    def name(self) -> str:
        """The name as in `parse_policy`: `synergy/fifo`, `slurm`, `unified/2`."""
        if self.evenness is not None:
            return f"{self.system}/{self.evenness:g}"
        return f"{self.system}/{self.order}" if order_read(self.system, self.order) else self.system


def parse_policy(text: str, order: str = "las", las_queues: tuple[float, ...] = DEFAULT_LAS_QUEUES) -> PolicyChoice:
    """Parses `synergy/fifo`, `synergy` for the default order, or `unified/2` with its evenness. Raises PolicyError."""
    name, _, given = text.partition("/")
    if given and name in POLICIES and POLICIES[name].reads(EVENNESS):
        with suppress(ValueError):
            if 0 <= float(given) < inf:
                return PolicyChoice(name, order, las_queues, float(given))
        raise PolicyError(f"{text}: expected a number of 0 or more after the slash, the evenness")
    if given and name in POLICIES and not POLICIES[name].takes_order:
        raise PolicyError(f"{text}: policy {name} has an order of its own: write {name} alone")
    choice = PolicyChoice(name, given or order, las_queues)
    policy(choice.system, choice.order, choice.las_queues)
    return choice


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of a simulation. Times are in seconds.

    `period`: from one round to the next. `early`: between early rounds, which follow what happens as the daemon's do; 0
    for none. `launch`: from a round until the job runs that it starts. `overhead`:
    the cost of a restart, during which a job holds its GPUs and does no work; a lease that continues costs nothing.
    `lead`: between the checkpoint signal and the requeue; the job works on, and its work is kept. `completing`: from a
    job's end until its resources are free. `quantised`: jobs end only at the end of a round. `window`: the measured
    jobs as indices in order of arrival, first and one after the last; the run ends with them. `until`: the run ends at
    this time. `failures`: failures per node and hour that it is up, and `repair` how long it stays down. `limits`:
    whether the trace's time limits end jobs. `skipping`: do not compute rounds that cannot change anything.
    `skip_impossible`: leave out jobs that could never run instead of raising.
    `exchange`: what copies of a forked job need at the end of a round to average and load their parameters; HadarE's
    paper does not say how long that takes. `forking`: whether forked jobs are; if not, each runs as one job.
    `direct`: jobs that all fit at once are started without a round, `DIRECT_START` seconds after the first of them
    came, and so are placed by Slurm's first fit; a full round that then has nothing to start is left out, as long as
    the last one was not long ago: running jobs are moved some rounds later. Large traces are much faster so, and no
    longer to the second what rounds do.
    """

    period: float = 300.0
    early: float = 0.0
    launch: float = 0.0
    overhead: float = 60.0
    lead: int = 0
    completing: float = 0.0
    quantised: bool = False
    seed: int = 1
    window: tuple[int, int] | None = None
    until: float | None = None
    failures: float = 0.0
    repair: float = 3600.0
    limits: bool = True
    skipping: bool = True
    skip_impossible: bool = False
    exchange: float = 5.0
    forking: bool = True
    direct: bool = False


DIRECT_START: Final = 3.0
"""Seconds, as `rounds.early_interval` of a site."""

GENERATED_TRACE: Final = re.compile(r"(?P<name>[a-z-]+):(?P<jobs>\d{1,7})(?:@(?P<rate>\d+(?:\.\d+)?))?\Z")
"""`synergy:400@6`: 400 jobs of that workload, 6 per hour."""

_JOBS_PER_HOUR: Final = 10.0


def profiles_or_shipped(path: str | None) -> Knowledge:
    """The profiles in a file of any supported format, or the shipped ones. Raises ProfileError."""
    return load_knowledge(path) if path else shipped_profiles()


def load_trace(source: str, *, profiles: str | None = None, form: str | None = None, seed: int = 1) -> ImportedTrace:
    """Reads a trace file, or generates a trace such as `synergy:400@6`. Raises TraceError, ProfileError.

    With Gavel's rates as `profiles`, models of `hadar` have the names that they have there.
    """
    generated = GENERATED_TRACE.match(source)
    if generated:
        jobs, rate = int(generated["jobs"]), float(generated["rate"] or _JOBS_PER_HOUR)
        trace = generate(generated["name"], jobs, seed, rate)
        if generated["name"] == "hadar" and profiles and is_gavel_file(profiles):
            trace = trace.with_models(GAVEL_MODEL_NAMES)
        return ImportedTrace(trace)
    seconds = iteration_seconds(profiles) if profiles and is_synergy_file(profiles) else {}
    return read_trace(source, form, ImportContext(seconds))


def load_scenario(cluster: str, trace: Trace, profiles: str | None) -> Scenario:
    """Loads the cluster and the profiles for a trace. Raises TraceError, ProfileError."""
    return Scenario(load_cluster(cluster).nodes, trace, profiles_or_shipped(profiles))
