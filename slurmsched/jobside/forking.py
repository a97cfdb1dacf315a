"""What a job that is forked needs: imported by itself, since it needs numpy.

HadarE trains copies of one job on several nodes at once; after each round their parameters are put together.
"""

from slurmsched.jobside.averaging import Copy, average
from slurmsched.jobside.portions import portions
from slurmsched.jobside.state_dicts import average_state_dicts
from slurmsched.jobside.tracker import Fork, JobTracker

__all__ = ["Copy", "Fork", "JobTracker", "average", "average_state_dicts", "portions"]
