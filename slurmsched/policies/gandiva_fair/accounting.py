"""What was had since the last round: brought forward in passes, and in the accounts of users."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from slurmsched.model import Job, JobId
from slurmsched.policies.gandiva_fair.contenders import Arena, Contender
from slurmsched.policies.gandiva_fair.market import Market
from slurmsched.policies.gandiva_fair.remembering import Account, Past

__all__ = ["best_rates", "bring_forward", "owed", "settled_accounts"]

_NONE: Final = 1e-9
_LATELY: Final = 8.0
"""Rounds that a shortfall of one type of GPU is remembered for."""

Had = Mapping[tuple[str, str], float]
"""GPU-seconds by user and type."""


def _had_since(contenders: Iterable[Contender], past: Past, attained_by: Mapping[JobId, float]) -> Had:
    """What jobs had since the last round, as the GPU-seconds they attained tell: measured, not planned, so that nothing
    is lost when a round is. A job counts on the type it was at home on."""
    found = defaultdict[tuple[str, str], float](float)
    for one in contenders:
        before = past.jobs.get(one.job.id)
        if before is None:
            continue
        attained = max(0.0, attained_by.get(one.job.id, 0.0) - before.attained)
        kind = before.home.rpartition(" ")[2]
        if attained:
            found[one.job.user, kind] += attained
    return found


def owed(arena: Arena, market: Market, past: Past) -> Mapping[str, Mapping[str, float]]:
    """GPU-seconds of each type by which every user fell short lately, below zero for those who had more.

    Only the mix of types counts: what a user is short of on all of them alike no other home would mend.
    """
    lapse, found = _lapse(arena, past), dict[str, dict[str, float]]()
    if len(market.types) == 1:
        return found
    anywhere = [one for one, free in zip(arena.contenders, market.free, strict=True) if free]
    had = _had_since(anywhere, past, arena.situation.knowledge.service)
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
    arena: Arena, market: Market, past: Past, owed: Mapping[str, Mapping[str, float]]
) -> Mapping[str, Account]:
    """The account of everybody who has jobs: those of the others are closed."""
    had = _had_since(arena.contenders, past, arena.situation.knowledge.service)
    lapse, found = _lapse(arena, past), dict[str, Account]()
    for user in dict.fromkeys(one.job.user for one in arena.contenders):
        before, worth = past.users.get(user, Account()), market.speedups.get(user, {})
        held = dict(market.holdings.get(user, {}))
        for kind, gpus in market.confined.get(user, {}).items():
            held[kind] = held.get(kind, 0.0) + gpus
        due = sum(gpus * worth.get(kind, 1.0) for kind, gpus in held.items())
        gained = sum(had.get((user, kind), 0.0) * worth.get(kind, 1.0) for kind in market.types)
        found[user] = Account(
            due=before.due + due * lapse,
            had=before.had + gained,
            holdings={kind: round(gpus, 6) for kind, gpus in held.items() if gpus > 0},
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


def bring_forward(contenders: Iterable[Contender], past: Past, attained: Mapping[JobId, float]) -> None:
    """Every job's pass, by what it had, in seconds of its tickets."""
    for one in contenders:
        before = past.jobs.get(one.job.id)
        if before is not None:
            gained = max(0.0, attained.get(one.job.id, 0.0) - before.attained)
            one.passed = before.passed + (gained / one.tickets if one.tickets > 0 else 0.0)
