"""Whose tickets count how much (Gandiva_fair, slide 6): accounts within accounts, users within accounts, and a user's
tickets divided equally over the user's jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurmsched.model import Association, Job
from slurmsched.policies.gandiva_fair.filling import Floats, filled
from slurmsched.settings.definition import Tickets
from slurmsched.settings.tickets import tickets_of

__all__ = ["ROOT", "Branch", "Registry", "registry_of", "share_out", "tree"]

ROOT: Final = ""


@dataclass(frozen=True, slots=True)
class Registry:
    """What is written down of tickets. `above` is the account over each account; the root is over those that it leaves
    out. Users belong to accounts where accounts are written down at all, else to the root."""

    users: Mapping[tuple[str, str], float]
    """By account and user; the account "" stands for every one."""
    accounts: Mapping[str, float]
    above: Mapping[str, str]
    default: float = 1.0

    def of_user(self, account: str, user: str) -> float:
        return self.users.get((account, user)) or self.users.get((ROOT, user)) or self.default

    def of_account(self, account: str) -> float:
        return self.accounts.get(account) or self.default


def registry_of(said: Tickets, associations: Iterable[Association]) -> Registry:
    """The settings, where they name anybody; else Slurm's shares; else everybody has the same.

    Shares of 0, and those that Slurm calls `parent`, count as the default: nobody is shut out for good.
    """
    if said.users or said.accounts:
        users = dict(filter(None, map(tickets_of, said.users)))
        paths = dict(filter(None, map(tickets_of, said.accounts)))
        above = {path.rpartition("/")[2]: path.rpartition("/")[0].rpartition("/")[2] for path in paths}
        accounts = {path.rpartition("/")[2]: tickets for path, tickets in paths.items()}
        return Registry({(ROOT, user): tickets for user, tickets in users.items()}, accounts, above, said.default)
    own = [one for one in associations if one.shares]
    return Registry(
        {(one.account, one.user): float(one.shares or 0) for one in own if one.user},
        {one.account: float(one.shares or 0) for one in own if not one.user},
        {one.account: one.parent for one in associations if not one.user},
        said.default,
    )


@dataclass(slots=True)
class Branch:
    """An account or a user: its tickets among its like, what lies under it, and its own jobs, by position."""

    tickets: float
    under: dict[str, Branch] = field(default_factory=dict)
    jobs: list[int] = field(default_factory=list)


def tree(jobs: Sequence[Job], registry: Registry) -> Branch:
    """The jobs under their users, those under their accounts."""
    root, users = Branch(1.0), dict[tuple[str, str], Branch]()
    for place, job in enumerate(jobs):
        account = job.account if registry.above else ROOT
        branch = users.get((account, job.user))
        if branch is None:
            over = _account(root, account, registry)
            branch = over.under.setdefault(f"{job.user} ", Branch(registry.of_user(account, job.user)))
            users[account, job.user] = branch
        branch.jobs.append(place)
    return root


def _account(root: Branch, account: str, registry: Registry) -> Branch:
    """The account's branch, with all those above it. Whoever is above himself stands under the root."""
    path: list[str] = []
    while account != ROOT and account not in path:
        path.append(account)
        account = registry.above.get(account, ROOT)
    branch = root
    for name in reversed(path):
        branch = branch.under.setdefault(name, Branch(registry.of_account(name)))
    return branch


def share_out(branch: Branch, amount: float, caps: Floats) -> Floats:
    """What of `amount` each job is entitled to, never above its cap. What somebody leaves goes to the nearest of kin:
    first to the other jobs of the user, then to the users of the account, then to everybody."""
    shares = np.zeros(len(caps))

    def wanted(branch: Branch) -> float:
        return sum(map(wanted, branch.under.values())) + float(caps[branch.jobs].sum())

    def give(branch: Branch, amount: float) -> None:
        under = [*branch.under.values()]
        if branch.jobs:
            shares[branch.jobs] = filled(amount, np.ones(len(branch.jobs)), caps[branch.jobs])
        if under:
            weights, wants = np.array([one.tickets for one in under]), np.array([*map(wanted, under)])
            for one, part in zip(under, filled(amount, weights, wants), strict=True):
                give(one, float(part))

    give(branch, amount)
    return shares
