"""Which jobs are managed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import Hold, Job, JobState, Reason, ReasonCode, Request, SchedulerState
from slurmsched.rounds.scope import ineligible_reason, partition_totals, unmanaged_reason
from slurmsched.settings.definition import ManageSettings, PolicySettings, Settings
from tests.builders import job, node, snapshot

OURS = Settings(manage=ManageSettings(partitions=("gpu",), qos=("train",), never_partitions=("exam",)))
PARTS = replace(OURS, policy=PolicySettings(system="fgd"))


@pytest.mark.parametrize(
    "managed",
    [
        pytest.param(job(1), id="a GPU batch job in a managed partition"),
        pytest.param(job(1, partitions=("other",), qos="train"), id="in a managed QOS"),
        pytest.param(job(1, partitions=("other",), hint="model=bert"), id="anywhere with a hint"),
        pytest.param(job(1, partitions=("other",), comment="synsched:"), id="anywhere with a bare hint"),
        pytest.param(
            job(1, partitions=("other",), hint=",held=hook", hold=Hold.USER), id="with a bare hint, held by the hook"
        ),
        pytest.param(job("7_3", array_job="7"), id="a task of an array"),
        pytest.param(job(1, state=JobState.RUNNING), id="one that runs"),
        pytest.param(job(1, request=Request(gpus=8, max_nodes=3)), id="GPUs in all on a range of nodes"),
        pytest.param(
            job(1, request=Request(gpus=2, gpus_per_node=2, tasks=4, max_nodes=4)),
            id="four tasks, which Slurm shows as up to four nodes",
        ),
    ],
)
def test_it_is_managed(managed: Job) -> None:
    assert unmanaged_reason(managed, OURS) is None


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(job(1, gpus=0), id="a job without GPUs"),
        pytest.param(job(1, request=Request(shards=2)), id="a job of GPU shards"),
    ],
)
def test_a_system_that_places_parts_of_gpus_manages_them_too(part: Job) -> None:
    assert unmanaged_reason(part, PARTS) is None
    assert unmanaged_reason(part, OURS) is not None


def test_shards_beside_whole_gpus_are_left_to_slurm() -> None:
    reason = unmanaged_reason(job(1, request=Request(gpus=1, shards=2)), PARTS)
    assert reason is not None
    assert reason.code is ReasonCode.SHARDS


def test_naming_a_partition_where_nothing_is_managed_too_leaves_nobody_to_slurm() -> None:
    assert unmanaged_reason(job(1, partitions=("gpu", "exam")), OURS) is None


@pytest.mark.parametrize(
    ("foreign", "code"),
    [
        pytest.param(job(1, partitions=("other",)), ReasonCode.UNMANAGED, id="elsewhere without a hint"),
        pytest.param(
            job(1, partitions=("other",), hint="held=hook", hold=Hold.USER),
            ReasonCode.UNMANAGED,
            id="a partition that is not managed any more: the hook's mark is no hint",
        ),
        pytest.param(
            job(1, hint="model=bert", partitions=("exam",)), ReasonCode.UNMANAGED, id="where nothing is managed"
        ),
        pytest.param(job(1, gpus=0), ReasonCode.NO_GPU, id="a job without GPUs"),
        pytest.param(job(1, request=Request(shards=2)), ReasonCode.SHARDS, id="a job of GPU shards"),
        pytest.param(job(1, batch=False), ReasonCode.NOT_BATCH, id="an interactive job"),
        pytest.param(
            job(1, unmanageable="it asks for GPUs per socket"), ReasonCode.UNMANAGED, id="what only Slurm can place"
        ),
        pytest.param(
            job(1, request=Request(gpus=2, gpus_per_node=2, max_nodes=3)),
            ReasonCode.UNMANAGED,
            id="GPUs on each node of a range: Slurm gives as many nodes as are free",
        ),
        pytest.param(job("5+0"), ReasonCode.UNMANAGED, id="a heterogeneous job"),
        pytest.param(job(1, state=JobState.SUSPENDED), ReasonCode.UNMANAGED, id="a suspended job"),
        pytest.param(job(1, state=JobState.COMPLETING), ReasonCode.UNMANAGED, id="a job that is ending"),
    ],
)
def test_it_is_left_to_slurm(foreign: Job, code: ReasonCode) -> None:
    reason = unmanaged_reason(foreign, OURS)
    assert reason is not None
    assert reason.code is code


def test_without_opt_in_a_hint_makes_no_job_managed() -> None:
    reason = unmanaged_reason(job(1, hint="model=bert"), Settings(manage=ManageSettings(opt_in=False)))
    assert reason is not None
    assert reason.sentence == "is not managed: neither its partition nor its QOS is managed"


SMALL = partition_totals(snapshot([node(gpus=4, cpus=12, memory=100), node("n2", 2, "p100", 8, 60)]))


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        pytest.param(Request(gpus=7), "7 GPUs; the partition has 6", id="GPUs"),
        pytest.param(Request(gpus=3, gpu_type="p100"), "3 p100 GPUs; the partition has 2", id="GPUs of a type"),
        pytest.param(Request(gpus=1, nodes=3), "3 nodes; the partition has 2", id="nodes"),
        pytest.param(Request(gpus=5, gpus_per_node=5), "5 GPUs on one node; the largest has 4", id="GPUs of a node"),
        pytest.param(Request(gpus=1, cpus=13), "13 CPUs on one node; the largest has 12", id="CPUs of a node"),
        pytest.param(Request(gpus=1, memory=101), "101 MiB of memory on one node; the largest has 100", id="memory"),
    ],
)
def test_what_asks_for_more_than_its_partition_has_is_slurms_to_refuse(asked: Request, what: str) -> None:
    assert unmanaged_reason(job(1, request=asked), OURS, SMALL) == Reason(ReasonCode.NEVER_FITS, {"what": what})
    assert unmanaged_reason(job(1, request=asked, state=JobState.RUNNING), OURS, SMALL) is None


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(Request(gpus=6), id="all GPUs, over both nodes"),
        pytest.param(Request(gpus=6, cpus=20, memory=150), id="CPUs and memory by the GPU, spread over both nodes"),
        pytest.param(Request(gpus=1, cpus=12, memory=100), id="the largest node"),
    ],
)
def test_what_may_fit_however_it_is_spread_stays_managed(asked: Request) -> None:
    assert unmanaged_reason(job(1, request=asked), OURS, SMALL) is None


def test_a_job_in_two_partitions_asks_for_too_much_only_if_neither_has_it() -> None:
    nodes = [node(gpus=4), node("n2", 8, partitions=frozenset({"big"}))]
    totals, wide = partition_totals(snapshot(nodes)), Request(gpus=8, gpus_per_node=8)
    assert unmanaged_reason(job(1, request=wide, partitions=("gpu", "big")), OURS, totals) is None
    assert unmanaged_reason(job(1, request=wide), OURS, totals) is not None
    hidden = unmanaged_reason(job(1, request=Request(gpus=13), partitions=("gpu", "hidden")), OURS, totals)
    assert hidden == Reason(ReasonCode.NEVER_FITS, {"what": "13 GPUs; the partition has 12"})


def test_a_poll_without_nodes_judges_nobody() -> None:
    assert unmanaged_reason(job(1, gpus=99), OURS, partition_totals(snapshot())) is None


def test_a_job_that_slurm_holds_as_impossible_is_not_said_to_be_held_by_an_administrator() -> None:
    stopped = job(1, hold=Hold.ADMIN, reason="BadConstraints")
    why = ineligible_reason(stopped, SchedulerState(), snapshot([node()], [stopped]))
    assert why is not None
    assert why.code is ReasonCode.NEVER_FITS
