"""The table of sbatch's options: what becomes of each one for a managed job, and why some jobs are left to Slurm.

The rows are data, in `sbatch_options.toml`; its head says what the fields mean. `docs/flags.md` is rendered from it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Final

from slurmsched.backends.slurm.records import or_empty

RELEASES: Final = ("22.05", "24.11", "26.05")
"""The releases of Slurm whose options the table has."""


class Treatment(StrEnum):
    """What becomes of an option: see the head of the table. NONE has no bearing on scheduling."""

    KEEP = "keep"
    TRANSLATE = "translate"
    PLAN = "plan"
    LET_GO = "let go"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """A row of the table: an option, or a value of one, with its short form.

    `reason` is why a job with it is let go. Where squeue shows it, `column` names the column and `unset` what stands
    there without it, beside 0 and Slurm's words for no value. `hook` is the field of job_desc by which the submit hook
    sees it; `marked` if of some jobs only the hook does, and notes it in the comment.
    """

    names: tuple[str, ...]
    group: str
    treatment: Treatment
    says: str
    releases: tuple[str, ...] = RELEASES
    reason: str = ""
    column: str = ""
    unset: frozenset[str] = frozenset()
    hook: str = ""
    marked: bool = False

    @property
    def mark(self) -> str:
        """The option as the hook writes it into a comment: `spread-job`."""
        return self.names[0].lstrip("-").partition("=")[0]


@cache
def sbatch_options() -> tuple[SbatchOption, ...]:
    """Return all rows, in the order of the table."""
    text = (files(__package__) / "sbatch_options.toml").read_text(encoding="utf-8")
    return tuple(
        SbatchOption(
            names=tuple(row["names"]),
            group=row["group"],
            treatment=Treatment(row["we"]),
            says=row["says"],
            releases=tuple(row.get("releases", RELEASES)),
            reason=row.get("reason", ""),
            column=row.get("column", ""),
            unset=frozenset(row.get("unset", ())),
            hook=row.get("hook", ""),
            marked=row.get("marked", False),
        )
        for row in tomllib.loads(text)["option"]
    )


def options_by_group() -> dict[str, tuple[SbatchOption, ...]]:
    """Return the rows by group, in the order of the table."""
    return {group: tuple(rows) for group, rows in groupby(sbatch_options(), key=lambda option: option.group)}


def let_go_reason(name: str) -> str:
    """Return why a job with this option is let go. Raises KeyError if it is not."""
    return _reasons()[name]


def shown_let_go_reasons(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons of the let-go options that squeue shows in these fields, which are named as its columns."""
    for option in sbatch_options():
        value = or_empty(fields.get(option.column)) if option.column else ""
        if value and value not in ("0", *option.unset):
            yield option.reason


def marked_let_go_reason(mark: str) -> str:
    """Return the reason for the hook's mark in a comment; empty for a word that is none of the hook's marks."""
    return next((option.reason for option in sbatch_options() if option.marked and option.mark == mark), "")


@cache
def _reasons() -> dict[str, str]:
    return {name: option.reason for option in sbatch_options() if option.reason for name in option.names}
