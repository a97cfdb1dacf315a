"""A round in a file: what was seen and what was remembered, enough to decide it again.

`NAME.round` is zlib-compressed JSON in the model's own forms, with a version. Files may come from anywhere: what is not
a recording is refused in one line.

The Backend protocol over recordings: they can be looked at and decided again, never changed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import BackendError, CallCounts, Identity, Privilege
from slurmsched.model import EncodingError, Operation, Outcome, Result, SchedulerState, Snapshot, decode, encode

RECORDING_SUFFIX: Final = ".round"
_VERSION: Final = 1
_MAX_UNPACKED_BYTES: Final = 1 << 28
"""Bytes a recording may unpack to: a round of 100,000 jobs stays below."""


class RecordingError(BackendError):
    """A file that is not a recording, cannot be read or cannot be written."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One round's question."""

    snapshot: Snapshot
    memory: SchedulerState = field(default_factory=SchedulerState)


@dataclass(frozen=True, slots=True)
class _Version:
    version: int


@dataclass(frozen=True, slots=True)
class _StoredRecording:
    version: int
    recording: Recording


def pack_recording(snapshot: Snapshot, state: SchedulerState) -> bytes:
    """The bytes of a recording; equal rounds give equal bytes."""
    return zlib.compress(encode(_StoredRecording(_VERSION, Recording(snapshot, state))).encode())


def unpack_recording(data: bytes) -> Recording:
    """The recording in these bytes. Raises RecordingError."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, _MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise RecordingError("not a recording (not zlib data): record one with 'synsched dump'") from error
    if not unpacker.eof:
        raise RecordingError("cut short or too large: record it again with 'synsched dump'")
    try:
        version = decode(_Version, text).version
        if version != _VERSION:
            raise RecordingError(
                f"format {version}, but this synsched reads format {_VERSION}: use the one that wrote it"
            )
        return decode(_StoredRecording, text).recording
    except EncodingError as error:
        raise RecordingError(f"not a recording: {' '.join(str(error).split())}") from error


def write_recording(path: Path, snapshot: Snapshot, state: SchedulerState) -> None:
    """Write a round to `path`, which must end in `.round`, for us alone to read: it has everybody's comments in it.

    Raises RecordingError.
    """
    if path.suffix != RECORDING_SUFFIX:
        raise RecordingError(f"{path}: name it {path.name}{RECORDING_SUFFIX}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # it may have been there, open to all
            file.truncate()
            file.write(pack_recording(snapshot, state))
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error


def read_recording(path: Path) -> Recording:
    """The round in the file. Raises RecordingError, with the file and the cause in one line."""
    try:
        return unpack_recording(path.read_bytes())
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error


class RecordedBackend:
    """Shows the recorded snapshots in turn, one per poll. `memory` belongs to the one shown last."""

    name = "recorded"
    remarks: tuple[str, ...] = ()

    def __init__(self, recordings: Sequence[Recording]) -> None:
        if not recordings:
            raise BackendError("nothing is recorded: name at least one .round file")
        self._recordings = tuple(recordings)
        self.calls = CallCounts()

    @property
    def state(self) -> SchedulerState:
        """What was remembered when the snapshot shown last (before any: the first one) was taken."""
        return self._recordings[max(self.calls.polls, 1) - 1].memory

    def observe(self) -> Snapshot:
        """The next recorded snapshot. Raises BackendError after the last one."""
        if self.calls.polls == len(self._recordings):
            raise BackendError(f"the recording ends after {len(self._recordings)} rounds")
        self.calls.polls += 1
        return self._recordings[self.calls.polls - 1].snapshot

    def identity(self) -> Identity:
        """SlurmUser, so that a replayed plan shows all that could be done."""
        return Identity("recorded", Privilege.SLURM_USER)

    def commands(self, _operation: Operation) -> tuple[str, ...]:
        """None: no command changes a recording."""
        return ()

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Every operation is refused."""
        return tuple(
            Outcome(o, Result.REFUSED, detail="this is a recording: nothing can be changed") for o in operations
        )
