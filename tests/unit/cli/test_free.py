"""`synsched free` over a database."""

from __future__ import annotations

from slurmsched.model import JobState
from tests.builders import job, node, share, snapshot
from tests.unit.cli.conftest import NOON, Site

HALF = snapshot(
    [node("v100-1"), node("v100-2"), node("k80-1", 4, "k80")],
    [job(1, gpus=4, on=[share("v100-1", 4, cpus=24, memory=4)]), job(2, gpus=8, state=JobState.PENDING)],
    time=NOON - 60,
)


def test_free_fits_eighty_columns(site: Site) -> None:
    site.round(HALF)
    assert site.lines("free") == [
        "TYPE  IDLE STRANDED LARGEST JOB THAT COULD START NOW",
        "k80    4/4        0 4 GPUs on one node",
        "v100 12/16        4 8 GPUs on one node",
        "",
        "NODE   TYPE IDLE USABLE CPUS  MEM WHY",
        "k80-1  k80     4      4   24 500G",
        "v100-1 v100    4      0    0 500G 4 idle GPUs stranded: 0 CPUs left, 1 needed f…",
        "v100-2 v100    8      8   24 500G",
        "",
        "as of 1 min ago",
        "1 managed job waiting already: it comes first",
    ]


def test_only_one_type(site: Site) -> None:
    site.round(HALF)
    assert [line.split()[0] for line in site.lines("free", "--gpu", "k80") if line] == [
        "TYPE",
        "k80",
        "NODE",
        "k80-1",
        "as",
        "1",
    ]


def test_a_type_that_is_not_there_is_wrong_usage(site: Site) -> None:
    site.round(HALF)
    result = site.run("free", "--gpu", "h100")
    assert result.exit_code == 2
    assert "no GPU of type 'h100' here; types: k80, v100" in result.stderr


def test_a_partition_that_is_not_there_is_wrong_usage(site: Site) -> None:
    site.round(HALF)
    result = site.run("free", "-p", "nosuch")
    assert result.exit_code == 2
    assert "no partition 'nosuch' here; partitions: gpu" in result.stderr


def test_what_each_gpu_needs_narrows_it_down(site: Site) -> None:
    site.round(HALF)
    told = site.json("free", "--cpus-per-gpu", "6", "--mem-per-gpu", "100G")
    assert told["types"] == [
        {"gpu_type": "k80", "gpus": 4, "idle": 4, "stranded": 0, "on_one_node": 4, "over_nodes": 4, "nodes": 1},
        {"gpu_type": "v100", "gpus": 16, "idle": 12, "stranded": 8, "on_one_node": 4, "over_nodes": 4, "nodes": 1},
    ]


def test_json_has_stable_keys(site: Site) -> None:
    site.round(HALF)
    told = site.json("free")
    assert list(told) == ["schema", "at", "types", "nodes", "waiting", "fragments"]
    nodes = told["nodes"]
    assert isinstance(nodes, list)
    assert list(nodes[0]) == ["node", "gpu_type", "idle", "usable", "at_share", "cpus", "memory", "why"]
