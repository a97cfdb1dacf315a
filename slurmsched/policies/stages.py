"""What a policy is given, and the protocols of its stages. All is pure: no I/O, no clock, no global state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slurmsched.knowledge import Knowledge
from slurmsched.model import Decision, Job, JobId, RankedJob, Reason, Request, Snapshot
from slurmsched.settings.definition import TicketSettings


@dataclass(frozen=True, slots=True)
class Situation:
    """One round's question.

    `jobs` are the managed ones that run, or could start now as far as holds, dependencies and begin times go.
    `fixed` are running ones among them that must not be displaced, and why. All other jobs in the snapshot are facts:
    what they hold on the nodes is taken. `usable` are the nodes each partition's managed jobs may start on now (up, not
    reserved).
    `state` is what this system remembered from the last round.
    """

    snapshot: Snapshot
    jobs: tuple[Job, ...]
    knowledge: Knowledge
    non_preemptible: Mapping[JobId, Reason] = field(default_factory=dict)
    open_nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    max_moves: int = 8
    """Most running jobs this round may displace."""
    restart_cost: float = 120.0
    """Seconds of lost work a restart costs."""
    period: float = 300.0
    """Seconds until the next round."""
    state: Mapping[str, object] = field(default_factory=dict)
    recent_requests: tuple[tuple[Request, int], ...] = ()
    """What jobs of the last days asked for, and how many each."""
    tickets: TicketSettings = field(default_factory=TicketSettings)
    """Who is entitled to what, for systems that go by tickets."""


PreemptionRule = Callable[[Job, Job], bool]
"""Whether a newcomer, the first, may displace a running job, the second."""


class Order(Protocol):
    """Who comes first."""

    @property
    def name(self) -> str:
        """As people choose it: `las`."""

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        """Every job of the situation, first comes first; a total order (ties by submission, then id)."""

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        """Who may displace whom, for this round: the newcomer comes first by enough that they do not swap back next
        round. Never true of a job that ranks before the newcomer; true of all jobs behind one of which it is true."""


class Policy(Protocol):
    """A whole composition of stages: a row of `systems.SYSTEMS`."""

    @property
    def name(self) -> str: ...

    def decide(self, situation: Situation) -> Decision:
        """Targets for the coming round. Every job of the situation ends in `targets` or `waiting`."""


class AdmissionStep(Protocol):
    """Made for one draft; what it works out it keeps for the next newcomer."""

    def try_admit(self, job: Job) -> bool:
        """Either settle the newcomer, changing the draft, and say True; or leave the draft as it was, but for a note
        why it could not, and say False."""
