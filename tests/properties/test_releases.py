"""Releasing many allocations at once leaves free what releasing them one after another does, whatever they are: also
where more was allocated than there is, or devices are not known, or those of two jobs are the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools
from tests.builders import node

GPUS = 4
POOLS = Pools([node(f"n{number}", GPUS, shards=4) for number in range(3)])


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    pools = tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)))
    gpus = tuple(draw(st.integers(0, GPUS)) for _ in pools)
    part = draw(st.sampled_from((0, 0, 0, 250, 500)))
    if part:
        devices = tuple((draw(st.integers(0, GPUS - 1)),) for _ in pools)
        return Allocation(pools, (0,) * len(pools), (1,) * len(pools), (1,) * len(pools), part=part, devices=devices)
    known = tuple(tuple(draw(st.permutations(range(GPUS)))[:count]) if draw(st.booleans()) else () for count in gpus)
    amounts = tuple(draw(st.integers(0, 5)) for _ in pools)
    return Allocation(pools, gpus, amounts, amounts, draw(st.booleans()), devices=known if draw(st.booleans()) else ())


@settings(max_examples=400, deadline=None)
@given(st.lists(allocations(), max_size=8), st.lists(allocations(), max_size=8))
def test_all_at_once_is_one_after_another(before: list[Allocation], released: list[Allocation]) -> None:
    together, alone = FreeResources.of_empty_cluster(POOLS), FreeResources.of_empty_cluster(POOLS)
    for free in (together, alone):
        for allocation in before:
            free.allocate(allocation)
    together.release_all(released)
    shared = {pool for allocation in released if allocation.part for pool in allocation.pools}
    for allocation in sorted(released, key=lambda one: shared.isdisjoint(one.pools)):  # parts of GPUs first
        alone.release(allocation)
    for amounts in ("gpus", "cpus", "memory", "exclusive_jobs", "milli"):
        assert np.array_equal(getattr(together, amounts), getattr(alone, amounts)), amounts
    assert set(together.changed_nodes) == set(alone.changed_nodes)
