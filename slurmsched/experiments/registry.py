"""The table of experiments. A module is imported only when its experiment is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from slurmsched.experiments.experiment import Experiment, ExperimentError, ExperimentResult, ExperimentSetup


@dataclass(frozen=True, slots=True)
class ExperimentEntry:
    """An experiment: the module and function that run it, its line in the help, and the options it accepts.

    The line begins with the name of the system whose paper it is of. An experiment that does not draw anything has the
    same figures with all seeds.

    `parts` are the options of each run whose rows belong to the published figures; an experiment without any, such as a
    replay of any trace, has no figures of its own.
    """

    module: str
    function: str
    summary: str
    options: frozenset[str] = frozenset()
    parts: tuple[Mapping[str, str], ...] = ({},)
    draws: bool = True

    @property
    def system(self) -> str:
        """The system whose paper has the figures, as in `Synergy`."""
        return re.split("[,: ]", self.summary)[0]

    def load(self) -> Experiment:
        return cast("Experiment", getattr(import_module(f"slurmsched.experiments.{self.module}"), self.function))


EXPERIMENTS: Final[Mapping[str, ExperimentEntry]] = {
    "synergy-static": ExperimentEntry(
        "synergy.static", "run_synergy_static", "Synergy, table 5: the recorded trace of 100 jobs.", draws=False
    ),
    "synergy-replay": ExperimentEntry(
        "synergy.static",
        "run_synergy_replay",
        "Synergy: any trace in that format.",
        frozenset({"trace", "order", "round", "profiles"}),
        parts=(),
        draws=False,
    ),
    "synergy-load": ExperimentEntry(
        "synergy.sweeps", "run_synergy_load", "Synergy, figure 1: mean JCT by load on 128 GPUs."
    ),
    "synergy-splits": ExperimentEntry(
        "synergy.sweeps", "run_synergy_splits", "Synergy: mixes of image, language and speech jobs."
    ),
    "synergy-ratios": ExperimentEntry(
        "synergy.sweeps", "run_synergy_ratios", "Synergy: CPU to GPU ratios from 3 to 6."
    ),
    "synergy-orders": ExperimentEntry(
        "synergy.sweeps", "run_synergy_orders", "Synergy, figures 7 and 8: LAS, SRTF and FTF on 128 GPUs."
    ),
    "synergy-philly": ExperimentEntry(
        "synergy.philly", "run_synergy_philly", "Synergy, figure 6: 8000 jobs of the Philly trace."
    ),
    "synergy-utilisation": ExperimentEntry(
        "synergy.live_sweeps", "run_synergy_utilisation", "Synergy, figure 10: GPUs and CPUs in use on 128 GPUs."
    ),
    "synergy-big-data": ExperimentEntry(
        "synergy.live_sweeps", "run_synergy_big_data", "Synergy, figure 13: DRF and Tetris, tuned and not."
    ),
    "synergy-unknown": ExperimentEntry(
        "synergy.unknown", "run_synergy_unknown", "Synergy where no profile is known, as a site has it.", parts=()
    ),
    "tesserae-900": ExperimentEntry(
        "tesserae.evaluation", "run_tesserae_900", "Tesserae, figures 11 to 17: 900 jobs on 80 GPUs."
    ),
    "fgd-default": ExperimentEntry("fgd.figures", "run_fgd_default", "FGD, figures 7 and 9: openb's default trace."),
    "fgd-variant": ExperimentEntry(
        "fgd.figures",
        "run_fgd_variant",
        "FGD, figures 11 to 14: other lists of pods.",
        frozenset({"variant", "pods"}),
        parts=({"variant": "gpushare100"}, {"variant": "multigpu20"}, {"variant": "gpuspec10"}),
    ),
    "gavel-static": ExperimentEntry(
        "mixed.gavel_static", "run_gavel_static", "Gavel: its policies on its static trace."
    ),
    "gavel-vectors": ExperimentEntry(
        "mixed.gavel_vectors",
        "run_gavel_vectors",
        "Gavel: its programs on small cases, their optima.",
        frozenset({"vectors"}),
        draws=False,
    ),
    "hadar-example": ExperimentEntry(
        "mixed.hadar_example",
        "run_hadar_example",
        "Hadar, figure 1: three jobs on six GPUs of three types.",
        draws=False,
    ),
    "hadar-static": ExperimentEntry(
        "mixed.hadar_static", "run_hadar_static", "Hadar, figures 3 and 4: 480 jobs on 60 mixed GPUs."
    ),
    "hadare-mixes": ExperimentEntry(
        "mixed.hadare_mixes", "run_hadare_mixes", "HadarE, figures 8 to 12: seven mixes on five nodes."
    ),
    "hadare-quality": ExperimentEntry(
        "hadare_quality", "run_hadare_quality", "HadarE, table IV: loss of a model trained by copies."
    ),
    "gandiva-homogeneous": ExperimentEntry(
        "gandiva_fair", "run_gandiva_homogeneous", "Gandiva_fair, slide 14: 70 users on 48 GPUs of one type."
    ),
    "gandiva-trading": ExperimentEntry(
        "gandiva_fair", "run_gandiva_trading", "Gandiva_fair, slide 15: trading between three GPU types."
    ),
    "forecasts": ExperimentEntry(
        "forecasts", "run_forecasts", "Forecasts of lengths and starts, on Philly and ITP.", parts=()
    ),
    "site-promises": ExperimentEntry(
        "site_promises.runs", "run_site_promises", "What each policy promises, as a site has it.", parts=()
    ),
    "lies": ExperimentEntry("site_promises.lying", "run_lies", "What a user gains under unified by lies.", parts=()),
    "mixed": ExperimentEntry(
        "mixed.benchmark",
        "run_mixed",
        "All policies on mixed workloads, by load.",
        frozenset({"workloads", "loads", "jobs", "policies", "knowledge"}),
        parts=(),
    ),
}


def run_experiment(name: str, setup: ExperimentSetup) -> ExperimentResult:
    """Runs the experiment. Raises ExperimentError for an unknown name or option."""
    entry = EXPERIMENTS.get(name)
    if entry is None:
        raise ExperimentError(f"there is no experiment '{name}'; experiments: {', '.join(EXPERIMENTS)}")
    if unknown := sorted(setup.options.keys() - entry.options):
        accepted = ", ".join(f"--{option}" for option in sorted(entry.options)) or "no options of its own"
        raise ExperimentError(f"{name} does not accept --{unknown[0]}; it accepts {accepted}")
    return entry.load()(setup)
