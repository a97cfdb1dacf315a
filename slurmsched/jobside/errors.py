"""What can go wrong inside a job. Not of the scheduler's family: this room stands without it."""

from __future__ import annotations

__all__ = ["CheckpointError", "JobsideError", "ReportError", "TensorError", "TrackerError"]


class JobsideError(Exception):
    """`str()` is one line that says what to do."""


class CheckpointError(JobsideError):
    """A checkpoint could not be written or read."""


class ReportError(JobsideError):
    """Text that is no report."""


class TensorError(JobsideError):
    """A file of tensors that cannot be read, or that does not fit the others."""


class TrackerError(JobsideError):
    """The account of a forked job's steps cannot be kept."""
