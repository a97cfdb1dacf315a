"""Jobs of the past, or made up, as data: what arrived when and how much work it was."""

from slurmsched.traces.errors import TraceError
from slurmsched.traces.trace import Trace, TraceJob

__all__ = ["Trace", "TraceError", "TraceJob"]
