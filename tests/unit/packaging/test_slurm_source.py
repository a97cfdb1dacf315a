"""What the mini cluster makes of a tarball of Slurm's source before it builds anything."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
META = "  Major:\t\t25\n  Minor:\t\t11\n  Version:\t{}\n  Release:\t1\n"


def tarball(folder: Path, name: str, text: str) -> Path:
    """A tarball of one file."""
    path = folder / "slurm.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def said(function: str, argument: str) -> str:
    """What a function of `minicluster.sources` returns, or the sentence of its error."""
    program = (
        "import sys\nfrom minicluster import sources\nfrom minicluster.commands import ClusterError\n"
        "from pathlib import Path\n"
        f"try:\n    print(sources.{function})\nexcept ClusterError as error:\n    print(error)\n"
    )
    argv = [sys.executable, "-c", program, argument]
    run = subprocess.run(
        argv, cwd=CHECKOUT / "docker-slurm", env={}, capture_output=True, text=True, timeout=60, check=True
    )
    return run.stdout.strip()


@pytest.mark.parametrize(("version", "series"), [("25.11.7", "25.11"), ("26.05.0-0rc1", "26.05")])
def test_the_series_says_which_pyslurm_belongs_to_it(tmp_path: Path, version: str, series: str) -> None:
    path = tarball(tmp_path, f"slurm-{version}/META", META.format(version))
    assert said("series_of(Path(sys.argv[1]))", str(path)) == series


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("slurm-25.11.7/README", META.format("25.11.7"), id="no META"),
        pytest.param("slurm-25.11.7/META", "Name: slurm\n", id="a META without a version"),
        pytest.param("slurm-25.11.7/doc/META", META.format("25.11.7"), id="a META further down"),
    ],
)
def test_what_is_not_slurms_source_is_told_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    path = tarball(tmp_path, name, text)
    assert said("series_of(Path(sys.argv[1]))", str(path)) == (
        f"{path} is not Slurm's source: it has no META with a Version"
    )


def test_what_is_no_tarball_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "slurm.tar.xz"
    path.write_text("404 not found", encoding="utf-8")
    assert said("series_of(Path(sys.argv[1]))", str(path)).startswith(f"{path} cannot be read as a tarball: ")


@pytest.mark.parametrize("given", ["", "/nowhere/slurm.tar.xz"])
def test_without_a_tarball_one_line_says_how_to_name_one(given: str) -> None:
    assert said("find_tarball(sys.argv[1])", given) == (
        "release source is built from Slurm's tarball: give --source-tarball FILE, or set SLURMSCHED_SLURM_SOURCE"
    )
