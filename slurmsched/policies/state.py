"""The state of a policy between two rounds: a typed value, stored as JSON-safe values in one way for all policies.

It comes back from a database that other programs may have written: an invalid field counts as missing, and so does an
invalid entry of a mapping or of a tuple.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, is_dataclass
from math import isfinite
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from cattrs import BaseValidationError, Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

T = TypeVar("T")

_KEY: Final = "stored key"
_COLUMNS: Final = "stored by columns"
_INVALID: Final = (BaseValidationError, TypeError, ValueError, OverflowError, KeyError, AttributeError)


def stored(key: str = "", *, columns: bool = False) -> dict[str, object]:
    """The metadata of a dataclass field that is stored under another key, or, for a mapping from ids to dataclasses of
    which there may be many, as one column for the ids and one for each field."""
    return {_KEY: key, _COLUMNS: columns}


def encode_state(state: Any) -> dict[str, object]:
    """Return a state, which is a dataclass, as JSON-safe values."""
    encoded = {}
    for own in fields(state):
        value = getattr(state, own.name)
        encoded[_key(own)] = _to_columns(value) if own.metadata.get(_COLUMNS) else _converter.unstructure(value)
    return encoded


def decode_state(form: type[T], raw: object) -> T:
    """Return the state that `encode_state` encoded; invalid and missing fields have their defaults. Never raises."""
    values: dict[str, Any] = {}
    known, hints = raw if isinstance(raw, Mapping) else {}, get_type_hints(form)
    own: Field[Any]
    for own in fields(cast(Any, form)):
        if _key(own) not in known:
            continue
        value, hint = known[_key(own)], hints[own.name]
        with suppress(*_INVALID):
            values[own.name] = _decode_field(value, hint, columns=own.metadata.get(_COLUMNS, False))
    return form(**values)


def with_part(state: Mapping[str, object], key: str, part: Any | None) -> dict[str, object]:
    """Return a policy's state in which this part, a dataclass, stands under the key; nothing does where it is None."""
    rest = {name: value for name, value in state.items() if name != key}
    return rest if part is None else {**rest, key: encode_state(part)}


def _decode_field(raw: Any, hint: Any, *, columns: bool) -> Any:
    """Return the value of one field, entry by entry where it is a mapping or a tuple of any length."""
    arguments = get_args(hint)
    if columns:
        return dict(_rows(raw, arguments[1]))
    if get_origin(hint) is collections.abc.Mapping:
        return dict(_valid_entries(raw, arguments[1]))
    if get_origin(hint) is tuple and arguments[-1] is ...:
        return tuple(value for _, value in _valid_entries(dict(enumerate(raw)), arguments[0]))
    return _converter.structure(raw, hint)


def _valid_entries(raw: Mapping[Any, Any], form: Any) -> Iterator[tuple[Any, Any]]:
    for name, value in raw.items():
        with suppress(*_INVALID):
            yield name, _converter.structure(value, form)


def _rows(raw: Mapping[str, list[Any]], form: Any) -> Iterator[tuple[str, Any]]:
    """Yield the valid rows of columns, by id. Rows are many, so they do without the converter's dispatch."""
    keys, hints = [_key(own) for own in fields(form)], get_type_hints(form)
    read = [_READERS[hints[own.name]] for own in fields(form)]
    for name, *values in zip(raw["id"], *(raw[key] for key in keys), strict=True):
        with suppress(*_INVALID):
            yield _text(name), form(*(one(value) for one, value in zip(read, values, strict=True)))


def _to_columns(rows: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = fields(next(iter(rows.values()))) if rows else ()
    return {"id": [*rows], **{_key(own): [getattr(row, own.name) for row in rows.values()] for own in names}}


def _key(of: Field[Any]) -> str:
    return of.metadata.get(_KEY) or of.name


def _number(raw: Any, _: object = float) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not isfinite(raw):
        raise ValueError(f"not a finite number: {raw!r:.40}")
    return float(raw)


def _text(raw: Any, _: object = str) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"not a text: {raw!r:.40}")
    return raw


_READERS: Final[Mapping[Any, Callable[[Any], Any]]] = {float: _number, str: _text}
"""What the columns of a state may hold."""


def _renames(form: Any) -> dict[str, Any]:
    return {own.name: override(rename=_key(own)) for own in fields(form) if own.metadata.get(_KEY)}


_converter = Converter()
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook(str, _text)
_converter.register_structure_hook_factory(
    is_dataclass, lambda form: make_dict_structure_fn(form, _converter, **_renames(form))
)
_converter.register_unstructure_hook_factory(
    is_dataclass, lambda form: make_dict_unstructure_fn(form, _converter, **_renames(form))
)


@dataclass(frozen=True, slots=True)
class Account:
    """A user's account. It lasts while the user has jobs.

    `due` and `received` are GPU-seconds, counted in GPUs of the slowest type. By GPU type, `holdings` are the GPUs the
    user is entitled to after trading, `speedups` what one of them is worth to the user in GPUs of the slowest type, and
    `shortfall` the GPU-seconds by which the user received less than due in recent rounds (below zero for more), as if
    all types together were in balance. `lag` is the seconds of its due that the user is behind, below zero for ahead.
    """

    due: float = 0.0
    received: float = field(default=0.0, metadata=stored("had"))
    holdings: Mapping[str, float] = field(default_factory=dict)
    speedups: Mapping[str, float] = field(default_factory=dict)
    shortfall: Mapping[str, float] = field(default_factory=dict, metadata=stored("owed"))
    lag: float = 0.0


@dataclass(frozen=True, slots=True)
class Trade:
    """`seller` gives `gpus` GPUs of type `fast` to `buyer`, for `price` GPUs of type `slow` each."""

    seller: str
    buyer: str
    fast: str
    slow: str
    gpus: float
    price: float


@dataclass(frozen=True, slots=True)
class TicketAccounts:
    """What every entitlement by tickets stores of users, beside what is its own: `synsched status --shares` shows it.

    `time` is that of the last round in unix seconds, None before the first; `trades` are those of that round.
    """

    time: float | None = None
    accounts: Mapping[str, Account] = field(default_factory=dict, metadata=stored("users"))
    trades: tuple[Trade, ...] = ()
