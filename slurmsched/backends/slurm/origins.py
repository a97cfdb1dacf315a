"""Where jobs come from: a digest of the script of each, and the folder that it was submitted from.

Runs of the same owner's same work are told by these, whatever he calls them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from slurmsched.backends.protocol import BackendError, JobOrigin, UnreachableError
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.squeue_table import MOST_NAMED, SqueueRow, query_columns
from slurmsched.model import JobId

_MOST_SCRIPTS: Final = 250
"""Scripts that are read at most when origins are asked for, at 8 ms each."""
_PATH_BYTES: Final = 1_100
_ORIGIN_COLUMNS: Final[Mapping[str, int]] = {
    "JobID": 12,
    "ArrayJobID": 12,
    "UserName": 256,
    "SubmitTime": 20,
    "Command": _PATH_BYTES,
    "WorkDir": _PATH_BYTES,
}
_DIGEST: Final = 16
_MINUTE: Final = slice(len("2026-01-01T00:00"))


def read_origins(commands: Commands, jobs: Iterable[JobId], scripts: int = _MOST_SCRIPTS) -> dict[JobId, JobOrigin]:
    """The script and folder of each of these jobs, both empty of parts of heterogeneous ones and of jobs that are gone;
    tasks of an array have the same. Jobs for which more than so many `scripts` would be read are left out.

    A script takes one command of 8 ms (24.11), so it is read once for an array, and once for what the same owner
    submitted by the same path, from the same folder and in the same minute. Raises BackendError.
    """
    origins = dict.fromkeys(jobs, JobOrigin())
    by_number: dict[str, list[JobId]] = {}
    for job in origins:
        if re.fullmatch(r"\d+(_\d+)?", job):
            by_number.setdefault(job.partition("_")[0], []).append(job)
    submitted: dict[tuple[bytes | str, ...], str] = {}
    named = list(by_number) if len(by_number) <= MOST_NAMED else ()
    for row in query_columns(commands, named, _ORIGIN_COLUMNS) if by_number else ():
        array, path = row.value("ArrayJobID"), row.raw("Command")
        number = array if array.isdecimal() else row.number
        if number not in by_number:
            continue
        alike = row.raw("UserName"), path, row.raw("WorkDir"), row.value("SubmitTime")[_MINUTE]
        of_number = by_number.pop(number)
        script = submitted.get(alike) if path.startswith(b"/") else None
        if script is None:
            if scripts == 0:
                for job in of_number:
                    del origins[job]
                continue
            script, scripts = _script_digest(commands, row, number), scripts - 1
            submitted[alike] = script
        origins |= dict.fromkeys(of_number, JobOrigin(script, row.text("WorkDir")))
    return origins


def _script_digest(commands: Commands, row: SqueueRow, number: str) -> str:
    """A digest of the script or, where it cannot be read, of its path."""
    try:
        text = commands.read_result("scontrol", "write", "batch_script", number, "-").stdout_bytes
    except UnreachableError:
        raise
    except BackendError:
        path = row.raw("Command")
        text = b"path " + path if path.startswith(b"/") else b""
    return hashlib.sha256(text).hexdigest()[:_DIGEST] if text else ""
