"""Runs Slurm's commands: only allowed ones, as argument lists without a shell.

Changes go through `change` and `change_many`. All commands run with TZ=UTC0 and LC_ALL=C, so that times and messages
are the same on every machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from slurmsched.backends.protocol import BackendError, CallCounts, UnreachableError
from slurmsched.backends.slurm.errors import (
    NoConfigurationError,
    NoSlurmError,
    UnsafeCommandError,
    error_from_stderr,
    last_message,
)
from slurmsched.backends.slurm.rate_limit import RateLimit

_READ_COMMANDS: Final = re.compile(
    r"scontrol (?:-[adovQ] )*(?:show (?:job|node|partition|reservation|config|assoc_mgr)\b|ping\Z|--version\Z)"
    r"|scontrol write batch_script \d{1,10} -\Z"
    r"|squeue (?!.*--start)|sdiag\Z|sacctmgr -nP show (?:user|qos)\b|sshare -a -P\Z"
)
_LONGEST_MESSAGE: Final = 300
"""Characters of a message of sacct that are kept."""
_ACCOUNTING_COMMANDS: Final = (("sacct", "-a"), ("sreport", "-a"))
_ACCOUNTING_SECONDS: Final = 20.0
"""Longest wait for slurmdbd, which rounds can do without."""
_CHANGE_COMMANDS: Final = re.compile(
    r"scontrol (?:hold|release|requeuehold Incomplete|update JobId=|update NodeName=|reconfigure\Z)"
    r"|scancel --ctld --signal=(?:USR1|USR2|TERM|INT|HUP) --full \d"
)
_CHANGE_LINE: Final = re.compile(r"(?:u?hold|release|requeuehold Incomplete|update) [A-Za-z0-9_.,:/+=\[\] -]+\Z")
_SECONDS_PER_CHANGE: Final = 0.25
"""Seconds added to the timeout for each line of a batch: three times what an update took on 12,500 nodes and a busy
machine, as a scontrol that is ended half-way leaves it open which of the updates were made."""

_SECONDS_PER_SIGNAL: Final = 4.0
"""Slurm 22.05 sends a signal to a task of an array again every 5 s, with `--ctld` too."""

_READ_LINE: Final = re.compile(r"show job [1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z|show hostnames [a-z0-9]{1,64}\Z")
_SECONDS_PER_READ: Final = 0.05
"""Seconds added to the timeout for each `show` line: ten times what one takes on a busy controller."""

_PYSLURM_PROGRAM: Final = Path(__file__).with_name("pyslurm_program.py")
_PYSLURM_QUERIES: Final = 4

_DROPPED_VARIABLES: Final = ("SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SCONTROL_FUTURE")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command's exit code and output. `raw_stdout` is None where it is the same as `stdout`."""

    exit_code: int
    stdout: str
    stderr: str
    raw_stdout: bytes | None = None

    @property
    def stdout_bytes(self) -> bytes:
        """The standard output, byte for byte."""
        return self.stdout.encode() if self.raw_stdout is None else self.raw_stdout


class ProcessRunner(Protocol):
    """Runs a process to its end. Raises FileNotFoundError, PermissionError, TimeoutError after `timeout` seconds."""

    def __call__(self, argv: Sequence[str], stdin: str, timeout: float, env: Mapping[str, str]) -> CommandResult: ...


def run_process(argv: Sequence[str], stdin: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
    """The `ProcessRunner` that runs real processes. Bytes that are not UTF-8 are replaced in its text."""
    try:
        completed = subprocess.run(
            list(argv), input=stdin.encode(), capture_output=True, timeout=timeout, env=dict(env), check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{argv[0]} took longer than {timeout:g} s") from error
    stdout, stderr = (output.decode(errors="replace") for output in (completed.stdout, completed.stderr))
    return CommandResult(completed.returncode, stdout, stderr, completed.stdout)


def command_environment(slurm_conf: str, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of Slurm's commands: this process's, without variables that change their output."""
    env = {
        key: value
        for key, value in (os.environ if inherited is None else inherited).items()
        if key not in _DROPPED_VARIABLES and not key.startswith("SQUEUE_")
    }
    env |= {"LC_ALL": "C", "TZ": "UTC0", "SLURM_BITSTR_LEN": "0"}
    if slurm_conf:
        env["SLURM_CONF"] = slurm_conf
    return env


class Commands:
    """Runs Slurm's commands and counts them. `timeout` is in seconds, for one command."""

    def __init__(self, timeout: float, slurm_conf: str = "", runner: ProcessRunner = run_process) -> None:
        self.calls = CallCounts()
        self.rate_limit: RateLimit | None = None
        """Of this user's requests; None for none."""
        self._timeout = timeout
        self._env = command_environment(slurm_conf)
        self._runner = runner
        self._counting = Lock()

    def read(self, *argv: str) -> str:
        """The standard output of a command that only reads. Raises BackendError."""
        return self.read_result(*argv).stdout

    def read_result(self, *argv: str) -> CommandResult:
        """The result of a command that only reads and succeeds. Raises BackendError."""
        if not _READ_COMMANDS.match(" ".join(argv)):
            raise UnsafeCommandError(f"not an allowed read command: {' '.join(argv)[:80]!r}")
        with self._counting:  # a poll reads jobs beside nodes
            self.calls.reads += 1
        answer = self._execute(argv, "", self._timeout)
        if answer.exit_code != 0:
            raise error_from_stderr(argv[0], answer.stderr if last_message(answer.stderr, "") else answer.stdout)
        return answer

    def read_accounting(self, *argv: str, longest: float = _ACCOUNTING_SECONDS) -> str:
        """The standard output of sacct or sreport, which ask slurmdbd, within the timeout and `longest` seconds. Raises
        BackendError."""
        if argv[:2] not in _ACCOUNTING_COMMANDS:
            raise UnsafeCommandError(f"not an allowed accounting command: {' '.join(argv)[:80]!r}")
        self.calls.reads += 1
        seconds = min(self._timeout, longest)
        try:
            answer = self._execute(argv, "", seconds)
        except UnreachableError as error:
            raise BackendError(f"slurmdbd did not answer {argv[0]} within {seconds:g} s") from error
        if answer.exit_code != 0:
            marks = [mark for word in argv if (mark := word.partition("--delimiter=")[2])]
            has_rows = any(mark in answer.stdout for mark in marks)
            # Rows of users are in no message: it would keep them when they are forgotten.
            message = last_message(answer.stderr or ("" if has_rows else answer.stdout))
            raise BackendError(f"{argv[0]} failed: {message[:_LONGEST_MESSAGE]}")
        return answer.stdout

    def read_many(self, lines: Sequence[str]) -> CommandResult:
        """Feeds `show` lines to one scontrol, whose exit code is that of the last line only.

        Raises NoSlurmError, UnreachableError, UnsafeCommandError.
        """
        for line in lines:
            if not _READ_LINE.match(line):
                raise UnsafeCommandError(f"not an allowed read line: {line[:80]!r}")
        self.calls.reads += sum(line.startswith("show job") for line in lines)
        stdin = "".join(f"{line}\n" for line in lines)
        return self._execute(("scontrol", "-a", "-d", "-o"), stdin, self._timeout_for(lines, _SECONDS_PER_READ))

    def read_with_pyslurm(self, series: str, mebibytes: int) -> CommandResult:
        """The result of `pyslurm_program`, whatever its exit code. `-P` keeps its folder out of the import path.

        Raises NoConfigurationError, UnreachableError.
        """
        self.calls.reads += _PYSLURM_QUERIES
        argv = (sys.executable, "-P", str(_PYSLURM_PROGRAM), series, str(mebibytes))
        return self._execute(argv, "", self._timeout)

    def change(self, *argv: str) -> CommandResult:
        """Runs one command that changes something, and returns its result whatever its exit code.

        A scancel that takes long is ended before it would send its signal again, and counts as done: the signal was
        sent, and whether slurmctld answers the next command tells. Raises NoSlurmError, UnreachableError,
        UnsafeCommandError.
        """
        text = " ".join(argv)
        if not _CHANGE_COMMANDS.match(text) or not text.isprintable():
            raise UnsafeCommandError(f"not an allowed change command: {text[:80]!r}")
        self.calls.writes += 1
        if argv[0] != "scancel":
            return self._execute(argv, "", self._timeout)
        try:
            return self._execute(argv, "", min(self._timeout, _SECONDS_PER_SIGNAL))
        except UnreachableError:
            return CommandResult(0, "", "")

    def change_many(self, lines: Sequence[str]) -> CommandResult:
        """Feeds `hold`, `uhold`, `release`, `requeuehold` and `update` lines to one scontrol, which goes on after an
        error.

        Raises NoSlurmError, UnreachableError, UnsafeCommandError.
        """
        for line in lines:
            if not _CHANGE_LINE.match(line):
                raise UnsafeCommandError(f"not an allowed change line: {line[:80]!r}")
        self.calls.writes += len(lines)
        stdin = "".join(f"{line}\n" for line in lines)
        return self._execute(("scontrol",), stdin, self._timeout_for(lines, _SECONDS_PER_CHANGE))

    def _timeout_for(self, lines: Sequence[str], each: float) -> float:
        """Seconds for these lines, at `each` seconds for one, or as many as slurmctld's limit makes scontrol wait."""
        limited = self.rate_limit.seconds_for(lines) if self.rate_limit else 0.0
        return self._timeout + max(each * len(lines), limited)

    def _execute(self, argv: Sequence[str], stdin: str, timeout: float) -> CommandResult:
        conf = self._env.get("SLURM_CONF", "")
        if conf and not Path(conf).exists():  # Slurm's commands would retry for a minute
            raise NoConfigurationError(f"there is no {conf}: set slurm_conf in [cluster], or SLURM_CONF")
        try:
            return self._runner(argv, stdin, timeout, self._env)
        except FileNotFoundError as error:
            raise NoSlurmError(f"no {argv[0]} on PATH: install Slurm's commands, or set PATH") from error
        except PermissionError as error:
            raise NoSlurmError(f"{argv[0]} may not be run by this user") from error
        except TimeoutError as error:
            raise UnreachableError(f"slurmctld did not answer {argv[0]} within {timeout:g} s") from error
