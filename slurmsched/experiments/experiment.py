"""What every experiment is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from slurmsched.model import SynschedError

T = TypeVar("T")


class ExperimentError(SynschedError):
    """An experiment that cannot be run as asked; the message says what is missing."""

    exit_code = 2


class Bound(StrEnum):
    """How a measured figure is held against the one it answers to."""

    EQUAL = "equal"
    """Within the tolerance on both sides."""
    AT_MOST = "at_most"
    AT_LEAST = "at_least"
    INFORMATIVE = "stated"
    """Side by side, for the reader; no verdict."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure. `published` is the paper's, `reference` what the authors' own code gives, `measured` ours; None where
    unknown. It is held against the reference, where there is one, else against the published figure; `tolerance` is
    relative. `note` says what differs in the inputs."""

    metric: str
    unit: str
    measured: float
    published: float | None = None
    reference: float | None = None
    tolerance: float | None = None
    bound: Bound = Bound.EQUAL
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over what it is held against; None without that."""
        expected = self.reference if self.reference is not None else self.published
        return self.measured / expected if expected else None

    @property
    def ok(self) -> bool:
        """Whether it holds. A figure that is only stated always does; NaN never does."""
        if self.bound is Bound.INFORMATIVE:
            return True
        ratio, tolerance = self.ratio, self.tolerance or 0.0
        if ratio is None:
            return False
        return {
            Bound.EQUAL: abs(ratio - 1) <= tolerance,
            Bound.AT_MOST: ratio <= 1 + tolerance,
            Bound.AT_LEAST: ratio >= 1 - tolerance,
        }[self.bound]


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """An experiment that was run. `series` are curves for plots: name to points."""

    experiment: str
    rows: tuple[FigureRow, ...]
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)


class ProgressTracker(Protocol):
    """Goes through the items while somebody is shown how far it is."""

    def __call__(self, items: Sequence[T], label: str, /) -> Iterator[T]: ...


def _no_progress(items: Sequence[T], _label: str, /) -> Iterator[T]:
    return iter(items)


@dataclass(frozen=True, slots=True)
class ExperimentSetup:
    """How an experiment is to be run. `data` is the folder of public data sets (`SLURMSCHED_DATA`), which not all need.

    `quick` asks for the small version, where an experiment has one; `options` are its own, checked by itself.
    """

    data: Path | None
    seeds: tuple[int, ...] = (42,)
    quick: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    track_progress: ProgressTracker = _no_progress

    def data_file(self, *parts: str) -> Path:
        """A file of the data sets. Raises ExperimentError when it, or all of them, are not there."""
        if self.data is None:
            raise ExperimentError("say where the data sets are: --data DIR, or SLURMSCHED_DATA in the environment")
        path = self.data.joinpath(*parts)
        if not path.is_file():
            raise ExperimentError(f"{path} is missing: point --data, or SLURMSCHED_DATA, at the folder that holds it")
        return path


Experiment = Callable[[ExperimentSetup], ExperimentResult]
"""Runs and measures. Raises ExperimentError."""
