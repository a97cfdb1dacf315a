"""`synsched explain` and `synsched history` over a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import Explanation, Operation, Outcome, Reason, ReasonCode, Result, Verb, encode
from slurmsched.store.journal import Journal
from tests.builders import job, node, snapshot
from tests.unit.cli.conftest import NOON, Site

WAITS = Explanation(
    job="13",
    headline="job 13 waits behind 2 jobs in las order; the last one that runs is job 12",
    ordered_behind=("job 12 of bob, 8 GPUs: 1.5 GPU-hours attained",),
    what_would_change=("fewer GPUs: a 4-GPU job would fit now", "submit with ckpt=usr1: then it can be moved"),
    facts={"asks for": "8 GPUs, 24 CPUs"},
)


@pytest.fixture
def waiting(site: Site) -> Site:
    number = site.round(snapshot([node()], [job(13, gpus=8, name="train")], time=NOON - 60))
    database = site.opened()
    database.write("UPDATE jobs SET reason = ?, sentence = ?", (encode(WAITS), WAITS.headline))
    journal = Journal(database)
    requeue = Operation(Verb.REQUEUE, "13", Reason(ReasonCode.NEWCOMER_FIRST, {"newcomer": "12", "why": "it is first"}))
    (entry,) = journal.record_intents(number, [(0, requeue)], NOON - 50)
    journal.record_outcomes(
        [(entry, Outcome(requeue, Result.DONE, ("scontrol requeuehold Incomplete 13",)))], NOON - 40
    )
    database.write("INSERT INTO service VALUES ('13', 1.0, 9000.0)")
    database.write(
        "INSERT INTO events (at, job, kind, sentence) VALUES (?, '13', 'displaced', 'gives way to 12')", (NOON - 40,)
    )
    database.close()
    return site


def test_explain_says_why_then_what_would_change_it(waiting: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    lines = waiting.lines("explain", "13")
    assert lines[:-1] == [
        "job 13 waits behind 2 jobs in las order; the last one that runs is job 12",
        "",
        "Ahead of it:",
        "  - job 12 of bob, 8 GPUs: 1.5 GPU-hours attained",
        "",
        "What would change that:",
        "  - fewer GPUs: a 4-GPU job would fit now",
        "  - submit with ckpt=usr1: then it can be moved",
        "",
        "asks for 8 GPUs, 24 CPUs",
        "attained 2.5 GPU-hours, 1 restart by synsched",
    ]
    assert lines[-1].startswith("state    pending, 1 min ago (")


def test_a_job_that_was_displaced_is_not_said_to_have_what_it_lost(waiting: Site) -> None:
    database = waiting.opened()
    lost = replace(WAITS, facts={**WAITS.facts, "has": "n1: 8 GPUs"})
    database.write("UPDATE jobs SET reason = ?", (encode(lost),))
    assert not any("n1: 8 GPUs" in line for line in waiting.lines("explain", "13"))
    database.write("UPDATE jobs SET state = 'running'")
    database.close()
    assert "has      n1: 8 GPUs" in waiting.lines("explain", "13")


def test_a_job_that_no_round_decided_about_is_explained_too(site: Site) -> None:
    site.round(snapshot([node()], [job(5)], time=NOON))
    assert site.lines("explain", "5")[0] == "job 5 has been seen; no round has decided about it yet"


def test_an_array_is_explained_task_by_task(site: Site) -> None:
    site.round(snapshot([node()], [job("7_1"), job("7_2")], time=NOON))
    told = site.json("explain", "7")["jobs"]
    assert isinstance(told, list)
    assert [one["job"]["id"] for one in told] == ["7_1", "7_2"]


@pytest.mark.parametrize("command", ["explain", "history"])
def test_a_job_that_is_not_ours_says_where_to_look(site: Site, command: str) -> None:
    site.round(snapshot([node()], time=NOON))
    result = site.run(command, "99")
    assert result.exit_code == 1
    assert result.stderr == "synsched: job 99 is not known here: 'squeue -j 99' shows it if it is not managed\n"


def test_history_tells_what_happened_and_what_was_done(waiting: Site) -> None:
    lines = waiting.lines("history", "13", "--commands", columns=200)
    assert lines[0] == "job 13 (train) of alice: pending, 2.5 GPU-hours attained"
    assert lines[2].split() == ["WHEN", "EVENT", "WHAT"]
    assert lines[3].endswith("displaced gives way to 12")
    assert lines[6].endswith("1 requeue   done   job 13 gives way to job 12: it is first")
    assert lines[7] == "$ scontrol requeuehold Incomplete 13"


def test_json_has_stable_keys(waiting: Site) -> None:
    (why,) = waiting.json("explain", "13")["jobs"]  # type: ignore[misc, attr-defined]  # JSON has no types
    assert list(why) == ["job", "explanation", "round", "service", "moves"]
    assert list(why["explanation"]) == ["job", "headline", "ordered_behind", "what_would_change", "facts"]
    (past,) = waiting.json("history", "13")["jobs"]  # type: ignore[misc, attr-defined]  # JSON has no types
    assert list(past) == ["job", "service", "events", "operations"]
    assert list(past["events"][0]) == ["at", "round", "job", "kind", "code", "sentence"]
