"""Profiles of models, how fast jobs run by them, and how long."""

from slurmsched.knowledge.knowledge import Knowledge, MeasuredPairs, OutOfMemoryPairs, Profile
from slurmsched.knowledge.profiles import ProfileError, load_profiles, sample_speedups, shipped_profiles
from slurmsched.knowledge.published import load_gavel_rates, load_knowledge, load_synergy_profiles
from slurmsched.knowledge.speed import Scaling, SensitivityMatrix

__all__ = [
    "Knowledge",
    "MeasuredPairs",
    "OutOfMemoryPairs",
    "Profile",
    "ProfileError",
    "Scaling",
    "SensitivityMatrix",
    "load_gavel_rates",
    "load_knowledge",
    "load_profiles",
    "load_synergy_profiles",
    "sample_speedups",
    "shipped_profiles",
]
