"""Shards by device, from the jobs that have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.slurm.cluster import count_shards_by_job
from slurmsched.model import Gpu, Job, JobState, NodeAllocation, Request, Resources
from tests.builders import job, node


def part(number: int, device: int, shards: int, state: JobState = JobState.RUNNING) -> Job:
    share = NodeAllocation("n1", Resources(0, 1, 0), "v100", (device,), shards)
    return replace(job(number, request=Request(shards=shards)), state=state, allocations=(share,))


@pytest.mark.parametrize(
    ("said", "jobs", "expected"),
    [
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
