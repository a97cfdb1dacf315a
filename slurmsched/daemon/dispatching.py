"""How many steps each copy of a forked job does, written where the copies read it.

Only copies that run where they were placed are told anything, so that no steps wait for one that did not start. The
files are ours alone: in a folder of ours, in a spool of ours. Whoever puts something else in their place costs nobody a
step, for the copies then divide their steps themselves, and none of his files is touched: the folder is opened once and
checked, and all is done by its descriptor.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from slurmsched.jobside.dispatch import FOLDER, Dispatch, dispatch_name, encode, is_dispatch
from slurmsched.jobside.durable import replace_in
from slurmsched.jobside.errors import ForeignFolderError
from slurmsched.jobside.folders import SPOOL, checked_folder, insecure_spool
from slurmsched.jobside.untrusted import opened
from slurmsched.model import JobState, Snapshot, Target
from slurmsched.store.measurements import Complaint

__all__ = ["dispatch", "dispatches"]

_SUBJECT: Final = "the spool"
_MODE: Final = 0o755


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
    said = tuple(words)
    try:
        with opened(spool, SPOOL) as root:
            if (why := insecure_spool(os.fstat(root), {os.geteuid(), 0})) is not None:
                return (
                    Complaint(_SUBJECT, f"{why}: forked jobs divide their steps themselves; see 'synsched doctor'"),
                )
            if said:
                with suppress(FileExistsError):
                    os.mkdir(FOLDER, mode=_MODE, dir_fd=root)
            with checked_folder(root, FOLDER, {os.geteuid()}) as folder:
                os.fchmod(folder, _MODE)  # copies of all users read there, whatever our umask
                for word in said:
                    replace_in(folder, dispatch_name(word.job), encode(word), 0o644, durably=True)
                _remove_others(folder, forked)
    except FileNotFoundError as error:
        return (_cannot(error),) if said else ()
    except ForeignFolderError as error:
        return (Complaint(_SUBJECT, f"has {FOLDER} in it, which {error}"),)
    except OSError as error:
        return (_cannot(error),)
    return ()


def _cannot(error: OSError) -> Complaint:
    return Complaint(_SUBJECT, f"copies of forked jobs cannot be told their steps: {error}")


def _remove_others(folder: int, forked: Collection[str]) -> None:
    """Nothing but plain files with names of ours is removed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if (
                is_dispatch(entry.name)
                and entry.name.removesuffix(".json") not in forked
                and stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
            ):
                os.unlink(entry.name, dir_fd=folder)
