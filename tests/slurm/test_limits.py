"""Quotas on real daemons: what Slurm forgets at an Operator's update, rounds hold to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.conftest import OLDEST_AND_LATEST
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x4/12c/100g", "--set", "AccountingStorageEnforce=associations,limits,qos")
pytestmark = pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True)
GREEDY = "model=alexnet,ckpt=usr1@1"
"""Three CPUs of a GPU are too few for it: without a limit it gets more, as what it was lent can be taken back."""


@pytest.fixture(autouse=True)
def nothing_left(mini: Mini) -> Iterator[None]:
    yield
    for user in ("alice", "bob"):
        mini.run("scancel", f"--user={user}")
        limit(mini, user, "GrpTRES=cpu=-1,node=-1,billing=-1", "MaxTRES=cpu=-1,node=-1", "MaxTRESPerNode=cpu=-1",
              "GrpTRESMins=cpu=-1", "MaxWall=-1")  # fmt: skip
    mini.until("nothing is left", lambda: not mini.sure("squeue", "-h").strip())


def limit(mini: Mini, user: str, *limits: str) -> None:
    mini.sure("sacctmgr", "-i", "modify", "user", user, "set", *limits)


def cpus(mini: Mini, job: str) -> int:
    return int(mini.jobs()[job]["NumCPUs"])


def running(mini: Mini, jobs: list[str]) -> list[str]:
    seen = mini.jobs()
    return [job for job in jobs if seen[job]["JobState"] == "RUNNING"]


def test_a_quota_of_cpus_holds_for_managed_jobs_as_for_others(mini: Mini) -> None:
    limit(mini, "alice", "GrpTRES=cpu=4")
    asked = ("--gres=gpu:1", "--cpus-per-task=2", "--mem=1000")
    plain = [mini.train("alice", "--partition=debug", *asked) for _ in range(3)]
    mini.until("Slurm stops the third", lambda: mini.jobs()[plain[2]]["Reason"] == "AssocGrpCpuLimit")
    assert len(running(mini, plain)) == 2
    mini.sure("scancel", *plain)
    mini.until("they are gone", lambda: not mini.sure("squeue", "-h").strip())
    jobs = [mini.train("alice", *asked, hint=GREEDY) for _ in range(3)]
    for _ in range(2):
        mini.round()
        assert running(mini, jobs) == jobs[:2]
        assert sum(cpus(mini, job) for job in jobs[:2]) <= 4
    why = mini.synsched("explain", jobs[2]).out
    assert "GrpTRES of user alice of account vision allows 4 CPUs, with 4 CPUs in use" in why, why
    mini.sure("scancel", jobs[0])
    mini.until("the quota is free", lambda: jobs[0] not in mini.sure("squeue", "-h", "-o%i").split())
    mini.round()
    assert running(mini, jobs[1:]) == jobs[1:]


def test_no_job_gets_more_than_a_job_may_have(mini: Mini) -> None:
    free = mini.train("bob", "--gres=gpu:1", "--cpus-per-task=2", "--mem=1000", hint=GREEDY)
    mini.round()
    most = cpus(mini, free)
    assert most > 4
    mini.sure("scancel", free)
    mini.until("it is gone", lambda: not mini.sure("squeue", "-h").strip())
    for option in ("MaxTRES=cpu=4", "MaxTRESPerNode=cpu=4"):
        limit(mini, "bob", option)
        job = mini.train("bob", "--gres=gpu:1", "--cpus-per-task=2", "--mem=1000", hint=GREEDY)
        mini.round()
        assert mini.state(job) == "RUNNING"
        assert cpus(mini, job) == 4, option
        mini.sure("scancel", job)
        mini.until("it is gone", lambda: not mini.sure("squeue", "-h").strip())
        limit(mini, "bob", "MaxTRES=cpu=-1", "MaxTRESPerNode=cpu=-1")


def test_what_no_quota_allows_is_told_and_not_tried(mini: Mini) -> None:
    limit(mini, "bob", "MaxTRES=cpu=4")
    job = mini.train("bob", "--gres=gpu:1", "--cpus-per-task=6", "--mem=1000", hint=GREEDY)
    mini.round()
    assert mini.state(job) == "PENDING"
    why = mini.synsched("explain", job).out
    assert "MaxTRES of user bob" in why, why
    assert "attempt" not in why


LEFT_TO_SLURM = {
    "GrpTRES=node=1": (("-N1", "--gres=gpu:4"), 2, "Assoc"),
    "GrpTRES=billing=2": (("--gres=gpu:1", "-c2"), 2, "AssocGrpBilling"),
    "MaxWall=30": (("--gres=gpu:1", "--time=60"), 1, "AssocMaxWallDurationPerJobLimit"),
}
"""Limits that rounds do not compute: what is submitted, how often, and Slurm's reason for the last job."""


def test_limits_that_rounds_do_not_compute_are_told_in_slurms_words_and_tried_once(mini: Mini) -> None:
    for option, (asked, count, reason) in LEFT_TO_SLURM.items():
        limit(mini, "alice", option)
        plain = [mini.train("alice", "--partition=debug", "--mem=1000", *asked) for _ in range(count)]
        mini.until(
            f"Slurm stops the last ({option})",
            lambda job=plain[-1]: mini.jobs()[job]["Reason"].startswith("Assoc"),  # type: ignore[misc]  # a default, to bind it now
        )
        says = mini.jobs()[plain[-1]]["Reason"]
        assert says.startswith(reason)
        cleared(mini, plain)
        jobs = [mini.train("alice", "--mem=1000", *asked, hint="model=alexnet") for _ in range(count)]
        mini.round()
        again = mini.synsched("run", "--once").out
        assert running(mini, jobs) == jobs[:-1]
        assert f"job {jobs[-1]}" not in again, f"{option}: {again}"
        why = mini.synsched("explain", jobs[-1]).out
        assert f"waits because of a limit of its account or QOS: {says}" in " ".join(why.split()), why
        cleared(mini, jobs)
        limit(mini, "alice", f"{option.rpartition('=')[0]}=-1")


def test_a_job_that_needs_two_nodes_is_held_to_the_cpus_and_nodes_that_these_take(mini: Mini) -> None:
    for option, told in (
        ("GrpTRES=cpu=1", "GrpTRES of user bob of account language allows 1 CPU"),
        ("MaxTRES=node=1", "MaxTRES of user bob of account language allows a job 1 node"),
    ):
        limit(mini, "bob", option)
        job = mini.train("bob", "--gpus=8", hint="model=alexnet")
        mini.round()
        assert mini.state(job) == "PENDING", option
        why = " ".join(mini.synsched("explain", job).out.split())
        assert told in why, why
        cleared(mini, [job])
        limit(mini, "bob", f"{option.rpartition('=')[0]}=-1")


def cleared(mini: Mini, jobs: list[str]) -> None:
    mini.sure("scancel", *jobs)
    mini.until("they are gone", lambda: not mini.sure("squeue", "-h").strip())
