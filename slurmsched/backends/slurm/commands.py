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

from slurmsched.backends.protocol import Calls, UnreachableError
from slurmsched.backends.slurm.errors import NoConfigurationError, NoSlurmError, UnsafeError, explained, last_words

__all__ = ["Answer", "Commands", "Run", "environment", "run_process"]

_READS: Final = re.compile(
    r"scontrol (?:-[adovQ] )*(?:show (?:job|node|partition|reservation|config)\b|ping\Z|--version\Z)"
    r"|squeue (?!.*--start)|sacctmgr -nP show user\b|sshare -a -P\Z"
)
_CHANGES: Final = re.compile(
    r"scontrol (?:hold|release|requeuehold Incomplete|update JobId=|update NodeName=|reconfigure\Z)"
    r"|scancel --signal=(?:USR1|USR2|TERM|INT|HUP) --full \d"
)
_LINE: Final = re.compile(r"(?:hold|release|requeuehold Incomplete|update) [A-Za-z0-9_.,:/+=\[\] -]+\Z")
_EACH_CHANGE: Final = 0.05
"""Seconds more to wait for each line of a batch: five times what an update takes on a quiet machine."""

_QUESTION: Final = re.compile(r"show job [1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z|show hostnames [a-z0-9]{1,64}\Z")
_EACH_QUESTION: Final = 0.05
"""Seconds more to wait for the answer to each line: ten times what one takes on a busy controller."""

_PYSLURM: Final = Path(__file__).with_name("pyslurm_program.py")
_PYSLURM_QUERIES: Final = 4

_OTHERS: Final = ("SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SCONTROL_FUTURE")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said, and its exit code. `raw` is its output as it came, None where that is `out`."""

    code: int
    out: str
    error: str
    raw: bytes | None = None

    @property
    def data(self) -> bytes:
        """The output, byte for byte."""
        return self.out.encode() if self.raw is None else self.raw


class Run(Protocol):
    """Runs a process to its end. Raises FileNotFoundError, and TimeoutError when `timeout` seconds are over."""

    def __call__(self, argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer: ...


def run_process(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
    """The real thing. Text that is not UTF-8 comes back with the odd bytes replaced."""
    try:
        ended = subprocess.run(
            list(argv), input=given.encode(), capture_output=True, timeout=timeout, env=dict(env), check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{argv[0]} took longer than {timeout:g} s") from error
    out, complaints = (text.decode(errors="replace") for text in (ended.stdout, ended.stderr))
    return Answer(ended.returncode, out, complaints, ended.stdout)


def environment(slurm_conf: str, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the commands see: ours, without what would change their format."""
    env = {
        key: value
        for key, value in (os.environ if inherited is None else inherited).items()
        if key not in _OTHERS and not key.startswith("SQUEUE_")
    }
    env |= {"LC_ALL": "C", "TZ": "UTC0", "SLURM_BITSTR_LEN": "0"}
    if slurm_conf:
        env["SLURM_CONF"] = slurm_conf
    return env


class Commands:
    """Slurm's commands, counted. `timeout` is the longest wait for one answer, in seconds."""

    def __init__(self, timeout: float, slurm_conf: str = "", run: Run = run_process) -> None:
        self.calls = Calls()
        self._timeout = timeout
        self._env = environment(slurm_conf)
        self._run = run

    def read(self, *argv: str) -> str:
        """What a reading command prints. Raises BackendError and its kinds."""
        return self.read_answer(*argv).out

    def read_answer(self, *argv: str) -> Answer:
        """The whole answer of a reading command that succeeded. Raises BackendError and its kinds."""
        if not _READS.match(" ".join(argv)):
            raise UnsafeError(f"not a command that only reads: {' '.join(argv)[:80]!r}")
        self.calls.reads += 1
        answer = self._answer(argv, "", self._timeout)
        if answer.code != 0:
            raise explained(argv[0], answer.error if last_words(answer.error, "") else answer.out)
        return answer

    def read_many(self, lines: Sequence[str]) -> Answer:
        """The answer of one scontrol that is fed with `show` lines; its exit code says only how the last line ended.

        Raises NoSlurmError, UnreachableError, UnsafeError.
        """
        for line in lines:
            if not _QUESTION.match(line):
                raise UnsafeError(f"not a line that only reads: {line[:80]!r}")
        self.calls.reads += sum(line.startswith("show job") for line in lines)
        given = "".join(f"{line}\n" for line in lines)
        return self._answer(("scontrol", "-a", "-d", "-o"), given, self._timeout + _EACH_QUESTION * len(lines))

    def read_with_pyslurm(self, series: str, mebibytes: int) -> Answer:
        """The answer of `pyslurm_program`, whatever its exit code. `-P`: nothing beside it is imported by mistake.

        Raises NoConfigurationError, UnreachableError.
        """
        self.calls.reads += _PYSLURM_QUERIES
        argv = (sys.executable, "-P", str(_PYSLURM), series, str(mebibytes))
        return self._answer(argv, "", self._timeout)

    def change(self, *argv: str) -> Answer:
        """Run one command that changes something. What it says is for the caller: exit codes prove nothing.

        Raises NoSlurmError, UnreachableError, UnsafeError.
        """
        text = " ".join(argv)
        if not _CHANGES.match(text) or not text.isprintable():
            raise UnsafeError(f"not a command that may change anything: {text[:80]!r}")
        self.calls.writes += 1
        return self._answer(argv, "", self._timeout)

    def change_many(self, lines: Sequence[str]) -> Answer:
        """Feed `hold`, `release`, `requeuehold` and `update` lines to one scontrol, which goes on after an error.

        Raises NoSlurmError, UnreachableError, UnsafeError.
        """
        for line in lines:
            if not _LINE.match(line):
                raise UnsafeError(f"not a line for scontrol: {line[:80]!r}")
        self.calls.writes += len(lines)
        given = "".join(f"{line}\n" for line in lines)
        return self._answer(("scontrol",), given, self._timeout + _EACH_CHANGE * len(lines))

    def _answer(self, argv: Sequence[str], given: str, timeout: float) -> Answer:
        conf = self._env.get("SLURM_CONF", "")
        if conf and not Path(conf).exists():  # Slurm's commands would look for it for a minute
            raise NoConfigurationError(f"there is no {conf}: set slurm_conf in [cluster], or SLURM_CONF")
        try:
            return self._run(argv, given, timeout, self._env)
        except FileNotFoundError as error:
            raise NoSlurmError(f"no {argv[0]} on PATH: install Slurm's commands, or set PATH") from error
        except PermissionError as error:
            raise NoSlurmError(f"{argv[0]} may not be run by this user") from error
        except TimeoutError as error:
            raise UnreachableError(f"slurmctld did not answer {argv[0]} within {timeout:g} s") from error
