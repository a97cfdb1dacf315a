"""What may stand in a command. Whatever Slurm, a user or a file told us is checked again before it goes back."""

from __future__ import annotations

import re
from typing import Final

from slurmsched.backends.slurm.errors import UnsafeError

__all__ = ["gpu_type", "is_job_id", "job_id", "node_name", "note", "number"]

_JOB: Final = re.compile(r"[1-9][0-9]{0,9}(?:[_+][0-9]{1,9})?\Z")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_NOTE_LONGEST: Final = 1000


def job_id(text: str) -> str:
    """A job's id. Raises UnsafeError."""
    return _checked(_JOB, text, "a job id")


def is_job_id(text: str) -> bool:
    """Whether this can name a job."""
    return _JOB.match(text) is not None


def node_name(text: str) -> str:
    """A node's name. Raises UnsafeError."""
    return _checked(_NODE, text, "a node name")


def gpu_type(text: str) -> str:
    """A GPU type. Raises UnsafeError."""
    return _checked(_TYPE, text, "a GPU type")


def number(value: object, least: int = 0) -> int:
    """A whole number. Raises UnsafeError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UnsafeError(f"not a number of at least {least}: {value!r}")
    return value


def note(text: object) -> str:
    """A line for people, as one argument of its own. Raises UnsafeError."""
    if not isinstance(text, str) or not text.isprintable() or len(text) > _NOTE_LONGEST or set(text) & set("\"'\\"):
        raise UnsafeError(f"not a plain line of text: {str(text)[:60]!r}")
    return text


def _checked(form: re.Pattern[str], text: str, what: str) -> str:
    if not form.match(text):
        raise UnsafeError(f"not {what}: {text[:60]!r}")
    return text
