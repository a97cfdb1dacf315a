"""What each poll makes of the jobs we know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmsched.model import (
    Hold,
    Job,
    JobState,
    Operation,
    Outcome,
    Reason,
    ReasonCode,
    Request,
    Result,
    SchedulerState,
    SetAsideJob,
    Verb,
    decode,
)
from slurmsched.rounds.specs import held_by_us, release_plan
from slurmsched.store.database import Database
from slurmsched.store.jobs import JobRows, update_jobs
from slurmsched.store.journal import JobEvent, JobEventKind, Journal
from tests.builders import job, share, snapshot

WIDE = Request(gpus=2, cpus=12)


def row(database: Database, number: str = "7") -> dict[str, Any]:
    (found,) = database.rows("SELECT * FROM jobs WHERE id = ?", (number,))
    return found


def look(database: Database, *jobs: Job, at: float = 100.0) -> list[tuple[str, str]]:
    events = update_jobs(database, snapshot(jobs=jobs, time=at), {each.id for each in jobs})
    return [(event.job, event.kind.value) for event in events]


def done(database: Database, verb: Verb, at: float) -> None:
    """An operation of ours on job 7, as the journal has it."""
    journal = Journal(database)
    operation = Operation(verb, "7", Reason(ReasonCode.START))
    (entry,) = journal.record_intents(journal.begin_round(at, "enforce", "synergy", "las"), [(0, operation)], at)
    journal.record_outcomes([(entry, Outcome(operation, Result.DONE))], at + 1.0)


def ours(database: Database, what: str) -> None:
    database.write(f"UPDATE jobs SET {what} = 1 WHERE id = '7'")  # noqa: S608 our own column


def test_a_new_job_is_remembered_with_what_it_asks_for(database: Database) -> None:
    assert look(database, job(7, gpus=2, cpus=6, nice=30)) == [("7", "seen")]
    assert decode(Request, row(database)["original"]) == Request(gpus=2, cpus=6)
    assert row(database)["original_nice"] == 30


def test_a_job_that_is_not_managed_gets_no_row(database: Database) -> None:
    assert update_jobs(database, snapshot(jobs=[job(7)]), set()) == ()
    assert database.rows("SELECT * FROM jobs") == []


def test_its_request_follows_its_owner_until_we_reshape_it(database: Database) -> None:
    look(database, job(7, gpus=2, cpus=6))
    look(database, job(7, gpus=2, cpus=8))
    assert decode(Request, row(database)["original"]).cpus == 8
    ours(database, "reshaped")
    look(database, job(7, gpus=2, cpus=6, standing=WIDE))
    assert decode(Request, row(database)["original"]).cpus == 8
    assert row(database)["reshaped"]


def test_a_job_that_stands_as_it_was_submitted_is_not_reshaped_any_more(database: Database) -> None:
    look(database, job(7, gpus=2, cpus=6))
    ours(database, "reshaped")
    look(database, job(7, gpus=2, cpus=6))
    assert not row(database)["reshaped"]


def test_its_nice_follows_its_owner_until_it_is_ours(database: Database) -> None:
    look(database, job(7, nice=10))
    ours(database, "boosted")
    look(database, job(7, nice=-500))
    assert (row(database)["original_nice"], row(database)["boosted"]) == (10, 1)
    look(database, job(7, nice=10))
    assert not row(database)["boosted"]


@pytest.mark.parametrize(
    ("seen", "held"),
    [
        pytest.param(job(7, hold=Hold.ADMIN), 1, id="it still waits held"),
        pytest.param(job(7, hold=Hold.REQUEUED), 1, id="it waits requeued and held"),
        pytest.param(job(7, state=JobState.COMPLETING), 1, id="it is on its way back into the queue"),
        pytest.param(job(7, hold=Hold.NONE), 0, id="somebody let it go"),
        pytest.param(job(7, on=[share()]), 0, id="it runs"),
    ],
)
def test_a_hold_stays_ours_while_it_stands(database: Database, seen: Job, held: int) -> None:
    look(database, job(7, hold=Hold.ADMIN))
    ours(database, "held_by_us")
    look(database, seen)
    assert row(database)["held_by_us"] == held


@pytest.mark.parametrize(
    ("hint", "hold", "held"),
    [
        pytest.param("held=hook", Hold.USER, 1, id="the hook's mark and a user's hold: ours"),
        pytest.param("held=hook", Hold.ADMIN, 0, id="an administrator has held it since"),
        pytest.param("model=bert", Hold.USER, 0, id="its owner's own hold"),
        pytest.param("held=hook", Hold.NONE, 0, id="let go since"),
    ],
)
def test_whose_hold_a_new_job_is_under(database: Database, hint: str, hold: Hold, held: int) -> None:
    look(database, job(7, hint=hint, hold=hold))
    assert row(database)["held_by_us"] == held


@pytest.mark.parametrize(
    ("later", "held"),
    [
        pytest.param(job(7, hold=Hold.USER, hint="model=x"), 0, id="its owner held it: the hook took the mark away"),
        pytest.param(job(7, hold=Hold.USER), 1, id="an operator replaced the comment"),
        pytest.param(job(7, hold=Hold.USER, hint="model=x", restarts=1), 1, id="it has run: a requeue may look so"),
    ],
)
def test_a_hold_of_the_hook_is_ours_until_the_owner_holds(database: Database, later: Job, held: int) -> None:
    look(database, job(7, hold=Hold.USER, hint="model=x,held=hook"))
    assert row(database)["held_by_us"] == 1
    assert held_by_us(later, SchedulerState(held=frozenset({"7"}))) is bool(held)
    look(database, later)
    assert row(database)["held_by_us"] == held


def test_a_job_that_is_not_seen_has_ended_but_what_is_ours_of_it_is_kept(database: Database) -> None:
    look(database, job(7, gpus=2, cpus=6, hold=Hold.ADMIN))
    ours(database, "held_by_us")
    ours(database, "reshaped")
    assert look(database, at=200.0) == [("7", "ended")]
    assert row(database)["state"] == "finished"
    look(database, job(7, gpus=2, cpus=6, standing=WIDE, hold=Hold.ADMIN), at=300.0)
    assert {"state": "pending", "held_by_us": 1, "reshaped": 1, "first_seen": 100.0}.items() <= row(database).items()
    assert decode(Request, row(database)["original"]).cpus == 6


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(job(7, gpus=1, submit_time=250.0), id="submitted after the first was last seen"),
        pytest.param(job(7, gpus=1, user="bob"), id="submitted by somebody else"),
    ],
)
def test_another_job_with_the_number_of_one_that_ended_starts_afresh(database: Database, other: Job) -> None:
    look(database, job(7, gpus=2, cpus=6))
    ours(database, "reshaped")
    database.insert("service", {"job": "7", "run_started": 50.0, "gpu_seconds": 99.0})
    look(database, at=200.0)
    assert look(database, other, at=300.0) == [("7", "seen")]
    assert {"first_seen": 300.0, "reshaped": 0, "owner": other.user}.items() <= row(database).items()
    assert database.rows("SELECT * FROM service") == []


def test_events_are_told_once(database: Database) -> None:
    waits, runs = job(7, hint="ckpt=loud"), job(7, hint="ckpt=loud", on=[share()])
    assert look(database, waits) == [("7", "seen"), ("7", "hint")]
    assert look(database, waits) == []
    assert look(database, runs) == [("7", "started")]
    assert look(database, runs) == []
    done = replace(runs, state=JobState.FINISHED, allocations=())
    assert look(database, done) == [("7", "ended")]
    assert look(database) == []


@pytest.mark.parametrize(
    ("started", "ended", "told"),
    [
        pytest.param(120.0, 170.0, [120.0, 170.0], id="by Slurm's times, not by when a round saw it"),
        pytest.param(None, None, [150.0, 200.0], id="Slurm has none"),
        pytest.param(999.0, 999.0, [150.0, 200.0], id="Slurm's clock is ahead"),
    ],
)
def test_a_job_started_and_ended_when_slurm_says_so(
    database: Database, started: float | None, ended: float | None, told: list[float]
) -> None:
    runs = job(7, on=[share()], start_time=started)
    done = replace(runs, state=JobState.FINISHED, allocations=(), end_time=ended)
    look(database, job(7))
    seen = [update_jobs(database, snapshot(jobs=[runs], time=150.0), {"7"})]
    seen += [update_jobs(database, snapshot(jobs=[done], time=200.0), {"7"})]
    assert [event.at for events in seen for event in events] == told


def unread(database: Database, *numbers: str, at: float = 200.0) -> list[tuple[str, str]]:
    """A look at which these are there and cannot be read."""
    aside = tuple(SetAsideJob(number, "its record cannot be read") for number in numbers)
    events = update_jobs(database, snapshot(time=at, set_aside=aside), set())
    return [(event.job, event.kind.value) for event in events]


def test_a_job_that_cannot_be_read_has_not_ended(database: Database) -> None:
    look(database, job(7, gpus=2, cpus=6, hold=Hold.ADMIN))
    ours(database, "held_by_us")
    assert unread(database, "7") == []
    assert {"state": "pending", "held_by_us": 1}.items() <= row(database).items()


def test_its_tasks_have_not_ended_where_a_whole_array_cannot_be_read(database: Database) -> None:
    look(database, job("7_1", array_job="7"), job("7_2", array_job="7"), job("8_1", array_job="8"))
    assert unread(database, "7") == [("8_1", "ended")]


@pytest.mark.parametrize(
    "hidden", [pytest.param(("7",), id="it was there and could not be read"), pytest.param((), id="it was not shown")]
)
def test_a_requeue_that_renews_the_time_of_submission_unseen_makes_no_other_job_of_it(
    database: Database, hidden: tuple[str, ...]
) -> None:
    look(database, job(7, gpus=2, cpus=6, on=[share()]))
    ours(database, "held_by_us")
    ours(database, "reshaped")
    unread(database, *hidden)
    back = job(7, gpus=2, cpus=6, standing=WIDE, hold=Hold.REQUEUED, submit_time=250.0, restarts=1)
    look(database, back, at=300.0)
    assert {"held_by_us": 1, "reshaped": 1, "first_seen": 100.0}.items() <= row(database).items()
    assert decode(Request, row(database)["original"]).cpus == 6


def test_what_is_ours_of_a_job_that_slurm_knows_no_more_ends_a_day_later(database: Database) -> None:
    look(database, job(7, hold=Hold.ADMIN))
    ours(database, "held_by_us")
    look(database, at=200.0)
    look(database, at=3000.0)
    assert row(database)["held_by_us"] == 1
    look(database, at=100.0 + 86_401.0)
    assert row(database)["held_by_us"] == 0


def test_a_hold_on_a_whole_array_that_could_not_be_read_is_ours_on_each_of_its_tasks(database: Database) -> None:
    database.write(
        "INSERT INTO jobs (id, owner, first_seen, last_seen, state, original, held_by_us)"
        " VALUES ('7', 'mallory', 1, 1, 'pending', '{}', 1)"
    )
    unread(database, "7")
    tasks = [job(f"7_{task}", array_job="7", hold=Hold.ADMIN) for task in (1, 2)]
    theirs = [job("7_3", array_job="7", hold=Hold.USER), job("7_4", array_job="7")]
    update_jobs(database, snapshot(jobs=[*tasks, *theirs], time=300.0), {task.id for task in tasks[:1]})
    held = database.rows("SELECT id FROM jobs WHERE held_by_us AND state = 'pending' ORDER BY id")
    assert [found["id"] for found in held] == ["7_1", "7_2"]
    assert row(database, "7")["state"] == "finished"


@pytest.mark.parametrize("by", [-3600.0, 3600.0])
def test_a_clock_that_is_set_by_an_hour_loses_no_claim_and_makes_no_other_job(database: Database, by: float) -> None:
    look(database, job(7, gpus=2, cpus=6, hold=Hold.ADMIN, submit_time=10_000.0), at=10_000.0)
    ours(database, "held_by_us")
    ours(database, "reshaped")
    look(database, at=10_010.0 + by)
    look(database, job(7, gpus=2, cpus=6, standing=WIDE, hold=Hold.ADMIN, submit_time=10_000.0), at=10_020.0 + by)
    assert {"held_by_us": 1, "reshaped": 1, "first_seen": 10_000.0}.items() <= row(database).items()


OURS = [(Verb.REQUEUE, 200.0), (Verb.RELEASE, 210.0)]
"""We requeued it, and released it ten seconds later."""


def back(submitted: float, hold: Hold = Hold.REQUEUED, **other: Any) -> Job:
    return job(7, hold=hold, restarts=1, submit_time=submitted, **other)


@pytest.mark.parametrize(
    ("journal", "runs", "seen", "is_ours"),
    [
        pytest.param(OURS, [150.0], back(200.0), True, id="slurmctld came back as it was before our release"),
        pytest.param(OURS, [150.0, 211.0], back(200.0), True, id="though it ran already"),
        pytest.param(OURS, [150.0], back(198.0), True, id="its clock is two seconds behind ours"),
        pytest.param(OURS, [150.0, 211.0], back(213.0), False, id="an administrator requeued it after our release"),
        pytest.param(OURS, [150.0], back(211.0), False, id="and so soon that no poll saw it run"),
        pytest.param(OURS, [150.0, 203.0], back(204.0), False, id="somebody started and requeued it in between"),
        pytest.param(OURS, [150.0, 211.0], back(200.0, Hold.ADMIN), False, id="a hold that anybody may have set"),
        pytest.param(OURS, [150.0, 211.0], back(200.0, Hold.USER), False, id="its owner's hold"),
        pytest.param(OURS[:1], [150.0], back(200.0), False, id="we never released it: the poll found the hold gone"),
        pytest.param(OURS[1:], [150.0], back(200.0), False, id="we never requeued it"),
        pytest.param([], [150.0], back(200.0), False, id="nothing of ours"),
    ],
)
def test_a_hold_that_comes_back_after_our_release_is_ours_if_our_requeue_made_it(
    database: Database, journal: list[tuple[Verb, float]], runs: list[float], seen: Job, is_ours: bool
) -> None:
    look(database, job(7, on=[share("n1")], start_time=150.0), at=190.0)
    for verb, at in journal:
        done(database, verb, at)
    look(database, job(7, on=[share("n1")], restarts=1, start_time=runs[-1]), at=214.0)
    database.write_many(
        "INSERT INTO service (job, run_started, gpu_seconds) VALUES ('7', ?, 1.0)", [(began,) for began in runs]
    )
    assert not row(database)["held_by_us"]
    events = look(database, seen, at=220.0)
    assert bool(row(database)["held_by_us"]) is is_ours
    assert (("7", "undone") in events) is is_ours
    held = SchedulerState(held=frozenset({"7"} if row(database)["held_by_us"] else ()))
    assert [op.verb for op in release_plan(snapshot(jobs=[seen]), held).operations] == [Verb.RELEASE] * is_ours
    assert ("7", "undone") not in look(database, seen, at=230.0), "it is told once"


def test_what_is_kept_of_jobs_from_poll_to_poll_is_what_is_stored_anew(database: Database) -> None:
    """Each poll once with what the last one kept and once without: the rows are the same."""
    waits, tells, held = job(7), job(8, comment="synsched:task=image"), job(9, hold=Hold.ADMIN)
    runs = job(7, on=[share("n1", 2)], start_time=150.0)
    polls: list[list[Job]] = [
        [waits, tells, held], [waits, tells, held], [waits, tells, held], [runs, tells, held], [runs, tells, held],
        [runs.with_run_time(60.0), replace(tells, nice=5), replace(held, hold=Hold.NONE)],
        [replace(runs, run_time=90.0, name="other"), held], [replace(waits, submit_time=5.0), tells, held],
        [replace(waits, submit_time=5.0), tells, held],
    ]  # fmt: skip
    told: list[list[tuple[JobEvent, ...]]] = []
    stored: list[list[dict[str, object]]] = []
    for kept in (JobRows(), None):
        database.write("DELETE FROM jobs")
        told.append([])
        for at, jobs in enumerate(polls, 200):
            told[-1].append(update_jobs(database, snapshot(jobs=jobs, time=float(at)), {"7", "8", "9"}, kept))
            if at == 201:
                database.write("UPDATE jobs SET reshaped = 1 WHERE id = '7'")
            if at == 203:
                database.write("UPDATE jobs SET held_by_us = 1, original_nice = 3 WHERE id = '8'")
        stored.append(database.rows("SELECT * FROM jobs ORDER BY id"))
    assert stored[0] == stored[1]
    assert told[0] == told[1]
    assert {event.kind for events in told[0] for event in events} >= {JobEventKind.OVERRULED, JobEventKind.REQUEUED}
