"""The error that policies raise."""

from __future__ import annotations

from slurmsched.model import SynschedError


class PolicyError(SynschedError):
    """An unknown policy, or settings, a constraint or a request that no policy can handle."""

    exit_code = 2
