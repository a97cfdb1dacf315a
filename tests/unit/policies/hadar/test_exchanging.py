"""Running jobs that are due each other's GPU types change places, whether or not a job waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.knowledge import Knowledge
from slurmsched.model import Decision, Job, JobId, Node, NodeAllocation, Reason, ReasonCode, SchedulerState, Verb
from slurmsched.policies import policy
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import GuardSettings, ManageSettings, Mode, PolicySettings, RoundSettings, Settings
from tests.builders import job, node, share, situation, snapshot
from tests.unit.policies.hadar.test_live import scaled

KNOWN = Knowledge(
    {
        "steep": scaled("steep", v100=1.0, p100=0.4, k80=0.1),
        "middle": scaled("middle", v100=1.0, p100=0.95, k80=0.2),
        "flat": scaled("flat", v100=1.0, p100=0.9, k80=0.85),
        "partly": scaled("partly", v100=1.0),
    },
    reference="v100",
)
FAST_AND_SLOW = (node("v", 1, "v100"), node("k", 1, "k80"))
TYPES = {"v": "v100", "p": "p100", "k": "k80"}


def runs(number: int, model: str, *where: str, length: str = "50h", gpus: int = 1, **other: Any) -> Job:
    """A job of so many GPUs on each of these nodes, whose names begin with the letter of their type."""
    on = [share(name, gpus, gpu_type=TYPES[name[0]]) for name in where]
    hint = f"model={model}" + (f",duration={length}" if length else "")
    return job(number, gpus * len(on), hint=hint, on=on, requeue=True, **other)


def on_own_devices(jobs: Sequence[Job]) -> list[Job]:
    """The jobs with the next devices of their nodes each."""
    used, result = Counter[str](), list[Job]()
    for one in jobs:
        shares = list[NodeAllocation]()
        for on_node in one.allocations:
            first = used[on_node.node]
            used[on_node.node] += on_node.resources.gpus
            shares.append(replace(on_node, indices=tuple(range(first, used[on_node.node]))))
        result.append(replace(one, allocations=tuple(shares)))
    return result


def decided(jobs: Sequence[Job], nodes: Sequence[Node] = FAST_AND_SLOW, **other: Any) -> Decision:
    return policy("hadar").decide(situation(nodes, on_own_devices(jobs), KNOWN, **other))


def places(decision: Decision) -> dict[JobId, tuple[str, ...]]:
    return {name: target.nodes for name, target in decision.targets.items()}


def test_two_jobs_change_places_while_none_waits() -> None:
    decision = decided([runs(1, "flat", "v"), runs(2, "steep", "k")])
    assert places(decision) == {"1": ("k",), "2": ("v",)}
    assert decision.victims == {"1": "2", "2": "2"}
    assert decision.targets["2"].reasons[0].code is ReasonCode.PAYS_FOR_RESTART
    why = decision.targets["1"].reasons[0]
    assert why.sentence == "gives way to job 2: pays for 1 v100 against pays for 1 k80"


@pytest.mark.parametrize(
    ("jobs", "other"),
    [
        pytest.param([runs(1, "steep", "v"), runs(2, "steep", "k")], {}, id="of the same model"),
        pytest.param(
            [runs(1, "flat", "v"), runs(2, "steep", "k", length="10m")], {}, id="where that does not pay for both"
        ),
        pytest.param(
            [runs(1, "flat", "v"), runs(2, "steep", "k")],
            {"restart_costs": {"1": 600_000.0, "2": 120.0}},
            id="where the restart of the slower one costs too much",
        ),
        pytest.param([runs(1, "flat", "v"), runs(2, "partly", "k")], {}, id="where one was measured on one type only"),
        pytest.param(
            [runs(1, "flat", "v"), runs(2, "steep", "k")],
            {"non_preemptible": {"1": Reason(ReasonCode.NO_CHECKPOINT)}},
            id="if a guard protects one",
        ),
        pytest.param([runs(1, "flat", "v"), runs(2, "steep", "k")], {"max_moves": 1}, id="if one alone may move"),
        pytest.param([runs(1, "flat", "v"), runs(2, "steep", "k")], {"starts_only": True}, id="in an early round"),
        pytest.param(
            [runs(1, "flat", "v"), runs(2, "steep", "k")], {"state": {"came": ["1"]}}, id="just after an exchange"
        ),
    ],
)
def test_these_keep_their_places(jobs: Sequence[Job], other: Any) -> None:
    decision = decided(jobs, **other)
    assert places(decision) == {"1": ("v",), "2": ("k",)}
    assert not decision.victims


@pytest.mark.parametrize(
    ("nodes", "jobs", "expected"),
    [
        pytest.param(
            [*FAST_AND_SLOW, node("p", 1, "p100")],
            [runs(1, "flat", "v"), runs(2, "middle", "k"), runs(3, "steep", "p")],
            {"1": ("k",), "2": ("p",), "3": ("v",)},
            id="three jobs in a circle",
        ),
        pytest.param(
            [node("v", 2, "v100"), node("k", 2, "k80")],
            [runs(1, "flat", "v"), runs(2, "flat", "v"), runs(3, "steep", "k", gpus=2)],
            {"1": ("k",), "2": ("k",), "3": ("v",)},
            id="two jobs with a gang",
        ),
        pytest.param(
            [node("v1", 1, "v100"), node("v2", 1, "v100"), node("k1", 1, "k80"), node("k2", 1, "k80")],
            [runs(1, "flat", "v1"), runs(2, "steep", "v2"), runs(3, "steep", "k1"), runs(4, "steep", "k2")],
            {"1": ("k1",), "2": ("v2",), "3": ("v1",), "4": ("k2",)},
            id="only as many as gain",
        ),
    ],
)
def test_more_jobs_change_places(nodes: Sequence[Node], jobs: Sequence[Job], expected: object) -> None:
    assert places(decided(jobs, nodes)) == expected


def test_an_exchange_that_loses_more_than_it_saves_does_not_undo_a_move() -> None:
    """Job 4 moves to the idle V100. Job 5 would gain from one too, and its restart and that of job 2 would pay; but
    job 2 would lose more on two GPUs than that."""
    nodes = [node(name, 2, TYPES[name[0]]) for name in ("v0", "v1", "p2", "k3", "p4")]
    jobs = [
        runs(1, "middle", "v0", length="43h"),
        runs(2, "steep", "v1", length="5h", gpus=2),
        runs(3, "partly", "p2", length="1h"),
        runs(4, "middle", "k3", length="20h"),
        runs(5, "steep", "k3", length="26h"),
        runs(6, "middle", "p4", length="7h", gpus=2),
    ]
    decision = decided(jobs, nodes)
    assert decision.victims == {"4": "4"}
    assert places(decision)["4"] == ("v0",)


def test_a_round_makes_no_more_exchanges_than_it_may() -> None:
    nodes = [node("v", 4, "v100"), node("k", 4, "k80")]
    jobs = [runs(at, model, where) for at, (model, where) in enumerate([("flat", "v"), ("steep", "k")] * 4, start=1)]
    for most, moved in ((2, 2), (5, 4), (8, 8)):
        assert len(decided(jobs, nodes, max_moves=most).victims) == moved


def test_an_exchange_is_planned_as_requeues_and_two_starts() -> None:
    jobs = [replace(one, run_time=5000.0) for one in (runs(1, "flat", "v"), runs(2, "steep", "k"))]
    settings = Settings(
        policy=PolicySettings(system="hadar"),
        rounds=RoundSettings(mode=Mode.ENFORCE),
        manage=ManageSettings(partitions=("gpu",)),
        guards=GuardSettings(require_checkpoint=False),
    )
    result = run_round(
        snapshot(FAST_AND_SLOW, jobs), SchedulerState(), settings, KNOWN, Identity("synsched", Privilege.OPERATOR)
    )
    done = [(operation.verb, operation.subject) for operation in result.plan.operations]
    assert sorted(done[:2]) == [(Verb.REQUEUE, "1"), (Verb.REQUEUE, "2")]
    assert sorted(done[2:]) == [(verb, name) for verb in (Verb.RELEASE, Verb.UPDATE) for name in "12"]
    releases = [operation for operation in result.plan.operations if operation.verb is Verb.RELEASE]
    assert [set(operation.gone) for operation in releases] == [{"1", "2"}] * 2
    assert not any(operation.standing for operation in releases)


@st.composite
def full_clusters(draw: st.DrawFn) -> tuple[list[Node], list[Job]]:
    """Nodes of three types on whose GPUs single jobs and pairs of GPUs run; none waits."""
    nodes = [
        node(f"{letter}{at}", 2, TYPES[letter])
        for at, letter in enumerate(draw(st.lists(st.sampled_from("vpk"), min_size=2, max_size=5)))
    ]
    jobs = list[Job]()
    for on in nodes:
        for gpus in draw(st.sampled_from([(1, 1), (2,), (1,)])):
            model = draw(st.sampled_from(["steep", "middle", "flat", "partly"]))
            hours = draw(st.integers(1, 60))
            jobs.append(runs(len(jobs) + 1, model, on.name, length=f"{hours}h", gpus=gpus))
    return nodes, jobs


THREE_MOVES = (
    [node("v0", 2, "v100"), node("v1", 2, "v100"), node("v2", 2, "v100"), node("p3", 2, "p100"), node("k4", 2, "k80")],
    [
        runs(1, "partly", "v0", length="1h", gpus=2),
        runs(2, "steep", "v1", length="2h", gpus=2),
        runs(3, "steep", "v2", length="1h"),
        runs(4, "middle", "p3", length="1h"),
        runs(5, "steep", "p3", length="2h"),
        runs(6, "steep", "k4", length="7h"),
    ],
)
"""Job 5 gets an idle V100, gives it to job 6, which gains more by it, and then gets the P100 that it had."""


@given(full_clusters())
@example(THREE_MOVES)
def test_exchanges_come_to_an_end(drawn: tuple[list[Node], list[Job]]) -> None:
    """However often the same jobs are decided again, without any guard between."""
    nodes, jobs = drawn
    moves = Counter[JobId]()
    for _ in range(12):
        decision = decided(jobs, nodes)
        assert all(name in decision.targets for name in decision.victims)
        moves.update(decision.victims.keys())
        if not decision.victims:
            break
        jobs = on_own_devices([replace(one, allocations=decision.targets[one.id].allocations) for one in jobs])
    assert not decision.victims
    assert max(moves.values(), default=0) <= 3
