"""Runs other programs; each failure becomes an error of one line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass


class ClusterError(Exception):
    """An error whose message is one line for the user of the command."""


@dataclass(frozen=True)
class Commands:
    """Runs programs, and prints their command lines if `verbose`."""

    verbose: bool = False

    def say(self, line: str) -> None:
        """Prints a line to standard error."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def attempt(
        self, *argv: str, stdin: bytes | None = None, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program and returns its result: exit status 124 after `timeout` seconds, 127 if missing."""
        if self.verbose:
            self.say("+ " + shlex.join(argv))
        try:  # without `stdin` the program's standard input is empty, not this process's
            result = subprocess.run(argv, input=stdin or b"", capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", f"no answer in {timeout:g} s")
        except FileNotFoundError:
            return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]} is not installed")
        out, err = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
        return subprocess.CompletedProcess(argv, result.returncode, out, err)

    def run(self, *argv: str, stdin: bytes | None = None, timeout: float | None = None) -> str:
        """Runs a program and returns its standard output. Raises ClusterError if it fails."""
        result = self.attempt(*argv, stdin=stdin, timeout=timeout)
        if result.returncode:
            raise ClusterError(f"{' '.join(argv[:2])} failed: {last_line(result.stderr or result.stdout)}")
        return result.stdout

    def succeeds(self, *argv: str, timeout: float | None = None) -> bool:
        """Runs a program and returns whether its exit status is 0."""
        return self.attempt(*argv, timeout=timeout).returncode == 0


def last_line(text: str) -> str:
    """The last line that says something: docker's own last one may be its exit status alone."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("exit status")]
    return lines[-1] if lines else "no message"
