"""Everything of ours given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.daemon.cleanup import stray_release_plan
from slurmsched.daemon.isolation import managed_jobs
from slurmsched.knowledge import Knowledge
from slurmsched.model import Gpu, Hold, Job, JobState, ReasonCode, Request, SchedulerState, SetAsideJob
from slurmsched.rounds.round import run_round
from slurmsched.rounds.set_aside import MAX_HOLD, set_aside_operations
from slurmsched.rounds.specs import release_plan, spec_of, with_original_requests
from slurmsched.settings.definition import ManageSettings, Mode, PolicySettings, RoundSettings, Settings
from tests.builders import job, node, share, snapshot
from tests.ideal_cluster import IdealCluster
from tests.prescribing import Anyone

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


ENFORCING = Settings(
    rounds=RoundSettings(mode=Mode.ENFORCE),
    manage=ManageSettings(partitions=("gpu",)),
    policy=PolicySettings("synergy"),
)
IMPOSSIBLE = Request(gpus=2, gpus_per_node=1, nodes=2, cpus=2, memory=99)
"""Fits the partition's totals, and no set of its nodes: only one has the memory."""


@pytest.mark.parametrize(
    ("waiting", "verbs"),
    [
        pytest.param(job(1, request=IMPOSSIBLE, hold=Hold.USER, hint="held=hook"), ["release"], id="the hook's hold"),
        pytest.param(job(1, request=IMPOSSIBLE, hold=Hold.ADMIN), ["release"], id="the daemon's hold"),
        pytest.param(job(1, request=IMPOSSIBLE), [], id="not held: not taken over either"),
    ],
)
def test_a_job_for_which_the_whole_cluster_would_not_do_is_given_back(waiting: Job, verbs: list[str]) -> None:
    held = frozenset("1") if waiting.hold is Hold.ADMIN else frozenset[str]()
    seen = snapshot([node(memory=200), node("n2", memory=50)], [waiting])
    result = run_round(seen, SchedulerState(held=held), ENFORCING, Knowledge(), Anyone())
    assert result.decision.waiting["1"].code is ReasonCode.NEVER_FITS
    assert [operation.verb.value for operation in result.plan.operations] == verbs


@pytest.mark.parametrize(
    ("came", "hold", "verbs"),
    [
        pytest.param(200.0, Hold.ADMIN, ["release"], id="it came later: Slurm keeps the next ones off"),
        pytest.param(200.0, Hold.NONE, [], id="it came later, and Slurm queues the promised one already"),
        pytest.param(50.0, Hold.ADMIN, [], id="it came before: the promised one stays held"),
        pytest.param(50.0, Hold.NONE, ["hold"], id="it came before: the promised one is taken over"),
    ],
)
def test_a_promised_job_is_given_back_once_slurm_started_a_later_one_before_it(
    came: float, hold: Hold, verbs: list[str]
) -> None:
    other = job("7+0", on=[share()], submit_time=came, start_time=9000.0, time_limit=7200)
    promised = job(1, 8, submit_time=100.0, hold=hold, time_limit=600)
    state = SchedulerState(held=frozenset("1") if hold is Hold.ADMIN else frozenset())
    result = run_round(snapshot([node()], [promised, other]), state, ENFORCING, Knowledge(), Anyone())
    assert other.id in result.unmanaged
    assert [operation.verb.value for operation in result.plan.operations] == verbs
    told = (
        "waits in Slurm's own queue, since job 7+0 came later, is not managed, and started before it; it should start"
    )
    assert (told in result.decision.waiting["1"].sentence) is (came > promised.submit_time)


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        pytest.param([{}], {"1"}, id="one came before them: the first of the order has its turn in Slurm's queue"),
        pytest.param([{}, {}], {"1", "2"}, id="two came before them"),
        pytest.param(
            [{"partitions": ("debug",)}], {"1"}, id="it is in another partition: Slurm has one queue for both"
        ),
        pytest.param([{"submit_time": 90.0}], set(), id="it came before them"),
        pytest.param([{"on": [share("n2", 4)]}], set(), id="it has what they cannot use"),
        pytest.param([{"on": [share(gpus=0)]}], set(), id="it has no GPU"),
    ],
)
def test_as_many_of_the_first_go_back_to_slurm_as_later_ones_started_before_them(
    changes: list[dict[str, object]], given: set[str]
) -> None:
    busy = job(9, on=[share(gpus=range(4), cpus=4)], start_time=0.0, submit_time=0.0, time_limit=72000)
    later = [
        job(f"{number}+0", **{"on": [share(gpus=(4 + at, 6 + at))], "submit_time": 200.0, "start_time": 300.0} | change)  # type: ignore[arg-type]  # fields by name
        for at, (number, change) in enumerate(zip((7, 8), changes, strict=False))
    ]
    waiting = [job(n, request=Request(5, "v100"), submit_time=100.0 + n, hold=Hold.ADMIN) for n in (1, 2, 3)]
    seen = snapshot([node(), node("n2", gpu_type="k80")], [busy, *later, *waiting])
    result = run_round(seen, SchedulerState(held=frozenset("123")), ENFORCING, Knowledge(), Anyone())
    assert set(result.starts) == given


@pytest.mark.parametrize(
    ("dependency", "hold", "verbs"),
    [
        pytest.param("afterok:7(failed)", Hold.USER, ["release"], id="it failed: Slurm tells so or removes the job"),
        pytest.param("afterok:7(failed)", Hold.NONE, [], id="not held: not taken over either"),
        pytest.param("afterok:5(unfulfilled)", Hold.USER, [], id="it may be met later: the job stays held"),
        pytest.param("afterok:5(unfulfilled)", Hold.NONE, ["hold"], id="it may be met later: the job is taken over"),
        pytest.param("afterok:7(unfulfilled)", Hold.USER, ["reshape", "release"], id="it may be met now: it is tried"),
    ],
)
def test_a_job_whose_dependency_can_never_be_met_is_given_back(dependency: str, hold: Hold, verbs: list[str]) -> None:
    waiting = job(1, dependency=dependency, hold=hold, hint="held=hook" if hold is Hold.USER else "")
    seen = snapshot([node()], [waiting, job(5, on=[share()])])
    result = run_round(seen, SchedulerState(), ENFORCING, Knowledge(), Anyone())
    assert [operation.verb.value for operation in result.plan.operations] == verbs


def test_shards_for_which_slurm_chooses_among_gpu_types_are_given_back() -> None:
    both = replace(node("n1", 2, shards=4), gpus=(Gpu(0, "v100", shards=4), Gpu(1, "a100", shards=4)))
    waiting = job(1, request=Request(shards=2), hold=Hold.USER, hint="held=hook")
    parts = replace(ENFORCING, policy=PolicySettings("fgd"))
    result = run_round(snapshot([both], [waiting]), SchedulerState(), parts, Knowledge(), Anyone())
    assert [operation.verb.value for operation in result.plan.operations] == ["release"]
    assert result.decision.waiting["1"].sentence.startswith("is not managed: it asks for shards of any GPU type")


def test_a_job_that_is_let_go_is_released_and_keeps_what_it_asked_for() -> None:
    wanted = job(1, request=ASKED, standing=PINNED, hold=Hold.USER, hint="held=hook", unmanageable="it needs licences")
    seen, state = snapshot([node()], [wanted]), SchedulerState(original_requests={"1": ASKED})
    managed, _ = managed_jobs(seen, ENFORCING)
    plan = stray_release_plan(seen, state, managed, Mode.ENFORCE)
    assert [operation.verb.value for operation in plan.operations] == ["reshape", "release"]
    assert plan.operations[0].after == spec_of(ASKED)


def test_a_job_that_asks_for_more_than_there_is_is_released_before_the_round_decides() -> None:
    wide = job(1, gpus=64, hold=Hold.USER, hint="held=hook")
    seen = snapshot([node()], [wide, job(2, hold=Hold.USER, hint="held=hook")])
    managed, _ = managed_jobs(seen, ENFORCING)
    plan = stray_release_plan(seen, SchedulerState(), managed, Mode.ENFORCE)
    assert [(operation.verb.value, operation.subject) for operation in plan.operations] == [("release", "1")]
    unmanaged = run_round(seen, SchedulerState(), ENFORCING, Knowledge(), Anyone()).unmanaged
    assert unmanaged["1"].sentence == "asks for what the cluster does not have: 64 GPUs; the partition has 8"


HELD_ASIDE = SetAsideJob("1", "it cannot be read", "alice", "gpu", held_by_hook=True)


@pytest.mark.parametrize(
    ("since", "others_wait", "released"),
    [
        pytest.param(None, False, ["1"], id="nobody else waits"),
        pytest.param(10_000.0, True, [], id="others wait: it has no advantage"),
        pytest.param(10_000.0 - MAX_HOLD, True, ["1"], id="for a day at most"),
    ],
)
def test_a_job_that_the_hook_holds_and_that_cannot_be_read_is_let_go(
    since: float | None, others_wait: bool, released: list[str]
) -> None:
    seen = snapshot([node()], [], set_aside=(HELD_ASIDE,))
    state = SchedulerState(set_aside={} if since is None else {"1": since})
    operations = set_aside_operations(seen, state, ENFORCING.manage, managed_jobs_wait=others_wait)
    assert [(op.verb.value, op.subject) for op in operations] == [("release", job) for job in released]
    assert [op.subject for op in release_plan(seen, state).operations] == ["1"]
