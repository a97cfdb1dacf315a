"""Sharing an amount by weight among those who want no more than so much each (weighted max-min fairness).

Whose tickets count how much (Gandiva_fair, slide 6): accounts within accounts, users within accounts, and a user's
tickets divided equally over the user's jobs.

What the tickets stand for where there are several types of GPU, before any trade.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import Association, Job
from slurmsched.settings.definition import TicketSettings
from slurmsched.settings.schema import parse_tickets

Floats = NDArray[np.float64]


def water_filling(amount: float, weights: Floats, caps: Floats) -> Floats:
    """What each gets: by weight, never above the cap; what one leaves goes to the others by their weights.

    Weights are above zero. All of `amount` is given out, unless the caps end first.
    """
    if caps.sum() <= amount:
        return caps.astype(np.float64)
    order = np.argsort(caps / weights, kind="stable")
    weight, cap = weights[order], caps[order]
    level = (amount - (np.cumsum(cap) - cap)) / (weights.sum() - (np.cumsum(weight) - weight))
    enough = int(np.argmax(level * weight <= cap))
    return np.minimum(caps, weights * max(float(level[enough]), 0.0))


ROOT: Final = ""


@dataclass(frozen=True, slots=True)
class TicketRegistry:
    """What is written down of tickets. `above` is the account over each account; the root is over those that it leaves
    out. Users belong to accounts where accounts are written down at all, else to the root."""

    users: Mapping[tuple[str, str], float]
    """By account and user; the account "" stands for every one."""
    accounts: Mapping[str, float]
    parents: Mapping[str, str]
    default: float = 1.0

    def tickets_of_user(self, account: str, user: str) -> float:
        return self.users.get((account, user)) or self.users.get((ROOT, user)) or self.default

    def tickets_of_account(self, account: str) -> float:
        return self.accounts.get(account) or self.default


def build_ticket_registry(settings: TicketSettings, associations: Iterable[Association]) -> TicketRegistry:
    """The settings, where they name anybody; else Slurm's shares; else everybody has the same.

    Shares of 0, and those that Slurm calls `parent`, count as the default: nobody is shut out for good.
    """
    if settings.users or settings.accounts:
        users = dict(filter(None, map(parse_tickets, settings.users)))
        paths = dict(filter(None, map(parse_tickets, settings.accounts)))
        above = {path.rpartition("/")[2]: path.rpartition("/")[0].rpartition("/")[2] for path in paths}
        accounts = {path.rpartition("/")[2]: tickets for path, tickets in paths.items()}
        return TicketRegistry(
            {(ROOT, user): tickets for user, tickets in users.items()}, accounts, above, settings.default
        )
    with_shares = [one for one in associations if one.shares]
    return TicketRegistry(
        {(one.account, one.user): float(one.shares or 0) for one in with_shares if one.user},
        {one.account: float(one.shares or 0) for one in with_shares if not one.user},
        {one.account: one.parent for one in associations if not one.user},
        settings.default,
    )


@dataclass(slots=True)
class TicketTree:
    """An account or a user: its tickets among its like, what lies under it, and its own jobs, by position."""

    tickets: float
    children: dict[str, TicketTree] = field(default_factory=dict)
    jobs: list[int] = field(default_factory=list)


def build_ticket_tree(jobs: Sequence[Job], registry: TicketRegistry) -> TicketTree:
    """The jobs under their users, those under their accounts."""
    root, users = TicketTree(1.0), dict[tuple[str, str], TicketTree]()
    for index, job in enumerate(jobs):
        account = job.account if registry.parents else ROOT
        subtree = users.get((account, job.user))
        if subtree is None:
            account_tree = _account_tree(root, account, registry)
            subtree = account_tree.children.setdefault(
                f"{job.user} ", TicketTree(registry.tickets_of_user(account, job.user))
            )
            users[account, job.user] = subtree
        subtree.jobs.append(index)
    return root


def _account_tree(root: TicketTree, account: str, registry: TicketRegistry) -> TicketTree:
    """The account's branch, with all those above it. Whoever is above himself stands under the root."""
    path: list[str] = []
    while account != ROOT and account not in path:
        path.append(account)
        account = registry.parents.get(account, ROOT)
    subtree = root
    for name in reversed(path):
        subtree = subtree.children.setdefault(name, TicketTree(registry.tickets_of_account(name)))
    return subtree


def divide_by_tickets(tree: TicketTree, amount: float, caps: Floats) -> Floats:
    """What of `amount` each job is entitled to, never above its cap. What somebody leaves goes to the nearest of kin:
    first to the other jobs of the user, then to the users of the account, then to everybody."""
    shares = np.zeros(len(caps))

    def demand_of(branch: TicketTree) -> float:
        return sum(map(demand_of, branch.children.values())) + float(caps[branch.jobs].sum())

    def divide(branch: TicketTree, amount: float) -> None:
        under = [*branch.children.values()]
        if branch.jobs:
            shares[branch.jobs] = water_filling(amount, np.ones(len(branch.jobs)), caps[branch.jobs])
        if under:
            weights, wants = np.array([one.tickets for one in under]), np.array([*map(demand_of, under)])
            for one, part in zip(under, water_filling(amount, weights, wants), strict=True):
                divide(one, float(part))

    divide(tree, amount)
    return shares


_EPSILON: Final = 1e-9
_MAX_COMBINED_SETS: Final = 6


def entitled_gpus(
    tree: TicketTree, caps: Floats, allowed: Sequence[frozenset[str]], capacity: Mapping[str, float]
) -> Floats:
    """GPUs that each job's tickets stand for, of all types together.

    `caps` are the GPUs each job can use, `allowed` the types it can run on. Jobs that are confined to some types share
    out those alone where they are the bottleneck; what they get there counts as part of their users' share.
    """
    caps, whole = np.asarray(caps, dtype=np.float64).copy(), sum(capacity.values())
    confined = {kinds: np.array([own <= kinds for own in allowed], dtype=np.bool_) for kinds in _type_unions(allowed)}
    capacity_of = {kinds: sum(capacity.get(gpu_type, 0.0) for gpu_type in kinds) for kinds in confined}
    while True:
        shares = divide_by_tickets(tree, whole, caps)
        over = {kinds: float(shares[inside].sum()) - capacity_of[kinds] for kinds, inside in confined.items()}
        worst = max(over, key=lambda kinds: over[kinds] / max(capacity_of[kinds], 1.0), default=None)
        if worst is None or over[worst] <= _EPSILON * max(whole, 1.0):
            return shares
        inside = confined.pop(worst)
        caps[inside] = divide_by_tickets(tree, capacity_of[worst], np.where(inside, caps, 0.0))[inside]


def _type_unions(allowed: Sequence[frozenset[str]]) -> set[frozenset[str]]:
    """Every set of types that some jobs are confined to. Sites have few types; of many only the sets as they are."""
    kinds = set(allowed)
    if len(kinds) > _MAX_COMBINED_SETS:
        return kinds
    some = chain.from_iterable(combinations(kinds, count) for count in range(1, len(kinds) + 1))
    return {frozenset().union(*chosen) for chosen in some}


def compose_types(amount: float, left: Mapping[str, float], fastest_first: Sequence[str]) -> Mapping[str, float]:
    """How `amount` GPUs are made up of the types that are left: everything where all is needed, else the fastest."""
    found: dict[str, float] = {}
    for gpu_type in fastest_first:
        found[gpu_type] = min(amount, max(0.0, left.get(gpu_type, 0.0)))
        amount -= found[gpu_type]
    return found
