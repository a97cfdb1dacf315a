"""The worth of what is idle, against a plain recursion, and where tasks go by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import TaskDemand
from slurmsched.policies.place.worth import IdleWorth, LeastLossTable, Offer, expected_worth
from tests.builders import Server, free_resources

LEAN, HUNGRY = TaskDemand(1000, 10, 1, 1000), TaskDemand(16000, 10, 1, 1000)
LARGE_PART, SMALL_PART = TaskDemand(1000, 10, 1, 800), TaskDemand(1000, 10, 1, 200)
PAIR, CPUS_ONLY = TaskDemand(2000, 20, 2, 1000), TaskDemand(6000, 10, 0, 0)
FATTEST = TaskDemand(1000, 900, 1, 1000)


def server(*milli: int, cpus: int = 32000, memory: int = 1000, gpu_type: str = "a") -> Server:
    return Server(cpus, memory, milli, gpu_type)


def plain_worth(offers: Sequence[Offer], resource: int, gpus: int, count: int) -> float:
    """V of the module's derivation, word for word."""

    @cache
    def worth(left: int, needs: int, steps: int) -> float:
        if not left:
            return 0.0
        refused = worth(left - 1, needs, steps)
        total = (1 - sum(offer.probability for offer in offers)) * refused
        for offer in offers:
            best = refused
            if offer.needs <= needs and offer.gpu_steps <= steps:
                best = max(best, offer.worth + worth(left - 1, needs - offer.needs, steps - offer.gpu_steps))
            total += offer.probability * best
        return total

    return worth(count, resource, gpus)


OFFERED = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 5), st.floats(0, 3), st.integers(1, 9)), min_size=1, max_size=4
).map(lambda rows: [Offer(needs, steps, worth, weight / 40) for needs, steps, worth, weight in rows])


@given(OFFERED, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_the_table_is_the_plain_recursion(offers: list[Offer], resource: int, gpus: int, count: int) -> None:
    table = expected_worth(offers, (resource, gpus), count)
    for needs in range(resource + 1):
        for steps in range(gpus + 1):
            assert table[needs, steps] == pytest.approx(plain_worth(offers, needs, steps, count), abs=1e-9)


@given(
    st.lists(st.sampled_from([LEAN, HUNGRY, LARGE_PART, SMALL_PART, PAIR]), min_size=1, max_size=6),
    st.integers(0, 64000),
    st.integers(0, 2000),
    st.lists(st.integers(0, 1000), min_size=4, max_size=4),
)
def test_more_that_is_idle_is_never_worth_less_nor_a_node_more_than_its_devices(
    tasks: list[TaskDemand], cpus: int, memory: int, milli: list[int]
) -> None:
    free = free_resources([server(*[1000] * 4, cpus=64000, memory=2000)])
    worth = IdleWorth(Counter(tasks), free.pools)

    def amount(cpus: int, memory: int, milli: list[int]) -> float:
        return float(worth.amount(np.array([cpus]), np.array([memory]), np.array([milli]))[0])

    found = amount(cpus, memory, milli)
    assert -1e-9 <= found <= float(worth.of_device[milli].sum()) + 0.1
    assert found <= amount(64000, memory, milli) + 1e-9
    assert found <= amount(cpus, 2000, milli) + 1e-9
    assert found <= amount(cpus, memory, [1000] * 4) + 1e-9


@pytest.mark.parametrize(
    ("workload", "servers", "task", "expected"),
    [
        pytest.param(
            [LEAN] * 9 + [HUNGRY] * 9,
            [server(1000, 1000, cpus=17000), server(1000, cpus=32000)],
            HUNGRY,
            (1, (0,)),
            id="many CPUs go where many are left for each GPU, although both nodes hold one more task",
        ),
        pytest.param(
            [LEAN] * 9 + [HUNGRY] * 9,
            [server(1000, 1000, cpus=32000), server(1000, cpus=3000)],
            LEAN,
            (1, (0,)),
            id="few CPUs go where few are left",
        ),
        pytest.param(
            [LEAN] * 9 + [FATTEST] * 9,
            [server(1000, 1000, memory=905), server(1000, memory=1000)],
            FATTEST,
            (1, (0,)),
            id="memory counts as CPUs do",
        ),
        pytest.param(
            [LARGE_PART, SMALL_PART],
            [server(1000), server(200)],
            SMALL_PART,
            (1, (0,)),
            id="a small part completes a device",
        ),
        pytest.param(
            [LEAN] * 9 + [CPUS_ONLY],
            [server(1000, 1000, cpus=7000), server(cpus=7000)],
            CPUS_ONLY,
            (1, ()),
            id="no GPU: where no GPU idles",
        ),
        pytest.param(
            [LEAN] * 6 + [PAIR] * 4,
            [server(1000, 1000), server(1000)],
            LEAN,
            (1, (0,)),
            id="the last slot for a pair is kept",
        ),
        pytest.param(
            [LEAN] * 9 + [TaskDemand(1000, 10, 1, 1000, ("b",))] * 9,
            [server(1000, gpu_type="b"), server(1000)],
            LEAN,
            (1, (0,)),
            id="any type: not the one that others ask for",
        ),
        pytest.param([LEAN], [server(1000, cpus=900), server(900)], LEAN, None, id="nowhere"),
    ],
)
def test_a_task_goes_where_least_is_lost(
    workload: list[TaskDemand],
    servers: Sequence[Server],
    task: TaskDemand,
    expected: tuple[int, tuple[int, ...]] | None,
) -> None:
    free = free_resources(servers)
    placed = LeastLossTable.of(IdleWorth(Counter(workload), free.pools), free).place(task)
    assert (placed and (placed.pools[0], placed.devices[0])) == expected


def test_a_slot_for_a_gang_costs_nothing_while_there_are_many() -> None:
    """Of 40 pairs hardly any comes; of one slot each comes too late."""
    worthless, needed = (free_resources([server(1000, 1000)] * nodes + [server(1000)]) for nodes in (40, 1))
    rare, common = Counter({LEAN: 99, PAIR: 1}), Counter({LEAN: 1, PAIR: 1})
    for free, workload, least, most in ((worthless, rare, 0.0, 1e-6), (needed, common, 0.5, 2.0)):
        table = LeastLossTable.of(IdleWorth(workload, free.pools), free)
        lost = table.scores_of(LEAN) - table.net_scores(LEAN)
        assert least <= lost[0] <= most
        assert lost[-1] == 0.0


STEPS = st.lists(st.tuples(st.sampled_from([LEAN, HUNGRY, LARGE_PART, SMALL_PART, PAIR, CPUS_ONLY]), st.booleans()))


@given(st.lists(st.integers(1, 4).map(lambda gpus: server(*[1000] * gpus)), min_size=1, max_size=4), STEPS)
def test_what_it_has_worked_out_before_is_what_it_would_now(
    servers: Sequence[Server], steps: Sequence[tuple[TaskDemand, bool]]
) -> None:
    free = free_resources(servers)
    worth = IdleWorth(Counter([LEAN, HUNGRY, LARGE_PART, SMALL_PART, PAIR]), free.pools)
    table, placed = LeastLossTable.of(worth, free), list[Allocation]()
    for task, leaves in steps:
        if leaves and placed:
            free.release(placed.pop(0))
        assert table.net_scores(task) == pytest.approx(LeastLossTable.of(worth, free).net_scores(task))
        if (found := table.place(task)) is not None:
            placed.append(found)
        assert min(free.milli.min(), free.cpus.min(), free.memory.min()) >= 0


def test_there_is_no_worth_without_tasks() -> None:
    with pytest.raises(PolicyError, match="no task is known"):
        IdleWorth({}, FreeResources.of_empty_cluster(free_resources([server(1000)]).pools).pools)
