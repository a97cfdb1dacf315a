"""Encodes values of the data model as JSON and decodes them; used by the store, recordings and `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Final, TypeVar, get_origin

from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.preconf.json import make_converter

from slurmsched.model.errors import SynschedError
from slurmsched.model.plan import JobSpec, OperationValue

T = TypeVar("T")


class EncodingError(SynschedError):
    """Stored text that does not decode to the expected type."""


_converter = make_converter()


def _structure_operation_value(data: Any, _: object) -> OperationValue:
    if isinstance(data, dict):
        return _converter.structure(data, JobSpec)
    if data is None or isinstance(data, (str, int)):
        return data
    raise ValueError(f"an operation's value cannot be of type {type(data).__name__}")


_converter.register_structure_hook_func(
    lambda form: isinstance(form, UnionType) and form == OperationValue, _structure_operation_value
)
_converter.register_unstructure_hook_func(
    lambda form: isinstance(form, UnionType) and form == OperationValue,
    lambda value: _converter.unstructure(value) if isinstance(value, JobSpec) else value,
)
_DetailValue = str | int | float
_converter.register_structure_hook_func(
    lambda form: isinstance(form, UnionType) and form == _DetailValue, lambda data, _: data
)

_SET_TYPES: Final[tuple[object, ...]] = (set, frozenset)
# The order of a set of strings changes from process to process.
_converter.register_unstructure_hook_func(
    lambda form: (get_origin(form) or form) in _SET_TYPES,
    lambda value: sorted(_converter.unstructure(item) for item in value),
)

_STORED_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "Job": {"original_request": "request", "current_request": "standing", "allocations": "shares"},
    "Target": {"allocations": "shares"},
    "SchedulerState": {"original_requests": "originals"},
}
"""The JSON keys that differ from the field's name, by class and field: databases and recordings keep older names."""


def json_key(data_type: type, field: str) -> str:
    """Returns the key that a field of this class has in JSON."""
    return _STORED_KEYS.get(data_type.__name__, {}).get(field, field)


def _has_stored_keys(data_type: Any) -> bool:
    return getattr(get_origin(data_type) or data_type, "__name__", "") in _STORED_KEYS


def _overrides(data_type: Any) -> dict[str, Any]:
    names = _STORED_KEYS[(get_origin(data_type) or data_type).__name__]
    return {field: override(rename=key) for field, key in names.items()}


def _unstructure_renamed(data_type: Any) -> Callable[[Any], Any]:
    return make_dict_unstructure_fn(data_type, _converter, **_overrides(data_type))


def _structure_renamed(data_type: Any) -> Callable[[Any, Any], Any]:
    return make_dict_structure_fn(data_type, _converter, **_overrides(data_type))


# cattrs calls a factory once for each class, so renamed fields cost nothing per value.
_converter.register_unstructure_hook_factory(_has_stored_keys, _unstructure_renamed)
_converter.register_structure_hook_factory(_has_stored_keys, _structure_renamed)

# A policy's state is JSON already and has no type.
_converter.register_structure_hook_func(lambda form: form is object, lambda data, _: data)


def to_plain(value: object) -> Any:
    """Returns the value as dicts, lists, strings and numbers; sets are sorted, so equal values give equal text."""
    return _with_sorted_sets(_converter.unstructure(value))


def encode(value: object) -> str:
    """Returns the value as one line of JSON."""
    plain = _converter.unstructure(value)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), default=_with_sorted_sets)


def encode_with(value: Any, texts: Mapping[str, str]) -> str:
    """Returns what `encode` does of a dataclass, with these texts for those of its fields."""
    of_field = {field.name: texts.get(field.name) or encode(getattr(value, field.name)) for field in fields(value)}
    by_key = sorted((json_key(type(value), name), text) for name, text in of_field.items())
    return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in by_key) + "}"


class ListEncoder:
    """Encodes lists of values that nobody changes, an object that was in the last list only once."""

    def __init__(self) -> None:
        self._known: Mapping[int, tuple[object, str]] = {}
        """By address; the object is kept so that no other gets its address."""

    def encode(self, values: Iterable[object]) -> str:
        """Returns what `encode` does of a list."""
        return f"[{','.join(self.encode_each(values))}]"

    def encode_each(self, values: Iterable[object]) -> list[str]:
        """Returns what `encode` does of each value."""
        last, known, each = self._known, dict[int, tuple[object, str]](), list[str]()
        for value in values:
            of_value = known[id(value)] = last.get(id(value)) or (value, encode(value))
            each.append(of_value[1])
        self._known = known
        return each


def decode(target_type: type[T], text: str | bytes) -> T:
    """Returns the value of type `target_type` that `encode` wrote. Raises EncodingError."""
    try:
        return _converter.structure(json.loads(text), target_type)
    except Exception as error:  # cattrs raises exception groups of many types; the caller needs one sentence
        raise EncodingError(f"cannot read a stored {target_type.__name__}: {error}") from error


def _with_sorted_sets(data: Any) -> Any:
    match data:
        case dict():
            return {key: _with_sorted_sets(value) for key, value in data.items()}
        case set() | frozenset():
            return sorted(_with_sorted_sets(value) for value in data)
        case list() | tuple():
            return [_with_sorted_sets(value) for value in data]
        case _:
            return data
