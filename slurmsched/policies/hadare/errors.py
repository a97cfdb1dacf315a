"""What can be wrong with copies and their steps."""

from __future__ import annotations

from slurmsched.model import SynschedError

__all__ = ["TrackingError"]


class TrackingError(SynschedError):
    """Copies that cannot be, or steps that do not add up; the message says which."""
