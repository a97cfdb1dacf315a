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
from slurmsched.jobside.untrusted import (
    SAFE_READ_FLAGS,
    SPOOL_FLAGS,
    open_descriptor,
    open_owned_folder,
    parse_count,
    parse_fields,
    parse_number,
)

DISPATCH_FOLDER: Final = "dispatched"
"""Below the spool. Users' folders are numbers, so none of them has this name."""

MAX_DISPATCH_BYTES: Final = 65536
"""Bytes of a dispatch; a longer one is not read."""

_VERSION: Final = 1
_MAX_COPIES: Final = 2000
_KIND: Final = "dispatch"
_DISPATCH_FILE: Final = re.compile(r"[0-9]{1,18}\.json|\.[0-9]{1,18}\.json\.[0-9a-z]+")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One word of the scheduler to the copies of the array `job`: `steps` by task number, for those that run.

    `number` tells one word from the next; after `until` (unix seconds) it is nobody's word any more.
    """

    job: str
    number: int
    valid_until: float
    steps: Mapping[int, int]


def dispatch_file_name(job: str) -> str:
    """The name of an array's file in the folder."""
    return f"{job}.json"


def is_dispatch_file(name: str) -> bool:
    """Whether a file of this name is an array's, or one of those that are not finished."""
    return _DISPATCH_FILE.fullmatch(name) is not None


def encode_dispatch(dispatch: Dispatch) -> bytes:
    """One line of JSON."""
    fields = {
        "version": _VERSION,
        "job": dispatch.job,
        "number": dispatch.number,
        "until": dispatch.valid_until,
        "steps": {str(copy): steps for copy, steps in dispatch.steps.items()},
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_dispatch(data: bytes) -> Dispatch:
    """The dispatch in a file that anybody may have written. Raises ReportError, and nothing else."""
    fields = parse_fields(data, _KIND, max_bytes=MAX_DISPATCH_BYTES, version=_VERSION, keys=_KEYS)
    job = fields["job"]
    if not isinstance(job, str) or not job.isascii() or not job.isdigit():
        raise ReportError("a dispatch is for no job")
    return Dispatch(
        job, parse_count(fields["number"], _KIND), parse_number(fields["until"], _KIND), _parse_steps(fields["steps"])
    )


def read_dispatch(spool: Path, job: str, now: float) -> Dispatch | None:
    """What the scheduler says to this array now (unix seconds); None where it says nothing that can be believed.

    Believed is a plain file of the spool's owner, who is the daemon's user, or root's, in a folder of one of them.
    """
    if not is_dispatch_file(dispatch_file_name(job)):
        return None
    with suppress(OSError, ReportError), open_descriptor(spool, SPOOL_FLAGS) as root:
        trusted = {os.fstat(root).st_uid, 0}
        with (
            open_owned_folder(root, DISPATCH_FOLDER, trusted) as folder,
            open_descriptor(dispatch_file_name(job), SAFE_READ_FLAGS, folder) as file,
        ):
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_uid in trusted:
                dispatch = decode_dispatch(os.read(file, MAX_DISPATCH_BYTES + 1))
                return (
                    dispatch
                    if dispatch.job == job and now < dispatch.valid_until and any(dispatch.steps.values())
                    else None
                )
    return None


_KEYS: Final = frozenset({"version", "job", "number", "until", "steps"})


def _parse_steps(value: object) -> Mapping[int, int]:
    if not isinstance(value, dict) or len(value) > _MAX_COPIES:
        raise ReportError("a dispatch names copies by something else than a short table")
    if not all(copy.isascii() and copy.isdigit() and len(copy) < 10 for copy in value):  # noqa: PLR2004  # as Slurm's task numbers are
        raise ReportError("a dispatch names a copy by something else than its number")
    return {int(copy): parse_count(steps, _KIND) for copy, steps in value.items()}
