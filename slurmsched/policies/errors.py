"""What a policy raises."""

from __future__ import annotations

from slurmsched.model import SynschedError


class PolicyError(SynschedError):
    """A policy that does not exist, or settings it cannot work with."""

    exit_code = 2
