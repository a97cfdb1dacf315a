"""Run other programs; every failure becomes one line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass


class ClusterError(Exception):
    """What went wrong, in one line for the person who ran the command."""


@dataclass(frozen=True)
class Commands:
    """Runs programs, shows them when verbose."""

    verbose: bool = False

    def say(self, line: str) -> None:
        """Tell the person what takes time."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def attempt(
        self, *argv: str, stdin: bytes | None = None, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program and return its result, whatever its exit status; 124 when out of time, 127 when absent."""
        if self.verbose:
            self.say("+ " + shlex.join(argv))
        try:  # without `stdin` the program reads nothing, not our standard input
            result = subprocess.run(argv, input=stdin or b"", capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", f"no answer in {timeout:g} s")
        except FileNotFoundError:
            return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]} is not installed")
        out, err = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
        return subprocess.CompletedProcess(argv, result.returncode, out, err)

    def run(self, *argv: str, stdin: bytes | None = None, timeout: float | None = None) -> str:
        """Run a program that must succeed and return its standard output."""
        result = self.attempt(*argv, stdin=stdin, timeout=timeout)
        if result.returncode:
            raise ClusterError(f"{' '.join(argv[:2])} failed: {last_line(result.stderr or result.stdout)}")
        return result.stdout

    def succeeds(self, *argv: str, timeout: float | None = None) -> bool:
        """Whether a program exits with 0."""
        return self.attempt(*argv, timeout=timeout).returncode == 0


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
