"""What is known about speed."""

from slurmsched.knowledge.knowledge import Knowledge, Profile
from slurmsched.knowledge.profiles import ProfileError, load_profiles, shipped_profiles
from slurmsched.knowledge.sensitivity import SensitivityMatrix
from slurmsched.knowledge.synergy import load_synergy_profiles

__all__ = [
    "Knowledge",
    "Profile",
    "ProfileError",
    "SensitivityMatrix",
    "load_profiles",
    "load_synergy_profiles",
    "shipped_profiles",
]
