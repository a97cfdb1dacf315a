"""The interface of experiments: their setup, their result, and the rows that compare figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, get_type_hints

import slurmsched
from slurmsched.jobside.atomic_files import write_atomically
from slurmsched.model import SynschedError, to_plain
from slurmsched.model.encoding import EncodingError, decode

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


KNOWLEDGE: Final[Mapping[str, str]] = {
    "perfect": "perfect knowledge",
    "site": "what a site knows",
    "same-limits": "what a site knows where all jobs have the same time limit",
}
"""What is known of the jobs of `mixed`, in words, by name."""


class MixedColumn(StrEnum):
    """A column of the mixed benchmark, by its name."""

    MEAN = "mean completion"
    MEDIAN = "median completion"
    P99 = "p99 completion"
    MAKESPAN = "makespan"
    WORST_RHO = "worst finish-time fairness"
    P95_RHO = "p95 finish-time fairness"
    SHORTFALL = "worst shortfall of a user"
    USEFUL = "useful GPU time"
    ALLOCATED = "GPUs allocated"
    FRAGMENTED = "GPUs fragmented"
    RESTARTS = "restarts"
    MIGRATIONS = "migrations"
    LOST = "GPU time lost"
    DECISION = "decision, median"
    WORST_DECISION = "decision, worst"
    UNFINISHED = "unfinished jobs"


@dataclass(frozen=True, slots=True)
class MixedRow(FigureRow):
    """A column of a policy at one load of a workload: `measured` is the mean of the seeds, between `least` and `most`.

    NaN in a seed is NaN in all three.
    """

    workload: str = ""
    knowledge: str = ""
    load: float = 0.0
    policy: str = ""
    column: MixedColumn = MixedColumn.MEAN
    least: float = 0.0
    most: float = 0.0


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
class KeptCases:
    """The results of single runs in a folder, a file each, so that hours of work can be done in several sittings.

    A file is named by what its result depends on: `inputs`, which stands for the program and the data, the function and
    its configuration. So none is used after a change of them.
    """

    folder: Path
    inputs: str

    @classmethod
    def of_this_program(cls, folder: Path, data: Path | None) -> KeptCases:
        """Returns those of the program as it is now, and of the data sets, by name, size and time of their files."""
        root = Path(slurmsched.__file__).parent
        program = sha256()
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                program.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
        files = sorted(path for path in data.rglob("*") if path.is_file()) if data else ()
        for path in files:
            program.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
        return cls(folder, program.hexdigest())

    def path(self, run: Callable[..., object], config: object) -> Path:
        """Returns the file of this run. One whose configuration has no lasting name gets another file each time."""
        bound = (run.args, sorted(run.keywords.items())) if isinstance(run, partial) else ()
        function = _function(run)
        name = f"{self.inputs} {function.__module__}.{function.__qualname__} {bound!r} {config!r}"
        return self.folder / f"{function.__name__.strip('_')}-{sha256(name.encode()).hexdigest()[:32]}.json"


def _function(run: Callable[..., object]) -> Any:
    return run.func if isinstance(run, partial) else run


def run_or_read(run: Callable[[Config], Result], config: Config, path: Path) -> Result:
    """Returns the result in the file; if there is none, runs and writes it, unless it cannot be read back as it is.

    Raises ExperimentError, and what `run` raises.
    """
    of_type = get_type_hints(_function(run))["return"]
    try:
        kept: Result = decode(of_type, path.read_bytes())
    except FileNotFoundError:
        result = run(config)
    except (OSError, EncodingError) as error:
        raise ExperimentError(f"{path}: expected the result of {config}: {error}; remove the file") from error
    else:
        return kept
    try:
        # Unlike `encode`, which sorts them, this keeps the order of mappings, which may be that of rows.
        text = json.dumps(to_plain(result))
        if json.dumps(to_plain(decode(of_type, text))) == text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
    except (TypeError, ValueError, EncodingError):
        pass  # measured again by the next sitting
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror}") from error
    return result


@dataclass(frozen=True, slots=True)
class ExperimentSetup:
    """The setup of a run. `data` is the folder of public data sets (`SLURMSCHED_DATA`), which not all experiments need.

    `quick` selects the small version, if there is one. `options` are the experiment's own, and it validates them.
    Every experiment that draws anything draws it for each of `seeds`. `cases` are the results of single runs in earlier
    sittings, and where new ones are kept.
    """

    data: Path | None
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    quick: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    track_progress: ProgressTracker = _no_progress
    cases: KeptCases | None = None

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
        """Runs every configuration, in this order, on all cores that this process may use, as `taskset` or a job of
        Slurm leaves them. Raises what `run` raises; nothing more begins then."""
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
            try:
                running = [(config, self._submit(pool, run, config)) for config in dict.fromkeys(configs)]
                return {config: future.result() for config, future in self.track_progress(running, label)}
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _submit(self, pool: ProcessPoolExecutor, run: Callable[[Config], Result], config: Config) -> Future[Result]:
        if self.cases is None:
            return pool.submit(run, config)
        return pool.submit(run_or_read, run, config, self.cases.path(run, config))


Experiment = Callable[[ExperimentSetup], ExperimentResult]
"""Runs an experiment and returns its figures. Raises ExperimentError."""
