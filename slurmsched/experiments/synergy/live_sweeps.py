"""Synergy beside its rivals (sections 5.4 and 5.7), by the daemon's policies and by the authors' replay.

- GPUs and CPUs in use by mechanism (figure 10): GPUs beyond the capacity, CPUs at low load.
- DRF and Tetris with the best-case demand of every job, and with tuned CPUs and memory (figure 13).

Jobs are generated as for the sweeps of load. The daemon's policies run on leases, and a restart costs 60 s; what they
come to is told, and only the replay is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Final

from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.experiments.synergy.allocation import AUTHORS
from slurmsched.experiments.synergy.jobs import ReplayScenario
from slurmsched.experiments.synergy.replay import SynergyDecider, replay_jobs, replay_live, round_semantics
from slurmsched.experiments.synergy.sweeps import (
    INPUTS_NOTE,
    ROUND_PERIOD,
    JobWindow,
    SynergySweepConfig,
    generated_scenario,
)
from slurmsched.knowledge import Knowledge, load_synergy_profiles
from slurmsched.model import Decision
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.policies import policy
from slurmsched.policies.sizes import Tune
from slurmsched.policies.stages import Policy, Situation
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import daemon_rounds
from slurmsched.simulation.replay import Decider, GpuWorkers, Grant, ReplayResult, RoundInput
from slurmsched.traces.generators import HOUR, TaskSplit

RESTART_SECONDS: Final = 60.0
WINDOW, QUICK_WINDOW = (500, 1000), (100, 200)
"""Jobs whose completion is measured. The sweeps' window is too late for the daemon's policies, which decide every round
of weeks."""
QUICK_PERIOD: Final = 1200.0
"""Seconds of a round in the quick version, in which only as many jobs as the window's arrive after it."""

MIXED_SPLIT, HUNGRY_SPLIT = (20, 70, 10), (50, 0, 50)
"""Image, language and speech jobs in per cent: W1, and W2, which is also the mix of figure 10."""

HIGH_LOAD: Final = 5.5
"""Jobs per hour of figure 10a, which ask for more than all GPUs; taken for figure 13 too, which names none."""
LOW_LOAD: Final = 2.0
"""Jobs per hour of figure 10b, which names none: two thirds of what fills 128 GPUs."""


@dataclass(frozen=True, slots=True)
class UseFigures:
    """Mean JCT of the window in hours, and the mean parts of GPUs and CPUs in use while its jobs arrive; `cpus` is 0
    for a replay, in which nobody counts them."""

    jct_h: float
    gpus: float
    cpus: float = 0.0


@dataclass(slots=True)
class _CountedPolicy:
    """A policy whose targets are counted: GPUs and CPUs of each round."""

    inner: Policy
    in_use: list[tuple[int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    def decide(self, situation: Situation) -> Decision:
        decision = self.inner.decide(situation)
        held = [share.resources for target in decision.targets.values() for share in target.allocations]
        self.in_use.append((sum(each.gpus for each in held), sum(each.cpus for each in held)))
        return decision


@dataclass(slots=True)
class _CountedDecider:
    """A decider whose grants are counted: GPUs of each round."""

    inner: Decider
    in_use: list[tuple[int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        grants = self.inner.decide(round_input)
        self.in_use.append((sum(round_input.jobs[grant.jobs[0]].spec.gpus for grant in grants), 0))
        return grants


def measure_live(
    scenario: ReplayScenario,
    knowledge: Knowledge,
    chosen: Policy,
    window: JobWindow,
    period: float = ROUND_PERIOD,
) -> UseFigures:
    """Runs the window's jobs under a policy of the daemon. Raises ReplayError."""
    counted, rounds = _CountedPolicy(chosen), daemon_rounds(RESTART_SECONDS, period, whole_steps=False)
    run = replay_live(scenario, knowledge, counted, rounds, window=window)
    return _use_figures(scenario, run, counted.in_use, window)


def measure_replay(
    scenario: ReplayScenario, mechanism: str, window: JobWindow, period: float = ROUND_PERIOD
) -> UseFigures:
    """Runs the window's jobs under a mechanism in the authors' variant, first in, first out. Raises ReplayError."""
    counted = _CountedDecider(SynergyDecider(scenario, mechanism, "fifo", AUTHORS))
    run = replay(
        replay_jobs(scenario),
        GpuWorkers.from_gpu_counts({"gpu": scenario.server_count * scenario.gpus_per_server}, scenario.gpus_per_server),
        counted,
        round_semantics(scenario, AUTHORS, period),
        window=window,
        same_until_change=True,
    )
    return _use_figures(scenario, run, counted.in_use, window)


def _use_figures(
    scenario: ReplayScenario, run: ReplayResult, in_use: Sequence[tuple[int, int]], window: JobWindow
) -> UseFigures:
    start, end = (scenario.jobs[at].arrival for at in (window[0], window[1] - 1))
    gpus = cpus = 0.0
    for record, (used_gpus, used_cpus) in zip(run.records, in_use, strict=True):
        seconds = max(0.0, min(record.time + record.seconds, end) - max(record.time, start))
        gpus, cpus = gpus + used_gpus * seconds, cpus + used_cpus * seconds
    whole = scenario.server_count * (end - start)
    jct = fmean(job.jct for job in run.measured_jobs)
    return UseFigures(jct / HOUR, gpus / (whole * scenario.gpus_per_server), cpus / (whole * scenario.cpus_per_server))


def tuned(name: str) -> Policy:
    """Returns the daemon's policy of this name with Synergy's sizes. Raises PolicyError for one without stages."""
    chosen = policy(name)
    if not isinstance(chosen, Pipeline):
        raise PolicyError(f"policy {name} has no stage that sizes jobs")
    return replace(chosen, sizing=Tune())


_POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {
    "proportional": lambda: policy("proportional", "fifo"),
    "greedy": lambda: policy("synergy-greedy", "fifo"),
    "tune": lambda: policy("synergy", "fifo"),
    "drf": lambda: policy("drf"),
    "drf, tuned": lambda: tuned("drf"),
    "tetris": lambda: policy("tetris"),
    "tetris, tuned": lambda: tuned("tetris"),
}
"""The daemon's policies by their names in the figures."""

_MECHANISMS: Final = ("proportional", "greedy", "tune")
_LIVE, _REPLAY = "live", "replay"


@dataclass(frozen=True, slots=True)
class _Cell:
    """The runs of one policy or mechanism on one workload, of which there is one for each seed."""

    how: str
    name: str
    split: TaskSplit
    load: float


def _measure(cells: Sequence[_Cell], setup: ExperimentSetup, label: str) -> Mapping[_Cell, Sequence[UseFigures]]:
    """Measures all cells with all seeds on all cores. Raises ExperimentError, ProfileError."""
    profiles = setup.data_file("synergy", "profiles.json")
    run = partial(_run_cell, profiles=profiles, quick=setup.quick)
    figures = setup.run_all(run, product(cells, setup.seeds), label)
    return {cell: [figures[cell, seed] for seed in setup.seeds] for cell in cells}


def _run_cell(seeded: tuple[_Cell, int], profiles: Path, quick: bool) -> UseFigures:
    cell, seed = seeded
    window, period = (QUICK_WINDOW, QUICK_PERIOD) if quick else (WINDOW, ROUND_PERIOD)
    config = SynergySweepConfig(cell.name, cell.load, window, profiles, cell.split, multi_gpu=True)
    scenario = generated_scenario(config, seed)
    if quick:
        scenario = replace(scenario, jobs=scenario.jobs[: 2 * window[1] - window[0]])
    if cell.how == _REPLAY:
        return measure_replay(scenario, cell.name, window, period)
    return measure_live(scenario, load_synergy_profiles(profiles), _POLICIES[cell.name](), window, period)


_USE_NOTE: Final = (
    "Means while the window's jobs arrive; figure 10 shows curves. Jobs of up to 8 GPUs, half image and half speech. "
)
_LOW_NOTE: Final = (
    f"Not held: the paper does not say at which load; ours, {LOW_LOAD:g} jobs per hour, was chosen before the run. CPUs"
    " in use are those that jobs have. " + _USE_NOTE
)
_PUBLISHED_CPUS: Final[Mapping[str, float]] = {"proportional": 0.6, "tune": 0.9}
_PUBLISHED_LOW_GAIN: Final = 1.5
_SAME_GPUS: Final = 0.05


def run_synergy_utilisation(setup: ExperimentSetup) -> ExperimentResult:
    """Measures figure 10; with `quick` of an earlier window, without checks.

    Raises ExperimentError, ProfileError.
    """
    high = {(how, name): _Cell(how, name, HUNGRY_SPLIT, HIGH_LOAD) for how in (_REPLAY, _LIVE) for name in _MECHANISMS}
    low = {name: _Cell(_LIVE, name, HUNGRY_SPLIT, LOW_LOAD) for name in _PUBLISHED_CPUS}
    measured = _measure([*high.values(), *low.values()], setup, "filling")
    rows = list[FigureRow]()
    for how in (_REPLAY, _LIVE):
        gpus = {name: fmean(run.gpus for run in measured[high[how, name]]) for name in _MECHANISMS}
        for name, part in gpus.items():
            metric = f"{how}: {name} {HIGH_LOAD:g}/h, GPUs in use"
            rows.append(FigureRow(metric, "part", part, bound=Bound.INFORMATIVE, note=_USE_NOTE))
        asks = how == _REPLAY and not setup.quick
        for name, asked, tolerance in (("greedy", Bound.AT_MOST, 0.0), ("tune", Bound.AT_LEAST, _SAME_GPUS)):
            bound = asked if asks else Bound.INFORMATIVE
            metric, ratio = f"{how}: {name} over proportional, GPUs in use", gpus[name] / gpus["proportional"]
            rows.append(FigureRow(metric, "x", ratio, None, None, tolerance, bound, _USE_NOTE, 1.0))
    for name, cell in low.items():
        metric, part = f"live: {name} {LOW_LOAD:g}/h, CPUs in use", fmean(run.cpus for run in measured[cell])
        published = _PUBLISHED_CPUS[name]
        rows.append(FigureRow(metric, "part", part, published, bound=Bound.INFORMATIVE, note=_LOW_NOTE))
    gain = _ratio(measured[low["proportional"]], measured[low["tune"]])
    metric = f"live: {LOW_LOAD:g}/h gain in mean JCT"
    rows.append(FigureRow(metric, "x", gain, _PUBLISHED_LOW_GAIN, bound=Bound.INFORMATIVE, note=_LOW_NOTE))
    return ExperimentResult("synergy-utilisation", tuple(rows))


_RIVALS: Final[Mapping[str, float]] = {"drf": 7.2, "tetris": 1.8}
"""Rivals and what tuning gains on their mean JCT on W2 (figure 13)."""
_RIVALS_NOTE: Final = (
    "The daemon's policy of that name, and the same stages with tuned CPUs and memory. The jobs have no users, so that"
    f" DRF takes them by submission. Jobs of up to 8 GPUs at {HIGH_LOAD:g} per hour, the load of figure 10: figure 13"
    " names none. "
)
_RIVALS_REPLAY_NOTE: Final = (
    "DRF without users goes by submission, so that greedy over tune in that order is its figure in the replay. "
)


def run_synergy_big_data(setup: ExperimentSetup) -> ExperimentResult:
    """Measures figure 13; with `quick` of an earlier window, without checks.

    Raises ExperimentError, ProfileError.
    """
    workloads: dict[str, TaskSplit] = {"W1": MIXED_SPLIT, "W2": HUNGRY_SPLIT}
    live = [*_RIVALS, *(f"{rival}, tuned" for rival in _RIVALS)]
    cells = [_Cell(_LIVE, name, split, HIGH_LOAD) for split in workloads.values() for name in live]
    replayed = [_Cell(_REPLAY, name, split, HIGH_LOAD) for split in workloads.values() for name in ("greedy", "tune")]
    measured = _measure([*cells, *replayed], setup, "comparing")
    rows = [row for label, split in workloads.items() for row in _rival_rows(label, split, measured, quick=setup.quick)]
    return ExperimentResult("synergy-big-data", tuple(rows))


def _rival_rows(
    label: str, split: TaskSplit, measured: Mapping[_Cell, Sequence[UseFigures]], *, quick: bool
) -> Iterator[FigureRow]:
    compared = [(_LIVE, rival, rival, f"{rival}, tuned") for rival in _RIVALS]
    for how, rival, plain, with_tune in [*compared, (_REPLAY, "drf", "greedy", "tune")]:
        runs = {name: measured[_Cell(how, name, split, HIGH_LOAD)] for name in (plain, with_tune)}
        note = (_RIVALS_NOTE if how == _LIVE else _RIVALS_REPLAY_NOTE) + INPUTS_NOTE
        for name, figures in runs.items():
            jct, metric = fmean(run.jct_h for run in figures), f"{label} {how}: {name} mean JCT"
            yield FigureRow(metric, "h", jct, bound=Bound.INFORMATIVE, note=note)
        gain = _ratio(runs[plain], runs[with_tune])
        published = _RIVALS[rival] if split == HUNGRY_SPLIT else None
        metric = f"{label} {how}: gain of tuning {rival}"
        yield FigureRow(metric, "x", gain, published, bound=Bound.INFORMATIVE, note=note)
        bound = Bound.AT_LEAST if how == _REPLAY and not quick else Bound.INFORMATIVE
        yield FigureRow(f"{metric}, at least none lost", "x", gain, bound=bound, note=note, limit=1.0)


def _ratio(theirs: Sequence[UseFigures], ours: Sequence[UseFigures]) -> float:
    """Returns the ratio of the mean JCTs over all seeds."""
    return fmean(run.jct_h for run in theirs) / fmean(run.jct_h for run in ours)
