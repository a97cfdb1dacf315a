"""A trace from a file, whatever its form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.traces import importing, own
from slurmsched.traces.errors import TraceError
from slurmsched.traces.imported import Imported, Sources
from slurmsched.traces.importing import gavel, openb, synergy
from slurmsched.traces.lines import read_text

__all__ = ["FORMATS", "Format", "read_trace", "recognised"]


@dataclass(frozen=True, slots=True)
class Format:
    """A form of trace: what it is, how its text is known, how it is read."""

    summary: str
    fits: Callable[[str], bool]
    read: Callable[[str, str, Sources], Imported]


def _headed(*columns: str) -> Callable[[str], bool]:
    return lambda text: set(columns) <= set(text.partition("\n")[0].strip().lstrip("\ufeff").split(","))


def _json_with(word: str, opening: str) -> Callable[[str], bool]:
    return lambda text: text.lstrip()[:1] == opening and f'"{word}"' in text[:100_000]


FORMATS: Final[Mapping[str, Format]] = {
    "own": Format("our CSV: docs/simulating.md", _headed(*own.NEEDED), own.read_own),
    "synergy": Format(
        "Synergy: job_id,model,arrival_s,iterations,num_gpus", _headed(*synergy.COLUMNS), importing.read_synergy
    ),
    "gavel": Format("Gavel: job_type, scale_factor, total_steps", _headed(*gavel.COLUMNS), importing.read_gavel),
    "openb": Format("Alibaba's openb pod lists", _headed(*openb.COLUMNS), importing.read_openb),
    "sacct-json": Format("your history: sacct --json", _json_with("jobs", "{"), importing.read_sacct_json),
    "philly": Format("Philly's cluster_job_log", _json_with("attempts", "["), importing.read_philly),
    "sacct": Format(
        "your history: sacct --parsable2",
        lambda text: "JobID" in text.partition("\n")[0].split("|"),
        importing.read_sacct,
    ),
}
"""Every form by name, in the order in which they are tried."""


def recognised(text: str, name: str) -> str:
    """The name of the form that the text has. Raises TraceError."""
    found = next((form for form, known in FORMATS.items() if known.fits(text)), None)
    if found is None:
        raise TraceError(f"{name}:1: no trace that we know: name its form with --format, one of {', '.join(FORMATS)}")
    return found


def read_trace(path: str | Path, form: str | None = None, sources: Sources | None = None) -> Imported:
    """The trace in a file; its form is recognised unless it is named. Raises TraceError."""
    text, name = read_text(path), Path(path).name
    if form is not None and form not in FORMATS:
        raise TraceError(f"there is no form '{form}': known are {', '.join(FORMATS)}")
    return FORMATS[form or recognised(text, name)].read(text, name, sources or Sources())
