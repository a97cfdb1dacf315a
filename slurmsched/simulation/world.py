"""What a simulation is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Node, SynschedError
from slurmsched.policies.systems import DEFAULT_QUEUES, OWN_ORDER, system
from slurmsched.traces import Trace

__all__ = ["ALONE", "START", "Options", "Policy", "SimulationError", "World", "policy_of"]

ALONE: Final = "slurm"
"""The policy under which there are no rounds: Slurm's own scheduler, simulated, priority order with EASY backfill."""


START: Final = 1_800_000_000.0
"""The virtual clock's first moment, in unix seconds; results count from it."""


class SimulationError(SynschedError):
    """A simulation that cannot be run, or cannot end; the message says what to change."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class World:
    """A cluster, the work that comes to it, and what is known of how fast jobs run, which in a simulation is also how
    fast they do."""

    nodes: tuple[Node, ...]
    trace: Trace
    knowledge: Knowledge = field(default_factory=Knowledge)


@dataclass(frozen=True, slots=True)
class Policy:
    """A system and an order, as `policies.systems` has them; bounds of the queues of las in GPU-seconds."""

    system: str
    order: str = "las"
    las_queues: tuple[float, ...] = DEFAULT_QUEUES

    @property
    def name(self) -> str:
        """As people write it: `synergy/fifo`, `slurm`."""
        return self.system if self.system in OWN_ORDER else f"{self.system}/{self.order}"


def policy_of(said: str, order: str = "las", las_queues: tuple[float, ...] = DEFAULT_QUEUES) -> Policy:
    """`synergy/fifo`, or `synergy` in the default order. Raises PolicyError for what there is not."""
    name, _, own = said.partition("/")
    policy = Policy(name, own or order, las_queues)
    system(policy.system, policy.order, policy.las_queues)
    return policy


@dataclass(frozen=True, slots=True)
class Options:
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
