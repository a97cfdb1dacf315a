"""`synsched doctor` on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding

from slurmsched.doctor.finding import Finding, Verdict
from slurmsched.report.words import line

__all__ = ["finding_view"]

_SIGNS: Final = {Verdict.FINE: ("ok", "green"), Verdict.HINT: ("hint", "yellow"), Verdict.MEND: ("MEND", "bold red")}


def finding_view(finding: Finding) -> RenderableType:
    """What was found, and below it what to do."""
    return Group(*_lines(finding))


def _lines(finding: Finding) -> Iterator[RenderableType]:
    sign, style = _SIGNS[finding.verdict]
    head = line(f"{sign:<5}", style)
    head.append_text(line(f"{finding.topic}: {finding.sentence}"))
    yield head
    if finding.remedy:
        yield Padding(line(finding.remedy, "dim"), (0, 0, 0, 7), expand=False)
