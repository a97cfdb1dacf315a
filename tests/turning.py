"""A cluster that follows every decision at once, round after round: of Gandiva_fair unless another policy is given."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurmsched.knowledge import Knowledge
from slurmsched.model import Decision, Job, JobState, Node, NodeAllocation, Reason, ReasonCode
from slurmsched.policies import Policy, Situation, policy
from slurmsched.settings import TicketSettings
from tests.builders import snapshot

QUANTUM = 60.0


@dataclass
class Cluster:
    """Time goes by in rounds of one quantum; what is decided is so at once."""

    nodes: Sequence[Node]
    jobs: list[Job]
    said: TicketSettings
    knowledge: Knowledge = field(default_factory=Knowledge)
    chosen: Policy = field(default_factory=lambda: policy("gandiva-fair"))
    time: float = 0.0
    state: dict[str, object] = field(default_factory=dict)
    service: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    decision: Decision | None = None
    by_type: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    moves: int = 1000
    unmovable: frozenset[str] = frozenset()
    """Jobs that are never preempted once they run."""
    unmanaged: tuple[Job, ...] = ()
    """Running jobs that nobody schedules."""
    left_out: frozenset[str] = frozenset()
    """Jobs that rounds see but do not decide."""
    awaiting: frozenset[str] = frozenset()
    """Those of them that start once others have left."""
    restart_costs: Mapping[str, float] = field(default_factory=dict)
    moves_per_job_day: float = float("inf")
    restarts: int = 0

    def situation(self) -> Situation:
        seen = snapshot(self.nodes, [*self.jobs, *self.unmanaged], self.time)
        stay = {one.id: Reason(ReasonCode.NO_CHECKPOINT) for one in self.jobs if one.id in self.unmovable and one.nodes}
        return Situation(
            snapshot=seen,
            jobs=tuple(
                one for one in seen.jobs if one not in self.unmanaged and one.id not in self.left_out | self.awaiting
            ),
            knowledge=replace(self.knowledge, service=dict(self.service)),
            awaiting=tuple(one for one in seen.jobs if one.id in self.awaiting),
            open_nodes={"gpu": frozenset(one.name for one in self.nodes)},
            max_moves=self.moves,
            restart_costs=self.restart_costs,
            moves_per_job_day=self.moves_per_job_day,
            non_preemptible=stay,
            unmovable=self.unmovable,
            period=QUANTUM,
            state=self.state,
            tickets=self.said,
        )

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            decision = self.chosen.decide(self.situation())
            self.decision, self.state = decision, json.loads(json.dumps(decision.state))
            idle = {one.name: [gpu.index for gpu in one.gpus] for one in self.nodes}
            for share in (share for one in self.unmanaged for share in one.allocations):
                idle[share.node] = [index for index in idle[share.node] if index not in share.indices]
            self.restarts += len(decision.victims)
            after = list[Job]()
            for one in self.jobs:
                target = decision.targets.get(one.id)
                shares = tuple(_placed(share, idle) for share in target.allocations) if target else ()
                runs = {share.node for share in shares} == set(one.nodes) and bool(shares)
                for share in shares:
                    self.by_type[one.user, share.gpu_type] += share.resources.gpus * QUANTUM
                    self.service[one.id] += share.resources.gpus * QUANTUM
                state = JobState.RUNNING if shares else JobState.PENDING
                after.append(replace(one, allocations=shares, state=state, run_time=QUANTUM + one.run_time * runs))
            self.jobs, self.time = after, self.time + QUANTUM


def _placed(share: NodeAllocation, idle: dict[str, list[int]]) -> NodeAllocation:
    return replace(share, indices=tuple(idle[share.node].pop(0) for _ in range(share.resources.gpus)))


def tickets(users: Sequence[int] = (), trading: bool = True) -> TicketSettings:
    held = tuple(f"u{number}={count}" for number, count in enumerate(users))
    return TicketSettings(users=held, quantum=QUANTUM, wide_quantum=QUANTUM, trading=trading)
