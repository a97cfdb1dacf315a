"""Profile files: what may stand in them, and how a mistake is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurmsched.knowledge import ProfileError, load_profiles, load_synergy_profiles, shipped_profiles

GOOD = """
source = "measured in May"
[tasks.image]
cpus = [1, 3]
speed = [1, 2]
[models.resnet50]
task = "image"
[models.resnet50.gpu.a100]
cpus = [1, 3, 6]
memory = [10, 20]
speed = [[1, 1], [2, 3], [2, 4]]
[models.own]
cpus = [2]
speed = [7.5]
"""


def test_a_model_has_its_own_matrix_by_gpu_type_and_else_its_tasks(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(GOOD)
    known = load_profiles(file)
    resnet = known.models["resnet50"]
    a100, other = resnet.matrix("a100"), resnet.matrix("k80")
    assert a100 is not None
    assert (a100.memory, a100.speed_at(6, 20 * 1024)) == ((10 * 1024, 20 * 1024), 4)
    assert other == known.tasks["image"].matrix("")
    assert (resnet.task, resnet.source) == ("image", "measured in May")
    own = known.models["own"].matrix("k80")
    assert own is not None
    assert own.speed_at(2, 1) == 7.5


def test_json_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "ours.json"
    file.write_text(json.dumps({"models": {"x": {"cpus": [1, 2], "speed": [1, 2]}}}))
    known = load_profiles(file)
    assert known.models["x"].source == f"imported: {file}"
    assert known.models["x"].matrix("") is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "[models.x]\ncpus = [3, 1]\nspeed = [1, 2]",
            ("models.x: cpus", "in ascending order"),
            id="points that do not ascend",
        ),
        pytest.param(
            "[models.x]\ncpus = [1, 3]\nspeed = [1]",
            ("models.x: speed", "one entry for each of cpus, that is 2"),
            id="too few speeds",
        ),
        pytest.param(
            "[models.x]\ncpus = [1]\nmemory = [1, 2]\nspeed = [[1]]",
            ("models.x: speed", "one number for each of memory, that is 2"),
            id="too few columns",
        ),
        pytest.param(
            "[models.x]\ncpus = [1]\nspeed = [-1]", ("models.x: speed", "above 0, not -1"), id="a negative speed"
        ),
        pytest.param(
            "[models.x]\ncpus = [1]\nspeed = ['1']", ("models.x: speed", "above 0, not '1'"), id="a speed in quotes"
        ),
        pytest.param(
            "[models.x]\ncpus = 3\nspeed = [1]", ("models.x: cpus", "a list of numbers"), id="one number for a list"
        ),
        pytest.param(
            "[models.x]\ntask = 'unheard'", ("models.x: task", "name of a task"), id="a task that is not in the file"
        ),
        pytest.param("[models.x]\ncpu = [1]", ("models.x: cpu", "one of"), id="an unknown field"),
        pytest.param(
            "[models.x.gpu.v100]\ntask = 'a'", ("gpu.v100: task", "one of"), id="an unknown field of a GPU type"
        ),
        pytest.param("[models]\nx = 3", ("models.x", "a table"), id="a number for a model"),
        pytest.param("[model.x]\n", ("model", "one of models, reference, source, tasks"), id="an unknown table"),
        pytest.param("models = [", ("ours.toml", ""), id="no TOML at all"),
    ],
)
def test_a_mistake_names_file_entry_field_and_what_was_expected(
    tmp_path: Path, text: str, said: tuple[str, str]
) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profiles(file)
    assert str(file) in str(caught.value)
    assert all(part in str(caught.value) for part in said)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"cannot read the profiles .*gone\.toml"):
        load_profiles(tmp_path / "gone.toml")


def test_the_shipped_curves_are_rules_of_thumb_that_never_claim_that_little_memory_is_enough() -> None:
    known = shipped_profiles()
    assert {"image", "speech", "language"} <= set(known.tasks)
    assert {"resnet18", "resnet50", "alexnet", "mobilenet", "gnmt", "bert", "deepspeech", "m5"} <= set(known.models)
    for one in (*known.tasks.values(), *known.models.values()):
        matrix = one.matrix("any")
        assert matrix is not None
        assert not matrix.knows_memory
        assert one.source == "rule of thumb"


def test_shipped_image_jobs_want_many_cpus_and_language_jobs_one() -> None:
    known = shipped_profiles()
    image, language = known.tasks["image"].matrix(""), known.tasks["language"].matrix("")
    assert image is not None
    assert language is not None
    assert 9 <= image.best_case_demand(24, 0)[0] <= 12
    assert image.speed_at(12, 0) == pytest.approx(2 * image.speed_at(3, 0))
    assert language.best_case_demand(24, 0)[0] == 1


@pytest.mark.skipif("SLURMSCHED_DATA" not in os.environ, reason="SLURMSCHED_DATA names no folder of public data sets")
def test_the_profiles_of_synergys_authors_are_read_as_they_are() -> None:
    known = load_synergy_profiles(Path(os.environ["SLURMSCHED_DATA"]) / "synergy" / "profiles.json")
    assert len(known.models) == 10
    alexnet = known.models["alexnet"].matrix("v100")
    assert alexnet is not None
    assert alexnet.speed_at(3, 62.5 * 1024) == 1.0
    assert alexnet.best_case_demand(24, 500 * 1024) == (12, 125 * 1024)
    assert known.models["resnet18"].task == "image"
    assert known.models["gnmt"].source == "imported: profiles.json"


def test_what_is_no_synergy_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    file.write_text("{}")
    with pytest.raises(ProfileError, match=r"expected Synergy's profiles\.json"):
        load_synergy_profiles(file)
