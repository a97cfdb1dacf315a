"""A job that was requeued runs again, however soon it is released."""

from __future__ import annotations

import json
from typing import Final

import pytest

from tests.slurm.conftest import RELEASES, SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x2")
pytestmark = pytest.mark.parametrize("mini", RELEASES, indirect=True, scope="module")
TIMES: Final = 5
PROGRAM: Final = "/opt/slurmsched/tests/slurm/restarting.py"


def test_a_job_that_ends_at_once_is_started_again_where_it_ran(mini: Mini) -> None:
    """Without the second that the backend waits all fail on 22.05 and 24.11, and none on 26.05."""
    mini.configure(**SETTINGS)
    said = mini.run("env", "PYTHONPATH=/opt/slurmsched", "python3", PROGRAM, str(TIMES), timeout=600)
    assert said.code == 0, said.err[-2000:]
    print(f"\nrestarts: {said.out.strip()}")
    assert json.loads(said.out)["backend"] == {"began": TIMES, "failed": 0}
