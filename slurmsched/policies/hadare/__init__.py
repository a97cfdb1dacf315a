"""HadarE (Sultana et al., 2025, section V): copies of one job run on many nodes at once, so that no node is idle."""

from slurmsched.policies.hadare.job_tracker import (
    ForkedJob,
    JobTracker,
    StepAssignment,
    TrackingError,
    assign_nodes,
    copy_id,
    copy_ids,
    divide_steps,
    split_copy_id,
)
from slurmsched.policies.hadare.throughput import (
    GpuSpec,
    ModelSpec,
    ThroughputEstimates,
    estimate_throughput,
    learned_scale,
)

__all__ = [
    "ForkedJob",
    "GpuSpec",
    "JobTracker",
    "ModelSpec",
    "StepAssignment",
    "ThroughputEstimates",
    "TrackingError",
    "assign_nodes",
    "copy_id",
    "copy_ids",
    "divide_steps",
    "estimate_throughput",
    "learned_scale",
    "split_copy_id",
]
