"""Loads the settings in force: SYNSCHED_CONF, else /etc/synsched/synsched.toml, else the defaults.

Also returns them as tables for people: values, origins and what may be written.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from slurmsched.model import SynschedError
from slurmsched.settings.constraints import violated_constraints
from slurmsched.settings.definition import Settings
from slurmsched.settings.schema import (
    InvalidValueError,
    Setting,
    SettingsSection,
    SettingValue,
    expected_format,
    parse_value,
    sections,
    to_toml,
)

SETTINGS_VARIABLE: Final = "SYNSCHED_CONF"
DEFAULT_FILE: Final = Path("/etc/synsched/synsched.toml")
_MAX_SHOWN: Final = 40


class SettingsError(SynschedError):
    """Mistakes in the settings; the message names the file and the first of them, and says what to write."""

    exit_code = 2

    def __init__(self, file: Path | None, mistakes: Sequence[str]) -> None:
        more = len(mistakes) - 1
        others = f"; 'synsched config check' tells {more} more" if more else ""
        super().__init__(f"{file or 'the settings'}: {mistakes[0]}{others}")
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and their origin: `file` is None if all are defaults; `given` are the names set in the file.

    With `mistakes` what is wrong in the file is left out, so that defaults stand in its place.
    """

    settings: Settings
    file: Path | None = None
    given: frozenset[str] = field(default=frozenset())
    mistakes: tuple[str, ...] = ()


def settings_file(environ: Mapping[str, str] = os.environ, default: Path = DEFAULT_FILE) -> Path | None:
    """Returns the file to load, None if there is none; a file that SYNSCHED_CONF names may be missing."""
    if named := environ.get(SETTINGS_VARIABLE):
        return Path(named)
    return default if default.exists() else None


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Returns the settings in force. Raises SettingsError."""
    return load_settings_file(settings_file(environ)).settings


def load_settings_file(file: Path | None) -> LoadedSettings:
    """Returns the settings of a file, with defaults for what it does not set. Raises SettingsError."""
    loaded = read_settings_file(file)
    if loaded.mistakes:
        raise SettingsError(file, loaded.mistakes)
    return loaded


def read_settings_file(file: Path | None) -> LoadedSettings:
    """Returns the settings of a file as far as it has any, with all mistakes in it."""
    if file is None:
        return LoadedSettings(Settings())
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}; see {SETTINGS_VARIABLE}"
        return LoadedSettings(Settings(), file, mistakes=(why,))
    except ValueError as error:  # invalid TOML or UTF-8
        return LoadedSettings(Settings(), file, mistakes=(f"not valid TOML: {error}",))
    return _from_tables(tables, file)


def _from_tables(tables: Mapping[str, object], file: Path) -> LoadedSettings:
    known = {section.name: section for section in sections()}
    settings, given, mistakes = Settings(), set[str](), list[str]()
    for name, table in tables.items():
        if name not in known:
            mistakes.append(_unknown_section(name, known))
        elif not isinstance(table, dict):
            mistakes.append(f"{name} is a section: write [{name}] on a line of its own")
        else:
            values, wrong = _values(known[name], table)
            mistakes += wrong
            settings = replace(settings, **{name: replace(getattr(settings, name), **values)})
            given |= {f"{name}.{key}" for key in values}
    invalid = set[str]().union(*map(_named, mistakes))
    # A default stands for each invalid value: what that contradicts is no mistake of the file.
    violated = (message for message in violated_constraints(settings) if not invalid & _named(message))
    return LoadedSettings(settings, file, frozenset(given), (*mistakes, *violated))


def _named(message: str) -> set[str]:
    return {*_SETTING_NAME.findall(message)}


_SETTING_NAME: Final = re.compile(r"\b[a-z]+\.[a-z_]+\b")


def _values(section: SettingsSection, table: Mapping[str, object]) -> tuple[dict[str, SettingValue], list[str]]:
    """Returns the values by key, and the mistakes."""
    entries = {entry.key: entry for entry in section.settings}
    values, mistakes = dict[str, SettingValue](), list[str]()
    for key, raw in table.items():
        if key not in entries:
            mistakes.append(_unknown_key(section, key))
            continue
        try:
            values[key] = parse_value(entries[key], raw)
        except InvalidValueError:
            mistakes.append(_invalid_value(entries[key], raw))
    return values, mistakes


def _invalid_value(entry: Setting, raw: object) -> str:
    shown = repr(raw) if len(repr(raw)) <= _MAX_SHOWN else repr(raw)[:_MAX_SHOWN] + "..."
    example = f"{entry.key} = {to_toml(entry, entry.default)}"
    return f"{entry.name} is {shown}: expected {expected_format(entry)}, for example {example}"


def _unknown_section(name: str, known: Mapping[str, SettingsSection]) -> str:
    sections_with_key = [
        section.name for section in known.values() if name in {entry.key for entry in section.settings}
    ]
    if sections_with_key:
        return f"{name} is outside its section: put it under [{sections_with_key[0]}]"
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"unknown section [{name}]" + (f": did you mean [{near[0]}]?" if near else f": known are {', '.join(known)}")


def _unknown_key(section: SettingsSection, key: str) -> str:
    known = [entry.key for entry in section.settings]
    if near := get_close_matches(key, known, n=1, cutoff=0.5):
        return f"unknown setting {section.name}.{key}: did you mean {near[0]}?"
    names = {entry.name for other in sections() for entry in other.settings}
    if elsewhere := sorted(name for name in names if name.endswith(f".{key}")):
        return f"unknown setting {section.name}.{key}: did you mean {elsewhere[0]}?"
    return f"unknown setting {section.name}.{key}: known here are {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting: `value` and `default` as TOML, `form` is what may be written, `origin` a file or `default`."""

    name: str
    key: str
    value: str
    default: str
    origin: str
    form: str
    doc: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SettingsTable:
    """One section and its settings."""

    name: str
    doc: str
    rows: tuple[SettingRow, ...]


def settings_tables(loaded: LoadedSettings | None = None) -> tuple[SettingsTable, ...]:
    """Returns every section with every setting; without `loaded`, the defaults."""
    loaded = loaded or LoadedSettings(Settings())
    return tuple(
        SettingsTable(section.name, section.doc, tuple(_setting_row(entry, loaded) for entry in section.settings))
        for section in sections()
    )


def setting_rows(loaded: LoadedSettings | None = None) -> tuple[SettingRow, ...]:
    """Returns every setting, in the order of the file."""
    return tuple(row for table in settings_tables(loaded) for row in table.rows)


def changed_settings(before: Settings, after: Settings) -> tuple[str, ...]:
    """Returns the settings that differ, each as `rounds.mode = "enforce"` with its later value."""
    was = {row.name: row.value for row in setting_rows(LoadedSettings(before))}
    now = setting_rows(LoadedSettings(after))
    return tuple(f"{row.name} = {row.value}" for row in now if row.value != was[row.name])


def _setting_row(entry: Setting, loaded: LoadedSettings) -> SettingRow:
    value = getattr(getattr(loaded.settings, entry.section), entry.key)
    return SettingRow(
        name=entry.name,
        key=entry.key,
        value=to_toml(entry, value),
        default=to_toml(entry, entry.default),
        origin=str(loaded.file) if entry.name in loaded.given else "default",
        form=expected_format(entry),
        doc=entry.doc,
        choices=entry.choices,
    )
