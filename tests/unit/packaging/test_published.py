"""What is published of a commit: the same bytes each time, digests, a bill of materials, locked requirements."""

from __future__ import annotations

import configparser
import hashlib
import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[3]
LOCK = CHECKOUT / "requirements.lock"


def locked() -> dict[str, list[Requirement]]:
    """The lock file: every version of each package, with the Pythons that it is for."""
    found: dict[str, list[Requirement]] = {}
    for line in re.findall(r"(?m)^[a-z].*?(?= \\$)", LOCK.read_text(encoding="utf-8")):
        requirement = Requirement(line)
        found.setdefault(requirement.name, []).append(requirement)
    return found


def test_two_builds_of_a_commit_are_the_same_byte_for_byte(published: tuple[Path, Path]) -> None:
    first, second = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in published)
    assert sorted(first) == sorted(second)
    assert not [name for name, content in first.items() if content != second[name]]


def test_every_published_file_has_its_digest(published: tuple[Path, Path]) -> None:
    folder = published[0]
    said = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    there = {file for file in folder.iterdir() if file.name != "SHA256SUMS"}
    assert said == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in there}
    assert {"".join(file.suffixes[-2:]) for file in there} >= {".tar.gz", ".cdx.json"}
    assert {file.suffix for file in there} >= {".whl", ".txt"}


def test_the_bill_of_materials_is_valid_and_names_every_locked_version(published: tuple[Path, Path]) -> None:
    text = next(published[0].glob("*.cdx.json")).read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    named = {(component["name"], component["version"]) for component in bill["components"]}
    lock = next(published[0].glob("*-requirements.txt")).read_text(encoding="utf-8")
    assert named == set(re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", lock))
    (digest,) = bill["metadata"]["component"]["hashes"]
    assert digest["content"] == hashlib.sha256(next(published[0].glob("*.whl")).read_bytes()).hexdigest()


def test_the_lock_file_has_every_runtime_dependency_with_a_version_that_fits() -> None:
    settings = configparser.ConfigParser()
    settings.read(CHECKOUT / "setup.cfg")
    pins = locked()
    for line in settings["options"]["install_requires"].split():
        wanted = Requirement(line)
        versions = [str(pin.specifier).removeprefix("==") for pin in pins[wanted.name]]
        assert versions
        assert all(wanted.specifier.contains(version) for version in versions), wanted


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_file_has_one_version_of_each_package_for_each_python(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    for name, pins in locked().items():
        fitting = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
        assert len(fitting) <= 1, name
        assert fitting or all("python" not in str(pin.marker) for pin in pins), name


def test_every_line_of_the_lock_file_has_its_hashes() -> None:
    entries = re.split(r"(?m)^(?=[a-z])", LOCK.read_text(encoding="utf-8"))[1:]
    assert len(entries) > 10
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)


def test_the_wheel_is_installed_from_files_with_hashes_alone(published: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    lock, wheel = next(published[0].glob("*-requirements.txt")), next(published[0].glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    for argv in (
        [*pip, "--only-binary", ":all:", "--require-hashes", "--requirement", str(lock)],
        [*pip, "--no-deps", "--no-index", str(wheel)],
    ):
        run = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    said = subprocess.run([python.with_name("synsched"), "--version"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert wheel.name.split("-")[1] in said.stdout


def test_no_page_installs_the_package_by_a_name_that_anybody_could_register() -> None:
    for page in [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"pip install (?:-\S+ )*slurmsched(?![-\w./])", text), page


def test_every_extra_has_code_behind_it() -> None:
    settings = configparser.ConfigParser()
    settings.read(CHECKOUT / "setup.cfg")
    imported = {"pyslurm": "pyslurm", "strategies": "sklearn", "torch": "torch"}
    assert set(settings["options.extras_require"]) == {*imported, "dev"}
    code = "\n".join(file.read_text(encoding="utf-8") for file in (CHECKOUT / "slurmsched").rglob("*.py"))
    for module in imported.values():
        assert re.search(rf"import(?:_module\(\")? ?{module}|from {module}|\"{module}", code), module
