"""A start names a node that never exists beside its own, and nothing else of a job ever shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.operation_commands import commands_for
from slurmsched.backends.slurm.placeholder import PLACEHOLDER, narrowing_partitions, without_placeholder
from slurmsched.backends.slurm.requests import DEFAULT_FORM, parse_request
from slurmsched.model import (
    Job,
    JobSpec,
    Node,
    NodeState,
    Operation,
    Partition,
    Reason,
    ReasonCode,
    Request,
    Resources,
    Result,
    SchedulerState,
    Verb,
)
from slurmsched.rounds.specs import equivalent, restore_placement, spec_of
from tests.unit.fake_slurm import FakeJob, FakeNode, FakeSlurm

WITH = f"PartitionName=gpu Default=YES MaxTime=UNLIMITED Nodes=n[1-2],{PLACEHOLDER} PriorityTier=1 State=UP\n"
WHY = Reason(ReasonCode.START)
START = JobSpec(("n1",), 1, 2, 2, None, 6, 1000, 1)
GANG = JobSpec(("n1", "n2"), 2, 16, 8, None, 24, 400_000, 16)
NARROWS = replace(DEFAULT_FORM, narrows=True)


@pytest.mark.parametrize(
    ("spec", "narrows", "named"),
    [
        pytest.param(START, True, f"n1,{PLACEHOLDER}", id="a start"),
        pytest.param(START, False, "n1", id="a start where slurm.conf has no placeholder"),
        pytest.param(GANG, True, f"n[1-2],{PLACEHOLDER}", id="a start on two nodes"),
        pytest.param(replace(START, max_nodes=2), True, "n1", id="it may have more nodes than are named"),
        pytest.param(replace(START, counts_nodes=False), True, "n1", id="its owner may have named no number of nodes"),
        pytest.param(replace(START, narrowed=False), True, "n1", id="its owner's own --nodelist is put back as it was"),
        pytest.param(replace(START, narrowed=True), False, f"n1,{PLACEHOLDER}", id="an undo returns to a narrowed one"),
        pytest.param(replace(START, nodes=(), narrowed=False), True, "", id="given back to Slurm, which places it"),
    ],
)
def test_a_start_alone_names_the_placeholder(spec: JobSpec, narrows: bool, named: str) -> None:
    form = NARROWS if narrows else DEFAULT_FORM
    [line] = commands_for(Operation(Verb.UPDATE, "7", WHY, None, spec), form).lines
    assert line.startswith(f"update JobId=7 ReqNodeList={named} ") or (not named and "ReqNodeList= " in line)


@pytest.mark.parametrize(
    ("shown", "pinned", "narrowed"),
    [
        pytest.param("(null)", "", False, id="no node"),
        pytest.param("n1", "n1", False, id="a node"),
        pytest.param(f"n[1-2],{PLACEHOLDER}", "n1 n2", True, id="nodes and the placeholder"),
        pytest.param(PLACEHOLDER, PLACEHOLDER, False, id="its owner asked for what never exists: it never starts"),
    ],
)
def test_the_placeholder_is_never_a_node_that_a_job_asks_for(shown: str, pinned: str, narrowed: bool) -> None:
    read = parse_request({"ReqNodeList": shown}, waiting=True)
    assert (read.pinned, read.narrowed) == (frozenset(pinned.split()), narrowed)


def partition(name: str, *nodes: str) -> Partition:
    return Partition(name, frozenset(nodes))


@pytest.mark.parametrize(
    ("release", "node", "expected"),
    [
        pytest.param("24.11.5", None, {"with"}, id="the partition that has it"),
        pytest.param("23.02.1", None, {"with"}, id="the oldest release that excludes what is not named"),
        pytest.param("22.05.8", None, set(), id="an older one would want both nodes"),
        pytest.param("", None, set(), id="a release that is not known"),
        pytest.param("26.05.0", NodeState.DOWN, {"with"}, id="a node that is down, where State=DOWN was written"),
        pytest.param("26.05.0", NodeState.UP, set(), id="somebody made a working node of it"),
    ],
)
def test_a_partition_narrows_where_nothing_can_start_on_the_placeholder(
    release: str, node: NodeState | None, expected: set[str]
) -> None:
    nodes = [] if node is None else [Node(PLACEHOLDER, (), Resources(0, 1, 1), Resources(), state=node)]
    partitions = (partition("with", "n1", PLACEHOLDER), partition("without", "n1"))
    narrowing = narrowing_partitions(partitions, nodes, release)
    assert narrowing == expected
    shown = without_placeholder({one.name: one for one in partitions}, narrowing)
    assert {name: one.narrows for name, one in shown.items()} == {"with": bool(expected), "without": False}
    assert {one.nodes for one in shown.values()} == {frozenset({"n1"})}


def connected(slurm: FakeSlurm) -> SlurmBackend:
    return SlurmBackend(Commands(5, runner=slurm), CommandSource(), lambda: 1000.0, lambda: "synsched")


def narrowed_cluster() -> tuple[FakeSlurm, SlurmBackend]:
    slurm = FakeSlurm([FakeJob(1), FakeJob(2)], [FakeNode("n1"), FakeNode("n2")])
    slurm.partitions = WITH
    return slurm, connected(slurm)


def start(job: Job) -> Operation:
    before = spec_of(job.current_request)
    return Operation(Verb.UPDATE, job.id, WHY, before, replace(before, nodes=("n1",), narrowed=None))


def test_a_round_sees_no_placeholder_and_its_start_is_read_back_as_done() -> None:
    slurm, backend = narrowed_cluster()
    seen = backend.observe()
    assert seen.partitions[0].nodes == {"n1", "n2"}
    assert [node.name for node in seen.nodes] == ["n1", "n2"]
    [outcome] = backend.execute([start(seen.jobs_by_id["1"])])
    assert outcome.result is Result.DONE
    assert slurm.jobs[1].fields["ReqNodeList"] == f"n1,{PLACEHOLDER}"
    now = backend.observe().jobs_by_id["1"].current_request
    assert (now.pinned, now.narrowed) == ({"n1"}, True)


@pytest.mark.parametrize("own", ["(null)", "n1", "n2"])
def test_giving_back_leaves_what_the_owner_named(own: str) -> None:
    slurm, backend = narrowed_cluster()
    slurm.jobs[1].fields["ReqNodeList"] = own
    first = backend.observe().jobs_by_id["1"]
    backend.execute([start(first)])
    assert PLACEHOLDER in slurm.jobs[1].fields["ReqNodeList"]
    held = backend.observe().jobs_by_id["1"]
    state = SchedulerState(original_requests={"1": first.original_request})
    [outcome] = backend.execute([op for op in restore_placement(held, state) if op.verb is Verb.UPDATE])
    assert outcome.result is Result.DONE
    assert slurm.jobs[1].fields["ReqNodeList"] == ("" if own == "(null)" else own)


def test_an_undo_returns_to_what_the_job_had_before() -> None:
    slurm, backend = narrowed_cluster()
    operation = start(backend.observe().jobs_by_id["1"])
    backend.execute([operation])
    undo = operation.undo()
    assert undo is not None
    [outcome] = backend.execute([undo])
    assert (outcome.result, slurm.jobs[1].fields["ReqNodeList"]) == (Result.DONE, "")


def test_where_the_settings_forbid_it_the_placeholder_is_read_and_not_named() -> None:
    slurm, _ = narrowed_cluster()
    backend = SlurmBackend(Commands(5, runner=slurm), CommandSource(), lambda: 1000.0, narrows=False)
    seen = backend.observe()
    assert seen.partitions[0].nodes == {"n1", "n2"}
    backend.execute([start(seen.jobs_by_id["1"])])
    assert slurm.jobs[1].fields["ReqNodeList"] == "n1"


def test_without_the_placeholder_in_its_partition_nothing_is_different() -> None:
    slurm = FakeSlurm([FakeJob(1)], [FakeNode("n1")])
    backend = connected(slurm)
    backend.execute([start(backend.observe().jobs_by_id["1"])])
    assert slurm.jobs[1].fields["ReqNodeList"] == "n1"


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        pytest.param(True, None, True, id="a start, whether it is narrowed or not"),
        pytest.param(False, None, True, id="a start that was not narrowed"),
        pytest.param(True, True, True, id="narrowed both"),
        pytest.param(True, False, False, id="an owner's own --nodelist is not what a start asked for"),
    ],
)
def test_a_narrowed_request_is_not_its_owners(first: bool | None, second: bool | None, alike: bool) -> None:
    assert equivalent(replace(START, narrowed=first), replace(START, narrowed=second)) is alike
    assert equivalent(replace(START, narrowed=second), replace(START, narrowed=first)) is alike


def test_what_was_stored_before_is_read_as_it_was() -> None:
    assert spec_of(Request(pinned=frozenset({"n1"}))).narrowed is False
    assert START.narrowed is None
