"""What can keep a model from being profiled."""

from __future__ import annotations

from slurmsched.model import SynschedError

__all__ = ["ProfilingError"]


class ProfilingError(SynschedError):
    """A profiling run gave no speed; the message says which and what to look at."""
