"""Everything of ours given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import Hold, Job, JobState, Request, SchedulerState
from slurmsched.rounds.release import release_plan, with_original_requests
from tests.builders import job, node, share, snapshot
from tests.ideal_cluster import IdealCluster

ASKED = Request(gpus=4, gpus_per_node=4, cpus=8, memory=100, nodes=1, max_nodes=3, tasks=4)
PINNED = replace(ASKED, cpus=24, memory=999, max_nodes=None, pinned=frozenset({"n1"}))


def given_back(waiting: Job, memory: SchedulerState) -> tuple[list[str], Job]:
    cluster = IdealCluster([node()], [waiting])
    plan = release_plan(cluster.observe(), memory)
    for operation in plan.operations:
        cluster.execute(operation)
    return [operation.verb.value for operation in plan.operations], cluster.jobs[waiting.id]


def test_a_job_gets_its_own_request_and_nice_back_before_it_is_let_go() -> None:
    memory = SchedulerState(original_requests={"1": ASKED}, held=frozenset({"1"}), nices={"1": 5})
    verbs, after = given_back(job(1, request=ASKED, standing=PINNED, hold=Hold.ADMIN, nice=-300), memory)
    assert verbs == ["prioritize", "reshape", "release"]
    assert (after.current_request, after.nice, after.hold) == (ASKED, 5, Hold.NONE)


@pytest.mark.parametrize(
    ("waiting", "memory", "verbs"),
    [
        pytest.param(job(1, hold=Hold.USER), SchedulerState(), [], id="its owner's hold stays"),
        pytest.param(job(1, hold=Hold.ADMIN), SchedulerState(), [], id="an administrator's hold stays"),
        pytest.param(
            job(1, hold=Hold.USER, hint="held=hook"), SchedulerState(), ["release"], id="the hook's hold goes"
        ),
        pytest.param(
            job(1, hold=Hold.REQUEUED), SchedulerState(held=frozenset("1")), ["release"], id="our requeue goes on"
        ),
        pytest.param(
            job(1, standing=PINNED),
            SchedulerState(original_requests={"1": ASKED}),
            ["reshape"],
            id="released and pinned: unpinned",
        ),
        pytest.param(job(1, standing=ASKED), SchedulerState(original_requests={"1": ASKED}), [], id="nothing differs"),
        pytest.param(
            job(1, on=[share()], standing=PINNED),
            SchedulerState(original_requests={"1": ASKED}),
            [],
            id="a running job is not touched",
        ),
        pytest.param(
            job(1, state=JobState.COMPLETING, hold=Hold.ADMIN),
            SchedulerState(held=frozenset("1")),
            [],
            id="nor one that ends",
        ),
    ],
)
def test_only_what_is_ours_is_given_back(waiting: Job, memory: SchedulerState, verbs: list[str]) -> None:
    assert given_back(waiting, memory)[0] == verbs


def test_a_reshaped_job_is_recalled_with_what_its_owner_asked() -> None:
    seen = snapshot([node()], [job(1, request=PINNED), job(2)])
    known = with_original_requests(seen, SchedulerState(original_requests={"1": ASKED, "9": PINNED}))
    assert (known.jobs_by_id["1"].original_request, known.jobs_by_id["1"].current_request) == (ASKED, PINNED)
    assert known.jobs_by_id["2"] == seen.jobs_by_id["2"]
    assert with_original_requests(seen, SchedulerState()) is seen
