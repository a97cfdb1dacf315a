"""CPUs and memory stay with idle GPUs, unless they were asked for or can be taken back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slurmsched.model import Decision, Job, Resources
from slurmsched.policies import policy
from slurmsched.policies.policies import ORDERS, POLICIES
from tests.builders import CPUS, MEMORY, job, node, share, situation


def given_to(decision: Decision) -> dict[str, int]:
    return {name: target.resources.cpus for name, target in decision.targets.items()}


@pytest.mark.parametrize(
    ("name", "one", "unmovable", "cpus"),
    [
        pytest.param("synergy", job(1, 4, cpus=1, hint="model=resnet50"), True, 12, id="its share, as it cannot move"),
        pytest.param(
            "synergy", job(1, 4, cpus=1, hint="model=resnet50,ckpt=usr1"), False, 24, id="all, as it can be taken back"
        ),
        pytest.param("synergy", job(1, 4, cpus=20), True, 20, id="what it asked for"),
        pytest.param("synergy", job(1, 8, cpus=8, hint="model=resnet50"), True, 24, id="all, as no GPU is idle"),
        pytest.param("drf", job(1, 4, cpus=1, hint="model=resnet50"), True, 12, id="drf: its share"),
        pytest.param("synergy-greedy", job(1, 2, cpus=7, hint="model=resnet50"), True, 7, id="greedy: its request"),
        pytest.param("proportional", job(1, 4, cpus=1, hint="model=resnet50"), True, 12, id="proportional: its share"),
        pytest.param("fgd", job(1, 4, cpus=20), True, 20, id="fgd: what it asked for"),
    ],
)
def test_a_job_is_given(name: str, one: Job, unmovable: bool, cpus: int) -> None:
    asked = situation([node()], [one], unmovable=frozenset({"1"} if unmovable else ()))
    assert given_to(policy(name, "fifo").decide(asked)) == {"1": cpus}


def test_who_was_restarted_with_less_does_not_take_the_rest_again() -> None:
    """A job of 4 GPUs has all CPUs; one that asks for one CPU gets it, and the two idle GPUs keep theirs."""
    greedy = job(
        1,
        4,
        cpus=1,
        hint="model=resnet50,ckpt=usr1",
        on=[share(gpus=range(4), cpus=24, memory=MEMORY // 2)],
        run_time=9000.0,
    )
    newcomer = job(2, 2, cpus=1, hint="duration=9h")
    decision = policy("synergy", "fifo").decide(situation([node()], [greedy, newcomer], unmovable=frozenset({"2"})))
    has = given_to(decision)
    assert set(has) == {"1", "2"}
    assert sum(has.values()) <= CPUS - 6


jobs = some.lists(
    some.tuples(
        some.integers(1, 8),
        some.integers(1, 12),
        some.sampled_from(["", "model=resnet50", "model=alexnet", "model=gnmt"]),
        some.sampled_from([0, MEMORY // 16]),
    ),
    min_size=1,
    max_size=6,
)


@given(jobs, some.sampled_from(sorted(POLICIES)), some.sampled_from(sorted(ORDERS)))
@settings(max_examples=60)
def test_idle_gpus_keep_their_share_unless_jobs_asked_for_it(
    drawn: list[tuple[int, int, str, int]], name: str, order: str
) -> None:
    made = [job(n, gpus, cpus, memory, hint) for n, (gpus, cpus, hint, memory) in enumerate(drawn, 1)]
    nodes = [node("n1"), node("n2", 4)]
    decision = policy(name, order).decide(situation(nodes, made, unmovable=frozenset(j.id for j in made)))
    asked = {j.id: j.original_request for j in made}
    for one in nodes:
        here = [(t.job, a.resources) for t in decision.targets.values() for a in t.allocations if a.node == one.name]
        used = sum((has for _, has in here), Resources())
        shares = [one.proportional_share(has.gpus) for _, has in here]
        excess = sum(max(0, asked[j].cpus - own.cpus) for (j, _), own in zip(here, shares, strict=True))
        idle = one.proportional_share(len(one.gpus) - used.gpus)
        assert one.total.cpus - used.cpus >= idle.cpus - excess
        assert one.total.memory - used.memory >= idle.memory
