"""What is known about speed."""

from slurmsched.knowledge.knowledge import Knowledge, Profile
from slurmsched.knowledge.sensitivity import SensitivityMatrix

__all__ = ["Knowledge", "Profile", "SensitivityMatrix"]
