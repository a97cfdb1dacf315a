"""What accounting says: the shares of accounts and users (`sshare -a -P`), and who may do what (`sacctmgr`)."""

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
    """Every association, accounts before their users. An account's depth is how far its name is indented.

    Raises NotUnderstoodError.
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
    """The name behind the effective user id, which is what munge tells Slurm."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_identity(commands: Commands, user: str, slurm_user: str) -> Identity:
    """The user's rights. Where accounting does not answer nobody but SlurmUser and root has any."""
    if user in ("root", slurm_user):
        return Identity(user, Privilege.SLURM_USER)
    try:
        output = commands.read("sacctmgr", "-nP", "show", "user", f"name={user}", "format=User,AdminLevel")
    except BackendError:
        return Identity(user, Privilege.NONE)
    for line in output.splitlines():
        name, _, level = line.partition("|")
        if name == user:
            return Identity(user, _LEVELS.get(level.strip().lower(), Privilege.NONE))
    return Identity(user, Privilege.NONE)


def read_operators(commands: Commands, slurm_user: str) -> frozenset[str]:
    """Everybody whom Slurm shows everything. Where accounting does not answer these are SlurmUser and root."""
    try:
        output = commands.read("sacctmgr", "-nP", "show", "user", "format=User,AdminLevel")
    except BackendError:
        output = ""
    rows = (line.split("|") for line in output.splitlines())
    levels = {row[0]: row[1].strip().lower() for row in rows if len(row) > 1}
    return frozenset({"root", slurm_user, *(user for user, level in levels.items() if level in _LEVELS)}) - {""}
