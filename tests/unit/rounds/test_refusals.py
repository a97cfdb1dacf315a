"""What a refused start depended on, and that the same plan is not made again before that has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from slurmsched.model import (
    Job,
    JobState,
    NodeState,
    Operation,
    Outcome,
    Reason,
    ReasonCode,
    Reservation,
    Result,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.rounds.refusals import RefusedStart, refused_starts, tried_later, with_refusals
from tests.builders import job, node, share, snapshot

NOW = 10_000.0
BESIDE = job(8, user="alice", on=[share("n2", 2)])
SEEN = snapshot([node(), node("n2")], [job(7, user="alice"), BESIDE], NOW)


def outcome(
    verb: Verb = Verb.RELEASE, result: Result = Result.UNDONE, why: str = "ReqNodeNotAvail", gone: tuple[str, ...] = ()
) -> Outcome:
    reason = Reason(ReasonCode.START, {"nodes": "n1"})
    return Outcome(Operation(verb, "7", reason, gone=gone), result, detail=why)


def refused(why: str = "ReqNodeNotAvail", gone: tuple[str, ...] = ()) -> RefusedStart:
    (one,) = refused_starts([outcome(why=why, gone=gone)], SEEN, {}, NOW)
    return one


def on_node(name: str, **changes: object) -> Callable[[Snapshot], Snapshot]:
    return lambda seen: replace(seen, nodes=tuple(replace(n, **changes) if n.name == name else n for n in seen.nodes))


def reserved(seen: Snapshot) -> Snapshot:
    return replace(seen, reservations=(Reservation("r", frozenset({"n1"}), 0.0, 99_999.0),))


def other_request(seen: Snapshot) -> Snapshot:
    return replace(seen, jobs=(job(7, gpus=2, user="alice"), BESIDE))


def other_ended(seen: Snapshot) -> Snapshot:
    return replace(seen, jobs=(seen.jobs[0],))


def nothing(seen: Snapshot) -> Snapshot:
    return seen


@pytest.mark.parametrize(
    ("why", "happens", "again"),
    [
        pytest.param("ReqNodeNotAvail", nothing, False, id="nothing has changed"),
        pytest.param("ReqNodeNotAvail", on_node("n1", state=NodeState.DRAINED), True, id="its node is drained"),
        pytest.param("ReqNodeNotAvail", on_node("n2", state=NodeState.DRAINED), False, id="another node is drained"),
        pytest.param("ReqNodeNotAvail", reserved, True, id="a reservation is there"),
        pytest.param("BadConstraints", other_request, True, id="its owner asks for something else"),
        pytest.param("Resources", other_ended, False, id="a job ends that counts towards no limit"),
        pytest.param("QOSMaxGRESPerUser", other_ended, True, id="a job ends that counts towards the limit"),
    ],
)
def test_a_refused_start_is_tried_again_when_its_cause_has_gone(
    why: str, happens: Callable[[Snapshot], Snapshot], again: bool
) -> None:
    known = {"7": replace(refused(why), tries=2)}
    later = replace(happens(SEEN), time=NOW + 20.0)
    assert ("7" not in with_refusals(SchedulerState(), known, later).stalled) is again


@pytest.mark.parametrize(
    ("waiting", "why", "likeness"),
    [
        pytest.param(job(9, user="alice"), "ReqNodeNotAvail", 2, id="the same owner and request"),
        pytest.param(job(9, user="alice", gpus=4), "ReqNodeNotAvail", 1, id="the same owner"),
        pytest.param(job(9, user="bob"), "ReqNodeNotAvail", 0, id="the same request of somebody else"),
        pytest.param(job(9, user="alice"), "JobHeldUser", 0, id="its owner held it again"),
        pytest.param(job(9, user="bob", gpus=4), "ReqNodeNotAvail", 0, id="nothing in common"),
        pytest.param(job(9, user="bob", gpus=4), "QOSGrpGRES", 1, id="a limit of the QOS of both"),
        pytest.param(job(9, user="alice", on=[share("n2", 1)]), "QOSGrpGRES", 0, id="a job that runs"),
    ],
)
def test_jobs_that_are_like_one_just_refused(waiting: Job, why: str, likeness: int) -> None:
    seen = replace(SEEN, jobs=(*SEEN.jobs, waiting))
    found = with_refusals(SchedulerState(), {"7": refused(why)}, replace(seen, time=NOW + 50.0)).like_refused
    assert found.get("9", 0) == likeness
    assert not with_refusals(SchedulerState(), {"7": refused(why)}, replace(seen, time=NOW + 60.0)).like_refused


@pytest.mark.parametrize(
    ("state", "left_out"),
    [
        pytest.param(SchedulerState(), [set()], id="no refusal: all at once"),
        pytest.param(SchedulerState(like_refused={"1": 2, "2": 1}), [{"1", "2"}, {"1"}, set()], id="the likest last"),
        pytest.param(SchedulerState(like_refused={"1": 1, "2": 1, "3": 1}), [set()], id="all alike"),
        pytest.param(
            SchedulerState(like_refused={"2": 1}, refused_before=frozenset({"1"})), [{"1", "2"}, {"1"}],
            id="one that was refused waits for the others",
        ),
        pytest.param(SchedulerState(refused_before=frozenset({"1", "2", "3"})), [set()], id="all were refused"),
    ],
)  # fmt: skip
def test_who_is_tried_later_in_an_early_round(state: SchedulerState, left_out: list[set[str]]) -> None:
    waiting = [job(number) for number in (1, 2, 3)]
    assert [later.keys() for later in tried_later(waiting, state)] == left_out


def test_who_is_promised_a_start_keeps_its_turn_unless_it_was_refused_itself() -> None:
    waiting, alike = [job(number) for number in (1, 2)], {"1": 2, "2": 2}
    assert [later.keys() for later in tried_later(waiting, SchedulerState(like_refused=alike), "1")] == [{"2"}, set()]
    refused_itself = SchedulerState(like_refused=alike, refused_before=frozenset({"1"}))
    assert [later.keys() for later in tried_later(waiting, refused_itself, "1")] == [{"1"}]


@pytest.mark.parametrize(
    ("returned", "seconds"),
    [
        pytest.param(
            [job(9, gpus=8, on=[share("n1", 8)]), job(10, gpus=6, on=[share("n2", range(2, 8))])],
            900.0,
            id="and are there again",
        ),
        pytest.param([job(10, gpus=6, on=[share("n2", range(2, 8))])], 15.0, id="and its place is free"),
        pytest.param([job(9, gpus=8, on=[share("n1", 8)])], 15.0, id="and there is room elsewhere"),
    ],
)
def test_when_a_start_for_which_others_had_to_leave_is_tried_again(returned: list[Job], seconds: float) -> None:
    known, seen = {"7": refused(gone=("9",))}, snapshot([node(), node("n2")], [*SEEN.jobs, *returned], NOW)
    before, after = (
        with_refusals(SchedulerState(), known, replace(seen, time=NOW + seconds - at)) for at in (1.0, 0.0)
    )
    assert before.retry_at == {"7": NOW + seconds}
    assert after.stalled == {}


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        pytest.param(outcome(), True, id="a start that was taken back"),
        pytest.param(outcome(Verb.UPDATE, Result.REFUSED), True, id="a request that Slurm does not take"),
        pytest.param(outcome(result=Result.DONE), False, id="a start that happened"),
        pytest.param(outcome(result=Result.OVERTAKEN), False, id="a job that was cancelled"),
        pytest.param(outcome(Verb.HOLD, Result.REFUSED), False, id="a hold that was refused"),
    ],
)
def test_what_counts_as_a_refusal(told: Outcome, counts: bool) -> None:
    assert bool([*refused_starts([told], SEEN, {}, NOW)]) is counts


def test_a_job_that_runs_is_never_left_to_slurm_by_a_refused_move() -> None:
    known = {"8": RefusedStart("8", NOW, 9, "Resources", ("n1",), "", displaced=True)}
    state = with_refusals(SchedulerState(), known, replace(SEEN, time=NOW + 1.0))
    assert SEEN.jobs_by_id["8"].state is JobState.RUNNING
    assert (state.let_go, state.stalled) == (frozenset(), {"8": "Resources"})
