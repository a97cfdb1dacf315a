"""What jobs tell of themselves: whether they can, and who tells what cannot be."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from slurmsched.doctor.finding import Finding, fine, hint, mend
from slurmsched.jobside.folders import insecure_spool, is_private
from slurmsched.report.quantities import count
from slurmsched.store.rows import ComplaintRow

__all__ = ["about_reports", "about_spool"]

_TOPIC: Final = "reports"
_SHOWN: Final = 20


def about_spool(path: str, database: Path) -> Iterator[Finding]:
    """Whether jobs can report there, and nobody in another's place. Nothing where no spool is set.

    The spool has to belong to root or to whom rounds run as: to us, or where root asks to the owner of the `database`.
    """
    if not path:
        return
    try:
        found = Path(path).stat()
        trusted = {0, database.stat().st_uid if os.geteuid() == 0 and database.exists() else os.geteuid()}
        above = _insecure_above(Path(path).resolve(), trusted)
    except OSError as error:
        yield mend(_TOPIC, f"the spool {path} cannot be used: {error.strerror}", f"install -d -m 1777 {path}")
        return
    mode = found.st_mode
    if not stat.S_ISDIR(mode) or not mode & stat.S_IWOTH or not mode & stat.S_IXOTH:
        yield mend(_TOPIC, f"jobs cannot write into the spool {path}", f"install -d -m 1777 {path}")
    elif (why := insecure_spool(found, trusted)) is not None:
        remedy = f"chmod 1777 {path}" if found.st_uid in trusted else f"chown it to root or to our user: {path}"
        yield mend(_TOPIC, f"the spool {path} {why}: no steps of forked jobs are written there", remedy)
    elif above is not None:
        yield mend(
            _TOPIC, f"the spool {path} can be replaced: {above[0]} {above[1]}", "let only root change that folder"
        )
    elif is_private(found) and found.st_gid not in {os.getegid(), *os.getgroups()} and os.geteuid() != 0:
        yield mend(_TOPIC, f"reports in {path} are for a group that we are not in", "make us a member, or chmod 1777")
    else:
        yield fine(_TOPIC, f"are read from {path}")


def _insecure_above(spool: Path, trusted: Collection[int]) -> tuple[Path, str] | None:
    """A folder above the spool in which users could put another spool, and how they can. Raises OSError."""
    for folder in spool.parents:
        if (why := insecure_spool(folder.stat(), trusted)) is not None:
            return folder, why
    return None


def about_reports(complaints: Sequence[ComplaintRow]) -> Iterator[Finding]:
    """Each job or user whose reports were not believed in the last day, the most recent first, up to a screenful."""
    shown = complaints[:_SHOWN]
    for complaint in shown:
        yield hint(_TOPIC, f"{complaint.subject}: {complaint.sentence}", "it is not used; ask its owner")
    if len(complaints) > len(shown):
        yield hint(_TOPIC, f"{count(len(complaints) - len(shown), 'more complaint')}", "look at the spool")
