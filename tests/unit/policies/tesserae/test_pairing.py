"""Pairs in a live round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.knowledge import Knowledge, OutOfMemoryPairs, Profile, Scaling
from slurmsched.model import Job, NodeAllocation, OutOfMemory, Request
from slurmsched.policies.tesserae.packing import PackedPair, match_pairs, may_share
from tests.builders import job

HALF, WHOLE = 4, 8
"""Shards of half a GPU, and of a whole one."""


def known(**beside: dict[str, float]) -> Knowledge:
    """Models on V100 GPUs, and what part of its rate each keeps beside others."""
    scalings = {model: {"v100": Scaling((1,), (1.0,), beside=kept)} for model, kept in beside.items()}
    return Knowledge({model: Profile(model, "", {}, "by hand", scaling) for model, scaling in scalings.items()})


RATES = known(a={"a": 0.4, "b": 0.8, "c": 0.0}, b={"a": 0.7, "b": 0.6}, c={"a": 0.0})


def sharing(number: int, model: str, gpus: int = 1, hint: str = "") -> Job:
    request = Request(shards=HALF * gpus)
    return job(number, request=request, hint=f"model={model}{',' + hint if hint else ''}")


def paired(placed: list[Job], pending: list[Job], urgent: tuple[str, ...] = (), kind: str = "v100") -> list[PackedPair]:
    types = {one.id: kind for one in placed}
    return list(match_pairs(placed, pending, types=types, knowledge=RATES, shards_per_gpu=WHOLE, urgent=urgent))


def test_two_that_do_more_together_share_and_it_is_said_how_fast() -> None:
    assert paired([sharing(1, "a")], [sharing(2, "b")]) == [PackedPair("1", "2", (0.8, 0.7))]


@pytest.mark.parametrize(
    ("host", "guest"),
    [
        pytest.param(sharing(1, "a"), sharing(2, "a"), id="who do less together than one alone"),
        pytest.param(sharing(1, "a"), sharing(2, "c"), id="who do not fit into memory together"),
        pytest.param(
            sharing(1, "a", hint="gpumem=9g"), sharing(2, "b", hint="gpumem=7169m"), id="who say they need more memory"
        ),
        pytest.param(sharing(1, "a"), sharing(2, "d"), id="of whom one is not known"),
        pytest.param(sharing(1, "a", 2), sharing(2, "b"), id="who use different numbers of GPUs"),
        pytest.param(sharing(1, "a"), sharing(2, "b", hint="pack=no"), id="of whom one said no"),
        pytest.param(sharing(1, "a", hint="pack=no"), sharing(2, "b"), id="of whom the placed one said no"),
    ],
)
def test_no_pair_is_made_of_two(host: Job, guest: Job) -> None:
    assert paired([host], [guest]) == []


@pytest.mark.parametrize(
    ("host", "guest"),
    [
        pytest.param("gpumem=9g", "gpumem=7g", id="all memory of the GPU"),
        pytest.param("gpumem=9g", "", id="one of whom does not say: the rates tell that they fit"),
    ],
)
def test_two_that_fit_into_memory_share(host: str, guest: str) -> None:
    assert paired([sharing(1, "a", hint=host)], [sharing(2, "b", hint=guest)])


def test_of_equal_models_those_share_that_fit_into_memory() -> None:
    pending = [sharing(2, "b", hint="gpumem=12g"), sharing(3, "b", hint="gpumem=4g")]
    assert [pair.guest for pair in paired([sharing(1, "a", hint="gpumem=12g")], pending)] == ["3"]


def test_an_urgent_job_shares_with_nobody() -> None:
    assert paired([sharing(1, "a")], [sharing(2, "b")], urgent=("1",)) == []


def test_another_type_of_gpu_is_not_known() -> None:
    assert paired([sharing(1, "a")], [sharing(2, "b")], kind="a100") == []


@pytest.mark.parametrize(
    ("one", "may"),
    [
        pytest.param(job(1, 2), False, id="whole GPUs are its own unless said otherwise"),
        pytest.param(job(1, 2, hint="pack=yes"), True, id="it says that they may be shared"),
        pytest.param(sharing(1, "a"), True, id="it asks for a part only"),
        pytest.param(sharing(1, "a", hint="pack=no"), False, id="no is final"),
        pytest.param(
            job(1, hint="pack=yes", request=Request(gpus=1, exclusive=True)), False, id="it wants its node for itself"
        ),
    ],
)
def test_whose_gpus_may_be_shared(one: Job, may: bool) -> None:
    assert may_share(one) is may


def on(one: Job, *shares: NodeAllocation) -> Job:
    return replace(one, allocations=shares)


def after(events: list[OutOfMemory], host: str, guests: list[str]) -> list[str]:
    """The guests, by their owners, that still share with a job of this owner's model a; each is of model b."""
    knowledge = replace(RATES, out_of_memory=OutOfMemoryPairs.of(events))
    placed = [replace(sharing(1, "a"), user=host)]
    return [
        owner
        for owner in guests
        if match_pairs(
            placed,
            [replace(sharing(2, "b"), user=owner)],
            types={"1": "v100"},
            knowledge=knowledge,
            shards_per_gpu=WHOLE,
        )
    ]


def ran_out(owner: str, other_owner: str, model: str = "a", other: str = "b") -> OutOfMemory:
    return OutOfMemory(owner, model, other_owner, other, 100.0)


@pytest.mark.parametrize(
    ("events", "host", "left"),
    [
        pytest.param([], "ann", ["ann", "bob", "eve"], id="nobody has run out of memory"),
        pytest.param([ran_out("ann", "eve")], "ann", [], id="who ran out of it beside this model, whoever owned that"),
        pytest.param([ran_out("ann", "eve")], "bob", ["ann", "bob", "eve"], id="others go by their own jobs"),
        pytest.param(
            [ran_out("eve", "ann", "b", "a")], "ann", ["ann", "bob"], id="the guest's own jobs count for that guest"
        ),
        pytest.param([ran_out("ann", "eve", other="c")], "ann", ["ann", "bob", "eve"], id="another model is another"),
        pytest.param(
            [ran_out("eve", who) for who in ("ann", "bob", "dan", "eve")],
            "bob",
            ["ann", "bob", "eve"],
            id="one owner alone bans nobody else, beside whomever",
        ),
        pytest.param(
            [ran_out(who, "eve") for who in ("ann", "dan", "tom")],
            "bob",
            ["ann", "bob", "eve"],
            id="one owner's jobs that fill the memory of many ban nobody else",
        ),
        pytest.param([ran_out("ann", "eve"), ran_out("dan", "tom")], "bob", [], id="two pairs of others count for all"),
        pytest.param(
            [ran_out("ann", "eve"), ran_out("dan", "tom", "b", "a")], "bob", [], id="whichever of the two ran out of it"
        ),
    ],
)
def test_who_ran_out_of_memory_together_shares_no_more(events: list[OutOfMemory], host: str, left: list[str]) -> None:
    assert after(events, host, ["ann", "bob", "eve"]) == left


def test_owners_of_one_model_are_matched_apart_once_one_of_them_ran_out_of_memory() -> None:
    knowledge = replace(RATES, out_of_memory=OutOfMemoryPairs.of([ran_out("eve", "ann", "b", "a")]))
    pending = [replace(sharing(2, "b"), user="eve"), replace(sharing(3, "b"), user="bob")]
    pairs = match_pairs(
        [sharing(1, "a")], pending, types={"1": "v100"}, knowledge=knowledge, shards_per_gpu=WHOLE, fits=lambda *_: True
    )
    assert [pair.guest for pair in pairs] == ["3"]
