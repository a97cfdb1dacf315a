"""`systemctl` for containers in which no systemd runs: docker-systemctl-replacement.

It starts what the unit says as the user that the unit names and waits for its sign of life; it protects nothing. That
systemd understands the unit is tested in tests/unit/packaging/test_unit.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "docker-systemctl-replacement"


def systemctl_program(folder: Path) -> str:
    """The text of the program: one file of Python that needs nothing but its standard library. Skips where no package
    index has it."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PACKAGE]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or ["pip failed"])[-1]
        pytest.skip(f"NOT TESTED: a daemon under its unit: {PACKAGE} is not to be had here ({reason})")
    return (folder / "systemctl2/systemctl3.py").read_text(encoding="utf-8")
