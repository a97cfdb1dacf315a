"""Reads a trace in any known format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.traces.formats import native, published, sacct
from slurmsched.traces.tables import read_text, separator
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A trace format: its summary, how its text is recognised, and its reader."""

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
        "Synergy: job_id,model,arrival_s,iterations,num_gpus",
        _has_columns(*published.SYNERGY_COLUMNS),
        published.read_synergy,
    ),
    "gavel": TraceFormat(
        "Gavel: job_type, scale_factor, total_steps", _has_columns(*published.GAVEL_COLUMNS), published.read_gavel
    ),
    "openb": TraceFormat("Alibaba's openb pod lists", _has_columns(*published.OPENB_COLUMNS), published.read_openb),
    "sacct-json": TraceFormat("Slurm's accounting: sacct --json", _is_json_with("jobs", "{"), sacct.read_sacct_json),
    "philly": TraceFormat("Philly's cluster_job_log", _is_json_with("attempts", "["), published.read_philly),
    "sacct": TraceFormat(
        "Slurm's accounting: sacct --parsable2",
        lambda text: "JobID" in text.partition("\n")[0].split("|"),
        sacct.read_sacct,
    ),
}
"""Trace formats by name, in the order in which they are tried."""


def detect_format(text: str, name: str) -> str:
    """Returns the name of the format that the text has. Raises TraceError."""
    detected = next((key for key, trace_format in TRACE_FORMATS.items() if trace_format.matches(text)), None)
    if detected is None:
        sign = separator([text.partition("\n")[0]], (*native.REQUIRED_COLUMNS, *sacct.SACCT_FIELDS))
        found = f"its columns are separated by {sign}: expected ',', or '|' of sacct --parsable2; or " if sign else ""
        raise TraceError(
            f"{name}:1: unknown trace format: {found}name it with --format, one of {', '.join(TRACE_FORMATS)}"
        )
    return detected


def read_trace(path: str | Path, format_name: str | None = None, context: ImportContext | None = None) -> ImportedTrace:
    """Returns the trace in a file; its format is detected unless it is given. Raises TraceError."""
    text, name = read_text(path), Path(path).name
    if format_name is not None and format_name not in TRACE_FORMATS:
        raise TraceError(f"there is no trace format '{format_name}': known are {', '.join(TRACE_FORMATS)}")
    return TRACE_FORMATS[format_name or detect_format(text, name)].read(text, name, context or ImportContext())
