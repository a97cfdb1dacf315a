"""The daemon's policies in the replay: what they see, and what is made of their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from slurmsched.model import Decision, NodeAllocation, Resources, Target
from slurmsched.policies.policies import POLICIES, policy
from slurmsched.policies.stages import Situation
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import (
    LivePolicy,
    SubmissionForm,
    daemon_rounds,
    knowledge_of,
    nodes_of,
    submissions,
)
from slurmsched.simulation.replay import Decider, GpuWorkers, ReplayJob, ReplayResult, RoundSemantics

ONE_NODE = GpuWorkers.from_gpu_counts({"fast": 2})
THREE_NODES = GpuWorkers(("fast", "slow", "slow"), (0, 1, 2))
LEASES = daemon_rounds(10.0, 100.0, whole_steps=False)


def work(name: str, seconds: float, width: int = 1, *, arrival: float = 0.0, slow: float = 0.5) -> ReplayJob:
    """A step a second on the fast type; two of these on one GPU keep eight tenths of their rates."""
    beside = {"fast": {"m": 0.8}, "slow": {"m": 0.8}} if width == 1 else {}
    return ReplayJob(name, width, seconds, {"fast": 1.0, "slow": slow}, arrival, "m", colocated_fractions=beside)


def live(
    jobs: list[ReplayJob], workers: GpuWorkers, name: str, order: str = "fifo", form: SubmissionForm | None = None
) -> Decider:
    shards = 2 if form and form.half_gpus else 0
    submitted = submissions(jobs, lambda job: job.steps, form)
    return LivePolicy(policy(name, order), nodes_of(workers, shards=shards), submitted, knowledge_of(jobs, "fast"))


def run(
    jobs: list[ReplayJob],
    name: str,
    order: str = "fifo",
    rounds: RoundSemantics = LEASES,
    workers: GpuWorkers = ONE_NODE,
) -> ReplayResult:
    return replay(jobs, workers, live(jobs, workers, name, order), rounds)


def test_a_lease_is_paid_for_once() -> None:
    done = run([work("a", 250)], "proportional")
    assert done.end_times == {"a": 260.0}
    assert [record.kept_grants for record in done.records] == [0, 1, 1]


def test_a_waiting_job_starts_with_the_round_after_an_end() -> None:
    done = run([work("a", 150, 2), work("b", 50, 2)], "proportional")
    assert done.end_times == {"a": 160.0, "b": 260.0}


@pytest.mark.parametrize(
    ("rounds", "first"),
    [
        pytest.param(LEASES, "long", id="a guard protects who has run for less than twenty minutes"),
        pytest.param(RoundSemantics(100, whole_steps=False), "short", id="placed anew, the shortest goes first"),
    ],
)
def test_who_ends_first_of_a_long_job_and_a_short_newcomer(rounds: RoundSemantics, first: str) -> None:
    done = run([work("long", 1000, 2), work("short", 300, 2, arrival=50)], "proportional", "srtf", rounds)
    assert min(done.end_times, key=done.end_times.__getitem__) == first


def test_a_preempted_job_pays_for_its_restart() -> None:
    jobs = [work("long", 9000, 2), work("short", 200, 2, arrival=1450)]
    done = {job.job: job for job in run(jobs, "proportional", "srtf").jobs}
    assert (done["long"].restarts, done["short"].restarts) == (1, 0)
    assert done["short"].end == 1710.0
    assert done["long"].end == pytest.approx(9000 + 10 + 10 + 300)


def test_gangs_may_be_placed_on_several_types() -> None:
    workers = GpuWorkers.from_gpu_counts({"fast": 1, "slow": 1})
    done = run([work("gang", 100, 2)], "hadar", workers=workers)
    assert done.records[0].granted_gpus == {"fast": 1, "slow": 1}
    assert done.end_times == {"gang": pytest.approx(210.0)}


def test_two_jobs_of_half_a_gpu_share_one() -> None:
    jobs, one_gpu = [work("a", 80), work("b", 160)], GpuWorkers.from_gpu_counts({"fast": 1})
    packed = live(jobs, one_gpu, "tesserae-packed", form=SubmissionForm(half_gpus=True))
    done = replay(jobs, one_gpu, packed, replace(LEASES, restart_seconds=0.0))
    assert done.end_times == {"a": pytest.approx(100.0), "b": pytest.approx(180.0)}
    assert done.records[0].running == 2


def test_a_shorter_job_comes_beside_the_one_that_would_give_way_to_it() -> None:
    """The newcomer comes when the guard lets go of the long job. With a partner neither is restarted: the newcomer runs
    at eight tenths of its rate and ends 140 s later, the long job loses two tenths of that time instead of all."""
    jobs, one_gpu = [work("long", 9000), work("short", 600, arrival=1450)], GpuWorkers.from_gpu_counts({"fast": 1})
    packed = live(jobs, one_gpu, "tesserae-packed", "srtf", form=SubmissionForm(half_gpus=True))
    alone = live(jobs, one_gpu, "tesserae", "srtf")
    shared, apart = (
        {job.job: (job.end, job.restarts) for job in replay(jobs, one_gpu, decider, LEASES).jobs}
        for decider in (packed, alone)
    )
    assert apart == {"long": (pytest.approx(9720), 1), "short": (pytest.approx(2110), 0)}
    together = 10 + 600 / 0.8
    assert shared["short"] == (pytest.approx(1500 + together), 0)
    assert shared["long"] == (pytest.approx(10 + 9000 + 0.2 * (together - 10), abs=3), 0)


@dataclass
class Scripted:
    """Decides round after round what it was given, for the jobs that there are."""

    rounds: list[tuple[Sequence[Target], dict[str, str]]]
    name: str = "scripted"

    def decide(self, situation: Situation) -> Decision:
        known, (targets, victims) = situation.snapshot.jobs_by_id, self.rounds.pop(0)
        return Decision(self.name, (), {one.job: one for one in targets if one.job in known}, {}, victims)


def on(job: str, device: int, *, whole: bool = False, beside: tuple[str, ...] = ()) -> Target:
    resources, shards = Resources(1 if whole else 0, 1, 0), 0 if whole else 1
    return Target(job, (NodeAllocation("fast-0", resources, "fast", (device,), shards),), beside=beside)


def test_a_victim_that_is_to_have_as_much_of_another_gpu_of_its_node_moves_there() -> None:
    """In the second round both jobs are to share one GPU, so that a newcomer has the other."""
    jobs = [work("stays", 500), work("moves", 500), work("whole", 300, arrival=90)]
    submitted = submissions(jobs, lambda job: job.steps, SubmissionForm(half_gpus=True))
    submitted["whole"] = submissions(jobs, lambda job: job.steps)["whole"]
    apart = [on("1", 0), on("2", 1)]
    shared = [on("1", 0, beside=("2",)), on("2", 0, beside=("1",)), on("3", 1, whole=True)]
    scripted = Scripted([(apart, {}), (shared, {"2": "3"}), *[(shared, {})] * 20])
    decider = LivePolicy(scripted, nodes_of(ONE_NODE, shards=2), submitted, knowledge_of(jobs, "fast"))
    done = {job.job: job for job in replay(jobs, ONE_NODE, decider, LEASES).jobs}
    assert {job: outcome.restarts for job, outcome in done.items()} == {"stays": 0, "moves": 1, "whole": 0}
    assert done["whole"].end == pytest.approx(100 + 10 + 300)
    assert done["stays"].end == pytest.approx(100 + (500 - 90) / 0.8, abs=10)


def test_copies_of_a_forked_job_share_its_steps_and_measure_their_rates() -> None:
    """Told that all nodes are alike, it learns better: from the second round on the copies are through together."""
    jobs = [work("only", 2000)]
    told = knowledge_of([replace(jobs[0], rates={"fast": 7.0, "slow": 7.0})], "fast")
    submitted = submissions(jobs, lambda job: job.steps, SubmissionForm(copies=3))
    hadare = LivePolicy(policy("hadare"), nodes_of(THREE_NODES), submitted, told)
    done = replay(jobs, THREE_NODES, hadare, RoundSemantics(360, exchange_seconds=5, leases=True))
    assert [len(job) for job in submitted.values()] == [3]
    assert done.records[0].granted_gpus == {"fast": 1, "slow": 2}
    assert done.end_times == {"only": pytest.approx(1015, abs=5)}
    assert done.jobs[0].restarts == 0


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_ends_every_job(name: str) -> None:
    jobs = [work(str(at), 100 + 130 * at, (1, 2, 1)[at % 3], arrival=60.0 * at) for at in range(7)]
    workers = GpuWorkers.from_gpu_counts({"fast": 2, "slow": 4}, per_server=2)
    done = run(jobs, name, workers=workers)
    assert done.end_times.keys() == {job.id for job in jobs}
    assert all(job.jct >= job.work for job in done.jobs)
