"""The base class of all exceptions that slurmsched raises."""

from __future__ import annotations


class SynschedError(Exception):
    """An error that a person can act on: `str()` is one line that says what to do; `exit_code` is the command's."""

    exit_code: int = 1
