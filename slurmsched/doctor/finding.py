"""A finding of `synsched doctor`, and its view."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rich.console import Group, RenderableType

from slurmsched.report.tables import Hanging, safe_line


class Verdict(StrEnum):
    """The severity of a finding."""

    OK = "fine"
    ADVICE = "hint"
    """It works but could be improved."""
    PROBLEM = "mend"
    """It does not work until it is fixed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: what was found about a topic, and what to do (`remedy`, empty if nothing)."""

    topic: str
    verdict: Verdict
    sentence: str
    remedy: str = ""


def ok(topic: str, sentence: str) -> Finding:
    """A finding that needs no action."""
    return Finding(topic, Verdict.OK, sentence)


def advice(topic: str, sentence: str, remedy: str) -> Finding:
    """A finding that suggests an improvement."""
    return Finding(topic, Verdict.ADVICE, sentence, remedy)


def problem(topic: str, sentence: str, remedy: str) -> Finding:
    """A finding that has to be fixed."""
    return Finding(topic, Verdict.PROBLEM, sentence, remedy)


_SIGNS: Final = {Verdict.OK: ("ok", "green"), Verdict.ADVICE: ("hint", "yellow"), Verdict.PROBLEM: ("MEND", "bold red")}


def finding_view(finding: Finding) -> RenderableType:
    """The finding, with the remedy in the line below; what does not fit is continued below its first word."""
    sign, style = _SIGNS[finding.verdict]
    head = Hanging(safe_line(f"{sign:<5}", style), safe_line(f"{finding.topic}: {finding.sentence}"))
    return Group(head, Hanging(safe_line(" " * 7), safe_line(finding.remedy, "dim"))) if finding.remedy else head
