"""The interface of experiments: their setup, their result, and the rows that compare figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing import get_context
from pathlib import Path
from typing import Final, Protocol, TypeVar

from slurmsched.model import SynschedError

T = TypeVar("T")
Config = TypeVar("Config")
Result = TypeVar("Result")

DEFAULT_SEEDS: Final = (42, 43, 44)
"""Those of which the authors' orders of arrival are recorded (FGD)."""


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


class FigureVerdict(StrEnum):
    """What a row says of its figure."""

    HELD = "held"
    MISSED = "missed"
    NOT_HELD = "not held"
    """There is a published figure or one of the authors' code, but no bound; the note says why."""
    MEASURED = "measured"
    """There is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure: `measured` is ours, `published` the paper's, `reference` that of the authors' code; None if unknown.

    `limit` is a bound from elsewhere: a claim such as "within 10 % of the optimum", an optimum that we computed, or a
    figure of another run of ours. The measured figure is compared with the limit if there is one, else with the
    reference, else with the published figure. `tolerance` is relative. `note` says how the inputs differ, and why a
    published figure is not held. `chosen_after`: inputs or bound were chosen when the result was known.

    Raises ValueError for a one-sided bound without a limit, because a figure of somebody else holds on both sides or
    not at all, and for a figure of somebody else that is not held without a note.
    """

    metric: str
    unit: str
    measured: float
    published: float | None = None
    reference: float | None = None
    tolerance: float | None = None
    bound: Bound = Bound.EQUAL
    note: str = ""
    limit: float | None = None
    chosen_after: bool = False

    def __post_init__(self) -> None:
        if self.bound in {Bound.AT_MOST, Bound.AT_LEAST} and self.limit is None:
            raise ValueError(f"{self.metric}: a one-sided bound needs a limit")
        if self.verdict is FigureVerdict.NOT_HELD and not self.note:
            raise ValueError(f"{self.metric}: the note does not say why the figure is not held")

    @property
    def expected(self) -> float | None:
        """The figure to compare with, or None."""
        return next((value for value in (self.limit, self.reference, self.published) if value is not None), None)

    @property
    def ratio(self) -> float | None:
        """Returns measured over expected, or None if nothing is expected."""
        return self.measured / self.expected if self.expected else None

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

    @property
    def verdict(self) -> FigureVerdict:
        if self.bound is not Bound.INFORMATIVE:
            return FigureVerdict.HELD if self.ok else FigureVerdict.MISSED
        somebodys = self.published is not None or self.reference is not None
        return FigureVerdict.NOT_HELD if somebodys else FigureVerdict.MEASURED


@dataclass(frozen=True, slots=True)
class PromiseRow(FigureRow):
    """What a promise of a policy comes to in a scenario: `measured` is the worst of the seeds, `mean` their mean.

    It is compared with `limit`, and the tolerance is absolute. `note` says where the policy promises it.
    """

    policy: str = ""
    scenario: str = ""
    promise: str = ""
    mean: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the promise is kept. One that the policy does not make always is, NaN never is."""
        off, tolerance = self.measured - (self.limit or 0.0), self.tolerance or 0.0
        return {
            Bound.INFORMATIVE: True,
            Bound.EQUAL: abs(off) <= tolerance,
            Bound.AT_MOST: off <= tolerance,
            Bound.AT_LEAST: off >= -tolerance,
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

    def count(self, verdict: FigureVerdict) -> int:
        """Returns the number of rows with this verdict."""
        return sum(row.verdict is verdict for row in self.rows)


class ProgressTracker(Protocol):
    """Iterates over the items and shows the progress."""

    def __call__(self, items: Sequence[T], label: str, /) -> Iterator[T]: ...


def _no_progress(items: Sequence[T], _label: str, /) -> Iterator[T]:
    return iter(items)


@dataclass(frozen=True, slots=True)
class ExperimentSetup:
    """The setup of a run. `data` is the folder of public data sets (`SLURMSCHED_DATA`), which not all experiments need.

    `quick` selects the small version, if there is one. `options` are the experiment's own, and it validates them.
    Every experiment that draws anything draws it for each of `seeds`.
    """

    data: Path | None
    seeds: tuple[int, ...] = DEFAULT_SEEDS
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

    def run_all(
        self, run: Callable[[Config], Result], configs: Iterable[Config], label: str
    ) -> Mapping[Config, Result]:
        """Runs every configuration, in this order, on all cores. Raises what `run` raises; nothing more begins then."""
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            try:
                running = [(config, pool.submit(run, config)) for config in dict.fromkeys(configs)]
                return {config: future.result() for config, future in self.track_progress(running, label)}
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


Experiment = Callable[[ExperimentSetup], ExperimentResult]
"""Runs an experiment and returns its figures. Raises ExperimentError."""
