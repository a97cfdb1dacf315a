"""Copies on a live cluster: apart, on every idle node, and with all the steps that there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.knowledge import Profile, Scaling
from slurmsched.model import Job, ReasonCode
from slurmsched.policies import Situation, policy
from tests.builders import job, node, share, situation

unhurried = settings(max_examples=100, deadline=None)
rates = st.floats(0.05, 50.0)
models = st.sampled_from(("known", "unknown"))
SPEEDS = {"v100": 1.0, "p100": 0.5, "k80": 0.1}
KNOWN = Profile("known", "", {}, "by hand", {kind: Scaling((1,), (speed,)) for kind, speed in SPEEDS.items()})


@st.composite
def clusters(draw: st.DrawFn) -> Situation:
    """Nodes of several types, arrays of copies of which some run, and other jobs."""
    types = draw(st.lists(st.sampled_from(("v100", "p100", "k80")), min_size=1, max_size=5))
    sizes = [draw(st.integers(1, 2)) for _ in types]
    nodes = [
        node(f"n{at}", gpus, kind, cpus=4 * gpus) for at, (kind, gpus) in enumerate(zip(types, sizes, strict=True))
    ]
    free = dict(enumerate(sizes))
    jobs: list[Job] = []
    for array in range(draw(st.integers(1, 3))):
        homes = draw(st.sets(st.integers(0, len(nodes) - 1), max_size=2))
        for task, home in enumerate([*homes, *[None] * draw(st.integers(0, 5))]):
            on = []
            if home is not None and free[home]:
                free[home] -= 1
                on = [share(f"n{home}", [free[home]], 2, 100, types[home])]
            hint = (
                f"fork={draw(st.integers(1, 500))},model={draw(models)}"
                if not task
                else jobs[-1].comment.removeprefix("synsched:")
            )
            jobs.append(job(f"{array + 1}_{task}", cpus=1, hint=hint, array_job=str(array + 1), on=on))
    jobs += [job(100 + other, gpus=1, cpus=1) for other in range(draw(st.integers(0, 2)))]
    asked = situation(nodes, jobs, restart_cost=draw(st.sampled_from((0.0, 60.0))), max_moves=draw(st.integers(0, 3)))
    running = [one for one in jobs if one.allocations and one.copy_of]
    measured = {one.id: {one.allocations[0].gpu_type: draw(rates)} for one in running if draw(st.booleans())}
    steps = {one.id: draw(st.integers(0, 600)) for one in running}
    known = replace(asked.knowledge, models={"known": KNOWN}, reference="v100", measured=measured, steps=steps)
    return replace(asked, knowledge=known)


@unhurried
@given(clusters())
def test_copies_live_are_apart_on_every_idle_node_and_their_steps_are_all_there_are(asked: Situation) -> None:
    decision = policy("hadare").decide(asked)
    jobs = asked.snapshot.jobs_by_id
    assert decision.targets.keys() | decision.waiting.keys() == jobs.keys()
    assert not decision.targets.keys() & decision.waiting.keys()
    assert {ranked.job for ranked in decision.order} == jobs.keys()

    homes = Counter((jobs[target.job].copy_of, target.nodes[0]) for target in decision.targets.values())
    assert all(count == 1 for (array, _), count in homes.items() if array)
    for one in jobs.values():  # also where it is moved or displaced: it may have to stay
        beside = (target for target in decision.targets.values() if target.job != one.id and one.copy_of)
        assert all(jobs[target.job].copy_of != one.copy_of or target.nodes != one.nodes for target in beside)

    by_array: dict[str, list[int]] = {}
    for target in decision.targets.values():
        if jobs[target.job].copy_of:
            assert target.steps is not None
            by_array.setdefault(jobs[target.job].copy_of, []).append(target.steps)
        else:
            assert target.steps is None
    done = decision.state["done"]
    assert isinstance(done, dict)
    for array, steps in by_array.items():
        total = max(one.hints.fork or 0 for one in jobs.values() if one.copy_of == array)
        assert sum(steps) == total - done[array]

    taken = Counter(name for target in decision.targets.values() for name in target.nodes)
    idle = [one.name for one in asked.snapshot.nodes if taken[one.name] < len(one.gpus)]
    for name, why in decision.waiting.items():
        if why.code is not ReasonCode.COPIES_SUFFICE and jobs[name].copy_of:
            assert all(homes[jobs[name].copy_of, where] for where in idle), "theorem 3"
