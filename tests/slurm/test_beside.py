"""Three honest users' work under the daemon, with one beside them who means no good, and without him."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from tests.slurm.mallory import ATTACKS, attack
from tests.slurm.mini import Mini
from tests.slurm.test_hostile import CLUSTER, HONEST, USUAL, nothing_left, quiet

__all__ = ["CLUSTER", "quiet"]

PERIOD: Final = 5.0
"""Seconds between the rounds of the daemon."""
WORKLOAD: Final = tuple((user, steps) for steps in (16, 24, 20, 28) for user in HONEST)


def test_honest_jobs_start_and_end_at_the_same_times_with_him_and_without(mini: Mini) -> None:
    without = lived(mini, hostile=False)
    nothing_left(mini)
    with_him = lived(mini, hostile=True)
    print("\nJOB USER   START  END | START  END  (seconds, without him | with him)")
    for number, ((user, _), alone, beside) in enumerate(zip(WORKLOAD, without, with_him, strict=True), start=1):
        print(f"{number:3} {user:6} {alone[0]:5} {alone[1]:4} | {beside[0]:5} {beside[1]:4}")
    noise = 2 * PERIOD
    for which in (0, 1):
        alone, beside = (sorted(times[which] for times in run) for run in (without, with_him))
        assert abs(median(alone) - median(beside)) <= noise
        assert all(abs(one - other) <= 2 * noise for one, other in zip(alone, beside, strict=True))


def lived(mini: Mini, *, hostile: bool) -> list[tuple[int, int]]:
    """When each job of the workload started and ended, in seconds after the first submission, under the daemon."""
    mini.configure(**{**USUAL, "rounds": {**USUAL["rounds"], "period": PERIOD}, "guards": {"min_run_time": 3600}})
    pid = mini.sure("sh", "-c", "synsched run > /tmp/daemon.log 2>&1 & echo $!", user="synsched").strip()
    stop = "/home/mallory/stop"
    try:
        mini.until("the daemon has decided", lambda: "enforce" in mini.run("cat", "/var/lib/synsched/heartbeat").out)
        began = int(mini.sure("date", "+%s"))
        jobs = [mini.train(user, "--gres=gpu:4", "-c", "12", hint="task=image", steps=steps)
                for user, steps in WORKLOAD]  # fmt: skip
        if hostile:
            every = "\n".join(tries.does for tries in ATTACKS)
            mini.run("rm", "-f", stop, user="mallory")
            attack_on = (
                f"({every}) >/dev/null 2>&1; until [ -e {stop} ]; do scancel -u mallory; ({every}); sleep 1; done"
            )
            attack(mini, f"({attack_on}) >/dev/null 2>&1 &", jobs)
        finished = "grep -l done " + " ".join(
            f"/home/{user}/log-{job}" for (user, _), job in zip(WORKLOAD, jobs, strict=True)
        )
        mini.until("all are done", lambda: len(mini.run("sh", "-c", finished).out.split()) == len(jobs), 150)
        mini.until("accounting knows when", lambda: all(ended for _, ended in times(mini, jobs).values()))
        return [(started - began, ended - began) for started, ended in times(mini, jobs).values()]
    finally:
        mini.run("touch", stop, user="mallory")
        mini.run("kill", pid)
        mini.until("the daemon has stopped", lambda: mini.run("kill", "-0", pid).code != 0)


def times(mini: Mini, jobs: Sequence[str]) -> dict[str, tuple[int, int]]:
    """When each started and ended, in unix seconds, as accounting has it; 0 where it does not know yet."""
    words = ("sacct", "-n", "-P", "-X", "-j", ",".join(jobs), "--format=JobID,Start,End")
    rows = [line.split("|") for line in mini.sure("env", "SLURM_TIME_FORMAT=%s", *words).splitlines()]
    found = {job: (_second(start), _second(end)) for job, start, end in rows}
    return {job: found.get(job, (0, 0)) for job in jobs}


def _second(text: str) -> int:
    return int(text) if text.isdecimal() else 0
