"""The inflation experiment: its construction on a tiny trace, and the published curves where the data are at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from slurmsched.experiments.experiment import ExperimentError, ExperimentSetup
from slurmsched.experiments.fgd.figures import CURVE_DIGESTS, curve_digest, read_published
from slurmsched.experiments.fgd.inflation import (
    CURVE_POINTS,
    PUBLISHED_POLICIES,
    inflate,
    mix_preserving_bound,
    score_table_factory,
    steady_allocation,
)
from slurmsched.experiments.fgd.trace import Arrivals, draw_arrivals, read_nodes, read_tasks, recorded_arrivals
from slurmsched.experiments.registry import run_experiment
from slurmsched.policies.place.fragmentation import TaskDemand as Pod
from slurmsched.policies.place.fragmentation import typical_workload
from slurmsched.traces import TraceError
from tests.builders import Server

SERVERS = (Server(8000, 1000, (1000, 1000), "a").node("1"), Server(8000, 1000, (1000, 1000), "b").node("2"))
WHOLE, HALF = Pod(1000, 1, 1, 1000), Pod(1000, 1, 1, 500)


def test_a_short_trace_is_tuned_up_with_tasks_of_its_own() -> None:
    tasks = (WHOLE, HALF, HALF)
    made = draw_arrivals(1, tasks, SERVERS)
    assert sorted(made.tasks[:3], key=lambda t: t.milli_per_gpu) == [HALF, HALF, WHOLE]
    assert set(made.tasks) == {WHOLE, HALF}
    assert 4200 <= sum(task.total_milli_gpu for task in made.tasks) <= 5200
    assert set(made.nodes) == set(SERVERS)


def test_a_long_trace_is_tuned_down() -> None:
    made = draw_arrivals(1, [WHOLE] * 20, SERVERS)
    assert sum(task.total_milli_gpu for task in made.tasks) == 5000


def test_seeds_differ_and_repeat() -> None:
    tasks = [WHOLE, HALF, Pod(1000, 1, 2, 1000)] * 5
    assert draw_arrivals(1, tasks, SERVERS) == draw_arrivals(1, tasks, SERVERS)
    assert len({draw_arrivals(seed, tasks, SERVERS).tasks for seed in range(5)}) > 1


def test_the_curves_are_means_by_per_cent_asked_for() -> None:
    """Four GPUs; a whole one is 25 %. The fifth does not fit."""
    run = inflate(Arrivals((WHOLE,) * 5, SERVERS), typical_workload([WHOLE]), score_table_factory("best_fit", 1))
    assert (run.unplaced, run.decisions, run.moves) == (1, 5, 0)
    assert [run.allocated[point] for point in (25, 50, 75, 100, 125)] == [25.0, 50.0, 75.0, 100.0, 100.0]
    assert run.allocated[24] == 25.0
    assert len(run.allocated) == CURVE_POINTS
    assert np.isnan(run.allocated[60])
    assert np.isfinite(run.fragmentation[[25, 100]]).all()
    assert run.fragmentation[100] == 0.0


@pytest.mark.parametrize(
    "name", [*PUBLISHED_POLICIES, "fgd_argmin", "fgd_priced", "fgd_moving", "unified", "unified_slurm"]
)
def test_every_policy_places_what_fits(name: str) -> None:
    run = inflate(
        Arrivals((HALF, WHOLE, HALF, WHOLE, WHOLE), SERVERS),
        typical_workload([WHOLE, HALF]),
        score_table_factory(name, 1, [WHOLE, HALF]),
    )
    assert run.allocated[100] == 100.0 or name == "random_fit"
    assert run.unplaced <= 1


def test_a_mistake_in_a_list_is_named(tmp_path: Path) -> None:
    pods = tmp_path / "pods.csv"
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,10,2,1500\n")
    with pytest.raises(TraceError, match=r"pods.csv:2: gpu_milli: expected 1 to 1000 of each GPU"):
        read_tasks(pods)


def test_orders_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    path.write_text(json.dumps({"seeds": {"1": {"pods": [0, 7], "node_order": [0]}}}))
    assert recorded_arrivals(path, 2, [WHOLE], SERVERS) is None
    with pytest.raises(ExperimentError, match="expected arrival and node orders"):
        recorded_arrivals(path, 1, [WHOLE], SERVERS)


def test_a_variant_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="--variant gpushare100"):
        run_experiment("fgd-variant", ExperimentSetup(tmp_path))


def test_no_placement_allocates_more_of_a_mix_than_the_cutting_stock_program() -> None:
    """Of each 600 milli-GPU 400 are lost unless tasks of 400 come with them; whole GPUs lose nothing."""
    large, small, whole = Pod(0, 0, 1, 600), Pod(0, 0, 1, 400), Pod(0, 0, 2, 1000)

    assert mix_preserving_bound([large]) == pytest.approx(60.0)
    assert mix_preserving_bound([large, small]) == pytest.approx(100.0)
    assert mix_preserving_bound([large, large, small]) == pytest.approx(80.0)
    assert mix_preserving_bound([large, whole]) == pytest.approx(100 * 2.6 / 3)
    with pytest.raises(ExperimentError, match="no multiple of 10 milli-GPU"):
        mix_preserving_bound([Pod(0, 0, 1, 333)])


@pytest.mark.parametrize("load", [0.2, 3.0])
def test_a_steady_state_allocates_what_is_requested_up_to_all_gpus(load: float) -> None:
    tasks = [Pod(0, 0, 1, 500)] * 4000
    allocated = steady_allocation(
        Arrivals(tuple(tasks), SERVERS), typical_workload(tasks), score_table_factory("fgd", 1), load
    )
    # An Erlang loss system: at a fifth of the load nearly nobody is turned away, at three times the GPUs are full.
    assert allocated == pytest.approx(20.0, rel=0.15) if load < 1 else 80 < allocated <= 100


needs_data = pytest.mark.skipif("SLURMSCHED_DATA" not in os.environ, reason="SLURMSCHED_DATA names no data sets")


@needs_data
@pytest.mark.parametrize("policy", ["fgd", "best_fit", "gpu_packing", "clustering", "dot_product"])
def test_the_published_curves_are_met_in_every_digit(policy: str) -> None:
    data = Path(os.environ["SLURMSCHED_DATA"]) / "fgd"
    tasks = read_tasks(data / "openb_pod_list_default.csv")
    arrivals = recorded_arrivals(
        data / "sequences_default.json", 42, tasks, read_nodes(data / "openb_node_list_gpu_node.csv")
    )
    assert arrivals is not None
    run = inflate(arrivals, typical_workload(tasks), score_table_factory(policy, 42))
    assert (curve_digest(run.allocated), curve_digest(run.fragmentation)) == CURVE_DIGESTS[policy, 42]
    spread = read_published(data / "expected.json").alloc_pct["default"][PUBLISHED_POLICIES[policy]]["100"]
    assert spread.min <= run.allocated[100] <= spread.max


@needs_data
def test_the_argmin_breaks_ties_by_the_first_node_and_not_by_rounding_errors() -> None:
    data = Path(os.environ["SLURMSCHED_DATA"]) / "fgd"
    tasks = read_tasks(data / "openb_pod_list_default.csv")
    arrivals = recorded_arrivals(
        data / "sequences_default.json", 42, tasks, read_nodes(data / "openb_node_list_gpu_node.csv")
    )
    assert arrivals is not None
    run = inflate(arrivals, typical_workload(tasks), score_table_factory("fgd_argmin", 42))
    assert run.allocated[100] == pytest.approx(94.1, abs=0.1)
    assert run.allocated[100] < mix_preserving_bound(tasks) == pytest.approx(96.32, abs=0.01)
