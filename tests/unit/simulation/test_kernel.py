"""The replay kernel: rounds of every semantics over tiny queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from slurmsched.simulation.kernel import replay
from slurmsched.simulation.replay import (
    Decider,
    GpuWorkers,
    Grant,
    ReplayError,
    ReplayJob,
    ReplayResult,
    RoundInput,
    RoundSemantics,
)


@dataclass
class Scripted:
    """Grants what it is told, round after round, then the last of it again; jobs that ended are left out."""

    script: Sequence[Sequence[Grant]]
    name: str = "scripted"

    def decide(self, question: RoundInput) -> Sequence[Grant]:
        grants = self.script[min(question.round_number, len(self.script) - 1)]
        return [grant for grant in grants if all(job in question.jobs for job in grant.jobs)]


def work(name: str, steps: int, *, width: int = 1, arrival: float = 0.0, model: str = "") -> ReplayJob:
    beside = {"v100": {"b": 0.5}, "k80": {"b": 0.5}}
    return ReplayJob(
        name, width, steps, {"v100": 10.0, "p100": 5.0, "k80": 2.0}, arrival, model, colocated_fractions=beside
    )


def replay_rounds(
    jobs: Sequence[ReplayJob], workers: GpuWorkers, decider: Decider, *, period: float = 360.0, overhead: float = 0.0
) -> ReplayResult:
    semantics = RoundSemantics(period, restart_seconds=overhead, ends_with_busiest=True)
    return replay(jobs, workers, decider, semantics)


CLUSTER = GpuWorkers.from_gpu_counts({"v100": 2, "k80": 2}, per_server=2)


def test_workers_lie_server_after_server() -> None:
    workers = GpuWorkers.from_gpu_counts({"v100": 5, "k80": 2}, per_server=4)
    assert workers.server_indices == (0, 0, 0, 0, 1, 2, 2)
    assert workers.workers_by_type == {"v100": (0, 1, 2, 3, 4), "k80": (5, 6)}


def test_a_job_ends_when_it_ends_though_its_gpus_wait_for_the_rounds_end() -> None:
    script = [[Grant(("a",), (0,)), Grant(("b",), (1,))], [Grant(("c",), (0,))]]
    done = replay_rounds([work("a", 100), work("b", 1000), work("c", 10)], CLUSTER, Scripted(script), period=100)
    assert done.end_times == {"a": 10.0, "b": 100.0, "c": 101.0}
    assert done.records[0].seconds == 100.0
    assert done.records[0].busy_gpu_seconds == {"v100": 110.0}
    assert done.utilisation == pytest.approx(111 / (4 * 101))


def test_the_last_round_is_as_short_as_its_longest_job() -> None:
    done = replay_rounds([work("a", 1005)], CLUSTER, Scripted([[Grant(("a",), (0,))]]), period=100)
    assert [record.seconds for record in done.records] == [100.0, 0.5]


def test_a_mixed_gang_runs_at_the_rate_of_its_slowest_type() -> None:
    done = replay_rounds([work("a", 40, width=2)], CLUSTER, Scripted([[Grant(("a",), (1, 2))]]))
    assert done.end_times == {"a": 20.0}


def test_two_jobs_share_a_gpu_each_with_part_of_its_rate() -> None:
    pair = Grant(("a", "b"), (0,))
    done = replay_rounds([work("a", 50, model="b"), work("b", 100, model="b")], CLUSTER, Scripted([[pair]]))
    assert done.end_times == {"a": 10.0, "b": 20.0}
    assert done.records[0].busy_gpu_seconds == {"v100": 20.0}


@pytest.mark.parametrize(
    ("second", "end"),
    [
        pytest.param((0,), 209.0, id="an extended lease costs nothing"),
        pytest.param((1,), 218.0, id="other workers cost the overhead again"),
    ],
)
def test_a_start_costs_the_overhead(second: tuple[int, ...], end: float) -> None:
    script = [[Grant(("a",), (0,))], [Grant(("a",), second)]]
    done = replay_rounds([work("a", 2000)], CLUSTER, Scripted(script), period=200, overhead=9)
    assert done.end_times == {"a": end}


def test_copies_of_a_job_add_up_to_all_its_steps() -> None:
    copies = [Grant(("a",), (0,), steps=(600,)), Grant(("a",), (2,), steps=(120,))]
    done = replay_rounds([work("a", 720)], CLUSTER, Scripted([copies]), period=100, overhead=0)
    assert done.end_times == {"a": 60.0}


@pytest.mark.parametrize(
    ("steps", "restart", "copied", "rounds"),
    [
        pytest.param(480, 0.0, True, [0.0, 40.0], id="when its copies are through"),
        pytest.param(480, 0.0, False, [0.0, 100.0], id="not with a job of one copy"),
        pytest.param(960, 30.0, True, [0.0, 100.0, 130.0], id="not before a restart takes"),
    ],
)
def test_a_round_may_end_with_a_job_that_runs_as_copies(
    steps: int, restart: float, copied: bool, rounds: list[float]
) -> None:
    """The copies do 12 steps per second, beside another job."""
    first, last = (
        [Grant(("a",), (0,), steps=(left * 10 / 12,)), Grant(("a",), (2,), steps=(left * 2 / 12,))]
        for left in (steps, steps - 840)
    )
    ends, other = RoundSemantics(100.0, restart_seconds=restart, ends_with_copies=True), Grant(("b",), (1,))
    script = Scripted([[*first, other], [*last, other]] if copied else [[Grant(("a",), (0,)), other]])
    done = replay([work("a", steps), work("b", 5000)], CLUSTER, script, ends)
    assert [record.time for record in done.records[: len(rounds)]] == rounds


def test_a_copy_does_no_more_than_its_steps() -> None:
    copies = [Grant(("a",), (0,), steps=(100,)), Grant(("a",), (2,), steps=(500,))]
    done = replay_rounds([work("a", 600)], CLUSTER, Scripted([copies]), period=100, overhead=0)
    assert done.records[0].busy_gpu_seconds == {"v100": 10.0, "k80": 100.0}
    assert done.end_times == {"a": 200.0}


@pytest.mark.parametrize(
    ("semantics", "end", "rounds"),
    [
        pytest.param(RoundSemantics(100), 245.0, 3, id="it ends when its work is done"),
        pytest.param(RoundSemantics(100, ends_within_round=False), 300.0, 3, id="it ends with its round"),
        pytest.param(RoundSemantics(100, first_round=7.0), 252.0, 3, id="the first round is later"),
        pytest.param(RoundSemantics(100, restart_seconds=10), 255.0, 3, id="its start costs once"),
        pytest.param(RoundSemantics(100, exchange_seconds=10), 275.0, 3, id="every round begins with an exchange"),
        pytest.param(RoundSemantics(10.25), 246.2, 25, id="what is left of a step is lost"),
        pytest.param(RoundSemantics(10.25, whole_steps=False), 245.0, 24, id="steps may be divided"),
    ],
)
def test_what_a_round_costs(semantics: RoundSemantics, end: float, rounds: int) -> None:
    script = Scripted([[Grant(("a",), (0,))]])
    done = replay([work("a", 2450)], CLUSTER, script, semantics)
    assert done.end_times == {"a": pytest.approx(end)}
    assert done.rounds == rounds


@pytest.mark.parametrize(
    ("semantics", "end"),
    [
        pytest.param(RoundSemantics(100, whole_steps=False), 90.0, id="a partner is as slow until the round ends"),
        pytest.param(
            RoundSemantics(100, whole_steps=False, partner_speeds_up=True), 70.0, id="a partner has the GPU to itself"
        ),
    ],
)
def test_when_the_other_of_a_pair_has_ended(semantics: RoundSemantics, end: float) -> None:
    pair = Grant(("a", "b"), (0,), rates=(5.0, 5.0), rates_alone=(10.0, 10.0))
    done = replay([work("a", 250), work("b", 450)], CLUSTER, Scripted([[pair]]), semantics)
    assert done.end_times == {"a": 50.0, "b": end}


@pytest.mark.parametrize("skips", [pytest.param(False, id="each round"), pytest.param(True, id="equal rounds at once")])
def test_equal_rounds_may_be_skipped(skips: bool) -> None:
    jobs = [work("a", 2450), work("b", 3000, arrival=730.0)]
    script = Scripted([[Grant(("a",), (0,)), Grant(("b",), (1,))]])
    done = replay(jobs, CLUSTER, script, RoundSemantics(100), same_until_change=skips)
    assert done.end_times == {"a": 245.0, "b": 1100.0}
    assert done.rounds == 6
    assert len(done.records) == (2 if skips else 6)


def test_only_the_window_has_to_end() -> None:
    jobs = [work("a", 100), work("b", 10**9, arrival=1.0)]
    done = replay(jobs, CLUSTER, Scripted([[Grant(("a",), (0,))]]), RoundSemantics(100), window=(0, 1))
    assert [job.completed for job in done.jobs] == [True, False]
    assert len(done.measured_jobs) == 1


def test_two_jobs_of_one_id_are_told_apart_from_copies() -> None:
    with pytest.raises(ReplayError, match="there are several jobs a: give each an id of its own"):
        replay([work("a", 1), work("a", 2)], CLUSTER, Scripted([[Grant(("a",), (0,))]]), RoundSemantics(100))


def test_a_start_is_no_restart_and_a_move_is_both() -> None:
    script = [[Grant(("a",), (0,))], [Grant(("a",), (1,))], [], [Grant(("a",), (1,))]]
    done = replay([work("a", 3500)], CLUSTER, Scripted(script), RoundSemantics(100, restart_seconds=10))
    assert (done.jobs[0].restarts, done.jobs[0].migrations) == (2, 1)


def test_a_job_is_seen_at_the_round_after_it_arrives() -> None:
    script = [[Grant(("a",), (0,))], [Grant(("b",), (0,))]]
    done = replay_rounds([work("a", 1000), work("b", 100, arrival=30.0)], CLUSTER, Scripted(script), period=100)
    assert done.end_times["b"] == 110.0
    assert done.jct == (100.0, 80.0)


def test_an_empty_cluster_waits_for_the_next_arrival() -> None:
    done = replay_rounds([work("a", 10, arrival=500.0)], CLUSTER, Scripted([[Grant(("a",), (0,))]]))
    assert done.end_times == {"a": 501.0}


@pytest.mark.parametrize(
    ("grants", "said"),
    [
        pytest.param([Grant(("a",), (0,)), Grant(("b",), (0,))], "a worker is granted twice", id="a worker twice"),
        pytest.param([Grant(("a",), (7,))], "there are no such workers", id="a worker that is not there"),
        pytest.param([Grant(("x",), (0,))], "x is not there", id="a job that is not there"),
        pytest.param([Grant(("a", "a"), (0,))], "expected one job or two", id="a job beside itself"),
        pytest.param(
            [Grant(("a",), (0,)), Grant(("a",), (1,))], "copies of one job need the steps of each", id="plain copies"
        ),
        pytest.param([Grant(("a",), ())], "it needs workers, or rates and moves", id="nowhere"),
        pytest.param([], "never runs job a and 1 other job", id="nothing for ever"),
    ],
)
def test_what_cannot_be_granted_is_named(grants: list[Grant], said: str) -> None:
    @dataclass
    class Stubborn:
        name: str = "stubborn"

        def decide(self, question: RoundInput) -> Sequence[Grant]:
            return grants if question.jobs else []

    with pytest.raises(ReplayError, match=said):
        replay_rounds([work("a", 10), work("b", 10)], CLUSTER, Stubborn())
