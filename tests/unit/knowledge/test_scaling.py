"""Rates by GPU type: between and outside what was measured, and as factors of a job's speed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.knowledge import Knowledge, Profile, ProfileError, Scaling, load_knowledge, load_profiles
from slurmsched.knowledge.published import model_name
from slurmsched.model import Job, NodeAllocation, Request, Resources
from tests.builders import job, node, profile

V100 = Scaling((1, 2, 8), (10.0, 18.0, 40.0), (10.0, 12.0, 24.0), {"gnmt": 0.5})
K80 = Scaling((1, 4), (2.0, 0.0))
KNOWN = Knowledge(models={"m": Profile("m", "", {}, "by hand", {"v100": V100, "k80": K80})}, reference="v100")


@pytest.mark.parametrize(
    ("gpus", "nodes", "rate"),
    [
        pytest.param(2, 1, 18.0, id="as measured"),
        pytest.param(2, 2, 12.0, id="apart, as measured"),
        pytest.param(5, 1, 5 * (9.0 + 5.0) / 2, id="between: linear per GPU"),
        pytest.param(16, 1, 80.0, id="beyond: linear in GPUs"),
        pytest.param(16, 4, 48.0, id="beyond and apart"),
    ],
)
def test_rates_by_gpus(gpus: int, nodes: int, rate: float) -> None:
    assert V100.rate_at(gpus, nodes) == pytest.approx(rate)


def test_apart_is_as_together_where_it_was_not_measured() -> None:
    assert Scaling((1, 2), (1.0, 2.0)).rate_at(2, 2) == 2.0


@given(st.integers(1, 64))
def test_a_rate_is_between_its_neighbours_per_gpu(gpus: int) -> None:
    assert 5.0 - 1e-9 <= V100.rate_at(gpus) / gpus <= 10.0 + 1e-9


def asking(gpus: int = 1, model: str = "m", gpu_type: str | None = None) -> Job:
    return job(1, hint=f"model={model}", request=Request(gpus=gpus, gpu_type=gpu_type, cpus=3 * gpus))


def shares(*placed: tuple[str, str, int]) -> tuple[NodeAllocation, ...]:
    return tuple(NodeAllocation(name, Resources(gpus, 3 * gpus, 0), kind) for name, kind, gpus in placed)


NODES = {name: node(name, gpus=8, cpus=24) for name in ("a", "b")}


@pytest.mark.parametrize(
    ("placed", "speed"),
    [
        pytest.param([("a", "v100", 2)], 1.0, id="the reference type, together"),
        pytest.param([("a", "v100", 1), ("b", "v100", 1)], 12 / 18, id="the reference type, apart"),
        pytest.param([("a", "k80", 1)], 0.2, id="a slower type"),
        pytest.param([("a", "k80", 4)], 0.0, id="where it cannot run"),
        pytest.param([("a", "v100", 1), ("b", "k80", 1)], K80.rate_at(2) / 18, id="mixed: the slower one holds back"),
        pytest.param([("a", "h100", 1)], 1.0, id="a type nobody measured"),
    ],
)
def test_speed_by_type_and_spread(placed: list[tuple[str, str, int]], speed: float) -> None:
    wide = sum(gpus for _, _, gpus in placed)
    assert KNOWN.speed(asking(wide), shares(*placed), NODES) == pytest.approx(speed)


def test_the_type_a_job_asks_for_is_the_one_its_duration_is_of() -> None:
    assert KNOWN.speed(asking(gpu_type="k80"), shares(("a", "k80", 1)), NODES) == 1.0


def test_a_partner_on_the_same_gpu_costs_what_was_measured_of_it() -> None:
    own, partner, stranger = (asking(model=model) for model in ("m", "gnmt", "x"))
    place = shares(("a", "v100", 1))
    assert KNOWN.speed(own, place, NODES, [partner, stranger]) == 0.5
    assert KNOWN.speed(partner, place, NODES, [own]) == 1.0


def test_the_share_of_cpus_and_the_type_multiply() -> None:
    known = Knowledge(models={"m": Profile("m", "", profile("m", {1: 0.5, 3: 1.0}).matrices, "", {"v100": V100})})
    starved = (NodeAllocation("a", Resources(1, 1, 0), "v100"),)
    assert known.speed(asking(gpu_type="v100"), starved, NODES) == pytest.approx(0.5)


def test_a_file_says_rates(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(
        'reference = "v100"\n[models.m.gpu.v100]\ngpus = [1, 2, 8]\nrate = [10, 18, 40]\napart = [10, 12, 24]\n'
        "beside = { gnmt = 0.5 }\n[models.m.gpu.k80]\ngpus = [1, 4]\nrate = [2, 0]\n"
    )
    found = load_profiles(file)
    assert (found.models["m"].scaling, found.reference) == (KNOWN.models["m"].scaling, "v100")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "gpus = [1, 2]\nrate = [1]", "rate: expected one number for each of gpus, that is 2", id="too few rates"
        ),
        pytest.param("gpus = [1.5]\nrate = [1]", "gpus: expected whole numbers", id="half a GPU"),
        pytest.param("rate = [-1]", "rate: expected numbers of 0 or more, not -1", id="a negative rate"),
        pytest.param("rate = [1]\nbeside = { x = true }", "beside: x: expected numbers of 0", id="no part"),
        pytest.param("rate = [1]\nspread = 1", "spread: expected one of", id="an unknown field"),
    ],
)
def test_a_mistake_names_entry_field_and_what_was_expected(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(f"[models.m.gpu.v100]\n{text}\n")
    with pytest.raises(ProfileError) as told:
        load_profiles(file)
    assert words in str(told.value)
    assert "ours.toml: models.m: gpu.v100" in str(told.value)


def test_a_job_type_of_gavels_in_the_letters_of_a_hint() -> None:
    assert model_name("ResNet-50 (batch size 64)") == "resnet-50-batch-size-64"


def test_gavels_table_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    types = [{"name": "A", "scale_factor": 1}, {"name": "B", "scale_factor": 1}, {"name": "A", "scale_factor": 2}]
    table = {
        "metadata": {"worker_types": ["v100"]},
        "job_types": types,
        "isolated": {"v100": [4.0, 2.0, 6.0], "v100_unconsolidated": [4.0, 2.0, 5.0]},
        "pairs": {"v100": [[0, 1, 3.0, 1.0], [2, 2, 0.0, 0.0]]},
    }
    file.write_text(json.dumps(table))
    found = load_knowledge(file)
    assert found.reference == "v100"
    assert found.models["a"].scaling == {"v100": Scaling((1, 2), (4.0, 6.0), (4.0, 5.0), {"b": 0.75})}
    assert found.models["b"].scaling["v100"].beside == {"a": 0.5}
    file.write_text(json.dumps({**table, "pairs": {"v100": [[0, 7, 1.0, 1.0]]}}))
    with pytest.raises(ProfileError, match=r"rates.json: expected Gavel's throughputs.json"):
        load_knowledge(file)


@pytest.mark.skipif("SLURMSCHED_DATA" not in os.environ, reason="SLURMSCHED_DATA names no data sets")
def test_the_published_rates_are_read() -> None:
    found = load_knowledge(Path(os.environ["SLURMSCHED_DATA"]) / "gavel/throughputs.json")
    assert len(found.models) == 26
    resnet = found.models["resnet-18-batch-size-16"].scaling["v100"]
    assert [round(rate) for rate in resnet.rate] == [32, 100, 124, 383]
    assert found.models["resnet-50-batch-size-128"].scaling["k80"].rate_at(2) == 0.0
