"""Gandiva_fair (Chaudhary et al., EuroSys 2020, as their talk has it): everybody has the part of the whole cluster's
throughput that the tickets stand for, whatever the GPUs and however large the jobs.

On Slurm a suspended job keeps its GPUs, so a slice ends with the checkpoint signal and a requeue. A waiting job may
then go on anywhere: another home costs nothing, and no running job is moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmsched.model import Decision, JobId, JobState, Ranked
from slurmsched.policies.allocating import Allocating, Proportional
from slurmsched.policies.gandiva_fair.accounting import best_rates, bring_forward, owed, settled_accounts
from slurmsched.policies.gandiva_fair.contenders import Arena, Contender
from slurmsched.policies.gandiva_fair.filling_in import fill_in
from slurmsched.policies.gandiva_fair.homing import Homes
from slurmsched.policies.gandiva_fair.market import Market, hold
from slurmsched.policies.gandiva_fair.remembering import Past, Remembered
from slurmsched.policies.gandiva_fair.saying import Said, ranking, targets_of, waiting_for
from slurmsched.policies.gandiva_fair.turns import take_turns
from slurmsched.policies.placing import Placement
from slurmsched.policies.protocol import Situation

__all__ = ["GandivaFair"]


@dataclass(frozen=True, slots=True)
class GandivaFair:
    """Tickets, trades, homes, turns; what is left goes to whoever fits."""

    name: str = "gandiva-fair"
    allocating: Allocating = field(default_factory=Proportional)

    def decide(self, situation: Situation) -> Decision:
        past, arena = Past.read(situation.state), Arena(situation, self.allocating)
        best = best_rates(past, situation.jobs, situation.knowledge.measured)
        market = hold(arena, best)
        for one, tickets in zip(arena.contenders, market.tickets.tolist(), strict=True):
            one.tickets = tickets
        bring_forward(arena.contenders, past, situation.knowledge.service)
        late = owed(arena, market, past)
        reached = _find_homes(arena, market, past, late)
        queue = sorted(arena.contenders, key=lambda one: (one.passed, one.lease is None))
        said = {one.job.id: Said.of(one, reached) for one in queue}
        turns, servers = take_turns(arena, queue, situation.moves)
        placed = turns.kept.keys() | turns.started.keys() | turns.left.keys()
        waiting = [one for one in queue if one.job.id not in placed]
        filled = fill_in(arena, waiting, servers, market.types)
        for one in waiting:
            if one.narrow and one.job.id in filled:
                one.home = filled[one.job.id].pools[0]
        targets = targets_of(arena, turns, filled, said)
        waits = waiting_for(arena, queue, turns, targets, said)
        now = Past(
            situation.snapshot.time,
            _remembered(arena, {**{job: place for job, (_, place) in turns.started.items()}, **filled}),
            settled_accounts(arena, market, past, late),
            market.trades,
            best,
        )
        ending = tuple(Ranked(job.id, "ends") for job in situation.jobs if job.state is JobState.COMPLETING)
        order = (*ranking(queue, said), *ending)
        victims = {job: newcomer.job.id for job, (_, newcomer) in turns.left.items()}
        return Decision(self.name, order, targets, waits, victims, now.written())


def _find_homes(
    arena: Arena, market: Market, past: Past, late: Mapping[str, Mapping[str, float]]
) -> Mapping[int, float]:
    """Give everybody who has none a home, and some another; how far the last of each pool has come."""
    pools = arena.pools
    names = {f"{pools.node(pool).name} {pools.types[pool]}": pool for pool in range(len(pools))}
    settled, newcomers = list[Contender](), list[Contender]()
    for one in arena.contenders:
        before = past.jobs.get(one.job.id)
        if one.lease is None and one.narrow and before is not None:
            home = names.get(before.home, -1)
            one.home = home if arena.at_home(one.wish, home) else -1
        known = before is not None and (one.home >= 0 or not one.narrow)
        (settled if known else newcomers).append(one)
    homes = Homes(arena, market, late, settled)
    new = [one for one in newcomers if one.job.id not in past.jobs]
    of_user, come = Counter(one.job.user for one in new), Counter[str]()
    for one in newcomers:
        if one.job.id in past.jobs:
            homes.enter(one)
        else:
            come[one.job.user] += 1
            homes.enter(one, come[one.job.user] / of_user[one.job.user])
    homes.balance([one for one in settled if one.narrow and one.lease is None])
    reached: dict[int, float] = {}
    for one in arena.contenders:
        reached[one.home] = min(one.passed, reached.get(one.home, one.passed))
    return reached


def _remembered(arena: Arena, placed: Mapping[JobId, Placement]) -> Mapping[JobId, Remembered]:
    """Of every job; one that lies on several nodes is at home on their type only."""
    pools, attained = arena.pools, arena.situation.knowledge.attained
    names = [f"{pools.node(pool).name} {kind}" for pool, kind in enumerate(pools.types)]
    found: dict[JobId, Remembered] = {}
    for one in arena.contenders:
        lies = placed[one.job.id].pools if one.job.id in placed else one.lease.pools if one.lease else ()
        apart = f" {pools.types[lies[0]]}" if lies else ""
        home = names[one.home] if one.home >= 0 else apart
        found[one.job.id] = Remembered(one.passed, attained(one.job), home)
    return found
