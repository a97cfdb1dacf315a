"""What a job measured of itself, over what was known of its model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.knowledge import Knowledge, MeasuredPairs, Profile, Scaling
from slurmsched.knowledge.refinement import (
    estimated_pairs,
    family_profiles,
    latest_rates,
    measured_pairs,
    refine_profile,
    self_measured_profiles,
)
from slurmsched.model import Job, MeasuredRate, PairRate
from tests.builders import GIB, job, node, profile, share

BASE = profile("resnet50", {1: 0.5, 3: 1.0, 6: 1.5, 12: 2.0})


def measured(rate: float, cpus: float = 3.0, gpu_type: str = "v100", at: float = 0.0, gpus: int = 1) -> MeasuredRate:
    return MeasuredRate(gpu_type, gpus, 1, cpus, 60.0 * GIB, 3.0, 60.0 * GIB, rate, at)


def test_two_points_correct_the_shape_and_what_lies_between() -> None:
    """At 3 CPUs the profile is right, at 6 the job is twice as fast as it says: in between by and by, beyond alike."""
    found = refine_profile(BASE, [measured(10.0), measured(30.0, cpus=6)])
    assert found is not None
    matrix = found.matrix("v100")
    assert matrix is not None
    speed = {cpus: matrix.speed_at(cpus, 0) / matrix.speed_at(3, 0) for cpus in (1, 3, 6, 12)}
    assert speed == pytest.approx({1: 0.5, 3: 1.0, 6: 3.0, 12: 4.0})
    assert found.matrix("k80") is BASE.matrix("k80")
    assert found.source == "measured by the job itself, over by hand"


def test_what_agrees_with_the_profile_changes_no_ratio() -> None:
    found = refine_profile(BASE, [measured(10.0), measured(20.0, cpus=12)])
    assert found is not None
    matrix = found.matrix("v100")
    assert matrix is not None
    assert [matrix.speed_at(cpus, 0) for cpus in (1, 3, 6, 12)] == pytest.approx([5.0, 10.0, 15.0, 20.0])


def test_one_point_says_nothing_of_ratios() -> None:
    assert refine_profile(BASE, [measured(10.0)]) is None
    assert refine_profile(BASE, [measured(10.0), measured(12.0)]) is None


def test_points_with_another_number_of_gpus_are_of_another_unit() -> None:
    assert refine_profile(BASE, [measured(10.0, at=2.0), measured(30.0, cpus=6, gpus=2, at=1.0)]) is None


def test_a_job_of_an_unknown_model_learns_its_own_curve() -> None:
    found = refine_profile(None, [measured(10.0), measured(15.0, cpus=6)])
    assert found is not None
    matrix = found.matrix("v100")
    assert matrix is not None
    assert not matrix.knows_memory
    assert [matrix.speed_at(cpus, 0) for cpus in (1, 3, 4.5, 9)] == pytest.approx([10.0, 10.0, 12.5, 15.0])


SCALED = Profile(
    "gnmt", "", {}, "imported", {"k80": Scaling((1, 2), (1.0, 2.0)), "v100": Scaling((1, 2), (4.0, 6.0)),
                                 "p100": Scaling((1,), (3.0,))}
)  # fmt: skip


def test_two_types_correct_the_ratio_between_them() -> None:
    found = refine_profile(SCALED, [measured(10.0, gpu_type="k80"), measured(20.0)])
    assert found is not None
    assert found.scaling["v100"].rate_at(1) / found.scaling["k80"].rate_at(1) == pytest.approx(2.0)
    assert found.scaling["v100"].rate_at(2) == pytest.approx(30.0), "the shape over GPUs stays"
    assert found.scaling["p100"].rate_at(1) == pytest.approx(3.0 * (10.0 + 5.0) / 2), "in the mean of both units"


def test_rates_are_compared_at_the_fair_share() -> None:
    """On the k80 it had twice its share of CPUs, which its matrix says is worth half as much again."""
    with_matrix = Profile("m", "", BASE.matrices, "by hand")
    found = refine_profile(with_matrix, [measured(15.0, cpus=6, gpu_type="k80"), measured(20.0)])
    assert found is not None
    assert found.scaling["v100"].rate_at(1) / found.scaling["k80"].rate_at(1) == pytest.approx(2.0)


def test_what_one_job_claims_serves_no_other() -> None:
    known = Knowledge(models={"resnet50": BASE})
    jobs = [job(number, hint="model=resnet50") for number in (1, 2)]
    own = self_measured_profiles(known, jobs, {"1": (measured(10.0), measured(3000.0, cpus=6)), "2": (measured(10.0),)})
    assert set(own) == {"1"}
    both = Knowledge(models=known.models, own=own)
    nodes, more = {"n1": node("n1")}, [share(cpus=6)]
    assert both.relative_speed(jobs[1], more, nodes) == known.relative_speed(jobs[1], more, nodes) == 1.5
    assert both.relative_speed(jobs[0], more, nodes) == pytest.approx(300.0)


def test_the_latest_rate_on_each_type_counts() -> None:
    points = [measured(5.0, at=20.0), measured(9.0, at=10.0), measured(2.0, gpu_type="k80", at=5.0)]
    assert latest_rates({"1": points, "2": ()}) == {"1": {"v100": 5.0, "k80": 2.0}, "2": {}}


FAMILY = (measured(100.0, at=2.0), measured(10.0, gpu_type="k80", at=1.0))


@pytest.mark.parametrize(
    ("one", "ratio"),
    [
        pytest.param(job(1, hint="model=gpt"), 10.0, id="the owner's next job of the model"),
        pytest.param(job(1, hint="model=gpt", name="other"), 10.0, id="under another name"),
        pytest.param(job(1, hint="model=gpt", user="bob"), None, id="not somebody else's"),
        pytest.param(job(1, hint="model=bert"), None, id="not another model"),
    ],
)
def test_what_jobs_of_a_model_claim_serves_the_next_of_their_owner(one: Job, ratio: float | None) -> None:
    found = family_profiles(Knowledge(), [one], {}, {"alice gpt": FAMILY}).get(one.id)
    assert (found and found.scaling["v100"].rate_at(1) / found.scaling["k80"].rate_at(1)) == ratio
    assert found is None or found.was_measured


def test_what_a_job_measured_itself_comes_before_its_family() -> None:
    one = job(1, hint="model=gpt")
    found = family_profiles(Knowledge(), [one], {"1": (measured(50.0),)}, {"alice gpt": FAMILY})["1"]
    assert {kind: rates.rate_at(1) for kind, rates in found.scaling.items()} == {"v100": 50.0, "k80": 10.0}


def test_of_a_family_those_as_wide_as_the_job_count_first() -> None:
    one = job(1, 4, hint="model=gpt")
    points = (*FAMILY, measured(200.0, gpus=4, at=0.0))
    assert family_profiles(Knowledge(), [one], {}, {"alice gpt": points})["1"].scaling["v100"].rate_at(4) == 200.0


def test_jobs_that_share_only_a_name_are_no_ground_for_a_restart() -> None:
    one, known = job(1, name="train"), Knowledge()
    learnt = replace(known, by_family=family_profiles(known, [one], {}, {"alice train": FAMILY}))
    assert learnt.rates_by_type(one, ["v100", "k80"], 1) == {"v100": 100.0, "k80": 10.0}
    assert not learnt.measured_types(one)


@pytest.mark.parametrize("name", ["wrap", "", "Bash"])
def test_jobs_that_were_given_no_name_are_no_family(name: str) -> None:
    assert job(1, name=name).family == ""


def test_reports_of_a_family_change_no_cpus() -> None:
    one, learnt = job(1, hint="model=resnet50"), Knowledge(models={"resnet50": BASE})
    points = (*FAMILY, measured(3000.0, cpus=12, at=3.0))
    learnt = replace(learnt, by_family=family_profiles(learnt, [one], {}, {"alice resnet50": points}))
    assert learnt.by_family
    assert learnt.profile(one) is BASE


def beside(family: str, other: str, rate: float, cpus: float = 1.0, gpus: int = 1, at: float = 0.0) -> PairRate:
    return PairRate(family, other, "v100", gpus, cpus, rate, at)


def kept(rates: list[PairRate], job_of: str, other: str, known: Knowledge | None = None) -> float | None:
    """What the first family keeps of its rate beside the second; both are written as owner and model."""
    one, two = (
        job(number, user=family.split()[0], hint=f"model={family.split()[1]}")
        for number, family in enumerate((job_of, other))
    )
    return replace(known or PAIR_PROFILES, pairs=measured_pairs(known or PAIR_PROFILES, rates)).known_rate_beside(
        one, two, "v100"
    )


PAIR_PROFILES = Knowledge(
    {
        "a": Profile("a", "", {}, "measured", {"v100": Scaling((1,), (20.0,), beside={"b": 0.8})}, measured=1.0),
        "b": Profile("b", "", {}, "by hand", {"v100": Scaling((1,), (1.0,), beside={"a": 0.7})}),
    }
)
ALONE = [beside("ann a", "", 10.0), beside("bob b", "", 4.0)]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        pytest.param([], (0.8, 0.7), id="without reports as the profiles say"),
        pytest.param([*ALONE, beside("ann a", "bob b", 3.0)], (0.3, 0.7), id="each side by its own reports"),
        pytest.param(
            [*ALONE, beside("ann a", "bob b", 3.0), beside("ann a", "eve b", 9.0, at=5.0)],
            (0.3, 0.7),
            id="beside this owner's jobs, where these were met",
        ),
        pytest.param([*ALONE, beside("ann a", "eve b", 3.0)], (0.3, 0.7), id="else beside any of the same model"),
        pytest.param([*ALONE, beside("eve a", "bob b", 3.0), beside("eve a", "", 9.0)], (0.8, 0.7), id="not by others"),
        pytest.param([*ALONE, beside("bob b", "ann a", 9.0)], (0.8, 1.0), id="nobody is faster beside another"),
        pytest.param([beside("bob b", "ann a", 2.0)], (0.8, 0.7), id="nothing without a rate alone"),
        pytest.param([beside("ann a", "bob b", 5.0)], (0.25, 0.7), id="unless the profile is in steps per second"),
        pytest.param(
            [*ALONE, beside("bob b", "ann a", 1.0, cpus=2.0), beside("bob b", "", 2.0, cpus=2.0)],
            (0.8, 0.5),
            id="compared with as many CPUs alone",
        ),
        pytest.param([*ALONE, beside("bob b", "ann a", 1.0, gpus=2)], (0.8, 0.7), id="and with as many GPUs"),
        pytest.param(
            [
                *ALONE,
                beside("ann a", "", 8.0, cpus=2.0),
                beside("ann a", "bob b", 2.0, cpus=2.0, at=9.0),
                beside("ann a", "bob b", 3.0, at=1.0),
            ],
            (0.25, 0.7),
            id="of several the latest",
        ),
    ],
)
def test_a_pair_is_worth_what_both_measured(rates: list[PairRate], expected: tuple[float, float]) -> None:
    assert (kept(rates, "ann a", "bob b"), kept(rates, "bob b", "ann a")) == pytest.approx(expected)


def test_a_pair_that_nobody_knows_is_completed_from_like_ones() -> None:
    """Of four models two pairs are missing; rows and columns of the others tell which are fast beside whom."""
    fractions = {"a": 0.9, "b": 0.8, "c": 0.6, "d": 0.5}
    profiles = {
        model: Profile(
            model,
            "",
            {},
            "by hand",
            {
                "v100": Scaling(
                    (1,), (1.0,), beside={o: own * fractions[o] for o in fractions if (model, o) not in UNKNOWN}
                )
            },
        )
        for model, own in fractions.items()
    }
    found = estimated_pairs(Knowledge(profiles), "v100")
    assert found.keys() == UNKNOWN
    assert found == {(one, two): pytest.approx(fractions[one] * fractions[two], rel=0.2) for one, two in UNKNOWN}
    assert estimated_pairs(Knowledge(profiles), "a100") == {}


UNKNOWN = {("a", "d"), ("c", "b")}


def test_one_owners_reports_do_not_set_an_estimate() -> None:
    owners = ("ann", "bob", "cat")
    honest = {(f"{who} a", "x b", "v100"): 0.8 for who in owners}
    kept = {("b", "a"): 0.7, ("b", "c"): 0.6, ("a", "a"): 0.6, ("c", "b"): 0.7, ("c", "a"): 0.6}
    others = {(f"{who} {one}", f"x {two}", "v100"): rate for (one, two), rate in kept.items() for who in owners}

    def estimate(own: dict[tuple[str, str, str], float]) -> float:
        by_model = {(family, other.split()[1], kind): kept for (family, other, kind), kept in own.items()}
        return estimated_pairs(replace(Knowledge(), pairs=MeasuredPairs({}, by_model)), "v100")["b", "b"]

    plain, lying = estimate({**honest, **others}), estimate({**honest, **others, ("eve a", "x b", "v100"): 0.01})
    assert plain == pytest.approx(lying)


def test_what_other_owners_measured_is_an_estimate_and_their_median() -> None:
    rates = {(f"{who} a", "b", "v100"): kept for who, kept in (("ann", 0.8), ("bob", 0.6), ("eve", 0.01))}
    assert estimated_pairs(Knowledge(pairs=MeasuredPairs({}, rates)), "v100") == {("a", "b"): 0.6}
    known = replace(PAIR_PROFILES, pairs=MeasuredPairs({}, rates))
    assert ("a", "b") not in estimated_pairs(known, "v100"), "a profile comes before it"


@pytest.mark.parametrize("liars", [1, 2])
def test_what_too_few_owners_measured_is_no_estimate_for_others(liars: int) -> None:
    rates = {(f"eve{number} a", "b", "v100"): 0.01 for number in range(liars)}
    assert estimated_pairs(Knowledge(pairs=MeasuredPairs({}, rates)), "v100") == {}
