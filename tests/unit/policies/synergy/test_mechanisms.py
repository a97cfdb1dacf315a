"""Synergy's mechanisms on tiny clusters, and where the paper and its authors' simulator part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.experiments.synergy.allocation import (
    AUTHORS,
    OURS,
    PAPER,
    FreeServers,
    SynergyGrant,
    SynergyJob,
    SynergyVariant,
    place_greedy,
    place_proportional,
    place_tune,
)

FAIR = (3.0, 62.5)
HUNGRY = (12.0, 125.0)
FRUGAL = (1.0, 20.0)
LADDER = ((1, 20, 0.3), (3, 62.5, 1.0), (6, 62.5, 1.8), (9, 62.5, 2.2), (12, 125, 2.9))

Mechanism = Callable[[Sequence[SynergyJob], FreeServers, SynergyVariant], list[SynergyGrant]]


def ask(job: int, gpus: int = 1, best: tuple[float, float] = FAIR) -> SynergyJob:
    ladder = tuple(point for point in LADDER if point[0] <= best[0] and point[1] <= best[1])
    return SynergyJob(job, gpus, FAIR, best, ladder)


def two() -> FreeServers:
    """The paper's two servers: 8 GPUs, 24 CPUs, 500 GB."""
    return FreeServers.uniform(2, 8, 24, 500.0)


def had(grants: list[SynergyGrant]) -> dict[int, tuple[tuple[tuple[int, int], ...], tuple[float, float]]]:
    return {grant.job.job_id: (grant.gpus_by_server, grant.per_gpu) for grant in grants}


def test_proportional_gives_everybody_the_share() -> None:
    grants = place_proportional([ask(0, 4, HUNGRY), ask(1, 8), ask(2, 4, FRUGAL)], two(), PAPER)
    assert {grant.per_gpu for grant in grants} == {FAIR}
    assert sorted(grant.gpus_by_server for grant in grants) == [((0, 4),), ((0, 4),), ((1, 8),)]


def test_greedy_passes_over_a_job_whose_cpus_are_not_there_and_goes_on() -> None:
    grants = place_greedy(
        [ask(0, 1, (24.0, 62.5)), ask(1, 1, (24.0, 62.5)), ask(2, 1, HUNGRY), ask(3, 1, (0.0, 20.0))], two(), PAPER
    )
    assert [grant.job.job_id for grant in grants] == [0, 1, 3]


def test_tune_gives_the_best_case_demand_where_there_is_room() -> None:
    assert had(place_tune([ask(0, 1, HUNGRY), ask(1, 1, FRUGAL)], two(), PAPER))[0][1] == HUNGRY


def test_tune_cuts_a_demand_that_does_not_fit_to_the_share() -> None:
    only = FreeServers.uniform(1, 8, 24, 500.0)
    grants = had(place_tune([ask(job, 1, (9.0, 62.5)) for job in range(3)], only, AUTHORS))
    assert [grants[job][1] for job in range(3)] == [(9.0, 62.5), (9.0, 62.5), FAIR]


def test_tune_cuts_a_peer_so_that_a_job_gets_its_share() -> None:
    """Two take all 24 CPUs of the only server; the third needs its 3."""
    grants = place_tune([ask(0, 1, HUNGRY), ask(1, 1, HUNGRY), ask(2)], FreeServers.uniform(1, 8, 24, 500.0), PAPER)
    assert sorted(grant.per_gpu for grant in grants) == [FAIR, FAIR, HUNGRY]
    assert [grant.replaced for grant in grants].count(True) == 1


@pytest.mark.parametrize(
    ("reading", "cut"),
    [
        pytest.param(PAPER, (3.0, 20.0), id="the paper cuts only what is above the share"),
        pytest.param(AUTHORS, FAIR, id="the authors make all of it the share"),
    ],
)
def test_what_a_cut_demand_becomes(reading: SynergyVariant, cut: tuple[float, float]) -> None:
    tight = FreeServers.uniform(1, 8, 8, 500.0)
    assert had(place_tune([ask(0, 1, (12.0, 20.0))], tight, reading))[0][1] == cut


@pytest.mark.parametrize(
    ("reading", "seats"),
    [
        pytest.param(PAPER, ((1, 2),), id="the paper takes the tightest server that is just enough"),
        pytest.param(AUTHORS, ((0, 2),), id="the authors take the first GPUs"),
    ],
)
def test_where_a_pair_of_gpus_goes(reading: SynergyVariant, seats: tuple[tuple[int, int], ...]) -> None:
    servers = FreeServers([8, 3], [24.0, 9.0], [500.0, 187.5])
    assert place_proportional([ask(0, 2)], servers, reading)[0].gpus_by_server == seats


def test_a_job_on_several_servers_has_the_same_beside_each_gpu() -> None:
    (grant,) = place_tune([ask(0, 12, (2.0, 40.0))], two(), PAPER)
    assert grant.gpus_by_server == ((0, 8), (1, 4))
    assert grant.per_gpu == (2.0, 40.0)


def test_a_server_is_emptied_of_the_fewest_jobs() -> None:
    """The paper's reading: one victim whose excess is just enough, not the hungriest of all."""
    asks = [ask(0, 1, HUNGRY), ask(1, 1, (6.0, 62.5)), ask(2, 1, (6.0, 62.5)), ask(3)]
    only = FreeServers.uniform(1, 8, 24, 500.0)
    in_order = replace(PAPER, sorts_by_demand=False)
    cut = {grant.job.job_id for grant in place_tune(asks, only, in_order) if grant.replaced}
    assert len(cut) == 1
    assert cut != {0}


def test_what_is_spare_in_the_end_is_handed_out_where_that_is_asked_for() -> None:
    asks = [ask(job, 1, HUNGRY) for job in range(3)]
    kept = place_tune(asks, FreeServers.uniform(1, 8, 24, 500.0), replace(OURS, distributes_spare=False))
    more = place_tune(asks, FreeServers.uniform(1, 8, 24, 500.0), OURS)
    assert sum(grant.per_gpu[0] for grant in more) >= sum(grant.per_gpu[0] for grant in kept)
    assert sum(ask_.speed_at(grant.per_gpu) for ask_, grant in zip(asks, more, strict=True)) > sum(
        ask_.speed_at(grant.per_gpu) for ask_, grant in zip(asks, kept, strict=True)
    )


demands = some.sampled_from([FAIR, HUNGRY, FRUGAL, (6.0, 187.5), (9.0, 62.5)])
queues = some.lists(some.tuples(some.sampled_from([1, 1, 1, 2, 4, 8, 16]), demands), max_size=24)
readings = some.sampled_from([PAPER, AUTHORS, OURS])
mechanisms = some.sampled_from([place_proportional, place_greedy, place_tune])


def asked(queue: list[tuple[int, tuple[float, float]]]) -> list[SynergyJob]:
    """Demands as the replay makes them: no more than a server holds, and nothing to gain for the widest."""
    asks = []
    for job, (gpus, (cpus, memory)) in enumerate(queue):
        most = FAIR if gpus > 8 else (24 / gpus, 500 / gpus)
        asks.append(ask(job, gpus, (min(cpus, most[0]), min(memory, most[1]))))
    return asks


def feasible(asks: list[SynergyJob], gpus: int) -> list[SynergyJob]:
    """Those whose GPUs can be had, in order."""
    chosen = []
    for one in asks:
        if one.gpus <= gpus:
            chosen.append(one)
            gpus -= one.gpus
    return chosen


@given(queues, readings, mechanisms)
def test_nothing_is_given_twice_and_gangs_are_whole(
    queue: list[tuple[int, tuple[float, float]]], reading: SynergyVariant, mechanism: Mechanism
) -> None:
    servers = FreeServers.uniform(3, 8, 24, 500.0)
    for grant in mechanism(asked(queue), servers, reading):
        assert sum(gpus for _, gpus in grant.gpus_by_server) == grant.job.gpus
    assert min(servers.gpus) >= 0
    assert min(servers.cpus) >= -1e-6
    assert min(servers.memory) >= -1e-6


@given(queues, readings)
def test_tune_gives_every_job_whose_gpus_are_there_at_least_what_is_as_good_as_its_share(
    queue: list[tuple[int, tuple[float, float]]], reading: SynergyVariant
) -> None:
    """GPUs never idle for lack of CPUs or memory, and nobody is slower than at the proportional share."""
    chosen = feasible(asked(queue), 24)
    grants = {grant.job.job_id: grant for grant in place_tune(chosen, FreeServers.uniform(3, 8, 24, 500.0), reading)}
    assert grants.keys() == {one.job_id for one in chosen}
    for one in chosen:
        for has, best, fair in zip(grants[one.job_id].per_gpu, one.best_case, one.fair, strict=True):
            assert has >= min(best, fair) - 1e-9
