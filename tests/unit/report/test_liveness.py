"""Who schedules, judged by a heartbeat and the last round."""

from __future__ import annotations

import pytest

from slurmsched.daemon.heartbeat import HeartbeatRecord
from slurmsched.report.status import LivenessState, assess_liveness


@pytest.mark.parametrize(
    ("beat", "ended", "life"),
    [
        pytest.param(None, None, LivenessState.NEVER, id="nothing ever ran"),
        pytest.param(
            HeartbeatRecord(990, "enforce", 300), None, LivenessState.ALIVE, id="the first round is under way"
        ),
        pytest.param(HeartbeatRecord(990, "enforce", 300), 800, LivenessState.ALIVE, id="all is well"),
        pytest.param(
            HeartbeatRecord(990, "enforce", 300), 399, LivenessState.LATE, id="no round has ended for two periods"
        ),
        pytest.param(HeartbeatRecord(99, "enforce", 300), 90, LivenessState.GONE, id="silent for too long"),
        pytest.param(HeartbeatRecord(990, "stopped", 300), 980, LivenessState.GONE, id="stopped just now"),
        pytest.param(None, 990, LivenessState.GONE, id="a round and no heartbeat"),
        pytest.param(
            HeartbeatRecord(1100, "enforce", 300), 1100, LivenessState.ALIVE, id="a clock that is a little off"
        ),
        pytest.param(HeartbeatRecord(2000, "enforce", 300), 2000, LivenessState.GONE, id="a clock set back by minutes"),
    ],
)
def test_liveness(beat: HeartbeatRecord | None, ended: float | None, life: LivenessState) -> None:
    assert assess_liveness(1000.0, beat, ended, period=300.0, stale_after=900.0).life is life


def test_every_verdict_but_well_says_what_to_do() -> None:
    for beat, ended in [
        (None, None),
        (HeartbeatRecord(0, "enforce", 300), 0.0),
        (HeartbeatRecord(9999, "enforce", 300), 0.0),
    ]:
        assert "'synsched" in assess_liveness(10_000.0, beat, ended, 300.0, 900.0).sentence
