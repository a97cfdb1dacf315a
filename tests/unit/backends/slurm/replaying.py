"""Slurm as it was recorded: the commands for jobs, answered with what a real slurmctld printed, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurmsched.backends.slurm.command_source import CommandJobReader
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.jobs import NO_LIMITS, ParsedJob, parse_jobs
from slurmsched.backends.slurm.squeue_table import columns_query, excluded_query, narrow_query

__all__ = ["Replay", "jobs_in"]

_TASK = re.compile(rb"^JobId=(\d+) ArrayJobId=(\d+) ArrayTaskId=(\d+) ", re.MULTILINE)


class Replay:
    """Stands for `run_process`. `asked` are the commands in order."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self._folder = folder
        tasks = _TASK.findall((folder / "show_job.txt").read_bytes())
        self._numbers = {f"{job.decode()}_{task.decode()}": number.decode() for number, job, task in tasks}

    def __call__(self, argv: Sequence[str], given: str, _timeout: float, _env: Mapping[str, str]) -> CommandResult:
        self.asked.append(" ".join(argv[:6]))
        command = tuple(argv)
        for name, ids in (("table", ()), ("wide", command[-1:])):
            for kind, query in (("columns", columns_query(ids)), ("excluded", excluded_query(ids))):
                if command == query:
                    return self._answer(f"{name}_{kind}")
        if command == narrow_query(command[-1:], each_task=True):
            return _said(b"")  # no task was recorded that was changed by itself
        if command == ("scontrol", "-a", "-d", "-o", "show", "job"):
            return _said((self._folder / "show_job.txt").read_bytes())
        assert command == ("scontrol", "-a", "-d", "-o"), f"{command} was not recorded"
        return _said(b"".join(self._line(line) for line in given.splitlines()))

    def _line(self, line: str) -> bytes:
        name = line.rsplit(maxsplit=1)[-1]
        if line.startswith("show hostnames "):
            return f"scontrol: {line}\n{name}\n".encode()
        return (self._folder / "jobs" / f"{self._numbers.get(name, name)}.txt").read_bytes().removesuffix(b"scontrol: ")

    def _answer(self, name: str) -> CommandResult:
        return _said(
            (self._folder / f"{name}.bin").read_bytes(),
            (self._folder / f"{name}.error.txt").read_text(encoding="utf-8"),
        )


def _said(raw: bytes, error: str = "") -> CommandResult:
    return CommandResult(0, raw.decode(errors="replace"), error, raw)


def jobs_in(folder: Path) -> list[ParsedJob]:
    """All recorded jobs; every one of them makes sense."""
    records, left = CommandJobReader().read_records(Commands(5, runner=Replay(folder)))
    jobs, unclear, longer = parse_jobs(records, NO_LIMITS)
    assert (left, unclear, longer) == ([], [], [])
    return jobs
