"""Commands that look at the cluster or change it, over a simulated one."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.simulated import JobSubmitHook, SimulatedBackend, Submission, VirtualClock, VirtualCluster
from slurmsched.model import AccountedRun, Hold, JobState, Request, RunEnd
from slurmsched.settings.definition import ManageSettings
from slurmsched.store.finished_runs import AccountingCursor
from slurmsched.store.store import Store
from tests.builders import node
from tests.unit.cli.conftest import NOON, Site

ENFORCE = '[rounds]\nmode = "enforce"\n[manage]\npartitions = ["gpu"]\n'


def submission(gpus: int, hint: str = "model=resnet50,ckpt=usr1@10", user: str = "alice") -> Submission:
    request = Request(gpus=gpus, gpus_per_node=gpus, cpus=3 * gpus, memory=1000 * gpus)
    return Submission(user, request, work=7200.0, time_limit=86_400, comment=f"synsched:{hint}")


@pytest.fixture
def slurm(site: Site, monkeypatch: pytest.MonkeyPatch) -> SimulatedBackend:
    """One node with 8 GPUs, two held jobs of 4 and one of 8; the site's settings enforce."""
    site.configure(ENFORCE)
    clock = VirtualClock(NOON)
    hook = JobSubmitHook(ManageSettings(partitions=("gpu",)), is_heartbeat_fresh=lambda _now: True)
    cluster = VirtualCluster([node("v100-1")], start=NOON, hook=hook, name="demo")
    for gpus in (4, 4, 8):
        cluster.submit(submission(gpus))
    backend = SimulatedBackend(cluster, clock)
    monkeypatch.setattr("slurmsched.cli.cluster.connect", lambda _settings: backend)
    site.clock = clock
    return backend


def states(backend: SimulatedBackend) -> dict[str, tuple[JobState, Hold]]:
    return {job.id: (job.state, job.hold) for job in backend.cluster.snapshot().jobs}


def test_a_plan_that_makes_room_is_decided_by_the_policy_in_force(site: Site, slurm: SimulatedBackend) -> None:
    assert site.lines("plan", "--defrag")[0].startswith("unified, ")
    assert site.lines("plan", "--defrag", "--system", "fgd")[0].startswith("fgd, ")
    assert slurm.calls.writes == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--defrag", "--system", "slurm"), "policy.defragment means nothing to policy slurm"),
        (("--order", "srtf", "--system", "hadar"), "policy.order means nothing to policy hadar"),
    ],
)
def test_a_plan_refuses_options_that_its_policy_does_not_read(
    site: Site, slurm: SimulatedBackend, options: tuple[str, ...], words: str
) -> None:
    result = site.run("plan", *options)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_plan_names_no_order_for_a_policy_with_its_own(site: Site, slurm: SimulatedBackend) -> None:
    assert site.lines("plan", "--system", "hadar")[0].startswith("hadar, mode ")
    assert site.lines("plan", "--system", "synergy")[0].startswith("synergy, las order, mode ")
    assert site.lines("plan")[0].startswith("unified, mode ")


def test_plan_shows_what_a_round_would_do_and_changes_nothing(site: Site, slurm: SimulatedBackend) -> None:
    before = states(slurm)
    lines = site.lines("plan", "--commands", columns=200)
    assert lines[0] == "unified, mode enforce: 0 stay, 2 start, 1 wait"
    assert any(line.startswith("1 re") and "job 1 " in line for line in lines)
    assert any(line.strip().startswith("$ simulated") for line in lines)
    assert any(line.strip().startswith("undo: ") for line in lines)
    assert lines[-2] == "WAITING WHY"
    assert lines[-1].startswith("3       ")
    assert (states(slurm), slurm.calls.writes, site.database.exists()) == (before, 0, False)


def test_plan_in_mode_observe_says_that_nothing_is_changed(site: Site, slurm: SimulatedBackend) -> None:
    site.configure('[manage]\npartitions = ["gpu"]\n')
    assert "nothing is changed in mode observe; this is what mode enforce would do" in site.lines("plan")


def test_plan_json_has_stable_keys(site: Site, slurm: SimulatedBackend) -> None:
    told = site.json("plan")
    assert list(told) == [
        "schema",
        "at",
        "mode",
        "system",
        "ordering",
        "operations",
        "starts",
        "keeps",
        "waits",
        "order",
        "unmanaged",
        "dispatched",
    ]
    operations = told["operations"]
    assert isinstance(operations, list)
    keys = ["verb", "subject", "sentence", "reason", "commands", "undo", "gone", "lead", "permitted"]
    assert list(operations[0]) == keys


def test_one_round_starts_jobs_and_says_so(site: Site, slurm: SimulatedBackend) -> None:
    lines = site.lines("run", "--once", columns=200)
    assert lines[0].endswith("0 running, 3 waiting of 3 managed jobs")
    assert lines[1].split() == ["OPERATION", "RESULT", "WHAT"]
    assert states(slurm) == {
        "1": (JobState.RUNNING, Hold.NONE),
        "2": (JobState.RUNNING, Hold.NONE),
        "3": (JobState.PENDING, Hold.USER),
    }
    assert [line.split()[0] for line in site.lines("status", "--noheader")] == ["1", "2", "3"]
    assert site.lines("explain", "3")[0].startswith("job 3 ")


def test_a_round_without_changes_is_quiet(site: Site, slurm: SimulatedBackend) -> None:
    site.run("run", "--once")
    slurm.clock.advance(300)
    assert site.run("run", "--once").output == ""


def with_page(site: Site, page: Path) -> None:
    text = site.config.read_text()
    site.config.write_text(text.replace("[storage]\n", f'[storage]\npage = "{page}"\n'))


def test_a_round_from_cron_writes_the_page_too(site: Site, slurm: SimulatedBackend) -> None:
    page = site.folder / "page.html"
    with_page(site, page)
    assert site.run("run", "--once").exit_code == 0
    assert "2 jobs run and 1 waits" in page.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_one_line_and_the_round_has_been(site: Site, slurm: SimulatedBackend) -> None:
    with_page(site, site.folder / "nowhere" / "page.html")
    result = site.run("run", "--once")
    assert result.exit_code == 0
    assert result.stderr == (
        f"synsched: the page is not written: cannot write {site.folder}/nowhere/page.html: No such file or directory\n"
    )
    assert states(slurm)["1"] == (JobState.RUNNING, Hold.NONE)


def test_a_round_tells_scripts_in_json(site: Site, slurm: SimulatedBackend) -> None:
    told = site.json("run", "--once")
    assert list(told) == ["schema", "round", "tally", "outcomes"]


def test_the_mode_of_the_command_line_counts(site: Site, slurm: SimulatedBackend) -> None:
    assert site.run("run", "--once", "--mode", "observe").exit_code == 0
    assert "mode observe" in site.lines("status")[0]
    assert {hold for _, hold in states(slurm).values()} == {Hold.NONE}, (
        "nothing stays held in a mode that starts nothing"
    )


def test_what_a_pause_keeps_from_happening_exits_3(site: Site, slurm: SimulatedBackend) -> None:
    before = states(slurm)
    assert site.lines("pause", "--reason", "upgrade") == ["paused: nothing is changed until 'synsched resume'"]
    assert site.run("run", "--once").exit_code == 3
    assert states(slurm) == before
    assert site.lines("resume")[0].endswith("0 s ago")
    assert site.lines("resume") == ["nothing was paused"]
    assert site.run("run", "--once").exit_code == 0


def test_missing_rights_exit_3(site: Site, slurm: SimulatedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = SimulatedBackend(slurm.cluster, slurm.clock, Identity("nobody", Privilege.NONE))
    monkeypatch.setattr("slurmsched.cli.cluster.connect", lambda _settings: nobody)
    assert site.run("run", "--once").exit_code == 3
    assert "not permitted: see 'synsched doctor'" in "\n".join(site.lines("plan"))


def test_release_gives_everything_back(site: Site, slurm: SimulatedBackend) -> None:
    site.run("run", "--once")
    result = site.run("release")
    assert (result.exit_code, result.stdout) == (0, "1 job given back to Slurm\n")
    assert result.stderr == "synsched: rounds still run and will manage these jobs again: run 'synsched pause' first\n"
    assert states(slurm)["3"] == (JobState.PENDING, Hold.NONE)


def test_release_of_one_job_leaves_the_others(site: Site, slurm: SimulatedBackend) -> None:
    site.run("release", "2,3")
    assert [job for job, (_, hold) in states(slurm).items() if hold is Hold.USER] == ["1"]


def test_release_works_without_a_database(site: Site, slurm: SimulatedBackend) -> None:
    result = site.run("release")
    assert (result.exit_code, result.stdout) == (0, "3 jobs given back to Slurm\n")
    assert "there is no database" in result.stderr


@pytest.mark.parametrize(
    ("beat", "released"),
    [
        pytest.param(10, False, id="somebody schedules"),
        pytest.param(2000, True, id="silent for too long"),
        pytest.param(None, True, id="no sign of life at all"),
    ],
)
def test_the_watchdog_releases_only_when_nobody_schedules(
    site: Site, slurm: SimulatedBackend, beat: int | None, released: bool
) -> None:
    if beat is not None:
        site.beat(beat)
    result = site.run("release", "--if-stale")
    assert (result.exit_code, result.stdout != "") == (0, released)
    assert all((hold is Hold.NONE) is released for _, hold in states(slurm).values())


def test_a_round_is_dumped_and_decided_again(site: Site, slurm: SimulatedBackend) -> None:
    file = site.folder / "now.round"
    assert site.lines("dump", str(file)) == [f"{file}: 3 jobs on 1 node"]
    lines = site.lines("replay", str(file), "--system", "synergy", "--order", "fifo")
    assert lines[0].split() == ["WHEN", "STAY", "START", "REQUEUE", "WAIT", "TOOK", "RECORDING"]
    assert lines[1].split()[1:5] == ["0", "2", "0", "1"]
    again = site.lines("plan", "--from", str(file), "--system", "synergy", "--order", "srtf")
    assert again[0] == "synergy, srtf order, mode enforce: 0 stay, 2 start, 1 wait"


def test_a_round_of_the_past_is_dumped_from_the_database(site: Site, slurm: SimulatedBackend) -> None:
    site.run("run", "--once")
    file = site.folder / "past.round"
    assert site.run("dump", "--round", "1", str(file)).exit_code == 0
    assert site.lines("plan", "--from", str(file))[0].endswith("0 stay, 2 start, 1 wait")
    gone = site.run("dump", "--round", "77", str(file))
    assert gone.stderr == "synsched: round 77 is not kept: storage.keep_snapshots sets how many rounds are\n"


@pytest.mark.parametrize("system", ["nonsense"])
def test_an_unknown_policy_names_those_there_are(site: Site, slurm: SimulatedBackend, system: str) -> None:
    result = site.run("plan", "--system", system)
    assert result.exit_code != 0
    assert result.stderr.startswith("synsched: there is no policy 'nonsense': known are ")


def test_a_file_that_is_no_recording_is_refused_in_one_line(
    site: Site, slurm: SimulatedBackend, tmp_path: Path
) -> None:
    file = tmp_path / "x.round"
    file.write_text("nonsense", encoding="utf-8")
    result = site.run("plan", "--from", str(file))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert str(file) in result.stderr


def test_slurms_own_files_are_rendered_from_the_nodes(site: Site, slurm: SimulatedBackend) -> None:
    assert "NodeName=v100-1 Name=gpu Type=v100 File=/dev/nvidia[0-7]" in site.lines("render", "gres.conf", columns=300)


def test_bench_round_keeps_its_contract(site: Site, slurm: SimulatedBackend) -> None:
    told = site.json("bench", "round")
    contract = {"observe_s", "decide_s", "plan_s", "apply_s", "commands", "updates", "jobs", "nodes"}
    assert contract <= set(told)
    assert (told["jobs"], told["nodes"]) == (3, 1)


def test_bench_decide_keeps_its_contract(site: Site) -> None:
    result = site.run("bench", "decide", "--gpus", "16", "--jobs", "20", "--repeat", "3", "--json")
    told = json.loads(result.stdout)
    assert {"median_s", "p95_s", "cpu_s", "peak_rss_mb"} <= set(told)
    assert (told["nodes"], told["repeat"], told["all_different"]) == (2, 3, False)


@pytest.mark.parametrize("policy", ["gavel", "hadar", "tesserae-packed"])
def test_bench_decide_measures_jobs_of_which_no_two_are_alike_on_a_full_cluster(site: Site, policy: str) -> None:
    told = site.json(
        "bench", "decide", "--policy", policy, "--all-different", "--gpus", "24", "--jobs", "40", "--repeat", "1"
    )
    assert (told["policy"], told["nodes"], told["all_different"]) == (policy, 3, True)
    assert told["running"] > 0
    assert told["cpu_s"] > 0


def test_bench_decide_refuses_gpus_that_do_not_divide(site: Site) -> None:
    result = site.run("bench", "decide", "--gpus", "10", "--nodes", "3", "--jobs", "1")
    assert result.exit_code == 2
    assert "10 GPUs cannot be divided among 3 nodes: choose a multiple" in result.stderr


def test_the_demo_ends_with_a_comparison(site: Site) -> None:
    lines = site.lines("demo", "--jobs", "8", "--cluster", "v100:1x8")
    heading = next(line for line in lines if line.startswith("SIMULATED, 8 JOBS"))
    assert heading.split()[3:] == ["PLAIN", "SLURM", "WITH", "ROUNDS", "RATIO"]
    assert next(line for line in lines if line.startswith("finished jobs")).split() == [
        "finished",
        "jobs",
        "8",
        "8",
        "1.00",
    ]


def test_what_was_learnt_of_a_user_is_deleted_and_said(site: Site) -> None:
    site.configure()
    ended = AccountedRun("1", "alice", "train", NOON - 60, 600.0, RunEnd.COMPLETED, gpus=1, cpus=2, memory=9)
    with closing(Store.open(site.database, NOON)) as store:
        store.finished_runs.record(AccountingCursor(NOON), [ended, replace(ended, owner="bob", job="2")])
    assert site.lines("forget", "alice") == ["of alice deleted: finished runs 1"]
    assert site.lines("forget", "alice") == ["nothing was learnt of alice"]
    deleted = site.json("forget", "bob")["deleted"]
    assert isinstance(deleted, dict)
    assert deleted["finished runs"] == 1
