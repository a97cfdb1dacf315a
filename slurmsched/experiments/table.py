"""The experiments by name. A module is imported when its experiment is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from slurmsched.experiments.experiment import Experiment, ExperimentError, Outcome, Task

__all__ = ["EXPERIMENTS", "Entry", "reproduce"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An experiment: where its function is, the line that help shows for it, the options it knows."""

    module: str
    function: str
    summary: str
    options: frozenset[str] = frozenset()

    def load(self) -> Experiment:
        return cast("Experiment", getattr(import_module(f"slurmsched.experiments.{self.module}"), self.function))


EXPERIMENTS: Final[Mapping[str, Entry]] = {
    "synergy-static": Entry("synergy.static", "static", "Synergy, table 5: the recorded trace of 100 jobs."),
    "synergy-replay": Entry(
        "synergy.replaying",
        "replaying",
        "Any such trace, as the authors' simulator runs it.",
        frozenset({"trace", "order", "round", "profiles"}),
    ),
    "synergy-load": Entry("synergy.load", "load", "Synergy, figure 1: mean JCT as the load grows, 128 GPUs."),
    "synergy-splits": Entry("synergy.splits", "splits", "Synergy: mixes of image, language and speech jobs."),
    "synergy-ratios": Entry("synergy.ratios", "ratios", "Synergy: CPU to GPU ratios from 3 to 6."),
    "tesserae-900": Entry("tesserae.nine_hundred", "nine_hundred", "Tesserae, figures 11 to 17: 900 jobs on 80 GPUs."),
    "fgd-default": Entry("fgd.default", "default", "FGD, figures 7 and 9: openb's default trace, filled."),
    "fgd-variant": Entry(
        "fgd.variant", "variant", "FGD on another list of pods of that form.", frozenset({"variant", "pods"})
    ),
    "gavel-static": Entry("mixed.static", "static", "Gavel's policies on its static trace."),
    "gavel-vectors": Entry(
        "mixed.vectors", "vectors", "Gavel's programs on small cases, by their optima.", frozenset({"vectors"})
    ),
    "hadar-example": Entry("mixed.hadar_example", "example", "Hadar, figure 1: three jobs on six GPUs of three types."),
    "hadar-static": Entry("mixed.hadar_static", "static", "Hadar, figures 3 and 4: 480 jobs on 60 mixed GPUs."),
    "hadare-mixes": Entry("mixed.hadare_mixes", "mixes", "HadarE, figures 8 to 12: seven mixes on five nodes."),
    "hadare-quality": Entry(
        "consolidation.quality", "quality", "HadarE, table IV: a model trained by copies, and by one."
    ),
    "gandiva-homogeneous": Entry(
        "gandiva.homogeneous", "homogeneous", "Gandiva_fair, slide 14: 70 users on 48 GPUs of one kind."
    ),
    "gandiva-trading": Entry("gandiva.trading", "trading", "Gandiva_fair, slide 15: trading on three types of GPU."),
}
"""Every experiment by name."""


def reproduce(name: str, task: Task) -> Outcome:
    """Run the experiment. Raises ExperimentError for an unknown name or an option it does not know."""
    entry = EXPERIMENTS.get(name)
    if entry is None:
        raise ExperimentError(f"there is no experiment '{name}': known are {', '.join(EXPERIMENTS)}")
    if unknown := sorted(task.options.keys() - entry.options):
        known = ", ".join(f"--{option}" for option in sorted(entry.options)) or "none of its own"
        raise ExperimentError(f"{name} does not know --{unknown[0]}: it takes {known}")
    return entry.load()(task)
