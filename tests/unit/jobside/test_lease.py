"""When ranks look, and what they do then."""

from __future__ import annotations

import signal

import pytest

from slurmsched.jobside.lease import Lease, Wish
from slurmsched.jobside.notice import Notice
from slurmsched.jobside.pace import Pace


def lease(notice: Notice, **other: float | bool | None) -> Lease:
    told = {"together": False, "every": None, "limit": None, **other}
    made = Lease(notice, lambda values: values, **told)  # type: ignore[arg-type]  # pytest rows
    made.begin(0, 100.0)
    return made


@pytest.mark.parametrize(
    ("said", "other", "wish"),
    [
        pytest.param((), {}, Wish.GO_ON, id="nothing"),
        pytest.param(("lease_over",), {}, Wish.YIELD, id="the checkpoint signal"),
        pytest.param(("lease_over", "leaving"), {}, Wish.END, id="then the requeue"),
        pytest.param((), {"every": 10.0}, Wish.SAVE, id="a checkpoint is due"),
        pytest.param((), {"every": 30.0}, Wish.GO_ON, id="it is not due yet"),
        pytest.param((), {"limit": 5.0}, Wish.END, id="a profiling run is over"),
    ],
)
def test_what_is_done(said: tuple[str, ...], other: dict[str, float], wish: Wish) -> None:
    notice = Notice(signal.SIGUSR1)
    for name in said:
        setattr(notice, name, True)
    assert lease(notice, **other).look(1, 120.0, step_seconds=0.1, busy=6.0) is wish


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
    made = lease(Notice(signal.SIGUSR1), together=together)
    for _ in range(9):
        at = made.next_look
        made.look(at, 100.0, step_seconds=step_seconds, busy=0.0)
    assert made.next_look - at == distance


def test_the_warming_up_and_what_lies_between_pause_and_resume_do_not_count() -> None:
    pace = Pace()
    pace.resume(0.0)
    pace.look(1, 50.0)
    pace.look(10, 60.0)
    pace.pause()
    pace.resume(160.0)
    pace.look(10, 170.0)
    assert (pace.done, pace.busy, pace.rate) == (20, 20.0, pytest.approx(1.0))


def test_the_rate_follows_a_job_that_becomes_slower() -> None:
    pace = Pace()
    pace.resume(0.0)
    pace.look(1, 0.0)
    for now in range(1, 61):
        pace.look(10 if now <= 30 else 1, float(now))
    assert pace.rate == pytest.approx(5.5)
