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


SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1 --comment="lost"
#SBATCH --comment="Synsched:model=bert,CKPT=usr1@60 night run"  # mine

#SBATCH --time=60
train
#SBATCH --comment=late
"""


@pytest.mark.parametrize(
    ("arguments", "comment", "rest"),
    [
        pytest.param([], "synsched:model=bert,CKPT=usr1@60 night run", [], id="it stays as it is"),
        pytest.param(
            ["--ckpt", "int", "--move", "no"],
            "synsched:model=bert,ckpt=int,move=no night run",
            [],
            id="an option replaces its hint, and no other",
        ),
        pytest.param(["--comment", "again"], "synsched:model=bert,CKPT=usr1@60 again", [], id="words, not hints"),
        pytest.param(
            ["--move", "no", "--", "--comment=synsched:task=image by hand", "-N2", "--mem", "4G"],
            "synsched:task=image,move=no by hand",
            ["-N2", "--mem", "4G"],
            id="the command line's comes before the script's, as for sbatch",
        ),
        pytest.param(
            ["--", "--comment", "x", "-p", "gpu", "--requeue", "-H"],
            "synsched: x",
            ["-p", "gpu", "--requeue", "-H"],
            id="a comment without hints",
        ),
    ],
)
def test_hints_and_words_of_the_script_are_kept(
    site: Site, arguments: list[str], comment: str, rest: list[str]
) -> None:
    script = site.folder / "train.sh"
    script.write_text(SCRIPT)
    assert printed(site, *arguments, str(script)) == ["sbatch", f"--comment={comment}", *rest, str(script)]


def test_a_comment_of_the_environment_is_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_COMMENT", "synsched:task=speech")
    assert printed(site, "--move", "no", "x.sh")[1] == "--comment=synsched:task=speech,move=no"


@pytest.mark.parametrize("text", ['#SBATCH --comment="open\n', "\0\udcff", "#SBATCH --comment\n", ""])
def test_a_script_that_cannot_be_read_is_left_to_sbatch(site: Site, text: str) -> None:
    script = site.folder / "train.sh"
    script.write_text(text, errors="surrogateescape")
    assert printed(site, "--move", "no", str(script))[-1] == str(script)
    assert printed(site, "--move", "no", str(site.folder))[1] == "--comment=synsched:move=no"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--model", "ResNet50"], "", id="a known model"),
        pytest.param(["--model", "resnet5"], "model 'resnet5' has no profile: did you mean 'resnet50'?", id="nearly"),
        pytest.param(["--model", "zzz"], "model 'zzz' has no profile: --task says of which kind it is", id="unknown"),
        pytest.param(["--model", "zzz", "--task", "image"], "", id="an unknown model of a known kind"),
        pytest.param(["--task", "vision"], "task 'vision' is unknown: known are image, speech, language", id="task"),
    ],
)
def test_a_model_or_task_without_a_profile_is_told_and_submitted(
    site: Site, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(submission, "run", lambda *_: 0)
    result = site.run("submit", *arguments, "job.sh")
    assert (result.exit_code, result.stderr) == (0, f"synsched: {said}\n" if said else "")


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
        pytest.param(
            ["--duration", "soon", "x.sh"], "expected a time such as 90m, 2h or 2:00:00", id="a time that is none"
        ),
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
