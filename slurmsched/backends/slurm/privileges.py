"""Who we are to Slurm, and what it therefore lets us do."""

from __future__ import annotations

import os
import pwd
from typing import Final

from slurmsched.backends.protocol import BackendError, Identity, Privilege
from slurmsched.backends.slurm.commands import Commands

__all__ = ["identity_of", "operators_of", "process_user"]

_LEVELS: Final = {
    "operator": Privilege.OPERATOR,
    "administrator": Privilege.ADMINISTRATOR,
    "admin": Privilege.ADMINISTRATOR,
}


def process_user() -> str:
    """The name behind the effective user id, which is what munge tells Slurm."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def identity_of(commands: Commands, user: str, slurm_user: str) -> Identity:
    """The user's rights. Where accounting does not answer nobody but SlurmUser and root has any."""
    if user in ("root", slurm_user):
        return Identity(user, Privilege.SLURM_USER)
    try:
        told = commands.read("sacctmgr", "-nP", "show", "user", f"name={user}", "format=User,AdminLevel")
    except BackendError:
        return Identity(user, Privilege.NONE)
    for line in told.splitlines():
        name, _, level = line.partition("|")
        if name == user:
            return Identity(user, _LEVELS.get(level.strip().lower(), Privilege.NONE))
    return Identity(user, Privilege.NONE)


def operators_of(commands: Commands, slurm_user: str) -> frozenset[str]:
    """Everybody whom Slurm shows everything. Where accounting does not answer these are SlurmUser and root."""
    try:
        told = commands.read("sacctmgr", "-nP", "show", "user", "format=User,AdminLevel")
    except BackendError:
        told = ""
    rows = (line.split("|") for line in told.splitlines())
    levels = {row[0]: row[1].strip().lower() for row in rows if len(row) > 1}
    return frozenset({"root", slurm_user, *(user for user, level in levels.items() if level in _LEVELS)}) - {""}
