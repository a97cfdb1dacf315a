"""sbatch as it is run for people, and rehearsed for the doctor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.commands import CommandResult
from slurmsched.backends.slurm.errors import SubmissionRejectedError, UnsafeCommandError
from slurmsched.backends.slurm.submission import dry_run, run, submit


def test_nothing_but_sbatch_is_run() -> None:
    with pytest.raises(UnsafeCommandError):
        run(("rm", "-rf", "/"))


def test_a_rehearsal_queues_nothing_and_keeps_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    seen: dict[str, object] = {}

    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        seen.update(argv=list(argv), given=given, timeout=timeout, zone=env["TZ"], conf=env["SLURM_CONF"])
        return CommandResult(0, "", "sbatch: synsched: unknown hint\n")

    assert dry_run("synsched:x=1", "/etc/s.conf", 5.0, process) == "sbatch: synsched: unknown hint\n"
    assert seen == {
        "argv": ["sbatch", "--test-only", "--ntasks=1", "--time=1", "--wrap=true", "--comment=synsched:x=1"],
        "given": "",
        "timeout": 5.0,
        "zone": "Europe/Berlin",
        "conf": "/etc/s.conf",
    }


@pytest.mark.parametrize("error", [FileNotFoundError(), TimeoutError()])
def test_no_answer_is_told_in_one_line(error: OSError) -> None:
    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        raise error

    with pytest.raises(BackendError, match="sbatch"):
        dry_run("x", runner=process)


@pytest.mark.parametrize("printed", ["17\n", "17;mini\n"])
def test_a_submission_gives_the_jobs_number(printed: str) -> None:
    seen: list[tuple[Sequence[str], str]] = []

    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        seen.append((argv, given))
        return CommandResult(0, printed, "")

    assert submit(("--mem=1G",), "#!/bin/sh\ntrue\n", runner=process) == "17"
    assert seen == [(("sbatch", "--parsable", "--mem=1G"), "#!/bin/sh\ntrue\n")]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(
            CommandResult(1, "", "sbatch: error: Invalid\n  partition\n"), "error: Invalid partition", id="refused"
        ),
        pytest.param(CommandResult(0, "Submitted batch job 17", ""), "Submitted batch job 17", id="not a number"),
    ],
)
def test_a_refused_submission_says_why_in_one_line(answer: CommandResult, words: str) -> None:
    with pytest.raises(SubmissionRejectedError, match=words) as refused:
        submit((), "#!/bin/sh\n", runner=lambda *_: answer)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("error", [FileNotFoundError(), TimeoutError()])
def test_a_submission_without_an_answer_is_told_in_one_line(error: OSError) -> None:
    def process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        raise error

    with pytest.raises(BackendError, match="sbatch"):
        submit((), "", runner=process)
