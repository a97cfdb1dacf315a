"""What of the idle GPUs is lost to the usual jobs, in words; and which GPUs were not those foreseen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import Node, NodeAllocation, Request, Resources, Target, cluster_overview
from slurmsched.rounds.device_mismatch import device_mismatches
from slurmsched.rounds.fragmentation import measure_fragments, with_fragments
from tests.builders import job, node, share, snapshot

WHOLE = Request(gpus=1, gpus_per_node=1, cpus=2)
EIGHT = Request(gpus=8, gpus_per_node=8, cpus=8)


@pytest.mark.parametrize(
    ("nodes", "usual", "sentence"),
    [
        pytest.param([node()], [(EIGHT, 1)], "", id="nothing is lost"),
        pytest.param(
            [node(used_cpus=20)],
            [(EIGHT, 1)],
            "8 GPUs idle, 8 of them unusable for usual jobs with 8 GPUs and 8 CPUs on a node: too few CPUs are free",
            id="CPUs are gone",
        ),
        pytest.param(
            [node("n1", busy=[0]), node("n2")],
            [(EIGHT, 1)],
            "15 GPUs idle, 7 of them unusable for usual jobs with 8 GPUs and 8 CPUs on a node:"
            " too few GPUs are free together",
            id="one short of a node",
        ),
        pytest.param(
            [node("n1", busy=[0]), node("n2", 4, used_cpus=20), node("n3", busy=range(4), used_cpus=23)],
            [(replace(EIGHT, gpus=4, gpus_per_node=4), 1)],
            "15 GPUs idle, 8 of them unusable for usual jobs with 4 GPUs and 8 CPUs on a node: too few CPUs are free",
            id="CPUs are gone on two nodes",
        ),
        pytest.param(
            [node("n1", busy=[0]), node("n2", used_cpus=20), node("n3", busy=range(7), used_cpus=23)],
            [(EIGHT, 1)],
            "16 GPUs idle, 16 of them unusable for usual jobs with 8 GPUs and 8 CPUs on a node,"
            " mostly because too few CPUs are free",
            id="several causes",
        ),
        pytest.param(
            [node(gpu_type="k80"), node("n2", busy=range(8))],
            [(replace(WHOLE, gpu_type="v100"), 3), (WHOLE, 1)],
            "",
            id="idle GPUs of another type than usual are none that are lost",
        ),
        pytest.param(
            [node(f"n{i}") for i in range(5)],
            [(Request(gpus=16, cpus=1), 3)],
            "",
            id="an empty cluster, and jobs of several nodes",
        ),
        pytest.param(
            [node("n1", busy=[0]), node("n2"), node("n3", 2, "p100")],
            [(Request(gpus=16, cpus=1), 3)],
            "17 GPUs idle, 7 of them unusable for usual jobs with 8 GPUs and 1 CPU on a node:"
            " too few GPUs are free together",
            id="jobs of several nodes, by what they take of one",
        ),
    ],
)
def test_what_is_lost_in_words(nodes: list[Node], usual: list[tuple[Request, int]], sentence: str) -> None:
    assert measure_fragments(cluster_overview(snapshot(nodes)).nodes, usual).sentence == sentence


def test_a_rest_of_a_gpu_in_words() -> None:
    other = job(1, request=Request(shards=5), on=[NodeAllocation("n1", Resources(0, 1, 0), "v100", (0,), 5)])
    seen = cluster_overview(snapshot([node("n1", 1, shards=10)], [other]))
    assert measure_fragments(seen.nodes, [(Request(shards=6, cpus=1), 5)]).sentence == (
        "0.5 GPUs idle, 0.5 of them unusable for usual jobs with 0.6 of a GPU and 1 CPU on a node:"
        " no GPU has that much free"
    )


def test_by_node_and_by_what_is_missing() -> None:
    seen = with_fragments(cluster_overview(snapshot([node("n1", 4, used_cpus=23), node("n2", 2)])), [(WHOLE, 1)])
    assert seen.fragments is not None
    first, second = seen.fragments.nodes
    assert (first.node, first.idle, first.lost, first.lack_cpu) == ("n1", 4.0, 4.0, 4.0)
    assert (second.idle, second.lost) == (2.0, 0.0)
    assert seen.fragments.all.columns == (6.0, 4.0, 0.0, 4.0, 0.0, 0.0)


def test_nodes_that_are_down_or_of_several_types_do_not_count() -> None:
    mixed = node("n2", 2)
    mixed = replace(mixed, gpus=(mixed.gpus[0], replace(mixed.gpus[1], type="k80")))
    found = measure_fragments(cluster_overview(snapshot([mixed, node("cpu", 0)])).nodes, [(WHOLE, 1)])
    assert (found.nodes, found.all.idle, found.sentence) == ((), 0.0, "")


def started(index: int) -> Target:
    return Target("1", (share("n1", (index,)),))


@pytest.mark.parametrize(
    ("foreseen", "taken", "sentences"),
    [
        pytest.param(2, (2,), [], id="as foreseen"),
        pytest.param(0, (2,), ["runs on GPU 2 of n1; GPU 0 was planned"], id="another"),
    ],
)
def test_gpus_that_were_not_foreseen(foreseen: int, taken: tuple[int, ...], sentences: list[str]) -> None:
    before = snapshot([node()], [job(1)])
    after = snapshot([node()], [job(1, on=[share("n1", taken)])])
    assert [own.sentence for own in device_mismatches([started(foreseen)], before, after)] == sentences


def test_a_job_that_ran_before_or_waits_still_surprises_nobody() -> None:
    runs = snapshot([node()], [job(1, on=[share("n1", (5,))])])
    assert device_mismatches([started(0)], runs, runs) == ()
    waits = snapshot([node()], [job(1)])
    assert device_mismatches([started(0)], waits, waits) == ()


@pytest.mark.parametrize(
    ("shards", "once_left", "told"),
    [
        pytest.param(10, (), 0, id="a whole GPU is as good as another"),
        pytest.param(5, (), 1, id="half of one lies beside somebody else's"),
        pytest.param(5, ("9",), 0, id="whose GPU becomes free first is not foreseen"),
    ],
)
def test_another_gpu_is_told_where_it_was_foreseen(shards: int, once_left: tuple[str, ...], told: int) -> None:
    planned, taken = (NodeAllocation("n1", Resources(0, 1, 0), "v100", (index,), shards) for index in (0, 1))
    before = snapshot([node(shards=10)], [job(1)])
    after = snapshot([node(shards=10)], [job(1, on=[taken])])
    assert len(device_mismatches([Target("1", (planned,), once_left=once_left)], before, after)) == told


def test_two_that_were_to_share_a_gpu_and_do_not_are_told() -> None:
    guest = Target("2", (share("n1", (0,)),), beside=("1",))
    host = job(1, on=[share("n1", (0,))])
    before = snapshot([node()], [host, job(2)])
    together = snapshot([node()], [host, job(2, on=[share("n1", (0,))])])
    assert device_mismatches([guest], before, together) == ()
    apart = snapshot([node()], [host, job(2, on=[share("n1", (1,))])])
    (found,) = device_mismatches([guest], before, apart)
    assert found.sentence == "runs on GPU 1 of n1; GPU 0 was planned, beside job 1"
