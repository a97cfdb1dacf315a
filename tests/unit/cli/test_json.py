"""What `--json` prints and the schemas that are published of it: every command, with real and with awkward values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator, ValidationError

from slurmsched.backends.simulated import SimulatedBackend
from slurmsched.cli import main
from slurmsched.cli.commands import COMMANDS
from slurmsched.cli.json_schema import command_schema, described_json, described_keys, json_commands, key_description
from slurmsched.cli.output import JsonOption, json_option, print_json
from slurmsched.fidelity.validation import Fidelity
from slurmsched.model.reasons import ReasonCode
from slurmsched.template_files import render
from tests.awkward import Awkward
from tests.unit.cli.conftest import Site, json_validator
from tests.unit.cli.test_rounds import slurm

__all__ = ["slurm"]

DATA = os.environ.get("SLURMSCHED_DATA")
ROOT = Path(__file__).parents[3]
CLUSTER = "v100:1x8"
ONE_LOAD = ("--cluster", CLUSTER, "--trace", "synergy:6@6")

RUNS: dict[str, Sequence[tuple[str, ...]]] = {
    "status": [(), ("--user", "alice")],
    "explain": [("3",), ("1,2,3",)],
    "history": [("1",), ("1,3",)],
    "advise": [()],
    "free": [(), ("--cpus-per-gpu", "6")],
    "forecast": [("--draws", "3", "--from", "now.round"), ("--calibration",)],
    "plan": [(), ("--defrag",), ("--from", "now.round")],
    "doctor": [()],
    "run": [("--once",)],
    "release": [()],
    "forget": [("alice",)],
    "config show": [()],
    "config check": [()],
    "demo": [("--jobs", "4", "--cluster", CLUSTER)],
    "replay": [("now.round",)],
    "profile show": [(), ("resnet50",)],
    "profile measured": [()],
    "trace show": [("synergy:20@6",), ("hadar:5", "--cluster", CLUSTER)],
    "simulate": [(*ONE_LOAD, "--policy", "slurm")],
    "compare": [(*ONE_LOAD, "--policies", "slurm,synergy/fifo", "--jobs", "1")],
    "reproduce": [("hadar-example",)],
    "bench round": [()],
    "bench accounting": [("--finished", "50", "--repeat", "1")],
    "bench decide": [("--gpus", "8", "--jobs", "4", "--repeat", "1")],
    "bench tesserae": [("--gpus", "64", "--jobs", "160", "--repeat", "1")],
    "bench hadar": [("--jobs", "16", "--repeat", "1")],
    "bench hostile": [("--records", "20")],
    "bench jobside": [("--reports", "3", "--repeat", "1", "--model", "1M")],
    "bench lengths": [("--finished", "50", "--jobs", "5", "--repeat", "1")],
    "bench store": [("--jobs", "50", "--repeat", "1")],
}
ELSEWHERE = {
    "submit": "tests/unit/cli/test_dry_run.py",
    "profile run": "tests/unit/cli/test_profiling.py",
    "profile check": "here, with a matrix",
    "fidelity": "here, with figures that are made up",
    "bench gavel": "tests/unit/cli/test_benches.py",
    "bench fragmentation": "here, where the data are",
    "bench soak": "tests/unit/cli/test_benches.py",
    "bench sizes": "tests/unit/cli/test_benches.py",
    "tryout": "tests/unit/cli/test_tryout.py",
}
"""Commands that need more than a simulated cluster: they are run with `--json` there, and checked as here."""


@pytest.fixture
def after_a_round(site: Site, slurm: SimulatedBackend, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A simulated cluster of which one round has started two of three jobs; the recording `now.round` is beside it."""
    monkeypatch.chdir(site.folder)
    assert site.run("dump", "now.round").exit_code == 0
    assert site.run("run", "--once").exit_code == 0
    return site


@pytest.mark.parametrize(("path", "given"), [(path, given) for path, every in RUNS.items() for given in every])
def test_what_a_command_prints_is_as_published(after_a_round: Site, path: str, given: tuple[str, ...]) -> None:
    result = after_a_round.run(*path.split(), *given, "--json")
    assert result.stdout.startswith("{"), result.output + str(result.exception)
    assert json.loads(result.stdout)["schema"] == 1
    assert result.exit_code == 0 or path in ("doctor", "config check"), result.output


def test_every_command_with_json_is_run_in_these_tests() -> None:
    assert RUNS.keys() | ELSEWHERE.keys() == json_commands().keys()
    assert not RUNS.keys() & ELSEWHERE.keys()
    for path, file in ELSEWHERE.items():
        if file.startswith("tests/"):
            text = (ROOT / file).read_text(encoding="utf-8")
            assert '"' + '", "'.join(path.split()) + '"' in text, path
            assert "site.json(" in text or '"--json"' in text, path


def test_profiles_are_checked(site: Site) -> None:
    entry = {"cpus": [1, 2, 4], "memory": [1000, 2000, 4000], "speed": [[1, 1, 1], [1.5, 1.6, 1.7], [2, 2, 2]]}
    own = site.folder / "own.json"
    own.write_text(json.dumps({"models": {"mine": entry}}), encoding="utf-8")
    assert site.json("profile", "check", "--profiles", str(own))["models"]


def test_fidelity_tells_its_figures_and_whether_they_are_in_range(
    site: Site, slurm: SimulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Awkward(3).of(Fidelity)
    monkeypatch.setattr(import_module("slurmsched.cli.fidelity"), "measure_fidelity", lambda *_args, **_named: measured)
    result = site.run("fidelity", "--folder", str(site.folder), "--json")
    assert json.loads(result.stdout)["ok"] is measured.ok


@pytest.mark.skipif(DATA is None, reason="SLURMSCHED_DATA names no data sets")
def test_placements_are_measured(site: Site) -> None:
    told = site.json("bench", "fragmentation", "--data", str(DATA), "--nodes", "20")
    assert told["decisions"]


def documents() -> Iterator[Any]:
    for path, names in json_commands().items():
        for name in names:
            module, _, word = name.partition(":")
            word, *properties = word.split("+")
            kind = getattr(import_module(f"slurmsched.{module}"), word)
            yield pytest.param(path, kind, tuple(properties), id=f"{path}: {word}")


def printed(path: str, document: object, properties: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> Any:
    command: click.Command = main
    for word in path.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(main), word)
        assert found is not None
        command = found
    with click.Context(command):
        print_json(document, *properties)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("path", "kind", "properties"), list(documents()))
def test_awkward_values_are_as_published_too(
    path: str, kind: type, properties: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(6):
        json_validator(path).validate(printed(path, Awkward(seed).of(kind), properties, capsys))


@pytest.mark.parametrize("path", sorted(json_commands()))
def test_a_schema_is_strict_and_says_what_each_key_means(path: str) -> None:
    published = command_schema(path, json_commands()[path])
    Draft202012Validator.check_schema(published)
    whole = published.get("oneOf", [published])
    for each in (*whole, *published["$defs"].values()):
        assert each["additionalProperties"] is False
        assert each["required"] == list(each["properties"])
        assert each["description"]
        assert all(len(one["description"]) >= 5 for one in each["properties"].values())


def test_an_unknown_key_and_a_missing_one_are_refused(after_a_round: Site) -> None:
    told = after_a_round.json("status")
    json_validator("status").validate(told)
    (first, *others) = told["jobs"]  # type: ignore[misc, call-overload]  # a list
    for wrong in (
        told | {"unknown": 1},
        told | {"jobs": [first | {"unknown": 1}, *others]},
        told | {"jobs": [{key: value for key, value in first.items() if key != "why"}, *others]},
        told | {"jobs": [first | {"gpus": "4"}, *others]},
        told | {"jobs": [first | {"state": "sleeping"}, *others]},
        told | {"schema": 2},
        {key: value for key, value in told.items() if key != "nodes"},
    ):
        with pytest.raises(ValidationError):
            json_validator("status").validate(wrong)


def commands_below(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands_below(child, f"{path} {name}")


def test_no_command_has_json_without_a_document() -> None:
    for entries in COMMANDS.values():
        for name, entry in entries.items():
            top = getattr(import_module(f"slurmsched.cli.{entry.module}"), name)
            for path, command in commands_below(top, name):
                for option in command.params:
                    if "--json" in option.opts:
                        assert isinstance(option, JsonOption), path
                        assert option.documents, path


def test_a_command_prints_no_document_that_it_does_not_name(capsys: pytest.CaptureFixture[str]) -> None:
    document = Awkward(1).of(Fidelity)

    @click.command()
    @json_option("fidelity.validation:Fidelity")
    def known(*, as_json: bool) -> None:
        print_json(document)

    @click.command()
    @json_option("report.status:ClusterStatus")
    def unknown(*, as_json: bool) -> None:
        print_json(document)

    known.main([], standalone_mode=False)
    with pytest.raises(TypeError, match=r" names no document fidelity\.validation:Fidelity in its json_option"):
        unknown.main([], standalone_mode=False)


def test_nothing_is_described_that_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set[tuple[str, str]]()

    def remember(data_type: type, name: str) -> str:
        text = key_description(data_type, name)
        asked.update((owner.__name__, name) for owner in data_type.__mro__)
        if not any(name in described_keys().get(owner.__name__, {}) for owner in data_type.__mro__):
            asked.add(("any", name))
        return text

    monkeypatch.setattr("slurmsched.cli.json_schema.key_description", remember)
    for path, names in json_commands().items():
        command_schema(path, names)
    written = {(owner, name) for owner, keys in described_keys().items() for name in keys}
    assert sorted(written - asked) == []


def test_the_page_of_keys_is_as_printed() -> None:
    page = render("json.md", groups=described_json())
    assert (ROOT / "docs" / "json.md").read_text(encoding="utf-8") == page, "run 'make docs'"
    headings = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert len(headings) == len(set(headings))
    links = set(re.findall(r"\]\(#(\w+)\)", page))
    assert links <= {heading.lower() for heading in headings}
    assert all(f"| `{code}` |" in page for code in ReasonCode)


def test_schemas_are_listed_and_printed(site: Site) -> None:
    assert site.lines("schema") == list(json_commands())
    told = json.loads(site.run("schema", "trace", "show").stdout)
    assert told == command_schema("trace show", json_commands()["trace show"])
    refused = site.run("schema", "pause")
    assert refused.exit_code == 2
    assert "'synsched pause' prints no JSON: 'synsched schema' lists the commands that do" in refused.stderr


def test_reasons_have_a_code_beside_the_sentence(after_a_round: Site) -> None:
    jobs = {job["id"]: job for job in after_a_round.json("status")["jobs"]}  # type: ignore[attr-defined]
    codes = {code.value for code in ReasonCode}
    assert all(job["reason_code"] in codes and job["why"] for job in jobs.values())
    (told,) = after_a_round.json("explain", "3")["jobs"]  # type: ignore[misc]
    assert told["explanation"]["code"] == jobs["3"]["reason_code"] == "promised_start"
    assert told["explanation"]["headline"].startswith("job 3 ")
