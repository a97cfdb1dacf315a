"""Values of a row, each checked: SQLite lets any column hold anything, and a disk may have changed it since.

Text that is no UTF-8 arrives as bytes (see `text_of`), so it is told from text here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from slurmsched.model import decode

__all__ = ["Row", "decoded", "flag", "mapping", "maybe", "number", "stored_json", "text", "text_of", "whole"]

T = TypeVar("T")

Row = Mapping[str, Any]
"""A row by column; SQLite types its values row by row, hence `Any`."""


def text_of(stored: bytes) -> str | bytes:
    """Stored text, as bytes where it is no UTF-8; for `text_factory` of a connection."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def text(row: Row, column: str) -> str:
    """Raises ValueError."""
    value = row[column]
    if not isinstance(value, str):
        raise _unexpected(column, value, "text")
    return value


def number(row: Row, column: str) -> float:
    """A finite number. Raises ValueError."""
    value = row[column]
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _unexpected(column, value, "a number")
    return value


def whole(row: Row, column: str) -> int:
    """Raises ValueError."""
    value = row[column]
    if not isinstance(value, int):
        raise _unexpected(column, value, "a whole number")
    return value


def flag(row: Row, column: str) -> bool:
    """0 or 1. Raises ValueError."""
    value = row[column]
    if value not in (0, 1) or not isinstance(value, int):
        raise _unexpected(column, value, "0 or 1")
    return bool(value)


def maybe(row: Row, column: str) -> float | None:
    """A finite number, or None where there is none. Raises ValueError."""
    return None if row[column] is None else number(row, column)


def decoded(form: type[T], row: Row, column: str) -> T:
    """What `encode` wrote. Raises ValueError, EncodingError."""
    return decode(form, text(row, column))


def stored_json(row: Row, column: str) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(text(row, column))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{column} is no JSON ({error})") from error


def mapping(row: Row, column: str) -> dict[str, Any]:
    """A JSON object. Raises ValueError."""
    found = stored_json(row, column)
    if not isinstance(found, dict):
        raise _unexpected(column, found, "a JSON object")
    return found


def _unexpected(column: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{column} is {type(value).__name__}, not {wanted}")
