"""The settings for people: their values with where each comes from, and the words for file and reference page."""

from __future__ import annotations

from dataclasses import dataclass

from slurmsched.settings.definition import Settings
from slurmsched.settings.entries import Entry, sections
from slurmsched.settings.loading import Loaded
from slurmsched.settings.values import expected, written

__all__ = ["Row", "Table", "rows", "tables"]


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: `value` and `default` as TOML, `form` what may be written, `origin` a file or `default`."""

    name: str
    key: str
    value: str
    default: str
    origin: str
    form: str
    doc: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A section with its rows."""

    name: str
    doc: str
    rows: tuple[Row, ...]


def tables(loaded: Loaded | None = None) -> tuple[Table, ...]:
    """Every section with every setting; without `loaded` as they are shipped."""
    loaded = loaded or Loaded(Settings())
    return tuple(
        Table(section.name, section.doc, tuple(_row(entry, loaded) for entry in section.entries))
        for section in sections()
    )


def rows(loaded: Loaded | None = None) -> tuple[Row, ...]:
    """Every setting, in the order of the file."""
    return tuple(row for table in tables(loaded) for row in table.rows)


def _row(entry: Entry, loaded: Loaded) -> Row:
    value = getattr(getattr(loaded.settings, entry.section), entry.key)
    return Row(
        name=entry.name,
        key=entry.key,
        value=written(entry, value),
        default=written(entry, entry.default),
        origin=str(loaded.file) if entry.name in loaded.given else "default",
        form=expected(entry),
        doc=entry.doc,
        choices=entry.choices,
    )
