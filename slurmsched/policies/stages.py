"""The input of a policy, and the protocols of policies and their stages: pure, no I/O, no clock, no global state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol

from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Decision,
    IdleGpus,
    Job,
    JobId,
    JobState,
    NodeAllocation,
    RankedJob,
    Reason,
    Request,
    Snapshot,
)
from slurmsched.policies.cluster.demand import DemandCache
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.limits import LimitAccount
from slurmsched.policies.sizes import Sizing
from slurmsched.settings.definition import TicketSettings

_DAY: Final = 86400.0

RUN_OVER_RESTART: Final = 20.0
"""The shortest slice, or run after a restart, in costs of a restart: 95 % of the GPU time is useful. In the papers
restarts cost nothing."""

MIN_BENEFIT: Final = 3.0
"""A restart of a running job for more CPUs or another GPU type pays if it saves this many times its cost: estimates of
remaining time are often wrong."""

_MIN_TURNS: Final = 0.5
"""Slices of a day by which they are measured where guards allow a job no move at all."""


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
    restart_costs: Mapping[JobId, float] = field(default_factory=dict)
    """For each job what a restart counts, with a checkpoint lead, in seconds; missing where that is 0."""
    moves_per_job_day: float = float("inf")
    """Most times that a job may be preempted or moved in 24 hours: time slices are so long that it suffices."""
    period: float = 300.0
    """Seconds until the next round."""
    state: Mapping[str, object] = field(default_factory=dict)
    recent_requests: tuple[tuple[Request, int], ...] = ()
    """Requests of the jobs of the last days, each with the number of jobs."""
    tickets: TicketSettings = field(default_factory=TicketSettings)
    """Tickets of users and accounts, for policies that share by tickets."""
    preemptible_from: Mapping[JobId, float] = field(default_factory=dict)
    """For those of `non_preemptible` that have only not run long enough: when they have, in unix seconds."""
    unmovable: frozenset[JobId] = frozenset()
    """Jobs that may never be preempted or restarted: what they are started with they keep."""
    starting: Mapping[JobId, tuple[NodeAllocation, ...]] = field(default_factory=dict)
    """What jobs are promised that are about to start, and for which none leaves; the snapshot counts it as used."""
    awaiting: tuple[Job, ...] = ()
    """The managed jobs that this round does not decide because it is decided that they start once others have left:
    after a checkpoint that is awaited, or at once. They are due what they would be if they were in `jobs`."""
    freeing: frozenset[str] = frozenset()
    """Nodes that running jobs leave for those that are about to start."""
    unattributed: tuple[NodeAllocation, ...] = ()
    """What the snapshot counts as used and no job of it has: it is free as soon as Slurm is looked at again."""
    starts_only: bool = False
    """Whether this is an early round, between two full ones: jobs start on free resources, no running job is touched,
    and the policy's state stays as the last full round left it."""

    idle_last: Mapping[JobId, IdleGpus] = field(default_factory=dict)
    """Running jobs with idle GPUs that rank behind all others."""

    _by_submission: list[Job] = field(default_factory=list, init=False, repr=False, compare=False)
    """What `by_submission` returned."""

    def by_submission(self) -> Sequence[Job]:
        """Return the jobs in the order of their `Job.queue_key`, sorted once."""
        if len(self._by_submission) != len(self.jobs):
            self._by_submission[:] = sorted(self.jobs, key=lambda job: job.queue_key)
        return self._by_submission

    def managed_gpus(self) -> dict[str, int]:
        """Return by type, in alphabetical order, the GPUs that are idle on open nodes or allocated to the jobs."""
        names = frozenset[str]().union(*self.open_nodes.values())
        counts = dict.fromkeys(sorted({gpu.type for node in self.snapshot.nodes for gpu in node.gpus}), 0)
        for node in self.snapshot.nodes:
            for gpu in node.gpus if node.name in names else ():
                counts[gpu.type] += gpu.idle
        for job in self.jobs:
            for on_node in job.allocations:
                if on_node.gpu_type in counts:
                    counts[on_node.gpu_type] += on_node.resources.gpus
        return counts

    def cost_of_restart(self, job: JobId) -> float:
        """Return what a restart costs the job, in seconds."""
        return self.restart_costs.get(job, self.restart_cost)

    def shortest_slice(self, job: JobId, share: float) -> float:
        """Return how many seconds a job runs at least where jobs take turns: so long that a restart costs no more than
        a twentieth of it, and that the slices of a day, of which the job is due this share, are no more than the moves
        that guards allow it."""
        turns = max(self.moves_per_job_day, _MIN_TURNS)
        return max(RUN_OVER_RESTART * self.restart_costs.get(job, 0.0), share * _DAY / turns)


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


@dataclass(frozen=True, slots=True)
class RoundResources:
    """What is free as a round begins, what the running jobs have, and what jobs demand by `sizing` where an entitlement
    restricts none of them; nobody changes it."""

    free: FreeResources
    eligibility: Eligibility
    running: Mapping[JobId, Allocation]
    sizing: Sizing
    demands: DemandCache
    limits: LimitAccount

    @classmethod
    def of(cls, situation: Situation, sizing: Sizing) -> RoundResources:
        free = FreeResources.of_snapshot(situation.snapshot)
        running = {
            job.id: free.pools.held_by(job)
            for job in situation.jobs
            if job.allocations and job.state in (JobState.RUNNING, JobState.SUSPENDED)
        }
        eligibility = Eligibility(free.pools, situation.snapshot, situation.open_nodes)
        limits = LimitAccount(situation.snapshot)
        demands = DemandCache(free.pools, eligibility, situation.knowledge, sizing, cap=limits.cap)
        return cls(free, eligibility, running, sizing, demands, limits)


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What each job is due in this round, decided before any job is placed. No job's request is changed for it.

    `gpu_types`: the GPU types that a job is due where it did not ask for one: a single type, or several that it may be
    placed on at once. A job that is missing may use every type. `anti_affinity`: no two jobs with the same value are
    placed on one node. `protected`: running jobs that are not preempted in this round, beside those of the situation.
    `postponed`: waiting jobs that are not placed in this round.
    """

    order: Order | None = None
    """The order that follows from what jobs are due; None leaves the policy's own."""
    gpu_types: Mapping[JobId, frozenset[str]] = field(default_factory=dict)
    rates: Mapping[tuple[JobId, str], float] = field(default_factory=dict)
    """The measured rate of a running job on a GPU type, in any unit that the types of one job share; none is restarted
    for a type that is missing, or from one."""
    anti_affinity: Mapping[JobId, JobId] = field(default_factory=dict)
    protected: Mapping[JobId, Reason] = field(default_factory=dict)
    postponed: Mapping[JobId, Reason] = field(default_factory=dict)
    movable_only: frozenset[JobId] = frozenset()
    """Running jobs that are preempted for no newcomer, but may be moved to other nodes."""
    promised_anew: frozenset[JobId] = frozenset()
    """Waiting jobs whose promised start is not remembered from round to round: the order decides anew."""
    undue: frozenset[JobId] = frozenset()
    """Jobs that are due nothing while others wait, since their users hold their share for good: none is promised a
    start."""
    full_round_at: float = inf
    """When an early round has to be a full one, in unix seconds: something happened that no early round can act on."""
    homes: Mapping[JobId, int] = field(default_factory=dict)
    """The pool that a job is assigned to, by index, for steps that queue jobs by pool; a job that is missing has none,
    because it needs several nodes or fits into no pool."""
    passes: Mapping[JobId, float] = field(default_factory=dict)
    """How much each job was served, in seconds of the GPUs it is due (the pass of stride scheduling, the virtual time
    of fair queueing): the lowest is next."""
    slices: Mapping[JobId, float] = field(default_factory=dict)
    """How long each job is `protected` at least from its start, in seconds, where that is known."""
    saved_moves: int = 0
    """How many moves earlier rounds left unused, for a gang that needs more than a round may make."""
    preferred_types: tuple[str, ...] = ()
    """GPU types, the best first: of the pools that fit, those of the first type are taken, and among these the policy's
    node score chooses. A type that is missing comes last; empty leaves all to the node score."""
    mixes_types: bool = False
    """Whether gangs may be placed on several GPU types: a job that cannot is told so if it waits for that."""
    utility: Callable[[Mapping[JobId, Allocation]], float] | None = None
    """The worth of a round's allocations: without it evictions are always worth their restarts, with it only if the
    round is worth more with them than without."""
    why_start: Callable[[Job], Reason] | None = None
    """Why a job starts in its turn; None says that it is first in order."""
    why_end: Callable[[Job, Job], Reason] | None = None
    """Why the first job, which runs, is evicted for the second; None says how they rank."""
    why_wait: Callable[[Mapping[JobId, Allocation]], Mapping[JobId, Reason]] | None = None
    """Why jobs wait where no step knows more, given a round's allocations; a job may be missing."""
    next_state: Callable[[Mapping[JobId, JobId], Mapping[JobId, Allocation]], Mapping[str, object]] | None = None
    """The policy's state after the round, given the victims, each with its newcomer, and a round's allocations; None
    leaves it as it was."""
    min_benefit: float = MIN_BENEFIT
    """What a restart of a running job has to save, in costs of a restart."""
    resources: RoundResources | None = None
    """The round's resources, where the entitlement counted them: the session need not count them again."""


NO_ENTITLEMENT: Final = Entitlement()
"""Every job may use whatever it asked for."""


class Entitle(Protocol):
    """The stage that decides what each job is due."""

    def __call__(self, situation: Situation, /) -> Entitlement: ...


class Policy(Protocol):
    """A complete scheduling policy: a row of `policies.POLICIES`."""

    @property
    def name(self) -> str: ...

    def decide(self, situation: Situation) -> Decision:
        """Return the targets of the coming round. Every job of the situation is in `targets` or in `waiting`."""


class AdmissionStep(Protocol):
    """A way to admit newcomers. Each instance serves one session and may cache results between jobs.

    A step that plans for all newcomers at once does so when it is asked for the first of them.
    """

    def try_admit(self, job: Job) -> bool:
        """Allocate or reserve resources for the newcomer and return True; otherwise return False and leave the session
        unchanged, except for the reason why the job waits."""
