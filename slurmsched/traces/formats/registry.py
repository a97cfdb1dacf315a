"""A trace from a file, whatever its form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.traces.formats import gavel, native, openb, philly, sacct, sacct_json, synergy
from slurmsched.traces.tables import read_text
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A form of trace: what it is, how its text is known, how it is read."""

    summary: str
    matches: Callable[[str], bool]
    read: Callable[[str, str, ImportContext], ImportedTrace]


def _has_columns(*columns: str) -> Callable[[str], bool]:
    return lambda text: set(columns) <= set(text.partition("\n")[0].strip().lstrip("\ufeff").split(","))


def _is_json_with(word: str, opening: str) -> Callable[[str], bool]:
    return lambda text: text.lstrip()[:1] == opening and f'"{word}"' in text[:100_000]


TRACE_FORMATS: Final[Mapping[str, TraceFormat]] = {
    "own": TraceFormat("our CSV: docs/simulating.md", _has_columns(*native.REQUIRED_COLUMNS), native.read_native),
    "synergy": TraceFormat(
        "Synergy: job_id,model,arrival_s,iterations,num_gpus", _has_columns(*synergy.COLUMNS), synergy.read_synergy
    ),
    "gavel": TraceFormat("Gavel: job_type, scale_factor, total_steps", _has_columns(*gavel.COLUMNS), gavel.read_gavel),
    "openb": TraceFormat("Alibaba's openb pod lists", _has_columns(*openb.COLUMNS), openb.read_openb),
    "sacct-json": TraceFormat("your history: sacct --json", _is_json_with("jobs", "{"), sacct_json.read_sacct_json),
    "philly": TraceFormat("Philly's cluster_job_log", _is_json_with("attempts", "["), philly.read_philly),
    "sacct": TraceFormat(
        "your history: sacct --parsable2",
        lambda text: "JobID" in text.partition("\n")[0].split("|"),
        sacct.read_sacct,
    ),
}
"""Every form by name, in the order in which they are tried."""


def detect_format(text: str, name: str) -> str:
    """The name of the form that the text has. Raises TraceError."""
    found = next((form for form, known in TRACE_FORMATS.items() if known.matches(text)), None)
    if found is None:
        raise TraceError(
            f"{name}:1: no trace that we know: name its form with --format, one of {', '.join(TRACE_FORMATS)}"
        )
    return found


def read_trace(path: str | Path, format_name: str | None = None, context: ImportContext | None = None) -> ImportedTrace:
    """The trace in a file; its form is recognised unless it is named. Raises TraceError."""
    text, name = read_text(path), Path(path).name
    if format_name is not None and format_name not in TRACE_FORMATS:
        raise TraceError(f"there is no form '{format_name}': known are {', '.join(TRACE_FORMATS)}")
    return TRACE_FORMATS[format_name or detect_format(text, name)].read(text, name, context or ImportContext())
