"""What is published of the last commit, built twice; once for all processes that run tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]


def built(folder: Path, umask: int) -> Path:
    """A folder with what is published, and with the Debian package where this machine can build it."""
    before = os.umask(umask)
    try:
        packages = ("packages.py", "--only", "deb") if shutil.which("dpkg-deb") else ("dist.py",)
        argv = [sys.executable, str(CHECKOUT / "release" / packages[0]), *packages[1:], str(folder)]
        run = subprocess.run(argv, capture_output=True, text=True, check=False)
    finally:
        os.umask(before)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The last commit, built twice under different umasks."""
    if not (CHECKOUT / ".git").exists():
        pytest.skip("what is published is made from a commit, and this is no git checkout")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    first, second, done = shared / "published-1", shared / "published-2", shared / "published"
    with (shared / "published.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            built(first, 0o022)
            built(second, 0o077)
            done.touch()
    return first, second
