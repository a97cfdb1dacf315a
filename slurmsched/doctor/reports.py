"""What jobs tell of themselves: whether they can, and who tells what cannot be."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from slurmsched.doctor.finding import Finding, fine, hint, mend
from slurmsched.report.quantities import count
from slurmsched.store.rows import ComplaintRow

__all__ = ["about_reports", "about_spool"]

_TOPIC: Final = "reports"
_SHOWN: Final = 20


def about_spool(path: str) -> Iterator[Finding]:
    """Whether jobs can report there, and none in another's name. Nothing where no spool is set."""
    if not path:
        return
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        yield mend(_TOPIC, f"the spool {path} cannot be used: {error.strerror}", f"install -d -m 1777 {path}")
        return
    if not stat.S_ISDIR(mode) or not mode & stat.S_IWOTH:
        yield mend(_TOPIC, f"jobs cannot write into the spool {path}", f"install -d -m 1777 {path}")
    elif not mode & stat.S_ISVTX:
        yield mend(_TOPIC, f"in the spool {path} anybody may remove another's reports", f"chmod 1777 {path}")
    else:
        yield fine(_TOPIC, f"are read from {path}")


def about_reports(complaints: Sequence[ComplaintRow]) -> Iterator[Finding]:
    """Each job or user whose reports were not believed in the last day, the most recent first, up to a screenful."""
    shown = complaints[:_SHOWN]
    for complaint in shown:
        yield hint(_TOPIC, f"{complaint.subject}: {complaint.sentence}", "it is not used; ask its owner")
    if len(complaints) > len(shown):
        yield hint(_TOPIC, f"{count(len(complaints) - len(shown), 'more complaint')}", "look at the spool")
