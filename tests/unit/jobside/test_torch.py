"""Real PyTorch: the example of the documentation, preempted, against itself undisturbed."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmsched.jobside import TensorError
from slurmsched.jobside.forking import CopyState, average_state_dicts
from tests.unit.jobside.scripts import CHECKOUT, Forked, Job, until

torch = pytest.importorskip("torch", reason="PyTorch is not here: pip install -e '.[torch]'")

Process = subprocess.Popen[bytes] | Forked
EXAMPLE = (CHECKOUT / "examples" / "train.py").read_text(encoding="utf-8")


def losses(folder: Path) -> list[str]:
    file = folder / "losses.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def same_weights(one: Path, other: Path) -> bool:
    mine, theirs = (torch.load(folder / "weights.pt", weights_only=True) for folder in (one, other))
    return list(mine) == list(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)


def undisturbed(folder: Path, ranks: int = 1) -> list[str]:
    """The example run as Slurm runs it, by interpreters of its own; whoever is preempted is forked."""
    folder.mkdir()
    for process in started(Job(folder, EXAMPLE), ranks, Job.start):
        assert process.wait(timeout=600) == 0
    return losses(folder)


def started(job: Job, ranks: int, start: Callable[[Job], Process] = Job.fork) -> list[Process]:
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
        processes.append(start(job))
    return processes


def test_preemptions_change_neither_the_losses_nor_the_weights(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone")
    job = Job(tmp_path, EXAMPLE, ("--pause", "0.002"))
    for preemption in range(3):
        process = job.fork()
        until(lambda least=preemption: len(losses(tmp_path)) > 100 * least + 5)  # type: ignore[misc]  # bound now
        assert job.preempt(process) == 128 + signal.SIGTERM
    assert job.fork().wait(timeout=600) == 0
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
        assert process.wait(timeout=600) == 0
    assert losses(tmp_path) == expected
    assert same_weights(tmp_path, tmp_path / "alone")


def test_the_mean_of_state_dicts_is_that_of_their_tensors_and_of_nothing_else(tmp_path: Path) -> None:
    def state(scale: float, count: int) -> dict[str, object]:
        weights = torch.arange(6.0).reshape(2, 3) * scale
        moments = {0: {"exp_avg": torch.full((2,), scale, dtype=torch.bfloat16), "step": torch.tensor(scale)}}
        groups = [{"lr": 0.1 * count, "params": [0]}]
        return {"model": {"w": weights, "n": torch.tensor(count)}, "optimizer": {"state": moments, "groups": groups}}

    copies = []
    for name, scale, steps in (("a", 1.0, 10), ("b", 3.0, 30), ("c", 9.0, 0)):
        torch.save(state(scale, steps), tmp_path / name)
        copies.append(CopyState(tmp_path / name, steps))
    average_state_dicts(copies, tmp_path / "mean")
    found, expected = torch.load(tmp_path / "mean", weights_only=True), state(2.5, 30)
    assert torch.equal(found["model"]["w"], expected["model"]["w"])  # type: ignore[index]  # as made above
    assert found["model"]["n"] == 30
    assert found["optimizer"]["state"][0]["exp_avg"].tolist() == [2.5, 2.5]
    assert found["optimizer"]["state"][0]["step"] == 2.5
    assert found["optimizer"]["groups"] == [{"lr": 3.0, "params": [0]}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "mean"]


@pytest.mark.parametrize(
    "other",
    [{"w": torch.zeros(3)}, {"v": torch.zeros(2)}, {"w": 1.0}, [torch.zeros(2)]],
    ids=["another shape", "another name", "no tensor", "another kind"],
)
def test_state_dicts_of_different_models_are_refused(tmp_path: Path, other: object) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "a")
    torch.save(other, tmp_path / "b")
    with pytest.raises(TensorError, match="one model for all"):
        average_state_dicts([CopyState(tmp_path / "a", 2), CopyState(tmp_path / "b", 1)], tmp_path / "mean")
