"""What was had since the last round: brought forward in passes, and in the accounts of users."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from slurmsched.model import Job
from slurmsched.policies.gandiva_fair.contenders import Arena, Contender
from slurmsched.policies.gandiva_fair.market import Market
from slurmsched.policies.gandiva_fair.remembering import Account, Past

__all__ = ["best_rates", "had_since", "owed", "settled_accounts"]

_NONE: Final = 1e-9
_LATELY: Final = 8.0
"""Rounds that a shortfall of one type of GPU is remembered for."""

Had = Mapping[tuple[str, str], float]
"""GPU-seconds by user and type."""


def had_since(arena: Arena, past: Past) -> Had:
    """What jobs had since the last round, as the GPU-seconds they attained tell: measured, not planned, so that nothing
    is lost when a round is. A job counts on the type it was at home on."""
    found = defaultdict[tuple[str, str], float](float)
    for one in arena.contenders:
        before = past.jobs.get(one.job.id)
        if before is None:
            continue
        attained = max(0.0, arena.situation.knowledge.attained(one.job) - before.attained)
        kind = before.home.rpartition(" ")[2]
        if attained:
            found[one.job.user, kind] += attained
    return found


def owed(arena: Arena, market: Market, past: Past, had: Had) -> Mapping[str, Mapping[str, float]]:
    """GPU-seconds of each type by which every user fell short lately, below zero for those who had more.

    Only the mix of types counts: what a user is short of on all of them alike no other home would mend.
    """
    lapse = _lapse(arena, past)
    found: dict[str, dict[str, float]] = {}
    for user, held in market.holdings.items():
        before = past.users.get(user, Account()).owed
        late = {kind: before.get(kind, 0.0) + gpus * lapse - had.get((user, kind), 0.0) for kind, gpus in held.items()}
        alike = sum(late.values()) / max(sum(held.values()), _NONE)
        own = found[user] = {}
        for kind, gpus in held.items():
            limit = _LATELY * arena.situation.period * max(gpus, 1.0)
            own[kind] = max(-limit, min(limit, late[kind] - alike * gpus))
    return found


def settled_accounts(
    arena: Arena, market: Market, past: Past, had: Had, owed: Mapping[str, Mapping[str, float]]
) -> Mapping[str, Account]:
    """The account of everybody who has jobs: those of the others are closed."""
    lapse, total = _lapse(arena, past), defaultdict[str, float](float)
    for one, tickets in zip(arena.contenders, market.tickets.tolist(), strict=True):
        total[one.job.user] += tickets
    found: dict[str, Account] = {}
    for user, tickets in total.items():
        before, worth = past.users.get(user, Account()), market.speedups.get(user, {})
        held = market.holdings.get(user, {})
        confined = max(0.0, tickets - sum(held.values()))
        due = confined + sum(gpus * worth.get(kind, 1.0) for kind, gpus in held.items())
        gained = sum(gpus * worth.get(kind, 1.0) for (owner, kind), gpus in had.items() if owner == user)
        found[user] = Account(
            due=before.due + due * lapse,
            had=before.had + gained,
            holdings={kind: round(gpus, 6) for kind, gpus in held.items()},
            speedups=dict(worth),
            owed={kind: round(late, 3) for kind, late in owed.get(user, {}).items()},
        )
    return found


def _lapse(arena: Arena, past: Past) -> float:
    """Seconds since the last round."""
    return 0.0 if past.time is None else max(0.0, arena.situation.snapshot.time - past.time)


def best_rates(past: Past, jobs: Iterable[Job], measured: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    """The highest rates so far, by `model type`, of models that still have jobs."""
    models = {job.id: job.hints.model for job in jobs if job.hints.model}
    alive = frozenset(models.values())
    best = {key: rate for key, rate in past.best.items() if key.rpartition(" ")[0] in alive}
    for job, model in models.items():
        for kind, rate in measured.get(job, {}).items():
            best[f"{model} {kind}"] = max(best.get(f"{model} {kind}", 0.0), rate)
    return best


def passes(contenders: Iterable[Contender], past: Past, attained: Mapping[str, float]) -> None:
    """Bring every job's pass forward by what it had, in seconds of its tickets."""
    for one in contenders:
        before = past.jobs.get(one.job.id)
        if before is not None:
            gained = max(0.0, attained.get(one.job.id, 0.0) - before.attained)
            one.passed = before.passed + (gained / one.tickets if one.tickets > 0 else 0.0)
