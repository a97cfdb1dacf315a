"""The definition as a list of settings, and the conversion of their values from and to TOML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final, get_type_hints

from slurmsched.model.hints import parse_duration
from slurmsched.settings.definition import Mode, Settings

SettingValue = str | bool | int | float | Mode | tuple[str, ...] | tuple[float, ...]


class SettingType(StrEnum):
    """The type of a value in the file."""

    TEXT = "text"
    CHOICE = "choice"
    FLAG = "flag"
    COUNT = "count"
    NUMBER = "number"
    TIME = "time"
    TEXTS = "texts"
    NUMBERS = "numbers"


_TYPES: dict[object, SettingType] = {
    str: SettingType.TEXT,
    Mode: SettingType.CHOICE,
    bool: SettingType.FLAG,
    int: SettingType.COUNT,
    float: SettingType.NUMBER,
    tuple[str, ...]: SettingType.TEXTS,
    tuple[float, ...]: SettingType.NUMBERS,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. Times are in seconds; `at_least` is the lower bound of numbers, also of those in a list."""

    section: str
    key: str
    kind: SettingType
    default: SettingValue
    doc: str
    choices: tuple[str, ...] = ()
    at_least: float = 0.0

    @property
    def name(self) -> str:
        """The full name, such as `rounds.period`."""
        return f"{self.section}.{self.key}"


@dataclass(frozen=True, slots=True)
class SettingsSection:
    """A section of the file, with its settings in the order of their definition."""

    name: str
    doc: str
    settings: tuple[Setting, ...]


def sections() -> tuple[SettingsSection, ...]:
    """Returns every section, in the order of the definition."""
    defaults = Settings()
    return tuple(
        SettingsSection(part.name, _summary(getattr(defaults, part.name)), tuple(_settings_of(part.name, defaults)))
        for part in fields(Settings)
    )


def _summary(section: object) -> str:
    return (type(section).__doc__ or "").strip()


def _settings_of(name: str, defaults: Settings) -> Iterator[Setting]:
    section: Any = getattr(defaults, name)  # one of the section classes
    type_hints = get_type_hints(type(section))
    for item in fields(section):
        choices, is_time = item.metadata.get("choices", ()), item.metadata.get("unit") == "time"
        yield Setting(
            section=name,
            key=item.name,
            kind=SettingType.CHOICE if choices else SettingType.TIME if is_time else _TYPES[type_hints[item.name]],
            default=getattr(section, item.name),
            doc=item.metadata["doc"],
            choices=tuple(Mode) if type_hints[item.name] is Mode else choices,
            at_least=item.metadata.get("at_least", 0.0),
        )


_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_MAX_WITH_UNIT: Final = 10_000_000
"""Longer times are written as plain numbers, since a time with a unit has at most seven digits."""


class InvalidValueError(ValueError):
    """A value that its setting does not allow."""


def parse_value(entry: Setting, raw: object) -> SettingValue:
    """Returns the TOML value as the settings hold it. Raises InvalidValueError."""
    try:
        value = _FORMATS[entry.kind].parse(entry, raw)
    except OverflowError:  # a whole number that is too large for a float
        raise InvalidValueError from None
    if value is None or not all(math.isfinite(n) and n >= entry.at_least for n in _numbers_in(value)):
        raise InvalidValueError
    return value


def expected_format(entry: Setting) -> str:
    """Returns what `parse_value` accepts, as text for people."""
    choices = ", ".join(f'"{choice}"' for choice in entry.choices)
    bound = f" of at least {entry.at_least:g}" if entry.at_least else ""
    return _FORMATS[entry.kind].description.format(choices=choices, bound=bound)


def to_toml(entry: Setting, value: SettingValue) -> str:
    """Returns the value as TOML, with times in their largest whole unit."""
    if isinstance(value, tuple):
        return "[" + ", ".join(_scalar_to_toml(item) for item in value) + "]"
    if entry.kind is SettingType.TIME and isinstance(value, float):
        return _time_to_toml(value)
    return _scalar_to_toml(value)


def _parse_text(_: Setting, raw: object) -> SettingValue | None:
    return raw if isinstance(raw, str) and raw.isprintable() else None


def _parse_choice(entry: Setting, raw: object) -> SettingValue | None:
    if not isinstance(raw, str) or raw not in entry.choices:
        return None
    return Mode(raw) if isinstance(entry.default, Mode) else raw


def _parse_flag(_: Setting, raw: object) -> SettingValue | None:
    return raw if isinstance(raw, bool) else None


def _parse_count(_: Setting, raw: object) -> SettingValue | None:
    return raw if isinstance(raw, int) and not isinstance(raw, bool) else None


def _parse_number(_: Setting, raw: object) -> SettingValue | None:
    return float(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else None


def _parse_time(entry: Setting, raw: object) -> SettingValue | None:
    return _parse_number(entry, parse_duration(raw) if isinstance(raw, str) else raw)


def _parse_texts(_: Setting, raw: object) -> SettingValue | None:
    items = raw if isinstance(raw, list) else [None]
    texts = tuple(item for item in items if isinstance(item, str) and item and item.isprintable())
    return texts if len(texts) == len(items) else None


def _parse_numbers(_: Setting, raw: object) -> SettingValue | None:
    items = raw if isinstance(raw, list) else [None]
    numbers = tuple(float(item) for item in items if isinstance(item, int | float) and not isinstance(item, bool))
    return numbers if len(numbers) == len(items) else None


@dataclass(frozen=True, slots=True)
class _ValueFormat:
    description: str
    parse: Callable[[Setting, object], SettingValue | None]


_FORMATS: Final[dict[SettingType, _ValueFormat]] = {
    SettingType.TEXT: _ValueFormat("a text on one line", _parse_text),
    SettingType.CHOICE: _ValueFormat("one of {choices}", _parse_choice),
    SettingType.FLAG: _ValueFormat("true or false", _parse_flag),
    SettingType.COUNT: _ValueFormat("a whole number{bound}", _parse_count),
    SettingType.NUMBER: _ValueFormat("a number{bound}", _parse_number),
    SettingType.TIME: _ValueFormat('a number of seconds{bound}, or a time such as "5m"', _parse_time),
    SettingType.TEXTS: _ValueFormat('a list of texts such as ["one", "two"]', _parse_texts),
    SettingType.NUMBERS: _ValueFormat("a list of numbers{bound} such as [3600, 14400]", _parse_numbers),
}


def _numbers_in(value: SettingValue) -> tuple[float, ...]:
    items = value if isinstance(value, tuple) else (value,)
    return tuple(item for item in items if isinstance(item, int | float))


def _time_to_toml(value: float) -> str:
    for unit, size in _UNITS:
        if 0 < value < _MAX_WITH_UNIT and value % size == 0:
            return f'"{value / size:.0f}{unit}"'
    return _scalar_to_toml(value)


def _scalar_to_toml(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string
    return f"{value:.0f}" if abs(value) < _MAX_WITH_UNIT and value == int(value) else repr(value)


def parse_listen_address(text: str) -> tuple[str, int] | None:
    """Returns the IP address and the port of `ADDRESS:PORT`, with IPv6 as `[ADDRESS]:PORT`; None for anything else, and
    for ports that only root may listen on. Names are none: looking them up could take long."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") != (":" in host) or not re.fullmatch(r"[0-9]{4,5}", port):
        return None
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    number = int(port)
    return (str(address), number) if _FIRST_PORT <= number <= _LAST_PORT else None


_FIRST_PORT: Final = 1024
_LAST_PORT: Final = 65535

_TICKETS: Final = re.compile(r"(?P<name>[^=\s]{1,200})=(?P<tickets>\d{1,9}(?:\.\d{1,6})?)\Z")


def parse_tickets(entry: str) -> tuple[str, float] | None:
    """Returns the name and its tickets; None unless the text is `NAME=TICKETS` with tickets above zero."""
    match = _TICKETS.match(entry)
    tickets = float(match["tickets"]) if match else 0.0
    return (match["name"], tickets) if match and tickets > 0 else None
