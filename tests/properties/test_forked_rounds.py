"""The account of a forked job, whoever is killed when: every step that is counted is in the parameters, and once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.jobside import Checkpoints
from slurmsched.jobside.forking import CopyState, ForkedJobTracker

COPIES = 3
unhurried = settings(max_examples=60, deadline=None)


def union(copies: Sequence[CopyState], target: Path) -> None:
    """Parameters are the names of the steps in them."""
    target.write_text(" ".join(sorted({name for copy in copies for name in copy.path.read_text().split()})))


@dataclass
class Machine:
    """Copies that train, save and are killed in one process; what a kill takes away is what was not saved."""

    tracker: ForkedJobTracker
    round: list[int] = field(default_factory=lambda: [0] * COPIES)
    """The round that each copy is in, which may be over."""
    names: list[set[str]] = field(default_factory=lambda: [set() for _ in range(COPIES)])

    def train(self, copy: int, steps: int) -> None:
        fork = self.tracker.current()
        assert fork is not None
        if fork.number != self.round[copy]:
            self.round[copy], self.names[copy] = fork.number, self.resumed(copy)
        done = len(self.names[copy]) - len(self.begun())
        for step in range(done, min(done + steps, fork.assigned[copy])):
            self.names[copy].add(f"{fork.number}.{copy}.{step}")

    def begun(self) -> set[str]:
        fork = self.tracker.current()
        return set(fork.state.read_text().split()) if fork and fork.state else set()

    def resumed(self, copy: int) -> set[str]:
        fork = self.tracker.current()
        assert fork is not None
        newest = Checkpoints(fork.checkpoints(copy)).newest()
        return set(newest.state.read_text().split()) if newest else self.begun()

    def save(self, copy: int) -> None:
        """Into the round that it is in: also late, when that is over."""
        fork = self.tracker.current()
        if fork is None or not self.round[copy]:
            return
        own = {name for name in self.names[copy] if name.startswith(f"{self.round[copy]}.{copy}.")}
        if own:
            folder = fork.folder.with_name(f"round-{self.round[copy]:06}") / f"copy-{copy}"
            Checkpoints(folder).save(len(own), lambda path: path.write_text(" ".join(self.names[copy])) and None)

    def kill(self, copy: int) -> None:
        self.round[copy], self.names[copy] = 0, set()


events = st.lists(
    st.tuples(
        st.sampled_from(("train", "train", "train", "save", "save", "kill", "end", "end late")),
        st.integers(0, COPIES - 1),
        st.integers(1, 40),
    ),
    max_size=40,
)
rates = st.lists(st.floats(0.1, 10.0), min_size=COPIES, max_size=COPIES)


@unhurried
@given(st.integers(1, 150), events, st.lists(rates, min_size=1, max_size=5))
def test_what_is_counted_is_what_the_parameters_hold(
    target: int, happened: list[tuple[str, int, int]], speeds: list[list[float]]
) -> None:
    with TemporaryDirectory() as folder, patch.object(os, "fsync", lambda _: None):
        machine = Machine(ForkedJobTracker(Path(folder), target, union))
        machine.tracker.advance(speeds[0])
        for at, (what, copy, steps) in enumerate(happened):
            fork = machine.tracker.current()
            assert fork is not None
            match what:
                case "train":
                    machine.train(copy, steps)
                case "save":
                    machine.save(copy)
                case "kill":
                    machine.kill(copy)
                case "end":
                    machine.tracker.advance(speeds[at % len(speeds)], expected_round=fork.number)
                case _:  # by a copy that thinks the round before is under way
                    assert machine.tracker.advance(speeds[0], expected_round=fork.number - 1) == fork
            fork = machine.tracker.current()
            assert fork is not None
            assert fork.done == len(machine.begun())
            assert fork.done + sum(fork.assigned) == target
        while not (fork := machine.tracker.current() or fork).over:
            for copy in range(COPIES):
                machine.train(copy, target)
                machine.save(copy)
            machine.tracker.advance(speeds[0], expected_round=fork.number)
        assert len(machine.begun()) == fork.done == target
