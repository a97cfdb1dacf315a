"""Checkpoints that are there whole or not at all.

`FOLDER/step-000000000120/` holds what the script wrote (`state`, a file or a folder), notes of ours, and a manifest
with the size and SHA-256 of each file. It is written as `.step-000000000120` and renamed once all of it is on disk.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.jobside.atomic_files import fsync_path, fsync_tree, walk_files, write_atomically
from slurmsched.jobside.errors import CheckpointError

_STATE: Final = "state"
_MANIFEST: Final = "manifest.json"
_CHECKPOINT_NAME: Final = re.compile(r"step-(\d{12})\Z")
_UNFINISHED_NAME: Final = re.compile(r"\.(old-)?step-\d{12}\Z")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that is whole: after `step` steps; `state` is what the script wrote, `folder` everything."""

    step: int
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / _STATE


class Checkpoints:
    """Those of one job. The last `keep` are kept, so that one that a disk spoils afterwards does not cost the job."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, step: int, write: Callable[[Path], None]) -> Checkpoint:
        """Keep what `write` writes to the path that it is given. Raises CheckpointError, and what `write` raises."""
        write(self.begin(step))
        return self.commit(step)

    def begin(self, step: int) -> Path:
        """The path for the state after so many steps, below a folder that is empty. Raises CheckpointError."""
        with _as_checkpoint_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished = self.unfinished(step)
            if unfinished.folder.exists():
                shutil.rmtree(unfinished.folder)
            unfinished.folder.mkdir()
        return unfinished.state

    def commit(self, step: int) -> Checkpoint:
        """What was written since `begin` is a checkpoint from here on, and the oldest ones go.

        Raises CheckpointError.
        """
        unfinished, final = self.unfinished(step).folder, self.at(step).folder
        with _as_checkpoint_error(self.folder):
            if not (unfinished / _STATE).exists():
                raise CheckpointError(
                    f"the save function wrote nothing to {unfinished / _STATE}: it has to, a file or folder"
                )
            files = {str(file.relative_to(unfinished)): _fingerprint(file) for file in walk_files(unfinished)}
            write_atomically(unfinished / _MANIFEST, json.dumps({"step": step, "files": files}).encode())
            fsync_tree(unfinished)
            if _is_intact(self.at(step)):  # an earlier run came as far and no further
                self._delete(unfinished)
            else:
                if final.exists():
                    self._delete(final)
                unfinished.rename(final)
                fsync_path(self.folder)
            self._prune()
        return Checkpoint(step, final)

    def newest(self) -> Checkpoint | None:
        """The latest that is as it was written; None where there is none. Reads all of it. Raises CheckpointError."""
        with _as_checkpoint_error(self.folder):
            return next((found for found in self._committed() if _is_intact(found)), None)

    def at(self, step: int) -> Checkpoint:
        """That of this step, as far as it is there."""
        return Checkpoint(step, self.folder / f"step-{step:012}")

    def unfinished(self, step: int) -> Checkpoint:
        """That of this step while it is written."""
        return Checkpoint(step, self.folder / f".step-{step:012}")

    def _committed(self) -> Iterator[Checkpoint]:
        """All that were committed, latest first."""
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        steps = [int(match[1]) for name in names if (match := _CHECKPOINT_NAME.match(name))]
        return map(self.at, sorted(steps, reverse=True))

    def _prune(self) -> None:
        for old in list(self._committed())[self._keep :]:
            self._delete(old.folder)
        for path in list(self.folder.iterdir()):
            if _UNFINISHED_NAME.match(path.name):  # of a run that was killed
                shutil.rmtree(path)

    def _delete(self, path: Path) -> None:
        """Under another name first: a kill on the way leaves no half of it under its own."""
        doomed = self.folder / f".old-{path.name.removeprefix('.')}"
        if doomed.exists():
            shutil.rmtree(doomed)
        path.rename(doomed)
        shutil.rmtree(doomed)


def _is_intact(checkpoint: Checkpoint) -> bool:
    try:
        manifest: object = json.loads((checkpoint.folder / _MANIFEST).read_bytes())
        files = manifest["files"] if isinstance(manifest, Mapping) and manifest.get("step") == checkpoint.step else None
        present = [
            file for file in walk_files(checkpoint.folder) if file.name != _MANIFEST or file.parent != checkpoint.folder
        ]
        return files == {str(file.relative_to(checkpoint.folder)): _fingerprint(file) for file in present}
    except (OSError, ValueError, KeyError):
        return False


def _fingerprint(file: Path) -> dict[str, object]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"size": file.stat().st_size, "sha256": digest}


@contextmanager
def _as_checkpoint_error(folder: Path) -> Iterator[None]:
    """The system's errors as ours."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot use the checkpoints in {folder}: {error}") from error
