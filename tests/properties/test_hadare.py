"""Steps of forked jobs: all of them, and no idle node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.experiments.mixed.replay_policies import ForkedJob, assign_nodes
from slurmsched.policies.hadare.policy import divide_steps

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
