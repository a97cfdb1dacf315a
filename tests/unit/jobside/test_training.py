"""A loop that is measured, stops when it has to, and goes on where it was."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmsched.jobside import JobsideError, Stage, Training
from slurmsched.jobside.report import decode_report
from slurmsched.jobside.spool import Spool
from tests.unit.jobside.scripts import COUNTING, Job, until


def undisturbed(folder: Path) -> list[str]:
    folder.mkdir()
    job = Job(folder, COUNTING, ("0",))
    assert job.start().wait(timeout=60) == 0
    return (folder / "log").read_text().splitlines()


def test_a_job_preempted_again_and_again_computes_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone")
    job = Job(tmp_path, COUNTING, ("0.01",))
    for preemption in range(4):
        process = job.start()
        until(lambda least=preemption: job.steps > 25 * least + 5)  # type: ignore[misc]  # bound now
        assert job.preempt(process) == 128 + signal.SIGTERM
    assert job.start().wait(timeout=60) == 0
    assert (tmp_path / "log").read_text().splitlines() == expected
    assert not job.report.exists()


def test_a_job_that_is_killed_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone")
    guarded = COUNTING.replace(", load)", ", load, every=0.05)")
    job = Job(tmp_path, guarded, ("0.01",))
    process = job.start()
    until(lambda: job.steps > 60)
    process.kill()
    process.wait()
    before = job.steps
    assert job.start().wait(timeout=60) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    again = int(lines[before].split()[0])
    assert 0 < again <= before
    assert lines[before:] == expected[again:]


def test_sigterm_alone_saves_and_leaves_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path, COUNTING, ("0.01",))
    process = job.start()
    until(lambda: job.steps > 10)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    done = job.steps
    assert decode_report(job.report.read_bytes()).steps == done
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{done:012}"]


def test_the_exit_of_a_profiling_run_leaves_a_rate_and_no_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path, COUNTING, ("0.01",), {"SYNSCHED_MEASURE": "0.3"})
    assert job.start().wait(timeout=20) == 0
    report = decode_report(job.report.read_bytes())
    assert report.stage is Stage.MEASURED
    assert report.busy >= 0.3
    assert 20 < report.done / report.busy <= 100
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("said", ["", "a minute", "nan", "inf", "-1", "0"])
def test_a_profiling_run_that_would_never_end_is_none(tmp_path: Path, said: str) -> None:
    with pytest.raises(JobsideError, match="expected seconds"):
        Training(Path.touch, Path.touch, folder=tmp_path, environment={"SYNSCHED_MEASURE": said})


class Ranks:
    """Stands for the other ranks of a job: what they wish is what the test says."""

    def __init__(self) -> None:
        self.wish = 0
        self.asked: list[Sequence[int]] = []

    def agree(self, values: Sequence[int]) -> Sequence[int]:
        self.asked.append(tuple(values))
        return (max(values[0], self.wish), *values[1:]) if len(values) == 2 else values


def training_of(folder: Path, ranks: Ranks, **other: object) -> Training:
    return Training(
        lambda path: path.touch(),
        lambda path: None,
        folder=folder,
        agree=ranks.agree,
        environment={"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
        **other,  # type: ignore[arg-type]  # pytest rows
    )


def test_a_signal_to_one_of_several_ranks_is_heeded_at_the_step_that_all_agreed_on(tmp_path: Path) -> None:
    ranks, seconds = Ranks(), [0.0]
    with training_of(tmp_path, ranks, clock=lambda: seconds[0], patience=0.0) as training:
        looks = []
        for _ in range(200):
            before = len(ranks.asked)
            seconds[0] += 0.125  # a step, in a number that halves well
            if training.steps == 101:
                signal.raise_signal(signal.SIGUSR1)
            training.step()
            if len(ranks.asked) > before:
                looks.append(training.steps)
        saved = training._last_checkpoint_step
    assert looks[:5] == [1, 3, 7, 15, 23], "by and by one look a second, eight steps apart"
    assert saved == 103, "the first look after the signal"


def test_the_wish_of_another_rank_is_followed(tmp_path: Path) -> None:
    ranks = Ranks()
    with training_of(tmp_path, ranks, patience=0.0) as training:
        ranks.wish = 1
        training.step()
        assert training._last_checkpoint_step == 1


def test_several_ranks_that_cannot_agree_are_told(tmp_path: Path) -> None:
    with pytest.raises(JobsideError, match="there are 2 ranks: make the Training after init_process_group"):
        Training(lambda path: None, lambda path: None, environment={"SLURM_STEP_NUM_TASKS": "2"})


def test_a_step_that_cannot_be_saved_costs_the_checkpoint_and_not_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with Training(full, lambda path: None, folder=tmp_path, environment={}, patience=60.0) as training:
        signal.raise_signal(signal.SIGUSR1)
        training.step()
        training.step()
        assert training.steps == 2
    assert "no checkpoint after 1 steps: [Errno 28]" in capsys.readouterr().err


def test_a_spool_that_is_gone_costs_the_reports_and_not_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"SYNSCHED_SPOOL": str(tmp_path / "gone"), "SLURM_JOB_ID": "7"}
    with Training(lambda path: None, lambda path: None, folder=tmp_path, environment=told) as training:
        training.step()
    assert capsys.readouterr().err.count("no reports") == 1


def test_an_epoch_that_was_left_early_is_over(tmp_path: Path) -> None:
    with Training(lambda path: None, lambda path: None, folder=tmp_path, environment={}) as training:
        met = []
        for epoch in training.epochs(2):
            for batch in training.batches(range(5)):
                met.append((epoch, batch))
                if batch == 2:
                    break
    assert met == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_sampler_is_told_the_epoch(tmp_path: Path) -> None:
    class Sampler:
        told: list[int] = []  # noqa: RUF012 - what the test looks at

        def set_epoch(self, epoch: int) -> None:
            self.told.append(epoch)

    class Loader(list[int]):
        sampler = Sampler()

    with Training(lambda path: None, lambda path: None, folder=tmp_path, environment={}) as training:
        for _ in training.epochs(2):
            for _ in training.batches(Loader([1, 2])):
                random.random()
    assert Sampler.told == [0, 1]
    assert training.steps == 4


def test_what_killed_jobs_left_in_the_spool_is_cleared_after_a_week(tmp_path: Path) -> None:

    own = tmp_path / str(os.getuid())
    own.mkdir()
    for name, age in (("1.json", 8), ("2.json", 6)):
        (own / name).touch()
        os.utime(own / name, (0, (own / name).stat().st_mtime - age * 86400))
    Spool(tmp_path, "3").clear()
    assert [path.name for path in own.iterdir()] == ["2.json"]


OUT_OF_MEMORY = """
import sys
from slurmsched.jobside import Training

class OutOfMemoryError(RuntimeError):
    pass

training = Training(lambda path: path.touch(), lambda path: None)
training.step()
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "stage"),
    [
        pytest.param("raise OutOfMemoryError('tried to allocate 2 GiB')", Stage.OUT_OF_MEMORY, id="torch's own error"),
        pytest.param("raise RuntimeError('CUDA error: out of memory')", Stage.OUT_OF_MEMORY, id="CUDA's words"),
        pytest.param("with training:\n    raise OutOfMemoryError()", Stage.OUT_OF_MEMORY, id="within the training"),
        pytest.param("raise ValueError('out of memory of the past')", None, id="other words with the same in them"),
        pytest.param("raise KeyError('x')", None, id="another error"),
    ],
)
def test_a_job_that_ends_for_want_of_gpu_memory_says_so(tmp_path: Path, ending: str, stage: Stage | None) -> None:
    job = Job(tmp_path, OUT_OF_MEMORY.format(ending=ending))
    assert job.start().wait(timeout=20) == 1
    reported = decode_report(job.report.read_bytes()).stage if job.report.exists() else None
    assert reported is stage
