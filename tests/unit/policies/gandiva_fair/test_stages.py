"""Tickets with the stages of other policies, and the stages of Gandiva_fair with what others entitle to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from slurmsched.arrays import Ints
from slurmsched.model import Job, JobId, RankedJob, ReasonCode
from slurmsched.policies.admit.allocate import AllocateFree, WaitForCompleting
from slurmsched.policies.admit.preempt import Preempt
from slurmsched.policies.cluster.resources import FreeResources
from slurmsched.policies.gandiva_fair.policy import GandivaTickets
from slurmsched.policies.gandiva_fair.stride import FillIdle, SplitStride
from slurmsched.policies.orders import never_preempts, rank_by
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.place.placement import FIRST_FIT, NodeScore, PartDemand
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Proportional, Sizing, Tune
from slurmsched.policies.stages import AdmissionStep, Entitlement, PreemptionRule, Situation
from tests.builders import job, node, share, situation
from tests.turning import Cluster, tickets

Steps = Sequence[Callable[[Session], AdmissionStep]]
GENERIC: Steps = (AllocateFree, WaitForCompleting, Preempt)
STRIDE: Steps = (SplitStride, FillIdle)


@dataclass(frozen=True)
class LastFit(NodeScore):
    """The last pool that fits."""

    name: str = "last fit"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        return candidates[::-1][:count]


def by_tickets(steps: Steps, sizing: Sizing | None = None) -> Pipeline:
    return Pipeline("by tickets", None, sizing or Tune(), LastFit(), admission_steps=steps, entitle=GandivaTickets())


def demanding(gpus: int, count: int = 8) -> list[Job]:
    """Jobs of two users that want more than there is; those of u0 are faster with more CPUs."""
    hints = ("model=resnet18", "model=bert")
    return [job(n, gpus, user=f"u{n % 2}", hint=hints[n % 2]) for n in range(2 * count)]


@pytest.mark.parametrize("steps", [pytest.param(GENERIC, id="generic steps"), pytest.param(STRIDE, id="split stride")])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_tickets_hold_with_tuned_sizes_on_another_node_score(steps: Steps, gpus: int) -> None:
    jobs = demanding(gpus, count=32 // gpus)
    cluster = Cluster([node("n1"), node("n2")], jobs, tickets((3, 1)), chosen=by_tickets(steps))
    cluster.run(48)
    had = sum(cluster.service[one.id] for one in jobs if one.user == "u0") / cluster.time
    assert had == pytest.approx(12.0, rel=0.06)


def test_generic_steps_place_by_tickets_where_the_other_node_score_says() -> None:
    due = situation([node("n1"), node("n2"), node("n3")], [job(1, 4), job(2, 4), job(3, 8)])
    assert {one.job: one.nodes for one in by_tickets(GENERIC).decide(due).targets.values()} == {
        "1": ("n3",),
        "2": ("n3",),
        "3": ("n2",),
    }


def test_generic_steps_tune_the_sizes_of_jobs_that_are_due_by_tickets() -> None:
    jobs = [job(1, 4, user="u0", hint="model=resnet18"), job(2, 4, user="u1", hint="model=bert")]
    cpus = {
        one.job: one.allocations[0].resources.cpus
        for one in by_tickets(GENERIC).decide(situation([node("n1")], jobs)).targets.values()
    }
    assert cpus["1"] > 12 > cpus["2"]


def test_generic_steps_say_what_tickets_say() -> None:
    waiting = [job(2, 8, user="bob"), job(3, 8, user="carol")]
    cluster = Cluster([node("n1")], [job(1, 8), *waiting], tickets((1,)), chosen=by_tickets(GENERIC, Proportional()))
    cluster.run(1)
    assert cluster.decision
    assert [why.code for why in cluster.decision.waiting.values()] == [ReasonCode.AWAITS_TURN] * 2
    assert [target.reasons[0].code for target in cluster.decision.targets.values()] == [ReasonCode.TURN]
    codes = set[ReasonCode]()
    for _ in range(8):
        cluster.run(1)
        codes |= {cluster.decision.waiting[victim].code for victim in cluster.decision.victims}
    assert codes == {ReasonCode.SLICE_ENDED}


@dataclass(frozen=True)
class ByPass:
    """The lowest pass first, without preemption by other steps."""

    passes: dict[JobId, float]
    name: str = "pass"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        return rank_by(situation, lambda job: (self.passes[job.id],), lambda job: f"{self.passes[job.id]}")

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        return never_preempts


FULL = [job(1, 8, on=[share("n1", 8, cpus=24)]), job(2, 8, on=[share("n2", 8, cpus=24)])]


@pytest.mark.parametrize(
    ("passes", "victims"),
    [
        pytest.param({"1": 9.0, "2": 9.0, "3": 5.0}, {"1": "3"}, id="its home is where it has its turn"),
        pytest.param({"1": 9.0, "2": 99.0, "3": 5.0}, {"1": "3"}, id="whoever is further ahead elsewhere"),
        pytest.param({"1": 5.0, "2": 9.0, "3": 7.0}, {}, id="the job at home has the lower pass"),
    ],
)
def test_split_stride_takes_homes_and_passes_of_any_entitlement(
    passes: dict[JobId, float], victims: dict[JobId, JobId]
) -> None:
    due = Entitlement(homes={"1": 0, "2": 1, "3": 0}, passes=passes, order=ByPass(passes))
    chosen = Pipeline("any", None, Proportional(), FIRST_FIT, (), STRIDE, entitle=lambda _: due)
    assert chosen.decide(situation([node("n1"), node("n2")], [*FULL, job(3, 8)])).victims == victims
