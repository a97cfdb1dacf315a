"""Real clusters for the stories: one per test module and release, taken down at the end whatever happened."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.slurm.mini import CHECKOUT, Mini

RELEASES = ("trixie", "bookworm", "sid")
OLDEST_AND_LATEST = ("bookworm", "sid")
"""For stories of which the release between the two tells nothing more, as what Slurm gives for a form of request."""
UBUNTU = "noble"
SOURCE = "source"
"""The release that is built from a tarball, with the pyslurm that belongs to it."""
TARBALL = "SLURMSCHED_SLURM_SOURCE"
SETTINGS: dict[str, dict[str, object]] = {
    "manage": {"partitions": ["gpu"]},
    "rounds": {"mode": "enforce", "period": 300, "settle_interval": 0.2, "settle_timeout": 60, "apply_timeout": 240},
    "policy": {"system": "synergy", "order": "las", "las_queues": [40, 4000]},
    "guards": {"min_run_time": 5, "restart_cost": 1, "moves_per_round": 8},
    "checkpoint": {"lead": 3},
    "learning": {"forecast_budget": 0},
}
"""A round as on a site, only faster: seconds where a site has minutes. But for the time of its starts, which four
clusters on two cores would use up. Forecasts are made where a story is about them or about what the daemon costs: by
clusters side by side their low priority is not heeded."""
TIMERS: Final = (
    "--set", "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=1,default_queue_depth=1000",
)  # fmt: skip
"""What Slurm looks at every so often it looks at every second: not on thousands of nodes, where a look takes longer."""
EXPECTED: Final[Mapping[str, int]] = {
    "sizing-trixie": 800, "jobside-bookworm": 600, "learning-trixie": 450, "hostile-trixie": 300,
    "orders-sid": 330, "wide-sid": 290, "kill-trixie": 260, "tickets-trixie": 260, "unified-trixie": 220,
    "limited-rate-trixie": 190, "simulating-trixie": 190, "soak-trixie": 170, "flags-sid": 150,
    "flags-bookworm": 150, "amounts-sid": 150, "amounts-bookworm": 150, "newcomer-bookworm": 130,
    "hostile-bookworm": 120, "hostile-sid": 120, "scale-source": 110, "starts-sid": 110, "pairs-sid": 100,
    "scale-rounds-trixie": 100, "beside-trixie": 90, "forked-trixie": 90, "hostile-source": 90,
    "line-bookworm": 90, "line-sid": 90, "pairs-trixie": 90, "scale-trixie": 80, "shares-sid": 80,
}  # fmt: skip
"""Seconds of the clusters that take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(str(CHECKOUT / "tests/slurm")):
            item.add_marker(pytest.mark.cluster)
            given = getattr(item, "callspec", None)
            if given is not None and given.params.get("mini") == SOURCE:
                item.add_marker(pytest.mark.source)
    items.sort(key=turn)


def turn(item: pytest.Item) -> tuple[bool, int]:
    """The longest first, so that no worker ends alone; last of all what needs the image that takes minutes to build."""
    cluster = cluster_of(item.nodeid)
    return cluster.endswith(SOURCE), -EXPECTED.get(cluster, 0)


def cluster_of(nodeid: str) -> str:
    """The name of the cluster that a story runs on, as its identifier tells it."""
    module = Path(nodeid.partition("::")[0]).stem.removeprefix("test_").replace("_", "-")
    release = re.search(rf"[\[-]({'|'.join((*RELEASES, UBUNTU, SOURCE))})[]-]", nodeid)
    return f"{module}-{release[1] if release else RELEASES[0]}"


class ByCluster(LoadScopeScheduling):
    """Stories of one cluster go to one worker, in order."""

    def _split_scope(self, nodeid: str) -> str:
        return cluster_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByCluster:
    config.option.loadscopereorder = False
    return ByCluster(config, log)


@cache
def compiled(release: str) -> None:
    """The image of this release is there, and the checkout's bytecode for its Python."""
    Mini.compiled(release)


@pytest.fixture(scope="module")
def mini(request: pytest.FixtureRequest) -> Iterator[Mini]:
    """The cluster that the module's `CLUSTER` options describe; parametrised by release where the module asks."""
    if not (os.geteuid() == 0 or shutil.which("docker")):
        pytest.skip("no docker here, and not root to install it: see docker-slurm/README.md")
    release = getattr(request, "param", "trixie")
    if release == SOURCE and not os.environ.get(TARBALL):
        pytest.skip(f"NOT TESTED with pyslurm: {TARBALL} names no tarball of Slurm's source (docker-slurm/README.md)")
    cluster = Mini(cluster_of(f"{request.node.nodeid}::[{release}]"))
    own = getattr(request.module, "CLUSTER", ())
    timers = () if "--virtual" in own else TIMERS
    compiled(release)
    try:
        cluster.cluster("up", "--anew", "--release", release, "--kill-wait", "5", *timers, *own)
        cluster.configure(**SETTINGS)
        yield cluster
    finally:
        cluster.cluster("down")
