"""`synsched explain` and `synsched history` over a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.recorded import RecordedBackend, Recording
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Explanation,
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
    Verb,
    encode,
)
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import ManageSettings, Settings
from slurmsched.store.journal import Journal
from tests.builders import job, node, share, snapshot
from tests.prescribing import Anyone
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
    database.write("INSERT INTO service VALUES ('13', 1.0, 9000.0, 'v100')")
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
    assert lines[-1].startswith("state    pending, as of 1 min ago (")


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
    assert list(why) == ["job", "explanation", "round", "service", "moves", "forecast", "idle"]
    assert list(why["explanation"]) == ["job", "headline", "ordered_behind", "what_would_change", "facts", "code"]
    (past,) = waiting.json("history", "13")["jobs"]  # type: ignore[misc, attr-defined]  # JSON has no types
    assert list(past) == ["job", "service", "events", "operations"]
    assert list(past["events"][0]) == ["at", "round", "job", "kind", "code", "sentence"]


@pytest.mark.parametrize("command", ["explain", "history"])
def test_one_unknown_job_does_not_hide_the_others(waiting: Site, command: str) -> None:
    result = waiting.run(command, "99,13")
    assert "job 13" in result.stdout
    assert result.exit_code == 1
    assert result.stderr == "synsched: job 99 is not known here: 'squeue -j 99' shows it if it is not managed\n"


UNSEEN = [
    pytest.param(job(5, gpus=0, partitions=("gpu",)), "job 5 is not managed: it uses no GPU", id="without GPUs"),
    pytest.param(job(5, partitions=("debug",)), "job 5 is not managed: it has no synsched: hint", id="elsewhere"),
    pytest.param(job(5, batch=False), "job 5 is not a batch job: requeueing would end it", id="interactive"),
    pytest.param(
        job(5, state=JobState.FINISHED, state_text="COMPLETED"), "job 5 has ended: it is completed", id="ended"
    ),
    pytest.param(
        job(5, hold=Hold.USER, hint="held=hook"), "job 5 waits for its first round: one comes", id="held by the hook"
    ),
    pytest.param(job(5, on=[share()]), "job 5 runs, and no round has seen it yet: one comes", id="running"),
    pytest.param(job(5, hold=Hold.USER), "job 5 is held by its owner", id="held by its owner"),
    pytest.param(job("5_2", array_job="5"), "job 5_2 waits for its first round", id="a task of an array"),
    pytest.param(job("5+1", partitions=("gpu",)), "job 5+1 is not managed: it is part of a het", id="heterogeneous"),
    pytest.param(
        job(5, gpus=9), "job 5 asks for what the cluster does not have: 9 GPUs; the partition has 8", id="never fits"
    ),
    pytest.param(
        job(5, unmanageable="it needs licences (--licenses)"),
        "job 5 is not managed: it needs licences (--licenses)",
        id="an option that no plan knows",
    ),
    pytest.param(
        job(5, request=Request(gpus=2, gpus_per_node=2, max_nodes=3)),
        "job 5 is not managed: it asks for GPUs on each node of a range",
        id="a range of nodes",
    ),
]


def test_a_job_that_waits_while_nobody_schedules_is_told_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.configure('[manage]\npartitions = ["gpu"]\n')
    site.round(snapshot([node()], time=NOON))
    asked = job(5, hold=Hold.USER, hint="held=hook")
    shown = RecordedBackend([Recording(snapshot([node()], [asked], NOON + 3600))])
    monkeypatch.setattr("slurmsched.cli.cluster.connect_backend", lambda _: shown)
    (line,) = site.lines("explain", "5", columns=200)
    assert "job 5 waits for its first round: the last one ended" in line
    assert "synsched status" in line


@pytest.mark.parametrize("command", ["explain", "history"])
@pytest.mark.parametrize(("asked", "told"), UNSEEN)
def test_a_job_that_no_round_knows_is_explained_by_what_slurm_shows(
    site: Site, monkeypatch: pytest.MonkeyPatch, asked: Job, told: str, command: str
) -> None:
    site.configure('[manage]\npartitions = ["gpu"]\n')
    site.round(snapshot([node()], time=NOON))
    shown = RecordedBackend([Recording(snapshot([node()], [asked], NOON))])
    monkeypatch.setattr("slurmsched.cli.cluster.connect_backend", lambda _: shown)
    (line,) = site.lines(command, "5", columns=200)
    assert line.startswith(told)


LET_GO = [
    param
    for param in UNSEEN
    if param.id not in ("held by the hook", "running", "held by its owner", "a task of an array")
]


@pytest.mark.parametrize("asked", [param.values[0] for param in LET_GO], ids=[param.id for param in LET_GO])
def test_a_job_that_is_let_go_is_explained_as_the_round_explains_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, asked: Job
) -> None:
    site.configure('[manage]\npartitions = ["gpu"]\n')
    site.round(snapshot([node()], time=NOON))
    seen = snapshot([node()], [asked], NOON)
    monkeypatch.setattr("slurmsched.cli.cluster.connect_backend", lambda _: RecordedBackend([Recording(seen)]))
    settings = Settings(manage=ManageSettings(partitions=("gpu",)))
    round_ = run_round(seen, SchedulerState(), settings, Knowledge(), Anyone())
    said = f"job {asked.id} {round_.unmanaged[asked.id].sentence}"
    assert " ".join(site.lines("explain", "5", columns=200)) == said


def test_an_ended_job_points_to_its_history(site: Site) -> None:
    site.round(snapshot([node()], [job(5)], time=NOON), why={"5": Reason(ReasonCode.NO_ROOM, {"gpus": 1})})
    database = site.opened()
    database.write("UPDATE jobs SET state = 'finished'")
    database.close()
    assert site.lines("explain", "5")[0] == "job 5 has ended: 'synsched history 5' shows what became of it"
