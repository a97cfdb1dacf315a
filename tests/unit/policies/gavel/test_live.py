"""System gavel on tiny clusters."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import Decision, ReasonCode, Request
from slurmsched.policies import Situation, policy
from slurmsched.policies.gavel.rounds import GavelState
from tests.builders import job, node, share, situation

GAVEL = policy("gavel")


def known(**rates: tuple[float, float]) -> Knowledge:
    """Models by their rates on one V100 and on one K80, linear in GPUs."""
    return Knowledge(
        models={
            model: Profile(model, "", {}, "by hand", {"v100": Scaling((1,), (fast,)), "k80": Scaling((1,), (slow,))})
            for model, (fast, slow) in rates.items()
        },
        reference="v100",
    )


RATES = known(gains=(10.0, 1.0), even=(1.0, 1.0), cannot=(1.0, 0.0))
CLUSTER = (node("fast", 1, "v100"), node("slow", 1, "k80"))


def types(decision: Decision) -> dict[str, str]:
    return {target.job: target.allocations[0].gpu_type for target in decision.targets.values()}


def asked(*jobs: object, **other: object) -> Situation:
    return situation(CLUSTER, jobs, RATES, **other)  # type: ignore[arg-type]


def test_who_gains_from_the_fast_type_has_it() -> None:
    decision = GAVEL.decide(asked(job(1, hint="model=even"), job(2, hint="model=gains")))
    assert types(decision) == {"1": "k80", "2": "v100"}


def test_a_job_waits_rather_than_start_where_it_cannot_run() -> None:
    decision = GAVEL.decide(asked(job(1, hint="model=gains"), job(2, hint="model=cannot")))
    assert types(decision) == {"1": "v100"}
    assert decision.waiting["2"].code is ReasonCode.BEHIND


def test_who_runs_on_one_type_only_has_its_part_of_that() -> None:
    decision = GAVEL.decide(asked(job(1, hint="model=gains"), job(2, hint="model=cannot")))
    shares = {name: account.share for name, account in GavelState.decode(dict(decision.state)).jobs.items()}
    on_the_fast = [share[1] for share in (shares["1"], shares["2"]) if share]
    assert on_the_fast == pytest.approx([0.5, 0.5], abs=1e-3)


@pytest.mark.parametrize("name", ["proportional", "tiresias", "yarn-cs", "gavel"])
def test_no_system_starts_a_job_where_it_is_known_not_to_run(name: str) -> None:
    only = situation(CLUSTER[1:], [job(1, hint="model=cannot")], RATES)
    assert policy(name).decide(only).waiting["1"].code is ReasonCode.NEVER_FITS


def test_a_gang_too_wide_for_one_type_is_chosen_for_another() -> None:
    cluster = (node("narrow", 1, "k80"), node("wide", 2, "v100"))
    wide = job(1, hint="model=even", request=Request(gpus=2, cpus=2))
    decision = GAVEL.decide(situation(cluster, [wide], RATES))
    assert types(decision) == {"1": "v100"}
    assert decision.order[0].key.startswith("chosen for v100")


def test_a_type_that_was_asked_for_stands() -> None:
    request = Request(gpus=1, cpus=1, gpu_type="k80")
    decision = GAVEL.decide(asked(job(1, hint="model=gains", request=request), job(2, hint="model=even")))
    assert types(decision) == {"1": "k80", "2": "v100"}


def test_a_job_of_which_nothing_is_known_runs_somewhere() -> None:
    assert set(types(GAVEL.decide(asked(job(1))))) == {"1"}


def test_time_had_is_booked_and_the_turn_goes_to_who_had_less() -> None:
    jobs = [job(number, hint="model=even", request=Request(gpus=1, cpus=1, gpu_type="v100")) for number in (1, 2)]
    first = GAVEL.decide(asked(*jobs, time=10_000.0))
    (begun,) = first.targets
    running = [
        replace(job(one.id, hint="model=even", on=[share("fast")], request=one.original_request), run_time=300.0)
        if one.id == begun
        else one
        for one in jobs
    ]
    second = GAVEL.decide(asked(*running, time=10_300.0, state=json.loads(json.dumps(first.state)), non_preemptible={}))
    assert set(second.targets) == {"1", "2"} - {begun}
    assert second.victims == {begun: next(iter(second.targets))}


def equal_jobs(service: dict[str, float], run_time: float, deficits: dict[str, float], **other: object) -> Decision:
    """Job 1 runs on the only V100 and others wait for it, an hour after targets were set and time was counted anew;
    restarts of 130 s pay within 2,600 s, and six a day with equal shares of the GPU."""
    only = Request(gpus=1, cpus=1, gpu_type="v100")
    waiting = [job(number, hint="model=even", request=only) for number in sorted({*service, *deficits} - {"1"})]
    has = replace(job(1, hint="model=even", request=only, on=[share("fast")]), run_time=run_time)
    ids, part = ["1", *(one.id for one in waiting)], 1 / (1 + len(waiting))
    jobs = {
        one: {"received": [0.0, 150.0], "deficit": [0.0, deficits.get(one, 0.0)], "share": [0.0, part]} for one in ids
    }
    state = {"types": ["k80", "v100"], "at": 10_000.0, "since": 9_000.0, "total": [0.0, 300.0], "jobs": jobs}
    costs = dict.fromkeys(ids, 130.0)
    return GAVEL.decide(
        asked(has, *waiting, state=state, service=service, restart_costs=costs, moves_per_job_day=6, **other)
    )


@pytest.mark.parametrize(
    ("service", "run_time", "victims"),
    [
        pytest.param({"1": 6000.0, "2": 9.0}, 6000.0, {}, id="a slice of two hours is not over"),
        pytest.param({"1": 7200.0, "2": 9.0}, 7200.0, {"1": "2"}, id="it is over"),
        pytest.param({"1": 6000.0, "2": 0.0}, 6000.0, {"1": "2"}, id="the newcomer never ran"),
        pytest.param({"1": 2700.0, "2": 9.0, "3": 9.0, "4": 9.0, "5": 9.0, "6": 9.0, "7": 9.0, "8": 9.0}, 2700.0,
                     {"1": "2"}, id="among many its slice is the shortest that pays for a restart"),
    ],
)  # fmt: skip
def test_a_slice_is_as_long_as_restarts_of_a_day_allow(
    service: dict[str, float], run_time: float, victims: dict[str, str]
) -> None:
    assert equal_jobs(service, run_time, {"1": -service["1"]}).victims == victims


def test_of_those_that_wait_the_one_comes_first_that_has_been_due_for_longest() -> None:
    decision = equal_jobs(
        {"1": 9e4, "2": 9.0, "3": 9.0, "4": 9.0}, 9e4, {"1": -9e4, "2": 100.0, "3": 900.0, "4": 500.0}
    )
    assert decision.victims == {"1": "3"}
    assert [ranked.job for ranked in decision.order][:1] == ["3"]
    assert "overdue" in decision.order[0].key or "ahead" in decision.order[0].key


def test_the_one_of_those_that_never_ran_that_is_promised_its_start_is_chosen() -> None:
    wide = job(9, hint="model=even", request=Request(gpus=2, cpus=2, gpu_type="v100"))
    narrow = [job(number, hint="model=even") for number in (1, 2, 3)]
    of_all = (node("fast", 2, "v100"),)
    first = GAVEL.decide(situation(of_all, [*narrow, wide], RATES))
    assert len(first.targets) == 2
    kept = GAVEL.decide(situation(of_all, [*narrow, wide], RATES, state={"promise": {"job": "9"}}))
    assert set(kept.targets) == {"9"}


def test_a_running_job_goes_to_a_faster_type_that_is_free_where_it_pays() -> None:
    slow = job(1, hint="model=gains,duration=10h", on=[share("slow", gpu_type="k80")], run_time=600.0)
    moved = GAVEL.decide(asked(slow, service={"1": 600.0}))
    assert types(moved) == {"1": "v100"}
    assert moved.targets["1"].reasons[0].code is ReasonCode.PAYS_FOR_RESTART
    stays = GAVEL.decide(asked(replace(slow, hints=replace(slow.hints, duration=610)), service={"1": 600.0}))
    assert types(stays) == {"1": "k80"}


def test_the_books_survive_json() -> None:
    state = GAVEL.decide(asked(job(1, hint="model=even"), job(2, hint="model=gains"))).state
    read = GavelState.decode(json.loads(json.dumps(state)))
    assert read.types == ("k80", "v100")
    assert read.encode() == json.loads(json.dumps(state))


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"types": 3}, id="another form"),
        pytest.param({"types": ["k80"], "total": [1.0, 2.0]}, id="sizes that do not agree"),
        pytest.param({"jobs": {"1": {"received": ["x"], "deficit": [0.0]}}}, id="words for numbers"),
    ],
)
def test_books_that_cannot_be_read_are_begun_anew(state: dict[str, object]) -> None:
    assert GavelState.decode(state) == GavelState()
    assert GAVEL.decide(asked(job(1, hint="model=even"), state=state)).targets


@pytest.mark.parametrize(("ids", "first"), [((10, 9), "9"), (("7_10", "7_9"), "7_9")], ids=str)
def test_ties_by_submission_go_by_number(ids: tuple[int | str, ...], first: str) -> None:
    decision = GAVEL.decide(situation(CLUSTER[:1], [job(number, hint="model=even") for number in ids], RATES))
    assert set(decision.targets) == {first}
    assert decision.order[0].job == first
