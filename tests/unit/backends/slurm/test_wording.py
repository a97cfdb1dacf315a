"""Operations in Slurm's words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import UnsafeCommandError
from slurmsched.backends.slurm.operation_commands import commands_for
from slurmsched.backends.slurm.requests import DEFAULT_FORM, RequestForm
from slurmsched.model import JobSpec, Operation, OperationValue, Reason, ReasonCode, Verb
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
        (Verb.NOTIFY, "usr1", ["scancel --signal=USR1 --full 7"]),
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
        "update JobId=7 ReqNodeList=n1 NumNodes=1-1 TresPerNode=gres/gpu:v100:2 NumTasks=1 NumCPUs=6 CPUsPerTask=6"
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
            {"ReqNodeList": "n[1-2]", "NumCPUs": "48", "CPUsPerTask": "3", "MinCPUsNode": "24", "TasksPerNode": "8"},
            id="a gang's CPUs are counted for the whole job, its tasks per node",
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
            {"CpusPerTres": "", "MemPerTres": "", "MinMemoryNode": "1000", "NumCPUs": "6"},
            id="CPUs and memory per GPU are cleared, as they would count instead",
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


def test_a_job_that_never_named_memory_keeps_slurms_default() -> None:
    assert "MinMemoryNode" not in fields(replace(ONE, memory=0))


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
