"""The page's example runs as it stands, and goes on as it says."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.unit.jobside.scripts import CHECKOUT, Job, until

PAGE = (CHECKOUT / "docs" / "jobside.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE)
FIVE_LINES = re.findall(r"(?ms)^```diff\n(.*?)^```", PAGE)[0]

MODEL = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(400, 4)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=20, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)"""
STEP = """
        loss = torch.nn.functional.mse_loss(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        __import__("time").sleep(float(__import__("sys").argv[1]))
        print(loss.item(), flush=True)"""
"""What the page leaves out as no business of its own."""


def script(marks: str) -> str:
    """A whole script out of the lines of the page that bear these marks."""
    lines = "\n".join(line[1:] for line in FIVE_LINES.splitlines() if line[0] in marks)
    return lines.replace("model, optimizer = ...", MODEL).replace("\n        ...", STEP).replace("(90)", "(8)")


def test_five_lines_make_a_script_movable_and_change_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not here: pip install -e '.[torch]'")
    assert sum(line.startswith("+") for line in FIVE_LINES.splitlines()) <= 5
    logs = []
    for name, marks in (("before", " -"), ("after", " +")):
        (tmp_path / name).mkdir()
        assert Job(tmp_path / name, script(marks), ("0",)).start().wait(timeout=600) == 0
        logs.append((tmp_path / name / "log").read_text().splitlines())
    assert logs[0] == logs[1]
    job = Job(tmp_path, script(" +"), ("0.005",))
    process = job.fork()
    until(lambda: job.steps > 50)
    assert job.preempt(process) == 128 + signal.SIGTERM
    assert job.fork().wait(timeout=600) == 0
    assert (tmp_path / "log").read_text().splitlines() == logs[0]


def test_the_example_of_the_page_trains(tmp_path: Path) -> None:
    assert Job(tmp_path, EXAMPLE).start().wait(timeout=60) == 0
    assert (tmp_path / "log").read_text() == "[1.0, 1.0, 1.0, 1.0]\n"


def test_the_example_of_the_page_goes_on_where_it_was(tmp_path: Path) -> None:
    slow = EXAMPLE.replace("    training.step()", "    training.step()\n    __import__('time').sleep(0.005)")
    job = Job(tmp_path, slow)
    process = job.start()
    until(job.report.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    (kept,) = (tmp_path / "checkpoints").iterdir()
    assert 0 < int(kept.name.removeprefix("step-")) < 1000
    assert job.start().wait(timeout=60) == 0
    assert (tmp_path / "log").read_text() == "[1.0, 1.0, 1.0, 1.0]\n"
