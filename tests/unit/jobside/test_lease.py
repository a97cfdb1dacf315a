"""When ranks look, and what they do then."""

from __future__ import annotations

import signal

import pytest

from slurmsched.jobside.lease import Lease, LeaseAction, SignalHandler
from slurmsched.jobside.reporter import Pace


def lease(notice: SignalHandler, **other: float | bool | None) -> Lease:
    told = {"distributed": False, "checkpoint_interval": None, "time_limit": None, **other}
    made = Lease(notice, lambda values: values, **told)  # type: ignore[arg-type]  # pytest rows
    made.begin(0, 100.0)
    return made


@pytest.mark.parametrize(
    ("said", "other", "wish"),
    [
        pytest.param((), {}, LeaseAction.CONTINUE, id="nothing"),
        pytest.param(("checkpoint_requested",), {}, LeaseAction.YIELD, id="the checkpoint signal"),
        pytest.param(("checkpoint_requested", "terminating"), {}, LeaseAction.EXIT, id="then the requeue"),
        pytest.param((), {"checkpoint_interval": 10.0}, LeaseAction.SAVE, id="a checkpoint is due"),
        pytest.param((), {"checkpoint_interval": 30.0}, LeaseAction.CONTINUE, id="it is not due yet"),
        pytest.param((), {"time_limit": 5.0}, LeaseAction.EXIT, id="a profiling run is over"),
    ],
)
def test_what_is_done(said: tuple[str, ...], other: dict[str, float], wish: LeaseAction) -> None:
    notice = SignalHandler(signal.SIGUSR1)
    for name in said:
        setattr(notice, name, True)
    assert lease(notice, **other).check(1, 120.0, step_seconds=0.1, busy=6.0) is wish


@pytest.mark.parametrize(
    ("together", "step_seconds", "distance"),
    [
        pytest.param(False, 1e-6, 2**9, id="alone and fast, ever more seldom"),
        pytest.param(False, 0.01, 25, id="alone: four times a second"),
        pytest.param(True, 1e-3, 32, id="together: never further apart than 32 steps"),
        pytest.param(True, 0.1, 10, id="together: once a second"),
        pytest.param(True, 5.0, 1, id="slow steps: after each"),
    ],
)
def test_how_far_looks_are_apart(together: bool, step_seconds: float, distance: int) -> None:
    made = lease(SignalHandler(signal.SIGUSR1), distributed=together)
    for _ in range(9):
        at = made.next_check
        made.check(at, 100.0, step_seconds=step_seconds, busy=0.0)
    assert made.next_check - at == distance


def test_the_warming_up_and_what_lies_between_pause_and_resume_do_not_count() -> None:
    pace = Pace()
    pace.resume(0.0)
    pace.record_steps(1, 50.0)
    pace.record_steps(10, 60.0)
    pace.pause()
    pace.resume(160.0)
    pace.record_steps(10, 170.0)
    assert (pace.done, pace.busy, pace.rate) == (20, 20.0, pytest.approx(1.0))


def test_the_rate_follows_a_job_that_becomes_slower() -> None:
    pace = Pace()
    pace.resume(0.0)
    pace.record_steps(1, 0.0)
    for now in range(1, 61):
        pace.record_steps(10 if now <= 30 else 1, float(now))
    assert pace.rate == pytest.approx(5.5)
