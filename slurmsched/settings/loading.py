"""The settings in force: SYNSCHED_CONF, else /etc/synsched/synsched.toml, else the defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from slurmsched.model import SynschedError
from slurmsched.settings.definition import Settings
from slurmsched.settings.entries import Entry, Section, Value, sections
from slurmsched.settings.relations import contradiction
from slurmsched.settings.values import UnfitValueError, expected, read, written

__all__ = ["DEFAULT_FILE", "VARIABLE", "Loaded", "SettingsError", "load", "load_file", "settings_file"]

VARIABLE: Final = "SYNSCHED_CONF"
DEFAULT_FILE: Final = Path("/etc/synsched/synsched.toml")
_SHOWN: Final = 40


class SettingsError(SynschedError):
    """The file has a mistake; the message names file and key and says what to write."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and where they come from: `file` None means that all are defaults, `given` the names set in it."""

    settings: Settings
    file: Path | None = None
    given: frozenset[str] = field(default=frozenset())


def settings_file(environ: Mapping[str, str] = os.environ, default: Path = DEFAULT_FILE) -> Path | None:
    """The file that counts, None where there is none. One that SYNSCHED_CONF names counts even if it is missing."""
    if named := environ.get(VARIABLE):
        return Path(named)
    return default if default.exists() else None


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force. Raises SettingsError."""
    return load_file(settings_file(environ)).settings


def load_file(file: Path | None) -> Loaded:
    """The settings of one file; defaults where it says nothing, or where there is no file. Raises SettingsError."""
    if file is None:
        return Loaded(Settings())
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror or error}; see {VARIABLE}") from error
    except ValueError as error:  # TOML's and UTF-8's mistakes
        raise SettingsError(f"{file}: is not TOML: {error}") from error
    try:
        return _filled(tables, file)
    except _MistakeError as error:
        raise SettingsError(f"{file}: {error}") from error


class _MistakeError(Exception):
    """What is wrong, without the file's name."""


def _filled(tables: Mapping[str, object], file: Path) -> Loaded:
    known = {section.name: section for section in sections()}
    settings, given = Settings(), set[str]()
    for name, table in tables.items():
        if name not in known:
            raise _MistakeError(_unknown_section(name, known))
        if not isinstance(table, dict):
            raise _MistakeError(f"{name} is a section: write [{name}] on a line of its own")
        values = _values(known[name], table)
        settings = replace(settings, **{name: replace(getattr(settings, name), **values)})
        given |= {f"{name}.{key}" for key in values}
    if said := contradiction(settings):
        raise _MistakeError(said)
    return Loaded(settings, file, frozenset(given))


def _values(section: Section, table: Mapping[str, object]) -> dict[str, Value]:
    entries = {entry.key: entry for entry in section.entries}
    values = {}
    for key, raw in table.items():
        if key not in entries:
            raise _MistakeError(_unknown_key(section, key))
        try:
            values[key] = read(entries[key], raw)
        except UnfitValueError:
            raise _MistakeError(_unfit(entries[key], raw)) from None
    return values


def _unfit(entry: Entry, raw: object) -> str:
    shown = repr(raw) if len(repr(raw)) <= _SHOWN else repr(raw)[:_SHOWN] + "..."
    example = f"{entry.key} = {written(entry, entry.default)}"
    return f"{entry.name} is {shown}: expected {expected(entry)}, for example {example}"


def _unknown_section(name: str, known: Mapping[str, Section]) -> str:
    homes = [section.name for section in known.values() if name in {entry.key for entry in section.entries}]
    if homes:
        return f"{name} stands outside its section: it belongs under [{homes[0]}]"
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"unknown section [{name}]" + (f": did you mean [{near[0]}]?" if near else f": known are {', '.join(known)}")


def _unknown_key(section: Section, key: str) -> str:
    here = [entry.key for entry in section.entries]
    if near := get_close_matches(key, here, n=1, cutoff=0.5):
        return f"unknown setting {section.name}.{key}: did you mean {near[0]}?"
    names = {entry.name for other in sections() for entry in other.entries}
    if home := sorted(name for name in names if name.endswith(f".{key}")):
        return f"unknown setting {section.name}.{key}: did you mean {home[0]}?"
    return f"unknown setting {section.name}.{key}: known here are {', '.join(here)}"
