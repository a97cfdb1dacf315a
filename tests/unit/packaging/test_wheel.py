"""The wheel has everything that a checkout has, and works far away from one."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
BESIDE = ("hooks", "sql", "templates")

TRIAL = """
import sys
from pathlib import Path

import click
from click.testing import CliRunner

import slurmsched
from slurmsched.cli import main
from slurmsched.cli.config import PAGES
from slurmsched.installation import template_values
from slurmsched.model import Snapshot
from slurmsched.template_files import render, template_names
from slurmsched.store.database import Database
from slurmsched.store.maintenance import migrate, pending_migrations, shipped_migrations

assert Path(slurmsched.__file__).is_relative_to(sys.prefix), slurmsched.__file__


def helped(command, words):
    said = CliRunner().invoke(main, [*words, "--help"])
    assert said.exit_code == 0 and said.output.startswith("Usage: "), (words, said.output, said.exception)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            helped(command.get_command(context, name), [*words, name])
    print("helped:", *words)


helped(main, [])

database = Database.open(Path("new.db"))
assert migrate(database, at=0.0) == shipped_migrations()
assert not pending_migrations(database)

values = template_values(snapshot=Snapshot(time=0.0, nodes=(), jobs=()))
for template in template_names():
    groups = PAGES.get(template.removesuffix(".j2"), dict)()
    assert render(template, groups=groups, **values).endswith("\\n"), template
    print("rendered:", template)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves things behind, and finds what an earlier one left."""
    source = tmp_path_factory.mktemp("source") / "slurmsched"
    shutil.copytree(
        CHECKOUT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
    )
    target = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; what it depends on is borrowed from this one."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    argv = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    (Path(packages.stdout.strip()) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def test_setup_cfg_names_every_package() -> None:
    settings = configparser.ConfigParser()
    settings.read(CHECKOUT / "setup.cfg")
    named = settings["options"]["packages"].split()
    folders = {file.parent.relative_to(CHECKOUT) for file in (CHECKOUT / "slurmsched").rglob("*.py")}
    there = {".".join(folder.parts) for folder in folders} | {f"slurmsched.{folder}" for folder in BESIDE}
    assert sorted(there) == named


def test_the_wheel_has_every_shipped_file(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    shipped = {
        f"slurmsched/{folder}/{file.name}"
        for folder in BESIDE
        for file in (CHECKOUT / folder).iterdir()
        if file.is_file()
    }
    data = {str(file.relative_to(CHECKOUT)) for file in (CHECKOUT / "slurmsched").rglob("*.toml")}
    assert shipped | data | {"slurmsched/py.typed"} <= inside
    assert not [name for name in inside if name.startswith(("tests/", "docs/"))]


def test_an_installed_wheel_works_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    python = str(installed / "bin" / "python")
    run = subprocess.run(
        [python, "-c", TRIAL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_command_is_installed(installed: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [installed / "bin" / "synsched", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Usage: synsched")
