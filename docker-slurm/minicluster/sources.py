"""The release `source`: Slurm built from a tarball, with pyslurm of the same series from PyPI."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .commands import ClusterError, Commands

SOURCE = "source"
DOCKERFILE = Path(__file__).resolve().parent.parent / "source" / "Dockerfile"
TARBALL_VARIABLE = "SLURMSCHED_SLURM_SOURCE"
_VERSION = re.compile(r"^\s*Version:\s*(\d+\.\d+)\.\S+", re.MULTILINE)


def find_tarball(given: str) -> Path:
    """The tarball given by the option, else by the environment. Raises ClusterError if there is none."""
    path = Path(given or os.environ.get(TARBALL_VARIABLE, "")).absolute()
    if not path.is_file():
        raise ClusterError(
            f"release {SOURCE} is built from Slurm's tarball: give --source-tarball FILE, or set {TARBALL_VARIABLE}"
        )
    return path


def series_of(tarball: Path) -> str:
    """The X.Y series of the Slurm in a tarball, from its META file. Raises ClusterError."""
    try:
        with tarfile.open(tarball) as archive:
            for member in archive:
                if member.name.count("/") == 1 and member.name.endswith("/META"):
                    text = archive.extractfile(member)
                    match = _VERSION.search(text.read().decode(errors="replace")) if text else None
                    if match:
                        return match[1]
    except (OSError, tarfile.TarError) as error:
        raise ClusterError(f"{tarball} cannot be read as a tarball: {error}") from error
    raise ClusterError(f"{tarball} is not Slurm's source: it has no META with a Version")


def source_digest(tarball: Path) -> bytes:
    """A hash of the tarball and of the Dockerfile that builds it."""
    with tarball.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest() + DOCKERFILE.read_bytes()


@contextmanager
def build_context(commands: Commands, image: Path, tarball: Path) -> Iterator[Path]:
    """A docker build context: the files of the other images, the tarball and pyslurm's source. Raises ClusterError."""
    series = series_of(tarball)
    with tempfile.TemporaryDirectory(prefix="slurmsched-source-", dir="/var/tmp") as name:
        folder = Path(name)
        for path in image.iterdir():
            shutil.copy(path, folder)
        shutil.copy(DOCKERFILE, folder)
        shutil.copy(tarball, folder / "slurm.tar")
        _fetch_pyslurm(commands, series, folder)
        yield folder


def _fetch_pyslurm(commands: Commands, series: str, folder: Path) -> None:
    """Downloads pyslurm's source to `folder/pyslurm`, which stays empty if PyPI has none of this series."""
    (folder / "pyslurm").mkdir()
    wanted = f"pyslurm=={series}.*"
    fetched = commands.attempt(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "pyslurm",
        "--dest", str(folder / "pyslurm"), wanted,
    )  # fmt: skip
    if fetched.returncode:
        commands.say(f"PyPI has no {wanted}: this cluster has no pyslurm")
