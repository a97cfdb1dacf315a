"""Steps of forked jobs: each of them once, and no idle node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.policies.hadare.job_tracker import ForkedJob, JobTracker, assign_nodes, divide_steps

unhurried = settings(max_examples=100, deadline=None)
rates = st.floats(0.05, 50.0)


@unhurried
@given(st.integers(0, 5000), st.lists(rates, min_size=1, max_size=8))
def test_all_steps_are_dispatched_and_the_last_copy_is_through_as_soon_as_can_be(
    steps: int, speeds: list[float]
) -> None:
    portions = divide_steps(steps, speeds)

    assert sum(portions) == steps
    through = max(count / rate for count, rate in zip(portions, speeds, strict=True))
    assert all((count + 1) / rate >= through * (1 - 1e-9) for count, rate in zip(portions, speeds, strict=True))
    for count, rate in zip(portions, speeds, strict=True):
        assert abs(count - steps * rate / sum(speeds)) <= len(speeds)


@st.composite
def happenings(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    what = st.sampled_from(("report", "report", "report", "end", "close"))
    return draw(st.lists(st.tuples(what, st.integers(1, 4), st.integers(0, 6), st.integers(0, 400)), max_size=60))


@unhurried
@given(st.integers(1, 400), st.lists(rates, min_size=4, max_size=4), happenings())
def test_every_step_counts_exactly_once(
    total: int, speeds: list[float], events: list[tuple[str, int, int, int]]
) -> None:
    """Copies report twice, late and too much, and die at any moment. The oracle names every step."""
    job, number = JobTracker(total), 0
    done: set[int] = set()
    leased: dict[int, list[int]] = {}
    best: dict[int, int] = {}
    dead: set[int] = set()

    def begin() -> None:
        nonlocal job, number
        left = sorted(set(range(total)) - done)
        portions = divide_steps(len(left), speeds)
        leased.clear(), best.clear(), dead.clear()
        for copy, count in enumerate(portions, start=1):
            leased[copy], left = left[:count], left[count:]
        job, number = job.begin_round(dict(enumerate(portions, start=1))), number + 1

    begin()
    for what, copy, of_round, count in events:
        if what == "report":
            job = job.report(copy, of_round, count)
            if of_round == number and copy not in dead:
                best[copy] = max(best.get(copy, 0), min(count, len(leased[copy])))
        elif what == "end":
            job = job.end_copy(copy, number)
            dead.add(copy)
        else:
            for one, steps in leased.items():
                fresh = set(steps[: best.get(one, 0)])
                assert not fresh & done
                done |= fresh
            job = job.close_round()
            assert job.aggregated == len(done)
            if job.finished:
                return
            begin()


@st.composite
def batches(draw: st.DrawFn) -> list[ForkedJob]:
    nodes = draw(st.integers(1, 6))
    speeds = st.tuples(*[st.floats(0.1, 3.0)] * nodes)
    return [ForkedJob(f"j{at}", draw(st.integers(1, 4000)), draw(speeds)) for at in range(draw(st.integers(1, 6)))]


@unhurried
@given(batches(), st.floats(20.0, 400.0))
def test_no_node_is_idle_but_in_the_last_round(jobs: list[ForkedJob], slot: float) -> None:
    """Theorem 3. Every step is shorter than a round, on every node."""
    nodes = len(jobs[0].rates)
    left = {job.job: job.remaining for job in jobs}
    for _ in range(100_000):
        now = [ForkedJob(job.job, left[job.job], job.rates) for job in jobs]
        plan = assign_nodes(now, slot)
        by_name = {job.job: job for job in now}
        busy = [node for portions in plan.values() for node in portions]
        assert len(busy) == len(set(busy))
        for job, portions in plan.items():
            assert sum(portions.values()) <= left[job]
            left[job] -= sum(min(steps, int(slot * by_name[job].rates[node])) for node, steps in portions.items())
        if not any(left.values()):
            return
        assert len(busy) == nodes, "a node is idle, and it is not the last round"
    raise AssertionError("it never ends")
