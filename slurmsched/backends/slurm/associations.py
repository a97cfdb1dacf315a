"""The shares of accounts and users, as `sshare -a -P` prints them."""

from __future__ import annotations

from typing import Final

from slurmsched.backends.slurm.errors import NotUnderstoodError
from slurmsched.backends.slurm.values import said, whole
from slurmsched.model import Association

__all__ = ["associations_of"]

_COLUMNS: Final = ("Account", "User", "RawShares")


def associations_of(text: str) -> tuple[Association, ...]:
    """Every association, accounts before their users. An account's depth is how far its name is indented.

    Raises NotUnderstoodError.
    """
    heading, *rows = text.splitlines() or [""]
    columns = heading.split("|")
    if not set(_COLUMNS) <= set(columns):
        raise NotUnderstoodError(f"sshare prints no columns {', '.join(_COLUMNS)}: {heading[:60]!r}")
    places = [columns.index(name) for name in _COLUMNS]
    found: list[Association] = []
    above: list[str] = []
    for row in filter(None, rows):
        cells = row.split("|")
        if len(cells) <= max(places):
            raise NotUnderstoodError(f"not a line of sshare: {row[:60]!r}")
        account, user, shares = (cells[place] for place in places)
        depth, name = len(account) - len(account.lstrip()), account.strip()
        if user:
            found.append(Association(name, user, name, _shares(shares)))
            continue
        del above[depth:]
        found.append(Association(name, "", above[-1] if above else "", _shares(shares)))
        above.append(name)
    return tuple(found)


def _shares(text: str) -> int | None:
    return whole(text) if said(text) and text != "parent" else None
