"""`synsched submit --dry-run`: when a job would start, by the last round or by Slurm itself, and what is not told."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.recorded import pack_recording
from slurmsched.backends.simulated import SimulatedBackend, Submission, VirtualClock, VirtualCluster
from slurmsched.backends.slurm.errors import UnforeseenSubmissionError
from slurmsched.backends.slurm.sbatch_options import read_options
from slurmsched.backends.slurm.submission import PartitionDefaults, unsubmitted_job
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.parameters import user_name
from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.knowledge.work import WorkKind
from slurmsched.model import (
    AccountedRun,
    ExpectedLength,
    Hold,
    Job,
    Node,
    QueueForecast,
    Request,
    RunEnd,
    SchedulerState,
    Snapshot,
)
from slurmsched.settings.definition import Settings
from slurmsched.simulation.start_forecast import forecast_submission, length_of_variant, request_variants
from slurmsched.store.journal import Journal
from tests.builders import job, node, share, snapshot
from tests.unit.cli.conftest import NOON, Site, StandingClock

HOUR = 3600.0
PARTITION = "PartitionName=gpu Default=YES DefaultTime=01:00:00 MaxTime=UNLIMITED DefMemPerCPU=1 State=UP\n"
TAKES = "echo 'sbatch: Job 9 to start at 2026-11-24T03:00:00 using 8 processors' >&2"
REFUSES = "printf 'allocation failure: Requested node \\033[2Jconfiguration is not available\\n' >&2; exit 1"
ASKED = ("--gres=gpu:8", "-c8", "--mem=8", "-p", "gpu", "-t", "60", "--wrap=true")


def certain(seconds: float) -> ExpectedLength:
    return ExpectedLength(seconds, seconds, seconds, seconds, seconds, "name", 5, 60.0)


@pytest.fixture(autouse=True)
def slurm(site: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an sbatch that notes how it was called and takes every job, and a scontrol with one partition."""
    folder = site.folder / "slurm"
    folder.mkdir()
    (folder / "partitions").write_text(PARTITION)
    program(folder, "sbatch", TAKES)
    program(folder, "scontrol", f"case \"$*\" in *config) ;; *) cat '{folder}/partitions';; esac")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("SBATCH_DEBUG", "1")
    monkeypatch.setattr("slurmsched.cli.plan.DRAWS", 9)
    return folder


def program(folder: Path, name: str, does: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' {name} \"$@\" >> '{folder}/{name}.log'\n{does}\n")
    path.chmod(0o755)


def seen(site: Site, *nodes: Node, jobs: tuple[Job, ...] = (), mode: str = "enforce", **lengths: float) -> Snapshot:
    """The last round saw this cluster; how long its jobs still run is known."""
    site.configure(f'[rounds]\nmode = "{mode}"\n[manage]\npartitions = ["gpu"]\n[learning]\naccounting = false\n')
    cluster = snapshot(nodes or [node("n1")], jobs, NOON)
    state = SchedulerState(lengths={name.removeprefix("job"): certain(long) for name, long in lengths.items()})
    database = site.opened()
    number = Journal(database).begin_round(NOON, mode, "synergy", "las")
    database.write("UPDATE rounds SET snapshot = ? WHERE id = ?", (pack_recording(cluster, state), number))
    database.close()
    return cluster


def told(site: Site, *arguments: str) -> dict[str, Any]:
    result = site.run("submit", "--dry-run", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return {one["name"]: one for one in json.loads(result.stdout)["requests"]}


def starts(requests: dict[str, Any]) -> dict[str, float]:
    """Hours until the median start of each request."""
    return {name: round((one["start"]["median"] - NOON) / HOUR, 1) for name, one in requests.items() if one["start"]}


BUSY = job(1, 8, on=[share("n1", 8)], run_time=600.0, start_time=NOON - 600.0, user="bob", time_limit=36_000)
HALF = job(1, 4, on=[share("n1", 4)], run_time=600.0, start_time=NOON - 600.0, user="bob", time_limit=36_000)


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_on_an_empty_cluster_it_would_start_now(site: Site, mode: str) -> None:
    seen(site, mode=mode)
    lines = site.lines("submit", "--dry-run", *ASKED)
    assert lines == [
        "would start now, end in 1 h; its length is unknown, so it ends by its time limit",
        "as of 0 s ago, by 9 draws of how long jobs run, 7 d ahead",
        "",
        "REQUEST  STARTS IN 80 % ENDS IN 80 %   LENGTH BY",
        "as asked       now now   60 min 60 min unknown: limit",
        "4 GPUs         now now   60 min 60 min unknown: limit",
        "1 GPU          now now   60 min 60 min unknown: limit",
        "",
        "nothing was submitted; jobs that are submitted later may come first",
        "with fewer GPUs it asks for CPUs, tasks and memory in proportion",
    ]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_behind_a_full_cluster_it_starts_when_that_ends(site: Site, mode: str) -> None:
    seen(site, jobs=(BUSY,), mode=mode, job1=2 * HOUR)
    requests = told(site, "--duration", "30m", "--", *ASKED)
    assert starts(requests) == {"as asked": 2.0, "4 GPUs": 2.0, "1 GPU": 2.0}
    assert requests["as asked"]["length"] == "its hint"
    assert requests["4 GPUs"]["length"] == "", "nobody knows how much longer it runs with fewer"
    asked, fewer = (
        requests[name]["end"]["median"] - requests[name]["start"]["median"] for name in ("as asked", "1 GPU")
    )
    assert asked < fewer == HOUR


@pytest.mark.parametrize(("mode", "held"), [("enforce", Hold.USER), ("observe", Hold.NONE)])
def test_it_waits_as_the_hook_would_leave_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, mode: str, held: Hold
) -> None:
    seen(site, mode=mode)
    waiting: list[Job] = []

    def catch(variants: Sequence[tuple[Job, object]], *others: Any, **named: Any) -> Sequence[QueueForecast]:
        waiting.extend(one for one, _ in variants)
        return forecast_submission(variants, *others, **named)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr("slurmsched.cli.plan.forecast_submission", catch)
    site.lines("submit", "--dry-run", "--model", "bert", "--comment", "my words", "--", *ASKED)
    assert {(one.hold, one.hints.held_by_hook, one.hints.model) for one in waiting} == {
        (held, held is Hold.USER, "bert")
    }
    assert all(one.comment.endswith(" my words") for one in waiting)


def test_fewer_gpus_start_sooner(site: Site) -> None:
    seen(site, jobs=(HALF,), job1=2 * HOUR)
    assert starts(told(site, *ASKED)) == {"as asked": 2.0, "4 GPUs": 0.0, "1 GPU": 0.0}


def test_another_type_is_free(site: Site) -> None:
    seen(site, node("n1"), node("n2", gpu_type="a100"), node("n3", 4, gpu_type="k80"), jobs=(BUSY,), job1=2 * HOUR)
    requests = told(site, *("--gres=gpu:v100:8", *ASKED[1:]))
    assert starts(requests) == {"as asked": 2.0, "4 GPUs": 2.0, "1 GPU": 2.0, "on a100": 0.0, "on any type": 0.0}
    assert requests["on k80"]["why"] == "no nodes that are up have what it asks for"


def test_a_type_of_another_partition_is_not_named(site: Site) -> None:
    other = node("n2", gpu_type="a100", partitions=frozenset({"other"}))
    seen(site, node("n1"), other)
    assert set(told(site, *ASKED)) == {"as asked", "4 GPUs", "1 GPU"}


def test_rates_of_its_model_tell_how_much_longer_it_runs() -> None:
    scaling = {"v100": Scaling((1, 4), (4.0, 12.0)), "k80": Scaling((1, 4), (1.0, 3.0)), "a100": Scaling((1,), (8.0,))}
    profiles = Knowledge({"bert": Profile("bert", "", {}, "measured", scaling)})
    cluster = snapshot([node("n1"), node("n2", gpu_type="k80"), node("n3", gpu_type="a100"), node("n4", gpu_type="t4")])
    asked = job(7, request=Request(gpus=4, gpu_type="v100", gpus_per_node=4), hint="model=bert")
    known = {
        one.name: length_of_variant(asked, one.job, (certain(1000.0), None), profiles, 0.0)
        for one in request_variants(asked, cluster)
    }
    medians = {name: length and round(length.median) for name, (length, _) in known.items()}
    assert medians == {
        "as asked": 1000,
        "2 GPUs": round(1000 * 12 / (2 * (4.0 * 2 / 3 + 3.0 / 3))),
        "1 GPU": 3000,
        "on a100": None,
        "on k80": 4000,
        "on t4": None,
        "on any type": round(1000 * 12 / 32),
    }
    assert (known["as asked"][1], known["on k80"][1]) == ("5 runs of same name", "known rates")


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        pytest.param("bert-1", WorkKind.LIMIT, 700.0, id="runs with the same name, GPUs and limit"),
        pytest.param("bert-1", WorkKind.NAME_AND_GPUS, 700.0, id="runs with the same name and GPUs"),
        pytest.param("bert-1", WorkKind.NAME, None, id="runs with the same name have other GPUs too"),
        pytest.param("", WorkKind.LIMIT, None, id="other work with as many GPUs and the same limit"),
    ],
)
def test_runs_with_as_many_gpus_tell_how_long_a_smaller_job_runs(name: str, kind: WorkKind, told: float | None) -> None:
    asked = job(7, request=Request(gpus=4, gpus_per_node=4), name=name)
    smaller = replace(asked, original_request=replace(asked.original_request, gpus=2, gpus_per_node=2))
    of_smaller = replace(certain(700.0), kind=kind.words)
    length, _ = length_of_variant(asked, smaller, (certain(1000.0), of_smaller), Knowledge(), 0.0)
    assert (length and length.median) == told


class PassingClock(StandingClock):
    """A clock that is a second further whenever it is read."""

    def monotonic(self) -> float:
        self.time += 1.0
        return self.time


def told_within(budget: float, clock: StandingClock) -> Sequence[QueueForecast]:
    """Three times the same job behind one of which it is not certain when it ends."""
    waits = job(2, 8, submit_time=NOON, request=Request(8, gpus_per_node=8, cpus=8, memory=8))
    state = SchedulerState(lengths={"1": ExpectedLength(HOUR, HOUR, HOUR / 2, 2 * HOUR, 3 * HOUR, "name", 5, 60.0)})
    return forecast_submission(
        [(waits, None)] * 3,
        snapshot([node("n1")], [BUSY], NOON),
        state,
        Settings(),
        Knowledge(),
        generator=np.random.default_rng(1),
        draws=9,
        budget=budget,
        clock=clock,
    )


def test_all_requests_are_told_by_the_same_draws() -> None:
    first, second, third = told_within(5.0, StandingClock())
    assert first == second == third
    (told_once,) = first.jobs
    assert first.draws == 9
    assert NOON < (told_once.start.low or 0) < (told_once.start.high or 0) < NOON + 10 * HOUR


def test_what_there_is_no_time_for_is_said_and_the_request_as_asked_is_told() -> None:
    clock = PassingClock()
    first, second, third = told_within(5.0, clock)
    assert (len(first.jobs), first.draws) == (1, 1)
    assert {dict(one.left_out)["2"] for one in (second, third)} == {"there was no time to simulate it"}
    assert clock.time - NOON < 5 + 10, "and it ends"


def test_what_the_request_as_asked_has_reached_is_its_horizon() -> None:
    first, second, _ = told_within(3.0, PassingClock())
    assert first.jobs[0].start.median is None
    assert NOON < first.until < NOON + 3 * HOUR
    assert not second.jobs


@pytest.mark.parametrize(
    ("request_", "fewer"),
    [
        pytest.param(
            Request(16, gpus_per_node=8, nodes=2, max_nodes=2, tasks=16, cpus=32, memory=800),
            [(8, 8, 1, None, 8, 16, 800), (1, 1, 1, None, 1, 2, 100)],
            id="whole nodes less",
        ),
        pytest.param(
            Request(2, gpus_per_node=1, nodes=2, max_nodes=2, tasks=2, cpus=4, memory=10, pinned=frozenset({"a", "b"})),
            [],
            id="named nodes are needed",
        ),
        pytest.param(Request(3, cpus=4, memory=10), [(1, None, 1, None, 1, 2, 4)], id="an odd number"),
        pytest.param(Request(1, gpus_per_node=1), [], id="a single GPU"),
        pytest.param(Request(4, gpus_per_node=4, exclusive=True), [], id="a whole node anyhow"),
    ],
)
def test_fewer_gpus_ask_for_less_in_proportion(request_: Request, fewer: list[tuple[int | None, ...]]) -> None:
    variants = [one.job.original_request for one in request_variants(job(1, request=request_), snapshot([node("n1")]))]
    assert variants[0] == request_
    assert [
        (one.gpus, one.gpus_per_node, one.nodes, one.max_nodes, one.tasks, one.cpus, one.memory) for one in variants[1:]
    ] == fewer


def test_what_slurm_refuses_fails_with_its_words(site: Site, slurm: Path) -> None:
    seen(site)
    program(slurm, "sbatch", REFUSES)
    result = site.run("submit", "--dry-run", *ASKED)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "synsched: Slurm would refuse the job: allocation failure: Requested node ?[2Jconfiguration is not available\n"
    )


def test_a_job_that_would_only_wait_is_not_refused(site: Site, slurm: Path) -> None:
    seen(site)
    program(slurm, "sbatch", "echo 'allocation failure: Requested nodes are busy' >&2; exit 1")
    assert site.run("submit", "--dry-run", *ASKED).exit_code == 0


def test_slurm_is_asked_with_the_same_words_and_told_to_test_alone(site: Site, slurm: Path) -> None:
    seen(site)
    site.lines("submit", "--dry-run", "--model", "bert", "--", *ASKED)
    called = (slurm / "sbatch.log").read_text().splitlines()
    assert called == ["sbatch", "--test-only", "--comment=synsched:model=bert", *ASKED]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        pytest.param(["--array=0-3"], "no forecast goes by the option --array", id="an array"),
        pytest.param(["--licenses=x"], "it needs licences (--licenses)", id="let go"),
        pytest.param(
            ["--gres=nvme:1,gpu:1"],
            "only Slurm can place it: it asks for devices other than GPUs (--gres)",
            id="another device",
        ),
        pytest.param(["--part=gpu"], "no forecast goes by the option --part", id="a shortened option"),
        pytest.param(["--gpus=2"], "it has both --gpus and --gres", id="two forms"),
        pytest.param(["-t", "soon"], "--time is no time: 'soon'", id="no time"),
        pytest.param(["-p", "\x1b[2J"], "there is no partition '\\x1b[2J'", id="no such partition"),
        pytest.param(["--nodes=\x1b"], "--nodes is neither a number nor a range: '\\x1b'", id="no number"),
        pytest.param(["-\x1b"], "no forecast goes by the option -?", id="an option of control characters"),
    ],
)
def test_what_is_not_understood_is_said_and_nothing_is_told(site: Site, arguments: list[str], why: str) -> None:
    seen(site)
    result = site.run("submit", "--dry-run", "--", "--gres=gpu:1", "-t60", "-p", "gpu", *arguments, "--wrap=x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"synsched: Slurm would take the job, but its start is not told: {why}\n"


def read(tmp_path: Path, script: str, *arguments: str, **environment: str) -> dict[str, str]:
    path = tmp_path / "job.sh"
    path.write_text(script)
    return dict(read_options([*arguments, str(path), "--gres=gpu:99"], environment))


SCRIPT = "#!/bin/sh\n#SBATCH --gres=gpu:2 -n 4   # four\n\n#SBATCH --time='30'\ntrue\n#SBATCH --mem=1\n"


@pytest.mark.parametrize(
    ("arguments", "environment", "options"),
    [
        pytest.param([], {}, {"gres": "gpu:2", "ntasks": "4", "time": "30"}, id="the script up to its first command"),
        pytest.param(
            ["-Qn2"],
            {},
            {"gres": "gpu:2", "ntasks": "2", "time": "30", "quiet": ""},
            id="the command line counts first",
        ),
        pytest.param(
            ["-t", "5"],
            {"SBATCH_TIMELIMIT": "7", "SBATCH_GRES": "gpu:3", "HOME": "/"},
            {"gres": "gpu:3", "ntasks": "4", "time": "5"},
            id="the environment counts before the script",
        ),
    ],
)
def test_options_are_read_as_sbatch_reads_them(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], options: dict[str, str]
) -> None:
    assert read(tmp_path, SCRIPT, *arguments, **environment) == options


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        pytest.param("#!/bin/sh\n#PBS -l nodes=4\n", {}, id="lines of another scheduler"),
        pytest.param("#SBATCH --comment='a # b'\n", {}, id="a sign of comments in quotes"),
        pytest.param("#SBATCH --comment='a\n", {}, id="an open quote"),
        pytest.param("#SBATCH -n 1 stray\n", {}, id="a stray word"),
        pytest.param("true\n", {"SBATCH_CLUSTERS": "other"}, id="a variable with an effect"),
    ],
)
def test_where_it_is_not_certain_what_sbatch_reads_nothing_is_told(
    tmp_path: Path, script: str, environment: dict[str, str]
) -> None:
    with pytest.raises(UnforeseenSubmissionError):
        read(tmp_path, script, **environment)


@pytest.mark.parametrize(
    ("options", "request_"),
    [
        pytest.param(
            {"gpus-per-node": "v100:4", "nodes": "2", "ntasks-per-node": "4", "cpus-per-task": "2", "mem": "1G"},
            Request(8, "v100", 4, nodes=2, max_nodes=2, tasks=8, cpus=16, memory=1024),
            id="two nodes",
        ),
        pytest.param(
            {"gpus": "3", "cpus-per-gpu": "2", "mem-per-gpu": "1g"},
            Request(3, cpus=6, memory=3072, memory_per_gpu=1024, cpus_per_gpu=2),
            id="by GPU",
        ),
        pytest.param(
            {"gpus-per-task": "1", "ntasks": "2", "mem-per-cpu": "10"},
            Request(2, tasks=2, cpus=2, memory=20, memory_per_cpu=10),
            id="by task",
        ),
        pytest.param({"gres": "gpu"}, Request(1, None, 1, memory=500), id="the partition's memory"),
    ],
)
def test_a_request_is_as_slurm_would_show_it(options: dict[str, str], request_: Request) -> None:
    asked = unsubmitted_job(
        {"partition": "gpu", **options}, "alice", snapshot([node()]), {"gpu": PartitionDefaults(60, 500)}
    )
    assert (asked.job.original_request, asked.job.time_limit) == (request_, 60)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("30:01", 1860), ("1:00:00", 3600), ("1-2", 93_600), ("1-0:30", 88_200), ("UNLIMITED", None)],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(text: str, seconds: int | None) -> None:
    asked = unsubmitted_job({"partition": "gpu", "time": text}, "alice", snapshot([node()]), {})
    assert asked.job.time_limit == seconds


def test_without_a_time_limit_its_partitions_is_taken_and_told(site: Site) -> None:
    seen(site)
    lines = site.lines("submit", "--dry-run", "--gres=gpu:1", "--mem=8", "-p", "gpu", "--wrap=true")
    assert "without --time it gets its partition's time limit, 60 min" in lines


def test_who_may_not_read_the_database_is_told_by_what_slurm_shows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.configure('[rounds]\nmode = "enforce"\n[manage]\npartitions = ["gpu"]\n')
    cluster = VirtualCluster([node("n1")], snapshot([node("n1")]).partitions, start=NOON, name="demo")
    cluster.submit(Submission("bob", Request(8, gpus_per_node=8, cpus=8, memory=8), HOUR, 7200, ("gpu",), "secret"))
    backend = SimulatedBackend(cluster, VirtualClock(NOON), Identity("alice", Privilege.NONE))
    backend.clock.advance(60.0)
    monkeypatch.setattr("slurmsched.cli.cluster.connect", lambda _settings: backend)
    before = cluster.jobs.keys()
    result = site.run("submit", "--dry-run", "--json", *ASKED)
    asked = json.loads(result.stdout)["requests"][0]
    assert NOON < asked["start"]["median"] <= NOON + 7260
    assert (backend.calls.writes, cluster.jobs.keys(), site.database.exists()) == (0, before, False)
    assert "secret" not in result.output
    assert "bob" not in result.output


def test_ones_own_runs_tell_the_length_to_who_may_not_read_the_database(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = user_name()
    runs = [
        AccountedRun(str(number), owner, "bert-1", NOON - 60.0, long, RunEnd.COMPLETED, 8, 8, 8)
        for owner, long in ((me, 1000.0), ("bob", 9000.0))
        for number in range(1, 8)
    ]

    class Told:
        def finished_runs(self, _since: float, owner: str) -> list[AccountedRun]:
            return [run for run in runs if run.owner == owner]

    @contextmanager
    def open_runs(_invocation: Invocation) -> Iterator[tuple[Told, bool]]:
        yield Told(), False

    monkeypatch.setattr(Invocation, "open_runs", open_runs)
    monkeypatch.setattr("slurmsched.cli.plan.connect_backend", lambda _settings: Shows(snapshot([node()], [], NOON)))
    requests = told(site, "--job-name=bert-2", *ASKED)
    assert requests["as asked"]["length"] == "7 runs of same name and GPUs"
    assert 500 < requests["as asked"]["end"]["median"] - requests["as asked"]["start"]["median"] < 2000
    assert (requests["1 GPU"]["length"], requests["1 GPU"]["end"]["median"]) == ("", NOON + HOUR)


@dataclass
class Shows:
    """A backend that only shows this."""

    seen: Snapshot

    def observe(self) -> Snapshot:
        return self.seen


def test_without_a_limit_and_a_known_length_no_end_is_told(site: Site) -> None:
    seen(site)
    lines = site.lines("submit", "--dry-run", "--gres=gpu:1", "-p", "gpu", "-t0", "--mem=8", "--wrap=true")
    assert lines[0] == "would start now; its length is unknown, and it has no time limit"
    assert lines[4].split() == ["as", "asked", "now", "now", "-", "unknown"]


def test_where_slurm_hides_jobs_nothing_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = snapshot([node()], private_data=frozenset({"jobs"}))
    monkeypatch.setattr("slurmsched.cli.plan.connect_backend", lambda _settings: Shows(hidden))
    monkeypatch.setattr("os.geteuid", lambda: 12_345)
    result = site.run("submit", "--dry-run", *ASKED)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Slurm hides jobs or nodes of others from you (PrivateData)" in result.stderr


@examples(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gpus=st.integers(1, 16),
    name=st.text(st.characters(min_codepoint=1, max_codepoint=160), max_size=8),
    running=st.sampled_from([(), (HALF,), (BUSY,)]),
)
def test_whatever_is_asked_nothing_changes(site: Site, gpus: int, name: str, running: tuple[Job, ...]) -> None:
    seen(site, jobs=running)
    before, files = site.database.read_bytes(), sorted(path.name for path in site.folder.iterdir())
    result = site.run("submit", "--dry-run", "--", f"--gres=gpu:{gpus}", f"--job-name={name}", *ASKED[1:])
    assert result.exit_code == 0, result.output
    assert all(sign.isprintable() or sign == "\n" for sign in result.output)
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert site.database.read_bytes() == before
    assert sorted(path.name for path in site.folder.iterdir()) == files
    with sqlite3.connect(site.database) as database:
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
