"""After a kill: every verb, before it happened, after it, and with its job gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import (
    Hold,
    Job,
    JobSpec,
    JobState,
    Operation,
    OperationValue,
    Reason,
    ReasonCode,
    Request,
    Result,
    SchedulerState,
    SetAsideJob,
    Verb,
)
from slurmsched.rounds.recovery import resolve_intents
from slurmsched.rounds.specs import spec_of
from tests.builders import job, node, share, snapshot
from tests.ideal_cluster import IdealCluster

ASKED = Request(gpus=2, cpus=2)
SHAPE = JobSpec(("n1",), 1, 2, 2, None, 9, 70, 1)
WAITS, HELD = job(1, request=ASKED), job(1, request=ASKED, hold=Hold.ADMIN)
RUNS = job(1, request=ASKED, on=[share("n1", 2)])

BEFORE: dict[Verb, tuple[Job, OperationValue, OperationValue]] = {
    Verb.HOLD: (WAITS, "none", "admin"),
    Verb.UPDATE: (HELD, spec_of(ASKED), SHAPE),
    Verb.RELEASE: (HELD, "admin", "none"),
    Verb.NOTIFY: (RUNS, None, "usr1"),
    Verb.REQUEUE: (RUNS, SHAPE, "requeued"),
    Verb.PRIORITIZE: (WAITS, 0, -7),
    Verb.NOTE: (WAITS, "", "synsched: waits"),
}
"""For each verb about a job: the job as it is before, and the operation's before and after."""

LEAVES_NO_TRACE = {Verb.NOTIFY, Verb.CONFIGURE}


def operation(verb: Verb) -> Operation:
    _, before, after = BEFORE[verb]
    return Operation(verb, "1", Reason(ReasonCode.START), before, after)


def result(intended: Operation, *jobs: Job, weight: int = 1) -> Result:
    recovery = resolve_intents([intended], snapshot([node(weight=weight)], jobs), SchedulerState())
    ((_, became),) = recovery.results
    assert recovery.repairs.operations == ()
    return became


def test_every_verb_is_here() -> None:
    assert set(BEFORE) | {Verb.WEIGH, Verb.CONFIGURE} == set(Verb)


@pytest.mark.parametrize("verb", BEFORE)
def test_killed_before_it_happened(verb: Verb) -> None:
    assert result(operation(verb), BEFORE[verb][0]) is Result.FAILED


@pytest.mark.parametrize("verb", BEFORE)
def test_killed_after_it_happened(verb: Verb) -> None:
    cluster = IdealCluster([node()], [BEFORE[verb][0]])
    cluster.execute(operation(verb))
    expected = Result.FAILED if verb in LEAVES_NO_TRACE else Result.DONE
    assert result(operation(verb), cluster.jobs["1"]) is expected


@pytest.mark.parametrize("verb", BEFORE)
def test_the_job_is_gone(verb: Verb) -> None:
    assert result(operation(verb)) is Result.OVERTAKEN
    assert result(operation(verb), replace(WAITS, state=JobState.FINISHED)) is Result.OVERTAKEN


@pytest.mark.parametrize(
    ("verb", "now", "expected"),
    [
        pytest.param(Verb.HOLD, RUNS, Result.OVERTAKEN, id="it started before it could be held"),
        pytest.param(Verb.HOLD, replace(WAITS, hold=Hold.USER), Result.OVERTAKEN, id="its owner held it"),
        pytest.param(Verb.RELEASE, RUNS, Result.DONE, id="released, and it runs"),
        pytest.param(Verb.UPDATE, RUNS, Result.OVERTAKEN, id="it runs with its old shape"),
        pytest.param(Verb.REQUEUE, replace(RUNS, state=JobState.COMPLETING), Result.DONE, id="requeued, still ending"),
        pytest.param(Verb.REQUEUE, WAITS, Result.OVERTAKEN, id="somebody else requeued it"),
        pytest.param(Verb.NOTIFY, WAITS, Result.OVERTAKEN, id="it does not run any more"),
        pytest.param(Verb.PRIORITIZE, RUNS, Result.OVERTAKEN, id="it runs: its nice no longer matters"),
    ],
)
def test_the_world_moved_on(verb: Verb, now: Job, expected: Result) -> None:
    assert result(operation(verb), now) is expected


@pytest.mark.parametrize(
    ("name", "weight", "expected"),
    [
        pytest.param("n1", 1, Result.FAILED, id="not yet"),
        pytest.param("n1", 50, Result.DONE, id="done"),
        pytest.param("n9", 1, Result.OVERTAKEN, id="the node is gone"),
    ],
)
def test_a_weight(name: str, weight: int, expected: Result) -> None:
    assert result(Operation(Verb.WEIGH, name, Reason(ReasonCode.LEAN), 1, 50), weight=weight) is expected


def test_a_file_is_written_again() -> None:
    assert result(Operation(Verb.CONFIGURE, "/etc/f", Reason(ReasonCode.RENDER), "a", "b")) is Result.FAILED


def test_a_job_that_was_left_half_reshaped_becomes_itself_again() -> None:
    half = replace(HELD, current_request=replace(ASKED, pinned=frozenset({"n1"})))
    recovery = resolve_intents(
        [operation(Verb.UPDATE)], snapshot([node()], [half]), SchedulerState(original_requests={"1": ASKED})
    )
    assert recovery.results == ((operation(Verb.UPDATE), Result.FAILED),)
    (repair,) = recovery.repairs.operations
    assert (repair.verb, repair.subject, repair.after) == (Verb.UPDATE, "1", spec_of(ASKED))


@pytest.mark.parametrize("verb", list(BEFORE))
def test_of_a_job_that_cannot_be_read_nothing_is_told(verb: Verb) -> None:
    seen = snapshot([node()], set_aside=(SetAsideJob("1", "its record cannot be read"),))
    recovery = resolve_intents([operation(verb)], seen, SchedulerState())
    assert [became for _, became in recovery.results] == [Result.INTENDED]
    assert recovery.repairs.operations == ()
