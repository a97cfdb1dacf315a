"""Operations in Slurm's words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import UnsafeCommandError
from slurmsched.backends.slurm.executor import matches_spec
from slurmsched.backends.slurm.operation_commands import commands_for
from slurmsched.backends.slurm.requests import DEFAULT_FORM, RequestForm
from slurmsched.model import JobSpec, Operation, OperationValue, Reason, ReasonCode, Request, Verb
from tests.unit.fake_slurm import FakeSlurm

WHY = Reason(ReasonCode.START)
ONE = JobSpec(("n1",), 1, 2, 2, "v100", 6, 1000, 1)
GANG = JobSpec(("n1", "n2"), 2, 16, 8, "v100", 24, 400_000, 16)


def lines(
    verb: Verb,
    after: OperationValue = None,
    before: OperationValue = None,
    form: RequestForm = DEFAULT_FORM,
    subject: str = "7",
) -> list[str]:
    wording = commands_for(Operation(verb, subject, WHY, before, after), form)
    return [*wording.lines, *(" ".join(argv) for argv in wording.commands)]


@pytest.mark.parametrize(
    ("verb", "after", "expected"),
    [
        (Verb.HOLD, "admin", ["hold 7"]),
        (Verb.RELEASE, "none", ["release 7"]),
        (Verb.REQUEUE, "requeued", ["requeuehold Incomplete 7"]),
        (Verb.NOTIFY, "usr1", ["scancel --ctld --signal=USR1 --full 7"]),
        (Verb.PRIORITIZE, -50, ["update JobId=7 Nice=-50"]),
        (Verb.NOTE, "synsched: waits", ["scontrol update JobId=7 AdminComment=synsched: waits"]),
    ],
)
def test_an_operation_on_a_job_is_one_command(verb: Verb, after: OperationValue, expected: list[str]) -> None:
    assert lines(verb, after) == expected


def test_a_requeued_job_is_let_go_at_once_and_no_other_jobs_begin_time_is_touched() -> None:
    assert lines(Verb.RELEASE, form=replace(DEFAULT_FORM, requeued=True)) == [
        "update JobId=7 StartTime=now",
        "release 7",
    ]


def test_cpus_change_together() -> None:
    [line] = lines(Verb.UPDATE, ONE)
    assert line == (
        "update JobId=7 ReqNodeList=n1 NumNodes=1-1 TresPerNode=gres/gpu:v100:2 NumCPUs=6 CPUsPerTask=6"
        " MinCPUsNode=6 MinMemoryNode=1000"
    )


def fields(shape: JobSpec, form: RequestForm = DEFAULT_FORM, before: JobSpec | None = None) -> dict[str, str]:
    words = " ".join(lines(Verb.UPDATE, shape, before, form)).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.mark.parametrize(
    ("shape", "form", "expected"),
    [
        pytest.param(
            GANG,
            replace(DEFAULT_FORM, tasks_per_node=True),
            {"ReqNodeList": "n[1-2]", "NumCPUs": "48", "CPUsPerTask": "3", "MinCPUsNode": "24"},
            id="a gang's CPUs are counted for the whole job",
        ),
        pytest.param(
            replace(ONE, nodes=()), DEFAULT_FORM, {"ReqNodeList": "", "NumNodes": "1-1"}, id="no nodes clears the pin"
        ),
        pytest.param(
            replace(ONE, nodes=(), max_nodes=3, gpus_per_node=None),
            RequestForm(per_job=True),
            {"NumNodes": "1-3", "MinCPUsNode": "6", "CPUsPerTask": "6"},
            id="an open number of nodes",
        ),
        pytest.param(
            replace(GANG, gpus=4, gpus_per_node=None, tasks=4, cpus=8),
            RequestForm(per_job=True),
            {"NumCPUs": "16", "CPUsPerTask": "4", "MinCPUsNode": "4"},
            id="an uneven split asks for no more CPUs per node than one task needs",
        ),
        pytest.param(
            ONE,
            RequestForm(per_job=True, cpus_per_gpu=True, memory_per_gpu=True),
            {"ReqNodeList": "n1", "NumNodes": "1-1"},
            id="CPUs and memory per GPU stay as asked",
        ),
        pytest.param(
            replace(ONE, gpus_per_node=None),
            DEFAULT_FORM,
            {"TresPerNode": "gres/gpu:v100:2"},
            id="an even split is said",
        ),
    ],
)
def test_a_shape_keeps_to_the_form_of_the_request(shape: JobSpec, form: RequestForm, expected: dict[str, str]) -> None:
    assert expected.items() <= fields(shape, form).items()


@pytest.mark.parametrize(
    ("sbatch", "after", "before", "form", "amounts"),
    [
        pytest.param(
            "--gpus=1 --mem-per-gpu=10G",
            replace(ONE, gpus=1, gpus_per_node=1, gpu_type=None, cpus=3, cpus_per_task=3, keeps_memory=True),
            {"cpus": 1, "cpus_per_task": 1},
            RequestForm(per_job=True, memory_per_gpu=True),
            "NumCPUs=3 CPUsPerTask=3 MinCPUsNode=3",
            id="--mem-per-gpu: CPUs may change, memory not",
        ),
        pytest.param(
            "--gpus=2 --mem-per-cpu=2G -c2",
            replace(ONE, gpu_type=None, cpus=4, cpus_per_task=4),
            {"cpus": 2, "cpus_per_task": 2},
            RequestForm(per_job=True, memory_per_cpu=True),
            "NumCPUs=4 CPUsPerTask=4 MinCPUsNode=4",
            id="--mem-per-cpu: memory comes with the CPUs",
        ),
        pytest.param(
            "--gpus=1 --mem=0",
            replace(ONE, gpu_type=None, cpus=1, cpus_per_task=1, keeps_memory=True),
            {},
            RequestForm(per_job=True, whole_memory=True),
            "",
            id="--mem=0: all memory of each node, never an amount",
        ),
        pytest.param(
            "--gpus=2 --cpus-per-gpu=2 --mem=8G",
            replace(ONE, gpu_type=None, cpus=4, cpus_per_task=4, keeps_cpus=True, memory=8192),
            {"cpus": 6, "cpus_per_task": 6},
            RequestForm(per_job=True, cpus_per_gpu=True),
            "MinMemoryNode=8192",
            id="--cpus-per-gpu: CPUs never change",
        ),
        pytest.param(
            "--gpus=2 -n2 -c2 --mem=8G",
            replace(ONE, gpu_type=None, cpus=4, tasks=2, cpus_per_task=2, memory=8192),
            {},
            RequestForm(per_job=True),
            "NumTasks=2 MinMemoryNode=8192",
            id="CPUs as asked are not touched",
        ),
        pytest.param(
            "--gpus=5 -n5 --mem=8G",
            JobSpec(("n1", "n2"), 2, 5, None, None, 5, 8192, 5, cpus_per_task=2),
            {"cpus": 3, "cpus_per_task": 1},
            RequestForm(per_job=True),
            "NumTasks=5 NumCPUs=10 CPUsPerTask=2 MinCPUsNode=2 MinMemoryNode=8192",
            id="tasks that do not divide over the nodes keep all their CPUs",
        ),
        pytest.param(
            "--gpus=5 -n5 --mem=8G",
            replace(ONE, gpus=5, gpus_per_node=5, gpu_type=None, cpus=5, tasks=5, cpus_per_task=1, memory=8192),
            {"cpus": 4},
            RequestForm(per_job=True),
            "NumTasks=5 NumCPUs=5 CPUsPerTask=1 MinCPUsNode=5 MinMemoryNode=8192",
            id="four CPUs that were left for five tasks are put right",
        ),
        pytest.param(
            "--gpus-per-task=1 -n 6 --mem=8G",
            JobSpec(("n1", "n2"), 2, 6, None, None, 3, 8192, 6, cpus_per_task=1),
            {},
            RequestForm(per_task=True),
            "NumTasks=6 MinMemoryNode=8192",
            id="GPUs per task over two nodes, 4 and 2",
        ),
        pytest.param(
            "--gpus-per-task=1 -n 6 --mem=8G",
            JobSpec(("n1", "n2"), 2, 6, 3, None, 6, 8192, 6, cpus_per_task=2),
            {"cpus": 3, "cpus_per_task": 1},
            RequestForm(per_task=True),
            "NumTasks=6 NumCPUs=12 CPUsPerTask=2 MinCPUsNode=2 MinMemoryNode=8192",
            id="GPUs per task planned as 3 and 3: Slurm may still make it 4 and 2",
        ),
        pytest.param(
            "--gpus=2 --ntasks=2 --ntasks-per-gpu=1 --mem=8G",
            replace(ONE, gpu_type=None, cpus=2, tasks=2, cpus_per_task=1, memory=8192),
            {},
            RequestForm(per_job=True),
            "NumTasks=2 MinMemoryNode=8192",
            id="tasks per GPU: Slurm 26.05 forgets their number unless it is repeated",
        ),
        pytest.param(
            "-N2 --gpus=4 -n4 --mem=8G",
            JobSpec(("n1", "n2"), 2, 4, 2, None, 2, 8192, 4, cpus_per_task=1),
            {},
            RequestForm(per_job=True),
            "TresPerNode=gres/gpu:2 NumTasks=4 NumCPUs=4 CPUsPerTask=1 MinCPUsNode=2 MinMemoryNode=8192",
            id="an even split over nodes is said, or Slurm makes it 3 and 1",
        ),
        pytest.param(
            "-N2 --gpus=4 -n4 --mem=8G",
            JobSpec(("n1", "n2"), 2, 4, None, None, 2, 8192, 4, cpus_per_task=1),
            {},
            RequestForm(per_job=True, per_node=True),
            "TresPerNode= NumTasks=4 MinMemoryNode=8192",
            id="and taken back where it is left to Slurm again",
        ),
        pytest.param(
            "-N2 --gpus=4 --ntasks-per-node=2 --mem=8G",
            JobSpec(("n1", "n2"), 2, 4, 2, None, 2, 8192, 4, cpus_per_task=1),
            {},
            RequestForm(per_job=True, tasks_per_node=True),
            "TresPerNode=gres/gpu:2 MinMemoryNode=8192",
            id="tasks per node are Slurm's to count",
        ),
    ],
)
def test_an_update_changes_only_what_the_script_will_see_changed(
    sbatch: str, after: JobSpec, before: dict[str, int], form: RequestForm, amounts: str
) -> None:
    old = replace(after, nodes=(), **before)  # type: ignore[arg-type] numbers only
    [line] = lines(Verb.UPDATE, after, old, form)
    assert line.split()[4:] == amounts.split(), sbatch


def test_a_job_that_never_named_memory_keeps_slurms_default() -> None:
    assert "MinMemoryNode" not in fields(replace(ONE, memory=0))


HALF = JobSpec((), 1, 0, None, None, 1, 100, 1, cpus_per_task=1, shards=5)


@pytest.mark.parametrize(
    ("before", "after", "form", "expected"),
    [
        pytest.param(HALF, replace(HALF, shards=10), RequestForm(), ["TresPerNode=gres/shard:10"], id="all of a GPU"),
        pytest.param(replace(HALF, shards=10), HALF, RequestForm(), ["TresPerNode=gres/shard:5"], id="half again"),
        pytest.param(HALF, HALF, RequestForm(), [], id="nothing changes"),
        pytest.param(replace(HALF, shards=0), HALF, RequestForm(), [], id="stored before shards were known"),
        pytest.param(
            HALF,
            replace(HALF, shards=10, gpu_type="v100"),
            RequestForm(),
            ["TresPerNode=gres/shard:v100:10"],
            id="typed",
        ),
        pytest.param(
            HALF,
            replace(HALF, shards=20, node_count=2, tasks=2),
            RequestForm(),
            ["TresPerNode=gres/shard:10"],
            id="on each of two nodes",
        ),
        pytest.param(
            HALF,
            replace(HALF, shards=10),
            RequestForm(shards_per_task=True),
            ["TresPerTask=gres/shard:10"],
            id="--tres-per-task",
        ),
    ],
)
def test_shards_change_in_the_form_of_the_request(
    before: JobSpec, after: JobSpec, form: RequestForm, expected: list[str]
) -> None:
    [line] = lines(Verb.UPDATE, replace(after, nodes=("n1",)), before, form)
    assert [word for word in line.split() if "shard" in word] == expected


def test_shards_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UnsafeCommandError):
        lines(Verb.UPDATE, replace(HALF, nodes=("n1",), tasks=3, shards=10), HALF, RequestForm(shards_per_task=True))


@pytest.mark.parametrize(("has", "done"), [(10, True), (5, False)])
def test_an_update_of_shards_is_read_back(has: int, done: bool) -> None:
    now = Request(shards=has, cpus=1, memory=100, pinned=frozenset({"n1"}))
    assert matches_spec(replace(HALF, nodes=("n1",), shards=10), now) is done


@pytest.mark.parametrize(
    ("counts", "nodes", "tasks", "done"),
    [
        pytest.param(False, 1, 1, True, id="Slurm shows one node until the job starts"),
        pytest.param(False, 2, 1, True, id="and two once it ran"),
        pytest.param(True, 2, 2, True, id="a range: two nodes, a task on each"),
        pytest.param(True, 1, 1, False, id="a range that did not change"),
    ],
)
def test_slurm_counts_nodes_that_it_was_not_told(counts: bool, nodes: int, tasks: int, done: bool) -> None:
    spec = replace(GANG, gpus_per_node=None, tasks=1, counts_nodes=counts)
    now = Request(gpus=16, gpu_type="v100", nodes=nodes, tasks=tasks, cpus=48, memory=400_000)
    assert matches_spec(spec, replace(now, pinned=frozenset(GANG.nodes))) is done


@pytest.mark.parametrize(
    ("shape", "nodes", "tasks"),
    [
        pytest.param(replace(GANG, tasks=1, counts_nodes=False), None, None, id="Slurm counts nodes and tasks"),
        pytest.param(replace(ONE, nodes=(), counts_nodes=False), None, None, id="and again once it is let go"),
        pytest.param(replace(GANG, tasks=4, counts_nodes=False), None, "4", id="the owner named the tasks"),
        pytest.param(replace(GANG, tasks=1), "2-2", None, id="of a range of nodes, a task on each"),
        pytest.param(replace(ONE, nodes=(), max_nodes=3), "1-3", None, id="and its range again"),
    ],
)
def test_what_the_owner_left_to_slurm_is_not_named(shape: JobSpec, nodes: str | None, tasks: str | None) -> None:
    """Seen on 22.05, 24.11 and 26.05: `ReqNodeList=a,b` makes two nodes and tasks of a `--gpus=16` without `-N`."""
    said = fields(shape, RequestForm(per_job=True), replace(shape, cpus=99))
    assert (said.get("NumNodes"), said.get("NumTasks")) == (nodes, tasks)
    assert said["CPUsPerTask"] == str(shape.cpus * shape.node_count // max(shape.tasks, shape.node_count))


def test_gpus_in_total_are_left_alone_unless_they_change() -> None:
    form, other = RequestForm(per_job=True), replace(ONE, gpu_type="k80")
    assert not {"TresPerNode", "TresPerJob"} & set(fields(ONE, form, ONE))
    assert fields(other, form, ONE)["TresPerJob"] == "gres/gpu:k80:2"


def test_gpus_per_task_change_in_a_line_of_their_own() -> None:
    shape = replace(ONE, gpu_type="k80", tasks=2)
    first, second = lines(Verb.UPDATE, shape, ONE, RequestForm(per_task=True))
    assert first == "update JobId=7 TresPerTask=gres/gpu:k80:1"
    assert "TresPer" not in second


HOSTILE = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["1 Priority=9", "1\nhold 2", "1,2", "7;x", "'7'", "-7", "", "n1 Weight=1", "$(x)", "#", "7_"]),
)


@given(HOSTILE)
def test_nothing_but_a_job_id_gets_into_a_command(subject: str) -> None:
    for verb, after in [(Verb.HOLD, None), (Verb.UPDATE, ONE), (Verb.NOTIFY, "usr1"), (Verb.NOTE, "synsched: x")]:
        try:
            wording = commands_for(Operation(verb, subject, WHY, None, after), DEFAULT_FORM)
        except UnsafeCommandError:
            continue
        assert subject.replace("_", "").replace("+", "").isdecimal()
        assert all(line.isascii() and line.isprintable() for line in wording.lines)


@given(name=HOSTILE, kind=HOSTILE)
def test_a_shape_with_a_hostile_name_is_refused_or_harmless(name: str, kind: str) -> None:
    slurm = FakeSlurm()
    for shape in (replace(ONE, nodes=(name,)), replace(ONE, gpu_type=kind or None)):
        try:
            wording = commands_for(Operation(Verb.UPDATE, "7", WHY, None, shape), DEFAULT_FORM)
        except UnsafeCommandError:
            continue
        Commands(5, runner=slurm).change_many(wording.lines)
        assert len(wording.lines) == 1
        keys = [word.partition("=")[0] for word in wording.lines[0].split()]
        assert keys == [word.partition("=")[0] for word in lines(Verb.UPDATE, ONE)[0].split()]


@pytest.mark.parametrize(
    ("verb", "after"),
    [
        pytest.param(Verb.NOTE, 'a "quoted" note', id="a quote"),
        pytest.param(Verb.NOTE, "two\nlines", id="a line break"),
        pytest.param(Verb.NOTIFY, "kill", id="a signal that is no checkpoint signal"),
        pytest.param(Verb.NOTIFY, "none", id="no signal"),
        pytest.param(Verb.PRIORITIZE, "5", id="a nice that is text"),
        pytest.param(Verb.UPDATE, "n1", id="no shape"),
        pytest.param(Verb.UPDATE, replace(ONE, cpus=0), id="no CPU"),
        pytest.param(Verb.UPDATE, replace(GANG, gpus=3, gpus_per_node=None), id="GPUs that do not divide over nodes"),
    ],
)
def test_what_makes_no_sense_is_refused(verb: Verb, after: Any) -> None:
    with pytest.raises(UnsafeCommandError):
        lines(verb, after)
