"""One thing that was looked at, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding

from slurmsched.report.tables import safe_line


class Verdict(StrEnum):
    """How it is."""

    OK = "fine"
    ADVICE = "hint"
    """Works, and could be better."""
    PROBLEM = "mend"
    """Does not work until somebody mends it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about a topic, and what to do; `remedy` is empty where nothing has to be done."""

    topic: str
    verdict: Verdict
    sentence: str
    remedy: str = ""


def ok(topic: str, sentence: str) -> Finding:
    """It is as it should be."""
    return Finding(topic, Verdict.OK, sentence)


def advice(topic: str, sentence: str, remedy: str) -> Finding:
    """It could be better."""
    return Finding(topic, Verdict.ADVICE, sentence, remedy)


def problem(topic: str, sentence: str, remedy: str) -> Finding:
    """It has to be mended."""
    return Finding(topic, Verdict.PROBLEM, sentence, remedy)


_SIGNS: Final = {Verdict.OK: ("ok", "green"), Verdict.ADVICE: ("hint", "yellow"), Verdict.PROBLEM: ("MEND", "bold red")}


def finding_view(finding: Finding) -> RenderableType:
    """What was found, and below it what to do."""
    return Group(*_lines(finding))


def _lines(finding: Finding) -> Iterator[RenderableType]:
    sign, style = _SIGNS[finding.verdict]
    head = safe_line(f"{sign:<5}", style)
    head.append_text(safe_line(f"{finding.topic}: {finding.sentence}"))
    yield head
    if finding.remedy:
        yield Padding(safe_line(finding.remedy, "dim"), (0, 0, 0, 7), expand=False)
