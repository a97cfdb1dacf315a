"""sbatch as it is run for people, and rehearsed for the doctor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.commands import Answer
from slurmsched.backends.slurm.errors import RejectedError, UnsafeError
from slurmsched.backends.slurm.submitting import rehearse, run, submit


def test_nothing_but_sbatch_is_run() -> None:
    with pytest.raises(UnsafeError):
        run(("rm", "-rf", "/"))


def test_a_rehearsal_queues_nothing_and_keeps_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    seen: dict[str, object] = {}

    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
        seen.update(argv=list(argv), given=given, timeout=timeout, zone=env["TZ"], conf=env["SLURM_CONF"])
        return Answer(0, "", "sbatch: synsched: unknown hint\n")

    assert rehearse("synsched:x=1", "/etc/s.conf", 5.0, process) == "sbatch: synsched: unknown hint\n"
    assert seen == {
        "argv": ["sbatch", "--test-only", "--ntasks=1", "--wrap=true", "--comment=synsched:x=1"],
        "given": "",
        "timeout": 5.0,
        "zone": "Europe/Berlin",
        "conf": "/etc/s.conf",
    }


@pytest.mark.parametrize("error", [FileNotFoundError(), TimeoutError()])
def test_no_answer_is_told_in_one_line(error: OSError) -> None:
    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
        raise error

    with pytest.raises(BackendError, match="sbatch"):
        rehearse("x", process=process)


@pytest.mark.parametrize("printed", ["17\n", "17;mini\n"])
def test_a_submission_gives_the_jobs_number(printed: str) -> None:
    seen: list[tuple[Sequence[str], str]] = []

    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
        seen.append((argv, given))
        return Answer(0, printed, "")

    assert submit(("--mem=1G",), "#!/bin/sh\ntrue\n", process=process) == "17"
    assert seen == [(("sbatch", "--parsable", "--mem=1G"), "#!/bin/sh\ntrue\n")]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(Answer(1, "", "sbatch: error: Invalid\n  partition\n"), "error: Invalid partition", id="refused"),
        pytest.param(Answer(0, "Submitted batch job 17", ""), "Submitted batch job 17", id="not a number"),
    ],
)
def test_a_refused_submission_says_why_in_one_line(answer: Answer, words: str) -> None:
    with pytest.raises(RejectedError, match=words) as refused:
        submit((), "#!/bin/sh\n", process=lambda *_: answer)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("error", [FileNotFoundError(), TimeoutError()])
def test_a_submission_without_an_answer_is_told_in_one_line(error: OSError) -> None:
    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
        raise error

    with pytest.raises(BackendError, match="sbatch"):
        submit((), "", process=process)
