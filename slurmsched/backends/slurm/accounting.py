"""Slurm's accounting: shares of accounts and users (`sshare -a -P`), and users' AdminLevel (`sacctmgr`)."""

from __future__ import annotations

import os
import pwd
from typing import Final

from slurmsched.backends.protocol import BackendError, Identity, Privilege
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.records import or_empty, parse_count
from slurmsched.model import Association

_COLUMNS: Final = ("Account", "User", "RawShares")


def parse_associations(text: str) -> tuple[Association, ...]:
    """Every association, each account before its users. The indentation of an account's name is its depth.

    Raises SlurmParseError.
    """
    heading, *rows = text.splitlines() or [""]
    columns = heading.split("|")
    if not set(_COLUMNS) <= set(columns):
        raise SlurmParseError(f"sshare prints no columns {', '.join(_COLUMNS)}: {heading[:60]!r}")
    columns_used = [columns.index(name) for name in _COLUMNS]
    associations: list[Association] = []
    parents: list[str] = []
    for row in filter(None, rows):
        cells = row.split("|")
        if len(cells) <= max(columns_used):
            raise SlurmParseError(f"not a line of sshare: {row[:60]!r}")
        account, user, shares = (cells[index] for index in columns_used)
        depth, name = len(account) - len(account.lstrip()), account.strip()
        if user:
            associations.append(Association(name, user, name, _raw_shares(shares)))
            continue
        del parents[depth:]
        associations.append(Association(name, "", parents[-1] if parents else "", _raw_shares(shares)))
        parents.append(name)
    return tuple(associations)


def _raw_shares(text: str) -> int | None:
    return parse_count(text) if or_empty(text) and text != "parent" else None


_LEVELS: Final = {
    "operator": Privilege.OPERATOR,
    "administrator": Privilege.ADMINISTRATOR,
    "admin": Privilege.ADMINISTRATOR,
}


def effective_user() -> str:
    """The name of the effective user id, which munge reports to Slurm."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_identity(commands: Commands, user: str, slurm_user: str) -> Identity:
    """The user's privilege. If accounting does not answer, only that of SlurmUser and root is known."""
    if user in ("root", slurm_user):
        return Identity(user, Privilege.SLURM_USER)
    try:
        output = commands.read("sacctmgr", "-nP", "show", "user", f"name={user}", "format=User,AdminLevel")
    except BackendError as error:
        return Identity(user, Privilege.NONE, unread=str(error))
    for line in output.splitlines():
        name, _, level = line.partition("|")
        if name == user:
            return Identity(user, _LEVELS.get(level.strip().lower(), Privilege.NONE))
    return Identity(user, Privilege.NONE)


def read_operators(commands: Commands, slurm_user: str) -> frozenset[str]:
    """The users to whom Slurm shows everything: SlurmUser, root, and operators if accounting answers."""
    try:
        output = commands.read("sacctmgr", "-nP", "show", "user", "format=User,AdminLevel")
    except BackendError:
        output = ""
    rows = (line.split("|") for line in output.splitlines())
    levels = {row[0]: row[1].strip().lower() for row in rows if len(row) > 1}
    return frozenset({"root", slurm_user, *(user for user, level in levels.items() if level in _LEVELS)}) - {""}
