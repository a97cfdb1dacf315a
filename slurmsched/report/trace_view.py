"""A trace for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.model.wording import counted
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration
from slurmsched.traces.imported import Imported
from slurmsched.traces.importing.sacct import ASK
from slurmsched.traces.reading import FORMATS
from slurmsched.traces.summary import Summary

__all__ = ["formats_view", "skipped_lines", "trace_view"]

_HOUR = 3600.0


def trace_view(found: Summary) -> RenderableType:
    """What is in a trace, a line for each thing that can be said of it."""
    rows = [
        ("jobs", f"{found.jobs} over {duration(found.span_h * _HOUR)}"),
        ("GPU-hours", f"{found.gpu_hours:.1f}"),
        ("arriving work", f"keeps {found.busy_gpus:.1f} GPUs busy" if found.span_h else "all at once"),
        ("durations", ", ".join(f"{name} {duration(hours * _HOUR)}" for name, hours in found.duration_h.items())),
        *(
            (name, said)
            for name, said in (
                ("GPUs per job", _listed(found.widths)),
                ("models", _listed(found.models)),
                ("users", _listed(found.users)),
                ("GPU types", _listed(found.types)),
            )
            if said
        ),
    ]
    listing = Listing((Column(""), Column("")), rows, headings=False, wrapped=True)
    return Group(Text(f"{found.name} ({found.source})"), Text(), listing)


def skipped_lines(imported: Imported) -> list[str]:
    """What was left out, a line for each reason."""
    return [f"left out: {counted(count, 'job')} ({why})" for why, count in imported.skipped.items()]


def formats_view() -> RenderableType:
    """Every form of trace that is read, and how to get the history of one's own cluster."""
    rows = [(name, form.summary) for name, form in FORMATS.items()]
    ask = f"SLURM_TIME_FORMAT=%s sacct -aX --parsable2 -S now-30days -o {','.join(ASK)}"
    return Group(Listing((Column("FORMAT"), Column("WHAT")), rows), Text(f"\nYour last month:\n{ask}"))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())
