"""How much a round may change: observe nothing, prioritize only the order, pause nothing at all; and what a real
Prometheus is told of the mode, a pause, rounds, jobs and GPUs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini
from tests.slurm.scraping import EVERY, PICTURE, RealPrometheus, as_asked, draw, scraping

CLUSTER = ("--nodes", "v100:1x8")


def mode(mini: Mini, name: str) -> None:
    mini.configure(**{**SETTINGS, "rounds": {"mode": name}, "policy": {"system": "synergy", "order": "srtf"}})


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


PORT = 9797
TEXTFILE = "/var/lib/synsched/synsched.prom"
WATCHED = {
    **SETTINGS,
    "rounds": {**SETTINGS["rounds"], "period": 3, "early_interval": 1},
    "policy": {"system": "gandiva-fair"},
    "tickets": {"quantum": 4, "wide_quantum": 4},
    "guards": {"min_run_time": 1, "restart_cost": 0, "moves_per_round": 8, "moves_per_job_day": 1_000_000},
    "checkpoint": {"lead": 1},
    "metrics": {"listen": f"0.0.0.0:{PORT}", "textfile": TEXTFILE, "users": 5},
}
UNKNOWN = {"Starts within the range that was told"}
"""Panels of what takes a while to be known: their series are there, and may be no numbers yet."""


def test_a_real_prometheus_is_told_what_slurm_says_too_and_every_panel_has_data(mini: Mini, tmp_path: Path) -> None:
    """Two users' jobs in turns, one that is left to Slurm, and a pause. SLURMSCHED_PICTURE=docs/dashboard.png runs it
    for longer and writes the picture of the docs."""
    picture = os.environ.get(PICTURE)
    emptied(mini)
    mini.configure(**WATCHED)
    rules, dashboard = (mini.synsched("render", file).out for file in ("alerts.yml", "grafana.json"))
    (address,) = re.findall(r"\d+\.\d+\.\d+\.\d+", mini.sure("hostname", "-I"))
    began = time.time()
    with scraping(f"{address}:{PORT}", rules, tmp_path) as prometheus, mini.daemon():
        mini.train("carol", "--gres=gpu:1", "--mem=500", "--time=60", "--time-min=20")
        for user in ("alice", "bob"):
            for _ in range(5):
                mini.train(user, "--gres=gpu:2", "-c2", "--mem=500", hint="ckpt=usr1@1")
        time.sleep(75 if picture else 5)
        assert mini.synsched("pause", "--reason", "new drives").code == 0
        time.sleep(12 if picture else 3)
        stopped = {"paused": 1.0, "disabled": 0.0, "other_scheduler": 0.0}
        mini.until("the pause is told", lambda: prometheus.values("synsched_changes_stopped") == stopped)
        agrees_with_slurm(mini, prometheus)
        assert mini.synsched("resume").code == 0
        time.sleep(45 if picture else 3)
        assert prometheus.values("synsched_mode == 1") == {"enforce": 1.0}
        every_panel_has_data(prometheus, json.loads(dashboard), began)
        groups = prometheus.ask("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
        assert {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]} <= {
            "SynschedChangesStopped",  # pending: it fires after a day
            "SynschedAbsent",  # until the first scrape
        }
        file = Path(picture) if picture else tmp_path / "dashboard.png"
        draw(prometheus, json.loads(dashboard), began, file)
        assert file.read_bytes().startswith(b"\x89PNG")
        nothing_against_what_is_told(mini, f"http://{address}:{PORT}/metrics")
    emptied(mini)


def emptied(mini: Mini) -> None:
    for user in ("alice", "bob", "carol"):
        mini.sure("scancel", f"--user={user}")
    mini.until("nothing is left", lambda: not mini.sure("squeue", "-h").strip())


def agrees_with_slurm(mini: Mini, prometheus: RealPrometheus) -> None:
    """While nothing changes, jobs and GPUs are those of squeue and scontrol."""

    last: list[object] = []

    def compared() -> bool:
        lines = mini.sure("squeue", "-h", "-p", "gpu", "-o", "%T %u %r").splitlines()
        states = [line.split(" ", 2) for line in lines]
        slurm = {
            "running": sum(state == "RUNNING" and user != "carol" for state, user, _ in states),
            "pending": sum(state == "PENDING" for state, _, _ in states),
            "held": sum("held" in why.lower() for _, _, why in states),
        }
        gpus = sum(int(count) for count in re.findall(r"gres/gpu=(\d+)", _allocated(mini)))
        told = {**prometheus.values("synsched_jobs"), "held": sum(prometheus.values("synsched_jobs_held").values())}
        busy = sum(prometheus.values('sum(synsched_gpus{state="allocated"})').values())
        last[:] = slurm, gpus, told, busy
        return told == slurm and busy == gpus and slurm["held"] > 0

    try:
        mini.until("Prometheus and Slurm agree", compared, 20)
    finally:
        print(f"\nSlurm: {last[:2]}\nPrometheus: {last[2:]}")
    assert prometheus.values("synsched_jobs_left_to_slurm") == {"--time-min": 1.0}
    assert sum(prometheus.values("synsched_user_share_due_gpu_seconds").values()) > 0
    mini.until(
        "what the pause blocks is counted",
        lambda: prometheus.values('synsched_operations_blocked_total{cause="paused"}')["paused"] > 0,
        20,
    )
    age = prometheus.values("time() - synsched_heartbeat_timestamp_seconds")
    assert 0 <= next(iter(age.values())) <= 15


def _allocated(mini: Mini) -> str:
    return " ".join(re.findall(r"AllocTRES=\S*", mini.sure("scontrol", "-o", "show", "node")))


def every_panel_has_data(
    prometheus: RealPrometheus, dashboard: dict[str, list[dict[str, object]]], since: float
) -> None:
    for panel in dashboard["panels"]:
        targets = panel.get("targets", [])
        assert isinstance(targets, list)
        for target in targets:
            courses = prometheus.course(as_asked(target["expr"]), since)
            assert courses, (panel["title"], target["expr"])
            has_numbers = any(values for _, _, values in courses)
            assert has_numbers or panel["title"] in UNKNOWN, (panel["title"], target["expr"])


def nothing_against_what_is_told(mini: Mini, url: str) -> None:
    """By promtool, node_exporter's form of it in the textfile, and doctor."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own daemon
        scraped = answer.read()
    for text in (scraped, mini.sure("cat", TEXTFILE).encode()):
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    findings = {
        finding["sentence"]: finding["verdict"]
        for finding in mini.synsched("doctor", "--json").json["findings"]
        if finding["topic"] == "metrics"
    }
    assert findings == {
        f"http://0.0.0.0:{PORT}/metrics answers": "fine",
        f"{TEXTFILE}, as of the last round": "fine",
    }
    print(f"\nbytes of a scrape {len(scraped)}, every {EVERY} s")
