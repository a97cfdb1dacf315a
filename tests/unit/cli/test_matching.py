"""`synsched bench tesserae`."""

from __future__ import annotations

import json

from tests.unit.cli.conftest import Site


def test_bench_tesserae_says_each_stage_and_how_it_grows(site: Site) -> None:
    result = site.run("bench", "tesserae", "--gpus", "64", "--jobs", "160", "--repeat", "2", "--json")
    told = json.loads(result.stdout)
    assert {"median_s", "p95_s", "order_s", "place_s", "pack_s", "rename_s"} <= told.keys()
    assert (told["gpus"], told["nodes"], told["jobs"], told["repeat"]) == (64, 8, 160, 2)
    assert max((one["gpus"], one["jobs"]) for one in told["sizes"]) == (64, 160)
    assert told["pairs"] > 0
    live = told["live"]
    assert (live["gpus"], live["jobs"], live["repeat"]) == (64, 160, 2)
    assert live["policy"].startswith("tesserae")
    assert live["running"] > 8, "a node starts one job on its GPUs' shards a round, and more on whole GPUs"
    assert live["cpu_s"] > 0


def test_bench_tesserae_refuses_gpus_that_make_no_nodes(site: Site) -> None:
    result = site.run("bench", "tesserae", "--gpus", "10", "--jobs", "20")
    assert result.exit_code == 2
    assert "no multiple of 8" in result.stderr
