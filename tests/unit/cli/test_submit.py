"""`synsched submit`: what sbatch is given, and what never gets there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import pytest

from slurmsched.backends.slurm import submission
from slurmsched.model import CheckpointSignal, parse_hints
from tests.unit.cli.conftest import Site


def printed(site: Site, *arguments: str) -> list[str]:
    (line,) = site.lines("submit", "--print", *arguments, columns=300)
    return shlex.split(line)


@pytest.mark.parametrize(
    ("arguments", "comment", "rest"),
    [
        pytest.param(["job.sh"], "synsched:", ["job.sh"], id="no hint still opts in"),
        pytest.param(["--model", "bert", "job.sh"], "synsched:model=bert", ["job.sh"], id="one hint"),
        pytest.param(
            ["--model", "bert", "--ckpt", "usr1@60", "--", "--gres=gpu:4", "job.sh", "--lr", "0.1"],
            "synsched:model=bert,ckpt=usr1@60",
            ["--gres=gpu:4", "job.sh", "--lr", "0.1"],
            id="sbatch's options behind two dashes",
        ),
        pytest.param(
            ["--task", "image", "--mem=16G", "-p", "gpu", "job.sh", "--model", "mine"],
            "synsched:task=image",
            ["--mem=16G", "-p", "gpu", "job.sh", "--model", "mine"],
            id="sbatch's options among ours, and the script's own left alone",
        ),
        pytest.param(
            ["--fork", "50000", "--", "--array=0-3", "job.sh"],
            "synsched:fork=50000",
            ["--array=0-3", "job.sh"],
            id="copies of one job",
        ),
        pytest.param(
            ["--tune-memory", "--move", "no", "--comment", "my run", "job.sh"],
            "synsched:move=no,mem=tune my run",
            ["job.sh"],
            id="own words beside the hints",
        ),
    ],
)
def test_sbatch_is_given_the_hints_in_its_comment(
    site: Site, arguments: list[str], comment: str, rest: list[str]
) -> None:
    assert printed(site, *arguments) == ["sbatch", f"--comment={comment}", *rest]


def test_what_is_submitted_is_what_a_round_reads(site: Site) -> None:
    comment = printed(site, "--model", "bert", "--ckpt", "usr1@5m", "--duration", "2h", "x.sh")[1].removeprefix(
        "--comment="
    )
    hints = parse_hints(comment)
    assert (hints.model, hints.checkpoint, hints.lead, hints.duration) == ("bert", CheckpointSignal.USR1, 300, 7200)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--ckpt", "kill", "x.sh"], "hint ckpt='kill': expected usr1", id="a signal that is none"),
        pytest.param(["--duration", "soon", "x.sh"], "expected a time such as 90m or 2h", id="a time that is none"),
        pytest.param(["--model", "a b", "x.sh"], "a hint must not contain blanks", id="blanks in a hint"),
        pytest.param(
            ["--model", "a,held=hook", "x.sh"], "a hint must not contain commas", id="another hint smuggled in"
        ),
        pytest.param(["--comment", "synsched:model=x", "x.sh"], "not in --comment", id="hints in the comment"),
        pytest.param(["--model", "x" * 300, "x.sh"], "hint longer than 256 characters", id="too long"),
        pytest.param(["--model", "x"], "missing argument", id="no script"),
    ],
)
def test_a_wrong_hint_is_refused_before_sbatch_runs(
    site: Site, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    def never(command: Sequence[str], slurm_conf: str = "") -> int:
        raise AssertionError(command)

    monkeypatch.setattr(submission, "run", never)
    result = site.run("submit", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr


def test_sbatchs_exit_status_is_passed_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[str]] = []

    def refuses(command: Sequence[str], slurm_conf: str, told: Mapping[str, str]) -> int:
        seen.append((*command, slurm_conf, told["SYNSCHED_SPOOL"]))
        return 5

    site.configure('[cluster]\nslurm_conf = "/etc/slurm/other.conf"\n[reports]\nspool = "/shared/spool"\n')
    monkeypatch.setattr(submission, "run", refuses)
    assert site.run("submit", "job.sh").exit_code == 5
    assert seen == [("sbatch", "--comment=synsched:", "job.sh", "/etc/slurm/other.conf", "/shared/spool")]
