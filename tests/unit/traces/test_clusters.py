"""Clusters in a few words, and what is wrong with others."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.traces import TraceError
from slurmsched.traces.clusters import load_cluster


def test_a_few_words() -> None:
    nodes = load_cluster("v100:2x8:24:500G,k80:1x4").nodes
    assert [node.name for node in nodes] == ["v100-1", "v100-2", "k80-1"]
    assert (nodes[0].total.cpus, nodes[0].total.memory, len(nodes[0].gpus)) == (24, 512_000, 8)
    assert (nodes[2].total.cpus, nodes[2].total.memory, nodes[2].features) == (12, 256_000, {"k80"})


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        '[[nodes]]\ncount = 2\ngpus = 8\ngpu_type = "A100"\ncpus = 64\nmemory = "1T"\nfeatures = ["fast"]\n'
    )
    nodes = load_cluster(str(path)).nodes
    assert [node.name for node in nodes] == ["a100-1", "a100-2"]
    assert nodes[0].total.memory == 1024 * 1024
    assert nodes[0].features == {"a100", "fast"}


def test_openbs_list(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n")
    (node,) = load_cluster(str(path)).nodes
    assert (node.name, node.total.cpus, len(node.gpus), node.gpus[0].type) == ("n0", 64, 2, "p100")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("v100", r"'v100': write TYPE:NODESxGPUS\[:CPUS\[:MEMORY\]\], as in v100:4x8:24:500G"),
        ("v100:0x8", "expected 1 to 100000 nodes"),
        ("v100:1x99", "up to 64 GPUs"),
        ("lab.yaml/x", "expected a .toml or .csv file"),
        ("none.toml", "cannot read none.toml: No such file"),
    ],
)
def test_what_is_no_cluster_is_refused(said: str, expected: str) -> None:
    with pytest.raises(TraceError, match=expected):
        load_cluster(said)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[nodes]]\ngpus = 8\n", r"lab\.toml: nodes 1: gpu_type: expected a name such as v100"),
        ('[[nodes]]\ngpus = "8"\n', r"nodes 1: gpus: expected a whole number from 0 to 64"),
        ("[[nodes]]\ngpu = 8\n", r"nodes 1: gpu: expected one of count, cpus, features"),
        ('[[nodes]]\ngpus = 1\ngpu_type = "a"\ncpus = 4\nmemory = "much"\n', r"memory: expected a size such as 500G"),
        ("nodes = 3\n", r"nodes: expected \[\[nodes\]\] tables"),
        ("[[nodes\n", r"lab\.toml: "),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(text)
    with pytest.raises(TraceError, match=expected):
        load_cluster(str(path))


@given(some.text(alphabet="v100:x8,kG24 .-", max_size=24))
def test_any_words_are_a_cluster_or_refused(said: str) -> None:
    with contextlib.suppress(TraceError):
        assert load_cluster(said).nodes
