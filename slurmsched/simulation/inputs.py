"""What a simulation is given: a cluster, a trace, profiles, a policy and options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from slurmsched.knowledge import Knowledge, load_knowledge, shipped_profiles
from slurmsched.knowledge.published import is_synergy_file, iteration_seconds
from slurmsched.model import Node, SynschedError
from slurmsched.policies.policies import DEFAULT_LAS_QUEUES, policy, takes_order
from slurmsched.traces import Trace
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.formats.registry import read_trace
from slurmsched.traces.generators import generate
from slurmsched.traces.trace import ImportContext, ImportedTrace

PLAIN_SLURM: Final = "slurm"
"""The policy under which there are no rounds: Slurm's own scheduler, simulated, priority order with EASY backfill."""


CLOCK_START: Final = 1_800_000_000.0
"""The virtual clock's first moment, in unix seconds; results count from it."""


class SimulationError(SynschedError):
    """A simulation that cannot be run, or cannot end; the message says what to change."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, the work that comes to it, and what is known of how fast jobs run, which in a simulation is also how
    fast they do."""

    nodes: tuple[Node, ...]
    trace: Trace
    knowledge: Knowledge = field(default_factory=Knowledge)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A system and an order, as `policies.systems` has them; bounds of the queues of las in GPU-seconds."""

    system: str
    order: str = "las"
    las_queues: tuple[float, ...] = DEFAULT_LAS_QUEUES

    @property
    def name(self) -> str:
        """As people write it: `synergy/fifo`, `slurm`."""
        return f"{self.system}/{self.order}" if takes_order(self.system) else self.system


def parse_policy(text: str, order: str = "las", las_queues: tuple[float, ...] = DEFAULT_LAS_QUEUES) -> PolicyChoice:
    """`synergy/fifo`, or `synergy` in the default order. Raises PolicyError for what there is not."""
    name, _, given_order = text.partition("/")
    choice = PolicyChoice(name, given_order or order, las_queues)
    policy(choice.system, choice.order, choice.las_queues)
    return choice


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How it is run. Times in seconds.

    `period`: from one round to the next. `overhead`: what a start costs that is not a job's first, during which it
    holds its GPUs and does no work; a lease that goes on costs nothing. `lead`: between the checkpoint signal and the
    requeue; the job works on, and its work is kept. `completing`: from a job's end until its resources are free.
    `quantised`: jobs end at the end of a round only. `window`: places in order of arrival, first and one beyond last,
    of the jobs that are measured; the run ends with them. `until`: the run ends by then, whatever still runs.
    `failures`: how often a node fails per hour it is up, and `repair` how long it stays down. `limits`: whether the
    trace's time limits end jobs. `skipping`: rounds that cannot change anything are not computed. `skip_impossible`:
    jobs that could never run are left out instead of an error.
    """

    period: float = 300.0
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


GENERATED_TRACE: Final = re.compile(r"(?P<name>[a-z-]+):(?P<jobs>\d{1,7})(?:@(?P<rate>\d+(?:\.\d+)?))?\Z")
"""`synergy:400@6`: that workload, so many jobs, so many an hour."""

_RATE: Final = 10.0


def profiles_or_shipped(path: str | None) -> Knowledge:
    """The profiles in a file, whosever; the shipped ones without. Raises ProfileError."""
    return load_knowledge(path) if path else shipped_profiles()


def load_trace(source: str, *, profiles: str | None = None, form: str | None = None, seed: int = 1) -> ImportedTrace:
    """The trace in a file, or one made up as `synergy:400@6` says. Raises TraceError, ProfileError."""
    generated = GENERATED_TRACE.match(source)
    if generated:
        return ImportedTrace(
            generate(generated["name"], int(generated["jobs"]), seed, float(generated["rate"] or _RATE))
        )
    seconds = iteration_seconds(profiles) if profiles and is_synergy_file(profiles) else {}
    return read_trace(source, form, ImportContext(seconds))


def load_scenario(cluster: str, trace: Trace, profiles: str | None) -> Scenario:
    """Raises TraceError, ProfileError."""
    return Scenario(load_cluster(cluster).nodes, trace, profiles_or_shipped(profiles))
