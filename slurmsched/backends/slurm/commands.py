"""The one place where Slurm's commands are run.

Commands are argument lists, never a shell's text. What may be read is listed here; what may be changed passes
`change` or `change_many`. Everything runs in UTC and with C messages, so that times and words are the same everywhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from slurmsched.backends.protocol import CallCounts, UnreachableError
from slurmsched.backends.slurm.errors import (
    NoConfigurationError,
    NoSlurmError,
    UnsafeCommandError,
    error_from_stderr,
    last_message,
)

_READ_COMMANDS: Final = re.compile(
    r"scontrol (?:-[adovQ] )*(?:show (?:job|node|partition|reservation|config)\b|ping\Z|--version\Z)"
    r"|squeue (?!.*--start)|sacctmgr -nP show user\b|sshare -a -P\Z"
)
_CHANGE_COMMANDS: Final = re.compile(
    r"scontrol (?:hold|release|requeuehold Incomplete|update JobId=|update NodeName=|reconfigure\Z)"
    r"|scancel --signal=(?:USR1|USR2|TERM|INT|HUP) --full \d"
)
_CHANGE_LINE: Final = re.compile(r"(?:hold|release|requeuehold Incomplete|update) [A-Za-z0-9_.,:/+=\[\] -]+\Z")
_SECONDS_PER_CHANGE: Final = 0.05
"""Seconds more to wait for each line of a batch: five times what an update takes on a quiet machine."""

_READ_LINE: Final = re.compile(r"show job [1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z|show hostnames [a-z0-9]{1,64}\Z")
_SECONDS_PER_READ: Final = 0.05
"""Seconds more to wait for the answer to each line: ten times what one takes on a busy controller."""

_PYSLURM_PROGRAM: Final = Path(__file__).with_name("pyslurm_program.py")
_PYSLURM_QUERIES: Final = 4

_DROPPED_VARIABLES: Final = ("SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SCONTROL_FUTURE")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command said, and its exit code. `raw` is its output as it came, None where that is `out`."""

    exit_code: int
    stdout: str
    stderr: str
    raw_stdout: bytes | None = None

    @property
    def stdout_bytes(self) -> bytes:
        """The output, byte for byte."""
        return self.stdout.encode() if self.raw_stdout is None else self.raw_stdout


class ProcessRunner(Protocol):
    """Runs a process to its end. Raises FileNotFoundError, and TimeoutError when `timeout` seconds are over."""

    def __call__(self, argv: Sequence[str], stdin: str, timeout: float, env: Mapping[str, str]) -> CommandResult: ...


def run_process(argv: Sequence[str], stdin: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
    """The real thing. Text that is not UTF-8 comes back with the odd bytes replaced."""
    try:
        completed = subprocess.run(
            list(argv), input=stdin.encode(), capture_output=True, timeout=timeout, env=dict(env), check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{argv[0]} took longer than {timeout:g} s") from error
    out, complaints = (text.decode(errors="replace") for text in (completed.stdout, completed.stderr))
    return CommandResult(completed.returncode, out, complaints, completed.stdout)


def command_environment(slurm_conf: str, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the commands see: ours, without what would change their format."""
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
    """Slurm's commands, counted. `timeout` is the longest wait for one answer, in seconds."""

    def __init__(self, timeout: float, slurm_conf: str = "", runner: ProcessRunner = run_process) -> None:
        self.calls = CallCounts()
        self._timeout = timeout
        self._env = command_environment(slurm_conf)
        self._runner = runner

    def read(self, *argv: str) -> str:
        """What a reading command prints. Raises BackendError and its kinds."""
        return self.read_result(*argv).stdout

    def read_result(self, *argv: str) -> CommandResult:
        """The whole answer of a reading command that succeeded. Raises BackendError and its kinds."""
        if not _READ_COMMANDS.match(" ".join(argv)):
            raise UnsafeCommandError(f"not a command that only reads: {' '.join(argv)[:80]!r}")
        self.calls.reads += 1
        answer = self._execute(argv, "", self._timeout)
        if answer.exit_code != 0:
            raise error_from_stderr(argv[0], answer.stderr if last_message(answer.stderr, "") else answer.stdout)
        return answer

    def read_many(self, lines: Sequence[str]) -> CommandResult:
        """The answer of one scontrol that is fed with `show` lines; its exit code says only how the last line ended.

        Raises NoSlurmError, UnreachableError, UnsafeCommandError.
        """
        for line in lines:
            if not _READ_LINE.match(line):
                raise UnsafeCommandError(f"not a line that only reads: {line[:80]!r}")
        self.calls.reads += sum(line.startswith("show job") for line in lines)
        given = "".join(f"{line}\n" for line in lines)
        return self._execute(("scontrol", "-a", "-d", "-o"), given, self._timeout + _SECONDS_PER_READ * len(lines))

    def read_with_pyslurm(self, series: str, mebibytes: int) -> CommandResult:
        """The answer of `pyslurm_program`, whatever its exit code. `-P`: nothing beside it is imported by mistake.

        Raises NoConfigurationError, UnreachableError.
        """
        self.calls.reads += _PYSLURM_QUERIES
        argv = (sys.executable, "-P", str(_PYSLURM_PROGRAM), series, str(mebibytes))
        return self._execute(argv, "", self._timeout)

    def change(self, *argv: str) -> CommandResult:
        """Run one command that changes something. What it says is for the caller: exit codes prove nothing.

        Raises NoSlurmError, UnreachableError, UnsafeCommandError.
        """
        text = " ".join(argv)
        if not _CHANGE_COMMANDS.match(text) or not text.isprintable():
            raise UnsafeCommandError(f"not a command that may change anything: {text[:80]!r}")
        self.calls.writes += 1
        return self._execute(argv, "", self._timeout)

    def change_many(self, lines: Sequence[str]) -> CommandResult:
        """Feed `hold`, `release`, `requeuehold` and `update` lines to one scontrol, which goes on after an error.

        Raises NoSlurmError, UnreachableError, UnsafeCommandError.
        """
        for line in lines:
            if not _CHANGE_LINE.match(line):
                raise UnsafeCommandError(f"not a line for scontrol: {line[:80]!r}")
        self.calls.writes += len(lines)
        given = "".join(f"{line}\n" for line in lines)
        return self._execute(("scontrol",), given, self._timeout + _SECONDS_PER_CHANGE * len(lines))

    def _execute(self, argv: Sequence[str], stdin: str, timeout: float) -> CommandResult:
        conf = self._env.get("SLURM_CONF", "")
        if conf and not Path(conf).exists():  # Slurm's commands would look for it for a minute
            raise NoConfigurationError(f"there is no {conf}: set slurm_conf in [cluster], or SLURM_CONF")
        try:
            return self._runner(argv, stdin, timeout, self._env)
        except FileNotFoundError as error:
            raise NoSlurmError(f"no {argv[0]} on PATH: install Slurm's commands, or set PATH") from error
        except PermissionError as error:
            raise NoSlurmError(f"{argv[0]} may not be run by this user") from error
        except TimeoutError as error:
            raise UnreachableError(f"slurmctld did not answer {argv[0]} within {timeout:g} s") from error
