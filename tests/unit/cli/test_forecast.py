"""`synsched forecast` of recordings, and of the last round in the database."""

from __future__ import annotations

import json
import re
import sys
import time
from math import log
from pathlib import Path

import pytest

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.recorded import pack_recording, write_recording
from slurmsched.backends.simulated import JobSubmitHook, SimulatedBackend, Submission, VirtualClock, VirtualCluster
from slurmsched.daemon.clock import RealClock
from slurmsched.daemon.process import ForecastProcess
from slurmsched.model import (
    ExpectedLength,
    ExpectedTime,
    Hold,
    QueueForecast,
    Request,
    SchedulerState,
    StartForecast,
    decode,
)
from slurmsched.settings.definition import ManageSettings
from slurmsched.store.jobs import update_jobs
from slurmsched.store.journal import Journal
from slurmsched.store.start_forecasts import ForecastStore
from tests.builders import job, node, share, snapshot
from tests.unit.cli.conftest import NOON, Site

RUNS = job(1, 8, on=[share("n1", 8)], run_time=600.0, start_time=NOON - 600.0, user="bob", time_limit=36_000)
WAITS = [job(number, 8, submit_time=NOON - 60.0, priority=100 - number) for number in (2, 3)]
HELD = job("4_1", 1, hold=Hold.USER, array_job="4", user="carol")
SEEN = snapshot([node("n1")], [RUNS, *WAITS, HELD], time=NOON)


def certain(seconds: float) -> ExpectedLength:
    return ExpectedLength(seconds, seconds, seconds, seconds, seconds, "name", 5, 60.0)


KNOWN = SchedulerState(lengths={"1": certain(5400.0), "2": certain(60_000.0), "3": certain(1e6)})
SPREAD = ExpectedLength(5400.0, 5400.0, 1800.0, 16_200.0, 20_000.0, "name", 5, 60.0)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    file = tmp_path / "now.round"
    write_recording(file, SEEN, KNOWN)
    return file


def test_it_lists_who_waits_with_start_and_end(site: Site, recorded: Path) -> None:
    assert site.lines("forecast", "--from", str(recorded), "--draws", "2") == [
        "as of 0 s ago, by 2 draws of how long jobs run, 7 d ahead; 8 of 10 in the range",
        "",
        "JOB USER  GPUS STARTS IN RANGE  ENDS IN RANGE",
        "2   alice    8    90 min 90 min  18.2 h 18.2 h",
        "3   alice    8    18.2 h 18.2 h  12.3 d 12.3 d",
        "",
        "JOB USER  NOT TOLD, SINCE",
        "4_1 carol it is held",
        "",
        "jobs that are submitted later may come first",
    ]


def test_ranges_and_long_names_fit_eighty_columns(site: Site, tmp_path: Path) -> None:
    waits = [
        job(f"12345678_{n}", 8, submit_time=NOON, array_job="12345678", user="somebody_with_a_name") for n in (1, 2)
    ]
    lengths = {"1": SPREAD, **{one.id: SPREAD for one in waits}}
    write_recording(
        tmp_path / "long.round", snapshot([node("n1")], [RUNS, *waits], NOON), SchedulerState(lengths=lengths)
    )
    lines = site.lines("forecast", "--from", str(tmp_path / "long.round"), "--draws", "30")
    assert max(map(len, lines)) <= 80
    assert lines[3].split()[0] == "12345678_1"
    assert " - " in lines[3]


def test_json_has_stable_keys_and_unix_seconds(site: Site, recorded: Path) -> None:
    told = site.json("forecast", "--from", str(recorded), "--draws", "1", "2,4_1")
    assert list(told) == ["schema", "at", "until", "draws", "jobs", "left_out", "remarks"]
    assert told["jobs"] == [
        {
            "job": "2",
            "start": {"low": NOON + 5405, "median": NOON + 5405, "high": NOON + 5405},
            "end": {"low": NOON + 65_405, "median": NOON + 65_405, "high": NOON + 65_405},
            "draws": 1,
            "not_started": 0,
        }
    ]
    assert told["left_out"] == {"4_1": "it is held"}


def test_an_array_stands_for_its_tasks(site: Site, recorded: Path) -> None:
    assert site.json("forecast", "--from", str(recorded), "--draws", "1", "4")["left_out"] == {"4_1": "it is held"}


def test_a_job_that_does_not_wait_is_an_error_of_one_line(site: Site, recorded: Path) -> None:
    result = site.run("forecast", "--from", str(recorded), "1")
    assert (result.exit_code, result.stderr) == (1, "synsched: job 1 did not wait in that round\n")


def test_the_same_recording_tells_the_same(site: Site, tmp_path: Path) -> None:
    write_recording(tmp_path / "a.round", SEEN, SchedulerState(lengths={"1": SPREAD, "2": SPREAD, "3": SPREAD}))
    told = [site.json("forecast", "--from", str(tmp_path / "a.round"), "--draws", "20") for _ in range(2)]
    assert told[0] == told[1]


def test_the_last_round_is_forecast_and_nothing_is_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.configure('[rounds]\nmode = "enforce"\n[manage]\npartitions = ["gpu"]\n')
    hook = JobSubmitHook(ManageSettings(partitions=("gpu",)), is_heartbeat_fresh=lambda _now: True)
    cluster = VirtualCluster([node("n1")], start=NOON, hook=hook, name="demo")
    for _ in range(2):
        cluster.submit(Submission("alice", Request(gpus=8, gpus_per_node=8, cpus=8, memory=8), 3600.0, time_limit=7200))
    backend = SimulatedBackend(cluster, VirtualClock(NOON), Identity("slurm", Privilege.SLURM_USER))
    monkeypatch.setattr("slurmsched.cli.cluster.connect", lambda _settings: backend)
    site.clock = backend.clock
    assert site.run("run", "--once").exit_code == 0
    backend.clock.advance(300.0)
    assert site.run("run", "--once").exit_code == 0
    before, writes = site.database.read_bytes(), backend.calls.writes
    told = site.json("forecast", "--draws", "5")
    (waits,) = json.loads(json.dumps(told["jobs"]))
    assert waits["job"] == "2"
    assert NOON < waits["start"]["median"] <= NOON + 7220
    assert (site.database.read_bytes(), backend.calls.writes) == (before, writes)


def test_slurm_alone_is_what_it_is_compared_with(site: Site, tmp_path: Path) -> None:
    """Held by the hook: plain Slurm would have started it."""
    held = job(2, 4, hold=Hold.USER, hint="held=hook", submit_time=NOON, time_limit=600)
    write_recording(tmp_path / "h.round", snapshot([node("n1", cpus=24)], [held], NOON), SchedulerState())
    told = site.json("forecast", "--from", str(tmp_path / "h.round"), "--draws", "1", "--system", "slurm")
    (waits,) = json.loads(json.dumps(told["jobs"]))
    assert waits["start"]["median"] == NOON


def test_where_no_round_is_kept_it_says_so(site: Site) -> None:
    site.round(SEEN)
    result = site.run("forecast")
    assert result.exit_code == 1
    assert result.stderr == "synsched: no round is kept: set storage.keep_snapshots, or name a recording by --from\n"


def told(
    site: Site,
    *jobs: str,
    at: float = NOON - 240,
    start: tuple[float, ...] = (5400, 2700, 10_800),
    draws: int = 100,
    **why: str,
) -> None:
    """What the daemon forecast of these jobs, in seconds after NOON: median, low and high."""
    median, low, high = (NOON + seconds for seconds in start)
    times = ExpectedTime(low, median, high), ExpectedTime(low + 7200, median + 7200, None)
    forecasts = tuple(StartForecast(job, *times, draws, 0) for job in jobs)
    database = site.opened()
    ForecastStore(database).record(QueueForecast(at, NOON + 7 * 86400, draws, forecasts, why), at + 20)
    database.close()


LATEST = "what is promised, or 'at the latest', goes by time limits"


@pytest.fixture
def waiting(site: Site) -> Site:
    site.round(SEEN, order=["1", "2", "3"])
    database = site.opened()
    database.write("UPDATE jobs SET sentence = 'waits behind 1 job in las order on the same nodes'")
    database.close()
    site.beat()
    return site


def test_explain_tells_when_a_job_starts_and_ends(waiting: Site) -> None:
    told(waiting, "2")
    lines = waiting.lines("explain", "2", columns=300)
    assert lines[2:4] == [
        "starts   in 90 min (45 min - 3.0 h), forecast 4 min ago by 100 draws of how long jobs run; " + LATEST,
        "ends     in 3.5 h (2.8 h - later)",
    ]
    assert max(map(len, waiting.lines("explain", "2"))) <= 80
    (explained,) = json.loads(json.dumps(waiting.json("explain", "2")["jobs"]))
    assert explained["forecast"]["start"] == {"low": NOON + 2700, "median": NOON + 5400, "high": NOON + 10_800}
    assert explained["forecast"]["at"] == NOON - 240


def test_of_few_draws_no_range_is_told(waiting: Site) -> None:
    told(waiting, "2", draws=8)
    lines = waiting.lines("explain", "2", columns=300)
    assert lines[2:4] == [
        f"starts   in 90 min, forecast 4 min ago by 8 draws, too few for a range; {LATEST}",
        "ends     in 3.5 h",
    ]


def test_explain_says_why_nothing_is_told(waiting: Site) -> None:
    told(waiting, **{"4_1": "it is held"})
    assert "starts   not told, since it is held (as of 4 min ago)" in waiting.lines("explain", "4_1")


def test_a_job_that_runs_by_now_is_not_expected_to_start(waiting: Site) -> None:
    told(waiting, "2")
    database = waiting.opened()
    database.write("UPDATE jobs SET state = 'running' WHERE id = '2'")
    database.close()
    assert not any(line.startswith("starts") for line in waiting.lines("explain", "2"))
    assert waiting.json("status")["jobs"][1]["start"] is None  # type: ignore[index]  # JSON has no types


def test_status_has_the_start_of_who_waits_in_eighty_columns(waiting: Site) -> None:
    told(waiting, "2")
    lines = waiting.lines("status")
    first = lines.index(next(line for line in lines if line.startswith("JOBID")))
    assert lines[first : first + 4] == [
        "JOBID USER  NAME   GPUS ST   TIME LIMIT  START WHERE WHY",
        "1     bob   -    8 v100 R  10 min  10 h      - n1    waits behind 1 job in las …",
        "2     alice -         8 PD      -     - 90 min -     waits behind 1 job in las …",
        "3     alice -         8 PD      -     -      - -     waits behind 1 job in las …",
    ]
    assert max(map(len, lines)) <= 80
    assert not any("forecast" in line for line in lines)
    assert not any("START" in line or "90 min" in line for line in waiting.lines("status", "--noheader")), "for scripts"


def test_an_old_forecast_is_told_with_its_age(waiting: Site) -> None:
    told(waiting, "2", at=NOON - 7200)
    assert "starts were forecast 2 h ago, and not since then" in waiting.lines("status")
    assert waiting.json("status")["forecast_late"] is True
    assert any("forecast 2 h ago" in line for line in waiting.lines("explain", "2", columns=300))


def test_how_starts_turned_out_is_shown(waiting: Site) -> None:
    assert waiting.lines("forecast", "--calibration") == ["no job has started of which that had been forecast"]
    told(waiting, "2", "3", at=NOON - 9000, start=(-3600, -4000, -3000))
    ran = job(2, 8, user="alice", submit_time=NOON - 9060, on=[share("n1", 8)], start_time=NOON - 3540, run_time=60.0)
    database = waiting.opened()
    update_jobs(database, snapshot([node("n1")], [ran, WAITS[1]], NOON - 3480), ["2", "3"])
    assert ForecastStore(database).compare(snapshot([node("n1")], [ran, WAITS[1]], NOON - 3480)) == 1
    database.close()
    assert waiting.lines("forecast", "--calibration") == [
        "TOLD  STARTS IN RANGE MEDIAN ERROR",
        "first      1    100 %        1 min",
        "",
        "of 1 first forecast with a known outcome 100 % were in range",
        "by them ranges reach 1.00 times as far before the median",
        "and 1.00 times as far after it as the draws do",
    ]
    assert waiting.json("forecast", "--calibration")["calibration"] == [
        {"which": "first", "starts": 1, "within": 1.0, "error": 60.0}
    ]
    assert waiting.json("forecast", "--calibration")["ranges"] == {
        "below": pytest.approx(0.995, abs=1e-4),
        "above": pytest.approx(0.995, abs=1e-4),
        "counted": 1,
        "covered": 1,
        "at": pytest.approx(waiting.now, abs=7200.0),
    }


def test_the_daemon_gets_what_it_reads(site: Site, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped_back: list[bool] = []
    monkeypatch.setattr("slurmsched.cli.plan.step_back", lambda: stepped_back.append(True))
    result = site.run("forecast", "--from", str(recorded), "--background", "--mode", "observe", "--budget", "5")
    answer = decode(QueueForecast, result.stdout)
    assert [one.job for one in answer.jobs] == ["2", "3"]
    assert dict(answer.left_out) == {"4_1": "it is held"}
    assert stepped_back == [True]


def test_what_owners_wrote_is_not_in_the_answer(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmsched.cli.plan.step_back", lambda: None)
    hostile = job(2, 8, submit_time=NOON, name='"}]\n\x1b[2J', comment="synsched:model=x \x00 secret", user="bob")
    write_recording(tmp_path / "x.round", snapshot([node("n1")], [RUNS, hostile], NOON), KNOWN)
    result = site.run("forecast", "--from", str(tmp_path / "x.round"), "--background")
    assert decode(QueueForecast, result.stdout).jobs[0].job == "2"
    assert not {"secret", "bob", "2J"} & set(re.findall(r"\w+", result.stdout))


def test_a_process_of_its_own_answers_the_daemon(site: Site) -> None:
    """The command that `synsched run` gives it, over a database that it only reads."""
    database = site.opened()
    number = Journal(database).begin_round(NOON, "observe", "slurm", "")
    database.write("UPDATE rounds SET snapshot = ? WHERE id = ?", (pack_recording(SEEN, KNOWN), number))
    database.close()
    before, said = site.database.read_bytes(), list[str]()
    command = (sys.executable, "-P", "-m", "slurmsched", "--config", str(site.config), "forecast", "--background")
    child = ForecastProcess(command, RealClock(), said.append)
    child.start("observe", 2.0)
    answer = None
    for _ in range(600):
        answer = answer or child.collect()
        if answer is not None or said:
            break
        time.sleep(0.1)
    child.stop()
    assert said == []
    assert answer is not None
    assert [one.job for one in answer.jobs] == ["2", "3"]
    assert site.database.read_bytes() == before


def test_the_last_round_is_told_with_corrected_ranges_and_a_recording_as_it_was_drawn(
    site: Site, tmp_path: Path
) -> None:
    state = SchedulerState(lengths={"1": SPREAD, "2": SPREAD, "3": SPREAD})
    write_recording(tmp_path / "now.round", SEEN, state)
    database = site.opened()
    number = Journal(database).begin_round(NOON, "observe", "slurm", "")
    database.write("UPDATE rounds SET snapshot = ? WHERE id = ?", (pack_recording(SEEN, state), number))
    recorded = ("forecast", "--from", str(tmp_path / "now.round"), "--draws", "19")

    def ahead(*command: str) -> list[float]:
        (first, *_) = json.loads(json.dumps(site.json(*command)["jobs"]))
        return [log(first["start"][side] - NOON + 300.0) for side in ("low", "median", "high")]

    drawn = ahead("forecast", "--draws", "19")
    raw = ahead(*recorded)
    database.write("INSERT INTO start_ranges VALUES (1, 0.5, 2.0, 100, 80, 0)")
    low, median, high = ahead("forecast", "--draws", "19")
    database.close()
    assert median - low == pytest.approx(0.5 * (drawn[1] - drawn[0]))
    assert high - median == pytest.approx(2.0 * (drawn[2] - drawn[1]))
    assert ahead(*recorded) == raw
