"""GPU types by what is known of a job: measured rates, estimates by equation 10, or nothing; no reference is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import Decision, Job, Node, Request
from slurmsched.policies import policy
from tests.builders import job, node, share, situation

BOTH = pytest.mark.parametrize("system", ["hadar", "gavel"])


def measured(**rates: float) -> Profile:
    """A model that `synsched profile run` measured on these types, in steps per second."""
    return Profile("m", "", {}, "measured", {kind: Scaling((1,), (rate,)) for kind, rate in rates.items()}, 1.0)


TEN_TIMES = measured(v100=100.0, k80=10.0)
TWICE = measured(v100=1.0, p100=0.5)


def nodes(*types: str, gpus: int = 1) -> list[Node]:
    return [node(f"{kind}-{at}", gpus, kind, cpus=6) for at, kind in enumerate(types, start=1)]


def running(on: str, hint: str = "model=m,duration=500h") -> Job:
    kind = on.rpartition("-")[0]
    return job(1, hint=hint, on=[share(on, 1, 6, gpu_type=kind)], requeue=True)


def decided(
    system: str,
    cluster: list[Node],
    jobs: list[Job],
    model: Profile | None = None,
    own: Mapping[str, Profile] | None = None,
    reference: str = "",
) -> Decision:
    asked = situation(cluster, jobs, Knowledge({"m": model} if model else {}, reference=reference))
    return policy(system).decide(replace(asked, knowledge=replace(asked.knowledge, own=own or {})))


def places(decision: Decision) -> dict[str, tuple[str, ...]]:
    return {name: target.nodes for name, target in decision.targets.items()}


@BOTH
@pytest.mark.parametrize("reference", ["", "a100"], ids=["no reference", "a reference on which it never ran"])
def test_a_model_that_was_measured_on_two_types_starts_on_the_faster(system: str, reference: str) -> None:
    waiting = job(1, hint="model=m,duration=5h")
    decision = decided(system, nodes("k80", "v100"), [waiting], TEN_TIMES, reference=reference)
    assert places(decision) == {"1": ("v100-2",)}


@BOTH
def test_a_running_job_that_measured_itself_faster_elsewhere_moves_there(system: str) -> None:
    decision = decided(system, nodes("k80", "v100"), [running("k80-1", "duration=50h")], own={"1": TEN_TIMES})
    assert places(decision) == {"1": ("v100-2",)}


@BOTH
def test_a_type_that_nobody_measured_is_not_the_fastest(system: str) -> None:
    decision = decided(system, nodes("k80", "p100"), [job(1, hint="model=m,duration=50h")], TWICE)
    assert places(decision) == {"1": ("p100-2",)}


@BOTH
def test_a_type_that_nobody_measured_is_better_than_to_wait(system: str) -> None:
    assert places(decided(system, nodes("k80"), [job(1, hint="model=m,duration=50h")], TWICE)) == {"1": ("k80-1",)}


def test_a_gang_is_not_mixed_with_a_slow_type_that_nobody_measured() -> None:
    gang = job(1, hint="model=m,duration=50h", request=Request(gpus=4, nodes=2, tasks=2, cpus=4))
    decision = decided("hadar", nodes("v100", "k80", "p100", "p100", gpus=2), [gang], TWICE)
    assert places(decision) == {"1": ("p100-3", "p100-4")}


@BOTH
@pytest.mark.parametrize(
    ("on", "types", "model"),
    [
        pytest.param("p100-1", ("p100", "h100"), TWICE, id="onto a type that was not measured"),
        pytest.param("k80-1", ("k80", "v100"), TWICE, id="from a type that was not measured"),
        pytest.param("k80-1", ("k80", "h100"), None, id="with nothing measured"),
        pytest.param(
            "k80-1", ("k80", "v100"), replace(TEN_TIMES, source="rule of thumb", measured=None), id="by a rule of thumb"
        ),
    ],
)
def test_no_job_is_restarted_for_an_estimate(
    system: str, on: str, types: tuple[str, ...], model: Profile | None
) -> None:
    decision = decided(system, nodes(*types), [running(on)], model)
    assert places(decision) == {"1": (on,)}
    assert not decision.victims


@BOTH
def test_jobs_of_an_unknown_model_start_on_the_fastest_idle_types(system: str) -> None:
    decision = decided(system, nodes("own-board", "k80", "nvidia_h100_80gb_hbm3", "t4"), [job(1), job(2), job(3)])
    assert sorted(places(decision).values()) == [("k80-2",), ("nvidia_h100_80gb_hbm3-3",), ("t4-4",)]


@BOTH
def test_an_idle_fast_gpu_is_taken_although_its_neighbours_are_busy(system: str) -> None:
    cluster = [node("k80-1", 4, "k80", cpus=12), node("v100-2", 4, "v100", cpus=12, busy=[0, 1, 2])]
    assert places(decided(system, cluster, [job(1, hint="duration=5h")])) == {"1": ("v100-2",)}


@BOTH
def test_a_job_that_was_measured_on_a_slow_type_alone_tries_the_fast_one(system: str) -> None:
    decision = decided(system, nodes("k80", "v100"), [job(1, hint="model=m,duration=5h")], measured(k80=10.0))
    assert places(decision) == {"1": ("v100-2",)}


@given(
    st.lists(st.sampled_from(("k80", "t4", "v100", "h100", "own-board")), min_size=2, max_size=4, unique=True),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_guess_outbids_nobody(types: list[str], where: int, known: bool) -> None:
    """A waiting job of an unknown model takes an idle GPU; who runs, of that model or another, stays."""
    cluster, on = nodes(*types), f"{types[where % len(types)]}-{where % len(types) + 1}"
    decision = decided("hadar", cluster, [running(on), job(2, hint="duration=1h")], TEN_TIMES if known else None)
    (place,) = places(decision)["1"]
    assert place == on or (known and {on[:4], place[:4]} == {"k80-", "v100"})
    assert len(decision.targets) == 2
