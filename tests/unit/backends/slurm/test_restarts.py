"""When a requeued job is released: not in the second in which its last run may have ended."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.model import Operation, Reason, ReasonCode, Result, Verb
from tests.unit.fake_slurm import FakeJob, FakeSlurm

WHY = Reason(ReasonCode.START)


@dataclass
class Clock:
    """Seconds that pass only as the test says, and as the backend sleeps."""

    seconds: float = 100.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.seconds += seconds


def waiting(number: int, restarts: int) -> FakeJob:
    return FakeJob(number, priority=0, reason="JobHeldAdmin", fields={"Restarts": str(restarts)})


def connected(clock: Clock, *jobs: FakeJob) -> SlurmBackend:
    commands = Commands(5, runner=FakeSlurm(list(jobs)))
    return SlurmBackend(
        commands, CommandSource(), lambda: 1000.0, lambda: "synsched", monotonic=clock.now, sleep=clock.sleep
    )


@pytest.mark.parametrize(
    ("restarts", "passes", "released", "slept"),
    [
        pytest.param({1: 0}, 0.0, (1,), [], id="a job that never ran starts at once"),
        pytest.param({1: 1}, 0.0, (1,), [1.1], id="one that is seen to wait again lets a second pass"),
        pytest.param({1: 1}, 0.75, (1,), [0.35], id="of which a part is over"),
        pytest.param({1: 1}, 1.2, (1,), [], id="or all of it"),
        pytest.param({1: 1, 2: 0}, 0.0, (2,), [], id="another job is not delayed"),
        pytest.param({1: 1, 2: 3}, 0.5, (1, 2), [0.6], id="two wait once"),
    ],
)
def test_a_restart_lets_a_second_pass(
    restarts: dict[int, int], passes: float, released: tuple[int, ...], slept: list[float]
) -> None:
    clock = Clock()
    backend = connected(clock, *(waiting(number, times) for number, times in restarts.items()))
    backend.observe()
    clock.seconds += passes
    outcomes = backend.execute([Operation(Verb.RELEASE, str(number), WHY) for number in released])
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * len(released)
    assert clock.slept == slept


@pytest.mark.parametrize(
    ("operation", "slept"),
    [
        pytest.param(Operation(Verb.PRIORITIZE, "1", WHY, 0, -7), [], id="a nice value starts nothing"),
        pytest.param(Operation(Verb.RELEASE, "1", WHY, permitted=False), [], id="nor does what is not permitted"),
    ],
)
def test_only_a_release_waits(operation: Operation, slept: list[float]) -> None:
    clock = Clock()
    backend = connected(clock, waiting(1, 1))
    backend.observe()
    backend.execute([operation])
    assert clock.slept == slept


def test_each_run_that_ended_counts_from_the_poll_that_shows_it() -> None:
    clock, job = Clock(), waiting(1, 1)
    backend = connected(clock, job)
    backend.observe()
    clock.seconds += 60
    backend.observe()
    job.fields["Restarts"] = "2"
    backend.observe()
    clock.seconds += 0.25
    backend.observe()
    backend.execute([Operation(Verb.RELEASE, "1", WHY)])
    assert clock.slept == [0.85]
