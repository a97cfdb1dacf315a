"""The data model that all other packages share: frozen values that need neither a cluster nor a clock."""

from slurmsched.model.decision import Decision, Explanation, Promise, RankedJob, Target
from slurmsched.model.encoding import EncodingError, decode, encode, to_plain
from slurmsched.model.errors import SynschedError
from slurmsched.model.hints import NO_HINTS, CheckpointSignal, Hints, parse_hints, render_hints
from slurmsched.model.job import Hold, Job, JobId, JobState, NodeAllocation, Request
from slurmsched.model.node import MILLI_PER_GPU, Gpu, Node, NodeState, Partition, Reservation, Resources
from slurmsched.model.overview import (
    ClusterFragmentation,
    ClusterOverview,
    GpuUsage,
    NodeFragmentation,
    NodeUsage,
    cluster_overview,
)
from slurmsched.model.plan import JobSpec, Operation, OperationValue, Outcome, Plan, Result, Verb
from slurmsched.model.reasons import REASON_SENTENCES, Reason, ReasonCode
from slurmsched.model.scheduler_state import MeasuredRate, NotifiedJob, OpenStart, OutOfMemory, PairRate, SchedulerState
from slurmsched.model.snapshot import Association, SetAsideJob, Snapshot

__all__ = [
    "MILLI_PER_GPU",
    "NO_HINTS",
    "REASON_SENTENCES",
    "Association",
    "CheckpointSignal",
    "ClusterFragmentation",
    "ClusterOverview",
    "Decision",
    "EncodingError",
    "Explanation",
    "Gpu",
    "GpuUsage",
    "Hints",
    "Hold",
    "Job",
    "JobId",
    "JobSpec",
    "JobState",
    "MeasuredRate",
    "Node",
    "NodeAllocation",
    "NodeFragmentation",
    "NodeState",
    "NodeUsage",
    "NotifiedJob",
    "OpenStart",
    "Operation",
    "OperationValue",
    "OutOfMemory",
    "Outcome",
    "PairRate",
    "Partition",
    "Plan",
    "Promise",
    "RankedJob",
    "Reason",
    "ReasonCode",
    "Request",
    "Reservation",
    "Resources",
    "Result",
    "SchedulerState",
    "SetAsideJob",
    "Snapshot",
    "SynschedError",
    "Target",
    "Verb",
    "cluster_overview",
    "decode",
    "encode",
    "parse_hints",
    "render_hints",
    "to_plain",
]
