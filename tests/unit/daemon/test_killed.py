"""Killed anywhere: every step of a round's journal and of its operations, one after the other.

A round takes in a job that was never held, starts one, and displaces one for another. At each step the process is
ended; then either a new daemon goes on, or nobody does and the watchdog gives everything back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurmsched.backends.protocol import CallCounts, FinishedPage, Identity, JobOrigin
from slurmsched.backends.simulated import SimulatedBackend
from slurmsched.daemon.cleanup import open_store_if_usable, release_all
from slurmsched.model import JobId, Operation, Outcome, Snapshot
from slurmsched.store.database import Database
from tests.unit.daemon.world import World

UNDISTURBED = 10_000
"""More steps than a round has."""


class Killed(BaseException):
    """The process is gone: nothing may catch it."""


@dataclass
class Fuse:
    """Counts steps and ends the process at one of them."""

    left: int

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@dataclass
class Fragile:
    """The simulated backend, in a process that may be killed before and after each operation."""

    backend: SimulatedBackend
    fuse: Fuse
    name: str = "simulated"
    operation_seconds: float = 0.0

    @property
    def calls(self) -> CallCounts:
        return self.backend.calls

    def observe(self) -> Snapshot:
        self.fuse.step()
        return self.backend.observe()

    def activity(self) -> str:
        return self.backend.activity()

    def finished_runs(self, since: float, until: float) -> FinishedPage:
        return self.backend.finished_runs(since, until)

    def origins(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobOrigin]:
        return self.backend.origins(jobs)

    def identity(self) -> Identity:
        return self.backend.identity()

    def commands(self, operation: Operation) -> tuple[str, ...]:
        return self.backend.commands(operation)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        return tuple(self._execute(operations))

    def _execute(self, operations: Sequence[Operation]) -> Iterator[Outcome]:
        for operation in operations:
            self.fuse.step()
            yield from self.backend.execute([operation])
        self.fuse.step()


def breaking(fuse: Fuse, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, in a process that may be killed before and after it."""

    def stepping(*arguments: Any, **named: Any) -> Any:
        fuse.step()
        result = method(*arguments, **named)
        fuse.step()
        return result

    return stepping


def before_the_round(folder: Path) -> World:
    """Job 1 runs everywhere and has had more than its first queue's worth of service; 2 and 3 are new, 3 not held."""
    world = World(folder)
    world.submit(8)
    world.rounds(1)
    world.later(3600.0)
    world.submit(6)
    world.hook_holds = False
    world.submit(8)
    return world


def killed_round(world: World, steps: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """One round in which the process is killed after so many steps; False if it came through."""
    fuse = Fuse(steps)
    world.backend = Fragile(world.simulated, fuse)
    with monkeypatch.context() as patched:
        for name in ("write", "write_many"):
            patched.setattr(Database, name, breaking(fuse, getattr(Database, name)))
        try:
            world.round()
        except Killed:
            return True
    return False


def every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The world after the round, killed at its first step, at its second, and so on; last undisturbed."""
    for steps in range(UNDISTURBED):
        folder = tmp_path / str(steps)
        folder.mkdir()
        world = before_the_round(folder)
        was_killed = killed_round(world, steps, monkeypatch)
        world.restart()
        yield world
        world.store.close()
        if not was_killed:
            return


def test_the_round_holds_reshapes_notifies_requeues_and_releases(tmp_path: Path) -> None:
    world = before_the_round(tmp_path)
    verbs = {outcome.operation.verb.value for outcome in world.round().outcomes}
    assert verbs == {"hold", "reshape", "notify", "requeue", "release"}


def test_a_new_daemon_reaches_the_same_targets_from_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = before_the_round(tmp_path)
    undisturbed.rounds(3)
    wanted, count = undisturbed.where(), 0
    for world in every_step(tmp_path, monkeypatch):
        world.later(60.0)
        world.rounds(3)
        assert (count, world.where()) == (count, wanted)
        assert world.store.journal.open_intents() == ()
        count += 1
    assert count > 50


def test_nothing_stays_held_or_pinned_from_any_step_when_nobody_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count, world in enumerate(every_step(tmp_path, monkeypatch)):
        store, _ = open_store_if_usable(world.path, world.clock.now())
        assert store is not None
        release_all(world.simulated, store, world.clock, patience=120.0)
        assert (count, world.held(), world.pinned(), set(world.where())) == (count, set(), set(), {"1", "2", "3"})
        store.close()
