"""Profiles from a file, whosever form it has."""

from __future__ import annotations

from pathlib import Path

from slurmsched.knowledge.gavel import is_gavel, load_gavel_rates
from slurmsched.knowledge.knowledge import Knowledge
from slurmsched.knowledge.profiles import load_profiles
from slurmsched.knowledge.synergy import is_synergy, load_synergy_profiles

__all__ = ["load_knowledge"]


def load_knowledge(path: str | Path) -> Knowledge:
    """The profiles in a file of ours, of Synergy's authors or of Gavel's. Raises ProfileError."""
    if is_gavel(path):
        return load_gavel_rates(path)
    return load_synergy_profiles(path) if is_synergy(path) else load_profiles(path)
