"""Shards by device, from the jobs that have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.slurm.cluster import count_shards_by_job
from slurmsched.backends.slurm.jobs import node_allocations
from slurmsched.backends.slurm.records import RawAllocation
from slurmsched.model import Gpu, Job, JobState, NodeAllocation, Request, Resources
from tests.builders import job, node, snapshot


def part(number: int, device: int, shards: int, state: JobState = JobState.RUNNING) -> Job:
    share = NodeAllocation("n1", Resources(0, 1, 0), "v100", (device,), shards)
    return replace(job(number, request=Request(shards=shards)), state=state, allocations=(share,))


def gang(number: int, *devices: int) -> Job:
    """With half of each device."""
    shards = 5 * len(devices)
    share = NodeAllocation("n1", Resources(0, 2, 0), "v100", devices, shards)
    return replace(job(number, request=Request(shards=shards, tasks=2)), state=JobState.RUNNING, allocations=(share,))


@pytest.mark.parametrize(
    ("said", "jobs", "expected"),
    [
        pytest.param([1000, 500], [gang(1, 0, 1), part(2, 0, 5)], [1000, 500], id="beside a job with halves of two"),
        pytest.param([500, 500, 500], [gang(1, 0, 1), part(2, 2, 5)], [500, 500, 500], id="on another device than one"),
        pytest.param(
            [750, 750], [part(1, 0, 5), part(2, 0, 5), part(3, 1, 5)], [1000, 500], id="a sum for two devices"
        ),
        pytest.param([333, 333, 333], [part(1, 0, 5), part(2, 1, 4), part(3, 2, 1)], [500, 400, 100], id="rounded"),
        pytest.param([1000, 500], [part(1, 0, 10), part(2, 1, 5)], [1000, 500], id="what the node says already"),
        pytest.param([750, 750], [part(1, 0, 5), part(2, 0, 5)], [750, 750], id="of somebody whose job is hidden"),
        pytest.param([1000, 500], [part(1, 1, 5)], [1000, 500], id="beside a job with a whole GPU"),
        pytest.param(
            [500, 0], [part(1, 0, 5), part(2, 1, 5, JobState.FINISHED)], [500, 0], id="a job that ended has none"
        ),
        pytest.param([500, 0], [], [500, 0], id="nobody is seen"),
    ],
)
def test_each_device_is_used_as_far_as_its_jobs_say(said: list[int], jobs: list[Job], expected: list[int]) -> None:
    gpus = tuple(Gpu(index, "v100", used, 10) for index, used in enumerate(said))
    (found,) = count_shards_by_job([replace(node("n1", len(said)), gpus=gpus)], jobs)
    assert [gpu.used for gpu in found.gpus] == expected


def test_a_job_with_halves_of_two_gpus_has_a_gpu_and_shares_both() -> None:
    """As 24.11 and 26.05 show it: `GRES=shard:10(5/10,5/10,0/10,0/10)`."""
    raw = RawAllocation("n1", "0-1", "100", "shard:10(5/10,5/10,0/10,0/10)")
    (read,) = node_allocations([raw], {})
    assert (read.shards, read.indices) == (10, (0, 1))
    wide = replace(gang(1, 0, 1), allocations=(read,))
    other = part(2, 1, 5)
    seen = snapshot([node("n1", 4, shards=10)], [wide, other])
    assert seen.gpus_of(wide) == 1.0
    assert [one.id for one in seen.sharers_of(other)] == ["1"]
