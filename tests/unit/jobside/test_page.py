"""The page's example runs as it stands, and goes on as it says."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.unit.jobside.scripts import CHECKOUT, Job, until

(EXAMPLE,) = re.findall(r"(?ms)^```python\n(.*?)^```", (CHECKOUT / "docs" / "jobside.md").read_text(encoding="utf-8"))


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
