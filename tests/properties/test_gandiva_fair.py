"""Fairness of split stride over many rounds, on a cluster that follows every decision at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.knowledge import Knowledge, sample_speedups
from slurmsched.model import Job, JobState, Node, Request, Share
from slurmsched.policies import Situation
from slurmsched.policies.gandiva_fair import GandivaFair, Past
from slurmsched.policies.gandiva_fair.filling import filled
from slurmsched.settings import Tickets
from tests.builders import job, node, snapshot

QUANTUM = 60.0
unhurried = settings(max_examples=12, deadline=None)


@dataclass
class Cluster:
    """Time goes by in rounds of one quantum; what is decided is so at once."""

    nodes: Sequence[Node]
    jobs: list[Job]
    said: Tickets
    knowledge: Knowledge = field(default_factory=Knowledge)
    time: float = 0.0
    state: dict[str, object] = field(default_factory=dict)
    service: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_type: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def situation(self) -> Situation:
        seen = snapshot(self.nodes, self.jobs, self.time)
        return Situation(
            snapshot=seen,
            jobs=seen.jobs,
            knowledge=replace(self.knowledge, service=dict(self.service)),
            usable={"gpu": frozenset(one.name for one in self.nodes)},
            moves=1000,
            period=QUANTUM,
            state=self.state,
            tickets=self.said,
        )

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            decision = GandivaFair().decide(self.situation())
            self.state = dict(decision.state)
            idle = {one.name: [gpu.index for gpu in one.gpus] for one in self.nodes}
            after = list[Job]()
            for one in self.jobs:
                target = decision.targets.get(one.id)
                shares = tuple(_placed(share, idle) for share in target.shares) if target else ()
                runs = {share.node for share in shares} == set(one.nodes) and bool(shares)
                for share in shares:
                    self.by_type[one.user, share.gpu_type] += share.resources.gpus * QUANTUM
                    self.service[one.id] += share.resources.gpus * QUANTUM
                state = JobState.RUNNING if shares else JobState.PENDING
                after.append(replace(one, shares=shares, state=state, run_time=QUANTUM + one.run_time * runs))
            self.jobs, self.time = after, self.time + QUANTUM


def _placed(share: Share, idle: dict[str, list[int]]) -> Share:
    return replace(share, indices=tuple(idle[share.node].pop(0) for _ in range(share.resources.gpus)))


def tickets(users: Sequence[int] = (), trading: bool = True) -> Tickets:
    held = tuple(f"u{number}={count}" for number, count in enumerate(users))
    return Tickets(users=held, quantum=QUANTUM, wide_quantum=QUANTUM, trading=trading)


@unhurried
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1)), min_size=1, max_size=24),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 3),
)
def test_received_service_stays_near_the_entitlement_over_all_servers(
    owners: list[tuple[int, int]], held: list[int], size: int, servers: int
) -> None:
    jobs = [job(place, size, user=f"u{user}") for place, (user, _) in enumerate(owners, 1)]
    cluster = Cluster([node(f"n{number}") for number in range(servers)], jobs, tickets(held))
    due = _due(jobs, held, 8.0 * servers)
    for _ in range(3):
        cluster.run(15)
        for one in jobs:
            entitled = due[one.id] * cluster.time
            slack = QUANTUM * size * (2 + len(jobs) / servers)
            assert abs(cluster.service[one.id] - entitled) <= slack
    assert sum(cluster.service.values()) == pytest.approx(min(8 * servers, size * len(jobs)) * cluster.time)


def _due(jobs: Sequence[Job], held: Sequence[int], gpus: float) -> dict[str, float]:
    """By user, then equally over the user's jobs, never more than a job has use for."""
    own = defaultdict[str, list[Job]](list)
    for one in jobs:
        own[one.user].append(one)
    weights = np.array([float(held[int(user[1:])]) for user in own])
    caps = np.array([float(sum(one.gpus for one in mine)) for mine in own.values()])
    return {
        one.id: part / len(mine)
        for mine, part in zip(own.values(), filled(gpus, weights, caps), strict=True)
        for one in mine
    }


@unhurried
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from((1, 2, 4, 8, 16))), min_size=2, max_size=20),
    st.integers(2, 3),
)
def test_everybody_has_turns_whatever_the_widths(owners: list[tuple[int, int]], servers: int) -> None:
    """Also the jobs wider than a server: over a long while nobody goes without."""
    jobs = [job(place, size, user=f"u{user}", request=_request(size)) for place, (user, size) in enumerate(owners, 1)]
    cluster = Cluster([node(f"n{number}") for number in range(servers)], jobs, tickets())
    cluster.run(50)
    due = sum(size for _, size in owners) * QUANTUM
    for one in jobs:
        least = min(one.gpus, 8 * servers / len(jobs)) * cluster.time / 4
        assert cluster.service[one.id] >= min(least, cluster.time) - due - one.request.gpus * QUANTUM


def _request(gpus: int) -> Request:
    """On one node, or on whole ones."""
    nodes = -(-gpus // 8)
    return Request(gpus=gpus, gpus_per_node=gpus // nodes, nodes=nodes, tasks=nodes, cpus=gpus)
