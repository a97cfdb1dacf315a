"""What can go wrong inside a job. Not of the scheduler's family: this room stands without it."""

from __future__ import annotations


class JobsideError(Exception):
    """`str()` is one line that says what to do."""


class CheckpointError(JobsideError):
    """A checkpoint could not be written or read."""


class UntrustedFolderError(JobsideError, OSError):
    """A folder in the spool that others than its owner could have written. `str()` goes on after the folder's name."""


class ReportError(JobsideError):
    """Text that is no report."""


class TensorError(JobsideError):
    """A file of tensors that cannot be read, or that does not fit the others."""


class TrackerError(JobsideError):
    """The account of a forked job's steps cannot be kept."""
