"""Real processes that save real files, synced to a real disk, and are killed at any moment (SIGKILL)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as some

from slurmsched.jobside import Checkpoints
from tests.unit.jobside.scripts import CHECKOUT

SIZE = 300_000
SAVING = f"""
import sys
from pathlib import Path
from slurmsched.jobside import Checkpoints

checkpoints = Checkpoints(Path(sys.argv[1]))
newest = checkpoints.newest()
step = newest.step if newest else 0

def write(path):
    path.mkdir()
    for part in range(3):
        with (path / str(part)).open("wb") as file:
            for _ in range(10):
                file.write(step.to_bytes(8, "big") * ({SIZE} // 80))
                file.flush()

print("begins", step, flush=True)
while True:
    step += 1
    checkpoints.save(step, write)
    print("saved", step, flush=True)
"""
"""Goes on from the newest; a checkpoint holds its own number, again and again."""


def killed_after(folder: Path, saves: int, seconds: float) -> tuple[int, int]:
    """One run, killed so long after so many saves: the step it began with, and the last one it called saved."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAVING, str(folder)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(1 + saves)]
    time.sleep(seconds)
    process.kill()
    said += process.stdout.read().splitlines(keepends=True)  # communicate() leaves out what readline() has buffered
    assert process.wait(timeout=20) == -SIGKILL, "it saves until it is killed"
    whole = [line for line in said if line.endswith("\n")]  # without buffering a kill can cut a line
    steps = [int(line.split()[1]) for line in whole]
    return steps[0], steps[-1]


@settings(max_examples=8, deadline=None)
@given(some.lists(some.tuples(some.integers(0, 3), some.floats(0, 0.04)), min_size=3, max_size=6))
def test_whenever_a_save_is_killed_the_last_that_was_done_is_whole(kills: list[tuple[int, float]]) -> None:
    with TemporaryDirectory() as name:
        folder, before = Path(name), 0
        for saves, seconds in kills:
            began, said = killed_after(folder, saves, seconds)
            newest = Checkpoints(folder).newest()
            found = newest.step if newest else 0
            assert began == before, "it goes on from what was found"
            assert said <= found <= said + 1, "what was said to be saved is; the one under way may be"
            if newest is not None:
                held = [part.read_bytes() for part in sorted(newest.state.iterdir())]
                assert held == [found.to_bytes(8, "big") * (SIZE // 80) * 10] * 3
            assert len(list(folder.iterdir())) <= 4, "two, the one under way, and one that is being deleted"
            before = found
