"""The daemon's own memory: an allocation beyond the limit fails, and only that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slurmsched.installation import ClusterSize, daemon_memory, process_memory
from slurmsched.settings import DaemonSettings, Settings

GREEDY = """
from slurmsched.daemon.process import limit_own_memory
import resource

limit_own_memory(200)
try:
    taken = bytearray(400 * 1024 * 1024)
except MemoryError:
    print("refused")
small = bytearray(50 * 1024 * 1024)
limit_own_memory(800)
taken = bytearray(400 * 1024 * 1024)
print("went on")
"""


def test_an_allocation_beyond_the_limit_fails_and_the_process_goes_on() -> None:
    run = subprocess.run([sys.executable, "-c", GREEDY], capture_output=True, text=True, check=False)
    assert run.stdout.split("\n")[:2] == ["refused", "went on"], run.stderr


def test_what_libraries_have_reserved_already_is_not_counted() -> None:
    script = "import scipy.optimize, numpy\n" + GREEDY
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout.split("\n")[:2] == ["refused", "went on"], run.stderr


@pytest.mark.parametrize(
    ("size", "mebibytes"),
    [
        pytest.param(ClusterSize(nodes=4, jobs=10_000), 1138, id="a small cluster with Slurm's default of jobs"),
        pytest.param(ClusterSize(nodes=1000, jobs=20_000), 2012, id="a large one"),
    ],
)
def test_the_daemon_may_take_more_on_a_larger_cluster(size: ClusterSize, mebibytes: int) -> None:
    assert daemon_memory(Settings(), size) == mebibytes


def test_the_setting_overrides_the_clusters_size() -> None:
    size = ClusterSize(nodes=1000, jobs=20_000)
    assert daemon_memory(Settings(daemon=DaemonSettings(memory_max=4000)), size) == 4000
    assert process_memory(Settings(daemon=DaemonSettings(memory_max=4000)), size) == 3000
