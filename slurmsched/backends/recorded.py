"""Recorded rounds: files that hold a snapshot and the scheduler state, and the backend that replays them.

`NAME.round` is zlib-compressed JSON of the model's classes, with a version. Files may come from anywhere: a file that
is not a recording is refused with an error of one line. A replayed round can be decided again, but nothing can change.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import BackendError, CallCounts, FinishedPage, Identity, JobOrigin, Privilege
from slurmsched.model import (
    EncodingError,
    Job,
    JobId,
    ListEncoder,
    Operation,
    Outcome,
    Result,
    SchedulerState,
    Snapshot,
    decode,
    encode,
    encode_with,
)

RECORDING_SUFFIX: Final = ".round"
_VERSION: Final = 1
_LEVEL: Final = 3
"""Of zlib: a third of the time of its default, for a tenth more bytes."""
_MAX_UNPACKED_BYTES: Final = 1 << 28
"""Bytes a recording may unpack to; a round of 100,000 jobs stays below."""


class RecordingError(BackendError):
    """A file is not a recording, or cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The inputs of one round: the snapshot, and the scheduler state before it."""

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
    return zlib.compress(encode(_StoredRecording(_VERSION, Recording(snapshot, state))).encode(), _LEVEL)


class RecordingPacker:
    """Packs one round after the other: a job of which nothing but the run time has changed is not encoded again, nor
    is a node that has not changed."""

    def __init__(self) -> None:
        self._known: dict[JobId, _PackedJob] = {}
        self._nodes = ListEncoder()

    def pack(self, snapshot: Snapshot, state: SchedulerState) -> bytes:
        """The bytes of a recording, equal to those of `pack_recording`."""
        jobs, nodes = secrets.token_hex(), secrets.token_hex()  # the longest texts are put in once, at the end
        recording = Recording(snapshot, state)
        recorded = encode_with(recording, {"snapshot": encode_with(snapshot, {"jobs": jobs, "nodes": nodes})})
        stored = encode_with(_StoredRecording(_VERSION, recording), {"recording": recorded})
        before, _, rest = stored.partition(jobs)
        between, _, after = rest.partition(nodes)
        texts = (before, self._encode_jobs(snapshot), between, self._nodes.encode(snapshot.nodes), after)
        return zlib.compress("".join(texts).encode(), _LEVEL)

    def _encode_jobs(self, snapshot: Snapshot) -> str:
        last, self._known = self._known, {}
        for job in snapshot.jobs:
            self._known[job.id] = _packed(job, last.get(job.id))
        return f"[{','.join([packed.text for packed in self._known.values()])}]"


_RUN_TIME: Final = '"run_time":'


@dataclass(frozen=True, slots=True)
class _PackedJob:
    """The text of a job, and where in it its run time begins and ends."""

    job: Job
    text: str
    begin: int
    end: int


def _packed(job: Job, last: _PackedJob | None) -> _PackedJob:
    """The job's text, made of the last one where nothing but the run time has changed."""
    if last is not None and last.job is job:
        return last
    if last is None or last.job.differs_but_in_run_time(job):
        text = encode(job)
        begin = text.index(_RUN_TIME) + len(_RUN_TIME)  # inside a text a quote has a backslash before it
        return _PackedJob(job, text, begin, text.index(",", begin))
    run_time = json.dumps(job.run_time)
    text = f"{last.text[: last.begin]}{run_time}{last.text[last.end :]}"
    return _PackedJob(job, text, last.begin, last.begin + len(run_time))


def unpack_recording(data: bytes) -> Recording:
    """Unpacks a recording. Raises RecordingError."""
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
                f"format {version}, but this synsched reads format {_VERSION}: use the synsched that wrote it"
            )
        return decode(_StoredRecording, text).recording
    except EncodingError as error:
        raise RecordingError(f"not a recording: {' '.join(str(error).split())}") from error


def write_recording(path: Path, snapshot: Snapshot, state: SchedulerState) -> None:
    """Writes a round to `path`, which must end in `.round`, readable by this user only: it holds all users' comments.

    Raises RecordingError.
    """
    if path.suffix != RECORDING_SUFFIX:
        raise RecordingError(f"{path}: name it {path.name}{RECORDING_SUFFIX}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # an existing file may be readable by all
            file.truncate()
            file.write(pack_recording(snapshot, state))
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error


def read_recording(path: Path) -> Recording:
    """Reads a round from a file. Raises RecordingError with the path and the cause in one line."""
    try:
        return unpack_recording(path.read_bytes())
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error


class RecordedBackend:
    """Replays recorded snapshots, one per poll. Refuses all operations."""

    name = "recorded"
    remarks: tuple[str, ...] = ()

    def __init__(self, recordings: Sequence[Recording]) -> None:
        if not recordings:
            raise BackendError("no recording given: name at least one .round file")
        self._recordings = tuple(recordings)
        self.calls = CallCounts()

    @property
    def state(self) -> SchedulerState:
        """The scheduler state recorded with the last replayed snapshot, or with the first one before any poll."""
        return self._recordings[max(self.calls.polls, 1) - 1].memory

    operation_seconds = 0.0

    def observe(self) -> Snapshot:
        """The next recorded snapshot. Raises BackendError after the last one."""
        if self.calls.polls == len(self._recordings):
            count = len(self._recordings)
            raise BackendError(f"the recording ends after {count} round{'' if count == 1 else 's'}")
        self.calls.polls += 1
        return self._recordings[self.calls.polls - 1].snapshot

    def activity(self) -> str:
        """Empty: nothing happens in a recording."""
        return ""

    def finished_runs(self, _since: float, _until: float) -> FinishedPage:
        """Nothing: a recording has no accounting."""
        return FinishedPage()

    def origins(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobOrigin]:
        """Empty ones: a recording has no scripts."""
        return dict.fromkeys(jobs, JobOrigin())

    def identity(self) -> Identity:
        """SlurmUser, so that a replayed plan may contain every verb."""
        return Identity("recorded", Privilege.SLURM_USER)

    def commands(self, _operation: Operation) -> tuple[str, ...]:
        """None: no command can change a recording."""
        return ()

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Refuses every operation."""
        return tuple(
            Outcome(o, Result.REFUSED, detail="this is a recording: nothing can be changed") for o in operations
        )
