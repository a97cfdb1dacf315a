"""Who schedules, judged by a heartbeat and the last round."""

from __future__ import annotations

import pytest

from slurmsched.daemon.heartbeat import Beat
from slurmsched.report.liveness import Life, liveness


@pytest.mark.parametrize(
    ("beat", "ended", "life"),
    [
        pytest.param(None, None, Life.NEVER, id="nothing ever ran"),
        pytest.param(Beat(990, "enforce", 300), None, Life.ALIVE, id="the first round is under way"),
        pytest.param(Beat(990, "enforce", 300), 800, Life.ALIVE, id="all is well"),
        pytest.param(Beat(990, "enforce", 300), 399, Life.LATE, id="no round has ended for two periods"),
        pytest.param(Beat(99, "enforce", 300), 90, Life.GONE, id="silent for too long"),
        pytest.param(Beat(990, "stopped", 300), 980, Life.GONE, id="stopped just now"),
        pytest.param(None, 990, Life.GONE, id="a round and no heartbeat"),
        pytest.param(Beat(1100, "enforce", 300), 1100, Life.ALIVE, id="a clock that is a little off"),
        pytest.param(Beat(2000, "enforce", 300), 2000, Life.GONE, id="a clock set back by minutes"),
    ],
)
def test_liveness(beat: Beat | None, ended: float | None, life: Life) -> None:
    assert liveness(1000.0, beat, ended, period=300.0, stale_after=900.0).life is life


def test_every_verdict_but_well_says_what_to_do() -> None:
    for beat, ended in [(None, None), (Beat(0, "enforce", 300), 0.0), (Beat(9999, "enforce", 300), 0.0)]:
        assert "'synsched" in liveness(10_000.0, beat, ended, 300.0, 900.0).sentence
