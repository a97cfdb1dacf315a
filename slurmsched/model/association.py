"""Who is promised what part of the cluster, as Slurm's accounting has it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Association"]


@dataclass(frozen=True, slots=True)
class Association:
    """One line of `sshare`: an account, or a user in it. `parent` is the account above, empty for the root's own.

    `shares` count among those with the same parent; None where Slurm says `parent`, and for the root.
    """

    account: str
    user: str = ""
    parent: str = ""
    shares: int | None = 1
