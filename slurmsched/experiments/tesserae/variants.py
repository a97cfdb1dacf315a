"""The variants of the evaluation by name, and the configurations to replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.experiments.experiment import ExperimentError
from slurmsched.experiments.tesserae.gavel import (
    GavelPacked,
    GavelPriorityOrder,
    SingleTypeGavelPolicy,
    TimeFractionLedger,
)
from slurmsched.experiments.tesserae.policies import (
    JobOrder,
    TesseraeReplayPolicy,
    WithGavelLeases,
    WorkerLeases,
    ftf_order,
    las_order,
    tiresias_order,
)
from slurmsched.experiments.tesserae.replay import (
    ReplayPolicy,
    Workload,
    colocated_fractions,
    pair_weights,
    replay_live,
    replay_workload,
    workload_from_trace,
)
from slurmsched.experiments.tesserae.round import TesseraeVariant, allocate_in_order
from slurmsched.knowledge.estimation import add_noise, complete_matrix
from slurmsched.knowledge.published import load_gavel_rates
from slurmsched.policies.gavel.objectives import Objective, finish_time_fairness, least_attained_service
from slurmsched.simulation.results import RunMetrics, run_metrics
from slurmsched.traces.generators import generate

NODE_COUNT, GPUS_PER_NODE = 20, 4
"""The paper's 80 GPUs on servers of four (section 6.1)."""

_MIN_PAIR_RATE: Final = 1.0
"""Pairs have an edge only if their combined rate is above this, relative to one job alone."""

_OURS = TesseraeVariant()
_UNPACKED = replace(_OURS, allocator=allocate_in_order, max_packed_width=0)
_AS_PUBLISHED = TesseraeVariant(allocate_in_order, keep_pairs=False)
_WITHOUT_RENAMING = replace(_AS_PUBLISHED, rename_nodes=False)

PolicyFactory = Callable[[Floats, Ints], ReplayPolicy]


def _tesserae(name: str, order: JobOrder, variant: TesseraeVariant) -> PolicyFactory:
    return lambda weights, _sizes: TesseraeReplayPolicy(name, weights, order, variant)


def _with_leases(name: str, order: JobOrder) -> PolicyFactory:
    return lambda weights, sizes: WithGavelLeases(
        name, TesseraeReplayPolicy(name, weights, order, _WITHOUT_RENAMING), WorkerLeases(sizes)
    )


def _on_gavel_order(name: str, objective: Objective, variant: TesseraeVariant) -> PolicyFactory:
    """Makes Tesserae in the order of Gavel's priorities, with a ledger for each replay."""

    def make(weights: Floats, _sizes: Ints) -> TesseraeReplayPolicy:
        return TesseraeReplayPolicy(name, weights, GavelPriorityOrder(TimeFractionLedger(objective)), variant)

    return make


def _on_gavel_order_with_leases(name: str, objective: Objective) -> PolicyFactory:
    def make(weights: Floats, sizes: Ints) -> WithGavelLeases:
        inner = TesseraeReplayPolicy(
            name, weights, GavelPriorityOrder(TimeFractionLedger(objective)), _WITHOUT_RENAMING
        )
        return WithGavelLeases(name, inner, WorkerLeases(sizes))

    return make


def _gavel(name: str, objective: Objective, *, packed: bool) -> PolicyFactory:
    return lambda _weights, sizes: SingleTypeGavelPolicy(
        name, TimeFractionLedger(objective, packed), WorkerLeases(sizes)
    )


# fmt: off
VARIANTS: Final[Mapping[str, PolicyFactory]] = {
    # name                        order           parts of it
    "tiresias":          _tesserae("tiresias",    tiresias_order, _UNPACKED),
    "tiresias single":   _tesserae("single",      tiresias_order, replace(_AS_PUBLISHED, max_packed_width=1)),
    "gavel packed":      lambda _weights, sizes: GavelPacked("gavel packed", WorkerLeases(sizes)),
    "tesserae-t":        _tesserae("tesserae-t",  tiresias_order, _OURS),
    "text":              _tesserae("text",        tiresias_order, _AS_PUBLISHED),
    "text, no names":    _tesserae("no names",    tiresias_order, _WITHOUT_RENAMING),
    "text, gavel rule":  _with_leases("gavel rule", tiresias_order),
    "no packing":        _tesserae("no packing",  tiresias_order, replace(_OURS, max_packed_width=0)),
    "no homes":          _tesserae("no homes",    tiresias_order, replace(_OURS, allocator=allocate_in_order)),
    "no lasting pairs":  _tesserae("no pairs",    tiresias_order, replace(_OURS, keep_pairs=False)),
    "no names":          _tesserae("no names",    tiresias_order, replace(_OURS, rename_nodes=False)),
    "las: tesserae-t":   _tesserae("las",         las_order, _OURS),
    "las: text":         _tesserae("las",         las_order, _AS_PUBLISHED),
    "las: text, no names":   _tesserae("las",     las_order, _WITHOUT_RENAMING),
    "las: text, gavel rule": _with_leases("las", las_order),
    "ftf":               _tesserae("ftf",         ftf_order, _UNPACKED),
    "tesserae-ftf":      _tesserae("tesserae-ftf", ftf_order, _OURS),
    "gavel":             _gavel("gavel",          least_attained_service, packed=False),
    "gavel: tesserae":   _on_gavel_order("gavel: tesserae", least_attained_service, _OURS),
    "gavel: text":       _on_gavel_order("gavel: text",     least_attained_service, _AS_PUBLISHED),
    "gavel: text, no names":   _on_gavel_order("gavel: no names", least_attained_service, _WITHOUT_RENAMING),
    "gavel: text, gavel rule": _on_gavel_order_with_leases("gavel: gavel rule", least_attained_service),
    "gavel-ftf":         _gavel("gavel-ftf",      finish_time_fairness, packed=False),
    "gavel-ftf packed":  _gavel("gavel-ftf packed", finish_time_fairness, packed=True),
    "gavel-ftf: tesserae": _on_gavel_order("gavel-ftf: tesserae", finish_time_fairness, _OURS),
}
"""Factories by name, given the weights of pairs and the GPUs of each node. `text` is as in the paper's text,
`tesserae-t` is ours."""
# fmt: on


LIVE_VARIANTS: Final[Mapping[str, tuple[str, str]]] = {
    "live: tesserae": ("tesserae", "las"),
    "live: tesserae-packed": ("tesserae-packed", "las"),
    "live: tesserae-ftf": ("tesserae-ftf", "ftf"),
    "live: tiresias": ("tiresias", "las"),
    "live: unified": ("unified", "srtf"),
}
"""The daemon's policies and their orders, by name; a policy with an order of its own ignores it."""


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """One replay.

    `noise` is the error of the rates of pairs that packing uses, and `measured_fraction` the part of them that was
    measured; the others are completed from these or, with `guess_missing`, drawn from these. Real rates do not change.
    `min_pair_rate` is the least combined rate of a pair. Real rates of pairs on several GPUs are multiplied by
    `wide_pair_factor`, which packing does not know.
    """

    variant: str
    rates_file: Path
    jobs: int = 900
    seed: int = 42
    trace: str = "shockwave"
    gpu_type: str = "v100"
    overhead: float = 60.0
    noise: float = 0.0
    measured_fraction: float = 1.0
    guess_missing: bool = False
    min_pair_rate: float = _MIN_PAIR_RATE
    wide_pair_factor: float = 1.0


def run_config(config: EvaluationConfig) -> RunMetrics:
    """Replays one configuration. Raises ExperimentError, ProfileError."""
    if config.variant not in VARIANTS and config.variant not in LIVE_VARIANTS:
        raise ExperimentError(f"there is no variant {config.variant!r}; variants: {', '.join(VARIANTS)}")
    generated = _generated_workload(config)
    node_gpus: Ints = np.full(NODE_COUNT, GPUS_PER_NODE)
    if config.variant in LIVE_VARIANTS:
        name, order = LIVE_VARIANTS[config.variant]
        return run_metrics(replay_live(generated, node_gpus, name, order, overhead=config.overhead))
    policy = VARIANTS[config.variant](
        pair_weights(_reported_rates(config, generated.relative_rates), config.min_pair_rate), node_gpus
    )
    return run_metrics(replay_workload(generated, node_gpus, policy, overhead=config.overhead))


def _generated_workload(config: EvaluationConfig) -> Workload:
    trace = generate(config.trace, config.jobs, config.seed, 80.0)
    knowledge = load_gavel_rates(config.rates_file)
    generated = workload_from_trace(trace, knowledge, "v100")
    return replace(
        generated,
        relative_rates=colocated_fractions(knowledge, generated.models, config.gpu_type),
        wide_pair_factor=config.wide_pair_factor,
    )


def _reported_rates(config: EvaluationConfig, relative_rates: Floats) -> Floats:
    """Returns the rates of pairs that packing uses. It knows of all pairs whether they fit into memory together."""
    random = np.random.default_rng((config.seed, 1))
    fits, reported = relative_rates > 0, relative_rates
    if config.measured_fraction < 1:
        holes = fits & (random.random(relative_rates.shape) >= config.measured_fraction)
        drawn = random.choice(relative_rates[fits & ~holes], relative_rates.shape)
        filled = (
            np.where(holes, drawn, relative_rates)
            if config.guess_missing
            else complete_matrix(np.where(holes, np.nan, relative_rates))
        )
        reported = np.where(fits, filled, 0.0)
    return np.clip(add_noise(reported, config.noise, random), 0.0, None)


COSTLY_VARIANT: Final = "gavel-ftf packed"
"""The variant replayed with fewer jobs, because its program has a variable for any two jobs."""
FULL_SIZE_VARIANTS: Final = tuple(filter(COSTLY_VARIANT.__ne__, VARIANTS))
REDUCED_JOB_COUNT: Final = 300
BASELINE_VARIANTS: Final = ("tiresias", "tiresias single", "gavel packed")
NOISE_LEVELS: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MEASURED_FRACTIONS: Final = (0.1, 0.3, 0.5)
SAMPLE_FRACTION: Final = 0.3
"""Measured part of the pairs in replays with both noise and completion."""
WIDE_PAIR_FACTORS: Final = (0.9, 0.8, 0.7)
"""Values of `EvaluationConfig.wide_pair_factor`."""


def evaluation_configs(base: EvaluationConfig) -> Iterator[EvaluationConfig]:
    """Yields all configurations, as variations of `base`; some are repeated."""
    for variant in (COSTLY_VARIANT, "gavel-ftf: tesserae"):
        yield replace(with_fewer_jobs(base), variant=variant)
    for variant in (*FULL_SIZE_VARIANTS, *LIVE_VARIANTS):
        yield replace(base, variant=variant)
    for variant in ("tesserae-t", "text", "text, no names"):
        yield replace(base, variant=variant, overhead=0.0)
    for noise in NOISE_LEVELS:
        yield replace(base, variant="tesserae-t", noise=noise)
        yield replace(base, variant="tesserae-t", noise=noise, measured_fraction=SAMPLE_FRACTION)
    for known in MEASURED_FRACTIONS:
        yield replace(base, variant="tesserae-t", measured_fraction=known)
        yield replace(base, variant="tesserae-t", measured_fraction=known, guess_missing=True)
    for variant in ("tiresias single", "tesserae-t"):
        for wide in WIDE_PAIR_FACTORS:
            yield replace(base, variant=variant, wide_pair_factor=wide)
    yield replace(base, variant="text", min_pair_rate=0.0)
    for variant in (*BASELINE_VARIANTS, "tesserae-t"):
        yield replace(base, variant=variant, trace="gavel")
        yield replace(base, variant=variant, gpu_type="p100")


def with_fewer_jobs(base: EvaluationConfig) -> EvaluationConfig:
    """Returns the configuration with at most REDUCED_JOB_COUNT jobs."""
    return replace(base, jobs=min(base.jobs, REDUCED_JOB_COUNT))
