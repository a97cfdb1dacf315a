"""`synsched advise`: what is shown to whom, at 80 columns and as JSON."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.daemon.exporter import Exporter
from slurmsched.model import AccountedRun, RunEnd
from slurmsched.settings.definition import StorageSettings
from slurmsched.store.finished_runs import AccountingCursor
from slurmsched.store.store import Store
from tests.builders import node, snapshot
from tests.unit.cli.conftest import NOON, Site, StandingClock

RUN = AccountedRun(
    *("1", "alice", "train-7", NOON - 3600, 3600.0, RunEnd.COMPLETED),
    gpus=4,
    cpus=32,
    memory=262_144,
    gpu_type="v100",
    time_limit=86_400,
    cpu_seconds=14_400.0,
    gathered=True,
    peak_memory=20_000,
    gpu_use=0.24,
    idle_gpus=3,
)


def remember(site: Site, runs: Sequence[AccountedRun]) -> None:
    site.configure()
    with closing(Store.open(site.database, NOON)) as store:
        store.finished_runs.record(AccountingCursor(NOON), runs)


@pytest.fixture
def learnt(site: Site) -> Site:
    remember(site, [replace(RUN, job=str(number)) for number in range(1, 4)])
    return site


ALICE = """\
train-7 of alice, 4 v100 GPUs
  3 runs with the same name and GPUs, the last one 1 h ago
  time   asked for 1 d; all of 3 runs completed within 1 h: 1 h 15 min is enough
  CPUs   had 32 per GPU, of which 4.0 were busy in all of 3 runs: 8 are enough
  memory had 256G on a node, of which 19.5G were in use in 3 runs: 24G are
         enough, if files need not be cached
  GPUs   had 4, busy for 24 % of the time in 3 runs; 3 of them idle in each: use
         all, or ask for 1
  sbatch --gres=gpu:1 --time=1:15:00 --cpus-per-gpu=8 --mem=24G
"""


@pytest.mark.parametrize("subject", ["alice", "2"])
def test_a_user_or_a_job_is_advised_in_words_and_as_the_line_to_use(learnt: Site, subject: str) -> None:
    assert "\n".join(learnt.lines("advise", subject)) + "\n" == ALICE


def test_as_json(learnt: Site) -> None:
    (work,) = learnt.json("advise", "alice")["works"]  # type: ignore[misc]
    assert work["sbatch"] == "sbatch --gres=gpu:1 --time=1:15:00 --cpus-per-gpu=8 --mem=24G"
    assert [(one["resource"], one["had"], one["advised"]) for one in work["resources"]] == [
        ("time", 86_400, 4500),
        ("CPUs", 32, 8),
        ("memory", 262_144, 24_576),
        ("GPUs", 4, 1),
    ]


@pytest.mark.parametrize(
    ("subject", "text"),
    [("bob", "no run of bob is known from the last 60 days"), ("77", "job 77 is not known here")],
)
def test_where_nothing_is_known_one_line_says_so(learnt: Site, subject: str, text: str) -> None:
    result = learnt.run("advise", subject)
    assert result.exit_code == 1
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1


WEEK = """\
runs with GPUs that ended in the last 7 days, in GPU-hours
USER  RUNS GPU-HOURS MEASURED IDLE LIMIT/USED
alice    3      12.0     12.0  9.1       24.0
bob      1       4.0        -    -       24.0

most idle GPU-hours by work
USER  RUNS MEASURED IDLE UNUSED BUSY WORK
alice    3     12.0  9.1    9.0 24 % train-7
"""


def test_without_a_user_the_week_is_shown_by_user(learnt: Site) -> None:
    remember(learnt, [replace(RUN, job="9", owner="bob", gpu_use=None, idle_gpus=None)])
    assert "\n".join(learnt.lines("advise")) + "\n" == WEEK
    assert [user["user"] for user in learnt.json("advise")["users"]] == ["alice", "bob"]  # type: ignore[attr-defined]


def test_whatever_names_owners_give_lines_fit_the_window(site: Site) -> None:
    names = ("x" * 200, "\x1b[31mred", "--wrap=rm", "a\nb", "[bold]")
    remember(site, [replace(RUN, job=str(10 * at + n), name=name) for at, name in enumerate(names) for n in range(3)])
    for arguments in (("advise",), ("advise", "alice")):
        lines = site.lines(*arguments)
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in "".join(lines)
        assert sum("--wrap=rm" in line for line in lines if line.lstrip().startswith("sbatch")) == 0


NOBODY = 65534
AS_NOBODY = f"""
import os, sys
import slurmsched.cli.control, slurmsched.cli.job, slurmsched.report.advice
from slurmsched.cli import main
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
main(sys.argv[1:], prog_name="synsched")
"""


def as_nobody(site: Site, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", AS_NOBODY, "--config", str(site.config), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return run.returncode, run.stdout, run.stderr


@pytest.fixture
def shared() -> Iterator[Site]:
    """A site with runs of nobody and of alice, whose folder others may enter, as those of pytest they may not."""
    folder = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    Path(folder).chmod(0o755)
    site = Site(Path(folder))
    owners = ("nobody", "alice")
    now = time.time()
    runs = [replace(RUN, job=f"{n}{len(o)}", owner=o, ended=now - 3600) for o in owners for n in range(1, 4)]
    remember(site, runs)
    yield site
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.fixture
def serving(shared: Site) -> Iterator[Exporter]:
    storage = StorageSettings(path=str(shared.database))
    exporter = Exporter(storage, StandingClock(), pytest.fail, serves=True)
    exporter.publish(snapshot([node()], []))
    yield exporter
    exporter.close()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


@needs_root
@pytest.mark.usefixtures("serving")
def test_an_ordinary_user_is_shown_the_own_runs_alone(shared: Site) -> None:
    status, own, errors = as_nobody(shared, "advise")
    assert (status, errors) == (0, "")
    assert own.startswith("train-7 of nobody, 4 v100 GPUs\n")
    assert "sbatch --gres=gpu:1 --time=1:15:00 --cpus-per-gpu=8 --mem=24G" in own
    assert "alice" not in own
    assert as_nobody(shared, "advise", "nobody")[1] == as_nobody(shared, "advise", "16")[1] == own
    told = "what was learnt of alice is shown to alice and to administrators alone"
    assert as_nobody(shared, "advise", "alice") == (1, "", f"synsched: {told}\n")
    status, nothing, errors = as_nobody(shared, "advise", "15")
    assert (status, nothing) == (1, "")
    assert "job 15 is not known here" in errors


@needs_root
def test_an_ordinary_user_asks_the_daemon_to_forget(shared: Site, serving: Exporter) -> None:
    assert as_nobody(shared, "forget", "alice")[0] == 1
    assert as_nobody(shared, "forget")[:2] == (0, "asked: what was learnt of nobody is deleted after the next round\n")
    asked = list[str]()
    with pytest.raises(pytest.fail.Exception, match="what was learnt of nobody was deleted, as nobody asked"):
        serving.forget_who_asked(asked.append)
    assert asked == ["nobody"]


@needs_root
def test_where_no_daemon_answers_an_ordinary_user_is_told_so(shared: Site) -> None:
    for command, does in (("advise", "shows you what was learnt of your runs"), ("forget", "deletes what was learnt")):
        status, text, errors = as_nobody(shared, command)
        assert (status, text) == (1, "")
        assert f"only a running daemon on this host {does}" in errors
