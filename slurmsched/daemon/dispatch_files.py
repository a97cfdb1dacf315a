"""Writes the files that tell each copy of a forked job how many steps to do.

Only copies that run where they were placed get steps, so that no steps wait for a copy that did not start. Files and
folder belong to the daemon's user, in its spool. If another user replaces them, the copies divide their steps
themselves and no file of that user is touched: the folder is opened once, checked, and used by its descriptor.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from slurmsched.jobside.atomic_files import replace_file_in
from slurmsched.jobside.dispatch import DISPATCH_FOLDER, Dispatch, dispatch_file_name, encode_dispatch, is_dispatch_file
from slurmsched.jobside.errors import UntrustedFolderError
from slurmsched.jobside.untrusted import SPOOL_FLAGS, insecure_spool_reason, open_descriptor, open_owned_folder
from slurmsched.model import JobState, Snapshot, Target
from slurmsched.store.measurements import RejectedReport

DISPATCH_PERIODS: Final = 3
"""Periods of rounds for which a dispatch stays valid if no newer one is written."""

_SUBJECT: Final = "the spool"
_MODE: Final = 0o755


def make_dispatches(targets: Iterable[Target], snapshot: Snapshot, number: int, until: float) -> tuple[Dispatch, ...]:
    """Return a dispatch for each forked job with steps to do; `snapshot` is the cluster after the plan was applied."""
    steps: dict[str, dict[int, int]] = {}
    for target in targets:
        job = snapshot.jobs_by_id.get(target.job)
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


def write_dispatches(spool: Path, wanted: Iterable[Dispatch], forked: Collection[str]) -> tuple[RejectedReport, ...]:
    """Write them and remove those of jobs that are no longer in `forked`; return a complaint if that fails."""
    current = tuple(wanted)
    try:
        with open_descriptor(spool, SPOOL_FLAGS) as root:
            if (why := insecure_spool_reason(os.fstat(root), {os.geteuid(), 0})) is not None:
                return (
                    RejectedReport(
                        _SUBJECT, f"{why}: forked jobs divide their steps themselves; see 'synsched doctor'"
                    ),
                )
            if current:
                with suppress(FileExistsError):
                    os.mkdir(DISPATCH_FOLDER, mode=_MODE, dir_fd=root)
            with open_owned_folder(root, DISPATCH_FOLDER, {os.geteuid()}) as folder:
                os.fchmod(folder, _MODE)  # copies of all users read there, whatever our umask
                for entry in current:
                    replace_file_in(folder, dispatch_file_name(entry.job), encode_dispatch(entry), 0o644, fsync=True)
                _remove_others(folder, forked)
    except FileNotFoundError as error:
        return (_complaint(error),) if current else ()
    except UntrustedFolderError as error:
        return (RejectedReport(_SUBJECT, f"contains {DISPATCH_FOLDER}, which {error}"),)
    except OSError as error:
        return (_complaint(error),)
    return ()


def _complaint(error: OSError) -> RejectedReport:
    return RejectedReport(_SUBJECT, f"the steps of forked jobs' copies cannot be written: {error}")


def _remove_others(folder: int, forked: Collection[str]) -> None:
    """Only regular files with names of dispatch files are removed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if (
                is_dispatch_file(entry.name)
                and entry.name.removesuffix(".json") not in forked
                and stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
            ):
                os.unlink(entry.name, dir_fd=folder)
