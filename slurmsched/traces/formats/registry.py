"""Reads a trace in any known format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.traces.formats import logs, native, published, sacct
from slurmsched.traces.tables import DELIMITERS, columns_in, read_text
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A trace format: its summary, its reader, and how its text is recognised: by `columns` among the headings of its
    first line, separated by `delimiter`, or by `matches` where it has none."""

    summary: str
    read: Callable[[str, str, ImportContext], ImportedTrace]
    columns: Sequence[str] = ()
    delimiter: str = ","
    matches: Callable[[str], bool] | None = None

    def recognises(self, text: str) -> bool:
        """Whether a text has this format, as far as its beginning tells."""
        if self.matches is not None:
            return self.matches(text)
        return set(self.columns) <= {column.strip().strip('"') for column in _head(text).split(self.delimiter)}


def _head(text: str) -> str:
    return text.lstrip("\ufeff").lstrip().partition("\n")[0].strip()


def _is_json_with(word: str, opening: str) -> Callable[[str], bool]:
    return lambda text: text.lstrip()[:1] == opening and f'"{word}"' in text[:100_000]


TRACE_FORMATS: Final[Mapping[str, TraceFormat]] = {
    "own": TraceFormat("our CSV: docs/simulating.md", native.read_native, native.REQUIRED_COLUMNS),
    "sacct": TraceFormat("Slurm's accounting: sacct --parsable2", sacct.read_sacct, ("JobID",), "|"),
    "sacct-json": TraceFormat(
        "Slurm's accounting: sacct --json", sacct.read_sacct_json, matches=_is_json_with("jobs", "{")
    ),
    "philly": TraceFormat(
        "Microsoft Philly: cluster_job_log (JSON)", published.read_philly, matches=_is_json_with("attempts", "[")
    ),
    "philly-flat": TraceFormat("Philly as one table, without users", logs.read_philly_flat, logs.PHILLY_FLAT_COLUMNS),
    "itp": TraceFormat("Microsoft ITP: elasticflow-traces", logs.read_itp, logs.ITP_COLUMNS),
    "helios": TraceFormat("SenseTime Helios: cluster_log.csv", logs.read_helios, logs.HELIOS_COLUMNS),
    "acme": TraceFormat("Acme: trace_seren.csv, trace_kalos.csv", logs.read_acme, logs.ACME_COLUMNS),
    "openb": TraceFormat("Alibaba openb: pod lists", published.read_openb, published.OPENB_COLUMNS),
    "spot": TraceFormat("Alibaba spot GPUs: job_info_df.csv", logs.read_spot, logs.SPOT_COLUMNS),
    "chronus": TraceFormat("Chronus: Philly and Helios with users", logs.read_chronus, logs.CHRONUS_COLUMNS),
    "elasticflow": TraceFormat("ElasticFlow: jobs with deadlines", logs.read_elasticflow, logs.ELASTICFLOW_COLUMNS),
    "gavel": TraceFormat("Gavel: job types and steps", published.read_gavel, published.GAVEL_COLUMNS),
    "sia": TraceFormat("Sia and Pollux: workload-N.csv", logs.read_sia, logs.SIA_COLUMNS),
    "synergy": TraceFormat("Synergy: models and iterations", published.read_synergy, published.SYNERGY_COLUMNS),
}
"""Trace formats by name, in the order in which they are tried."""


def detect_format(text: str, name: str) -> str:
    """Returns the name of the format that the text has. Raises TraceError, which tells what separates the columns that
    were found, and which format they are nearest to."""
    detected = next((key for key, trace_format in TRACE_FORMATS.items() if trace_format.recognises(text)), None)
    if detected is None:
        unknown = f"{name}:1: unknown trace format{_difference(_head(text))}"
        raise TraceError(f"{unknown}: name it with --format, one of {', '.join(TRACE_FORMATS)}")
    return detected


def _difference(head: str) -> str:
    """What the headings lack of the nearest format, and a delimiter that is not that format's."""
    delimiter, found = columns_in(head)
    tables = {key: trace_format for key, trace_format in TRACE_FORMATS.items() if trace_format.columns}
    nearest = min(tables, key=lambda key: len(set(tables[key].columns) - set(found)) / len(tables[key].columns))
    columns, expected = tables[nearest].columns, DELIMITERS[tables[nearest].delimiter]
    missing = [column for column in columns if column not in found]
    if not delimiter or 2 * len(missing) > len(columns):
        return f": its first line is {len(found)} columns separated by {delimiter}" if delimiter else ""
    if not missing:
        return f": it has the columns of {nearest}, separated by {delimiter} instead of {expected}"
    return f": nearest is {nearest}, which also has {', '.join(missing)}"


def read_trace(path: str | Path, format_name: str | None = None, context: ImportContext | None = None) -> ImportedTrace:
    """Returns the trace in a file; its format is detected unless it is given. Raises TraceError."""
    text, name = read_text(path), Path(path).name
    if format_name is not None and format_name not in TRACE_FORMATS:
        raise TraceError(f"there is no trace format '{format_name}': known are {', '.join(TRACE_FORMATS)}")
    return TRACE_FORMATS[format_name or detect_format(text, name)].read(text, name, context or ImportContext())
