"""Hadar's example of three jobs on 2 V100, 3 P100 and 1 K80 (Sultana et al., section II-A, figure 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.experiments.mixed.replay_policies import HadarReplayPolicy
from slurmsched.experiments.mixed.workloads import LIVE_NOTE, authors_rounds, replay_live
from slurmsched.policies.hadar.primal_dual import HadarScheduler
from slurmsched.policies.hadar.problem import slack_aware
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import daemon_rounds
from slurmsched.simulation.replay import Decider, GpuWorkers, Grant, ReplayJob, ReplayResult, RoundInput

ROUND_SECONDS: Final = 360.0
GPUS_BY_TYPE: Final = {"v100": 2, "p100": 3, "k80": 1}
JOB_EPOCHS: Final[Mapping[str, tuple[int, int, tuple[int, int, int]]]] = {
    "J1": (3, 80, (40, 20, 30)),
    "J2": (2, 30, (5, 15, 5)),
    "J3": (2, 50, (10, 2, 20)),
}
"""By job: GPUs, total epochs, and epochs per round on each GPU type."""

GAVEL_ALLOCATION: Final[Mapping[str, tuple[float, float, float]]] = {
    "J1": (0.6, 0.4, 0.0),
    "J2": (0.2, 0.6, 0.2),
    "J3": (0.2, 0.0, 0.8),
}
"""Gavel's allocation in the paper: time fractions on each GPU type."""

_UTILISATION_NOTE: Final = "Granted GPUs over all GPUs of all rounds, as figure 1 counts, with whole epochs."
_GAVEL_NOTE: Final = "The time fractions are given: they are those that the paper says Gavel computes."
_GANGS_NOTE: Final = (
    "Five rounds cannot be had under the paper's own constraints: gangs of 3, 2 and 2 keep at most 5 of 6 GPUs busy,"
    " and while J3 runs in all five at 10 epochs, J1 needs four of them and J2 two. An exhaustive search over all"
    " schedules finds six. Five are possible if the tasks of a mixed gang add up, against equation 1b; 87 % busy cannot"
    " be had with gangs of any kind. No code of the authors is public."
)
_FEWEST_NOTE: Final = "The fewest of an exhaustive search over all schedules of whole gangs."

GangPace = Callable[[Sequence[int], tuple[int, int, int]], float]
"""Returns a gang's epochs in a round, given its GPUs of each type and the epochs of a whole gang on each type."""


@dataclass(slots=True)
class _GavelByPriority:
    """Gavel's rounds as in Hadar's paper: priority is allocation over rounds received, gangs are on one GPU type."""

    name: str = "gavel"
    _rounds_received: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        gpu_types = tuple(round_input.workers.gpus_by_type)
        free = {kind: list(workers) for kind, workers in round_input.workers.workers_by_type.items()}
        grants: dict[str, Grant] = {}
        for job, kind in sorted(
            product(round_input.jobs, range(len(gpu_types))), key=lambda pair: -self._priority(*pair)
        ):
            width, idle = round_input.jobs[job].spec.gpus, free[gpu_types[kind]]
            if job not in grants and self._priority(job, kind) > 0 and len(idle) >= width:
                grants[job] = Grant((job,), tuple(idle[:width]))
                del idle[:width]
                self._rounds_received[job, kind] += 1
        return [*grants.values()]

    def _priority(self, job: str, type_index: int) -> float:
        received = self._rounds_received.get((job, type_index), 0)
        return GAVEL_ALLOCATION[job][type_index] / received if received else GAVEL_ALLOCATION[job][type_index] * 1e9


def run_hadar_example(_setup: ExperimentSetup) -> ExperimentResult:
    """Measures rounds and utilisation under Gavel and Hadar. Raises ReplayError."""
    gavel, ours = (
        _replay_example(_GavelByPriority()),
        _replay_example(HadarReplayPolicy(HadarScheduler(make_utility=slack_aware, restart_cost=0.0))),
    )
    fewest, added = fewest_rounds(bottleneck_pace), fewest_rounds(additive_pace)
    return ExperimentResult(
        "hadar-example",
        (
            FigureRow("Gavel: rounds", "", gavel.rounds, 6.0, tolerance=0.0, note=_GAVEL_NOTE),
            FigureRow("Gavel: utilisation", "", _granted_fraction(gavel), 0.78, tolerance=0.01, note=_UTILISATION_NOTE),
            FigureRow("Hadar: rounds", "", ours.rounds, 5.0, bound=Bound.INFORMATIVE, note=_GANGS_NOTE),
            FigureRow("Hadar: rounds, as few as possible", "", ours.rounds, limit=float(fewest), note=_FEWEST_NOTE),
            FigureRow(
                "Hadar: utilisation", "", _granted_fraction(ours), 0.87, bound=Bound.INFORMATIVE, note=_GANGS_NOTE
            ),
            *_live_rows(),
            FigureRow("fewest rounds of whole gangs", "", fewest, 5.0, bound=Bound.INFORMATIVE, note=_GANGS_NOTE),
            FigureRow("fewest rounds if tasks add up", "", added, 5.0, bound=Bound.INFORMATIVE, note=_GANGS_NOTE),
        ),
    )


def _live_rows() -> Iterator[FigureRow]:
    for name, rounds, utilisation in (("Gavel", 6.0, 0.78), ("Hadar", 5.0, 0.87)):
        workers, semantics = GpuWorkers.from_gpu_counts(GPUS_BY_TYPE), daemon_rounds(0.0, ROUND_SECONDS)
        run = replay_live(name.lower(), _example_jobs(), workers, semantics)
        yield FigureRow(f"live: {name}: rounds", "", run.rounds, rounds, bound=Bound.INFORMATIVE, note=LIVE_NOTE)
        granted = _granted_fraction(run)
        yield FigureRow(f"live: {name}: utilisation", "", granted, utilisation, bound=Bound.INFORMATIVE, note=LIVE_NOTE)


def _replay_example(policy: Decider) -> ReplayResult:
    return replay(_example_jobs(), GpuWorkers.from_gpu_counts(GPUS_BY_TYPE), policy, authors_rounds())


def _example_jobs() -> list[ReplayJob]:
    """Returns the jobs. An epoch has as many steps as a round has seconds, so that every rate is an integer."""
    return [
        ReplayJob(job, width, round(epochs * ROUND_SECONDS), dict(zip(GPUS_BY_TYPE, map(float, pace), strict=True)))
        for job, (width, epochs, pace) in JOB_EPOCHS.items()
    ]


def _granted_fraction(run: ReplayResult) -> float:
    granted = sum(sum(record.granted_gpus.values()) for record in run.records)
    return granted / (len(run.records) * sum(run.gpus_by_type.values()))


def bottleneck_pace(gpus: Sequence[int], pace: tuple[int, int, int]) -> float:
    """Returns the pace of the slowest type in the gang (equation 1b)."""
    return min(type_pace for count, type_pace in zip(gpus, pace, strict=True) if count)


def additive_pace(gpus: Sequence[int], pace: tuple[int, int, int]) -> float:
    """Returns the pace if no task waited for another."""
    return sum(count * type_pace for count, type_pace in zip(gpus, pace, strict=True)) / sum(gpus)


def fewest_rounds(pace: GangPace) -> int:
    """Returns the rounds of the best schedule, by exhaustive search. Gangs may move every round."""
    options, frontier, rounds = (
        tuple(_round_options(pace)),
        {tuple(float(epochs) for _, epochs, _ in JOB_EPOCHS.values())},
        0,
    )
    while not any(max(left) <= 0 for left in frontier):
        rounds += 1
        reached = {
            tuple(max(0.0, epochs - done) for epochs, done in zip(left, option, strict=True))
            for left in frontier
            for option in options
        }
        frontier = {left for left in reached if not any(_dominates(other, left) for other in reached)}
    return rounds


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _round_options(pace: GangPace) -> Iterator[tuple[float, ...]]:
    """Yields the epochs of each job in a round, for every allocation of the GPUs."""
    type_counts = tuple(GPUS_BY_TYPE.values())
    gang_options = [
        [None, *(gpus for gpus in product(*(range(count + 1) for count in type_counts)) if sum(gpus) == width)]
        for width, _, _ in JOB_EPOCHS.values()
    ]
    for chosen in product(*gang_options):
        taken = [sum(gpus[kind] for gpus in chosen if gpus) for kind in range(len(type_counts))]
        if all(used <= count for used, count in zip(taken, type_counts, strict=True)):
            paces = (job_pace for _, _, job_pace in JOB_EPOCHS.values())
            yield tuple(pace(gpus, job_pace) if gpus else 0.0 for gpus, job_pace in zip(chosen, paces, strict=True))
