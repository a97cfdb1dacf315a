"""How much a round may change: observe nothing, prioritize only the order, pause nothing at all."""

from __future__ import annotations

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x8")


def mode(mini: Mini, name: str) -> None:
    mini.configure(**{**SETTINGS, "rounds": {"mode": name}, "policy": {"order": "srtf"}})


@pytest.fixture(scope="module")
def queue(mini: Mini) -> tuple[str, str]:
    """A long job and, behind it, a short one; both wait for eight GPUs that somebody unmanaged has."""
    mode(mini, "observe")
    assert mini.synsched("run", "--once").code == 0
    blocker = mini.train("carol", "-p", "debug", "--gres=gpu:8", "-c", "8")
    mini.until("the GPUs are taken", lambda: mini.state(blocker) == "RUNNING")
    long = mini.train("alice", "--gres=gpu:8", "-c", "8", hint="duration=20h")
    short = mini.train("alice", "--gres=gpu:8", "-c", "8", hint="duration=10m")
    return long, short


def test_observe_decides_and_changes_nothing(mini: Mini, queue: tuple[str, str]) -> None:
    before = {job: (mini.jobs()[job]["Nice"], mini.jobs()[job]["ReqNodeList"]) for job in queue}
    said = mini.synsched("run", "--once", "--json")
    assert said.code == 0, said.err
    assert said.json["tally"]["writes"] == 0
    assert {job: (mini.jobs()[job]["Nice"], mini.jobs()[job]["ReqNodeList"]) for job in queue} == before
    ranks = {job["id"]: job["rank"] for job in mini.synsched("status", "--json").json["jobs"]}
    assert ranks[queue[1]] < ranks[queue[0]]


def test_prioritize_moves_priorities_and_release_moves_them_back(mini: Mini, queue: tuple[str, str]) -> None:
    long, short = queue
    seen = mini.jobs()
    assert int(seen[short]["Priority"]) <= int(seen[long]["Priority"])
    mode(mini, "prioritize")
    assert mini.synsched("run", "--once").code == 0
    seen = mini.jobs()
    assert int(seen[short]["Priority"]) > int(seen[long]["Priority"])
    assert {seen[job]["JobState"] for job in queue} == {"PENDING"}
    assert not {seen[job]["Reason"] for job in queue} & {"JobHeldUser", "JobHeldAdmin"}
    assert mini.synsched("release").code == 0
    assert {mini.jobs()[job]["Nice"] for job in queue} == {"0"}


def test_a_pause_stops_all_changes_and_says_who_paused(mini: Mini, queue: tuple[str, str]) -> None:
    assert mini.synsched("pause", "--reason", "maintenance").code == 0
    said = mini.synsched("run", "--once")
    assert said.code == 3, said.out + said.err
    assert {mini.jobs()[job]["Nice"] for job in queue} == {"0"}
    assert "paused by synsched" in mini.synsched("status").out
    assert mini.synsched("resume").code == 0
    assert mini.synsched("run", "--once").code == 0
    assert {mini.jobs()[job]["Nice"] for job in queue} != {"0"}
