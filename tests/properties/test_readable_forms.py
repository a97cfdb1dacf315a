"""What is computed once, or a little at a time, so that large clusters are decided in seconds, gives the decisions of
the form that a person reads: whole rounds on random clusters, each decided in both forms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slurmsched.arrays import Floats, Mask
from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.bench.workload import (
    QueueShape,
    follow_decision,
    generate_knowledge,
    generate_snapshot,
    measured_rates,
)
from slurmsched.knowledge import shipped_profiles
from slurmsched.model import Decision, Job, RankedJob, Reason, ReasonCode, SchedulerState
from slurmsched.policies import reasons
from slurmsched.policies.cluster.demand import ResourceDemand
from slurmsched.policies.gandiva_fair import tickets
from slurmsched.policies.gandiva_fair.balancing import LoadBalancer
from slurmsched.policies.gandiva_fair.problem import RunnableJob
from slurmsched.policies.orders import TetrisAlignment, _demand_per_node, rank_by
from slurmsched.policies.policies import configured_policy
from slurmsched.policies.stages import Situation
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings

ROUNDS = 3
SEEDS = range(4)


def _decisions(policy: str, seed: int) -> list[Decision]:
    """Of a few rounds on a random cluster: three GPU types, some jobs of which name one, many users. Between rounds
    everything decided begins, and some jobs end."""
    random = np.random.default_rng(seed)
    shape = QueueShape(
        ("v100", "p100", "k80"),
        users=int(random.integers(2, 30)),
        accounts=int(random.integers(0, 4)),
        all_different=bool(seed % 2),
        sizes_differ=bool(random.integers(2)),
    )
    settings = Settings()
    settings = replace(settings, policy=replace(settings.policy, system=policy))
    known, identity = generate_knowledge(shipped_profiles(), shape, seed), Identity("test", Privilege.SLURM_USER)
    nodes = int(random.integers(6, 18))
    seen = generate_snapshot(4 * nodes, nodes, int(random.integers(30, 90)), seed, shape)
    jobs = [_naming_a_type(job, str(random.choice(["", "", "v100", "k80"]))) for job in seen.jobs]
    seen = replace(seen, jobs=tuple(jobs))
    state, found = SchedulerState(measured=measured_rates(seen, shape, seed)), list[Decision]()
    decider = configured_policy(settings.policy)
    for number in range(ROUNDS):
        result = run_round(seen, state, settings, known, identity, policy_override=decider)
        found.append(result.decision)
        running = {job.id for job in seen.jobs if job.allocations}
        ended = {job for job in running - result.decision.victims.keys() if random.random() < 1 / 4}
        gone = frozenset(job for job in ended if job in result.decision.targets)
        left = tuple(job for job in result.snapshot.jobs if job.id not in gone)
        idle = tuple(
            replace(node, used=type(node.used)(), gpus=tuple(replace(gpu, used=0) for gpu in node.gpus))
            for node in result.snapshot.nodes
        )
        waiting = tuple(replace(job, allocations=()) if job.id in result.decision.victims else job for job in left)
        seen, state = follow_decision(
            replace(result.snapshot, jobs=waiting, nodes=idle), result.decision, seed + number, shape
        )
    return found


def _naming_a_type(job: Job, gpu_type: str) -> Job:
    request = replace(job.original_request, gpu_type=gpu_type or None)
    return replace(job, original_request=request, current_request=request)


def _largest_gap_first(self: Any, waiting: Sequence[RunnableJob], most: int) -> None:
    """`LoadBalancer._rebalance_types`, all gaps of all users anew for each move."""
    queues, types = defaultdict[tuple[str, str], list[RunnableJob]](list), self._problem.pools.gpu_types
    for job in sorted(waiting, key=lambda one: one.pass_value):
        if job.job.id in self._unconfined:
            queues[job.job.user, types[job.assigned_pool]].append(job)
    users = {user for user, _ in queues}
    while self._migrations < most and users:
        gaps = [(self._type_gap(user, queues), user) for user in sorted(users)]
        (gap, source, target), user = max(gaps, key=lambda entry: entry[0][0])
        movable = [job for job in queues[user, source] if self._may_move(job, target, gap)]
        if not movable:
            users.discard(user)
            continue
        queues[user, source].remove(movable[0])
        self._reassign(movable[0], self._least_loaded(movable[0], target))
        self._migrations += 1


def _user_by_user(parts: Floats, caps: Floats, floors: Floats, inside: Mask, users: Sequence[str]) -> Floats:
    """`tickets._within_parts`, each user's jobs looked for among all."""
    caps = caps.copy()
    for user in sorted({name for name, confined in zip(users, inside.tolist(), strict=True) if confined}):
        of_user = np.array([name == user for name in users], dtype=np.bool_)
        rows = np.flatnonzero(inside & of_user)
        part = float(np.bincount(of_user.astype(np.int64), weights=parts, minlength=2)[1])
        caps[rows] = tickets.water_filling(part, np.ones(len(rows)), caps[rows], floors[rows])
    return caps


def _shortage_of_each(self: Any, job: Job, demand: ResourceDemand, order_name: str) -> Reason:
    """`reasons._Shortage.reason`, counted anew for each job."""
    if why := self._beside_gpus(job, demand):
        return why  # type: ignore[no-any-return]
    session = self._session
    usable = [pool for pool in range(len(session.pools)) if any(option.mask[pool] for option in demand.single_node)]
    if 0 < len(demand.required_nodes) >= demand.gang.max_nodes:
        usable = [pool for pool in usable if session.pools.node_of[pool] in demand.required_nodes]
    held = session.allocations()
    before = [ranked.job for ranked in session.ranking[: session.rank_of[job.id]]]
    ahead = [
        one for one in before if one in held and any(held[one].gpus) and not set(usable).isdisjoint(held[one].pools)
    ]
    idle = sum(max(0, int(session.free_at_minimum.gpus[pool])) for pool in usable)
    if idle >= job.original_request.gpus or not ahead:
        return Reason(ReasonCode.NO_ROOM, {"gpus": job.original_request.gpus})
    return Reason(ReasonCode.BEHIND, {"count": len(ahead), "order": order_name, "last": ahead[-1]})


def _alignment_of_each(self: TetrisAlignment, situation: Situation) -> tuple[RankedJob, ...]:
    """`TetrisAlignment.rank`, node by node for each job."""
    nodes = [node for node in situation.snapshot.nodes if node.gpus]

    def alignment(job: Job) -> float:
        asked, best = _demand_per_node(job), 0.0
        for node in nodes:
            free, whole = node.free, (node.total.gpus, node.total.cpus, max(node.total.memory, 1))
            left = free.gpus, free.cpus, free.memory
            if all(wanted <= has for wanted, has in zip(asked, left, strict=True)):
                products = [
                    wanted * (1 / all_) * (has / all_) for wanted, has, all_ in zip(asked, left, whole, strict=True)
                ]
                best = max(best, float(np.array([products]).sum(axis=1)[0]))
        return best

    score = {job.id: alignment(job) for job in situation.jobs}
    return rank_by(
        situation,
        lambda job: (not job.allocations, -score[job.id]),
        lambda job: "runs" if job.allocations else f"alignment {score[job.id]:.2f}",
    )


FORMS = [
    pytest.param("gandiva-fair", LoadBalancer, "_rebalance_types", _largest_gap_first, id="moves between GPU types"),
    pytest.param("gandiva-fair", tickets, "_within_parts", _user_by_user, id="parts of jobs that name a GPU type"),
    pytest.param("synergy", reasons._Shortage, "reason", _shortage_of_each, id="why jobs wait, by attained service"),
    pytest.param("slurm", reasons._Shortage, "reason", _shortage_of_each, id="why jobs wait, by priority"),
    pytest.param("tetris", TetrisAlignment, "rank", _alignment_of_each, id="the order by alignment"),
]
"""A policy, and where which part of it has a readable form."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("policy", "owner", "name", "readable"), FORMS)
def test_decisions_are_those_of_the_readable_form(
    policy: str, owner: Any, name: str, readable: Callable[..., Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, asked = _decisions(policy, seed), list[str]()

    def counted(*arguments: Any) -> Any:
        asked.append(name)
        return readable(*arguments)

    monkeypatch.setattr(owner, name, counted)
    assert fast == _decisions(policy, seed)
    assert asked
