"""How many steps each copy of a forked job does, as the scheduler says it: `SPOOL/dispatched/ARRAY.json`.

The daemon writes the folder and nobody else can, and a job still takes it for what it is: text that may be missing, old
or garbage. What it says is how the steps that are left are divided, never how many are left. So whatever stands there,
each step is done once.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.jobside.errors import ReportError
from slurmsched.jobside.folders import SPOOL, checked_folder
from slurmsched.jobside.untrusted import PLAIN, number, opened, table, whole

__all__ = ["FOLDER", "LONGEST", "Dispatch", "decode", "dispatch_name", "encode", "is_dispatch", "read_dispatch"]

FOLDER: Final = "dispatched"
"""Below the spool. Users' folders are numbers, so none of them has this name."""

LONGEST: Final = 65536
"""Bytes of a dispatch; a longer one is not read."""

_VERSION: Final = 1
_MOST_COPIES: Final = 2000
_WHAT: Final = "dispatch"
_OURS: Final = re.compile(r"[0-9]{1,18}\.json|\.[0-9]{1,18}\.json\.[0-9a-z]+")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One word of the scheduler to the copies of the array `job`: `steps` by task number, for those that run.

    `number` tells one word from the next; after `until` (unix seconds) it is nobody's word any more.
    """

    job: str
    number: int
    until: float
    steps: Mapping[int, int]


def dispatch_name(job: str) -> str:
    """The name of an array's file in the folder."""
    return f"{job}.json"


def is_dispatch(name: str) -> bool:
    """Whether a file of this name is an array's, or one of those that are not finished."""
    return _OURS.fullmatch(name) is not None


def encode(dispatch: Dispatch) -> bytes:
    """One line of JSON."""
    said = {
        "version": _VERSION,
        "job": dispatch.job,
        "number": dispatch.number,
        "until": dispatch.until,
        "steps": {str(copy): steps for copy, steps in dispatch.steps.items()},
    }
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> Dispatch:
    """The dispatch in a file that anybody may have written. Raises ReportError, and nothing else."""
    said = table(data, _WHAT, longest=LONGEST, version=_VERSION, keys=_KEYS)
    job = said["job"]
    if not isinstance(job, str) or not job.isascii() or not job.isdigit():
        raise ReportError("a dispatch is for no job")
    return Dispatch(job, whole(said["number"], _WHAT), number(said["until"], _WHAT), _steps(said["steps"]))


def read_dispatch(spool: Path, job: str, now: float) -> Dispatch | None:
    """What the scheduler says to this array now (unix seconds); None where it says nothing that can be believed.

    Believed is a plain file of the spool's owner, who is the daemon's user, or root's, in a folder of one of them.
    """
    if not is_dispatch(dispatch_name(job)):
        return None
    with suppress(OSError, ReportError), opened(spool, SPOOL) as root:
        trusted = {os.fstat(root).st_uid, 0}
        with checked_folder(root, FOLDER, trusted) as folder, opened(dispatch_name(job), PLAIN, folder) as file:
            kind = os.fstat(file)
            if stat.S_ISREG(kind.st_mode) and kind.st_uid in trusted:
                said = decode(os.read(file, LONGEST + 1))
                return said if said.job == job and now < said.until and any(said.steps.values()) else None
    return None


_KEYS: Final = frozenset({"version", "job", "number", "until", "steps"})


def _steps(value: object) -> Mapping[int, int]:
    if not isinstance(value, dict) or len(value) > _MOST_COPIES:
        raise ReportError("a dispatch names copies by something else than a short table")
    if not all(copy.isascii() and copy.isdigit() and len(copy) < 10 for copy in value):  # noqa: PLR2004  # as Slurm's task numbers are
        raise ReportError("a dispatch names a copy by something else than its number")
    return {int(copy): whole(steps, _WHAT) for copy, steps in value.items()}
