"""Traces, recorded or generated: when jobs arrived and how much work they were."""

from slurmsched.traces.trace import Trace, TraceError, TraceJob

__all__ = ["Trace", "TraceError", "TraceJob"]
