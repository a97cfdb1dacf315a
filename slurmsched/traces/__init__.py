"""Jobs of the past, or made up, as data: what arrived when and how much work it was."""

from slurmsched.traces.trace import Trace, TraceError, TraceJob

__all__ = ["Trace", "TraceError", "TraceJob"]
