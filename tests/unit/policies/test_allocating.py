"""CPUs and memory for one part of a gang on one kind of node."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from slurmsched.knowledge import Profile
from slurmsched.model import Request
from slurmsched.policies.cluster.gang import gang_of
from slurmsched.policies.cluster.resources import PoolKind
from slurmsched.policies.sizes import (
    AsRequested,
    DemandRange,
    Greedy,
    PerTaskResources,
    Proportional,
    Sizing,
    Tune,
    demand_range,
    proportional_size,
    size_upgrades,
)
from tests.builders import GIB, profile

SERVER = PoolKind("v100", 8, 24, 500 * GIB)
SHARE = 500 * GIB // 8
HUNGRY = profile("hungry", {1: 1, 3: 3, 9: 9})
LANGUAGE = profile("language", {1: 5})
CACHED = profile("cached", {1: 1, 3: 3}, {20: 1, 62.5: 2, 125: 3})


@pytest.mark.parametrize(
    ("request_", "portion"),
    [
        pytest.param(Request(gpus=1), PerTaskResources(3, SHARE), id="one GPU"),
        pytest.param(Request(gpus=4), PerTaskResources(12, 4 * SHARE), id="four GPUs"),
        pytest.param(
            Request(gpus=3, tasks=2), PerTaskResources(8, 3 * SHARE), id="whole CPUs for each task, rounded down"
        ),
        pytest.param(Request(gpus=1, tasks=5), PerTaskResources(5, SHARE), id="at least a CPU for each task"),
    ],
)
def test_the_proportional_share_goes_by_gpus(request_: Request, portion: PerTaskResources) -> None:
    terms = Proportional().demand_range(gang_of(request_, HUNGRY, memory_tunable=False), SERVER)
    assert terms == DemandRange(portion, portion)


@pytest.mark.parametrize(
    ("request_", "tunable", "portion"),
    [
        pytest.param(
            Request(gpus=2, cpus=7), False, PerTaskResources(7, 2 * SHARE), id="nothing said of memory: its share"
        ),
        pytest.param(
            Request(gpus=2, cpus=2, memory=99), False, PerTaskResources(2, 0), id="memory is a need of the whole node"
        ),
        pytest.param(
            Request(gpus=1, memory=99), True, PerTaskResources(1, 99), id="memory that may shrink: what was asked"
        ),
        pytest.param(
            Request(gpus=1, memory=10**9), True, PerTaskResources(1, 10**9), id="also if that is more than its share"
        ),
        pytest.param(
            Request(gpus=4, tasks=4, cpus=8),
            False,
            PerTaskResources(2, SHARE),
            id="a part of a gang gets its part of the CPUs",
        ),
    ],
)
def test_a_job_of_which_nothing_is_known_accepts_what_it_asked_for_and_should_have_its_share_of_cpus(
    request_: Request, tunable: bool, portion: PerTaskResources
) -> None:
    gang = gang_of(request_, None, memory_tunable=tunable)
    share = replace(portion, cpus=max(portion.cpus, proportional_size(gang, SERVER).cpus))
    assert AsRequested().demand_range(gang, SERVER) == DemandRange(portion, portion)
    assert Tune().demand_range(gang, SERVER) == DemandRange(share, portion)
    step = [(share, inf)] if share.cpus > portion.cpus else []
    assert list(Tune().upgrades(gang, SERVER, portion, PerTaskResources(24, 10**9))) == step
    assert not list(Tune().upgrades(gang, SERVER, share, PerTaskResources(24, 10**9))), "and no more"


@pytest.mark.parametrize(
    ("request_", "hint", "cpus"),
    [
        pytest.param(Request(gpus=2, cpus=2), None, (2, 6), id="two CPUs asked"),
        pytest.param(Request(gpus=2, cpus=9), None, (9, 9), id="more than its share asked"),
        pytest.param(Request(gpus=2, cpus=2), False, (2, 2), id="cpus=keep"),
        pytest.param(
            Request(gpus=2, cpus=2, cpus_per_gpu=1), None, (2, 2), id="CPUs by GPU, which no update may change"
        ),
        pytest.param(
            Request(gpus=1, cpus=1, memory=9000, memory_per_cpu=9000), None, (1, 3), id="memory by CPU within its share"
        ),
        pytest.param(
            Request(gpus=1, cpus=1, memory=SHARE, memory_per_cpu=SHARE), None, (1, 1), id="memory by CPU beyond it"
        ),
    ],
)
def test_the_share_of_a_job_of_which_nothing_is_known_is_what_its_request_can_express(
    request_: Request, hint: bool | None, cpus: tuple[int, int]
) -> None:
    demand = demand_range(Tune(), gang_of(request_, None, memory_tunable=False, cpus_tunable=hint), SERVER)
    assert (demand.minimum.cpus, demand.best.cpus) == cpus


@pytest.mark.parametrize(
    ("known", "request_", "best", "least"),
    [
        pytest.param(HUNGRY, Request(gpus=1), (9, SHARE), (3, SHARE), id="a CPU-hungry job wants much more"),
        pytest.param(HUNGRY, Request(gpus=4), (24, 4 * SHARE), (12, 4 * SHARE), id="but no more than a server has"),
        pytest.param(LANGUAGE, Request(gpus=4), (4, 4 * SHARE), (4, 4 * SHARE), id="a language job does with fewer"),
        pytest.param(LANGUAGE, Request(gpus=2, tasks=2), (1, SHARE), (1, SHARE), id="a part of a language job"),
        pytest.param(CACHED, Request(gpus=1), (3, 125 * GIB), (3, SHARE), id="memory where it is known to matter"),
        pytest.param(HUNGRY, Request(gpus=1, memory=99), (9, 0), (3, 0), id="memory asked for and not measured stands"),
    ],
)
def test_a_known_job_wants_its_demand_and_accepts_what_is_as_fast_as_its_share(
    known: Profile, request_: Request, best: tuple[int, int], least: tuple[int, int]
) -> None:
    gang = gang_of(request_, known, memory_tunable=False)
    assert Tune().demand_range(gang, SERVER) == DemandRange(PerTaskResources(*best), PerTaskResources(*least))


def test_each_larger_step_says_how_much_faster_it_is() -> None:
    gang = gang_of(Request(gpus=1), HUNGRY, memory_tunable=False)
    steps = list(Tune().upgrades(gang, SERVER, PerTaskResources(2, SHARE), PerTaskResources(6, SHARE)))
    assert steps == [
        (PerTaskResources(3, SHARE), pytest.approx(1 / 3)),
        (PerTaskResources(6, SHARE), pytest.approx(4 / 3)),
    ]


THUMB = replace(LANGUAGE, source="rule of thumb")
ASKED = Request(gpus=1, cpus=16)


@pytest.mark.parametrize("sizing", [Tune(), Greedy(), Proportional(), AsRequested()], ids=lambda sizing: sizing.name)
@pytest.mark.parametrize(
    ("known", "request_", "tunable", "least"),
    [
        pytest.param(LANGUAGE, ASKED, None, 16, id="-c16 is a floor"),
        pytest.param(LANGUAGE, ASKED, False, 16, id="also with cpus=keep"),
        pytest.param(THUMB, ASKED, True, 16, id="and with cpus=tune on a rule of thumb"),
        pytest.param(None, ASKED, True, 16, id="or where nothing is known"),
        pytest.param(LANGUAGE, Request(gpus=4, tasks=4, cpus=20), None, 5, id="each part of a gang has its part of it"),
    ],
)
def test_no_sizing_gives_less_than_was_asked(
    sizing: Sizing, known: Profile | None, request_: Request, tunable: bool | None, least: int
) -> None:
    gang = gang_of(request_, known, memory_tunable=False, cpus_tunable=tunable)
    terms = demand_range(sizing, gang, SERVER)
    assert (terms.best.cpus, terms.minimum.cpus) == (least, least)


def test_cpus_are_cut_where_the_owner_allows_it_and_the_speed_was_measured() -> None:
    gang = gang_of(ASKED, LANGUAGE, memory_tunable=False, cpus_tunable=True)
    assert demand_range(Tune(), gang, SERVER).best.cpus == 1
    assert demand_range(Proportional(), gang, SERVER).best.cpus == 3


def test_memory_is_cut_where_the_owner_allows_it_and_its_effect_was_measured() -> None:
    lean, asked = profile("lean", {1: 1}, {20: 1}), Request(gpus=1, memory=200 * GIB)
    sizes = [
        demand_range(Tune(), gang_of(asked, known, memory_tunable=True), SERVER).best.memory // GIB
        for known in (lean, replace(lean, source="rule of thumb"), LANGUAGE, None)
    ]
    assert sizes == [20, 200, 200, 200]


def test_cpus_that_are_to_be_kept_are_not_raised_either() -> None:
    gang = gang_of(Request(gpus=1, cpus=2), HUNGRY, memory_tunable=False, cpus_tunable=False)
    terms, most = demand_range(Tune(), gang, SERVER), PerTaskResources(24, 10**9)
    assert (terms.best.cpus, terms.minimum.cpus) == (2, 2)
    assert not list(size_upgrades(Tune(), gang, SERVER, terms.minimum, most))


@pytest.mark.parametrize(
    ("request_", "best", "least"),
    [
        pytest.param(
            Request(gpus=2, memory=20 * GIB, memory_per_gpu=10 * GIB),
            (18, 20 * GIB),
            (6, 20 * GIB),
            id="--mem-per-gpu=10G: memory by its GPUs, CPUs as the sizing says",
        ),
        pytest.param(
            Request(gpus=1, cpus=2, memory=20 * GIB, memory_per_cpu=10 * GIB),
            (9, 90 * GIB),
            (3, 30 * GIB),
            id="--mem-per-cpu=10G -c2: memory grows with the CPUs",
        ),
        pytest.param(
            Request(gpus=1, memory=100 * GIB, memory_per_cpu=100 * GIB),
            (5, 500 * GIB),
            (1, 100 * GIB),
            id="--mem-per-cpu=100G: no CPU is added that would bring more memory than a share or a node has",
        ),
        pytest.param(
            Request(gpus=2, cpus=10, cpus_per_gpu=5), (10, 2 * SHARE), (10, 2 * SHARE), id="--cpus-per-gpu=5: as asked"
        ),
        pytest.param(Request(gpus=1, memory=99, whole_memory=True), (9, 0), (3, 0), id="--mem=0: no amount at all"),
        pytest.param(
            Request(gpus=1, cpus=2, memory=99, exclusive=True), (2, 125 * GIB), (2, SHARE), id="--exclusive: as asked"
        ),
    ],
)
def test_a_size_is_one_that_the_request_can_express(
    request_: Request, best: tuple[int, int], least: tuple[int, int]
) -> None:
    known = CACHED if request_.exclusive else HUNGRY
    terms = demand_range(Tune(), gang_of(request_, known, memory_tunable=False), SERVER)
    assert terms == DemandRange(PerTaskResources(*best), PerTaskResources(*least))


def test_a_step_of_cpus_brings_its_memory_and_stops_where_there_is_no_more() -> None:
    gang = gang_of(Request(gpus=1, memory=10, memory_per_cpu=10), HUNGRY, memory_tunable=False)
    steps = size_upgrades(Tune(), gang, SERVER, PerTaskResources(1, 10), PerTaskResources(24, 60))
    assert [(size.cpus, size.memory) for size, _ in steps] == [(3, 30), (6, 60)]
