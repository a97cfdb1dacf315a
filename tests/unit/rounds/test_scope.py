"""Which jobs are managed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import Job, JobState, ReasonCode, Request
from slurmsched.rounds.scope import unmanaged_reason
from slurmsched.settings.definition import ManageSettings, PolicySettings, Settings
from tests.builders import job

OURS = Settings(manage=ManageSettings(partitions=("gpu",), qos=("train",), never_partitions=("exam",)))
PARTS = replace(OURS, policy=PolicySettings(system="fgd"))


@pytest.mark.parametrize(
    "managed",
    [
        pytest.param(job(1), id="a GPU batch job in a managed partition"),
        pytest.param(job(1, partitions=("other",), qos="train"), id="in a managed QOS"),
        pytest.param(job(1, partitions=("other",), hint="model=bert"), id="anywhere with a hint"),
        pytest.param(job("7_3", array_job="7"), id="a task of an array"),
        pytest.param(job(1, state=JobState.RUNNING), id="one that runs"),
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
            job(1, hint="model=bert", partitions=("exam",)), ReasonCode.UNMANAGED, id="where nothing is managed"
        ),
        pytest.param(job(1, gpus=0), ReasonCode.NO_GPU, id="a job without GPUs"),
        pytest.param(job(1, request=Request(shards=2)), ReasonCode.SHARDS, id="a job of GPU shards"),
        pytest.param(job(1, batch=False), ReasonCode.NOT_BATCH, id="an interactive job"),
        pytest.param(
            job(1, unmanageable="it asks for GPUs per socket"), ReasonCode.UNMANAGED, id="what only Slurm can place"
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
