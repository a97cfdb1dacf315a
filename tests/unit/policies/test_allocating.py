"""CPUs and memory for one part of a gang on one kind of node."""

from __future__ import annotations

import pytest

from slurmsched.knowledge import Profile
from slurmsched.model import Request
from slurmsched.policies.cluster.gang import gang_of
from slurmsched.policies.cluster.resources import PoolKind
from slurmsched.policies.sizes import AsRequested, DemandRange, PerTaskResources, Proportional, Tune
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
            Request(gpus=1, memory=10**9), True, PerTaskResources(1, SHARE), id="or its share, if that is less"
        ),
        pytest.param(
            Request(gpus=4, tasks=4, cpus=8),
            False,
            PerTaskResources(2, SHARE),
            id="a part of a gang gets its part of the CPUs",
        ),
    ],
)
def test_a_job_of_which_nothing_is_known_gets_what_it_asked_for(
    request_: Request, tunable: bool, portion: PerTaskResources
) -> None:
    gang = gang_of(request_, None, memory_tunable=tunable)
    assert (
        Tune().demand_range(gang, SERVER) == AsRequested().demand_range(gang, SERVER) == DemandRange(portion, portion)
    )
    assert not list(Tune().upgrades(gang, SERVER, portion, PerTaskResources(24, 10**9)))


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
