"""Copies of one job on a cluster: on nodes of their own, on every idle one, with steps by their speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from slurmsched.knowledge import Profile, Scaling
from slurmsched.knowledge.estimation import estimates_by_type
from slurmsched.model import Decision, Job, JobState, Node, NodeState, Reason, ReasonCode, Request
from slurmsched.policies import policy
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
        f"does {steps['v100-1']} of the 1000 steps left of job 7: 53 % of the estimated speed"
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


RAN = {"running": {"7_0": "7", "7_1": "7"}, "time": 9_900.0}
OTHERS = (copy(8, 0), copy(8, 1))


def test_copies_of_a_job_that_is_over_take_no_node_that_others_can_use() -> None:
    jobs = [copy(7, 2), copy(7, 3), *OTHERS]
    after = decided(nodes("v100", "k80"), jobs, state=RAN)
    assert set(after.targets) == {"8_0", "8_1"}
    assert [ranked.key for ranked in after.order[-2:]] == ["its job is over"] * 2
    assert after.state["over"] == ["7"]
    again = decided(nodes("v100", "k80", "t4"), jobs, state=after.state)
    assert set(again.targets) == {"8_0", "8_1", "7_2"}, "on an idle node it starts and sees that all is done"


def test_a_job_whose_copy_was_requeued_is_not_over() -> None:
    decision = decided(nodes("v100", "k80"), [copy(7, 0), copy(7, 2), *OTHERS], state=RAN)
    assert decision.state["over"] == []
    assert "7_0" in decision.targets


@pytest.mark.parametrize(
    ("jobs", "starts_only", "due"),
    [
        pytest.param([copy(7, 2), *OTHERS], True, True, id="all copies that ran are gone, another job waits"),
        pytest.param([copy(8, 0, "v100-1")], True, True, id="another job runs, which could have its nodes"),
        pytest.param([copy(7, 2)], True, False, id="nobody has a use for its nodes"),
        pytest.param([copy(7, 0, "v100-1"), *OTHERS], True, False, id="a copy runs"),
        pytest.param([copy(7, 0, "v100-1", state=JobState.COMPLETING), *OTHERS], True, False, id="a copy completes"),
        pytest.param([copy(7, 0), *OTHERS], True, False, id="a copy was requeued"),
        pytest.param([copy(7, 2, "v100-1"), *OTHERS], True, False, id="a copy started since then"),
        pytest.param(OTHERS, False, False, id="the round is a full one"),
    ],
)
def test_a_full_round_is_due_a_restart_after_the_last_once_a_forked_job_has_ended(
    jobs: list[Job], starts_only: bool, due: bool
) -> None:
    decision = decided(nodes("v100", "k80"), list(jobs), state=RAN, starts_only=starts_only, restart_cost=60.0)
    assert decision.full_round_at == (9_960.0 if due else inf)


@pytest.mark.parametrize("state", [{"running": ["7_0"], "time": "now"}, {"running": {"7_0": 7}, "over": 5}])
def test_garbled_state_of_copies_is_no_state(state: dict[str, object]) -> None:
    decision = decided(nodes("v100", "k80"), [copy(7, 2), *OTHERS], state=state, starts_only=True)
    assert decision.full_round_at == inf


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


@pytest.mark.parametrize("slow", [7, 8])
def test_copies_are_placed_by_what_they_measured(slow: int) -> None:
    """One forked job is 20 times slower on the K80, the other nearly as fast as on the V100: 19.5 steps per second are
    the most, and 10.5 where the slow one has the K80."""
    jobs = [copy(array, task, hint="duration=5h", user=f"user{array}") for array in (7, 8) for task in range(2)]
    said = {f"{array}_{task}": rate for array in (7, 8) for task, rate in enumerate(({"v100": 10.0}, {"k80": 9.5}))}
    said[f"{slow}_1"] = {"k80": 0.5}
    decision = decided(nodes("v100", "k80"), jobs, {"measured": said})
    assert len(decision.targets) == 2
    assert {name for name, where in places(decision).items() if where == ("k80-2",)}.isdisjoint(
        {f"{slow}_0", f"{slow}_1"}
    )


@pytest.mark.parametrize("first", [7, 8])
def test_a_family_runs_beside_another_that_is_as_long_where_that_suits_both(first: int) -> None:
    """Model `steep` has nearly all of its speed on the V100. Shortest first alone had one family on both nodes, and
    the steep one on the K80 in the end."""
    rates = {"steep": {"v100": 100.0, "k80": 5.0}, "flat": {"v100": 12.0, "k80": 10.0}}
    models = {
        name: Profile(name, "", {}, "by hand", {kind: Scaling((1,), (rate,)) for kind, rate in by_type.items()})
        for name, by_type in rates.items()
    }
    held, names = dict(enumerate(("v100-1", "k80-2"))), {7: "steep", 8: "flat"}
    jobs = [
        copy(array, task, held[task] if array == first else "", hint=f"ckpt=usr1,duration=30h,model={names[array]}")
        for array in (7, 8)
        for task in range(2)
    ]
    decision = decided(nodes("v100", "k80"), jobs, {"models": models, "reference": "v100"}, max_moves=8)
    families = {where: name.partition("_")[0] for name, (where,) in places(decision).items()}
    assert families == {"v100-1": "7", "k80-2": "8"}


def test_a_family_is_as_long_as_with_the_copies_that_guards_keep() -> None:
    """The copy on the K80 may not move yet. The other one is not taken for the whole job, which then could not wait."""
    jobs = [copy(7, 0, hint="ckpt=usr1,duration=30h,model=m"), copy(7, 1, "v100-1", hint="duration=30h,model=m")]
    jobs += [copy(8, 0, "k80-2", hint="duration=30h,model=m"), copy(8, 1, hint="duration=30h,model=m")]
    known = {"models": {"m": KNOWN}, "reference": "v100"}
    young = Reason(ReasonCode.MIN_RUN_TIME, {"run": "5 min", "minimum": "20 min"})
    decision = decided(nodes("v100", "k80"), jobs, known, max_moves=8, non_preemptible={"8_0": young})
    assert not decision.victims


MOVABLE = "ckpt=usr1@30,duration=5h"
MEASURED = {"7_0": {"v100": 10.0}, "7_1": {"p100": 5.0}, "7_2": {"k80": 1.0}}
TOO_YOUNG = Reason(ReasonCode.MIN_RUN_TIME, {"run": "5 min", "minimum": "20 min"})


def ending(left: int, *others: Job, **asked: Any) -> Decision:
    """The round of 300 s in which job 7, which runs on three nodes, has so many steps left; restarts cost a minute."""
    running = [copy(7, task, f"{kind}-{task + 1}", 10_000, MOVABLE) for task, kind in enumerate(TYPES)]
    said = {"measured": MEASURED, "steps": {"7_0": 10_000 - left}}
    return decided(nodes(*TYPES), [*running, *others], said, restart_cost=60.0, period=300.0, **asked)


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        pytest.param(200, {"k80-3"}, id="the slowest node that suffices alone"),
        pytest.param(1000, {"p100-2"}, id="the next slowest"),
        pytest.param(3000, {"v100-1", "p100-2"}, id="else the fewest fastest"),
    ],
)
def test_a_job_that_ends_in_this_round_keeps_only_the_nodes_that_it_needs(left: int, kept: set[str]) -> None:
    decision = ending(left, *(copy(8, task, hint=MOVABLE) for task in range(3)))
    assert {where for name, (where,) in places(decision).items() if name[0] == "7"} == kept
    assert {where for (where,) in places(decision).values()} == set(WHERE)
    assert sum(target.steps or 0 for name, target in decision.targets.items() if name[0] == "7") == left


WHERE = ("v100-1", "p100-2", "k80-3")


def test_an_ordinary_job_takes_such_a_node_too() -> None:
    assert places(ending(200, job(9, hint="duration=5h")))["9"] in [("v100-1",), ("p100-2",)]


def test_a_job_that_ends_keeps_its_nodes_while_nobody_else_wants_them() -> None:
    assert not ending(200).victims
    assert not ending(200, copy(7, 3)).victims, "another copy of it is nobody else"


@pytest.mark.parametrize(
    ("asked", "leaves"),
    [
        pytest.param({"non_preemptible": {"7_0": TOO_YOUNG}, "preemptible_from": {"7_0": 10_900.0}}, False, id="young"),
        pytest.param({}, True, id="nothing guards it"),
        pytest.param({"non_preemptible": {"7_0": Reason(ReasonCode.ASKED_TO_STAY)}}, False, id="asked to stay"),
        pytest.param({"starts_only": True}, False, id="an early round"),
        pytest.param({"max_moves": 0}, False, id="no moves left"),
    ],
)
def test_guards_keep_a_copy_without_a_step(asked: dict[str, Any], leaves: bool) -> None:
    decision = ending(200, job(9, hint="duration=5h", request=Request(gpus=1, cpus=1, gpu_type="v100")), **asked)
    assert ("7_0" in decision.victims) is leaves


def test_a_job_that_said_it_would_end_and_did_not_is_not_believed_again() -> None:
    others = [copy(8, task, hint=MOVABLE) for task in range(3)]
    first = ending(200, *others)
    assert first.state["ending"] == ["7"]
    assert ending(200, *others, state=first.state).state["ending"] == []


def test_an_early_round_starts_a_forked_job_whole_or_not_at_all() -> None:
    jobs = [copy(7, 0, "v100-1"), copy(7, 1), copy(8, 0), copy(8, 1)]
    decision = decided(nodes("v100", "k80", "t4"), jobs, starts_only=True)
    assert set(decision.targets) == {"7_0", "8_0", "8_1"}
    assert decision.waiting["7_1"].code is ReasonCode.FULL_ROUND


@pytest.mark.parametrize(
    ("waited", "first"),
    [
        pytest.param(3600.0, "8", id="the shorter job has the node that becomes free"),
        pytest.param(3 * 3600.0, "7", id="the longer job, which has waited for hours, keeps its promised start"),
    ],
)
def test_a_long_forked_job_is_promised_a_start_once_it_has_waited(waited: float, first: str) -> None:
    """The long job is first by submission: it was promised the node on which another job ran until now."""
    long = [copy(7, task, hint="duration=50h", submit_time=20_000.0 - waited) for task in range(2)]
    short = [copy(8, task, hint="duration=1h", submit_time=20_000.0 - 60.0) for task in range(2)]
    busy = job(9, on=[share("v100-1")], hint="duration=1h", time_limit=3600)
    before = decided(nodes("v100"), [busy, *long, *short], managed=[*long, *short], time=20_000.0)
    assert before.promise is not None
    assert before.promise.job == "7_0"
    after = decided(nodes("v100"), [*long, *short], state=before.state, time=20_000.0)
    assert {name.partition("_")[0] for name in after.targets} == {first}
