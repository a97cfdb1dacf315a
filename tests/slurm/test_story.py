"""The story of docs/tutorial.md on real daemons: three people, 14 jobs, rounds that size, displace and resume."""

from __future__ import annotations

import json
import re
from typing import Final

import pytest

from tests.slurm.conftest import RELEASES, SETTINGS, SOURCE
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x8,k80:2x8")
pytestmark = pytest.mark.parametrize("mini", [*RELEASES, SOURCE], indirect=True, scope="module")

GPU_SHARE: Final = 3  # CPUs per GPU on these nodes: 24 CPUs, 8 GPUs

QUEUE: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("alice", "task=image,ckpt=usr1@2", ("--gres=gpu:v100:8", "--nodes=2", "--ntasks-per-node=1", "-c", "24")),
    ("bob", "task=image,ckpt=usr1@2", ("--gres=gpu:k80:1", "-c", "3")),
    ("bob", "task=language,ckpt=usr1@2", ("--gres=gpu:k80:2", "-c", "2")),
    ("bob", "task=language,ckpt=usr1@2", ("--gres=gpu:k80:2", "-c", "2")),
    ("carol", "task=speech,ckpt=usr1@2", ("--gres=gpu:k80:1", "-c", "3")),
    ("carol", "task=language,ckpt=usr1@2", ("--gres=gpu:k80:1", "-c", "1")),
    ("carol", "task=language,ckpt=usr1@2", ("--gres=gpu:k80:1", "-c", "1")),
    ("alice", "task=image,ckpt=usr1@2", ("--gres=gpu:k80:4", "-c", "12")),
    ("alice", "task=language,ckpt=usr1@2", ("--gres=gpu:k80:2", "-c", "2")),
    ("bob", "task=language,ckpt=usr1@2", ("--gres=gpu:k80:1", "-c", "1")),
    ("carol", "task=speech,ckpt=usr1@2", ("--gres=gpu:k80:1", "-c", "3")),
    ("carol", "model=resnet50,ckpt=usr1@2", ("--gres=gpu:k80:8", "-c", "24")),
    ("bob", "model=gnmt,ckpt=usr1@2", ("--gres=gpu:k80:4", "-c", "12")),
    ("alice", "model=deepspeech,ckpt=usr1@2", ("--gres=gpu:k80:2", "-c", "6")),
)


JOURNALD: Final = "/lib/systemd/systemd-journald"
STARTS_JOURNALD: Final = f"""
mkdir -p /run/systemd/journal /run/log/journal
test -e /etc/machine-id || tr -d - < /proc/sys/kernel/random/uuid > /etc/machine-id
setsid {JOURNALD} > /dev/null 2>&1 < /dev/null &
until test -S /run/systemd/journal/socket; do sleep 0.1; done
"""


class Story:
    """What the chapters below share; a chapter is a test and they run in order."""

    ids: tuple[str, ...] = ()
    unmanaged: tuple[str, ...] = ()
    facts: dict[str, dict[str, str]] = {}  # noqa: RUF012 - the chapters' common memory, made anew per release
    newcomer: str = ""
    displaced: str = ""


@pytest.fixture(scope="module")
def story(mini: Mini) -> Story:
    return Story()


def steady(mini: Mini, jobs: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """What must not change of jobs that are nobody's business but Slurm's."""
    kept = ("JobState", "NodeList", "StartTime", "Restarts", "NumCPUs", "ReqNodeList", "MinMemoryNode", "Nice")
    seen = mini.jobs()
    return {job: {key: seen[job].get(key, "") for key in kept} for job in jobs}


def cpus(mini: Mini, job: str) -> int:
    return int(mini.jobs()[job]["NumCPUs"])


def test_1_fourteen_jobs_by_three_people_wait_for_the_round(mini: Mini, story: Story) -> None:
    mini.configure(**SETTINGS, daemon={"log": "journal"})
    if mini.run("test", "-x", JOURNALD).code == 0:
        mini.sure("sh", "-c", STARTS_JOURNALD)
    first = mini.synsched("run", "--once")
    assert first.code == 0, first.err
    where = ("--chdir=/home/alice", "--output=/dev/null")
    mini.sure("sbatch", "--parsable", "-p", "debug", "-c", "1", *where, "--wrap", "sleep 3600", user="alice")
    mini.train("bob", "-p", "debug", "--gres=gpu:k80:1", "-c", "1", "--mem=1000")
    mini.until("the unmanaged jobs run", lambda: {job["JobState"] for job in mini.jobs().values()} == {"RUNNING"})
    mini.until(
        "no earlier job is ending", lambda: "COMPLETING" not in {job["JobState"] for job in mini.jobs().values()}
    )
    story.unmanaged = tuple(mini.jobs())
    story.facts = steady(mini, story.unmanaged)
    assert {of["JobState"] for of in story.facts.values()} == {"RUNNING"}

    story.ids = tuple(mini.train(user, *options, hint=hint) for user, hint, options in QUEUE)

    seen = mini.jobs()
    assert {seen[job]["JobState"] for job in story.ids} == {"PENDING"}
    assert {seen[job]["Reason"] for job in story.ids} == {"JobHeldUser"}


def test_2_one_round_starts_what_fits_and_sizes_it_by_sensitivity(mini: Mini, story: Story) -> None:
    round_ = mini.synsched("run", "--once")
    assert round_.code == 0, round_.out + round_.err

    seen = mini.jobs()
    running = [job for job in story.ids if seen[job]["JobState"] == "RUNNING"]
    gang, image, language = story.ids[0], story.ids[1], story.ids[2]
    assert {gang, image, language} <= set(running)
    assert seen[gang]["NodeList"] == "v100-[1-2]"
    assert int(seen[image]["NumCPUs"]) > GPU_SHARE
    assert int(seen[language]["NumCPUs"]) < 2 * GPU_SHARE
    # No GPU is left idle while somebody waits who could use it: 15 k80 are free of the unmanaged job.
    allocated = (seen[job].get("AllocTRES", seen[job].get("TRES", "")) for job in running)
    gpus = [int(found) for tres in allocated for found in re.findall(r"gres/gpu=(\d+)", tres)]
    assert len(gpus) == len(running)
    assert sum(gpus) >= 16 + 14


def test_3_no_job_runs_slower_than_at_its_gpu_share(mini: Mini, story: Story) -> None:
    listed = mini.synsched("status", "--json").json
    speeds = {job["id"]: job["speed"] for job in listed["jobs"] if job["id"] in story.ids and job["state"] == "running"}
    assert len(speeds) >= 3
    assert all(speed >= 1.0 for speed in speeds.values()), speeds
    assert speeds[story.ids[1]] > 1.0


def test_4_a_newcomer_displaces_the_job_with_most_attained_service(mini: Mini, story: Story) -> None:
    # The 16-GPU gang attains most: 16 GPU-seconds a second.
    mini.until("the gang has run for 8 s", lambda: _run_time(mini, story.ids[0]) >= 8)
    story.newcomer = mini.train("carol", "--gres=gpu:v100:8", "-c", "24", hint="task=language,ckpt=usr1@2")
    assert mini.jobs()[story.newcomer]["Reason"] == "JobHeldUser"

    round_ = mini.synsched("run", "--once")
    assert round_.code == 0, round_.out + round_.err

    seen = mini.jobs()
    story.displaced = story.ids[0]
    assert seen[story.newcomer]["JobState"] == "RUNNING"
    assert seen[story.displaced]["JobState"] == "PENDING"
    log = mini.log("alice", story.displaced)
    assert any(line.startswith("checkpoint step=") for line in log), log


def test_5_status_explain_and_history_tell_it_truly(mini: Mini, story: Story) -> None:
    status = mini.run("env", "COLUMNS=80", "synsched", "status", user="carol")
    assert status.code == 0, status.err
    assert all(len(line) <= 80 for line in status.out.splitlines())
    assert story.newcomer in status.out

    explained = mini.synsched("explain", story.displaced, user="alice")
    assert explained.code == 0, explained.err
    assert story.newcomer in explained.out or "behind" in explained.out
    history = mini.synsched("history", story.displaced).out
    assert "displaced" in history
    assert story.newcomer in history


def test_5b_the_real_systemd_journal_tells_who_requeued_the_job(mini: Mini, story: Story) -> None:
    if mini.run("test", "-x", JOURNALD).code != 0:
        pytest.skip("this release's image has no systemd-journald")
    asked = ("journalctl", "-t", "synsched", f"SYNSCHED_JOB={story.displaced}", "-o", "json", "--no-pager")
    rows = [json.loads(line) for line in mini.sure(*asked).splitlines()]
    requeues = [row for row in rows if row["SYNSCHED_VERB"] == "requeue"]
    assert [(row["SYNSCHED_USER"], row["SYNSCHED_REASON"], row["SYNSCHED_RESULT"]) for row in requeues] == [
        ("alice", "newcomer_first", "done")
    ]
    assert f"requeued: job {story.displaced} of alice gives way to job {story.newcomer}: " in requeues[0]["MESSAGE"]


def test_6_the_displaced_job_resumes_from_its_checkpoint_with_its_id(mini: Mini, story: Story) -> None:
    mini.sure("scancel", story.newcomer, user="carol")
    mini.until("the newcomer is gone", lambda: mini.jobs()[story.newcomer]["JobState"] == "CANCELLED")
    saved = int(mini.sure("cat", f"/home/alice/ckpt-{story.displaced}"))

    round_ = mini.synsched("run", "--once")
    assert round_.code == 0, round_.out + round_.err

    seen = mini.jobs()[story.displaced]
    assert seen["JobState"] == "RUNNING"
    assert seen["Restarts"] == "1"
    mini.until("it has written its first line", lambda: len(_starts(mini, story)) == 2)
    assert _starts(mini, story)[1].startswith(f"start step={saved} restarts=1")


def test_7_nothing_unmanaged_has_changed(mini: Mini, story: Story) -> None:
    assert steady(mini, story.unmanaged) == story.facts


def test_8_a_second_look_at_a_settled_cluster_changes_nothing(mini: Mini, story: Story) -> None:
    mini.configure(**{**SETTINGS, "guards": {"min_run_time": 3600}})
    assert mini.synsched("run", "--once").code == 0
    before = {job: (seen["JobState"], seen.get("NodeList")) for job, seen in mini.jobs().items()}
    again = mini.synsched("run", "--once")
    assert again.code == 0, again.err
    assert {job: (seen["JobState"], seen.get("NodeList")) for job, seen in mini.jobs().items()} == before
    last = mini.synsched("status", "--json").json["round"]
    assert last["writes"] == 0


def test_9_release_gives_everything_back_to_slurm(mini: Mini, story: Story) -> None:
    held = [job for job, seen in mini.jobs().items() if seen["Priority"] == "0" and seen["JobState"] == "PENDING"]
    assert held
    given_back = mini.synsched("release")
    assert given_back.code == 0, given_back.err
    seen = mini.jobs()
    assert all(seen[job]["Priority"] != "0" for job in held)
    assert all(seen[job].get("ReqNodeList", "(null)") == "(null)" for job in held)


def _run_time(mini: Mini, job: str) -> int:
    hours, minutes, seconds = mini.jobs()[job]["RunTime"].split("-")[-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _starts(mini: Mini, story: Story) -> list[str]:
    return [line for line in mini.log("alice", story.displaced) if line.startswith("start")]
