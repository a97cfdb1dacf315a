"""Jobs that are left to Slurm because of their partitions or their QOS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import Job, JobState, Partition, Request
from slurmsched.rounds.partitions import jobs_left_to_slurm
from slurmsched.rounds.scope import partition_totals
from tests.builders import job, node, share, snapshot

PLAIN = Partition("plain", frozenset({"n1", "n2"}))
WHOLE = replace(PLAIN, name="whole", sharing="EXCLUSIVE")
FORCED = replace(PLAIN, name="forced", sharing="FORCE:2")
OF_USERS = replace(PLAIN, name="of-users", sharing="USER")
HIGH = replace(PLAIN, name="high", preempts=True)
CAPPED = replace(PLAIN, name="capped", max_cpus_per_node=4)
PREEMPTS = "Slurm may preempt other jobs for it"


def asks(partitions: str, cpus: int = 1, gpus: int = 1, nodes: int = 1, **other: object) -> Job:
    request = Request(gpus=gpus, cpus=cpus, nodes=nodes)
    return job(1, request=request, partitions=tuple(partitions.split(",")), **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param(asks("plain"), "", id="shares nothing"),
        pytest.param(
            asks("whole"), "its partition whole gives each job whole nodes (OverSubscribe=EXCLUSIVE)", id="whole nodes"
        ),
        pytest.param(
            asks("plain,forced"),
            "its partition forced lets several jobs have a CPU (OverSubscribe=FORCE:2)",
            id="one of two shares CPUs",
        ),
        pytest.param(
            asks("of-users"),
            "its partition of-users shares a node among the jobs of one user only (ExclusiveUser)",
            id="nodes of one user",
        ),
        pytest.param(asks("plain,high"), PREEMPTS, id="one of two preempts"),
        pytest.param(asks("high", on=[share()]), PREEMPTS, id="one that runs stays so"),
        pytest.param(asks("plain", qos="urgent"), PREEMPTS, id="a QOS that preempts"),
        pytest.param(asks("plain", qos="normal"), "", id="a QOS that does not"),
        pytest.param(
            asks("capped,plain", cpus=6),
            "it asks for more CPUs on a node (6 of 4) than its partition capped lets its jobs have",
            id="more CPUs than one of two allows",
        ),
        pytest.param(
            asks("capped", cpus=6, gpus=2),
            "it asks for more CPUs on a node (6 of 4) than its partition capped lets its jobs have",
            id="more CPUs than a node gives: Slurm may divide them",
        ),
        pytest.param(asks("capped", cpus=6, gpus=2, nodes=2), "", id="as many on each of two nodes"),
        pytest.param(asks("capped", cpus=8, gpus=16), "", id="as many on the nodes that its GPUs need"),
        pytest.param(asks("capped", cpus=4), "", id="as many as allowed"),
        pytest.param(asks("capped", cpus=6, on=[share(cpus=6)]), "", id="Slurm started it"),
    ],
)
def test_what_is_left_to_slurm_and_why(asked: Job, why: str) -> None:
    partitions = (PLAIN, WHOLE, FORCED, OF_USERS, HIGH, CAPPED)
    nodes = [node(name, partitions=frozenset(p.name for p in partitions)) for name in ("n1", "n2")]
    seen = snapshot(nodes, [asked], partitions=partitions, preempting_qos=frozenset({"urgent"}))
    left = jobs_left_to_slurm(seen, partition_totals(seen))
    assert asked.state in (JobState.PENDING, JobState.RUNNING)
    assert [reason.sentence for reason in left.values()] == [f"is not managed: {why}"] * bool(why)


def test_all_jobs_are_left_to_slurm_where_it_is_not_known_which_of_them_preempt() -> None:
    seen = snapshot([node("n1", partitions=frozenset({"plain"}))], [asks("plain")], preempting_qos=None)
    [reason] = jobs_left_to_slurm(seen, partition_totals(seen)).values()
    assert "which QOS may preempt others cannot be read" in reason.sentence
