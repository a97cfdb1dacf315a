"""The Debian package as it lies in the folder: what it needs, what is in it, with which modes, and its scripts."""

from __future__ import annotations

import configparser
import gzip
import re
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from slurmsched.cli.reference import manual_pages
from slurmsched.installation import template_values
from slurmsched.settings import LoadedSettings, Settings
from slurmsched.settings.file import load_settings_file
from slurmsched.template_files import render
from tests.unit.packaging.conftest import CHECKOUT

DEBIAN_12 = {
    "python3-cattr": "22.2.0", "python3-click": "8.1.3", "python3-jinja2": "3.1.2", "python3-numpy": "1.24.2",
    "python3-prometheus-client": "0.16.0", "python3-rich": "13.3.1", "python3-scipy": "1.10.1", "sqlite-utils": "3.30",
}  # fmt: skip
"""Versions in Debian 12, the oldest release that the package is for."""


@dataclass(frozen=True)
class Debian:
    """A Debian package: its control fields and files, and what it installs by path."""

    fields: dict[str, str]
    control: dict[str, str]
    files: dict[str, tarfile.TarInfo]
    contents: dict[str, bytes]


@pytest.fixture(scope="module")
def package(published: tuple[Path, Path]) -> Debian:
    command = shutil.which("dpkg-deb")
    if command is None:
        pytest.skip("NOT TESTED: the Debian package: dpkg-deb is missing")
    (file,) = published[0].glob("*.deb")

    def archive(option: str) -> tarfile.TarFile:
        raw = subprocess.run([command, option, str(file)], capture_output=True, check=True).stdout
        return tarfile.open(fileobj=BytesIO(raw))

    def members(tar: tarfile.TarFile) -> dict[str, bytes]:
        found = ((member.name.removeprefix("."), tar.extractfile(member)) for member in tar if member.isfile())
        return {name: content.read() for name, content in found if content is not None}

    with archive("--ctrl-tarfile") as control, archive("--fsys-tarfile") as tree:
        scripts = {name.removeprefix("/"): content.decode() for name, content in members(control).items()}
        files = {member.name.removeprefix("."): member for member in tree}
        contents = members(tree)
    fields = dict(re.findall(r"(?m)^([A-Z][A-Za-z-]+): (.*)$", scripts["control"]))
    return Debian(fields, scripts, files, contents)


def test_it_needs_what_setup_cfg_needs_by_the_names_that_debian_has(package: Debian) -> None:
    settings = configparser.ConfigParser()
    settings.read(CHECKOUT / "setup.cfg")
    wanted = {str(Requirement(line).specifier) for line in settings["options"]["install_requires"].split()}
    needed = dict(re.findall(r"([a-z0-9-]+) \(>= ([0-9.]+)\)", package.fields["Depends"]))
    assert needed.pop("python3") == settings["options"]["python_requires"].removeprefix(">=")
    assert {f">={version}" for version in needed.values()} == wanted
    assert needed.keys() == DEBIAN_12.keys()


def test_debian_12_has_all_of_it(package: Debian) -> None:
    for name, least in re.findall(r"(\S+) \(>= ([0-9.]+)\)", package.fields["Depends"]):
        has = {**DEBIAN_12, "python3": "3.11.2"}[name]
        assert subprocess.run(["dpkg", "--compare-versions", has, "ge", least], check=False).returncode == 0, name


def test_it_has_every_file_of_the_wheel(package: Debian, published: tuple[Path, Path]) -> None:
    (wheel,) = published[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            assert package.contents[f"/usr/lib/python3/dist-packages/{name}"] == files.read(name)


def test_everything_is_roots_and_only_root_may_write_it(package: Debian) -> None:
    executable = {"/usr/bin/synsched", "/etc/synsched/watchdog.py"}
    for name, member in package.files.items():
        assert (member.uid, member.gid) == (0, 0), name
        assert oct(member.mode) == oct(0o755 if member.isdir() or name in executable else 0o644), name
        assert member.isdir() or member.isfile(), name


def test_it_writes_nowhere_else(package: Debian) -> None:
    share = ("doc/slurmsched/", "man/man", "bash-completion/completions/synsched", "zsh/vendor-completions/_synsched")
    places = (
        "/etc/synsched/",
        "/usr/bin/synsched",
        "/usr/lib/python3/dist-packages/slurmsched",
        "/usr/lib/systemd/system/synsched.service",
        "/usr/share/fish/vendor_completions.d/synsched.fish",
        *(f"/usr/share/{name}" for name in share),
    )
    assert [name for name in package.contents if not name.startswith(places)] == []


def test_settings_hook_and_watchdog_are_the_sites_to_change(package: Debian) -> None:
    named = package.control["conffiles"].split()
    assert named == sorted(name for name in package.contents if name.startswith("/etc/"))
    for script in ("job_submit.lua", "watchdog.py"):
        assert package.contents[f"/etc/synsched/{script}"] == (CHECKOUT / "hooks" / script).read_bytes()


def test_the_shipped_settings_manage_nothing_and_are_otherwise_the_defaults(package: Debian, tmp_path: Path) -> None:
    file = tmp_path / "synsched.toml"
    file.write_bytes(package.contents["/etc/synsched/synsched.toml"])
    assert load_settings_file(file).settings == Settings()


def test_the_unit_is_the_one_that_is_rendered_for_the_defaults(package: Debian) -> None:
    values = template_values(LoadedSettings(Settings()), command="/usr/bin/synsched")
    unit = package.contents["/usr/lib/systemd/system/synsched.service"].decode()
    assert unit == render("synsched.service", **values)
    assert "ExecStart=/usr/bin/synsched run\n" in unit


def test_it_has_every_manual_page(package: Debian) -> None:
    shipped = {
        Path(name).name: gzip.decompress(content).decode()
        for name, content in package.contents.items()
        if "/man/" in name
    }
    dates = {re.findall(r'^\.TH \S+ \d "([0-9-]+)"', page)[0] for page in shipped.values()}
    assert len(dates) == 1
    assert shipped == {f"{name}.gz": page for name, page in manual_pages(dates.pop()).items()}


def test_the_command_runs_apart_from_the_users_python(package: Debian) -> None:
    assert package.contents["/usr/bin/synsched"].startswith(b"#!/usr/bin/python3 -I\n")


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_a_script_is_one_that_sh_understands_and_stops_at_an_error(package: Debian, script: str) -> None:
    text = package.control[script]
    assert text.startswith("#!/bin/sh\nset -e\n")
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
