"""A Lua that plays slurmctld."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.hooks.controller import HARNESS, HOOK, Slurmctld

LUAS = ("lua5.4", "lua5.3", "lua5.1", "lua")


@pytest.fixture(scope="session")
def lua_command() -> str:
    found = next((name for name in LUAS if shutil.which(name)), None)
    if found is None:
        pytest.skip("NO LUA HERE: hooks/job_submit.lua is not tested; 'make setup' as root installs lua5.4")
    return found


@pytest.fixture
def slurmctld(lua_command: str, tmp_path: Path) -> Iterator[Slurmctld]:
    """A controller beside a living scheduler that manages partition `gpu` and whoever opts in."""
    settings, heartbeat = tmp_path / "hook.conf", tmp_path / "heartbeat"
    argv = [lua_command, str(HARNESS), str(HOOK), str(settings)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        controller = Slurmctld(process, settings, heartbeat)
        controller.configure(
            heartbeat=str(heartbeat),
            stale_after="900",
            disable_file=str(tmp_path / "disable"),
            partitions="gpu",
            qos="",
            opt_in="yes",
            never_partitions="debug",
        )
        controller.beat()
        yield controller
        controller.close()
