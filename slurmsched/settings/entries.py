"""The definition, read as a list: one entry per setting, with the form its value must have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, get_type_hints

from slurmsched.settings.definition import Mode, Settings

__all__ = ["Entry", "Kind", "Section", "Value", "sections"]

Value = str | bool | int | float | Mode | tuple[str, ...] | tuple[float, ...]


class Kind(StrEnum):
    """How a value is written."""

    TEXT = "text"
    CHOICE = "choice"
    FLAG = "flag"
    COUNT = "count"
    TIME = "time"
    TEXTS = "texts"
    NUMBERS = "numbers"


_KINDS: dict[object, Kind] = {
    str: Kind.TEXT,
    Mode: Kind.CHOICE,
    bool: Kind.FLAG,
    int: Kind.COUNT,
    float: Kind.TIME,
    tuple[str, ...]: Kind.TEXTS,
    tuple[float, ...]: Kind.NUMBERS,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting. Times are in seconds; `at_least` bounds numbers and times, and each number of a list."""

    section: str
    key: str
    kind: Kind
    default: Value
    doc: str
    choices: tuple[str, ...] = ()
    at_least: float = 0.0

    @property
    def name(self) -> str:
        """As people say it: `rounds.period`."""
        return f"{self.section}.{self.key}"


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the file: what its settings are about, and the settings in the order they are defined."""

    name: str
    doc: str
    entries: tuple[Entry, ...]


def sections() -> tuple[Section, ...]:
    """Every section of the definition, in its order."""
    defaults = Settings()
    return tuple(
        Section(part.name, _summary(getattr(defaults, part.name)), tuple(_entries(part.name, defaults)))
        for part in fields(Settings)
    )


def _summary(section: object) -> str:
    return (type(section).__doc__ or "").strip()


def _entries(name: str, defaults: Settings) -> Iterator[Entry]:
    section: Any = getattr(defaults, name)  # which of the section classes it is does not matter here
    forms = get_type_hints(type(section))
    for item in fields(section):
        choices = item.metadata.get("choices", ())
        yield Entry(
            section=name,
            key=item.name,
            kind=Kind.CHOICE if choices else _KINDS[forms[item.name]],
            default=getattr(section, item.name),
            doc=item.metadata["doc"],
            choices=tuple(Mode) if forms[item.name] is Mode else choices,
            at_least=item.metadata.get("at_least", 0.0),
        )
