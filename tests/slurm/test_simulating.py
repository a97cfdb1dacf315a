"""The simulator beside real daemons: it foretells what Slurm does, and Slurm runs simulations."""

from __future__ import annotations

import json

import pytest

from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x8,k80:1x8")
SITE: dict[str, dict[str, object]] = {"manage": {"partitions": ["gpu"]}, "rounds": {"mode": "enforce"}}


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.configure(**SITE)
    return mini


def test_a_comparison_runs_as_a_job_array_and_is_merged(site: Mini) -> None:
    asked = (
        "compare", "--cluster", "v100:1x8", "--trace", "synergy:20@4", "--policies", "slurm,synergy/srtf",
        "--seeds", "1..2", "--on-slurm", "--partition", "debug", "--folder", "/home/alice/comparison", "--json",
    )  # fmt: skip
    said = site.run("env", "HOME=/home/alice", "synsched", *asked, user="alice", timeout=300)
    assert said.code == 0, said.out + said.err
    compared = json.loads(said.out)
    assert [row["policy"] for row in compared["rows"]] == ["slurm", "synergy/srtf"]
    assert all(row["finished"] == 40 for row in compared["rows"])
    assert compared["lost"] == []
    tasks = site.sure("scontrol", "-o", "show", "job").count("JobName=synsched-compare")
    assert tasks >= 1


def test_what_is_lost_is_named_and_taken_up_again(site: Mini) -> None:
    site.sure("rm", "/home/alice/comparison/cell-2.json", user="alice")
    again = ("compare", "--resume", "/home/alice/comparison", "--partition", "debug", "--json")
    said = site.run("env", "HOME=/home/alice", "synsched", *again, user="alice", timeout=300)
    assert said.code == 0, said.out + said.err
    assert "1 simulation as job" in said.err
    assert len(json.loads(said.out)["cells"]) == 4


def test_the_simulator_foretells_what_slurm_does(site: Mini) -> None:
    """Eight sleepers; `synsched fidelity` asks for 5 %, which a busy machine may miss by a little.

    A launch that takes a second longer, as by chance it does, decides whether the gang is preempted a round sooner.
    """
    said = site.run(
        "env", "HOME=/home/synsched", "synsched", "fidelity", "--jobs", "8", "--json", user="synsched", timeout=900
    )
    found = json.loads(said.out)
    print("\nlive and simulated:", json.dumps(found, indent=1))
    assert found["ended"] == found["jobs"] == 8
    for figure in ("avg_jct", "makespan"):
        low, high = found[f"{figure}_range_s"]
        assert 0.9 * low <= found[f"live_{figure}_s"] <= 1.1 * high
    assert found["makespan_range_s"][1] < 1.3 * found["makespan_range_s"][0], "the range foretells something"
