"""The wrapper for programs that are not Python: the signal in, the "checkpointed" file out."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from slurmsched.jobside.report import Report, Stage, decode_report
from slurmsched.template_files import render
from tests.unit.jobside.scripts import until

PROGRAM = """#!/bin/bash
# Counts to the number it is given, slowly; its checkpoint is where it is.
step=$(cat "$SYNSCHED_STEPS" 2> /dev/null || echo 0)
trap 'echo "$step" > "$SYNSCHED_STEPS"; : > "$SYNSCHED_CHECKPOINTED"' USR1
while [ "$step" -lt "$1" ]; do
    sleep 0.05 & wait $!
    step=$((step + 1))
    echo "$step" > "$SYNSCHED_STEPS.new"; mv "$SYNSCHED_STEPS.new" "$SYNSCHED_STEPS"
done
exit 3
"""


class Wrapped:
    """A program in the wrapper, as job 7_2 on a node."""

    def __init__(self, folder: Path, *, spool: bool = True, patience: int = 300) -> None:
        self.folder = folder
        (folder / "spool").mkdir()
        for name, text in (("movable.sh", render("movable.sh", patience=patience)), ("program", PROGRAM)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        told = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURMD_NODENAME": "n1"}
        self.environment = {"PATH": os.environ["PATH"], **told, "SLURM_CPUS_ON_NODE": "3"}
        if spool:
            self.environment["SYNSCHED_SPOOL"] = str(folder / "spool")

    def start(self, steps: int, run: int = 0) -> subprocess.Popen[bytes]:
        told = {**self.environment, "SLURM_RESTART_COUNT": str(run)}
        argv = ["./movable.sh", "./program", str(steps)]
        return subprocess.Popen(argv, cwd=self.folder, env=told, start_new_session=True)

    @property
    def file(self) -> Path:
        return self.folder / "spool" / str(os.getuid()) / "7_2.json"

    def report(self) -> Report | None:
        return decode_report(self.file.read_bytes()) if self.file.exists() else None

    def says(self, stage: Stage) -> bool:
        report = self.report()
        return report is not None and report.stage is stage


def test_a_program_is_signalled_saved_requeued_and_goes_on(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path)
    process = wrapped.start(1000)
    until(lambda: wrapped.says(Stage.RUNNING) and (tmp_path / "steps-7_2").exists())
    os.killpg(process.pid, signal.SIGUSR1)
    until(lambda: wrapped.says(Stage.CHECKPOINTED))
    report = wrapped.report()
    assert report is not None
    assert (report.job, report.run, report.node, report.cpus) == ("7_2", 0, "n1", 3)
    assert report.steps >= 1
    process.terminate()
    assert process.wait(timeout=20) != 0
    left = int((tmp_path / "steps-7_2").read_text())
    process = wrapped.start(left + 3, run=1)
    assert process.wait(timeout=20) == 3, "the program's own exit status"
    assert not wrapped.file.exists()
    assert int((tmp_path / "steps-7_2").read_text()) == left + 3


def test_a_checkpoint_that_nobody_requeued_for_grows_old_and_another_can_be_asked_for(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, patience=1)
    process = wrapped.start(1000)
    until(lambda: wrapped.says(Stage.RUNNING) and (tmp_path / "steps-7_2").exists())
    for _ in range(2):
        os.killpg(process.pid, signal.SIGUSR1)
        until(lambda: wrapped.says(Stage.CHECKPOINTED))
        until(lambda: wrapped.says(Stage.RUNNING))
        assert not (tmp_path / "checkpointed-7_2").exists()
    process.terminate()
    process.wait(timeout=20)


def test_a_program_that_is_killed_is_no_success_and_leaves_no_report(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path)
    (tmp_path / "program").write_text("#!/bin/sh\nkill -9 $$\n")
    assert wrapped.start(1).wait(timeout=20) == 128 + signal.SIGKILL
    assert not wrapped.file.exists()


def test_without_a_spool_the_program_just_runs(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, spool=False)
    assert wrapped.start(2).wait(timeout=20) == 3
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("written", ["", "x", "-5", "9" * 30, "08\n", "$(touch hacked)"])
def test_what_the_program_counts_is_a_number_or_nothing(tmp_path: Path, written: str) -> None:
    wrapped = Wrapped(tmp_path)
    (tmp_path / "steps-7_2").write_text(written)
    (tmp_path / "program").write_text("#!/bin/sh\nsleep 1\n")
    process = wrapped.start(1)
    until(lambda: wrapped.report() is not None)
    report = wrapped.report()
    assert report is not None
    assert report.steps == (8 if written == "08\n" else 0)
    process.wait(timeout=20)
    assert not (tmp_path / "hacked").exists()
