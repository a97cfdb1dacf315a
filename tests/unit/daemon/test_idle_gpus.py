"""Whole rounds that ask a Prometheus which GPUs of running jobs are idle: who is named, and who comes last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurmsched.backends.prometheus import RUNNING_JOBS
from slurmsched.backends.recorded import unpack_recording
from slurmsched.daemon.job_reports import record_idle_gpus
from slurmsched.model import IdleGpus, JobId, JobState, ReasonCode, Verb
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import LearningSettings
from slurmsched.store.read_only import open_read_only
from tests.builders import job, node, share, snapshot
from tests.simulated_prometheus import serving
from tests.unit.daemon.world import PERIOD, START, World

HOUR = 3600.0
AGREES = "ckpt=usr1@30,idle=last"
DENIES = "ckpt=usr1@30"
ALL_IDLE, ONE_IDLE, BUSY = [0.2] * 8, [0.9] + [95] * 7, [40] * 8


class IdleWorld(World):
    """One node of 8 GPUs, a policy that ranks idle jobs last, and a Prometheus that tells what is in a file."""

    telling: Path

    def tell(self, use: Mapping[JobId, object]) -> None:
        self.telling.write_text(json.dumps({job: {"gpu": gpus} for job, gpus in use.items()}))

    def idle(self) -> dict[JobId, IdleGpus]:
        return dict(self.store.measurements.idle_gpus())

    def run_for(self, seconds: float) -> None:
        self.rounds(round(seconds / PERIOD))


@contextmanager
def world_in(folder: Path, *, last: bool = True, system: str = "synergy", order: str = "fifo") -> Iterator[IdleWorld]:
    world = IdleWorld(folder)
    world.telling = folder / "use.json"
    world.tell({})
    with serving(world.telling) as url:
        policy = replace(world.settings.policy, system=system, order=order, idle_last=last, las_queues=())
        world.settings = replace(
            world.settings, policy=policy, learning=LearningSettings(prometheus=url, idle_after=HOUR)
        )
        yield world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[IdleWorld]:
    with world_in(tmp_path) as made:
        yield made


def test_a_job_is_named_with_its_owner_once_its_gpus_were_idle_for_an_hour(world: IdleWorld) -> None:
    mine = world.submit(8, DENIES)
    world.tell({mine: ONE_IDLE})
    world.run_for(HOUR)
    assert world.idle() == {}, "a GPU is not judged before it could have been idle for so long"
    world.rounds(2)
    told = world.idle()[mine]
    assert (told.owner, told.idle, told.gpus, told.agreed) == ("alice", 1, 8, False)
    first = told.since
    assert START <= first <= told.at - HOUR
    world.rounds(3)
    assert (world.idle()[mine].since, world.idle()[mine].at) == (first, world.clock.now() - PERIOD)
    world.tell({mine: BUSY})
    world.rounds(1)
    assert world.idle() == {}


def idle_for_long(world: IdleWorld, hint: str, use: object = ALL_IDLE) -> JobId:
    """A job on all GPUs of which this has been told for an hour and a half."""
    job = world.submit(8, hint)
    world.tell({job: use})
    world.run_for(1.5 * HOUR)
    assert world.where()[job]
    return job


@pytest.mark.parametrize(
    ("hint", "use", "preempted"),
    [
        pytest.param(AGREES, ALL_IDLE, True, id="its owner agreed"),
        pytest.param(AGREES, ONE_IDLE, True, id="one idle rank of a gang"),
        pytest.param(DENIES, ALL_IDLE, False, id="its owner did not agree"),
        pytest.param(AGREES, BUSY, False, id="it is busy"),
        pytest.param(f"{AGREES},move=no", ALL_IDLE, False, id="a guard holds"),
    ],
)
def test_who_agreed_makes_room_for_all_others(world: IdleWorld, hint: str, use: object, preempted: bool) -> None:
    idle = idle_for_long(world, hint, use)
    newcomer = world.submit(8)
    report = world.round()
    requeues = [op for op in report.result.plan.operations if op.verb is Verb.REQUEUE]
    assert [op.subject for op in requeues] == ([idle] if preempted else [])
    assert [ranked.job for ranked in report.result.decision.order] == (
        [newcomer, idle] if preempted or "move" in hint else [idle, newcomer]
    )
    for op in requeues:
        assert op.reason.code is ReasonCode.IDLE_GPUS
        assert op.reason.sentence == (
            f"gives way to job {newcomer}: {len([u for u in use if u < 1])} of its 8 GPUs have been idle for"  # type: ignore[attr-defined]
            " 1 h 25 min, and its owner said idle=last"
        )


def test_without_the_setting_nobody_comes_last(tmp_path: Path) -> None:
    with world_in(tmp_path, last=False) as world:
        idle = idle_for_long(world, AGREES)
        newcomer = world.submit(8)
        order = [ranked.job for ranked in world.round().result.decision.order]
    assert (order, world.idle().keys()) == ([idle, newcomer], {idle})


def test_a_job_is_not_idle_again_right_after_its_restart(world: IdleWorld) -> None:
    idle, newcomer = idle_for_long(world, AGREES), world.submit(8, work=600.0)
    world.rounds(2)
    assert world.where()[newcomer]
    assert world.idle() == {}
    world.rounds(6)
    assert world.where()[idle], "it runs again"
    assert newcomer not in world.where()
    world.rounds(6)
    assert world.idle() == {}, "what was told is of its last run"
    assert world.round().result.decision.order[0].job == idle
    world.run_for(HOUR)
    assert world.idle().keys() == {idle}


def gone(world: IdleWorld, _job: JobId) -> None:
    world.settings = replace(world.settings, learning=replace(world.settings.learning, prometheus="http://127.0.0.1:1"))


def unseen(world: IdleWorld, _job: JobId) -> None:
    world.tell({})


def partly_seen(world: IdleWorld, job: JobId) -> None:
    world.telling.write_text(json.dumps({job: {"gpu": ALL_IDLE, "looks": [0] + [12] * 7}}))


@pytest.mark.parametrize("silence", [gone, unseen, partly_seen])
def test_where_nothing_is_told_nobody_comes_last_and_what_was_told_is_forgotten(
    world: IdleWorld, silence: Callable[[IdleWorld, JobId], None]
) -> None:
    idle = idle_for_long(world, AGREES)
    silence(world, idle)
    before = world.idle()[idle]
    newcomer = world.submit(8)
    report = world.round()
    assert [ranked.job for ranked in report.result.decision.order] == [idle, newcomer]
    assert report.result.plan.operations == () or all(
        op.verb is not Verb.REQUEUE for op in report.result.plan.operations
    )
    assert world.idle() == {idle: before}, "not told is not busy: it stays named, as of then"
    world.rounds(5)
    assert world.idle() == {}


def test_a_prometheus_that_is_down_is_left_alone_for_a_while(world: IdleWorld) -> None:
    idle = idle_for_long(world, AGREES)
    gone(world, idle)
    world.rounds(12)
    record = world.store.finished_runs.exporters()[RUNNING_JOBS]
    assert (record.failures, "does not answer" in record.problem) == (4, True), "after 5, 10 and 20 minutes"


@pytest.mark.parametrize(
    "use",
    [
        pytest.param({"gpu": [float("nan")] * 8}, id="no numbers"),
        pytest.param({"gpu": [-1.0] * 8}, id="less than nothing"),
        pytest.param({"gpu": [1e300] * 8}, id="huge"),
        pytest.param({"gpu": [0.0] * 7}, id="fewer GPUs than it has"),
        pytest.param({"gpu": [0.0] * 16}, id="more: another cluster has a job of this number"),
        pytest.param({"gpu": [0.0] * 8, "looks": [11] * 8}, id="not there all of the time"),
    ],
)
def test_what_cannot_be_of_this_job_makes_it_not_idle(world: IdleWorld, use: object) -> None:
    job = world.submit(8, AGREES)
    world.telling.write_text(json.dumps({job: use, "999": {"gpu": ALL_IDLE}}))
    world.run_for(1.5 * HOUR)
    assert world.idle() == {}


def test_what_is_told_of_is_every_running_job_managed_or_not(tmp_path: Path) -> None:
    with world_in(tmp_path) as world:
        theirs = world.submit(8, "")
        world.hook_holds = False
        world.tell({theirs: ALL_IDLE})
        world.cluster.advance(world.clock.now())
        world.run_for(1.5 * HOUR)
        assert world.idle()[theirs].idle == 8


def test_a_setting_ends_it_and_what_was_told_is_deleted(world: IdleWorld) -> None:
    idle = idle_for_long(world, AGREES)
    world.settings = replace(world.settings, learning=replace(world.settings.learning, idle_after=0.0))
    asked = world.store.finished_runs.exporters()[RUNNING_JOBS].asked
    world.rounds(2)
    assert world.idle() == {}
    assert world.store.finished_runs.exporters()[RUNNING_JOBS].asked == asked
    assert world.where()[idle]


def test_a_replay_of_the_recorded_round_decides_the_same(world: IdleWorld) -> None:
    idle_for_long(world, AGREES)
    world.submit(8)
    live = world.round().result
    with open_read_only(world.path) as store:
        found = store.recording()
    assert found is not None
    recording = unpack_recording(found[1])
    identity = world.backend.identity()
    again = run_round(recording.snapshot, recording.memory, world.settings, world.knowledge, identity)
    assert again.decision.victims
    assert (again.decision, again.plan) == (live.decision, live.plan)


POLICIES = [
    *("synergy", "synergy-greedy", "proportional", "drf", "tetris", "tesserae", "tesserae-ftf", "tesserae-packed"),
    *("tiresias", "yarn-cs", "gavel", "hadar", "hadare", "gandiva-fair"),
]


@pytest.mark.parametrize("system", POLICIES)
def test_under_every_policy_that_preempts_an_idle_job_makes_room(tmp_path: Path, system: str) -> None:
    with world_in(tmp_path, system=system, order="las") as world:
        idle = idle_for_long(world, AGREES)
        newcomer = world.submit(8)
        report = world.round()
        assert report.result.decision.order[-1].job == idle
        requeued = {op.subject: op.reason for op in report.result.plan.operations if op.verb is Verb.REQUEUE}
        assert requeued.keys() == {idle}, report.result.decision
        assert requeued[idle].code is ReasonCode.IDLE_GPUS
        world.rounds(1)
        assert world.where()[newcomer]


@pytest.mark.parametrize("system", POLICIES)
def test_under_every_policy_the_idle_one_of_two_is_preempted(tmp_path: Path, system: str) -> None:
    with world_in(tmp_path, system=system, order="las") as world:
        jobs = [world.submit(4, AGREES) for _ in range(2)]
        world.tell({jobs[0]: [0.0] * 4, jobs[1]: [90.0] * 4})
        world.run_for(1.5 * HOUR)
        world.submit(4)
        report = world.round()
        assert {op.subject for op in report.result.plan.operations if op.verb is Verb.REQUEUE} == {jobs[0]}


def test_a_task_of_an_array_is_asked_for_by_its_own_number_and_shared_gpus_are_not_judged(world: IdleWorld) -> None:
    long: dict[str, Any] = {"run_time": 2 * HOUR, "user": "bob"}
    jobs = [
        replace(job("7_3", 2, on=[share("n1", [0, 1])], **long), number="12"),
        job("7_4", 2, on=[share("n1", [2, 3])], **long),
        job(13, 1, on=[replace(share("n1", [4]), shards=4)], **long),
        job(14, 1, on=[share("n1", [5])], state=JobState.SUSPENDED, **long),
        job(15, 1, on=[share("n1", [6])], user="bob", run_time=HOUR),
    ]
    world.tell({"12": [0.0, 50.0], "7": [0.0, 0.0], "13": [0.0], "14": [0.0], "15": [0.0]})
    seen = snapshot([node("n1", shards=8)], jobs, time=START)
    told = record_idle_gpus(seen, world.settings, world.store, START)
    assert told == world.idle() == {"7_3": IdleGpus("7_3", "bob", 2, 1, START - HOUR, START)}
