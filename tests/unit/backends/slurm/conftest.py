"""No test here starts a process: what Slurm says is recorded, or comes from the fake one."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(command: Sequence[str], *_: Any, **__: Any) -> None:
        raise AssertionError(f"a unit test started {command}")

    monkeypatch.setattr(subprocess, "run", started)
    monkeypatch.setattr(subprocess, "Popen", started)
