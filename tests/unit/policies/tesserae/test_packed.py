"""Rounds of live packing on tiny clusters with halves of GPUs, other parts, whole GPUs and jobs of others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.knowledge import Knowledge, MeasuredPairs, OutOfMemoryPairs, Profile, Scaling
from slurmsched.model import (
    Decision,
    Job,
    JobState,
    Node,
    NodeAllocation,
    OutOfMemory,
    PairRate,
    Reason,
    ReasonCode,
    Request,
    Resources,
    SchedulerState,
    Verb,
)
from slurmsched.policies import policy
from slurmsched.policies.tesserae.packing import may_share, relative_rates_of_pair
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import ManageSettings, Mode, PolicySettings, RoundSettings, Settings
from tests.builders import job, node, share, situation, snapshot

SHARDS = 10
"""Of one GPU."""


def known(**beside: Mapping[str, float]) -> Knowledge:
    """Models on V100 GPUs, and what part of its rate each keeps beside others."""
    scalings = {model: {"v100": Scaling((1,), (1.0,), beside=kept)} for model, kept in beside.items()}
    return Knowledge({model: Profile(model, "", {}, "by hand", scaling) for model, scaling in scalings.items()})


RATES = known(a={"a": 0.4, "b": 0.8, "c": 0.95}, b={"a": 0.7, "b": 0.6}, c={"a": 0.6, "b": 0.0})
"""Two of a do less than one; a and c do most; b and c do not fit together."""


def half(number: int, model: str, hint: str = "", on: Sequence[NodeAllocation] = (), **other: object) -> Job:
    request = Request(shards=5, cpus=1, **other)  # type: ignore[arg-type]  # by name
    return job(number, request=request, hint=f"model={model}{',' + hint if hint else ''}", on=on)


def has(index: int, where: str = "n1", shards: int = 5) -> NodeAllocation:
    return NodeAllocation(where, Resources(0, 1, 0), "v100", (index,), shards)


def decided(
    nodes: Sequence[Node], jobs: Sequence[Job], managed: Sequence[Job] | None = None, *, widens: bool = True
) -> Decision:
    seen = replace(snapshot(nodes, jobs), widens_shards=widens)
    return policy("tesserae-packed", "fifo").decide(situation(nodes, jobs, RATES, managed=managed, seen=seen))


def devices(decision: Decision) -> dict[str, str]:
    return {
        target.job: ",".join(f"{own.node}:{index}" for own in target.allocations for index in own.indices)
        for target in decision.targets.values()
    }


ONE, TWO = node("n1", 1, shards=SHARDS), node("n1", 2, shards=SHARDS)
BOTH = [ONE, node("n2", 1, shards=SHARDS)]


@pytest.mark.parametrize(
    ("nodes", "jobs", "expected"),
    [
        pytest.param([ONE], [half(1, "a"), half(2, "b")], {"1": "n1:0", "2": "n1:0"}, id="two that start together"),
        pytest.param(
            [ONE], [half(1, "a", on=[has(0)]), half(2, "b")], {"1": "n1:0", "2": "n1:0"}, id="a guest to one that runs"
        ),
        pytest.param(BOTH, [half(1, "a"), half(2, "b")], {"1": "n1:0", "2": "n2:0"}, id="each its own where there is"),
        pytest.param(
            [ONE], [half(1, "a"), half(2, "b"), half(3, "c")], {"1": "n1:0", "3": "n1:0"}, id="those who do most"
        ),
        pytest.param([ONE], [half(1, "a"), half(2, "a")], {"1": "n1:0"}, id="not two who do less than one"),
        pytest.param([ONE], [half(1, "b"), half(2, "c")], {"1": "n1:0"}, id="not two who do not fit into memory"),
        pytest.param([ONE], [half(1, "a"), half(2, "x")], {"1": "n1:0"}, id="not one of whom nothing is known"),
        pytest.param([ONE], [half(1, "a"), half(2, "b", "pack=no")], {"1": "n1:0"}, id="not one that said no"),
        pytest.param([ONE], [half(1, "a", "pack=no"), half(2, "b")], {"1": "n1:0"}, id="not to one that said no"),
        pytest.param(
            [TWO],
            [half(1, "a", "pack=no", on=[has(0)]), half(2, "b", on=[has(1)]), half(3, "a")],
            {"1": "n1:0", "2": "n1:1"},
            id="not where Slurm would choose another's GPU",
        ),
        pytest.param(
            [TWO],
            [half(1, "b", on=[has(0)]), half(2, "a", "pack=no", on=[has(1)]), half(3, "a")],
            {"1": "n1:0", "2": "n1:1", "3": "n1:0"},
            id="where Slurm chooses the partner's GPU first",
        ),
        pytest.param(
            [TWO],
            [half(1, "a", on=[has(1)]), half(2, "b")],
            {"1": "n1:1", "2": "n1:0"},
            id="an idle GPU before a partner's",
        ),
        pytest.param(
            [node("n1", 1, shards=SHARDS, used_cpus=22)],
            [half(1, "a", on=[has(0)]), half(2, "b"), job(3, request=Request(shards=5, cpus=2), hint="model=b")],
            {"1": "n1:0", "2": "n1:0"},
            id="a guest whose CPUs are there",
        ),
        pytest.param(
            BOTH,
            [
                half(1, "a", on=[has(0)]),
                half(2, "a", on=[has(0, "n2")]),
                half(3, "b", features="x"),
                half(4, "b", excluded=frozenset({"n1"})),
            ],
            {"1": "n1:0", "2": "n2:0", "4": "n2:0"},
            id="a guest where it may run",
        ),
        pytest.param(
            BOTH,
            [
                job(1, request=Request(shards=10, nodes=2, cpus=2), hint="model=a", on=[has(0), has(0, "n2")]),
                job(2, request=Request(shards=10, nodes=2, cpus=2), hint="model=b"),
            ],
            {"1": "n1:0,n2:0", "2": "n1:0,n2:0"},
            id="two on as many nodes, on all of them",
        ),
        pytest.param(
            BOTH,
            [
                job(1, request=Request(shards=10, nodes=2, cpus=2), hint="model=a", on=[has(0), has(0, "n2")]),
                half(2, "b"),
            ],
            {"1": "n1:0,n2:0"},
            id="not two with different numbers of GPUs",
        ),
        pytest.param(
            [ONE],
            [job(1, request=Request(shards=4, cpus=1), hint="model=a"), half(2, "b")],
            {"1": "n1:0"},
            id="other parts than halves share with nobody",
        ),
        pytest.param(
            [node("n1", 2, shards=SHARDS)],
            [half(1, "a"), job(2, request=Request(gpus=1, gpus_per_node=1, cpus=1)), half(3, "b")],
            {"1": "n1:0", "2": "n1:1", "3": "n1:0"},
            id="whole GPUs beside them",
        ),
        pytest.param(
            [node("n1", 2, shards=SHARDS), node("cpu", 0)],
            [half(1, "a"), job(2, gpus=0, cpus=4)],
            {"1": "n1:0", "2": ""},
            id="jobs without GPUs beside them",
        ),
    ],
)
def test_who_is_where(nodes: Sequence[Node], jobs: Sequence[Job], expected: dict[str, str]) -> None:
    assert devices(decided(nodes, jobs)) == expected


def test_a_pair_says_with_whom_and_how_fast() -> None:
    decision = decided([ONE], [half(1, "a", on=[has(0)]), half(2, "b")])
    host, guest = decision.targets["1"], decision.targets["2"]
    assert (host.speed, guest.speed) == (0.8, 0.7)
    assert (host.beside, guest.beside) == (("2",), ("1",))
    assert guest.reasons[0].sentence == "shares GPU 0 of n1 with job 1: together they do 1.5 times the work of one"
    assert host.reasons[0].sentence == "shares GPU 0 of n1 with job 2: together they do 1.5 times the work of one"


def test_a_pair_that_runs_is_told_again_from_what_slurm_shows() -> None:
    decision = decided([TWO], [half(1, "a", on=[has(1)]), half(2, "b", on=[has(1)]), half(3, "b", on=[has(0)])])
    assert [decision.targets[one].speed for one in "123"] == [0.8, 0.7, 1.0]
    assert [decision.targets[one].beside for one in "123"] == [("2",), ("1",), ()]
    assert decision.targets["3"].reasons[0].code is ReasonCode.KEEPS_LEASE


def shards(decision: Decision) -> dict[str, int]:
    return {target.job: own.shards for target in decision.targets.values() for own in target.allocations}


@pytest.mark.parametrize(
    ("nodes", "jobs", "expected", "after"),
    [
        pytest.param(
            [node("n1", 4, shards=SHARDS)],
            [half(1, "a"), half(2, "b")],
            {"1": 10, "2": 10},
            {},
            id="all shards of a GPU where another one is idle",
        ),
        pytest.param([ONE], [half(1, "a")], {"1": 5}, {}, id="half where nobody else could come beside it by chance"),
        pytest.param(
            [TWO],
            [half(1, "a"), half(2, "a")],
            {"1": 10, "2": 5},
            {"2": ("1",)},
            id="the last on a node half of its GPU, for a later guest, after the others",
        ),
        pytest.param(
            [TWO], [half(1, "a", "pack=no"), half(2, "a", "pack=no")], {"1": 10, "2": 10}, {}, id="all if it said no"
        ),
        pytest.param(
            [TWO],
            [half(1, "a"), half(2, "b"), half(3, "b"), half(4, "a")],
            {"1": 5, "2": 5, "3": 5, "4": 5},
            {"2": ("1", "3"), "4": ("1", "3")},
            id="two pairs one after another",
        ),
        pytest.param(
            [node("n1", 3, shards=SHARDS)],
            [half(1, "a", on=[has(0)]), half(2, "a"), half(3, "a"), half(4, "b"), half(5, "b")],
            {"1": 5, "2": 5, "3": 5, "4": 5, "5": 5},
            {"2": ("4",), "3": ("2", "4", "5"), "5": ("4",)},
            id="a pair after the guest of a job that runs",
        ),
        pytest.param(
            [TWO],
            [half(1, "b", on=[has(0)]), half(2, "c"), half(3, "a", "pack=no")],
            {"1": 5, "2": 10},
            {},
            id="all where Slurm would put a partner beside another one",
        ),
        pytest.param(
            [node("n1", 2, shards=SHARDS)],
            [job(1, request=Request(shards=4, cpus=1), hint="model=a"), half(2, "a")],
            {"1": 10, "2": 5},
            {"2": ("1",)},
            id="whoever asked for another part",
        ),
        pytest.param(
            [node("n1", 2, shards=SHARDS)],
            [job(1, request=Request(shards=6, cpus=3, tasks=3), hint="model=a"), half(2, "a")],
            {"1": 6, "2": 10},
            {},
            id="what it asked for if the shards are those of several tasks",
        ),
    ],
)
def test_who_has_no_partner_has_the_whole_device(
    nodes: Sequence[Node], jobs: Sequence[Job], expected: dict[str, int], after: dict[str, tuple[str, ...]]
) -> None:
    decision = decided(nodes, jobs)
    assert shards(decision) == expected
    assert {target.job: target.after for target in decision.targets.values() if target.after} == after


def test_where_requests_cannot_be_widened_a_node_starts_one_a_round() -> None:
    decision = decided([node("n1", 4, shards=SHARDS)], [half(1, "a"), half(2, "a")], widens=False)
    assert shards(decision) == {"1": 5}
    why = "waits for the next round: this one starts a job on n1, and Slurm chooses the GPU"
    assert decision.waiting["2"].sentence == why


@pytest.mark.parametrize(
    ("one", "other", "managed"),
    [
        pytest.param(half(1, "a", "pack=no", on=[has(0)]), half(2, "b", on=[has(0)]), True, id="one of whom said no"),
        pytest.param(half(1, "a", on=[has(0)]), half(2, "x", on=[has(0)]), True, id="whose rates are not known"),
        pytest.param(half(1, "a", on=[has(0)]), half(2, "b", on=[has(0)]), False, id="one of whom is not ours"),
        pytest.param(half(1, "a", on=[has(0)]), half(2, "b", on=[has(0, shards=3)]), False, id="with another part"),
    ],
)
def test_two_that_no_round_put_together_are_told(one: Job, other: Job, managed: bool) -> None:
    decision = decided([TWO], [one, other], [one, other] if managed else [one])
    assert decision.targets["1"].reasons[0].sentence == "shares GPU 0 of n1 with job 2, which no round placed there"
    assert decision.targets["1"].beside == ()


@pytest.mark.parametrize(
    ("jobs", "sentence"),
    [
        pytest.param(
            [half(1, "a", "pack=no", on=[has(0)]), half(3, "a", on=[has(1, shards=10)]), half(2, "b")],
            "waits: on n1 Slurm may place it on GPU 0 beside job 1, and these must not share a GPU",
            id="Slurm would put it beside one that said no",
        ),
        pytest.param(
            [job(1, 2, on=[share("n1", 2)]), half(2, "a")], "no GPU has 5 free shards", id="all GPUs are taken"
        ),
        pytest.param(
            [job(1, request=Request(shards=11, cpus=1))], "11 shards of one GPU; the GPUs have 10", id="never fits"
        ),
    ],
)
def test_why_a_half_waits(jobs: Sequence[Job], sentence: str) -> None:
    assert sentence in decided([TWO], jobs).waiting[jobs[-1].id].sentence


Devices = dict[tuple[str, int], list[str]]


def started(
    order: Sequence[Job], decision: Decision, nodes: Sequence[Node], running: Sequence[Job], step: int
) -> list[Job]:
    """What Slurm makes of a decision when it starts the jobs in this order, each after those that it starts after:
    shards go to the first device that has enough, whole GPUs to the first idle ones, or with a `step` of -1 to the
    last, of which nothing is promised."""
    taken = {(own.name, gpu.index): 0 for own in nodes for gpu in own.gpus}
    for one in running:
        for own in one.allocations:
            for index in own.indices:
                taken[own.node, index] += own.shards or SHARDS
    found = list[Job]()
    left = list(order)
    while left:
        up = {one.id for one in found}
        one = next(one for one in left if up.issuperset(decision.targets[one.id].after))
        left.remove(one)
        shares = []
        for own in decision.targets[one.id].allocations:
            most = SHARDS - own.shards if own.shards else 0
            room = [index for (name, index), used in sorted(taken.items()) if name == own.node and used <= most]
            chosen = room[:1] if own.shards else room[::step][: own.resources.gpus]
            assert len(chosen) == len(own.indices)
            for index in chosen:
                taken[own.node, index] += own.shards or SHARDS
            shares.append(replace(own, indices=tuple(sorted(chosen))))
        found.append(replace(one, allocations=tuple(shares), state=JobState.RUNNING, state_text="RUNNING"))
    return found


def users(jobs: Sequence[Job]) -> Devices:
    found = defaultdict[tuple[str, int], list[str]](list)
    for one in jobs:
        for own in one.allocations:
            for index in own.indices:
                found[own.node, index].append(one.id)
    return found


def drained(decision: Decision) -> set[str]:
    """The nodes of which idle GPUs are kept for a job that needs more of them than are idle."""
    kept = (reason.details.get("nodes") for reason in decision.waiting.values())
    return {name for names in kept if isinstance(names, str) for name in names.split(", ")}


@st.composite
def waiting(draw: st.DrawFn) -> tuple[Request, str]:
    kind = draw(st.sampled_from(("half", "half", "half", "other", "whole", "wide")))
    request = {
        "half": Request(shards=5, cpus=1),
        "other": Request(shards=draw(st.sampled_from((2, 4, 7, 10))), cpus=1),
        "whole": Request(gpus=draw(st.sampled_from((1, 2))), cpus=1),
        "wide": Request(shards=10, nodes=2, cpus=2),
    }[kind]
    if request.gpus:
        request = replace(request, gpus_per_node=request.gpus)
    hint = f"model={draw(st.sampled_from('abc'))}{draw(st.sampled_from(('', '', ',pack=no')))}"
    return request, hint


@hypothesis_settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_order_slurm_starts_them_in_only_pairs_share_a_gpu(data: st.DataObject) -> None:
    nodes = [node(f"n{at}", data.draw(st.integers(1, 3)), shards=SHARDS) for at in range(data.draw(st.integers(1, 3)))]
    widens = data.draw(st.booleans())
    numbers, jobs = count(1), list[Job]()
    for _ in range(data.draw(st.integers(1, 5))):
        for request, hint in data.draw(st.lists(waiting(), max_size=5)):
            jobs.append(job(next(numbers), request=request, hint=hint))
        decision = decided(nodes, jobs, widens=widens)
        assert set(decision.targets) ^ set(decision.waiting) == {one.id for one in jobs}
        running = [one for one in jobs if one.allocations]
        new_ids = {one.id for one in jobs if one.id in decision.targets and not one.allocations}
        new = data.draw(st.permutations([one for one in jobs if one.id in decision.targets and not one.allocations]))
        now = {
            one.id: one
            for one in (*running, *started(new, decision, nodes, running, data.draw(st.sampled_from((1, -1)))))
        }
        for on in users(list(now.values())).values():
            if len(on) > 1:
                one, other = (now[name] for name in on)
                both = relative_rates_of_pair(RATES, one, other, "v100")
                assert may_share(one)
                assert may_share(other)
                assert both is not None
                assert min(both) > 0
                assert sum(both) > 1
                assert {
                    one.original_request.shards / one.original_request.nodes,
                    other.original_request.shards / other.original_request.nodes,
                } == {5}
                assert decision.targets[one.id].beside == (other.id,)
        paired = [target for target in decision.targets.values() if target.beside]
        assert all(users([now[t.job]]).keys() == users([now[t.beside[0]]]).keys() for t in paired)
        if widens and any(t.beside and not now[t.job].original_request.nodes > 1 for t in paired if t.job in new_ids):
            used = users(list(now.values()))
            idle = {own.name for own in nodes for gpu in own.gpus if (own.name, gpu.index) not in used}
            assert idle <= drained(decision), "a pair beside an idle GPU that nobody waits for"
        jobs = [
            one for one in (now.get(old.id, old) for old in jobs) if data.draw(st.integers(0, 3)) or not one.allocations
        ]


def test_a_host_that_is_left_gets_another_guest() -> None:
    nodes, first = [ONE], decided([ONE], [half(1, "a"), half(2, "b")])
    host = replace(half(1, "a"), allocations=first.targets["1"].allocations, state=JobState.RUNNING)
    assert devices(decided(nodes, [host, half(3, "c")])) == {"1": "n1:0", "3": "n1:0"}


def test_a_part_that_somebody_else_cut_off_a_gpu_is_nobodys_half() -> None:
    foreign = replace(half(9, "b", on=[has(0)]), partitions=("debug",))
    mine = half(1, "a")
    decision = decided([ONE], [foreign, mine], [mine])
    assert decision.waiting["1"].code is ReasonCode.BESIDE_ANOTHER


def test_who_ran_out_of_memory_together_waits_and_is_told_until_when() -> None:
    jobs = [half(1, "a", on=[has(0)]), half(2, "b")]
    asked = situation([ONE], jobs, RATES)
    ran_out = OutOfMemoryPairs.of([OutOfMemory("alice", "b", "bob", "a", asked.snapshot.time - 60)])
    together = policy("tesserae-packed", "fifo").decide(asked)
    apart = policy("tesserae-packed", "fifo").decide(
        replace(asked, knowledge=replace(asked.knowledge, out_of_memory=ran_out))
    )
    assert devices(together) == {"1": "n1:0", "2": "n1:0"}
    assert devices(apart) == {"1": "n1:0"}
    why = apart.waiting["2"]
    assert why.code is ReasonCode.NEVER_TOGETHER
    assert re.fullmatch(
        r"waits: it shares no GPU with job 1 until \S+ \S+, since a and b ran out of memory together at [\d: -]+",
        why.sentence,
    )


def test_no_ban_is_told_where_rates_forbid_the_pair_anyway() -> None:
    jobs = [half(1, "a", on=[has(0)]), half(2, "x")]
    asked = situation([ONE], jobs, RATES)
    ran_out = OutOfMemoryPairs.of([OutOfMemory("alice", "x", "bob", "a", asked.snapshot.time - 60)])
    decision = policy("tesserae-packed", "fifo").decide(
        replace(asked, knowledge=replace(asked.knowledge, out_of_memory=ran_out))
    )
    assert decision.waiting["2"].code is not ReasonCode.NEVER_TOGETHER


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(0.8, 0.7, {"1": "n1:0", "2": "n1:0"}, id="together more than one alone"),
        pytest.param(0.5, 0.4, {"1": "n1:0"}, id="not again where they did less"),
    ],
)
def test_the_next_pair_is_made_by_what_the_last_one_measured(a: float, b: float, expected: dict[str, str]) -> None:
    jobs = [half(1, "a", on=[has(0)]), half(2, "b")]
    asked = situation([ONE], jobs, RATES)
    measured = MeasuredPairs({("alice a", "alice b", "v100"): a, ("alice b", "alice a", "v100"): b})
    knowledge = replace(asked.knowledge, pairs=measured)
    assert devices(policy("tesserae-packed", "fifo").decide(replace(asked, knowledge=knowledge))) == expected


def test_the_partner_is_chosen_by_what_its_owners_jobs_measured() -> None:
    """Both guests are of model b; eve's did nothing beside a."""
    jobs = [half(1, "a", on=[has(0)]), replace(half(2, "b"), user="eve"), replace(half(3, "b"), user="bob")]
    asked = situation([ONE], jobs, RATES)
    knowledge = replace(asked.knowledge, pairs=MeasuredPairs({("eve b", "alice a", "v100"): 0.05}))
    assert "2" in devices(policy("tesserae-packed", "fifo").decide(asked))
    chosen = devices(policy("tesserae-packed", "fifo").decide(replace(asked, knowledge=knowledge)))
    assert chosen == {"1": "n1:0", "3": "n1:0"}


SIMILAR = known(
    a={"a": 0.4, "b": 0.8, "c": 0.9, "d": 0.1},
    b={"a": 0.8, "b": 0.7, "c": 0.9},
    c={"a": 0.8, "c": 0.8, "d": 0.1},
    d={"a": 0.1, "c": 0.1, "d": 0.1},
    e={"e": 0.9},
)
"""What c does beside b is not known; a is much like it. Nor what b and d do together, but d is slow beside all."""
ROOMY = "gpumem=4g,ckpt=usr1"


def trying(jobs: Sequence[Job], nodes: Sequence[Node] = (ONE,), *, on: bool = True, **other: Any) -> Decision:
    knowledge = other.pop("knowledge", SIMILAR)
    asked = replace(situation(nodes, jobs, **other), knowledge=knowledge)
    return policy("tesserae-packed", "fifo", try_pairs=on).decide(asked)


@pytest.mark.parametrize(
    ("host", "guest", "on", "shares"),
    [
        pytest.param(("c", ROOMY), ("b", ROOMY), True, True, id="as a similar model lets expect a gain"),
        pytest.param(("c", ROOMY), ("b", ROOMY), False, False, id="not unless the site lets them"),
        pytest.param(
            ("c", ROOMY), ("b", "ckpt=usr1"), True, False, id="not where one does not say what memory it needs"
        ),
        pytest.param(("c", "gpumem=12g"), ("b", "gpumem=5g,ckpt=usr1"), True, False, id="not beyond the GPU's memory"),
        pytest.param(
            ("c", ROOMY), ("b", "gpumem=4g,move=no"), True, False, id="not a guest that could not be moved apart"
        ),
        pytest.param(("c", "gpumem=4g,move=no"), ("b", ROOMY), True, True, id="a host that stays where it is"),
        pytest.param(("d", ROOMY), ("b", ROOMY), True, False, id="not where the estimate expects no gain"),
        pytest.param(("e", ROOMY), ("b", ROOMY), True, False, id="not a model that was measured beside one only"),
        pytest.param(("a", ROOMY), ("a", ROOMY), True, False, id="not what is known to be worse"),
        pytest.param(("c", ROOMY), ("x", ROOMY), True, False, id="not a model of which nothing is known"),
    ],
)
def test_a_pair_that_nobody_measured_is_tried(
    host: tuple[str, str], guest: tuple[str, str], on: bool, shares: bool
) -> None:
    jobs = [half(1, *host, on=[has(0)]), half(2, *guest)]
    unmovable = frozenset(job.id for job in jobs if job.hints.move is False or not job.hints.checkpoint_signal)
    decision = trying(jobs, on=on, unmovable=unmovable)
    assert ("2" in decision.targets) == shares
    if shares:
        reason = decision.targets["2"].reasons[0]
        assert reason.code is ReasonCode.TRIES_SHARING
        assert "to find out: together they should do 1." in reason.sentence


def test_a_pair_that_is_tried_is_told_to_be_one_in_later_rounds_too() -> None:
    decision = trying([half(1, "c", ROOMY, on=[has(0)]), half(2, "b", ROOMY, on=[has(0)])])
    assert [decision.targets[job].beside for job in "12"] == [("2",), ("1",)]
    assert decision.targets["1"].reasons[0].code is ReasonCode.TRIES_SHARING


def together(b: float, c: float) -> MeasuredPairs:
    return MeasuredPairs({("alice b", "alice c", "v100"): b, ("alice c", "alice b", "v100"): c})


def pair_that_measured(b: float, c: float, hint: str = "", **other: Any) -> Decision:
    """Job 1 of c and its guest of b, which both have measured; the second node is idle."""
    first, second = half(1, "c", ROOMY, on=[has(0)]), half(2, "b", f"{ROOMY}{hint}", on=[has(0)])
    jobs = [replace(first, start_time=1.0), replace(second, start_time=5.0)]
    return trying(jobs, BOTH, knowledge=replace(SIMILAR, pairs=together(b, c)), **other)


def test_two_that_do_less_than_one_alone_are_moved_apart() -> None:
    decision = pair_that_measured(0.5, 0.4)
    assert devices(decision) == {"1": "n1:0", "2": "n2:0"}
    assert decision.targets["2"].allocations[0].shards == SHARDS
    sentence = "moves to a GPU of its own: beside job 1 both do 0.9 times the work of one"
    assert [
        reason.sentence for reason in decision.targets["2"].reasons if reason.code is ReasonCode.WORSE_TOGETHER
    ] == [sentence]


@pytest.mark.parametrize(
    ("rates", "other"),
    [
        pytest.param((0.7, 0.4), {}, id="who do more"),
        pytest.param((0.5, 0.4), {"on": False}, id="unless the site lets jobs be tried"),
        pytest.param(
            (0.5, 0.4), {"non_preemptible": {"2": Reason(ReasonCode.MIN_RUN_TIME)}}, id="whom a guard protects"
        ),
        pytest.param((0.5, 0.4), {"max_moves": 0}, id="beyond the moves of a round"),
        pytest.param((0.5, 0.4), {"starts_only": True}, id="in an early round"),
    ],
)
def test_these_stay_together(rates: tuple[float, float], other: Any) -> None:
    assert devices(pair_that_measured(*rates, **other)) == {"1": "n1:0", "2": "n1:0"}


def test_who_has_no_idle_gpu_to_go_to_stays() -> None:
    waiting = [half(3, "b", "pack=no"), half(4, "b", "pack=no")]
    first, second = half(1, "c", ROOMY, on=[has(0)]), half(2, "b", ROOMY, on=[has(0)])
    jobs = [replace(first, start_time=1.0), replace(second, start_time=5.0), *waiting]
    decision = trying(jobs, BOTH, knowledge=replace(SIMILAR, pairs=together(0.5, 0.4)))
    assert devices(decision) == {"1": "n1:0", "2": "n1:0", "3": "n2:0"}


def test_a_move_apart_is_planned_as_checkpoint_requeue_and_start() -> None:
    first, second = half(1, "c", ROOMY, on=[has(0)]), half(2, "b", ROOMY, on=[has(0)])
    jobs = [replace(one, start_time=1.0 + at, run_time=5000.0) for at, one in enumerate((first, second))]
    seen = snapshot(BOTH, jobs)
    state = SchedulerState(
        pair_rates=tuple(
            PairRate(*names, "v100", 1, 1.0, rate, 1.0)
            for *names, rate in (
                ("alice b", "", 10.0), ("alice b", "alice c", 4.0), ("alice c", "", 10.0), ("alice c", "alice b", 4.0),
            )
        )
    )  # fmt: skip
    settings = Settings(
        policy=PolicySettings(system="tesserae-packed", order="fifo", try_pairs=True),
        rounds=RoundSettings(mode=Mode.ENFORCE),
        manage=ManageSettings(partitions=("gpu",)),
    )
    result = run_round(seen, state, settings, SIMILAR, Identity("synsched", Privilege.OPERATOR))
    done = [(operation.verb, operation.subject) for operation in result.plan.operations]
    assert done == [(Verb.NOTIFY, "2"), (Verb.REQUEUE, "2"), (Verb.UPDATE, "2"), (Verb.RELEASE, "2")]
    assert result.plan.operations[2].after.nodes == ("n2",)  # type: ignore[union-attr]  # a spec
