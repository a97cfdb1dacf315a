"""How many steps each copy of a forked job does, written where the copies read it.

Only copies that run where they were placed are told anything, so that no steps wait for one that did not start. The
files are ours alone: in a folder of ours, in a spool of ours. Whoever makes something else of them costs nobody a step,
for the copies then divide their steps themselves.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from slurmsched.jobside.dispatch import FOLDER, Dispatch, dispatch_name, encode
from slurmsched.jobside.durable import write_durably
from slurmsched.model import JobState, Snapshot, Target
from slurmsched.store.measurements import Complaint

__all__ = ["dispatch", "dispatches"]

_SUBJECT: Final = "the spool"


def dispatches(targets: Iterable[Target], seen: Snapshot, number: int, until: float) -> tuple[Dispatch, ...]:
    """One for each forked job that has a step for anybody. `seen` is the cluster once the round was applied."""
    steps: dict[str, dict[int, int]] = {}
    for target in targets:
        job = seen.job.get(target.job)
        if (
            target.steps is None
            or job is None
            or job.state is not JobState.RUNNING
            or set(job.nodes) != set(target.nodes)
        ):
            continue
        task = job.id.rpartition("_")[2]
        if task.isdigit():
            steps.setdefault(job.copy_of, {})[int(task)] = target.steps
    return tuple(Dispatch(job, number, until, given) for job, given in sorted(steps.items()) if any(given.values()))


def dispatch(spool: Path, words: Iterable[Dispatch], forked: Collection[str]) -> tuple[Complaint, ...]:
    """Write them, and take away those of jobs that are not among the `forked` any more; what keeps us from it."""
    folder = spool / FOLDER
    try:
        if (why := _foreign(spool, folder)) is not None:
            return (Complaint(_SUBJECT, why),)
        for word in words:
            folder.mkdir(mode=0o755, exist_ok=True)
            write_durably(folder / dispatch_name(word.job), encode(word))
        for path in _left_over(folder, forked):
            path.unlink(missing_ok=True)
    except OSError as error:
        return (Complaint(_SUBJECT, f"copies of forked jobs cannot be told their steps: {error}"),)
    return ()


def _foreign(spool: Path, folder: Path) -> str | None:
    """Whose the spool is, or the folder in it, where it is not ours: copies would not believe what we write there."""
    us = os.geteuid()
    owner = spool.stat().st_uid
    if us not in (owner, 0):
        return f"belongs to user number {owner} and not to us: forked jobs divide their steps themselves; chown it"
    if not folder.is_symlink() and not folder.exists():
        return None
    found = folder.lstat()
    if found.st_uid != us or not stat.S_ISDIR(found.st_mode):
        return f"has {FOLDER} of user number {found.st_uid} in it: remove it"
    return None


def _left_over(folder: Path, forked: Collection[str]) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.name.removesuffix(".json") not in forked)
