"""What is stored reads back equal, and what is not ours is refused in one line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slurmsched.model import (
    ClusterOverview,
    ClusterOverviews,
    EncodingError,
    Job,
    JobSpec,
    ListEncoder,
    Node,
    NodeState,
    NodeUsage,
    Operation,
    Reason,
    ReasonCode,
    Request,
    Snapshot,
    Verb,
    cluster_overview,
    decode,
    encode,
    encode_with,
)
from slurmsched.rounds.fragmentation import with_fragments
from tests.builders import job, node, share, snapshot

SHAPE = JobSpec(("n1", "n2"), 2, 16, 8, "v100", 24, 1000, 16)


def test_a_snapshot_reads_back_equal() -> None:
    seen = snapshot([node(), node("n2", gpu_type="k80")], [job(1, on=[share()]), job("2_3", 2, hint="model=bert")])
    assert decode(Snapshot, encode(seen)) == seen


@pytest.mark.parametrize("value", [None, 7, "text", SHAPE], ids=["nothing", "a number", "text", "a shape"])
def test_an_operation_reads_back_equal_whatever_its_value(value: int | str | JobSpec | None) -> None:
    operation = Operation(
        Verb.UPDATE, "12_3", Reason(ReasonCode.START, {"gpus": 2, "x": 0.5, "nodes": "n1"}), None, value
    )
    assert decode(Operation, encode(operation)) == operation


def test_equal_values_give_equal_text_whatever_the_order_of_their_sets() -> None:
    one, other = Request(pinned=frozenset(["a", "b", "c"])), Request(pinned=frozenset(["c", "b", "a"]))
    assert encode(one) == encode(other)


@pytest.mark.parametrize("text", ["", "[]", '{"time": "soon"}', "null", '{"verb": "reboot"}'])
def test_text_that_is_not_ours_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(EncodingError, match="cannot read a stored Operation") as raised:
        decode(Operation, text)
    assert "\n" not in str(raised.value)


def test_what_was_in_the_last_list_reads_as_if_each_was_encoded_anew() -> None:
    encoder, overviews, nodes = ListEncoder(), ClusterOverviews(), [node(f"n{number}") for number in range(4)]
    down = node("n2", state=NodeState.DOWN, state_text='"DOWN"\n')
    for now in (nodes, nodes, [nodes[0], nodes[0], down], [], [nodes[3], node("n1", busy=[1, 2])], nodes):
        seen = snapshot(now, [job(1, on=[share()])])
        overview = with_fragments(overviews.of(seen), [(Request(gpus=2), 3)])
        assert overview == with_fragments(cluster_overview(seen), [(Request(gpus=2), 3)])
        for told in (overview, cluster_overview(seen)):
            text = encode_with(told, {"nodes": encoder.encode(told.nodes)})
            assert text == encode(told)
            assert decode(ClusterOverview, text) == told


def test_the_use_of_a_node_is_the_same_object_as_long_as_the_node_and_its_jobs_are() -> None:
    overviews, nodes = ClusterOverviews(), [node("n1"), node("n2")]

    def look(*jobs: Job, nodes: Sequence[Node] = nodes) -> tuple[NodeUsage, ...]:
        return overviews.of(Snapshot(0.0, tuple(nodes), jobs)).nodes

    idle = look()
    one, two = look(job(1, on=[share("n1", [0])]))
    assert one is not idle[0]
    assert [gpu.jobs for gpu in one.gpus[:2]] == [("1",), ()]
    assert two is idle[1]
    assert look(job(1, on=[share("n1", [0])]))[0] is one
    moved = look(job(1, on=[share("n1", [1])]))[0]
    assert [gpu.jobs for gpu in moved.gpus[:2]] == [(), ("1",)]
    assert look(nodes=[nodes[0], node("n2", state=NodeState.DOWN)])[1].state is NodeState.DOWN
    assert look()[1].state is NodeState.UP


def test_fields_that_have_other_keys_have_them_with_given_texts_too() -> None:
    assert encode_with(job(1, on=[share()]), {}) == encode(job(1, on=[share()]))
