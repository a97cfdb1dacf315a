"""Tickets (Gandiva_fair, EuroSys 2020, slide 6): from tickets of accounts and users to GPUs of jobs, before trading.

Accounts lie within accounts and users within accounts; a user's tickets are divided equally over the user's jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Mask
from slurmsched.model import Association, Job
from slurmsched.settings.definition import TicketSettings
from slurmsched.settings.schema import parse_tickets

_EPSILON: Final = 1e-9


def water_filling(amount: float, weights: Floats, caps: Floats, floors: Floats | None = None) -> Floats:
    """Returns the weighted max-min fair shares of `amount`, none above its cap, and none below its floor if there are
    floors.

    Weights are above zero, floors not above caps. The shares sum to `amount`, to the caps where these sum to less, and
    to the floors where these sum to more.
    """
    if caps.sum() <= amount:
        return caps.astype(np.float64)
    if floors is not None and floors.any():
        return _water_filling_above(amount, weights, caps, floors)
    order = np.argsort(caps / weights, kind="stable")
    weight, cap = weights[order], caps[order]
    level = (amount - (np.cumsum(cap) - cap)) / (weights.sum() - (np.cumsum(weight) - weight))
    enough = int(np.argmax(level * weight <= cap))
    return np.minimum(caps, weights * max(float(level[enough]), 0.0))


def _water_filling_above(amount: float, weights: Floats, caps: Floats, floors: Floats) -> Floats:
    """Returns the shares with those at their floors whose part by weight is less, and the rest for the others."""
    shares, open_ = floors.astype(np.float64), np.ones(len(caps), dtype=np.bool_)
    while open_.any():
        found = water_filling(max(0.0, amount - float(floors[~open_].sum())), weights[open_], caps[open_])
        below = found < floors[open_] - _EPSILON
        if not below.any():
            shares[open_] = found
            return shares
        open_[np.flatnonzero(open_)[below]] = False
    return shares


ROOT: Final = ""

UNNAMED: Final = " "
"""The account that stands for all accounts of which nothing is known where others have tickets; no account has this
name."""

_SLURM_ROOT: Final = "root"


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

    def account_of(self, job: Job) -> str:
        """Return the account whose tickets the job counts towards."""
        if not self.parents:
            return ROOT
        return job.account if job.account in self.parents else UNNAMED

    def tickets_of_user(self, account: str, user: str) -> float:
        return self.users.get((account, user)) or self.users.get((ROOT, user)) or self.default

    def tickets_of_account(self, account: str) -> float:
        return self.accounts.get(account) or self.default


def build_ticket_registry(settings: TicketSettings, associations: Iterable[Association]) -> TicketRegistry:
    """Returns the tickets of the settings if they name any, else Slurm's shares, else equal tickets for all.

    Shares of 0, and those that Slurm calls `parent`, count as the default, so that no user is shut out for good. Where
    the settings name accounts, others have tickets in the proportion of Slurm's shares, if we know these.
    """
    associations = tuple(associations)
    if settings.users or settings.accounts:
        users = dict(filter(None, map(parse_tickets, settings.users)))
        paths = dict(filter(None, map(parse_tickets, settings.accounts)))
        above = {path.rpartition("/")[2]: path.rpartition("/")[0].rpartition("/")[2] for path in paths}
        accounts = {path.rpartition("/")[2]: tickets for path, tickets in paths.items()}
        if accounts:
            accounts, above = _with_unnamed_accounts(accounts, above, associations)
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


def _with_unnamed_accounts(
    accounts: Mapping[str, float], parents: Mapping[str, str], associations: Iterable[Association]
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the tickets and parents of accounts with those that Slurm knows beside the named ones.

    An account that is not named stands where it does in Slurm. Of its parent's tickets it has as many to its share as
    the named accounts there have to theirs, and the default if there are none.
    """
    in_slurm = {entry.account: entry for entry in associations if not entry.user and entry.account != _SLURM_ROOT}
    all_accounts, all_parents = dict(accounts), dict(parents)
    tickets, shares = defaultdict[str, float](float), Counter[str]()
    for account in sorted(accounts.keys() & in_slurm.keys()):
        if in_slurm[account].shares:
            tickets[in_slurm[account].parent] += accounts[account]
            shares[in_slurm[account].parent] += in_slurm[account].shares or 0
    for account, entry in in_slurm.items():
        if account not in accounts:
            all_parents[account] = ROOT if entry.parent == _SLURM_ROOT else entry.parent
            if entry.shares and shares[entry.parent]:
                all_accounts[account] = entry.shares * tickets[entry.parent] / shares[entry.parent]
    return all_accounts, all_parents


@dataclass(slots=True)
class TicketTree:
    """An account or a user: its tickets relative to its siblings, its children, and the indices of its jobs."""

    tickets: float
    children: dict[str, TicketTree] = field(default_factory=dict)
    jobs: list[int] = field(default_factory=list)


def build_ticket_tree(jobs: Sequence[Job], registry: TicketRegistry) -> TicketTree:
    """Returns the tree of accounts, their users and the users' jobs.

    A user who has jobs in several accounts has an equal part of the user's tickets in each: nobody draws twice. All
    accounts of which nothing is known are one, where others have tickets: nobody draws more by naming another.
    """
    root, users = TicketTree(1.0), dict[tuple[str, str], TicketTree]()
    accounts = [registry.account_of(job) for job in jobs]
    count = Counter(user for _, user in {(account, job.user) for account, job in zip(accounts, jobs, strict=True)})
    for index, (job, account) in enumerate(zip(jobs, accounts, strict=True)):
        subtree = users.get((account, job.user))
        if subtree is None:
            account_tree = _account_tree(root, account, registry)
            tickets = registry.tickets_of_user(account, job.user) / count[job.user]
            subtree = account_tree.children.setdefault(f"{job.user} ", TicketTree(tickets))
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


def divide_by_tickets(tree: TicketTree, amount: float, caps: Floats, floors: Floats | None = None) -> Floats:
    """Returns how much of `amount` each job is entitled to, never above its cap.

    What a job cannot use goes to the user's other jobs first, then to other users of the account, then to all. A floor
    is what a job holds that cannot be taken from it: it counts towards the share of its user, and what exceeds that
    towards those of the account and of all.
    """
    shares, floors = np.zeros(len(caps)), np.zeros(len(caps)) if floors is None else floors

    def demand_of(branch: TicketTree) -> float:
        return sum(map(demand_of, branch.children.values())) + float(caps[branch.jobs].sum())

    def held_by(branch: TicketTree) -> float:
        return sum(map(held_by, branch.children.values())) + float(floors[branch.jobs].sum())

    def divide(branch: TicketTree, amount: float) -> None:
        under = [*branch.children.values()]
        if branch.jobs:
            shares[branch.jobs] = water_filling(
                amount, np.ones(len(branch.jobs)), caps[branch.jobs], floors[branch.jobs]
            )
        if under:
            weights, demands = np.array([child.tickets for child in under]), np.array([*map(demand_of, under)])
            held = np.array([*map(held_by, under)])
            for child, part in zip(under, water_filling(amount, weights, demands, held), strict=True):
                divide(child, float(part))

    divide(tree, amount)
    return shares


_MAX_COMBINED_SETS: Final = 6


def entitled_gpus(
    tree: TicketTree,
    caps: Floats,
    allowed: Sequence[frozenset[str]],
    capacity: Mapping[str, float],
    *,
    floors: Floats | None = None,
    users: Sequence[str] = (),
    faster: Sequence[frozenset[str]] = (),
) -> Floats:
    """Returns the GPUs of any type that each job is entitled to by its tickets.

    `caps` are the GPUs each job can use, `allowed` the types it can run on, `floors` the GPUs that cannot be taken from
    it. Where the jobs that are confined to some types demand more than these have, they share them by tickets; what
    they get counts towards their users' shares.

    Each set of `faster` holds the types that are faster than all others: jobs confined to them get no more than their
    users' parts of these types (`users` has that of each job), so that nobody gains by asking for a fast type by name.
    Slower types count one for one: whoever takes them leaves faster ones to others.
    """
    floors = np.zeros(len(caps)) if floors is None else floors
    caps, whole = np.asarray(caps, dtype=np.float64).copy(), sum(capacity.values())
    confined = {
        kinds: np.array([types <= kinds for types in allowed], dtype=np.bool_) for kinds in _type_unions(allowed)
    }
    for fast in faster:
        inside = np.array([bool(kinds) and kinds <= fast for kinds in allowed], dtype=np.bool_)
        if inside.any():
            wanted = np.array([not kinds.isdisjoint(fast) for kinds in allowed], dtype=np.bool_)
            gpus = sum(capacity.get(kind, 0.0) for kind in fast)
            parts = divide_by_tickets(tree, gpus, np.where(wanted, caps, 0.0), np.where(inside, floors, 0.0))
            caps = _within_parts(parts, caps, floors, inside, users)
    capacity_of = {kinds: sum(capacity.get(gpu_type, 0.0) for gpu_type in kinds) for kinds in confined}
    while True:
        shares = divide_by_tickets(tree, whole, caps, floors)
        over = {kinds: float(shares[inside].sum()) - capacity_of[kinds] for kinds, inside in confined.items()}
        worst = max(over, key=lambda kinds: over[kinds] / max(capacity_of[kinds], 1.0), default=None)
        if worst is None or over[worst] <= _EPSILON * max(whole, 1.0):
            return shares
        inside = confined.pop(worst)
        within, held = np.where(inside, caps, 0.0), np.where(inside, floors, 0.0)
        caps[inside] = divide_by_tickets(tree, capacity_of[worst], within, held)[inside]


def _within_parts(parts: Floats, caps: Floats, floors: Floats, inside: Mask, users: Sequence[str]) -> Floats:
    """Returns the caps of jobs, of those `inside` together no more than their user's part; all are by job."""
    caps, user_of = caps.copy(), np.unique(np.array(users), return_inverse=True)[1]
    part_of = np.bincount(user_of, weights=parts)
    by_user = np.flatnonzero(inside)
    by_user = by_user[np.argsort(user_of[by_user], kind="stable")]
    for rows in np.split(by_user, np.flatnonzero(np.diff(user_of[by_user])) + 1):
        part = float(part_of[user_of[rows[0]]])
        caps[rows] = water_filling(part, np.ones(len(rows)), caps[rows], floors[rows])
    return caps


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
