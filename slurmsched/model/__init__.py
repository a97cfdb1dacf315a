"""The plain data everything else speaks in. Frozen; no behaviour that needs a cluster or a clock."""

from slurmsched.model.association import Association
from slurmsched.model.decision import Decision, Ranked, Target
from slurmsched.model.encoding import EncodingError, decode, encode, plain
from slurmsched.model.errors import SynschedError
from slurmsched.model.hints import NO_HINTS, CheckpointSignal, Hints, parse_hints, render_hints
from slurmsched.model.job import Hold, Job, JobId, JobState, Request, Share
from slurmsched.model.measured import Measured
from slurmsched.model.memory import Memory, Notified
from slurmsched.model.node import MILLI, Gpu, Node, NodeState, Partition, Reservation
from slurmsched.model.overview import Fragments, GpuUse, NodeFragments, NodeUse, Overview, survey
from slurmsched.model.plan import Operation, Outcome, Plan, Result, Shape, Value, Verb
from slurmsched.model.reasons import SENTENCES, Code, Reason
from slurmsched.model.resources import Resources
from slurmsched.model.snapshot import SetAside, Snapshot

__all__ = [
    "MILLI",
    "NO_HINTS",
    "SENTENCES",
    "Association",
    "CheckpointSignal",
    "Code",
    "Decision",
    "EncodingError",
    "Fragments",
    "Gpu",
    "GpuUse",
    "Hints",
    "Hold",
    "Job",
    "JobId",
    "JobState",
    "Measured",
    "Memory",
    "Node",
    "NodeFragments",
    "NodeState",
    "NodeUse",
    "Notified",
    "Operation",
    "Outcome",
    "Overview",
    "Partition",
    "Plan",
    "Ranked",
    "Reason",
    "Request",
    "Reservation",
    "Resources",
    "Result",
    "SetAside",
    "Shape",
    "Share",
    "Snapshot",
    "SynschedError",
    "Target",
    "Value",
    "Verb",
    "decode",
    "encode",
    "parse_hints",
    "plain",
    "render_hints",
    "survey",
]
