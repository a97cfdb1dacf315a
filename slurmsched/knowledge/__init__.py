"""What is known about speed."""

from slurmsched.knowledge.gavel import load_gavel_rates
from slurmsched.knowledge.knowledge import Knowledge, Profile
from slurmsched.knowledge.loading import load_knowledge
from slurmsched.knowledge.profiles import ProfileError, load_profiles, sample_speedups, shipped_profiles
from slurmsched.knowledge.scaling import Scaling
from slurmsched.knowledge.sensitivity import SensitivityMatrix
from slurmsched.knowledge.synergy import load_synergy_profiles

__all__ = [
    "Knowledge",
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
