"""Whole rounds that ask accounting which runs have ended: what is learnt sizes the next job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from slurmsched.backends.protocol import BackendError, FinishedPage, JobOrigin
from slurmsched.backends.simulated import SimulatedBackend, Submission
from slurmsched.model import AccountedRun, CpuNeed, JobId, Request, RunEnd
from slurmsched.rounds.explainer import explain
from slurmsched.settings.definition import LearningSettings
from tests.builders import node
from tests.simulated_prometheus import serving
from tests.unit.daemon.world import DAY, PERIOD, START, World

HOUR = 3600.0


@dataclass
class Accounting(SimulatedBackend):
    """The simulated cluster with accounting that has these runs, or fails; every question is noted."""

    backend: SimulatedBackend
    runs: tuple[AccountedRun, ...] = ()
    error: Exception | None = None
    asked: list[tuple[float, float]] = field(default_factory=list)
    scripts: list[tuple[JobId, ...]] = field(default_factory=list)
    numbers: Mapping[JobId, str] = field(default_factory=dict)

    def __getattribute__(self, name: str) -> object:
        own = {"backend", "runs", "error", "asked", "scripts", "numbers", "finished_runs", "origins"}
        return object.__getattribute__(self, name) if name in own else getattr(self.backend, name)

    def finished_runs(self, since: float, until: float) -> FinishedPage:
        self.asked.append((since, until))
        if self.error is not None:
            raise self.error
        return FinishedPage(tuple(run for run in self.runs if since <= run.ended <= until), numbers=self.numbers)

    def origins(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobOrigin]:
        self.scripts.append(tuple(jobs))
        return {job: JobOrigin("abc", "/a") for job in jobs[:50]}


def world_with(tmp_path: Path, *runs: AccountedRun, error: Exception | None = None) -> tuple[World, Accounting]:
    world = World(tmp_path)
    accounting = Accounting(world.simulated, runs, error)
    world.backend = accounting
    return world, accounting


def run(number: int, cpus: int = 1, used: float = 1.0, gpu: float | None = 0.2, **other: object) -> AccountedRun:
    fields: dict[str, object] = {"owner": "alice", "cpu_seconds": used * HOUR, "gathered": True, "gpu_use": gpu}
    fields |= {"gpu_type": "v100", "seconds": HOUR, "ended": START - number} | other
    return AccountedRun(
        str(number), name="train", end=RunEnd.COMPLETED, gpus=1, cpus=cpus,
        memory=8192, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def submit(world: World, cpus: int = 1, name: str = "train", user: str = "alice") -> JobId:
    request = Request(gpus=1, gpus_per_node=1, cpus=cpus)
    return world.simulated.submit(Submission(user, request, DAY, comment="synsched:ckpt=usr1@30", name=name))


def cpus(world: World, job: JobId) -> int:
    return world.simulated.observe().jobs_by_id[job].allocated.cpus


def learnt(world: World, accounting: Accounting) -> None:
    """Rounds until accounting has been read up to now."""
    while not accounting.asked or accounting.asked[-1][1] < world.clock.now() - PERIOD:
        world.rounds(1)


def test_a_second_submission_of_what_used_all_its_cpus_gets_more_than_its_share(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, run(1, 4, 4.0))
    learnt(world, accounting)
    mine, theirs = submit(world), submit(world, user="bob")
    report = world.round()
    use = report.result.situation.knowledge.by_use
    assert use.keys() == {mine}
    assert (cpus(world, mine), cpus(world, theirs)) == (8, 3), "twice the four that were full; a share"


def test_a_job_that_left_cpus_idle_gives_them_to_those_that_need_them(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, *(run(number, 8, 1.0, gpu=0.9) for number in range(3)))
    learnt(world, accounting)
    jobs = [submit(world, cpus=8) for _ in range(3)] + [submit(world, cpus=8, name="other")]
    world.round()
    assert sorted(cpus(world, job) for job in jobs) == [2, 2, 2, 8], "else one of the four would wait"


def test_it_is_switched_off_by_a_setting(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, run(1, 4, 4.0))
    learnt(world, accounting)
    asked = len(accounting.asked)
    world.settings = replace(world.settings, learning=LearningSettings(accounting=False))
    mine = submit(world)
    assert world.round().result.situation.knowledge.by_use == {}
    assert cpus(world, mine) == 3
    assert len(accounting.asked) == asked


@pytest.mark.parametrize("error", [BackendError("slurmdbd did not answer"), RuntimeError("odd")])
def test_accounting_that_fails_costs_a_round_nothing(tmp_path: Path, error: Exception) -> None:
    world, accounting = world_with(tmp_path, error=error)
    mine = submit(world)
    world.round()
    assert cpus(world, mine) == 3
    assert len(accounting.asked) == 1


def test_accounting_that_fails_is_asked_less_often_and_the_problem_is_kept(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, error=BackendError("slurmdbd did not answer"))
    world.rounds(12)
    assert len(accounting.asked) == 4, "after 5, 10 and 20 minutes"
    cursor = world.store.finished_runs.cursor(world.clock.now())
    assert (cursor.failures, cursor.problem) == (4, "slurmdbd did not answer")
    accounting.error = None
    world.rounds(9)
    assert world.store.finished_runs.cursor(world.clock.now()).failures == 0


def test_where_all_gpus_are_of_one_type_runs_without_one_were_on_it(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, run(1, gpu_type=""))
    learnt(world, accounting)
    assert [one.gpu_type for one in world.store.finished_runs.runs(0.0)] == ["v100"]
    (tmp_path / "mixed").mkdir(mode=0o700)
    mixed = World(tmp_path / "mixed", nodes=(node("n1"), node("n2", gpu_type="k80")))
    mixed.backend = accounting = Accounting(mixed.simulated, (run(1, gpu_type=""),))
    learnt(mixed, accounting)
    assert [one.gpu_type for one in mixed.store.finished_runs.runs(0.0)] == [""]


def test_two_weeks_are_read_in_a_few_rounds_and_then_one_question_is_asked_in_each(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path)
    for asked in (8, 8, 2, 1, 1):
        accounting.asked.clear()
        world.rounds(1)
        assert len(accounting.asked) == asked


def test_an_early_round_asks_nothing(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path)
    from slurmsched.daemon.scheduler import schedule_round  # noqa: PLC0415

    schedule_round(world.site(), world.store, world.clock, starts_only=True)
    assert accounting.asked == []


def test_scripts_are_asked_for_once_and_those_left_out_again(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path)
    jobs = {submit(world) for _ in range(60)}
    world.rounds(3)
    assert [len(asked) for asked in accounting.scripts] == [60, 10]
    assert {job for asked in accounting.scripts for job in asked} == jobs


def test_what_was_learnt_is_in_the_state_that_is_recorded(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, run(1))
    learnt(world, accounting)
    mine = submit(world)
    report = world.round()
    state = world.store.state.load_state(report.snapshot, "synergy")
    assert state.use[mine].needs == (CpuNeed("v100", 2.0, spares=False),)


@pytest.mark.parametrize("on", [True, False])
def test_by_a_setting_the_shortest_comes_first_by_what_earlier_runs_took(tmp_path: Path, on: bool) -> None:
    ended = [replace(run(n), name=f"{kind}-{n}", seconds=took) for n in range(9) for kind, took in TOOK.items()]
    world, accounting = world_with(tmp_path, *(replace(one, job=one.name) for one in ended))
    policy = replace(world.settings.policy, system="synergy", order="srtf")
    world.settings = replace(world.settings, policy=policy, learning=LearningSettings(lengths=on))
    learnt(world, accounting)
    jobs = [submit(world, name="long-10"), submit(world, name="short-10")]
    report = world.round()
    assert [ranked.job for ranked in report.result.decision.order] == (jobs[::-1] if on else jobs)
    assert report.result.situation.knowledge.lengths.keys() == ({*jobs} if on else set())


TOOK = {"long": 9 * HOUR, "short": 600.0}


def test_what_a_job_took_is_compared_with_what_was_forecast_when_it_was_submitted(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, *(run(n, seconds=60.0) for n in range(100, 109)))
    world.settings = replace(world.settings, learning=LearningSettings(lengths=True))
    learnt(world, accounting)
    mine = submit(world, name="train")
    world.round()
    world.restart()
    world.backend = accounting
    accounting.runs = (replace(run(1, seconds=9 * HOUR), job=mine, ended=world.clock.now() + 1),)
    world.rounds(2)
    kept = world.store.finished_runs._lengths
    assert kept is not None
    assert kept.history.stretch("alice")[1] > 1.0, "it took longer than was likely"


def unmeasured(number: int, **other: object) -> AccountedRun:
    """A run of which accounting tells nothing of GPUs."""
    return run(number, 8, 1.0, gpu=None, **other)


def telling(world: World, url: str) -> None:
    world.settings = replace(world.settings, learning=LearningSettings(prometheus=url))


def test_how_busy_gpus_were_is_asked_of_prometheus_and_decides_what_may_be_given_away(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, *(unmeasured(number) for number in (1, 2, 3)))
    use = tmp_path / "use.json"
    use.write_text(json.dumps({str(number): {"gpu": [90], "memory": [4096]} for number in (1, 2, 3)}))
    with serving(use) as url:
        telling(world, url)
        learnt(world, accounting)
    kept = world.store.finished_runs.runs(0.0)
    assert [(one.gpu_use, one.gpu_memory, one.gpu_source) for one in kept] == [(0.9, 4096, "slurm-job-exporter")] * 3
    mine = submit(world, cpus=8)
    report = world.round()
    assert report.result.situation.knowledge.by_use[mine].spares
    told = explain(report.result, mine)
    assert "3 earlier runs" in str(told)
    assert "GPU use by slurm-job-exporter (3), the last " in str(told)


def test_what_prometheus_told_stays_when_accounting_tells_of_the_run_again(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path)
    use = tmp_path / "use.json"
    use.write_text('{"1": {"gpu": [90]}}')
    with serving(use) as url:
        telling(world, url)
        learnt(world, accounting)
        accounting.runs = (unmeasured(1, cpu_seconds=None, gathered=False, ended=world.clock.now() + 10),)
        world.rounds(2)
        use.write_text("{}")
        accounting.runs = tuple(replace(one, cpu_seconds=5.0) for one in accounting.runs)
        world.rounds(1)
    (kept,) = world.store.finished_runs.runs(0.0)
    assert (kept.cpu_seconds, kept.gpu_use, kept.gpu_source) == (5.0, 0.9, "slurm-job-exporter")
    row = world.store.finished_runs.exporters()["slurm-job-exporter"]
    assert (row.told, row.failures) == (1, 0), "it is not asked again for what it told"


def test_a_task_of_an_array_is_asked_for_by_its_own_number(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path, replace(unmeasured(1), job="7_3", array_job="7"))
    accounting.numbers = {"7_3": "12"}
    use = tmp_path / "use.json"
    use.write_text('{"12": {"gpu": [90]}, "7": {"gpu": [10]}}')
    with serving(use) as url:
        telling(world, url)
        learnt(world, accounting)
    assert [(one.job, one.gpu_use) for one in world.store.finished_runs.runs(0.0)] == [("7_3", 0.9)]


def test_a_prometheus_that_is_down_costs_nothing_that_accounting_tells_and_is_asked_less_often(tmp_path: Path) -> None:
    world, accounting = world_with(tmp_path)
    telling(world, "http://127.0.0.1:1")
    learnt(world, accounting)
    for number in range(12):
        accounting.runs += (unmeasured(number, ended=world.clock.now() + 10),)
        world.rounds(1)
    assert len(world.store.finished_runs.runs(0.0)) >= 11
    rows = world.store.finished_runs.exporters()
    assert {row.failures for row in rows.values()} == {4}, "after 5, 10 and 20 minutes"
    assert all("does not answer" in row.problem for row in rows.values())
