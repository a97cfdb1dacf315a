"""What can be wrong with a file that describes work or machines."""

from __future__ import annotations

from slurmsched.model import SynschedError

__all__ = ["TraceError"]


class TraceError(SynschedError):
    """A trace or cluster that cannot be used; the message names file, line, field and what was expected."""

    exit_code = 2
