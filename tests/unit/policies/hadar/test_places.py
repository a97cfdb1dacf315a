"""Where a gang may lie and what it costs there."""

from __future__ import annotations

import numpy as np
import pytest

from slurmsched.policies.hadar.places import find_alloc
from slurmsched.policies.hadar.primal_dual import Prices, compute_prices, dp_allocation, fill_idle
from slurmsched.policies.hadar.problem import GangThroughput, HadarJob, ServerPools, effective_throughput

TWO_TYPES = ServerPools.of_single_type([("v100", 4), ("v100", 4), ("p100", 4)])
FAST_ON_V100 = (4.0, 2.0)


def speeds(
    workers: int, together: tuple[float, ...] = FAST_ON_V100, apart: tuple[float, ...] | None = None
) -> GangThroughput:
    return GangThroughput(workers, together, together if apart is None else apart)


def ask(name: str, workers: int, together: tuple[float, ...] = FAST_ON_V100, left: float = 3600.0) -> HadarJob:
    return HadarJob(name, speeds(workers, together), left, left)


def by_type(servers: ServerPools, allocation: tuple[tuple[int, int], ...]) -> dict[str, int]:
    return {servers.types[kind]: gpus for kind, gpus in servers.gpus_by_type(allocation).items()}


@pytest.mark.parametrize(
    ("gang", "free", "expected"),
    [
        pytest.param(speeds(4), (4, 2, 4), ((0, 4),), id="the whole gang on one server where it fits"),
        pytest.param(speeds(2), (4, 2, 4), ((1, 2),), id="of equally cheap servers that with the least room"),
        pytest.param(speeds(6), (4, 2, 4), ((0, 4), (1, 2)), id="over two servers where no one holds it"),
        pytest.param(speeds(4), (1, 1, 4), ((2, 4),), id="on the slow type where that alone has the room"),
        pytest.param(speeds(4), (2, 0, 2), ((0, 2), (2, 2)), id="on both types where neither has the room"),
        pytest.param(
            speeds(4, (4.0, 0.0)), (2, 0, 4), None, id="nowhere where one type is too full and the other no use"
        ),
    ],
)
def test_the_fastest_place_that_there_is(
    gang: GangThroughput, free: tuple[int, ...], expected: tuple[tuple[int, int], ...] | None
) -> None:
    level = np.ones(3)

    found = find_alloc(gang, TWO_TYPES, np.array(free), level)

    assert (found[0].allocation if found else None) == expected


def test_a_mixed_gang_is_as_fast_as_its_slowest_task() -> None:
    found = find_alloc(speeds(4), TWO_TYPES, np.array([2, 0, 2]), np.ones(3))

    assert found[0].rate == 2.0


def test_communication_costs_a_gang_apart_its_speed() -> None:
    gang = speeds(4, (4.0, 3.0), apart=(2.0, 1.0))

    found = find_alloc(gang, TWO_TYPES, np.array([2, 2, 4]), np.ones(3))

    assert [(offer.allocation, offer.rate) for offer in found] == [(((2, 4),), 3.0)]


def test_a_slower_place_is_offered_only_where_it_is_cheaper() -> None:
    dear_v100 = np.array([5.0, 5.0, 1.0])

    found = [find_alloc(speeds(4), TWO_TYPES, TWO_TYPES.capacity, price) for price in (dear_v100, np.ones(3))]

    assert [[(offer.rate, offer.cost) for offer in among] for among in found] == [
        [(4.0, 20.0), (2.0, 4.0)],
        [(4.0, 4.0)],
    ]


@pytest.mark.parametrize(
    ("gang", "expected"),
    [
        pytest.param(
            GangThroughput(6, FAST_ON_V100, FAST_ON_V100, mixes_types=False), [((0, 4), (1, 2))], id="one type only"
        ),
        pytest.param(GangThroughput(6, FAST_ON_V100, FAST_ON_V100, max_servers=1), [], id="one server only"),
        pytest.param(
            GangThroughput(4, (4.0, 0.0), (4.0, 0.0), min_servers=2),
            [((0, 2), (1, 2))],
            id="two servers though one would hold it",
        ),
    ],
)
def test_a_gang_lies_only_where_its_request_lets_it(
    gang: GangThroughput, expected: list[tuple[tuple[int, int], ...]]
) -> None:
    found = find_alloc(gang, TWO_TYPES, np.array([4, 4, 4]), np.ones(3))

    assert [offer.allocation for offer in found] == expected


def test_the_price_rises_from_the_lowest_to_the_highest_as_a_server_fills() -> None:
    known = Prices(np.array([0.01, 0.02]), np.array([1.0, 2.0]))

    empty, half, full = (known.pool_prices(TWO_TYPES, np.full(3, free)) for free in (4, 2, 0))

    assert empty == pytest.approx([0.01, 0.01, 0.02])
    assert half == pytest.approx([0.1, 0.1, 0.2])
    assert full == pytest.approx([1.0, 1.0, 2.0])


def test_a_full_server_is_dearer_than_anybody_gains_from_it() -> None:
    queue = [ask("a", 1), ask("b", 2, (1.0, 1.0)), ask("c", 4, (9.0, 1.0))]
    utility = effective_throughput(queue, TWO_TYPES)

    full = compute_prices(queue, TWO_TYPES, utility, 360.0).pool_prices(TWO_TYPES, np.zeros(3, dtype=np.int64))

    for job in queue:
        for kind, rate in enumerate(job.throughput.consolidated):
            assert (
                full[TWO_TYPES.type_of == kind].min() >= utility(job, job.completion_time(rate)) / job.workers - 1e-12
            )


def test_the_job_that_gains_most_from_the_fast_type_gets_it() -> None:
    servers = ServerPools.of_single_type([("v100", 2), ("p100", 2)])
    queue = [ask("hardly", 2, (4.0, 3.6)), ask("much", 2, (10.0, 1.0))]

    found = _admitted(queue, servers)

    assert by_type(servers, found["much"]) == {"v100": 2}
    assert by_type(servers, found["hardly"]) == {"p100": 2}


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    assert _admitted([ask("wide", 13)], TWO_TYPES) == {}


def test_what_nobody_pays_for_is_filled() -> None:
    servers = ServerPools.of_single_type([("v100", 1)])
    dear = Prices(np.array([50.0]), np.array([100.0]))
    queue = [ask("poor", 1, (1.0,))]
    utility = effective_throughput(queue, servers)

    assert dp_allocation(queue, servers, servers.capacity, dear, utility) == {}
    assert fill_idle(queue, servers, servers.capacity, dear, utility) == {"poor": ((0, 1),)}


def _admitted(queue: list[HadarJob], servers: ServerPools) -> dict[str, tuple[tuple[int, int], ...]]:
    utility = effective_throughput(queue, servers)
    return dict(
        dp_allocation(queue, servers, servers.capacity, compute_prices(queue, servers, utility, 360.0), utility)
    )
