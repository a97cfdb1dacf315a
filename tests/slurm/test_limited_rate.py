"""A slurmctld that lets each user send two requests a second (`rl_enable`): rounds take longer, and lose nothing."""

from __future__ import annotations

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--set", "SlurmctldParameters=rl_enable,rl_bucket_size=10,rl_refill_rate=2")
JOBS = 16


def test_a_round_under_a_limit_takes_its_time_and_starts_all_that_fits(mini: Mini) -> None:
    rounds = {**SETTINGS["rounds"], "apply_timeout": 60}
    mini.configure(**{**SETTINGS, "cluster": {"timeout": 5}, "rounds": rounds})
    assert mini.synsched("run", "--once").code == 0  # from now on the hook holds jobs
    jobs = [mini.train("alice", "--gres=gpu:2", "-c", "4", hint="task=image") for _ in range(JOBS)]

    changes: list[int] = []
    for _ in range(3):
        said = mini.synsched("run", "--once", "--json", timeout=600)
        assert said.code == 0, said.err
        tally = said.json["tally"]
        changes.append(tally["writes"])
        print(f"\n{tally['writes']} changes at two requests a second took {tally['apply_s']:.0f} s")
        assert changes[1:] or "slurmctld limits the rate of our requests (rl_enable): 15 changes are sent" in said.err
        if "left to the next round" not in said.err:
            break
    assert sum(changes) >= 2 * JOBS, "what did not fit into a round was in the next"
    mini.until("every job runs", lambda: all(mini.state(job) == "RUNNING" for job in jobs))
    assert mini.synsched("run", "--once").code == 0, "nothing was left open"


def test_scontrol_waits_without_a_word_and_with_v_it_says_so(mini: Mini) -> None:
    job = mini.train("alice", "--gres=gpu:1", "--hold")
    lines = f"release {job}\nhold {job}\n" * 10
    quiet = mini.run("scontrol", stdin=lines, user="synsched")
    assert "rate" not in quiet.err.lower()
    told = mini.run("scontrol", "-v", stdin=lines, user="synsched")
    assert "RPC rate limited 1 time(s). Sleeping then trying again." in told.err
    mini.until(  # doctor asks by scontrol too, which waits for its turn
        "doctor tells the limit",
        lambda: "2 requests a second after 10 at once" in " ".join(mini.synsched("doctor").out.split()),
    )
