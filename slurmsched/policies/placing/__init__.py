"""Which nodes."""

from slurmsched.policies.placing.choosing import CONSOLIDATED, FIRST_FIT, Choosing
from slurmsched.policies.placing.grounds import Grounds
from slurmsched.policies.placing.packing import place
from slurmsched.policies.placing.placement import Placement
from slurmsched.policies.placing.wishes import Level, Option, Wish, Wishes

__all__ = [
    "CONSOLIDATED",
    "FIRST_FIT",
    "Choosing",
    "Grounds",
    "Level",
    "Option",
    "Placement",
    "Wish",
    "Wishes",
    "place",
]
