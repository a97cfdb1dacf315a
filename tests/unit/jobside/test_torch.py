"""Real PyTorch: the example of the documentation, preempted, against itself undisturbed."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.unit.jobside.scripts import CHECKOUT, Job, until

torch = pytest.importorskip("torch", reason="PyTorch is not here: pip install -e '.[torch]'")

EXAMPLE = (CHECKOUT / "examples" / "train.py").read_text(encoding="utf-8")


def losses(folder: Path) -> list[str]:
    file = folder / "losses.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def same_weights(one: Path, other: Path) -> bool:
    mine, theirs = (torch.load(folder / "weights.pt", weights_only=True) for folder in (one, other))
    return list(mine) == list(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)


def undisturbed(folder: Path, ranks: int = 1) -> list[str]:
    folder.mkdir()
    for process in started(Job(folder, EXAMPLE), ranks):
        assert process.wait(timeout=120) == 0
    return losses(folder)


def started(job: Job, ranks: int) -> list[subprocess.Popen[bytes]]:
    """All ranks of a run, as srun would start them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    restarts, processes = job.restarts, []
    for rank in range(ranks):
        job.restarts = restarts
        job.environment = {
            "SLURM_STEP_NUM_TASKS": str(ranks),
            "SLURM_PROCID": str(rank),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": port,
        }
        processes.append(job.start())
    return processes


def test_preemptions_change_neither_the_losses_nor_the_weights(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone")
    job = Job(tmp_path, EXAMPLE, ("--pause", "0.002"))
    for preemption in range(3):
        process = job.start()
        until(lambda least=preemption: len(losses(tmp_path)) > 100 * least + 5)  # type: ignore[misc]  # bound now
        assert job.preempt(process) == 128 + signal.SIGTERM
    assert job.start().wait(timeout=120) == 0
    assert losses(tmp_path) == expected
    assert same_weights(tmp_path, tmp_path / "alone")


def test_two_ranks_stop_at_the_same_step_and_go_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone", ranks=2)
    job = Job(tmp_path, EXAMPLE, ("--pause", "0.002"))
    for preemption in range(2):
        ranks = started(job, 2)
        until(lambda least=preemption: len(losses(tmp_path)) > 60 * least + 10)  # type: ignore[misc]  # bound now
        for process in ranks:
            process.send_signal(signal.SIGUSR1)
        until(lambda: b'"checkpointed"' in job.report.read_bytes())
        for process in ranks:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(timeout=30) for process in ranks] == [128 + signal.SIGTERM] * 2
    for process in started(job, 2):
        assert process.wait(timeout=120) == 0
    assert losses(tmp_path) == expected
    assert same_weights(tmp_path, tmp_path / "alone")
