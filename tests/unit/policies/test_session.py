"""A round's transaction: what was decided since a checkpoint can be taken back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import JobId, RankedJob, Reason, ReasonCode
from slurmsched.policies import PreemptionRule, Situation
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.cluster.resources import Allocation
from slurmsched.policies.orders import FirstInFirstOut, rank_by
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.place.placement import CONSOLIDATED
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Proportional
from slurmsched.policies.stages import Entitlement, RoundResources
from tests.builders import job, node, share, situation

RUNNING = job(1, gpus=8, on=[share("n1", 8, cpus=24)], hint="ckpt=usr1")
NEWCOMER = job(2, gpus=8)


class LastFirst:
    """The job with the highest number comes first, and may preempt every other."""

    name = "last first"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        return rank_by(situation, lambda job: (-int(job.id),), lambda job: f"number {job.id}")

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        return lambda newcomer, running: int(newcomer.id) > int(running.id)


def test_a_rollback_takes_back_allocations_evictions_and_reasons() -> None:
    session = Session(
        situation([node("n1"), node("n2")], [RUNNING, NEWCOMER]), LastFirst(), Proportional(), CONSOLIDATED
    )
    before = session.checkpoint()
    free = session.free_at_minimum.gpus.copy()
    for _ in range(2):
        session.evict("1", NEWCOMER)
        placement = session.find_placement(NEWCOMER, DemandLevel.MINIMUM, session.free_at_minimum)
        assert placement is not None
        session.allocate(NEWCOMER, placement)
        assert (session.victims, set(session.allocations())) == ({"1": "2"}, {"2"})
        session.rollback(before)
        assert (session.victims, set(session.allocations()), session.reasons) == ({}, {"1"}, {})
        assert np.array_equal(session.free_at_minimum.gpus, free)
        assert np.array_equal(session.free_as_planned.gpus, free)
        assert session.moves_left == session.situation.max_moves


def row(worth: dict[JobId, float]) -> Pipeline:
    """A policy to which a round is worth what the jobs with an allocation are worth together."""

    def utility(allocations: dict[JobId, Allocation]) -> float:
        return sum(worth[job] for job in allocations)

    def entitle(_: Situation) -> Entitlement:
        return Entitlement(order=LastFirst(), utility=utility)

    return Pipeline("by worth", None, Proportional(), CONSOLIDATED, entitle=entitle)


def test_a_preemption_that_adds_to_the_worth_stays() -> None:
    decision = row({"1": 1.0, "2": 2.0}).decide(situation([node("n1")], [RUNNING, NEWCOMER]))
    assert decision.victims == {"1": "2"}


def test_a_preemption_that_adds_nothing_is_taken_back_and_the_job_waits_for_gpus() -> None:
    decision = row({"1": 1.0, "2": 1.0}).decide(situation([node("n1")], [RUNNING, NEWCOMER]))
    assert (decision.victims, set(decision.targets)) == ({}, {"1"})
    assert decision.waiting["2"].code == "no_room"


def test_a_job_that_is_due_a_type_is_placed_on_it_and_keeps_its_request() -> None:
    nodes = [node("v", gpu_type="v100"), node("k", gpu_type="k80")]
    due = Entitlement(gpu_types={"2": frozenset({"k80"})})
    policy = Pipeline("due", FirstInFirstOut(), Proportional(), CONSOLIDATED, entitle=lambda _: due)
    seen = situation(nodes, [NEWCOMER])
    assert policy.decide(seen).targets["2"].nodes == ("k",)
    assert seen.jobs[0].original_request.gpu_type is None


def test_a_postponed_job_waits_for_the_reason_given() -> None:
    why = Reason(ReasonCode.ASKED_TO_STAY)
    postponed = Entitlement(postponed={"2": why})
    policy = Pipeline("later", FirstInFirstOut(), Proportional(), CONSOLIDATED, entitle=lambda _: postponed)
    assert policy.decide(situation([node("n1")], [NEWCOMER])).waiting == {"2": why}


def test_a_protected_job_is_not_preempted() -> None:
    why = Reason(ReasonCode.MIN_RUN_TIME, {"run": "1 min", "minimum": "5 min"})

    def entitle(_: Situation) -> Entitlement:
        return Entitlement(order=LastFirst(), protected={"1": why})

    policy = Pipeline("protecting", None, Proportional(), CONSOLIDATED, entitle=entitle)
    assert policy.decide(situation([node("n1")], [RUNNING, NEWCOMER])).victims == {}


@pytest.mark.parametrize(
    ("gpus", "preferred", "taken"),
    [
        pytest.param(4, ("k80", "v100"), ["k2"], id="of the preferred type, the node that the score prefers"),
        pytest.param(4, ("v100", "k80"), ["v"], id="the preferred type although the score prefers another node"),
        pytest.param(8, ("k80", "v100"), ["v"], id="another type where the preferred one has no room"),
        pytest.param(4, (), ["k2"], id="no preferred types"),
    ],
)
def test_preferred_types_come_before_the_node_score(gpus: int, preferred: tuple[str, ...], taken: list[str]) -> None:
    nodes = [node("k1", 5, "k80"), node("v", 8, "v100"), node("k2", 4, "k80")]
    due = Entitlement(preferred_types=preferred)
    policy = Pipeline("preferring", FirstInFirstOut(), Proportional(), CONSOLIDATED, entitle=lambda _: due)
    assert list(policy.decide(situation(nodes, [job(1, gpus)])).targets["1"].nodes) == taken


def test_an_entitlement_says_why_jobs_start_end_and_wait() -> None:
    starts, ends, waits = (Reason(code) for code in (ReasonCode.TURN, ReasonCode.SLICE_ENDED, ReasonCode.AWAITS_TURN))

    def entitle(_: Situation) -> Entitlement:
        return Entitlement(
            order=LastFirst(),
            why_start=lambda _: starts,
            why_end=lambda job, newcomer: replace(ends, details={"newcomer": f"{job.id} {newcomer.id}"}),
            why_wait=lambda allocations: {job: waits for job in ("0", "1", "2") if job not in allocations},
        )

    policy = Pipeline("telling", None, Proportional(), CONSOLIDATED, entitle=entitle)
    decision = policy.decide(replace(situation([node("n1")], [RUNNING, NEWCOMER, job(0, 8)]), max_moves=1))
    assert decision.targets["2"].reasons[0] == starts
    assert decision.waiting == {"1": replace(ends, details={"newcomer": "1 2"}), "0": waits}


def test_a_state_is_made_of_the_victims_and_the_allocations() -> None:
    def entitle(_: Situation) -> Entitlement:
        return Entitlement(order=LastFirst(), next_state=lambda victims, held: {"victims": victims, "held": [*held]})

    policy = Pipeline("remembering", None, Proportional(), CONSOLIDATED, entitle=entitle)
    decision = policy.decide(situation([node("n1")], [RUNNING, NEWCOMER]))
    assert decision.state == {"victims": {"1": "2"}, "held": ["2"]}


def test_jobs_that_measured_other_rates_have_the_same_demand_but_not_one_that_cannot_run_there() -> None:
    def on_both(name: str, v100: float, k80: float) -> Profile:
        return Profile(name, "", {}, "measured", {"v100": Scaling((1,), (v100,)), "k80": Scaling((1,), (k80,))})

    models = {
        name: on_both(name, *rates) for name, rates in {"a": (9.0, 1.0), "b": (4.0, 3.0), "c": (4.0, 0.0)}.items()
    }
    jobs = [job(number, hint=f"model={name}") for number, name in enumerate(models, 1)]
    asked = situation([node("n1"), node("n2", gpu_type="k80")], jobs, Knowledge(models))

    demands = RoundResources.of(asked, Proportional()).demands
    fast, even, confined = map(demands.of, jobs)

    assert fast is even
    assert fast is not confined
    assert [int(found.single_node[0].mask.sum()) for found in (fast, confined)] == [2, 1]
