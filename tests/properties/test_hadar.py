"""Hadar on random small instances, held against all that could have been done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurmsched.policies.hadar import exchange
from slurmsched.policies.hadar.places import find_alloc
from slurmsched.policies.hadar.primal_dual import (
    HadarScheduler,
    PricedRound,
    compute_prices,
    dp_allocation,
    fill_idle,
    payoffs,
)
from slurmsched.policies.hadar.problem import (
    UTILITIES,
    GangThroughput,
    HadarJob,
    ServerPools,
    TaskAllocation,
    Utility,
    effective_throughput,
    slack_aware,
)
from tests.plain_hadar import PlainRound, in_order

unhurried = settings(max_examples=60, deadline=None)

rates = st.floats(0.5, 20.0) | st.just(0.0)


@st.composite
def asks(draw: st.DrawFn, types: int, most: int) -> list[HadarJob]:
    count = draw(st.integers(1, most))
    found = []
    for number in range(count):
        together = tuple(draw(rates) for _ in range(types))
        apart = tuple(rate * draw(st.floats(0.5, 1.0)) for rate in together)
        total = draw(st.floats(100.0, 1e5))
        left = total * draw(st.floats(0.01, 1.0))
        found.append(HadarJob(f"j{number}", GangThroughput(draw(st.integers(1, 4)), together, apart), left, total))
    return found


@st.composite
def instances(draw: st.DrawFn, most_servers: int = 3, most_jobs: int = 4) -> tuple[list[HadarJob], ServerPools]:
    kinds = draw(st.lists(st.sampled_from(("v100", "p100", "k80")), min_size=1, max_size=most_servers))
    servers = ServerPools.of_single_type([(kind, draw(st.integers(1, 3))) for kind in kinds])
    return draw(asks(len(servers.types), most_jobs)), servers


def all_places(ask: HadarJob, servers: ServerPools, free: tuple[int, ...]) -> Iterator[TaskAllocation]:
    for counts in product(*(range(count + 1) for count in free)):
        if sum(counts) == ask.workers:
            yield tuple((pool, count) for pool, count in enumerate(counts) if count)


def optimum(queue: list[HadarJob], servers: ServerPools, free: tuple[int, ...], utility: Utility) -> float:
    """The largest sum of utilities of any set of jobs in any places."""
    if not queue:
        return 0.0
    ask, rest = queue[0], queue[1:]
    best = optimum(rest, servers, free, utility)
    for place in all_places(ask, servers, free):
        left = list(free)
        for pool, gpus in place:
            left[pool] -= gpus
        gained = utility(ask, ask.completion_time(servers.rate(ask, place)))
        if gained > 0:
            best = max(best, gained + optimum(rest, servers, tuple(left), utility))
    return best


@unhurried
@given(instances())
def test_the_total_utility_is_within_two_alpha_of_the_best_there_is(
    instance: tuple[list[HadarJob], ServerPools],
) -> None:
    """Theorem 2, of the jobs and the room of one round."""
    queue, servers = instance
    utility = effective_throughput(queue, servers)
    known = compute_prices(queue, servers, utility, 360.0)

    found = dp_allocation(queue, servers, servers.capacity, known, utility)

    by_name = {ask.job: ask for ask in queue}
    ours = sum(
        utility(by_name[job], by_name[job].completion_time(servers.rate(by_name[job], place)))
        for job, place in found.items()
    )
    best = optimum(queue, servers, tuple(servers.capacity.tolist()), utility)
    assert ours * 2 * known.alpha >= best * (1 - 1e-9)


@unhurried
@given(instances(most_servers=5, most_jobs=8))
def test_nothing_is_given_twice_and_gangs_are_whole(instance: tuple[list[HadarJob], ServerPools]) -> None:
    queue, servers = instance

    found = HadarScheduler().decide(queue, servers)

    by_name = {ask.job: ask for ask in queue}
    assert np.all(servers.free_after(found.values()) >= 0)
    for job, place in found.items():
        assert sum(gpus for _, gpus in place) == by_name[job].workers
        assert servers.rate(by_name[job], place) > 0


@unhurried
@given(instances(most_servers=5, most_jobs=8))
def test_who_does_not_run_finds_no_room(instance: tuple[list[HadarJob], ServerPools]) -> None:
    """Work-conserving: a gang that waits is wider than what it could use of the rest."""
    queue, servers = instance

    found = HadarScheduler().decide(queue, servers)

    free = servers.free_after(found.values())
    for ask in queue:
        if ask.job not in found:
            usable = np.array(ask.throughput.consolidated)[servers.type_of] > 0
            apart = np.array(ask.throughput.spread)[servers.type_of] > 0
            assert free[usable & apart].sum() < ask.workers


@unhurried
@given(instances(most_servers=4, most_jobs=6))
def test_a_round_after_which_nothing_changed_changes_nothing(instance: tuple[list[HadarJob], ServerPools]) -> None:
    queue, servers = instance
    hadar = HadarScheduler()
    first = hadar.decide(queue, servers)
    for _ in range(4):
        second = hadar.decide(queue, servers, first)
        if second == first:
            return
        first = second
    raise AssertionError("it changes its mind every round")


@unhurried
@given(instances(most_servers=5, most_jobs=8))
def test_jobs_that_differ_only_in_rates_are_placed_as_if_each_were_placed_anew(
    instance: tuple[list[HadarJob], ServerPools],
) -> None:
    queue, servers = instance
    utility = effective_throughput(queue, servers)
    known = compute_prices(queue, servers, utility, 360.0)

    free, anew = servers.capacity.copy(), dict[str, TaskAllocation]()
    for job in in_order(queue, servers, utility):
        offers = find_alloc(job.throughput, servers, free, known.pool_prices(servers, free))
        if offers:
            best = max(payoffs(job, offers, utility), key=lambda pair: pair[0])[1]
            anew[job.job] = best.allocation
            free = servers.free_after(anew.values())

    assert fill_idle(queue, servers, servers.capacity, known, utility) == anew


@unhurried
@given(instances(most_servers=3, most_jobs=5))
def test_no_other_assignment_of_the_same_places_is_worth_more(instance: tuple[list[HadarJob], ServerPools]) -> None:
    """Held against every way to give the places of a width to jobs of that width. Restarts cost nothing here."""
    queue, servers = instance
    utility = effective_throughput(queue, servers)
    found = HadarScheduler(restart_cost=0.0, beam_width=1).decide(queue, servers)

    for width in {job.workers for job in queue}:
        jobs = [job for job in queue if job.workers == width]
        places = [found[job.job] for job in jobs if job.job in found]

        def total(holders: tuple[HadarJob, ...], places: list[TaskAllocation] = places) -> float:
            rates = [servers.rate(job, place) for job, place in zip(holders, places, strict=True)]
            worth = [utility(job, job.completion_time(rate)) for job, rate in zip(holders, rates, strict=True)]
            return sum(worth) if all(rates) else 0.0

        now = total(tuple(job for job in jobs if job.job in found))
        best = max(map(total, permutations(jobs, len(places))))
        assert now >= best * (1 - 1e-6)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[HadarJob], ServerPools]:
    """Servers of one type and of several, gangs with every kind of request, jobs that are alike and that are not."""
    types, pools = draw(st.integers(1, 3)), list[tuple[int, int, int]]()
    for server in range(draw(st.integers(1, 6))):
        kinds = draw(st.sets(st.integers(0, types - 1), min_size=1, max_size=draw(st.sampled_from([1, 1, types]))))
        pools += [(kind, server, draw(st.sampled_from([0, 1, 2, 4, 8]))) for kind in sorted(kinds)]
    type_of, server_of, gpus = (np.array(column, dtype=np.int64) for column in zip(*pools, strict=True))
    queue = list[HadarJob]()
    for number in range(draw(st.integers(1, 12))):
        workers, fewest = draw(st.sampled_from([1, 1, 1, 2, 3, 4, 8])), draw(st.sampled_from([1, 1, 2, 3]))
        fewest = min(fewest, workers)
        together = tuple(draw(st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0.2, 5.0)) for _ in range(types))
        apart = tuple(rate * draw(st.sampled_from([0.8, 1.0, 1.1])) for rate in together)
        most = draw(st.sampled_from([None, fewest, fewest + 1]))
        gang = GangThroughput(workers, together, apart, fewest, most, draw(st.booleans()))
        total = draw(st.sampled_from([3600.0]) | st.floats(100.0, 1e5))
        left = total * draw(st.sampled_from([1.0]) | st.floats(0.01, 1.0))
        age, copies = draw(st.sampled_from([0.0, 5e4])), draw(st.sampled_from([1, 1, 1, 2]))
        queue.append(HadarJob(f"j{number}", gang, left, total, age, copies))
    return queue, ServerPools(tuple("abc"[:types]), type_of, server_of, gpus)


@settings(max_examples=250, deadline=None)
@given(rounds(), st.sampled_from([*UTILITIES]), st.sampled_from([0.0, 60.0, 1000.0]), st.data())
def test_a_round_is_what_plain_vectors_of_all_pools_come_to(
    instance: tuple[list[HadarJob], ServerPools], name: str, restart_cost: float, data: st.DataObject
) -> None:
    queue, servers = instance
    hadar = HadarScheduler(UTILITIES[name], restart_cost=restart_cost, beam_width=data.draw(st.sampled_from([1, 2, 4])))
    plain = PlainRound(hadar, queue, servers)
    first = hadar.decide(queue, servers)
    assert first == plain.decide({})
    held = {job: place for job, place in first.items() if data.draw(st.booleans())}
    assert hadar.decide(queue, servers, held) == plain.decide(held)


@st.composite
def scattered(draw: st.DrawFn) -> tuple[list[HadarJob], ServerPools, dict[str, TaskAllocation]]:
    """Servers of four GPUs, small jobs that run anywhere on them, and gangs that need whole servers."""
    servers = ServerPools.of_single_type([(draw(st.sampled_from("ab")), 4) for _ in range(draw(st.integers(2, 4)))])
    types, free, queue, held = len(servers.types), servers.capacity.copy(), list[HadarJob](), {}
    for number in range(draw(st.integers(2, 8))):
        rates = tuple(draw(st.sampled_from([1.0, 2.0])) for _ in range(types))
        queue.append(HadarJob(f"small{number}", GangThroughput(1, rates, rates), *draw(lengths)))
        pool = draw(st.sampled_from(range(len(free))))
        if free[pool]:
            free[pool] -= 1
            held[f"small{number}"] = ((pool, 1),)
    for number in range(draw(st.integers(1, 2))):
        gang = GangThroughput(4, (4.0,) * types, (4.0,) * types, max_servers=1, mixes_types=False)
        queue.append(HadarJob(f"wide{number}", gang, *draw(lengths)))
    return queue, servers, held


lengths = st.floats(100.0, 1e5).map(lambda seconds: (seconds, seconds))


@settings(max_examples=120, deadline=None)
@given(scattered(), st.sampled_from([*UTILITIES]), st.sampled_from([0.0, 60.0, 1000.0]))
def test_room_for_a_newcomer_is_made_where_the_round_is_worth_more_then(
    instance: tuple[list[HadarJob], ServerPools, dict[str, TaskAllocation]], name: str, restart_cost: float
) -> None:
    queue, servers, held = instance
    hadar = HadarScheduler(UTILITIES[name], restart_cost=restart_cost, makes_room_for="wide0")
    found, without = (one.decide(queue, servers, held) for one in (hadar, replace(hadar, makes_room_for="")))
    worth = [PricedRound(hadar, queue, servers).total_utility(given, held) for given in (found, without)]
    assert found == PlainRound(hadar, queue, servers).decide(held)
    wide = {job for job in found if job.startswith("wide")}  # one that asks alike may get the place instead
    assert found == without if worth[0] == worth[1] else worth[0] > worth[1] and wide
    assert (servers.free_after(found.values()) >= 0).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
@example(97127, True)
def test_a_large_exchange_is_worth_as_much_as_the_best_assignment(seed: int, alike: bool) -> None:
    """Solved over offers, with each group of a round as large as a matrix can still tell. Only where fewer places are
    given than jobs have the same one it may be less, by 0.27 % in the worst of some 3,500 exchanges."""
    draw = np.random.default_rng(seed)
    servers = ServerPools.of_single_type([("abc"[number % 3], int(draw.choice([4, 8]))) for number in range(24)])
    models, queue = draw.uniform(0.1, 2.0, (4, 3)), list[HadarJob]()
    for number in range(300):
        workers = int(draw.choice([1, 1, 1, 2, 4, 8, 16]))
        of_model = models[draw.integers(4)] if alike else draw.uniform(0.1, 2.0, 3)
        together = tuple((workers * of_model).tolist())
        work = workers * (3600.0 * int(draw.integers(1, 80)) if alike else float(draw.uniform(600.0, 3e5)))
        gang = GangThroughput(workers, together, tuple(0.8 * rate for rate in together))
        queue.append(HadarJob(f"j{number}", gang, work, work, float(draw.uniform(0, 1e5))))
    hadar = HadarScheduler(slack_aware, restart_cost=60.0)
    held = {job: place for job, place in hadar.decide(queue, servers).items() if draw.random() < 0.8}
    stay = [job for job in queue if job.job in held or draw.random() < 0.9]

    by_matrix, solve = list[float](), exchange._by_matrix
    by_offers, contested = list[float](), list[bool]()

    def both(of: exchange._Contenders) -> Iterator[tuple[int, int]]:
        values = of.values()
        found, other = [*solve(of)], [*exchange._by_offers(of)]
        assert {column for _, column in other} == {column for _, column in found}
        assert len({row for row, _ in other}) == len(other) == len(found)
        having = Counter(columns[0] for columns in of.own.values())
        contested.append(any(having[columns[0]] > len(columns) for columns in of.own.values()))
        by_matrix.append(sum(values[row, column] for row, column in found))
        by_offers.append(sum(values[row, column] for row, column in other))
        return iter(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_by_matrix", both)
        hadar.decide(stay, servers, held)
    assert len(by_matrix) >= 4
    assert len(by_matrix) == len(contested)
    for one, other, inexact in zip(by_offers, by_matrix, contested, strict=True):
        assert one == pytest.approx(other, rel=5e-3 if inexact else 1e-6)
    assert all(one <= other * (1 + 1e-12) for one, other in zip(by_offers, by_matrix, strict=True))
