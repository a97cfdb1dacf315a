"""The pure half of a round, end to end, and what it says of each job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from slurmsched.knowledge import Knowledge
from slurmsched.model import Explanation, Hold, Job, Request, SchedulerState, decode, encode
from slurmsched.rounds.explainer import UnknownJobError, explain
from slurmsched.rounds.round import RoundResult, run_round
from slurmsched.settings.definition import GuardSettings, ManageSettings, Mode, RoundSettings, Settings
from tests.builders import GIB, job, node, share, snapshot
from tests.prescribing import Anyone, Prescribed

NOW = 1_700_000_000.0
SETTINGS = Settings(
    manage=ManageSettings(partitions=("gpu",)),
    rounds=RoundSettings(mode=Mode.ENFORCE),
    guards=GuardSettings(min_run_time=1200),
)
FULL = {"cpus": 24, "memory": 500 * GIB}


def result_of(
    jobs: list[Job], deciding: Prescribed, memory: SchedulerState | None = None, nodes: int = 1
) -> RoundResult:
    seen = snapshot([node(f"n{number}") for number in range(1, nodes + 1)], jobs, NOW)
    known = memory or SchedulerState(held=frozenset("123456789"))
    return run_round(seen, known, SETTINGS, Knowledge(), Anyone(), policy_override=deciding)


def test_every_job_is_in_the_situation_or_stopped_or_unmanaged() -> None:
    jobs = [job(1), job(2, dependency="afterok:1"), job(3, partitions=("other",)), job(4, gpus=1, on=[share()])]
    result = result_of(jobs, Prescribed())
    assert [entry.id for entry in result.situation.jobs] == ["1", "4"]
    assert set(result.ineligible) == {"2"}
    assert set(result.unmanaged) == {"3"}
    assert set(result.situation.non_preemptible) == {"4"}
    assert [(op.verb.value, op.subject) for op in result.plan.operations] == [("hold", "1"), ("hold", "2")]


def test_policies_see_what_the_owner_asked_and_what_was_attained() -> None:
    asked = Request(gpus=1, cpus=2)
    memory = SchedulerState(original_requests={"1": asked}, service={"1": 3600.0})
    result = result_of([job(1, cpus=9)], Prescribed(), memory)
    assert result.situation.jobs[0].original_request == asked
    assert result.situation.knowledge.service == {"1": 3600.0}


BUSY = [
    job(1, gpus=6, hint="ckpt=usr1,model=bert", run_time=7200.0, time_limit=9000, on=[share("n1", 6, cpus=18)]),
    job(2, gpus=1, user="bob", run_time=60.0, time_limit=600, on=[share("n1", (6,), cpus=3)]),
    job(3, gpus=4, hold=Hold.ADMIN, hint="ckpt=usr1"),
]


def test_a_waiting_job_is_told_what_would_change() -> None:
    result = result_of(BUSY, Prescribed({"1": BUSY[0].allocations, "2": BUSY[1].allocations}, order=("2", "1", "3")))
    told = explain(result, "3")
    assert told.headline == "job 3 waits: no nodes have 1 GPU free for it"
    assert told.ordered_behind == ("job 1 of alice, 6 GPUs: number 2", "job 2 of bob, 1 GPU: number 1")
    assert told.what_would_change == (
        "fewer GPUs: a 1-GPU job would fit now",
        f"job 1 ends at {datetime.fromtimestamp(NOW + 1800):%H:%M} at the latest; then there are enough GPUs",
        "submit with model=NAME or task=image, language or speech: then it gets the CPUs its speed needs",
    )
    assert told.facts["rank"] == "3 of 3: number 3"
    assert told.facts["asks for"] == "4 GPUs, 4 CPUs"


def test_a_running_job_says_why_it_stays() -> None:
    told = explain(result_of(BUSY, Prescribed({"2": BUSY[1].allocations})), "2")
    assert told.facts["stays"] == "has no checkpoint signal: submit it with ckpt=usr1, or the signal that makes it save"
    assert told.ordered_behind == ()


def test_a_job_that_gives_way_says_for_whom_and_the_newcomer_whom_it_waits_for() -> None:
    result = result_of(BUSY, Prescribed({"3": (share("n1", 4, cpus=12),)}, {"1": "3"}, order=("3", "1", "2")))
    assert explain(result, "1").headline == "job 1 gives way to job 3: number 1 against number 2"
    assert explain(result, "3").headline == "job 3 is placed on n1 and waits for job 1 to leave"


@pytest.mark.parametrize(
    ("odd", "headline"),
    [
        pytest.param(job(5, partitions=("other",)), "job 5 is not managed: it has no synsched: hint", id="unmanaged"),
        pytest.param(
            job(5, hold=Hold.USER),
            "job 5 is held by its owner: 'scontrol release 5' releases it",
            id="held by its owner",
        ),
        pytest.param(
            job(5, dependency="afterok:1"), "job 5 waits for its dependency: afterok:1", id="depends on another"
        ),
    ],
)
def test_a_job_outside_the_decision_says_why(odd: Job, headline: str) -> None:
    assert explain(result_of([odd], Prescribed(), SchedulerState()), "5").headline.startswith(headline)


def test_a_broken_hint_is_said() -> None:
    told = explain(result_of([job(5, hint="ckpt=usr9")], Prescribed()), "5")
    assert any(said.startswith("correct its hint: hint ckpt='usr9': expected") for said in told.what_would_change)


def test_room_that_this_round_gives_away_is_not_offered() -> None:
    jobs = [job(1, gpus=8), job(2, gpus=8)]
    told = explain(result_of(jobs, Prescribed({"1": (share("n1", 7, cpus=21),)}, order=("1", "2"))), "2")
    assert told.what_would_change[0] == "fewer GPUs: a 1-GPU job would fit now"


def test_an_unknown_job_is_one_line() -> None:
    with pytest.raises(UnknownJobError, match="job 77 is not in the queue: 'synsched history 77' shows"):
        explain(result_of([], Prescribed()), "77")


def test_an_explanation_survives_storing() -> None:
    told = explain(result_of(BUSY, Prescribed({"1": BUSY[0].allocations})), "3")
    assert decode(Explanation, encode(told)) == replace(told, facts=dict(told.facts))
