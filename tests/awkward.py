"""Values of any dataclass with what people meet least often: none, one, a minute less a second, a day, infinity, no
number, a million, long names, and text that a terminal would obey."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["HOSTILE", "Awkward"]

T = TypeVar("T")

HOSTILE: Final = "a\n[red]b[/red]\x1b[31mc\u2028\u202ed\udcff"
NUMBERS: Final = (0.0, 0.5, 1.0, 59.0, 86400.0, 1e6, float("inf"), float("nan"))
COUNTS: Final = (0, 1, 2, 59, 86400, 1_000_000)
TEXTS: Final = ("", "7", "alice", "resnet50", "gpu-node-with-a-long-name-0123", "word " * 40, "x" * 120, HOSTILE)
LENGTHS: Final = (0, 1, 3)
_CHOICES: Final[Mapping[Any, Sequence[Any]]] = {
    type(None): (None,),
    bool: (False, True),
    int: COUNTS,
    float: NUMBERS,
    str: TEXTS,
    object: TEXTS,
    Any: TEXTS,
    Path: (Path("/var/lib/synsched"),),
}


class Awkward:
    """Builds values; one seed builds the same ones. `known` are values for some fields, by their names."""

    def __init__(self, seed: int, **known: Any) -> None:
        self._random = Random(seed)
        self._known = known

    def of(self, kind: type[T], **given: Any) -> T:
        """A dataclass; `given` fields are as they are given."""
        hints = get_type_hints(kind)
        values = {
            field.name: given[field.name] if field.name in given else self._field(field.name, hints[field.name])
            for field in fields(kind)  # type: ignore[arg-type]  # a dataclass
            if field.init
        }
        return kind(**values)

    def _field(self, name: str, hint: Any) -> Any:
        return self._known[name] if name in self._known else self.value(hint)

    def value(self, hint: Any) -> Any:
        """A value of this annotation."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self.value(self._random.choice(arguments))
        if origin is tuple:
            return self._tuple(arguments)
        if origin in (list, Sequence, Iterable, Collection):
            return tuple(self.value(arguments[0]) for _ in range(self._random.choice(LENGTHS)))
        if origin in (frozenset, AbstractSet):
            return frozenset(self.value(arguments[0]) for _ in range(self._random.choice(LENGTHS)))
        if origin in (dict, Mapping):
            count = self._random.choice(LENGTHS)
            return {self.value(arguments[0]): self.value(arguments[1]) for _ in range(count)}
        return self._plain(hint)

    def _tuple(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(self.value(arguments[0]) for _ in range(self._random.choice(LENGTHS)))
        return tuple(self.value(argument) for argument in arguments)

    def _plain(self, kind: Any) -> Any:
        if kind in _CHOICES:
            return self._random.choice(_CHOICES[kind])
        if isinstance(kind, type) and issubclass(kind, Enum):
            return self._random.choice(list(kind))
        if is_dataclass(kind):
            return self.of(kind)  # type: ignore[arg-type]  # a class, not an instance
        raise TypeError(f"no awkward value of {kind!r} is known")
