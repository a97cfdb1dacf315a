"""What is stored reads back equal, and what is not ours is refused in one line."""

from __future__ import annotations

import pytest

from slurmsched.model import (
    EncodingError,
    JobSpec,
    Operation,
    Reason,
    ReasonCode,
    Request,
    Snapshot,
    Verb,
    decode,
    encode,
)
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
