"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Verdict", "fine", "hint", "mend"]


class Verdict(StrEnum):
    """How it is."""

    FINE = "fine"
    HINT = "hint"
    """Works, and could be better."""
    MEND = "mend"
    """Does not work until somebody mends it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about a topic, and what to do; `remedy` is empty where nothing has to be done."""

    topic: str
    verdict: Verdict
    sentence: str
    remedy: str = ""


def fine(topic: str, sentence: str) -> Finding:
    """It is as it should be."""
    return Finding(topic, Verdict.FINE, sentence)


def hint(topic: str, sentence: str, remedy: str) -> Finding:
    """It could be better."""
    return Finding(topic, Verdict.HINT, sentence, remedy)


def mend(topic: str, sentence: str, remedy: str) -> Finding:
    """It has to be mended."""
    return Finding(topic, Verdict.MEND, sentence, remedy)
