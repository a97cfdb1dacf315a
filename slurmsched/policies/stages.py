"""The input of a policy, and the protocols of policies and their stages: pure, no I/O, no clock, no global state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slurmsched.knowledge import Knowledge
from slurmsched.model import Decision, Job, JobId, RankedJob, Reason, Request, Snapshot
from slurmsched.settings.definition import TicketSettings


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of one round.

    `jobs` are the managed jobs that run, or that holds, dependencies and begin times allow to start. Those in
    `non_preemptible` run and must not be preempted, for the given reason. The other jobs of the snapshot are not
    managed: their allocations count as used. `open_nodes` are, by partition, the nodes on which managed jobs may start
    now (up, not reserved). `state` is the `Decision.state` of the policy's last round.
    """

    snapshot: Snapshot
    jobs: tuple[Job, ...]
    knowledge: Knowledge
    non_preemptible: Mapping[JobId, Reason] = field(default_factory=dict)
    open_nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    max_moves: int = 8
    """Most running jobs that this round may evict or restart."""
    restart_cost: float = 120.0
    """Seconds of work that a restart loses."""
    period: float = 300.0
    """Seconds until the next round."""
    state: Mapping[str, object] = field(default_factory=dict)
    recent_requests: tuple[tuple[Request, int], ...] = ()
    """Requests of the jobs of the last days, each with the number of jobs."""
    tickets: TicketSettings = field(default_factory=TicketSettings)
    """Tickets of users and accounts, for policies that share by tickets."""


PreemptionRule = Callable[[Job, Job], bool]
"""Whether the first job, a newcomer, may preempt the second, which runs."""


class Order(Protocol):
    """The order in which jobs get resources."""

    @property
    def name(self) -> str:
        """The name in the settings: `las`."""

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        """Return every job of the situation in order: a total order, ties by submission time, then by id."""

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        """Return which newcomer may preempt which running job in this round.

        The newcomer must lead by enough that the two do not swap back in the next round. The rule is never true of a
        running job that ranks before the newcomer; where it is true of one, it is true of all that rank behind it.
        """


class Policy(Protocol):
    """A complete scheduling policy: a row of `policies.POLICIES`."""

    @property
    def name(self) -> str: ...

    def decide(self, situation: Situation) -> Decision:
        """Return the targets of the coming round. Every job of the situation is in `targets` or in `waiting`."""


class AdmissionStep(Protocol):
    """A way to admit newcomers. Each instance serves one session and may cache results between jobs."""

    def try_admit(self, job: Job) -> bool:
        """Allocate or reserve resources for the newcomer and return True; otherwise return False and leave the session
        unchanged, except for the reason why the job waits."""
