"""What rounds learn of runs that ended, from real accounting; that rounds do without it; and forecasts of starts."""

from __future__ import annotations

import json
import time

import pytest

from slurmsched.store.rows import ForecastRow
from tests.slurm.conftest import RELEASES, SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x8/24c/100g", "--set", "JobAcctGatherType=jobacct_gather/linux")
on_each_release = pytest.mark.parametrize("mini", RELEASES, indirect=True, scope="module")
on_one_release = pytest.mark.parametrize("mini", RELEASES[:1], indirect=True, scope="module")
"""For stories of minutes, in which Slurm is asked nothing that the others do not ask."""

DATABASE = "/var/lib/synsched/synsched.db"
READ = """
import json, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.row_factory = sqlite3.Row
print(json.dumps([dict(row) for row in database.execute("SELECT * FROM finished_runs ORDER BY job")]))
"""
ASKED = ("--gres=gpu:8", "--time=4", "--chdir=/home/bob", "--output=/dev/null", "--wrap=sleep 5")
BUSY = "#!/bin/sh\ntimeout 3 sh -c 'while :; do :; done'\nsleep 1\n"


def learnt(mini: Mini) -> list[dict[str, object]]:
    return list(json.loads(mini.sure("python3", "-c", READ, DATABASE, user="synsched")))


def submitted(mini: Mini, name: str, *options: str, user: str = "alice") -> str:
    options = ("--parsable", f"--chdir=/home/{user}", f"--job-name={name}", "--output=/dev/null", *options)
    mini.sure("sh", "-c", f"cat > '/home/{user}/{name}.sh'", user=user, stdin=BUSY)
    return mini.sure("sbatch", *options, f"/home/{user}/{name}.sh", user=user).strip().split(";")[0]


def rounds_until_ended(mini: Mini, *jobs: str) -> None:
    """Rounds until these jobs have run, slurmdbd knows of it, and one more round has asked."""
    assert mini.synsched("run", "--once").code == 0
    mini.until("they have ended", lambda: all(mini.state(job) in {"COMPLETED", "CANCELLED"} for job in jobs), 120)
    used = ("sacct", "-n", "-P", "-j", ",".join(f"{job}.batch" for job in jobs), "-o", "End,TotalCPU")

    def known() -> bool:
        rows = mini.sure(*used, user="synsched").splitlines()
        return len(rows) == len(jobs) and not any("Unknown" in row or row.endswith("|00:00:00") for row in rows)

    mini.until("slurmdbd knows what their steps used", known)
    for _ in range(3):
        assert mini.synsched("run", "--once").code == 0


@on_each_release
def test_runs_are_learnt_with_what_they_used_and_forgotten_when_asked(mini: Mini) -> None:
    mini.synsched("run", "--once")
    jobs = [submitted(mini, f"train-{number}", "--gres=gpu:1", "-c", "2") for number in (1, 2)]
    theirs = submitted(mini, "a|b|7|root|COMPLETED", "--gres=gpu:2", user="mallory")
    rounds_until_ended(mini, *jobs, theirs)
    runs = {str(row["job"]): row for row in learnt(mini)}
    assert runs.keys() >= {*jobs, theirs}
    first, second, posing = runs[jobs[0]], runs[jobs[1]], runs[theirs]
    assert first["work"] == second["work"] == "train-#"
    assert first["script"] == second["script"] != "", "two paths with the same text"
    assert first["folder"] == "/home/alice"
    assert (first["owner"], first["end"], first["gpus"], first["gpu_type"]) == ("alice", "completed", 1, "v100")
    assert 0 < float(str(first["cpu_seconds"])) <= float(str(first["seconds"])) * float(str(first["cpus"]))
    assert (posing["owner"], posing["name"], posing["gpus"]) == ("mallory", "a|b|7|root|COMPLETED", 2)
    deleted = mini.synsched("forget", "alice", "--json").json["deleted"]
    assert deleted["finished runs"] == 2
    assert mini.synsched("run", "--once").code == 0
    assert {row["owner"] for row in learnt(mini)} == {"mallory"}, "they are not learnt again"


@on_each_release
def test_rounds_do_without_slurmdbd_and_doctor_says_so(mini: Mini) -> None:
    mini.cluster("stop", "dbd")
    try:
        job = submitted(mini, "later", "--gres=gpu:1")
        assert mini.synsched("run", "--once", user="root").code == 0, "slurmdbd knows the rights of all others"
        mini.until("it runs all the same", lambda: mini.state(job) in {"RUNNING", "COMPLETED"})
        said = mini.synsched("doctor", "--json", user="root").json
        assert "accounting" in {finding["topic"] for finding in said["findings"]}
    finally:
        mini.cluster("start", "dbd")


def three_minutes(mini: Mini) -> str:
    """A job on all GPUs that takes as long as it says, however busy the machine is."""
    name = ("--job-name=three-minutes", "--comment=synsched:duration=3m")
    asked = ("--gres=gpu:8", "--time=4", "--chdir=/home/alice", "--output=/dev/null", "--wrap=exec sleep 180")
    return mini.sure("sbatch", "--parsable", *name, *asked, user="alice").strip().split(";")[0]


def told_start(mini: Mini, job: str, user: str) -> dict[str, float] | None:
    """When the daemon expects the job to start, as its owner is told; None while nothing is told."""
    said = mini.synsched("explain", job, "--json", user=user)
    found = said.json["jobs"][0]["forecast"] if said.code == 0 and said.json["jobs"] else None
    return {**found["start"], "draws": found["draws"]} if found and not found["why"] else None


def assert_within(started: float, told: dict[str, float], late: float) -> None:
    """The start is in the range told, `late` seconds before or after it at most. Of a few draws, as many as a busy
    machine has time for, people are told no range: all of them may say that the first job runs until its limit, or that
    it does not, which is a minute."""
    print(f"started {started - told['median']:+.0f} s from the median, {told['high'] - told['low']:.0f} s of range")
    late += 0.0 if told["draws"] >= ForecastRow.ENOUGH_DRAWS else 60.0
    assert told["low"] - late <= started <= told["high"] + late


def forecasting(mini: Mini) -> list[str]:
    """The processes that forecast."""
    return mini.run("pgrep", "-f", "slurmsched.*forecast --background").out.split()


@on_one_release
def test_a_forecast_is_told_by_explain_survives_a_restart_and_is_kept(mini: Mini) -> None:
    settings = {**SETTINGS, "rounds": {**SETTINGS["rounds"], "period": "15s"}, "learning": {"forecast_budget": "5s"}}
    mini.configure(**settings)
    began = time.time()
    with mini.daemon():
        first = three_minutes(mini)
        mini.until("the first runs", lambda: mini.state(first) == "RUNNING")
        second = mini.train("bob", "--gres=gpu:8", "--time=4", hint="duration=1m")
        mini.until("the second is told when it starts", lambda: told_start(mini, second, "bob") is not None, 120)
        mini.until("another forecast is made", lambda: bool(forecasting(mini)), 60)
        mini.run("kill", "-9", *forecasting(mini))
        killed = "nothing is forecast: it ended with status -9"
        mini.until("that is said", lambda: killed in mini.sure("sh", "-c", "cat /tmp/daemon.log"))
        assert "START" in mini.synsched("status", user="bob").out
    assert forecasting(mini) == []
    with mini.daemon():
        told = told_start(mini, second, "bob")
        assert told is not None, "from before the restart"
        mini.until("the second runs", lambda: mini.state(second) == "RUNNING", 300)
        started = float(mini.sure("date", "-d", mini.jobs()[second]["StartTime"], "+%s"))
        assert_within(started, told, late=15 + mini.two_rounds(began))
        assert told["high"] - told["low"] < 240, "the time limit of the first"
        calibrated = ("forecast", "--calibration", "--json")
        mini.until("the start is compared", lambda: bool(mini.synsched(*calibrated).json["calibration"]), 60)
        (counted,) = mini.synsched(*calibrated).json["calibration"]
        assert (counted["which"], counted["starts"]) == ("first", 1)
    mini.sure("scancel", second)


@on_each_release
def test_a_dry_run_submits_nothing_and_tells_what_slurm_would_refuse(mini: Mini) -> None:
    mini.round()
    before = mini.sure("squeue", "-ah", "-o", "%i %T")
    said = mini.synsched("submit", "--dry-run", "--json", "--duration", "1m", "--", *ASKED, user="bob")
    assert said.code == 0, said.err
    assert said.json["requests"][0]["start"] is not None
    refused = mini.synsched("submit", "--dry-run", "--", "--gres=gpu:9", *ASKED[1:], user="bob")
    assert (refused.code, refused.out) == (1, "")
    assert "Slurm would refuse the job" in refused.err
    assert mini.sure("squeue", "-ah", "-o", "%i %T") == before, "nothing is submitted"


@on_one_release
def test_a_start_that_a_dry_run_names_holds(mini: Mini) -> None:
    mini.clear("alice", "bob")
    settings = {**SETTINGS, "rounds": {**SETTINGS["rounds"], "period": "15s"}, "learning": {"forecast_budget": "5s"}}
    mini.configure(**settings)
    began = time.time()
    with mini.daemon():
        first = three_minutes(mini)
        mini.until("the first runs", lambda: mini.state(first) == "RUNNING")
        said = mini.synsched("submit", "--dry-run", "--json", "--duration", "1m", "--", *ASKED, user="bob")
        assert said.code == 0, said.err
        told = {**said.json["requests"][0]["start"], "draws": said.json["draws"]}
        submission = mini.synsched("submit", "--duration", "1m", "--", "--parsable", *ASKED, user="bob")
        second = submission.out.strip().split(";")[0]
        mini.until("the second has started", lambda: mini.state(second) in {"RUNNING", "COMPLETED"}, 300)
        started = float(mini.sure("date", "-d", mini.jobs()[second]["StartTime"], "+%s"))
        assert_within(started, told, late=15 + mini.two_rounds(began))
