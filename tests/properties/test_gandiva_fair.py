"""Fairness of split stride over many rounds, on a cluster that follows every decision at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.model import Job, Request
from slurmsched.policies import Situation, policy
from slurmsched.policies.gandiva_fair.policy import GandivaTickets
from slurmsched.policies.gandiva_fair.tickets import water_filling
from tests.builders import job, node
from tests.properties.test_policies import situations
from tests.turning import QUANTUM, Cluster, tickets

unhurried = settings(max_examples=12, deadline=None)


@unhurried
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=24),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 3),
)
def test_received_service_stays_near_the_entitlement_over_all_servers(
    owners: list[int], held: list[int], size: int, servers: int
) -> None:
    jobs = [job(place, size, user=f"u{user}") for place, user in enumerate(owners, 1)]
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
        for mine, part in zip(own.values(), water_filling(gpus, weights, caps), strict=True)
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
        assert cluster.service[one.id] >= min(least, cluster.time) - due - one.original_request.gpus * QUANTUM


def _request(gpus: int) -> Request:
    """On one node, or on whole ones."""
    nodes = -(-gpus // 8)
    return Request(gpus=gpus, gpus_per_node=gpus // nodes, nodes=nodes, tasks=nodes, cpus=gpus)


@unhurried
@given(situations(), st.data())
def test_where_the_rule_of_preemption_holds_it_holds_for_all_that_rank_behind(
    situation: Situation, data: st.DataObject
) -> None:
    """For jobs of three users, with passes as if each had run for a while."""
    service = {one.id: data.draw(st.sampled_from((0.0, 1e3, 1e4, 1e5))) for one in situation.jobs}
    jobs = tuple(replace(one, user=f"u{int(one.id) % 3}") for one in situation.jobs)
    begun = replace(situation, jobs=jobs, snapshot=replace(situation.snapshot, jobs=jobs), state={})
    state = policy("gandiva-fair").decide(begun).state
    later = replace(begun, state=state, knowledge=replace(begun.knowledge, service=service))
    order = GandivaTickets()(later).order
    assert order
    ranked, rule = [later.snapshot.jobs_by_id[one.job] for one in order.rank(later)], order.preemption_rule(later)
    for newcomer in ranked:
        holds = [rule(newcomer, running) for running in ranked]
        assert holds == sorted(holds)
        assert not any(holds[: ranked.index(newcomer) + 1])
