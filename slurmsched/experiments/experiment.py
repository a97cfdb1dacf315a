"""The interface of experiments: their setup, their result, and the rows that compare figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from slurmsched.model import SynschedError

T = TypeVar("T")


class ExperimentError(SynschedError):
    """The experiment cannot run as requested; the message says what is missing."""

    exit_code = 2


class Bound(StrEnum):
    """How a measured figure is compared with the expected one."""

    EQUAL = "equal"
    """Within the tolerance on both sides."""
    AT_MOST = "at_most"
    AT_LEAST = "at_least"
    INFORMATIVE = "stated"
    """Shown beside the expected figure, without a verdict."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure: `measured` is ours, `published` the paper's, `reference` that of the authors' code; None if unknown.

    The measured figure is compared with the reference if there is one, else with the published figure. `tolerance` is
    relative. `note` says how the inputs differ.
    """

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
        """Returns measured over expected, or None if nothing is expected."""
        expected = self.reference if self.reference is not None else self.published
        return self.measured / expected if expected else None

    @property
    def ok(self) -> bool:
        """Whether the figure is within its tolerance. An informative figure always is, NaN never is."""
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
    """The result of an experiment. `series` are curves for plots, points by name."""

    experiment: str
    rows: tuple[FigureRow, ...]
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)


class ProgressTracker(Protocol):
    """Iterates over the items and shows the progress."""

    def __call__(self, items: Sequence[T], label: str, /) -> Iterator[T]: ...


def _no_progress(items: Sequence[T], _label: str, /) -> Iterator[T]:
    return iter(items)


@dataclass(frozen=True, slots=True)
class ExperimentSetup:
    """The setup of a run. `data` is the folder of public data sets (`SLURMSCHED_DATA`), which not all experiments need.

    `quick` selects the small version, if there is one. `options` are the experiment's own, and it validates them.
    """

    data: Path | None
    seeds: tuple[int, ...] = (42,)
    quick: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    track_progress: ProgressTracker = _no_progress

    def data_file(self, *parts: str) -> Path:
        """Returns the path of a file of the data sets. Raises ExperimentError if it or the folder is missing."""
        if self.data is None:
            raise ExperimentError("the data sets are needed: give --data DIR or set SLURMSCHED_DATA")
        path = self.data.joinpath(*parts)
        if not path.is_file():
            raise ExperimentError(f"{path} is missing: set --data or SLURMSCHED_DATA to the folder that contains it")
        return path


Experiment = Callable[[ExperimentSetup], ExperimentResult]
"""Runs an experiment and returns its figures. Raises ExperimentError."""
