"""Jobs start, and running ones move, where their GPU type and the CPUs beside it make them fastest together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurmsched.knowledge import Knowledge, Scaling
from slurmsched.model import Decision, Job, Node, NodeAllocation, Reason, ReasonCode, Request
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.finish.restart import start_where_fastest
from slurmsched.policies.orders import FirstInFirstOut
from slurmsched.policies.place.placement import CONSOLIDATED
from slurmsched.policies.policies import policy
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import Tune
from tests.builders import job, node, profile, share, situation

HOUR = 3600
P100 = Scaling((1,), (0.8,))
V100 = Scaling((1,), (1.0,))
HUNGRY = profile("hungry", {1: 0.4, 3: 1.0, 6: 1.8, 12: 2.8})
KNOWN = Knowledge(
    {
        "hungry": replace(HUNGRY, scaling={"v100": V100, "p100": P100}),
        "here": replace(HUNGRY, scaling={"v100": V100}),
        "steady": replace(profile("steady", {1: 1.0, 3: 1.0}), scaling={"v100": V100, "p100": P100}),
        "nearly": replace(profile("nearly", {3: 1.0, 6: 1.3}), scaling={"v100": V100, "p100": P100}),
    },
    reference="v100",
)
FULL_OF_CPUS = node("n1", used_cpus=21)
"""Eight V100s, and the CPUs of one."""
BUSY = node("n2", busy=range(8))


def waiting(model: str = "hungry", gpus: int = 1, **other: object) -> Job:
    return job(1, gpus, cpus=3 * gpus, hint=f"model={model},duration=20h,ckpt=usr1", submit_time=9000.0, **other)


def decided(nodes: list[Node], jobs: list[Job], **other: object) -> Decision:
    return policy("unified").decide(situation(nodes, jobs, KNOWN, **other))


@pytest.mark.parametrize(
    ("starts", "nodes", "on", "cpus"),
    [
        pytest.param(waiting(), [FULL_OF_CPUS, node("n2")], "n2", 12, id="the same type with CPUs"),
        pytest.param(waiting(), [FULL_OF_CPUS, node("n2", gpu_type="p100")], "n2", 12, id="a slower type with CPUs"),
        pytest.param(waiting("steady"), [FULL_OF_CPUS, node("n2", gpu_type="p100")], "n1", 3, id="CPUs do not matter"),
        pytest.param(waiting("nearly"), [FULL_OF_CPUS, node("n2", gpu_type="p100")], "n1", 3, id="a twentieth faster"),
        pytest.param(waiting("here"), [FULL_OF_CPUS, node("n2", gpu_type="p100")], "n1", 3, id="its rate is not known"),
        pytest.param(waiting("here"), [FULL_OF_CPUS, node("n2")], "n2", 12, id="its rate on the same type is"),
        pytest.param(
            waiting(request=Request(gpus=1, cpus=3, gpu_type="v100")),
            [FULL_OF_CPUS, node("n2", gpu_type="p100")],
            "n1",
            3,
            id="its owner wants the other",
        ),
        pytest.param(waiting(), [FULL_OF_CPUS, node("n2", used_cpus=15)], "n2", 9, id="more CPUs, though not enough"),
        pytest.param(
            waiting(gpus=4), [FULL_OF_CPUS, node("n2", busy=range(4))], "n2", 24, id="a gang where it has six for each"
        ),
        pytest.param(waiting(), [FULL_OF_CPUS, BUSY], "n1", 3, id="no GPU is idle beside them"),
    ],
)
def test_a_job_starts_where_it_is_clearly_fastest(starts: Job, nodes: list[Node], on: str, cpus: int) -> None:
    target = decided(nodes, [starts]).targets["1"]
    assert (target.nodes, target.resources.cpus) == ((on,), cpus)


def test_a_job_that_starts_elsewhere_for_its_speed_says_so() -> None:
    moved, stayed = (
        decided([FULL_OF_CPUS, there], [waiting()]).targets["1"] for there in (node("n2", used_cpus=15), BUSY)
    )
    assert moved.reasons[0] == Reason(ReasonCode.FASTEST_HERE, {"times": "2.3"})
    assert ReasonCode.FASTEST_HERE not in {why.code for why in stayed.reasons}


def test_a_job_that_cannot_give_cpus_back_leaves_idle_gpus_theirs() -> None:
    """Without a checkpoint nobody could take them from it."""
    nodes, unmovable = [FULL_OF_CPUS, node("n2", busy=range(2))], frozenset({"1"})
    target = decided(nodes, [waiting()], unmovable=unmovable).targets["1"]
    assert (target.nodes, target.resources.cpus) == (("n2",), 24 - 5 * 3)


def running(model: str = "hungry", hours: float = 20, on: NodeAllocation | None = None, **other: object) -> Job:
    hint = f"model={model},duration={hours:g}h,ckpt=usr1"
    return job(1, cpus=3, hint=hint, on=[on or share("n1")], run_time=HOUR, **other)


ON_P100, P100S = share(gpu_type="p100"), node("n1", gpu_type="p100")


@pytest.mark.parametrize(
    ("there", "nodes", "on"),
    [
        pytest.param(running(), [FULL_OF_CPUS, node("n2")], "n2", id="to CPUs on the same type"),
        pytest.param(running(), [FULL_OF_CPUS, node("n2", gpu_type="p100")], "n2", id="to CPUs on a slower type"),
        pytest.param(running(hours=1), [FULL_OF_CPUS, node("n2")], "n1", id="it is nearly done"),
        pytest.param(running("steady"), [FULL_OF_CPUS, node("n2")], "n1", id="CPUs do not matter"),
        pytest.param(running("steady", on=ON_P100), [P100S, node("n2")], "n2", id="to the faster type"),
        pytest.param(running("here"), [FULL_OF_CPUS, node("n2", gpu_type="p100")], "n1", id="its rate is not known"),
        pytest.param(running("here"), [FULL_OF_CPUS, node("n2")], "n2", id="its rate on the same type is"),
        pytest.param(running(), [FULL_OF_CPUS, node("n2", used_cpus=21)], "n1", id="no more CPUs are there"),
        pytest.param(running(restarts=9), [FULL_OF_CPUS, node("n2")], "n1", id="it is restarted all the time"),
    ],
)
def test_a_running_job_moves_to_where_it_is_faster_if_that_pays(there: Job, nodes: list[Node], on: str) -> None:
    decision = decided(nodes, [there], service={"1": float(HOUR)})
    assert decision.targets["1"].nodes == (on,)
    assert set(decision.victims) == ({"1"} if on == "n2" else set())


def test_a_running_job_that_has_to_stay_does_not_move() -> None:
    stays = {"1": Reason(ReasonCode.ASKED_TO_STAY)}
    assert not decided(
        [FULL_OF_CPUS, node("n2")], [running()], service={"1": float(HOUR)}, non_preemptible=stays
    ).victims


def test_a_move_to_more_cpus_says_what_it_saves_and_costs() -> None:
    [reason] = decided([FULL_OF_CPUS, node("n2")], [running()], service={"1": float(HOUR)}).targets["1"].reasons[:1]
    assert (reason.code, reason.details["saving"]) == (ReasonCode.PAYS_FOR_RESTART, "12 h 12 min")


def test_the_job_that_saves_most_has_the_idle_gpus() -> None:
    """Both would be as much faster; the second has longer to go."""
    short = running(hours=8)
    long = job(2, cpus=3, hint="model=hungry,duration=20h,ckpt=usr1", on=[share("n1", [1])], run_time=HOUR)
    nodes = [node("n1", used_cpus=18), node("n2", busy=range(7))]
    decision = decided(nodes, [short, long], service={"1": float(HOUR), "2": float(HOUR)})
    assert {name: target.nodes for name, target in decision.targets.items()} == {"1": ("n1",), "2": ("n2",)}


def test_no_more_jobs_move_than_a_round_may() -> None:
    jobs = [
        job(number, cpus=3, hint="model=hungry,duration=20h,ckpt=usr1", on=[share("n1", [number])], run_time=HOUR)
        for number in range(4)
    ]
    service = dict.fromkeys(map(str, range(4)), float(HOUR))
    nodes = [node("n1", used_cpus=12), node("n2"), node("n3")]
    assert len(decided(nodes, jobs, service=service, max_moves=1).victims) == 1


def test_a_job_that_has_its_place_for_the_cpus_is_not_moved_back_for_the_type() -> None:
    """The market counts GPUs, and says that a V100 is faster; with twelve CPUs the P100 is."""
    there = running(on=share("n2", gpu_type="p100", cpus=12))
    decision = decided([FULL_OF_CPUS, node("n2", gpu_type="p100")], [there], service={"1": float(HOUR)})
    assert (decision.targets["1"].nodes, decision.victims) == (("n2",), {})


def test_a_job_for_which_another_gave_way_starts_on_the_gpus_of_that() -> None:
    """Else these would be idle, and a restart for nothing."""
    there, starts = job(2, cpus=3, hint="ckpt=usr1", on=[share("n1", [0])]), waiting()
    nodes = [node("n1", used_cpus=18, busy=range(1, 8)), node("n2")]
    session = Session(situation(nodes, [there, starts], KNOWN), FirstInFirstOut(), Tune(), CONSOLIDATED)
    session.takes_back = True
    session.evict("2", starts)
    placement = session.find_placement(
        starts, DemandLevel.MINIMUM, session.free_at_minimum, np.arange(2) == 0, node_score=CONSOLIDATED
    )
    assert placement is not None
    session.allocate(starts, placement)
    start_where_fastest(session)
    assert session.placements["1"].pools == (0,)
    session.victims.clear()
    start_where_fastest(session)
    assert session.placements["1"].pools == (1,), "as it would if nobody had"


@pytest.mark.parametrize(("searches", "on"), [pytest.param(1, "n2", id="one"), pytest.param(0, "n1", id="none")])
def test_a_round_searches_only_so_often_for_a_faster_place(
    searches: int, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others start where consolidation has them: on the node with the fewest free CPUs."""
    monkeypatch.setattr("slurmsched.policies.finish.restart._MOST_SEARCHES", searches)
    assert decided([FULL_OF_CPUS, node("n2", used_cpus=15)], [waiting()]).targets["1"].nodes == (on,)
