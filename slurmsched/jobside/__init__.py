"""What runs inside a job: steps that are counted and measured, checkpoints when the lease ends, copies put together.

Training scripts import it, so it stands alone: it needs numpy at most, nothing else of slurmsched, and PyTorch only
where the script has it.
"""

from slurmsched.jobside.batch_split import BatchSplit
from slurmsched.jobside.checkpoints import Checkpoint, Checkpoints
from slurmsched.jobside.errors import CheckpointError, JobsideError, ReportError, TensorError, TrackerError
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.training import Training
from slurmsched.jobside.training_state import torch_state

__all__ = [
    "BatchSplit",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "JobsideError",
    "Report",
    "ReportError",
    "Stage",
    "TensorError",
    "TrackerError",
    "Training",
    "torch_state",
]
