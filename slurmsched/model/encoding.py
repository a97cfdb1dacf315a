"""The model's own forms as JSON, there and back; used by the store, recordings and `--json`."""

from __future__ import annotations

import json
from types import UnionType
from typing import Any, Final, TypeVar, get_origin

from cattrs.preconf.json import make_converter

from slurmsched.model.errors import SynschedError
from slurmsched.model.plan import Shape, Value

__all__ = ["EncodingError", "decode", "encode", "plain"]

T = TypeVar("T")


class EncodingError(SynschedError):
    """Stored text that is not what it should be."""


_converter = make_converter()


def _value(data: Any, _: object) -> Value:
    if isinstance(data, dict):
        return _converter.structure(data, Shape)
    if data is None or isinstance(data, (str, int)):
        return data
    raise ValueError(f"not an operation's value: {type(data).__name__}")


_converter.register_structure_hook_func(lambda form: isinstance(form, UnionType) and form == Value, _value)
_converter.register_unstructure_hook_func(
    lambda form: isinstance(form, UnionType) and form == Value,
    lambda value: _converter.unstructure(value) if isinstance(value, Shape) else value,
)
_detail = str | int | float
_converter.register_structure_hook_func(
    lambda form: isinstance(form, UnionType) and form == _detail, lambda data, _: data
)

_SETS: Final[tuple[object, ...]] = (set, frozenset)
# The order of a set of strings changes from process to process.
_converter.register_unstructure_hook_func(
    lambda form: (get_origin(form) or form) in _SETS,
    lambda value: sorted(_converter.unstructure(item) for item in value),
)

# What a policy remembers is JSON already and has no form of its own.
_converter.register_structure_hook_func(lambda form: form is object, lambda data, _: data)


def plain(value: object) -> Any:
    """The value as dicts, lists, strings and numbers; sets come out sorted, so equal values give equal text."""
    return _sorted(_converter.unstructure(value))


def encode(value: object) -> str:
    """One line of JSON."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"))


def decode(form: type[T], text: str | bytes) -> T:
    """The value of type `form` that `encode` wrote. Raises EncodingError."""
    try:
        return _converter.structure(json.loads(text), form)
    except Exception as error:  # cattrs raises groups of any kind; the caller needs one sentence
        raise EncodingError(f"cannot read a stored {form.__name__}: {error}") from error


def _sorted(data: Any) -> Any:
    match data:
        case dict():
            return {key: _sorted(value) for key, value in data.items()}
        case set() | frozenset():
            return sorted(_sorted(value) for value in data)
        case list() | tuple():
            return [_sorted(value) for value in data]
        case _:
            return data
