"""Recorded rounds behind the Backend protocol, for replay."""

from slurmsched.backends.recorded.backend import RecordedBackend
from slurmsched.backends.recorded.recording import SUFFIX, Recording, RecordingError, dump, load, pack, unpack

__all__ = ["SUFFIX", "RecordedBackend", "Recording", "RecordingError", "dump", "load", "pack", "unpack"]
