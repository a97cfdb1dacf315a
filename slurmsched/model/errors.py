"""The root of what slurmsched raises; each layer has its own branch."""

from __future__ import annotations


class SynschedError(Exception):
    """Something a person can act on: `str()` is one line that says what to do. `exit_code` as in the man page."""

    exit_code: int = 1
