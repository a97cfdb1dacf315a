"""Running jobs that restart on less, so that GPUs beside them do not idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.knowledge.usage import use_profiles
from slurmsched.model import CpuNeed, Decision, Job, MeasuredUse, Reason, ReasonCode
from slurmsched.policies import Situation, policy
from tests.builders import GIB, MEMORY, job, node, share, situation

RICH = job(1, 4, hint="model=alexnet", on=[share(gpus=4, cpus=24, memory=MEMORY // 2)])
"""It has all CPUs and half of the GPUs."""


def decide(asked: Situation) -> Decision:
    return policy("synergy", "fifo").decide(asked)


def newcomer(hint: str = "model=alexnet,duration=5h") -> Job:
    return job(2, 4, hint=hint, submit_time=1)


def test_a_cpu_rich_job_restarts_on_its_share_when_gpus_would_idle() -> None:
    decision = decide(situation([node()], [RICH, newcomer()]))
    assert {target.job: target.resources.cpus for target in decision.targets.values()} == {"1": 12, "2": 12}
    assert decision.victims == {"1": "2"}
    said = {"saving": "20.0 GPU-hours of waiting", "cost": "0.1 GPU-hours"}
    assert decision.targets["1"].reasons[0] == Reason(ReasonCode.PAYS_FOR_RESTART, said)
    assert decision.targets["1"].speed == 1.0


def test_spare_cpus_stay_with_the_job_that_restarts() -> None:
    decision = decide(situation([node()], [RICH, newcomer("model=bert,duration=5h")]))
    assert {target.job: target.resources.cpus for target in decision.targets.values()} == {"1": 20, "2": 4}


@pytest.mark.parametrize(
    ("need", "asked", "cpus"),
    [
        pytest.param(CpuNeed("v100", 6.0, spares=False), 4, {"1": 12, "2": 12}, id="its CPUs were full: its share"),
        pytest.param(CpuNeed("v100", 2.0, spares=True), 24, {"1": 12, "2": 12}, id="two were enough: its share"),
        pytest.param(CpuNeed("v100", 2.0, spares=True), 4, {"1": 8, "2": 16}, id="it asked for less: the two it needs"),
        pytest.param(CpuNeed("v100", 5.0, spares=True), 24, {"1": 24}, id="it needs five: none are spare for a share"),
    ],
)
def test_a_job_known_by_what_earlier_runs_used_restarts_on_its_share_or_what_it_needs(
    need: CpuNeed, asked: int, cpus: dict[str, int]
) -> None:
    running = job(1, 4, asked, on=RICH.allocations)
    use = use_profiles({"1": MeasuredUse("name", 3, 0.0, (need,))})
    asks = situation([node()], [running, newcomer()])
    decision = decide(replace(asks, knowledge=replace(asks.knowledge, by_use=use)))
    assert {target.job: target.resources.cpus for target in decision.targets.values()} == cpus


def test_a_restart_must_pay() -> None:
    decision = decide(situation([node()], [RICH, newcomer("model=alexnet,duration=2m")]))
    assert not decision.victims
    assert decision.waiting["2"] == Reason(ReasonCode.BESIDE_GPUS, {"gpus": 4, "what": "12 CPUs"})


def test_a_restart_must_pay_by_what_it_costs_the_jobs_that_restart() -> None:
    assert decide(situation([node()], [RICH, newcomer()], restart_costs={"1": 17_999.0})).victims
    assert not decide(situation([node()], [RICH, newcomer()], restart_costs={"1": 18_001.0})).victims


def test_a_fixed_job_is_not_restarted() -> None:
    fixed = {"1": Reason(ReasonCode.ASKED_TO_STAY)}
    assert not decide(situation([node()], [RICH, newcomer()], non_preemptible=fixed)).victims


def test_a_job_of_which_nothing_is_known_is_not_made_leaner() -> None:
    unknown = job(1, 4, cpus=24, on=RICH.allocations)
    assert not decide(situation([node()], [unknown, newcomer()])).victims


def test_no_restart_without_a_move_left() -> None:
    decision = decide(situation([node()], [RICH, newcomer()], max_moves=0))
    assert decision.waiting["2"] == Reason(ReasonCode.MOVES_SPENT, {"limit": 0})


def test_only_as_many_restart_as_must() -> None:
    rich = [
        job(number, hint="model=alexnet", on=[share(gpus=[number], cpus=cpus)], submit_time=number)
        for number, cpus in ((1, 6), (2, 10), (3, 8))
    ]
    decision = decide(situation([node()], [*rich, job(9, 2, cpus=6, submit_time=9)]))
    assert decision.victims == {"2": "9"}


def test_of_equal_ones_the_last_in_order_restarts_however_the_question_is_put() -> None:
    rich = [
        job(number, hint="model=alexnet", on=[share(gpus=[number], cpus=12)], submit_time=number) for number in (1, 2)
    ]
    for running in (rich, rich[::-1]):
        coming = job(9, hint="model=alexnet,duration=5h", submit_time=9)
        assert decide(situation([node()], [*running, coming])).victims == {"2": "9"}


def test_a_restart_is_preferred_to_displacing_a_job_that_ranks_behind() -> None:
    las = policy("synergy", "las", (3600.0,))
    behind = job(3, on=[share(gpus=[4], cpus=0, memory=GIB)])
    rich = job(1, 4, hint="model=alexnet", on=[share(gpus=4, cpus=24, memory=MEMORY // 2)])
    newcomer = job(2, 2, cpus=6)
    decision = las.decide(situation([node()], [rich, behind, newcomer], service={"1": 9e5, "3": 9e5}))
    assert decision.victims == {"1": "2"}
    assert set(decision.targets) == {"1", "2", "3"}
