"""What a job that is forked needs: imported by itself, since it needs numpy.

HadarE trains copies of one job on several nodes at once; after each round their parameters are put together.
"""

from slurmsched.jobside.averaging import Copy, average
from slurmsched.jobside.forked_training import ForkedTraining
from slurmsched.jobside.lookahead import look_ahead, momentum
from slurmsched.jobside.portions import portions
from slurmsched.jobside.state_dicts import average_state_dicts
from slurmsched.jobside.surroundings import ArrayTask
from slurmsched.jobside.tracker import Fork, JobTracker

__all__ = [
    "ArrayTask",
    "Copy",
    "Fork",
    "ForkedTraining",
    "JobTracker",
    "average",
    "average_state_dicts",
    "look_ahead",
    "momentum",
    "portions",
]
