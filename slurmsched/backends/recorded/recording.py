"""A round in a file: what was seen and what was remembered, enough to decide it again.

`NAME.round` is zlib-compressed JSON in the model's own forms, with a version. Files may come from anywhere: what is not
a recording is refused in one line.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import BackendError
from slurmsched.model import EncodingError, Memory, Snapshot, decode, encode

__all__ = ["SUFFIX", "Recording", "RecordingError", "dump", "load", "pack", "unpack"]

SUFFIX: Final = ".round"
_VERSION: Final = 1
_LARGEST: Final = 1 << 28
"""Bytes a recording may unpack to: a round of 100,000 jobs stays below."""


class RecordingError(BackendError):
    """A file that is not a recording, cannot be read or cannot be written."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One round's question."""

    snapshot: Snapshot
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True)
class _Version:
    version: int


@dataclass(frozen=True, slots=True)
class _Stored:
    version: int
    recording: Recording


def pack(snapshot: Snapshot, memory: Memory) -> bytes:
    """The bytes of a recording; equal rounds give equal bytes."""
    return zlib.compress(encode(_Stored(_VERSION, Recording(snapshot, memory))).encode())


def unpack(data: bytes) -> Recording:
    """The recording in these bytes. Raises RecordingError."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, _LARGEST)
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
        return decode(_Stored, text).recording
    except EncodingError as error:
        raise RecordingError(f"not a recording: {' '.join(str(error).split())}") from error


def dump(path: Path, snapshot: Snapshot, memory: Memory) -> None:
    """Write a round to `path`, which must end in `.round`, for us alone to read: it has everybody's comments in it.

    Raises RecordingError.
    """
    if path.suffix != SUFFIX:
        raise RecordingError(f"{path}: name it {path.name}{SUFFIX}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # it may have been there, open to all
            file.truncate()
            file.write(pack(snapshot, memory))
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error


def load(path: Path) -> Recording:
    """The round in the file. Raises RecordingError, with the file and the cause in one line."""
    try:
        return unpack(path.read_bytes())
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error
