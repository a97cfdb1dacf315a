"""Shards by device, from the jobs that have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.cluster import count_shards_by_job
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.jobs import node_allocations, with_types_of_shards
from slurmsched.backends.slurm.records import RawAllocation
from slurmsched.model import Gpu, Job, JobState, NodeAllocation, Request, Resources
from tests.builders import job, node, snapshot
from tests.unit.fake_slurm import FakeJob, FakeNode, FakeSlurm


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


ONE_TYPE = ("v100", 10), ("v100", 10)
TWO_TYPES = ("v100", 10), ("k80", 10)


@pytest.mark.parametrize(
    ("gpus", "devices", "expected"),
    [
        pytest.param(ONE_TYPE, (1,), "v100", id="that of the node"),
        pytest.param(TWO_TYPES, (0,), "v100", id="that of its GPU"),
        pytest.param(TWO_TYPES, (1,), "k80", id="that of its GPU, not of the first"),
        pytest.param(ONE_TYPE, (), "v100", id="that of the node, where no GPU is shown"),
        pytest.param((("v100", 0), ("k80", 10)), (), "k80", id="that of the GPUs with shards, where none is shown"),
        pytest.param(TWO_TYPES, (), "", id="unknown where no GPU is shown and types differ"),
        pytest.param(TWO_TYPES, (0, 1), "", id="none of parts of two types"),
        pytest.param(None, (0,), "", id="unknown where the node is not shown"),
    ],
)
def test_the_gpu_type_of_shards_is_told_by_the_node(
    gpus: tuple[tuple[str, int], ...] | None, devices: tuple[int, ...], expected: str
) -> None:
    share = NodeAllocation("n1", Resources(0, 1, 0), "", devices, 5)
    runs = replace(job(1, request=Request(shards=5)), state=JobState.RUNNING, allocations=(share,))
    of_node = tuple(Gpu(index, kind, 0, shards) for index, (kind, shards) in enumerate(gpus or ()))
    nodes = {"n1": replace(node("n1", len(of_node)), gpus=of_node)} if gpus else {}
    assert with_types_of_shards(runs, nodes).gpu_type_held == expected


def test_a_poll_tells_the_gpu_type_of_shards() -> None:
    """As real clusters show it, `GRES=shard:4(0/10,4/10,…)`, the type of which only the node tells."""
    fields = {"NodeList": "n1", "Nodes": "n1", "CPU_IDs": "0", "Mem": "1000"}
    gres = {"GRES": "shard:4(0/10,4/10,0/10,0/10,0/10,0/10,0/10,0/10)"}
    runs = FakeJob(7, state="RUNNING", asked={"TresPerNode": "gres/shard:4"}, fields=fields | gres)
    slurm = FakeSlurm([runs], [FakeNode("n1")])
    [read] = SlurmBackend(Commands(5, runner=slurm), CommandSource(), lambda: 1000.0).observe().jobs
    assert (read.devices, read.gpu_type_held) == ((("n1", 1),), "v100")
