"""A running job starts again on more where that clearly pays, and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from slurmsched.model import Decision, Job, NodeAllocation, Reason, ReasonCode, Reservation, Resources
from slurmsched.policies.admit.allocate import AllocateFree
from slurmsched.policies.orders import FirstInFirstOut
from slurmsched.policies.pipeline import ADMISSION_STEPS, Pipeline
from slurmsched.policies.place.placement import CONSOLIDATED
from slurmsched.policies.policies import policy
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Tune
from slurmsched.policies.stages import AdmissionStep
from tests.builders import job, node, situation, snapshot

HOUR = 3600


def image(duration: int, cpus: int = 3, memory: int = 62_000, number: int = 1) -> Job:
    """An image job with its GPU share on the first GPU; it would be faster with more CPUs."""
    hint = f"model=resnet18,mem=tune,ckpt=usr1,duration={duration}"
    return job(number, cpus=3, hint=hint, on=[NodeAllocation("n1", Resources(1, cpus, memory), "v100", (0,))])


def decide(running: Job, others: int = 0, **other: object) -> Decision:
    """`others` are CPUs that somebody else has."""
    there = node(used_cpus=others)
    return policy("synergy", "fifo").decide(situation([there], [running], **other))  # type: ignore[arg-type]  # by name


def test_a_long_job_with_spare_cpus_beside_it_is_restarted_on_them() -> None:
    target = decide(image(10 * HOUR)).targets["1"]
    assert target.resources.cpus > 3
    assert target.speed > 1.3
    assert target.nodes == ("n1",)
    assert target.reasons[0].code is ReasonCode.PAYS_FOR_RESTART


@pytest.mark.parametrize(
    ("restarts", "service", "restarted"),
    [
        pytest.param(0, 0.5 * HOUR, True, id="it was never restarted: until its end"),
        pytest.param(1, 1.0 * HOUR, True, id="one run of an hour: as long again"),
        pytest.param(8, 1.0 * HOUR, False, id="eight restarts in an hour: the next will be as soon"),
    ],
)
def test_what_a_restart_saves_lasts_as_long_as_the_runs_of_the_job(
    restarts: int, service: float, restarted: bool
) -> None:
    often = replace(image(10 * HOUR), restarts=restarts)
    assert bool(decide(often, service={"1": service}).victims) is restarted


@pytest.mark.parametrize(
    ("costs", "restarted"),
    [
        pytest.param({}, True, id="the usual cost"),
        pytest.param({"1": 2.0 * HOUR}, False, id="a restart takes it two hours"),
        pytest.param({"2": 2.0 * HOUR}, True, id="that of another job is not its own"),
    ],
)
def test_a_restart_pays_by_what_it_costs_the_job(costs: dict[str, float], restarted: bool) -> None:
    assert bool(decide(image(10 * HOUR), restart_costs=costs).victims) is restarted


@pytest.mark.parametrize(
    ("running", "others", "other"),
    [
        pytest.param(image(300), 0, {}, id="it ends before a restart would pay"),
        pytest.param(image(10 * HOUR), 21, {}, id="nothing is spare"),
        pytest.param(image(10 * HOUR), 0, {"max_moves": 0}, id="no moves are left"),
        pytest.param(
            image(10 * HOUR), 0, {"non_preemptible": {"1": Reason(ReasonCode.NO_CHECKPOINT)}}, id="it must not be moved"
        ),
        pytest.param(image(10 * HOUR, cpus=12), 0, {}, id="it has what makes it fastest"),
    ],
)
def test_it_keeps_its_lease_where(running: Job, others: int, other: dict[str, object]) -> None:
    target = decide(running, others, **other).targets["1"]
    assert target.reasons[0].code is ReasonCode.KEEPS_LEASE
    assert target.allocations == running.allocations


@pytest.mark.parametrize(
    ("steps", "other", "cpus"),
    [
        pytest.param(ADMISSION_STEPS, {}, 9, id="the policy takes them back"),
        pytest.param((AllocateFree,), {}, 3, id="the policy restarts nobody with less"),
        pytest.param(ADMISSION_STEPS, {"unmovable": frozenset({"1"})}, 3, id="the job could not give them back"),
    ],
)
def test_cpus_of_idle_gpus_are_lent_where_they_can_be_taken_back(
    steps: tuple[Callable[[Session], AdmissionStep], ...], other: dict[str, object], cpus: int
) -> None:
    """Seven GPUs beside the job are idle, and all CPUs are their share and its own."""
    made = Pipeline("made", FirstInFirstOut(), Tune(), CONSOLIDATED, admission_steps=steps)
    decided = made.decide(situation([node()], [image(10 * HOUR)], **other))  # type: ignore[arg-type]  # by name
    assert decided.targets["1"].resources.cpus == cpus


def test_it_is_not_restarted_where_a_reservation_begins_before_it_would_end() -> None:
    running = replace(image(10 * HOUR), time_limit=12 * HOUR)
    for begins, code in ((13, ReasonCode.PAYS_FOR_RESTART), (11, ReasonCode.KEEPS_LEASE)):
        works = Reservation("works", frozenset({"n1"}), 10_000.0 + begins * HOUR, 1e9)
        seen = snapshot([node()], [running], reservations=(works,))
        decided = policy("synergy", "fifo").decide(situation([], [], seen=seen))
        assert decided.targets["1"].reasons[0].code is code


def test_a_newcomer_has_what_it_needs_before_anybody_is_enlarged() -> None:
    newcomer = job(2, gpus=7, cpus=21, memory=400_000)
    decided = policy("synergy", "fifo").decide(situation([node()], [image(10 * HOUR), newcomer]))
    assert decided.targets["2"].resources == Resources(7, 21, 400_000)
    assert decided.targets["1"].resources.cpus == 3
