"""Tickets (Gandiva_fair, EuroSys 2020, slide 6): from tickets of accounts and users to GPUs of jobs, before trading.

Accounts lie within accounts and users within accounts; a user's tickets are divided equally over the user's jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.model import Association, Job
from slurmsched.settings.definition import TicketSettings
from slurmsched.settings.schema import parse_tickets


def water_filling(amount: float, weights: Floats, caps: Floats) -> Floats:
    """Returns the weighted max-min fair shares of `amount`, none above its cap.

    Weights are above zero. The shares sum to `amount`, or to the caps where these sum to less.
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
    """Configured tickets. `parents` has the parent of each account; accounts without one are below the root.

    Where no account is configured, users are directly below the root.
    """

    users: Mapping[tuple[str, str], float]
    """By account and user; the account "" means any account."""
    accounts: Mapping[str, float]
    parents: Mapping[str, str]
    default: float = 1.0

    def tickets_of_user(self, account: str, user: str) -> float:
        return self.users.get((account, user)) or self.users.get((ROOT, user)) or self.default

    def tickets_of_account(self, account: str) -> float:
        return self.accounts.get(account) or self.default


def build_ticket_registry(settings: TicketSettings, associations: Iterable[Association]) -> TicketRegistry:
    """Returns the tickets of the settings if they name any, else Slurm's shares, else equal tickets for all.

    Shares of 0, and those that Slurm calls `parent`, count as the default, so that no user is shut out for good.
    """
    if settings.users or settings.accounts:
        users = dict(filter(None, map(parse_tickets, settings.users)))
        paths = dict(filter(None, map(parse_tickets, settings.accounts)))
        above = {path.rpartition("/")[2]: path.rpartition("/")[0].rpartition("/")[2] for path in paths}
        accounts = {path.rpartition("/")[2]: tickets for path, tickets in paths.items()}
        return TicketRegistry(
            {(ROOT, user): tickets for user, tickets in users.items()}, accounts, above, settings.default
        )
    with_shares = [association for association in associations if association.shares]
    return TicketRegistry(
        {(entry.account, entry.user): float(entry.shares or 0) for entry in with_shares if entry.user},
        {entry.account: float(entry.shares or 0) for entry in with_shares if not entry.user},
        {association.account: association.parent for association in associations if not association.user},
        settings.default,
    )


@dataclass(slots=True)
class TicketTree:
    """An account or a user: its tickets relative to its siblings, its children, and the indices of its jobs."""

    tickets: float
    children: dict[str, TicketTree] = field(default_factory=dict)
    jobs: list[int] = field(default_factory=list)


def build_ticket_tree(jobs: Sequence[Job], registry: TicketRegistry) -> TicketTree:
    """Returns the tree of accounts, their users and the users' jobs."""
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
    """Returns the account's subtree and creates its ancestors. A cycle of parents ends at the root."""
    path: list[str] = []
    while account != ROOT and account not in path:
        path.append(account)
        account = registry.parents.get(account, ROOT)
    subtree = root
    for name in reversed(path):
        subtree = subtree.children.setdefault(name, TicketTree(registry.tickets_of_account(name)))
    return subtree


def divide_by_tickets(tree: TicketTree, amount: float, caps: Floats) -> Floats:
    """Returns how much of `amount` each job is entitled to, never above its cap.

    What a job cannot use goes to the user's other jobs first, then to other users of the account, then to all.
    """
    shares = np.zeros(len(caps))

    def demand_of(branch: TicketTree) -> float:
        return sum(map(demand_of, branch.children.values())) + float(caps[branch.jobs].sum())

    def divide(branch: TicketTree, amount: float) -> None:
        under = [*branch.children.values()]
        if branch.jobs:
            shares[branch.jobs] = water_filling(amount, np.ones(len(branch.jobs)), caps[branch.jobs])
        if under:
            weights, demands = np.array([child.tickets for child in under]), np.array([*map(demand_of, under)])
            for child, part in zip(under, water_filling(amount, weights, demands), strict=True):
                divide(child, float(part))

    divide(tree, amount)
    return shares


_EPSILON: Final = 1e-9
_MAX_COMBINED_SETS: Final = 6


def entitled_gpus(
    tree: TicketTree, caps: Floats, allowed: Sequence[frozenset[str]], capacity: Mapping[str, float]
) -> Floats:
    """Returns the GPUs of any type that each job is entitled to by its tickets.

    `caps` are the GPUs each job can use, `allowed` the types it can run on. Where the jobs that are confined to some
    types demand more than these have, they share them by tickets; what they get counts towards their users' shares.
    """
    caps, whole = np.asarray(caps, dtype=np.float64).copy(), sum(capacity.values())
    confined = {
        kinds: np.array([types <= kinds for types in allowed], dtype=np.bool_) for kinds in _type_unions(allowed)
    }
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
    """Returns all unions of the sets of types; of more than `_MAX_COMBINED_SETS` sets only the sets themselves."""
    kinds = set(allowed)
    if len(kinds) > _MAX_COMBINED_SETS:
        return kinds
    some = chain.from_iterable(combinations(kinds, count) for count in range(1, len(kinds) + 1))
    return {frozenset().union(*chosen) for chosen in some}


def compose_types(amount: float, left: Mapping[str, float], fastest_first: Sequence[str]) -> Mapping[str, float]:
    """Returns how many GPUs of each type make up `amount`: of what is `left`, the fastest types first."""
    parts: dict[str, float] = {}
    for gpu_type in fastest_first:
        parts[gpu_type] = min(amount, max(0.0, left.get(gpu_type, 0.0)))
        amount -= parts[gpu_type]
    return parts
