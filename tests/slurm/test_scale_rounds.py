"""A daemon on 1,000 nodes with 5,000 jobs, on a real slurmctld whose nodes run no slurmd: it fills them round by round.

    SLURMSCHED_SCALE_NODES=12500 SLURMSCHED_SCALE_JOBS=25000 SLURMSCHED_SCALE_NARROW=1 \
        SLURMSCHED_SCALE_OPEN=3500,12500 SLURMSCHED_SCALE_FILLED=0.95 SLURMSCHED_SCALE_PERIOD=60 \
        .venv/bin/pytest tests/slurm/test_scale_rounds.py -rP

So many nodes are open, all others drained, until rounds without changes have been measured; then as many as the next
number says. With SLURMSCHED_SCALE_NARROW=1 slurm.conf has the node that starts name (docs/admin.md, thousands of
nodes). Times are printed for people and not asserted. The cluster is its own: a node without slurmd that a job has
powered up cannot be had again, since slurmctld looks for its address for ten seconds once it is powered down, and
answers nobody meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini
from tests.slurm.test_scale import CLUSTER, JOBS, NODES, Bystander, full

__all__ = ["CLUSTER", "full"]  # what pytest looks for in a module

pytestmark = pytest.mark.parametrize("mini", ["trixie"], indirect=True, scope="module")
OPEN = [int(number) for number in os.environ.get("SLURMSCHED_SCALE_OPEN", str(NODES)).split(",")]
FILLED = float(os.environ.get("SLURMSCHED_SCALE_FILLED", "1"))
"""Part of the open nodes that have jobs before the rest is drained: the last of thousands take many rounds."""
PERIOD = float(os.environ.get("SLURMSCHED_SCALE_PERIOD", "5"))

ROUNDS = """
import json, sqlite3
store = sqlite3.connect("file:/var/lib/synsched/synsched.db?mode=ro", uri=True)
store.row_factory = sqlite3.Row
columns = "finished - started AS whole, observe_s, decide_s, plan_s, apply_s, reads, writes, running, waiting, error"
print(json.dumps([dict(row) for row in store.execute(f"SELECT {columns} FROM rounds WHERE finished")]))
"""
"""The rounds of the daemon that have ended, with the seconds that each took as a whole and by phase."""


def rounds(mini: Mini) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = json.loads(mini.sure("python3", "-c", ROUNDS, user="synsched"))
    return said


def wait_for(full: Mini, enough: Callable[[list[dict[str, Any]]], bool], seconds: float) -> list[dict[str, Any]]:
    """The rounds that have ended, once they are `enough`. Looked at seldom and in our database: to be asked about all
    jobs time and again slows slurmctld down."""
    deadline = time.monotonic() + seconds
    while not enough(ended := rounds(full)):
        assert time.monotonic() < deadline, ended
        time.sleep(min(5.0, PERIOD / 2))
    return ended


def test_the_daemon_starts_jobs_round_by_round_and_then_changes_nothing(full: Mini) -> None:
    own = {"rounds": {"mode": "enforce", "period": PERIOD}, "policy": {"system": "unified"}, "learning": {}}
    full.configure(**{**SETTINGS, **own})
    usual = Bystander(full.name)
    usual.look(seconds=5)
    print(f"\n{NODES:,} nodes, {JOBS:,} jobs; squeue of another user takes {median(usual.took):.3f} s")
    update_nodes(full, idle_nodes(full)[OPEN[0] :], *DRAIN)
    with full.daemon("--keep-holds"):
        for at, nodes in enumerate(OPEN):
            starting, waiting, earlier = Bystander(full.name), Bystander(full.name), len(rounds(full))
            if at:
                closed = full.sure("sinfo", "-h", "-N", "-p", "gpu", "-t", "drain", "-o", "%N").split()
                update_nodes(full, closed[: nodes - OPEN[at - 1]], "State=RESUME")
            with starting.beside():
                first = wait_for(full, partial(has_filled, earlier, FILLED * nodes), 900 + 60 * PERIOD)
            update_nodes(full, idle_nodes(full), *DRAIN)
            calm = len(rounds(full)) + 3
            with waiting.beside():
                ended = wait_for(full, partial(has_ended, calm + 8), 900 + 9 * PERIOD)
            started, unchanged = first[earlier:], ended[calm : calm + 8]
            show(nodes, started, unchanged)
            print(f"squeue of another user took {median(starting.took):.3f} s, ", end="")
            print(f"at most {max(starting.took):.3f} s, in rounds without changes {median(waiting.took):.3f} s")
            assert not [each["error"] for each in started + unchanged if each["error"]]
            assert [each["writes"] for each in unchanged] == [0] * 8
            assert min(each["running"] for each in unchanged) >= FILLED * nodes


DRAIN = "State=DRAIN", "Reason=closed"


def idle_nodes(full: Mini) -> list[str]:
    return full.sure("sinfo", "-h", "-N", "-p", "gpu", "-t", "idle", "-o", "%N").split()


def has_filled(earlier: int, running: float, ended: list[dict[str, Any]]) -> bool:
    """Whether a round after the first `earlier` ones saw so many jobs run."""
    return len(ended) > earlier and int(ended[-1]["running"]) >= running


def has_ended(enough: int, ended: list[dict[str, Any]]) -> bool:
    """Whether so many rounds have ended."""
    return len(ended) >= enough


def update_nodes(full: Mini, nodes: list[str], *changes: str) -> None:
    """Change these nodes, some at a time."""
    for begin in range(0, len(nodes), 500):
        full.sure("scontrol", "update", f"NodeName={','.join(nodes[begin : begin + 500])}", *changes)


def show(nodes: int, started: list[dict[str, Any]], unchanged: list[dict[str, Any]]) -> None:
    """Print the rounds that fill so many nodes, those without changes after them, and what part of the former the
    latter take."""
    print(f"rounds of the daemon that fill {nodes:,} nodes, and then:")
    for each in [*started, *unchanged]:
        phases_of = " ".join(f"{name.removesuffix('_s')} {each[name]:.1f}" for name in each if name.endswith("_s"))
        print(f"{each['whole']:6.1f} s: {phases_of}, {each['writes']} changes, {each['running']} ran before it")
    changing, calm = median(each["whole"] for each in started if each["writes"]), median(e["whole"] for e in unchanged)
    print(f"median of those with changes {changing:.1f} s, without {calm:.1f} s: {calm / changing:.3f}")
