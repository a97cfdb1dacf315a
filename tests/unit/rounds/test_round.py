"""The pure half of a round, end to end, and what it says of each job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Explanation,
    Hold,
    Job,
    JobState,
    Node,
    NodeAllocation,
    NotifiedJob,
    OpenStart,
    Request,
    Resources,
    SchedulerState,
    SetAsideJob,
    decode,
    encode,
)
from slurmsched.model.reasons import time_of_day
from slurmsched.rounds.explainer import UnknownJobError, explain
from slurmsched.rounds.round import RoundResult, run_round
from slurmsched.rounds.starting import promise_starts, unattributed_usage
from slurmsched.settings.definition import GuardSettings, ManageSettings, Mode, PolicySettings, RoundSettings, Settings
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


@pytest.mark.parametrize(
    ("state", "awaiting"),
    [
        pytest.param({}, [], id="nobody leaves"),
        pytest.param(
            {"notified": {"1": NotifiedJob(NOW - 60, ("2",))}}, ["2"], id="for it another writes a checkpoint"
        ),
        pytest.param({"starting": {"2": OpenStart((share("n1", 8, cpus=24),), ("1",))}}, ["2"], id="another leaves"),
        pytest.param({"starting": {"3": OpenStart((share("n2", 1),))}}, [], id="it is about to start on idle GPUs"),
    ],
)
def test_the_situation_tells_who_starts_once_others_have_left(state: dict[str, Any], awaiting: list[str]) -> None:
    jobs = [job(1, 8, on=[share("n1", 8, cpus=24)], hint="ckpt=usr1@900"), job(2, 8), job(3, 1)]
    result = result_of(jobs, Prescribed(), SchedulerState(held=frozenset("23"), **state), nodes=2)
    assert [entry.id for entry in result.situation.awaiting] == awaiting
    assert not {entry.id for entry in result.situation.jobs} & {*awaiting}
    assert {*awaiting} <= result.ineligible.keys() & result.situation.restart_costs.keys()


LEAVING = job(2, gpus=4, on=[share("n1", 4, cpus=12)])


@pytest.mark.parametrize(
    ("starts", "jobs", "idle", "cpus"),
    [
        pytest.param({}, [], 8, 24, id="nobody is about to start"),
        pytest.param({"1": OpenStart((share("n1", 2, cpus=6),))}, [], 6, 18, id="what is promised is used"),
        pytest.param(
            {"1": OpenStart((share("n1", 4, cpus=12),), ("2",))}, [LEAVING], 4, 12, id="it gets what another leaves"
        ),
        pytest.param(
            {"1": OpenStart((share("n1", 6, cpus=18),), ("2",))}, [LEAVING], 2, 6, id="and some of what is free"
        ),
        pytest.param(
            {"1": OpenStart((share("n1", 2, cpus=6),), ("2",)), "3": OpenStart((share("n1", 2, cpus=6),), ("2",))},
            [LEAVING],
            4,
            12,
            id="two share what one leaves",
        ),
        pytest.param({"1": OpenStart((share("n1", 4, cpus=12),), ("2",))}, [], 4, 12, id="the other has left"),
    ],
)
def test_what_is_promised_to_jobs_about_to_start_is_not_free(
    starts: dict[str, OpenStart], jobs: list[Job], idle: int, cpus: int
) -> None:
    (only,) = promise_starts(snapshot([node()], jobs, NOW), starts).nodes
    assert (sum(gpu.idle for gpu in only.gpus), only.free.gpus, only.free.cpus) == (idle, idle, cpus)


HALF = NodeAllocation("n1", Resources(0, 2, 0), "v100", (), shards=5)


@pytest.mark.parametrize(
    ("starts", "used"),
    [
        pytest.param({"1": OpenStart((HALF,))}, [500, 0], id="on the first GPU that has them"),
        pytest.param({"1": OpenStart((HALF,)), "3": OpenStart((HALF,))}, [1000, 0], id="beside each other"),
        pytest.param(
            {"1": OpenStart((HALF,)), "3": OpenStart((replace(HALF, shards=6),))}, [500, 600], id="where they fit"
        ),
        pytest.param({"1": OpenStart((replace(HALF, gpu_type="k80"),))}, [0, 0], id="not on another type"),
        pytest.param(
            {"1": OpenStart((HALF,)), "3": OpenStart((share("n1", 1),))}, [1000, 500], id="beside a whole GPU"
        ),
    ],
)
def test_shards_promised_to_a_job_about_to_start_are_not_free(starts: dict[str, OpenStart], used: list[int]) -> None:
    (only,) = promise_starts(snapshot([node(gpus=2, shards=10)], (), NOW), starts).nodes
    assert [gpu.used for gpu in only.gpus] == used
    assert only.used.gpus == sum(map(bool, used))


def test_a_job_about_to_start_is_neither_planned_again_nor_held_and_who_leaves_for_it_stays_chosen() -> None:
    memory = SchedulerState(starting={"1": OpenStart((share("n1", 4, cpus=12),), ("2",))})
    result = result_of([job(1, gpus=4), LEAVING], Prescribed(), memory)
    assert result.plan.operations == ()
    assert result.ineligible["1"].sentence == "is about to start on n1"
    assert result.situation.non_preemptible["2"].sentence == "is leaving for job 1"


def test_a_job_left_to_slurm_is_not_held_and_one_that_slurm_did_not_start_elsewhere_stays() -> None:
    memory = SchedulerState(stalled={"1": "BadConstraints", "2": "Resources"}, let_go=frozenset({"1"}))
    result = result_of([job(1, gpus=4), LEAVING], Prescribed(), memory)
    assert result.plan.operations == ()
    assert "left to Slurm" in result.ineligible["1"].sentence
    assert (
        result.situation.non_preemptible["2"].sentence == "stays as it is: Slurm did not start it otherwise (Resources)"
    )


def test_in_an_early_round_a_job_that_was_refused_waits_for_the_others_to_be_tried() -> None:
    memory = SchedulerState(refused_before=frozenset({"1"}))
    for jobs, barred in (([job(1), job(2)], {"1"}), ([job(1)], set[str]())):
        seen = snapshot([node()], jobs, NOW)
        early = run_round(seen, memory, SETTINGS, Knowledge(), Anyone(), policy_override=Prescribed(), starts_only=True)
        assert early.ineligible.keys() == barred
        assert early.situation.max_moves == 0


def test_in_an_early_round_a_job_like_a_refused_one_starts_if_no_other_does() -> None:
    memory = SchedulerState(like_refused={"1": 1})
    for starts, barred in (({"1"}, set[str]()), ({"1", "2"}, {"1"})):
        seen = snapshot([node()], [job(1), job(2)], NOW)
        decider = Prescribed({name: (share("n1", 1, cpus=3),) for name in starts})
        early = run_round(seen, memory, SETTINGS, Knowledge(), Anyone(), policy_override=decider, starts_only=True)
        assert early.ineligible.keys() == barred
        assert early.starts.keys() == starts - barred


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
    )
    assert told.facts["rank"] == "3 of 3: number 3"
    assert told.facts["asks for"] == "4 GPUs, 4 CPUs"


def test_a_running_job_says_why_it_stays() -> None:
    told = explain(result_of(BUSY, Prescribed({"2": BUSY[1].allocations})), "2")
    assert told.facts["stays"] == "has no checkpoint signal: submit it with ckpt=usr1, or the signal that makes it save"
    assert told.ordered_behind == ()


def test_a_job_that_may_not_be_requeued_is_told_so() -> None:
    fixed = job(2, gpus=1, user="bob", run_time=60.0, requeue=False, on=[share("n1", (6,), cpus=3)])
    told = explain(result_of([BUSY[0], fixed], Prescribed({"2": fixed.allocations})), "2")
    assert told.what_would_change[0] == (
        "submit with --requeue and a checkpoint signal (ckpt=usr1): then it can be moved to better nodes"
    )


def test_shards_are_named_as_such() -> None:
    part = job(2, request=Request(shards=5, cpus=2))
    assert explain(result_of([part], Prescribed({})), "2").facts["asks for"] == "5 shards, 2 CPUs"


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


MODEL = "submit with model=NAME or task=image, language or speech: then it gets the CPUs its speed needs"
KNOWN = "submit with a model that is known ('synsched profile show' lists them): then it gets the CPUs its speed needs"
CHECKPOINT = "submit with ckpt=usr1 (or the signal that makes it save): then it can be moved to better nodes"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param(job(5, hold=Hold.USER), (), id="held by its owner"),
        pytest.param(job(5, eligible_time=NOW + 900), (), id="before its begin time"),
        pytest.param(job(5, dependency="afterok:1"), (), id="waiting for another job"),
        pytest.param(job(5, on=[share()]), (CHECKPOINT, MODEL), id="running with nothing known of it"),
        pytest.param(
            job(5, on=[share()], hint="ckpt=usr1,model=nothing"), (KNOWN,), id="running with an unknown model"
        ),
        pytest.param(job(5, partitions=("other",), on=[share()]), (), id="not managed"),
    ],
)
def test_only_what_would_change_something_is_named(asked: Job, told: tuple[str, ...]) -> None:
    targets = {"5": asked.allocations} if asked.allocations else {}
    result = result_of([asked], Prescribed(targets), SchedulerState())
    assert explain(result, "5").what_would_change == told


def test_only_jobs_on_nodes_that_it_could_use_are_ahead_of_it() -> None:
    jobs = [job(1, on=[share("n1")]), job(2, on=[share("n2")]), job(3, 8, hold=Hold.ADMIN)]
    jobs[2] = replace(jobs[2], original_request=replace(jobs[2].original_request, excluded=frozenset({"n2"})))
    running = {"1": jobs[0].allocations, "2": jobs[1].allocations}
    told = explain(result_of(jobs, Prescribed(running, order=("1", "2", "3")), nodes=2), "3")
    assert told.ordered_behind == ("job 1 of alice, 1 GPU: number 1",)


def test_a_job_that_has_ended_is_not_called_unmanaged() -> None:
    ended = job(5, state=JobState.FINISHED, state_text="COMPLETED")
    assert explain(result_of([ended], Prescribed()), "5").headline == "job 5 has ended: it is completed"


def test_the_promise_the_reason_and_the_forecast_say_the_same_time() -> None:
    """Under fifo the job of eight GPUs waits for both others, and the last one must not delay it."""
    busy = [
        job(1, gpus=4, start_time=NOW, time_limit=7200, on=[share("n1", 4, cpus=12)]),
        job(2, gpus=2, start_time=NOW, time_limit=3600, on=[share("n1", (4, 5), cpus=6)]),
    ]
    wide = job(3, gpus=8, hold=Hold.ADMIN, time_limit=3600, submit_time=NOW)
    late = job(4, gpus=1, hold=Hold.ADMIN, time_limit=9000, submit_time=NOW + 1)
    unlucky = job(5, gpus=6, hold=Hold.ADMIN, time_limit=60, submit_time=NOW + 2)
    fifo = replace(SETTINGS, policy=replace(SETTINGS.policy, order="fifo"))
    seen = snapshot([node("n1")], [*busy, wide, late, unlucky], NOW)
    result = run_round(seen, SchedulerState(held=frozenset("345")), fifo, Knowledge(), Anyone())
    promise, at = result.decision.promise, time_of_day(NOW + 7200, NOW)
    assert promise is not None
    assert (promise.job, promise.start, promise.certain) == ("3", NOW + 7200, True)
    assert result.forecast.last_needed_end(wide) == ("1", NOW + 7200)
    assert explain(result, "3").headline == (
        f"job 3 will start at {at} at the latest on n1: by then jobs 2, 1 must have ended, and nothing may delay it"
    )
    assert f"promised its start on n1 by {at}" in explain(result, "4").headline
    # what job 3 gets then is no room for job 5, which has it after job 3
    assert result.forecast.last_needed_end(unlucky) == ("3", NOW + 7200 + 3600)
    assert not [op for op in result.plan.operations if op.verb.value == "release"]


@pytest.mark.parametrize(
    ("request_", "end"),
    [
        pytest.param(Request(gpus=9, cpus=9), 600, id="as many nodes as hold them"),
        pytest.param(Request(gpus=9, cpus=9, nodes=2), 600, id="the same with the number of nodes"),
        pytest.param(Request(gpus=10, cpus=10), 3600, id="five on each of two"),
        pytest.param(Request(gpus=8, cpus=8), 3600, id="one node where that holds them"),
        pytest.param(Request(gpus=8, cpus=8, nodes=2, gpus_per_node=4), 3600, id="four on each of two"),
    ],
)
def test_gpus_are_enough_on_the_nodes_over_which_a_job_spreads(request_: Request, end: int) -> None:
    """Two nodes of eight GPUs: on one six are in use for an hour, on the other for ten minutes."""
    busy = [
        job(1, gpus=6, start_time=NOW, time_limit=3600, on=[share("n1", 6, cpus=6)]),
        job(2, gpus=6, start_time=NOW, time_limit=600, on=[share("n2", 6, cpus=6)]),
    ]
    waits = job(3, hold=Hold.ADMIN, request=request_)
    if end == 3600:
        busy.append(job(4, gpus=1, start_time=NOW, on=[share("n2", (7,), cpus=1)]))  # nobody knows when it ends
    result = result_of([*busy, waits], Prescribed({j.id: j.allocations for j in busy}), nodes=2)
    last = result.forecast.last_needed_end(waits)
    assert last is not None
    assert last[1] == NOW + end


@pytest.mark.parametrize(
    ("has", "accounted"),
    [
        pytest.param(share(cpus=2, memory=GIB), None, id="what was asked"),
        pytest.param(share(cpus=12, memory=GIB), "12 CPUs instead of 2 CPUs: what it has is billed", id="more CPUs"),
        pytest.param(
            share(cpus=1, memory=2 * GIB),
            "1 CPU instead of 2 CPUs, 2048 MiB instead of 1024 MiB: what it has is billed",
            id="fewer CPUs and more memory",
        ),
    ],
)
def test_what_is_billed_beyond_what_was_asked_is_shown(has: NodeAllocation, accounted: str | None) -> None:
    running = job(5, cpus=2, memory=GIB, on=[has])
    assert explain(result_of([running], Prescribed({"5": (has,)})), "5").facts.get("accounted") == accounted


@pytest.mark.parametrize(
    ("on", "jobs", "found"),
    [
        pytest.param(node(busy=(1,), used_cpus=3), [], [share(gpus=(1,), memory=0)], id="a job ended there"),
        pytest.param(node(), [job(1, on=[share()])], [], id="a job has it"),
        pytest.param(
            node(busy=(7,), used_cpus=2, used_memory=9),
            [job(1, on=[share()])],
            [share(gpus=(7,), cpus=2, memory=9)],
            id="a job has the rest",
        ),
        pytest.param(node(busy=(1,)), [], [], id="no CPUs: another kind of device is in use"),
        pytest.param(node(used_cpus=3), [], [share(gpus=(), memory=0, gpu_type="")], id="it had no GPU"),
    ],
)
def test_what_is_used_by_no_job(on: Node, jobs: list[Job], found: list[NodeAllocation]) -> None:
    seen = snapshot([on], jobs)
    assert list(unattributed_usage(seen)) == found
    assert not unattributed_usage(replace(seen, set_aside=(SetAsideJob("5", "cannot be read"),))), (
        "one that cannot be read may have it"
    )


def with_shards(shards: int) -> NodeAllocation:
    return replace(share("n1", gpus=0), shards=shards, indices=tuple(range(-(-shards // 4))))


@pytest.mark.parametrize(
    ("shards", "on", "seconds"),
    [
        pytest.param(1, [with_shards(1)], 4 * 900.0, id="a quarter of a GPU"),
        pytest.param(1, [], 4 * 900.0, id="the same, evicted: what it asks for"),
        pytest.param(8, [with_shards(8)], 450.0, id="two GPUs by their shards"),
    ],
)
def test_a_job_with_shards_has_run_as_long_as_its_service_at_its_part_of_a_gpu(
    shards: int, on: list[NodeAllocation], seconds: float
) -> None:
    """It has 900 GPU-seconds; a GPU has 4 shards."""
    parts = job(1, on=on, request=Request(shards=shards, cpus=1))
    seen, known = snapshot([node("n1", 8, shards=4)], [parts], NOW), SchedulerState(service={"1": 900.0})
    settings = replace(SETTINGS, policy=PolicySettings(parts=True))
    made = run_round(seen, known, settings, Knowledge(), Anyone(), policy_override=Prescribed())
    assert made.situation.knowledge.executed_seconds(parts) == seconds
