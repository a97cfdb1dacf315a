"""`synsched plan` as people see it."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from slurmsched.model import JobSpec, Operation, Reason, ReasonCode, Verb
from slurmsched.report.rounds import PlannedOperation, PlannedRound, plan_view

BEFORE = JobSpec((), 1, 4, 4, "v100", 12, 1000, 1)
AFTER = JobSpec(("n1",), 1, 4, 4, "v100", 20, 1000, 1)
NOTIFY = Operation(Verb.NOTIFY, "3", Reason(ReasonCode.PREPARE, {"lead": "1 min"}), None, "usr1")
REQUEUE = Operation(
    Verb.REQUEUE, "3", Reason(ReasonCode.NEWCOMER_FIRST, {"newcomer": "5", "why": "it is first"}), lead=60
)
RESHAPE = Operation(Verb.UPDATE, "5", Reason(ReasonCode.FIRST_IN_ORDER, {"order": "las"}), BEFORE, AFTER)
RELEASE = Operation(Verb.RELEASE, "5", Reason(ReasonCode.START, {"nodes": "n1", "gpus": 4, "cpus": 20}), gone=("3",))
WEIGH = Operation(Verb.WEIGH, "n1", Reason(ReasonCode.LEAN), 1, 20)


def planned(operation: Operation, permitted: bool = True) -> PlannedOperation:
    return PlannedOperation(
        operation.verb,
        operation.subject,
        operation.sentence,
        operation.reason,
        (f"do {operation.subject}",),
        operation.undo(),
        operation.gone,
        operation.lead,
        permitted,
    )


def plan(*operations: PlannedOperation, mode: str = "enforce", **other: object) -> PlannedRound:
    facts = {"starts": {}, "keeps": {}, "waits": {}, "order": (), "unmanaged": 0, **other}
    return PlannedRound(0.0, mode, "synergy", "las", tuple(operations), **facts)  # type: ignore[arg-type]  # one test's words


def lines(shown: PlannedRound, with_commands: bool = False) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=80, markup=False, highlight=False).print(plan_view(shown, with_commands))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        pytest.param(
            planned(NOTIFY),
            [
                "1 notify job 3 is told to write its checkpoint, 1 min before it is requeued",
                "         cannot be undone",
            ],
            id="a signal cannot be taken back",
        ),
        pytest.param(
            planned(REQUEUE),
            ["1 requeue job 3 gives way to job 5: it is first", "          1 min after the signal; undo: release"],
            id="a requeue waits for the checkpoint",
        ),
        pytest.param(
            planned(RELEASE),
            ["1 release job 5 starts on n1 with 4 GPUs, 20 CPUs", "          after job 3 left; undo: hold"],
            id="a start waits for who is in the way",
        ),
        pytest.param(
            planned(RESHAPE),
            [
                "1 reshape job 5 is next in las order and fits",
                "          undo: reshape to 4 GPUs, 12 CPUs per node on 1 node",
            ],
            id="a shape goes back to what stood",
        ),
        pytest.param(
            planned(WEIGH, permitted=False),
            [
                "1 weigh n1 is weighted so that Slurm fills nodes in the same order",
                "        not permitted: see 'synsched doctor'; undo: weigh 1",
            ],
            id="what we may not do is shown all the same",
        ),
    ],
)
def test_each_operation_tells_its_reason_its_conditions_and_its_undo(
    operation: PlannedOperation, said: list[str]
) -> None:
    assert lines(plan(operation))[2:] == said


def test_commands_are_shown_when_asked_for() -> None:
    assert "         $ do 3" not in lines(plan(planned(NOTIFY)))
    assert "         $ do 3" in lines(plan(planned(NOTIFY)), with_commands=True)


def test_nothing_to_do_is_said() -> None:
    assert lines(plan(unmanaged=2)) == [
        "synergy, las order, mode enforce: 0 stay, 0 start, 0 wait",
        "nothing has to change",
        "2 other jobs not managed, left alone",
    ]


def test_jobs_wait_in_their_order_and_those_outside_it_last() -> None:
    waits = {job: Reason(ReasonCode.DEPENDENCY, {"dependency": "1"}) for job in ("9", "4", "7")}
    assert [line.split()[0] for line in lines(plan(waits=waits, order=("7", "4")))[-3:]] == ["7", "4", "9"]


@pytest.mark.parametrize("mode", ["observe", "advise", "prioritize"])
def test_a_mode_that_does_less_says_so(mode: str) -> None:
    assert any(f"mode {mode}" in line for line in lines(plan(planned(RELEASE), mode=mode))[1:])


def test_copies_of_a_forked_job_show_their_steps() -> None:
    said = {"steps": 60, "left": 100, "job": "7", "part": "60%", "speed": "measured"}
    told = " ".join(" ".join(lines(plan(dispatched={"7_1": Reason(ReasonCode.DISPATCHED, said)}))).split())
    assert "COPY STEPS 7_1 does 60 of the 100 steps left of job 7: 60% of the measured speed" in told
