"""Real clusters for the stories: one per test module and release, taken down at the end whatever happened."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.slurm.mini import CHECKOUT, Mini

RELEASES = ("trixie", "bookworm", "sid")
SOURCE = "source"
"""The release that is built from a tarball, with the pyslurm that belongs to it."""
TARBALL = "SLURMSCHED_SLURM_SOURCE"
SETTINGS: dict[str, dict[str, object]] = {
    "manage": {"partitions": ["gpu"]},
    "rounds": {"mode": "enforce", "period": 300, "settle_interval": 1, "settle_timeout": 60},
    "policy": {"system": "synergy", "order": "las", "las_queues": [40, 4000]},
    "guards": {"min_run_time": 5, "restart_cost": 1, "moves_per_round": 8},
    "checkpoint": {"lead": 3},
}
"""A round as on a site, only faster: seconds where a site has minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(str(CHECKOUT / "tests/slurm")):
            item.add_marker(pytest.mark.cluster)
            given = getattr(item, "callspec", None)
            if given is not None and given.params.get("mini") == SOURCE:
                item.add_marker(pytest.mark.source)


@pytest.fixture(scope="module")
def mini(request: pytest.FixtureRequest) -> Iterator[Mini]:
    """The cluster that the module's `CLUSTER` options describe; parametrised by release where the module asks."""
    if not (os.geteuid() == 0 or shutil.which("docker")):
        pytest.skip("no docker here, and not root to install it: see docker-slurm/README.md")
    release = getattr(request, "param", "trixie")
    if release == SOURCE and not os.environ.get(TARBALL):
        pytest.skip(f"NOT TESTED with pyslurm: {TARBALL} names no tarball of Slurm's source (docker-slurm/README.md)")
    module = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    cluster = Mini(f"{module}-{release}")
    cluster.images(release)
    cluster.cluster("down")
    try:
        cluster.cluster("up", "--release", release, "--kill-wait", "5", *getattr(request.module, "CLUSTER", ()))
        cluster.configure(**SETTINGS)
        yield cluster
    finally:
        cluster.cluster("down")
