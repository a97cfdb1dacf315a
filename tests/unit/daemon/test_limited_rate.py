"""Applying where slurmctld limits the rate of requests: small batches, a round that ends, and nothing that is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmsched.backends.simulated import SimulatedBackend
from slurmsched.daemon.batches import (
    BATCH_SECONDS,
    BatchPace,
    RoundEnd,
    batch_size,
    begun_in_time,
    end_of_starts,
)
from slurmsched.daemon.scheduler import schedule_round
from slurmsched.model import BlockCause, Hold, JobState, Operation, Outcome, Result, Verb
from slurmsched.report.rounds import has_blocked_operation
from tests.builders import node
from tests.unit.daemon.world import World, log_to


@pytest.mark.parametrize(
    ("jobs", "seconds", "size"),
    [
        pytest.param(50, 0.0, 100, id="a small cluster"),
        pytest.param(5_000, 0.0, 200, id="more jobs to read back after each batch"),
        pytest.param(100_000, 0.0, 1_000, id="no batch is larger than this"),
        pytest.param(5_000, 1.0, 15, id="a limited rate: what is sent in 15 s"),
        pytest.param(50, 0.01, 100, id="a limit that hardly matters"),
        pytest.param(50, 60.0, 1, id="a minute for each"),
    ],
)
def test_how_many_operations_are_one_batch(jobs: int, seconds: float, size: int) -> None:
    assert batch_size(jobs, seconds) == size


@pytest.mark.parametrize(
    ("done", "seconds", "left", "size"),
    [
        pytest.param(100, 0.0, 60.0, 200, id="no time at all: twice as many"),
        pytest.param(100, 1.0, 60.0, 200, id="a quick one: twice as many"),
        pytest.param(100, 15.0, 60.0, 100, id="as long as a batch may take"),
        pytest.param(100, 60.0, 60.0, 25, id="four times as long"),
        pytest.param(600, 1.0, 60.0, 1_000, id="never more than the most"),
        pytest.param(1, 100.0, 60.0, 1, id="one at least"),
        pytest.param(300, 10.0, 8.0, 120, id="half of the time that is left"),
        pytest.param(300, 10.0, -1.0, 90, id="what has to be finished goes on at its pace when time is over"),
    ],
)
def test_a_slow_slurmctld_is_sent_less_at_once(done: int, seconds: float, left: float, size: int) -> None:
    pace = BatchPace()
    pace.learn(done, seconds)
    assert pace.next_size(done, 1_000, left) == size


@pytest.mark.parametrize(
    ("left", "each", "begun"),
    [
        pytest.param(60.0, 0.0, 6, id="the first batch: nobody knows the pace"),
        pytest.param(60.0, 1.0, 6, id="time for all of them"),
        pytest.param(16.0, 1.0, 6, id="just enough: six updates, six releases and the four that were begun before"),
        pytest.param(15.0, 1.0, 5, id="a second less"),
        pytest.param(9.0, 1.0, 2, id="time for two"),
        pytest.param(5.0, 1.0, 0, id="those that were begun before are finished"),
        pytest.param(-5.0, 1.0, 0, id="late as it is"),
        pytest.param(0.0, 0.0, 0, id="no time, and no pace"),
    ],
)
def test_no_start_is_begun_that_cannot_be_released_in_time(left: float, each: float, begun: int) -> None:
    ready, begins = range(10), dict.fromkeys(range(4, 10), 2.0)
    assert begun_in_time(ready, begins, left, each) == tuple(range(4 + begun))


@pytest.mark.parametrize(
    ("left", "begun"),
    [
        pytest.param(9.0, 6, id="three holds, two tasks of an array and a start, which takes two commands"),
        pytest.param(8.9, 5, id="no time for the start"),
        pytest.param(4.9, 3, id="no time for the tasks of the array"),
        pytest.param(1.4, 0, id="no time for a hold"),
    ],
)
def test_holds_are_begun_only_in_time_and_in_order(left: float, begun: int) -> None:
    begins = {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.5, 4: 0.5, 5: 2.0}
    assert begun_in_time(range(6), begins, left, 1.5) == tuple(range(begun))


class Limited(SimulatedBackend):
    """A cluster that takes an operation every two seconds."""

    operation_seconds = 2.0
    batches: list[int]

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        self.batches.append(len(operations))
        self.clock.sleep(self.operation_seconds * len(operations))
        return super().execute(operations)


def limited(folder: Path, nodes: int) -> tuple[World, Limited]:
    world = World(folder, nodes=[node(f"n{number}") for number in range(nodes)])
    backend = Limited(world.cluster, world.clock)
    backend.batches = []
    world.backend = world.simulated = backend
    return world, backend


def test_a_round_takes_over_no_more_jobs_than_it_has_time_for_and_the_next_ones_the_rest(tmp_path: Path) -> None:
    world, backend = limited(tmp_path, 1)
    world.hook_holds = False
    jobs, said = [world.submit(8) for _ in range(100)], list[str]()
    began = world.clock.now()
    report = schedule_round(world.site(), world.store, world.clock, log=log_to(said))
    assert world.clock.now() - began < 60 + BATCH_SECONDS
    late = [outcome for outcome in report.outcomes if outcome.cause is BlockCause.OUT_OF_TIME]
    holds = [outcome.operation.subject for outcome in late if outcome.operation.verb is Verb.HOLD]
    assert 0 < len(holds) < 99
    assert f"{len(holds)} holds are left to the next round: its time is over" in said
    assert report.retry_at <= world.clock.now()
    free = {job.id for job in backend.observe().jobs if job.state is JobState.PENDING and job.hold is Hold.NONE}
    assert set(holds) <= free, "Slurm may start them meanwhile"
    world.rounds(6)
    free = {job.id for job in backend.observe().jobs if job.state is JobState.PENDING and job.hold is Hold.NONE}
    assert not free & set(jobs)
    assert sum(bool(nodes) for nodes in world.where().values()) == 1


def test_a_round_ends_in_time_and_the_next_ones_go_on(tmp_path: Path) -> None:
    world, backend = limited(tmp_path, 100)
    jobs, said = [world.submit(8) for _ in range(100)], list[str]()
    report = schedule_round(world.site(), world.store, world.clock, log=log_to(said))
    assert max(backend.batches) == 7
    late = [outcome for outcome in report.outcomes if outcome.cause is BlockCause.OUT_OF_TIME]
    assert late
    assert {outcome.result for outcome in late} == {Result.BLOCKED}
    limit = "slurmctld limits the rate of our requests (rl_enable): 7 changes are sent in 15 s, and what does not fit"
    assert [message for message in said if "rl_enable" in message] == [f"{limit} into a round is left to the next"]
    assert report.retry_at <= world.clock.now(), "at once, not after a period"
    assert not has_blocked_operation(report), "nobody has to allow anything"
    count = len([outcome for outcome in late if outcome.operation.verb is Verb.RELEASE])
    assert [message for message in said if "time is over" in message] == [
        f"{count} starts are left to the next round: its time is over"
    ]
    reshaped = {op.subject for op in report.result.plan.operations if op.verb is Verb.UPDATE} - {
        outcome.operation.subject for outcome in late
    }
    assert all(world.where()[job] for job in reshaped), "what was begun is finished"
    world.rounds(8)
    assert all(world.where()[job] for job in jobs), "every job runs in the end"


def test_a_round_does_not_wait_for_jobs_that_slurm_is_slow_to_start(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=[node(f"n{number}") for number in range(3)])
    jobs, said = [world.submit(8) for _ in range(3)], list[str]()
    world.cluster.refused |= dict.fromkeys(jobs, "Priority")  # the words for a job that Slurm has not looked at yet
    began = world.clock.monotonic()
    schedule_round(world.site(), world.store, world.clock, log=log_to(said))
    limit = world.settings.rounds.apply_timeout
    assert limit <= world.clock.monotonic() - began <= limit + 1
    assert said == ["3 released jobs have not started yet: the next round sees what became of them"]
    assert not world.held(), "they stay released"
    world.cluster.refused.clear()
    world.rounds(2)
    assert all(world.where()[job] for job in jobs)


def test_a_round_does_not_wait_for_them_where_others_are_left_to_the_next(tmp_path: Path) -> None:
    world, _ = limited(tmp_path, 100)
    world.cluster.refused |= dict.fromkeys([world.submit(8) for _ in range(100)], "Priority")
    began, said = world.clock.monotonic(), list[str]()
    schedule_round(world.site(), world.store, world.clock, log=log_to(said))
    assert world.clock.monotonic() - began <= world.settings.rounds.apply_timeout
    assert [message.partition(" released jobs ")[2] for message in said if "released" in message] == [
        "have not started yet: the next round sees what became of them"
    ]


def test_a_round_waits_for_a_start_that_another_job_left_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    long = world.submit(8)
    world.rounds(3)
    newcomer = world.submit(8)
    world.cluster.refused[newcomer] = "Priority"
    for _ in range(100):
        if any(op.verb is Verb.REQUEUE for op in world.round().result.plan.operations):
            break
        world.later(3000)
    assert newcomer in world.held(), "it was taken back"
    assert world.where()[long], "and the other one returned to its place"


def test_the_slowest_large_batch_tells_how_long_commands_take() -> None:
    pace = BatchPace()
    assert (pace.each, pace.left(30.0)) == (0.0, 30.0), "nobody knows yet"
    pace.learn(300, 1.5)
    assert (pace.each, pace.left(30.0)) == (0.005, 30.0), "one batch: by its commands"
    pace.learn(100, 8.0)
    assert (pace.each, pace.left(30.0)) == (0.065, 27.0), "releases, after which slurmctld tries what is released"
    pace.learn(300, 2.0)
    assert pace.each == 0.065, "the next updates will be released too"
    pace.learn(1, 0.6)
    assert pace.each == pytest.approx(0.074), "a small one tells how long it takes to read one back"
    assert pace.left(30.0) == pytest.approx(28.8)
    for _ in range(3):
        pace.learn(200, 4.0)
    assert pace.left(30.0) == pytest.approx(22.0), "longer, the more have started"


def test_where_batches_take_long_to_be_read_back_they_are_not_made_small() -> None:
    """With 10,000 running jobs 28 commands took 3.7 s, as 100 did."""
    pace = BatchPace()
    for commands, seconds in ((100, 4.0), (200, 4.2), (28, 3.7)):
        pace.learn(commands, seconds)
    assert pace.next_size(200, 1_000, left=10.0) == 400


def test_a_round_ends_in_as_long_as_those_took_that_were_cut_short() -> None:
    end = RoundEnd()
    assert end.expected(4.0) == 8.0, "none was: twice its first look"
    end.learn(4.0, 6.0)
    assert end.expected(3.0) == pytest.approx(6.6), "a tenth more than it took"
    end.learn(4.0, 4.0)
    assert end.expected(3.0) == pytest.approx(5.5), "a shorter one counts half"
    end.learn(1.0, 60.0)
    assert end.expected(3.0) == pytest.approx(4.95), (
        "one that hung for a minute counts no more than it could have taken"
    )


@pytest.mark.parametrize(
    ("now", "last_look", "end"),
    [
        pytest.param(120.0, 5.0, 155.0, id="a minute from its beginning, but for its last look"),
        pytest.param(150.0, 5.0, 170.0, id="twenty seconds at least, after 50 for the decision"),
    ],
)
def test_when_a_round_begins_no_more_starts(now: float, last_look: float, end: float) -> None:
    assert end_of_starts(100.0, now, 60.0, last_look) == end
