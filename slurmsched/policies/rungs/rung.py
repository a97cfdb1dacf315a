"""What every rung of the ladder promises."""

from __future__ import annotations

from typing import Protocol

from slurmsched.model import Job

__all__ = ["Rung"]


class Rung(Protocol):
    """Made for one draft; what it works out it keeps for the next newcomer."""

    def settles(self, job: Job) -> bool:
        """Either settle the newcomer, changing the draft, and say True; or leave the draft as it was, but for a note
        why it could not, and say False."""
