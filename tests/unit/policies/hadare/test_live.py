"""Copies of one job on a cluster: on nodes of their own, on every idle one, with steps by their speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from slurmsched.knowledge import Profile, Scaling
from slurmsched.model import Decision, Job, JobState, Node, NodeState, ReasonCode
from slurmsched.policies import policy
from slurmsched.policies.hadare.policy import estimates_by_type
from tests.builders import job, node, share, situation

TYPES = ("v100", "p100", "k80")
SLOW = pytest.approx(4.1 / 12**0.5)
SPEEDS = {"v100": 1.0, "p100": 0.5, "k80": 0.1}
KNOWN = Profile("m", "", {}, "by hand", {kind: Scaling((1,), (speed,)) for kind, speed in SPEEDS.items()})


def nodes(*types: str, gpus: int = 1, **other: Any) -> list[Node]:
    return [node(f"{kind}-{at}", gpus, kind, cpus=6, **other) for at, kind in enumerate(types, start=1)]


def copy(array: int, task: int, on: str = "", steps: int = 1000, hint: str = "", **other: Any) -> Job:
    """Task of an array whose tasks are copies of a job with so many steps; `on` a node it runs."""
    shares = [share(on, 1, 6, gpu_type=on.partition("-")[0])] if on else []
    return job(f"{array}_{task}", hint=f"fork={steps},{hint}", on=shares, array_job=str(array), **other)


def decided(cluster: list[Node], jobs: list[Job], said: Mapping[str, Any] | None = None, **other: Any) -> Decision:
    """`said`: what the copies have told of themselves."""
    asked = situation(cluster, jobs, **other)
    return policy("hadare").decide(replace(asked, knowledge=replace(asked.knowledge, **(said or {}))))


def places(decision: Decision) -> dict[str, tuple[str, ...]]:
    return {name: target.nodes for name, target in decision.targets.items()}


def test_copies_of_one_job_are_on_nodes_of_their_own() -> None:
    decision = decided(nodes("v100", "v100", gpus=4), [copy(7, task) for task in range(4)])
    assert sorted(places(decision).values()) == [("v100-1",), ("v100-2",)]
    assert len(decision.waiting) == 2


def test_an_array_without_the_hint_is_so_many_jobs() -> None:
    tasks = [job(f"7_{task}", array_job="7") for task in range(4)]
    assert len(places(decided(nodes("v100", gpus=4), tasks))) == 4


def test_a_copy_stays_away_from_one_that_runs() -> None:
    decision = decided(nodes("v100", "k80", gpus=2), [copy(7, 0, on="v100-1"), copy(7, 1)])
    assert places(decision) == {"7_0": ("v100-1",), "7_1": ("k80-2",)}


def test_no_node_is_idle_while_a_job_has_steps_left() -> None:
    cluster = nodes("v100", "v100", "p100", "p100", "k80")
    decision = decided(cluster, [copy(array, task) for array in (7, 8, 9) for task in range(5)])
    assert Counter(where for (where,) in places(decision).values()) == dict.fromkeys((n.name for n in cluster), 1)
    assert not decision.victims


def test_a_copy_takes_a_slower_gpu_where_the_fast_ones_are_beside_another_copy() -> None:
    jobs = [copy(7, task, hint="model=m") for task in range(2)]
    decision = decided(nodes("v100", "k80", gpus=2), jobs, {"models": {"m": KNOWN}, "reference": "v100"})
    assert sorted(places(decision).values()) == [("k80-2",), ("v100-1",)]


def test_two_jobs_share_a_node_of_two_gpus() -> None:
    decision = decided(nodes("v100", gpus=2), [copy(array, task) for array in (7, 8) for task in range(2)])
    assert sorted(name[0] for name in places(decision)) == ["7", "8"]


def test_steps_are_divided_by_equation_10_while_nothing_is_measured() -> None:
    decision = decided(nodes(*TYPES), [copy(7, task) for task in range(3)])
    steps = {target.nodes[0]: target.steps or 0 for target in decision.targets.values()}
    assert sum(steps.values()) == 1000
    assert steps["v100-1"] / steps["p100-2"] == pytest.approx(15.7 / 9.3, rel=0.02)
    assert steps["p100-2"] / steps["k80-3"] == pytest.approx(9.3 / 16**0.5 * 12**0.5 / 4.1, rel=0.02)
    target = next(target for target in decision.targets.values() if target.nodes == ("v100-1",))
    assert target.reasons[-1].sentence == (
        f"does {steps['v100-1']} of the 1000 steps left of job 7: 53% of the estimated speed"
    )


def test_a_profile_that_knows_all_the_types_is_believed_rather_than_equation_10() -> None:
    jobs = [copy(7, task, hint="model=m") for task in range(3)]
    decision = decided(nodes(*TYPES), jobs, {"models": {"m": KNOWN}, "reference": "v100"})
    steps = {target.nodes[0]: target.steps or 0 for target in decision.targets.values()}
    assert steps == pytest.approx({"v100-1": 625, "p100-2": 312.5, "k80-3": 62.5}, abs=1)


def test_a_type_that_nobody_knows_counts_as_the_slowest_of_the_others() -> None:
    assert estimates_by_type(["k80", "own-board", "V100"]) == {
        "k80": SLOW,
        "own-board": SLOW,
        "V100": pytest.approx(15.7 / 4),
    }
    assert estimates_by_type(["own-board", "another"]) == {"own-board": 1.0, "another": 1.0}


def test_what_a_copy_measures_corrects_the_estimates_of_the_others() -> None:
    running = [copy(7, task, on=f"{kind}-{task + 1}") for task, kind in enumerate(TYPES)]
    said = {"measured": {"7_0": {"v100": 40.0}, "7_2": {"k80": 10.0}}, "steps": {"7_0": 500, "7_1": 480}}
    decision = decided(nodes(*TYPES), running, said)
    steps = [decision.targets[one.id].steps or 0 for one in running]
    assert sum(steps) == 500, "the most that any copy knows of"
    assert steps[0] / steps[2] == pytest.approx(4.0, rel=0.02)
    assert 10 < steps[1] / steps[2] * 10 < 40


def test_a_copy_on_another_node_of_a_type_counts_as_the_one_that_measured_itself() -> None:
    running = [copy(7, 0, on="v100-1"), copy(7, 1, on="v100-2")]
    decision = decided(nodes("v100", "v100"), running, {"measured": {"7_0": {"v100": 3.0}}})
    assert [decision.targets[one.id].steps for one in running] == [500, 500]


def test_of_few_steps_the_fastest_get_all() -> None:
    running = [copy(7, task, on=f"{kind}-{task + 1}") for task, kind in enumerate(TYPES)]
    said = {"measured": {"7_0": {"v100": 40.0}, "7_1": {"p100": 20.0}, "7_2": {"k80": 1.0}}, "steps": {"7_0": 997}}
    decision = decided(nodes(*TYPES), running, said)
    assert [decision.targets[one.id].steps for one in running] == [2, 1, 0]
    assert not decision.victims, "nobody is sent away for that"


def test_a_copy_that_would_come_too_late_stays_held() -> None:
    jobs = [copy(7, 0, on="v100-1"), copy(7, 1)]
    said = {"measured": {"7_0": {"v100": 10.0}}, "steps": {"7_0": 700}}
    waiting = decided(nodes("v100", "k80"), jobs, said, restart_cost=60.0).waiting
    assert waiting["7_1"].code is ReasonCode.COPIES_SUFFICE
    assert "last 300 steps" in waiting["7_1"].sentence
    assert not decided(nodes("v100", "k80"), jobs, said, restart_cost=10.0).waiting


def test_copies_that_are_left_over_start_to_see_that_all_is_done() -> None:
    jobs = [copy(7, task) for task in (3, 4)]
    decision = decided(nodes("v100", "k80"), jobs, state={"done": {"7": 1000}})
    assert len(decision.targets) == 2


def test_what_was_done_is_remembered_until_the_job_is_gone() -> None:
    running = [copy(7, 0, on="v100-1")]
    decision = decided(nodes("v100"), running, {"steps": {"7_0": 300}}, state={"done": {"7": 400, "6": 5}})
    assert decision.state["done"] == {"7": 400}
    assert decision.targets["7_0"].steps == 600


@pytest.mark.parametrize("said", [10**15, 1000])
def test_a_copy_that_claims_all_steps_costs_only_its_own_job(said: int) -> None:
    jobs = [copy(7, 0, on="v100-1"), copy(7, 1), copy(8, 0), copy(8, 1)]
    decision = decided(nodes("v100", "k80"), jobs, {"steps": {"7_0": said}})
    assert places(decision) == {"7_0": ("v100-1",), "8_0": ("k80-2",)}


def test_a_garbled_memory_is_no_memory() -> None:
    decision = decided(nodes("v100"), [copy(7, 0)], state={"done": {"7": "many"}})
    assert decision.targets["7_0"].steps == 1000


def test_nothing_starts_on_a_node_that_is_down() -> None:
    cluster = [*nodes("v100"), node("k80-2", 1, "k80", cpus=6, state=NodeState.DOWN)]
    jobs = [copy(7, 0, on="v100-1"), copy(7, 1, state=JobState.PENDING)]
    assert places(decided(cluster, jobs)) == {"7_0": ("v100-1",)}


def test_without_copies_it_decides_as_hadar_does() -> None:
    jobs = [job(number, gpus=number, hint="duration=5h") for number in (1, 2, 3)]
    asked = situation(nodes(*TYPES, gpus=2), jobs)
    alone, forked = policy("hadar").decide(asked), policy("hadare").decide(asked)
    assert forked.targets.keys() == alone.targets.keys()
    assert places(forked) == places(alone)


def test_the_last_steps_go_to_the_copies_of_lowest_number() -> None:
    waiting = [copy(7, 10), copy(7, 2)]
    decision = decided(nodes("v100", "k80", "k80"), [copy(7, 0, on="v100-1"), *waiting], {"steps": {"7_0": 998}})
    assert set(decision.targets) == {"7_0", "7_2"}
    assert decision.waiting["7_10"].code is ReasonCode.COPIES_SUFFICE
