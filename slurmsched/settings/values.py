"""One value: from TOML to what the definition says, and back to what a person would write."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from slurmsched.model.hints import seconds
from slurmsched.settings.definition import Mode
from slurmsched.settings.entries import Entry, Kind, Value

__all__ = ["UnfitValueError", "expected", "read", "written"]

_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_WHOLE: Final = 10_000_000
"""From here on times are written as plain numbers: a unit takes seven digits at most."""


class UnfitValueError(ValueError):
    """The value has another form than its setting."""


def read(entry: Entry, raw: object) -> Value:
    """The value as the settings hold it. Raises UnfitValueError."""
    try:
        value = _FORMS[entry.kind].read(entry, raw)
    except OverflowError:  # a whole number that no float can hold
        raise UnfitValueError from None
    if value is None or not all(math.isfinite(n) and n >= entry.at_least for n in _numbers_in(value)):
        raise UnfitValueError
    return value


def expected(entry: Entry) -> str:
    """What `read` accepts, said so that a person can write it."""
    choices = ", ".join(f'"{choice}"' for choice in entry.choices)
    bound = f" of at least {entry.at_least:g}" if entry.at_least else ""
    return _FORMS[entry.kind].said.format(choices=choices, bound=bound)


def written(entry: Entry, value: Value) -> str:
    """The value as TOML, times in their largest whole unit."""
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    if entry.kind is Kind.TIME and isinstance(value, float):
        return _time(value)
    return _plain(value)


def _text(_: Entry, raw: object) -> Value | None:
    return raw if isinstance(raw, str) and raw.isprintable() else None


def _choice(entry: Entry, raw: object) -> Value | None:
    if not isinstance(raw, str) or raw not in entry.choices:
        return None
    return Mode(raw) if isinstance(entry.default, Mode) else raw


def _flag(_: Entry, raw: object) -> Value | None:
    return raw if isinstance(raw, bool) else None


def _count(_: Entry, raw: object) -> Value | None:
    return raw if isinstance(raw, int) and not isinstance(raw, bool) else None


def _time_told(_: Entry, raw: object) -> Value | None:
    told = seconds(raw) if isinstance(raw, str) else raw
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) else None


def _texts(_: Entry, raw: object) -> Value | None:
    items = raw if isinstance(raw, list) else [None]
    texts = tuple(item for item in items if isinstance(item, str) and item and item.isprintable())
    return texts if len(texts) == len(items) else None


def _numbers(_: Entry, raw: object) -> Value | None:
    items = raw if isinstance(raw, list) else [None]
    numbers = tuple(float(item) for item in items if isinstance(item, int | float) and not isinstance(item, bool))
    return numbers if len(numbers) == len(items) else None


@dataclass(frozen=True, slots=True)
class _Form:
    said: str
    read: Callable[[Entry, object], Value | None]


_FORMS: Final[dict[Kind, _Form]] = {
    Kind.TEXT: _Form("a text, on one line", _text),
    Kind.CHOICE: _Form("one of {choices}", _choice),
    Kind.FLAG: _Form("true or false", _flag),
    Kind.COUNT: _Form("a whole number{bound}", _count),
    Kind.TIME: _Form('a time{bound} in seconds, or such as "5m", "2h"', _time_told),
    Kind.TEXTS: _Form('a list of texts such as ["one", "two"]', _texts),
    Kind.NUMBERS: _Form("a list of numbers{bound} such as [3600, 14400]", _numbers),
}


def _numbers_in(value: Value) -> tuple[float, ...]:
    items = value if isinstance(value, tuple) else (value,)
    return tuple(item for item in items if isinstance(item, int | float))


def _time(value: float) -> str:
    for unit, size in _UNITS:
        if 0 < value < _WHOLE and value % size == 0:
            return f'"{value / size:.0f}{unit}"'
    return _plain(value)


def _plain(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string
    return f"{value:.0f}" if abs(value) < _WHOLE and value == int(value) else repr(value)
