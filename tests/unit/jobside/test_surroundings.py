"""What a process knows of itself."""

from __future__ import annotations

import subprocess
import sys

from slurmsched.jobside.environment import peak_memory
from tests.unit.jobside.scripts import CHECKOUT

SAID = "from slurmsched.jobside.environment import peak_memory; {}; print(peak_memory())"


def said(before: str) -> int:
    code = SAID.format(before)
    return int(subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, check=True).stdout)


def test_the_memory_of_a_program_is_not_that_of_its_launcher() -> None:
    weight = b"x" * (200 << 20)
    assert peak_memory() > 200
    assert said("pass") < 100
    del weight


def test_the_memory_of_a_program_is_the_most_it_held() -> None:
    assert 200 <= said("b'x' * (200 << 20)") < 300


def test_what_children_held_counts() -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'b\"x\" * (200 << 20)'], check=True)"
    assert said(child) >= 200
