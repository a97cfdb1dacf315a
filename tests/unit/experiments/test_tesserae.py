"""The replay behind tesserae-900, and what is compared in it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from slurmsched.experiments.tesserae.evaluation import (
    EvaluationResults,
    ablation_rows,
    estimation_rows,
    published_rows,
    sensitivity_rows,
)
from slurmsched.experiments.tesserae.gavel import (
    GavelPacked,
    GavelPriorityOrder,
    PackingClasses,
    SingleTypeGavelPolicy,
    TimeFractionLedger,
    class_time_fractions,
)
from slurmsched.experiments.tesserae.policies import TesseraeReplayPolicy, WithGavelLeases, WorkerLeases
from slurmsched.experiments.tesserae.replay import ReplayState, Workload, pair_weights, replay_workload
from slurmsched.experiments.tesserae.round import TesseraePlan, TesseraeVariant, allocate_in_order
from slurmsched.experiments.tesserae.variants import VARIANTS, EvaluationConfig, evaluation_configs, run_config
from slurmsched.policies.gavel.objectives import Objective, finish_time_fairness, least_attained_service
from slurmsched.policies.tesserae.migration import PlacementPlan
from slurmsched.simulation.replay import ReplayError
from slurmsched.simulation.results import run_metrics

HALVES = np.array([[0.8]])
TEXT = TesseraeVariant(allocate_in_order, keep_pairs=False)


def jobs(*rows: tuple[float, float, int], kept: np.ndarray = HALVES) -> Workload:
    """Rows of arrival, seconds alone and GPUs, all of one model."""
    arrival, work, gpus = (np.array(column) for column in zip(*rows, strict=True))
    return Workload(arrival.astype(float), work.astype(float), gpus, np.zeros(len(rows), dtype=np.int64), ("m",), kept)


@dataclass
class Prescribed:
    """Layouts round by round, the last one again and again."""

    rounds: list[list[tuple[int, int, tuple[int, ...]]]]
    moved: list[frozenset[int]] = field(default_factory=list)
    name: str = "prescribed"

    def decide(self, standing: ReplayState) -> TesseraePlan:
        rows = self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]
        moved = self.moved.pop(0) if self.moved else frozenset[int]()
        there = set(standing.active.tolist())
        left = [(node, gpus, tuple(job for job in who if job in there)) for node, gpus, who in rows]
        return TesseraePlan(PlacementPlan.from_rows([row for row in left if row[2]]), (), moved)


SIZES = np.array([4])


def ends(workload: Workload, policy: Prescribed, overhead: float = 0.0) -> list[float | None]:
    return [job.end for job in replay_workload(workload, SIZES, policy, period=100.0, overhead=overhead).jobs]


@pytest.mark.parametrize(
    ("rows", "rounds", "overhead", "expected"),
    [
        pytest.param([(0, 250, 1)], [[(0, 1, (0,))]], 0.0, [250], id="alone it ends when its work is done"),
        pytest.param([(30, 50, 1)], [[(0, 1, (0,))]], 0.0, [150], id="an arrival is seen at the next round"),
        pytest.param([(0, 250, 1)], [[(0, 1, (0,))]], 10.0, [260], id="a start costs once"),
        pytest.param(
            [(0, 80, 1), (0, 80, 1)], [[(0, 1, (0, 1))]], 0.0, [100, 100], id="two together at eight tenths each"
        ),
        pytest.param(
            [(0, 40, 1), (0, 80, 1)], [[(0, 1, (0, 1))]], 0.0, [50, 90], id="the GPUs are its own once the other ended"
        ),
        pytest.param(
            [(0, 150, 1), (0, 20, 1)],
            [[(0, 1, (0,)), (0, 1, (1,))], [(0, 1, (0,))]],
            0.0,
            [150, 20],
            id="side by side nobody slows down",
        ),
    ],
)
def test_when_jobs_end(
    rows: list[tuple[float, float, int]],
    rounds: list[list[tuple[int, int, tuple[int, ...]]]],
    overhead: float,
    expected: list[float],
) -> None:
    assert ends(jobs(*rows), Prescribed(rounds), overhead) == pytest.approx(expected)


def test_a_move_costs_as_much_as_a_start_and_is_counted() -> None:
    moves = [frozenset[int](), frozenset({0})]
    run = replay_workload(jobs((0, 150, 1)), SIZES, Prescribed([[(0, 1, (0,))]], moves), period=100.0, overhead=10.0)
    assert (run.jobs[0].end, run.jobs[0].migrations, run.jobs[0].restarts) == (170.0, 1, 1)


def test_a_policy_that_runs_nobody_is_told_so() -> None:
    with pytest.raises(ReplayError, match="prescribed never runs job 0"):
        replay_workload(jobs((0, 10, 1)), SIZES, Prescribed([[]]))


def test_a_workers_lease_is_kept_by_the_same_pair_only() -> None:
    leases, gpus = WorkerLeases(np.array([2, 2])), np.ones(5, dtype=np.int64)
    leases.assign([(0,), (1, 2)], gpus)
    _, moved = leases.assign([(3,), (1, 2), (0,)], gpus)
    assert moved == frozenset()
    layout, moved = leases.assign([(0, 1), (2, 3)], gpus)
    assert sorted(layout.jobs.tolist()) == [[0, 1], [2, 3]]
    assert moved == {1, 3}  # 2 has another partner on the GPU it had


def test_a_wide_newcomer_takes_workers_that_narrow_jobs_had() -> None:
    leases, gpus = WorkerLeases(np.array([2, 2])), np.array([1, 1, 2])
    leases.assign([(0,), (1,)], gpus)
    _, moved = leases.assign([(0,), (1,), (2,)], gpus)
    assert moved == {0, 1}


def test_gavel_shares_time_evenly_and_packs_where_that_is_more() -> None:
    kind, width = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    alone = class_time_fractions(PackingClasses.build(kind, width, np.array([4]), np.array([[0.4]])), 2)
    assert alone.tolist() == pytest.approx([2.0])
    packed = class_time_fractions(PackingClasses.build(kind, width, np.array([4]), np.array([[0.7]])), 2)
    assert packed.tolist() == pytest.approx([0.0, 2.0])


def standing(workload: Workload, time: float, before: PlacementPlan, done: list[float]) -> ReplayState:
    """All jobs are there and have done so much of their work, on one node of two GPUs."""
    remaining, everybody = workload.seconds - np.array(done), np.arange(len(workload))
    return ReplayState(time, 360.0, workload, np.array([2]), everybody, remaining, np.zeros(len(workload)), before)


@pytest.mark.parametrize(
    ("objective", "rows", "ran", "done", "expected"),
    [
        pytest.param(
            least_attained_service,
            [(0, 9000, 1), (0, 9000, 1), (0, 9000, 1)],
            [(0, 1, (0,)), (0, 1, (2,))],
            [0, 0, 0],
            [1, 0, 2],
            id="who has had nothing of an equal share comes first",
        ),
        pytest.param(
            least_attained_service,
            [(0, 9000, 2), (0, 9000, 1), (0, 9000, 1)],
            [],
            [0, 0, 0],
            [1, 2, 0],
            id="a wide job is promised less time",
        ),
        pytest.param(
            least_attained_service,
            [(0, 9000, 1), (0, 9000, 1), (0, 9000, 1)],
            [(0, 1, (0, 1))],
            [0, 0, 0],
            [2, 0, 1],
            id="two that shared GPUs have both had the round",
        ),
        pytest.param(
            finish_time_fairness,
            [(0, 9000, 1), (0, 9000, 1), (-40000, 9000, 1)],
            [],
            [0, 0, 0],
            [2, 0, 1],
            id="who came long ago is promised most",
        ),
    ],
)
def test_who_comes_first_by_gavels_priorities(
    objective: Objective,
    rows: list[tuple[float, float, int]],
    ran: list[tuple[int, int, tuple[int, ...]]],
    done: list[float],
    expected: list[int],
) -> None:
    workload, order = jobs(*rows), GavelPriorityOrder(TimeFractionLedger(objective))
    first = order(standing(workload, 0.0, PlacementPlan.from_rows(()), done))
    found = order(standing(workload, 360.0, PlacementPlan.from_rows(ran), done)) if ran else first
    assert found.tolist() == expected


def test_gavel_promises_time_to_pairs_that_do_more_together() -> None:
    rows = [(0.0, 9000.0, 1)] * 4
    for kept, runs in ((0.8, 4), (0.4, 2)):
        policy = SingleTypeGavelPolicy(
            "gavel", TimeFractionLedger(least_attained_service, packed=True), WorkerLeases(np.array([2]))
        )
        decided = policy.decide(
            standing(jobs(*rows, kept=np.array([[kept]])), 0.0, PlacementPlan.from_rows(()), [0.0] * 4)
        )
        assert len(np.unique(decided.placement.jobs[decided.placement.jobs >= 0])) == runs
        assert len(decided.pairs) == runs - 2


def test_whatever_is_told_was_replayed_and_is_told_once() -> None:
    moves = [frozenset[int](), frozenset({0})]
    run = run_metrics(
        replay_workload(jobs((0, 150, 1)), SIZES, Prescribed([[(0, 1, (0,))]], moves), period=100.0, overhead=10.0)
    )
    base = EvaluationConfig("", Path("throughputs.json"))
    found = EvaluationResults({cell: [run] for cell in evaluation_configs(base)})
    told = [row.metric for rows in (published_rows, ablation_rows, sensitivity_rows) for row in rows(found, base)]
    assert len(set(told)) == len(told)
    assert max(map(len, told)) <= 52, "the table has eighty columns"


def test_every_job_of_a_replay_does_its_work_whatever_the_policy() -> None:
    random = np.random.default_rng(5)
    rows = [(float(200 * n), float(random.uniform(50, 2000)), int(random.choice((1, 2, 4)))) for n in range(25)]
    workload, sizes = jobs(*rows), np.array([4, 4])
    weights = pair_weights(workload.relative_rates, 1.0)
    policies = [
        TesseraeReplayPolicy("ours", weights),
        TesseraeReplayPolicy("text", weights, variant=TEXT),
        WithGavelLeases(
            "rule", TesseraeReplayPolicy("", weights, variant=replace(TEXT, rename_nodes=False)), WorkerLeases(sizes)
        ),
        GavelPacked("gavel", WorkerLeases(sizes)),
        TesseraeReplayPolicy("over gavel", weights, GavelPriorityOrder(TimeFractionLedger(least_attained_service))),
        SingleTypeGavelPolicy("fair", TimeFractionLedger(finish_time_fairness, packed=True), WorkerLeases(sizes)),
    ]
    for policy in policies:
        run = replay_workload(workload, sizes, policy, overhead=20.0)
        assert all(job.end is not None and job.jct >= job.work for job in run.jobs)
        assert sum(job.service for job in run.jobs) >= float(workload.seconds @ workload.gpus) - 1e-6


def test_pairs_of_wide_jobs_may_keep_less_than_those_of_narrow_ones() -> None:
    wide = replace(jobs((0, 80, 2), (0, 80, 2), (0, 80, 1), (0, 80, 1)), wide_pair_factor=0.5)
    assert ends(wide, Prescribed([[(0, 2, (0, 1)), (0, 1, (2, 3))]])) == pytest.approx([200, 200, 100, 100])


@pytest.mark.skipif("SLURMSCHED_DATA" not in os.environ, reason="SLURMSCHED_DATA names no folder of data sets")
def test_packing_and_fewer_moves_shorten_the_published_workload() -> None:
    rates = Path(os.environ["SLURMSCHED_DATA"]) / "gavel" / "throughputs.json"
    named = ("tiresias", "tiresias single", "text", "text, no names", "tesserae-t")
    found = {name: run_config(EvaluationConfig(name, rates, jobs=120)) for name in named}
    jct = {name: figures.avg_jct_s for name, figures in found.items()}
    assert jct["tesserae-t"] < jct["tiresias single"] < jct["tiresias"]
    assert found["text"].migrations < 0.8 * found["text, no names"].migrations
    assert found["tesserae-t"].migrations < 0.5 * found["text"].migrations
    assert set(named) < set(VARIANTS)


@pytest.mark.skipif("SLURMSCHED_DATA" not in os.environ, reason="SLURMSCHED_DATA names no folder of data sets")
def test_what_is_estimated_is_nearer_than_what_is_drawn() -> None:
    rates = Path(os.environ["SLURMSCHED_DATA"]) / "gavel" / "throughputs.json"
    found = {row.metric: row.measured for row in estimation_rows(rates, (0.3,))}
    pairs = "30% of pairs measured, others"
    assert found[f"{pairs} completed: mean error"] < 0.7 * found[f"{pairs} guessed: mean error"]
    best = "rate of the best found"
    assert found[f"random strategies: {best}"] < found[f"Bayesian optimisation: {best}"] <= 1
