"""A Slurm made up at the boundary of processes: it prints jobs as scontrol and squeue of three releases do.

What owners wrote stands in the text unescaped, as in Slurm's own. A command that it does not know is an AssertionError.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from slurmsched.backends.slurm.commands import Answer
from slurmsched.bench.hostile_jobs import GPUS, MadeUpJob, Release, cells, record

__all__ = ["MadeUpSlurm"]

_CPUS, _MEMORY = 24, 512_000
_LETTER: Final = re.compile(r"%(\d*)([A-Za-z])")
_LETTERS: Final = {"A": "jobid", "x": "excnodes"}
"""squeue's short forms."""

_Column = tuple[str, int, bytes, str]
"""The name in small letters, the width in bytes (0: as wide as the value), what stands behind it, the name as asked."""


_LATER: Final = {
    Release.BOOKWORM: frozenset({"excnodes", "exclusive"}),
    Release.TRIXIE: frozenset({"exclusive"}),
}
"""Columns of squeue that a release does not know."""


class MadeUpSlurm:
    """Stands for `run_process`; `spent` are the CPU seconds of its own work, which are not the reader's.

    It holds and releases jobs, and knows no other change.
    """

    def __init__(self, release: Release, nodes: Sequence[str], jobs: Sequence[MadeUpJob]) -> None:
        self.release = release
        self.nodes = tuple(nodes)
        self.jobs = list(jobs)
        self.spent = 0.0

    def __call__(self, argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> Answer:
        del timeout, env
        began = time.thread_time()
        try:
            return self._answer(argv, given)
        finally:
            self.spent += time.thread_time() - began

    def _answer(self, argv: Sequence[str], given: str) -> Answer:
        lines = given.splitlines()
        match [*argv]:
            case ["scontrol", *flags] if "show" not in flags:
                return self._questioned(lines) if flags else self._changed(lines)
            case ["scontrol", *flags, "show", "job"]:
                return self._shown(self.jobs, "-v" in flags)
            case ["scontrol", *flags, "show", "job", number]:
                return self._shown(self._found(number), "-v" in flags)
            case ["squeue", *words]:
                return self._queue(words)
        return _said(self._listed(argv))

    def _questioned(self, lines: Sequence[str]) -> Answer:
        """`show` lines on standard input: without a terminal nothing but the answers is printed."""
        said: list[bytes] = []
        errors = ""
        for line in lines:
            match line.split():
                case ["show", "hostnames", name]:
                    said.append(f"{name}\n".encode())
                case ["show", "job", number]:
                    found = self._found(number)
                    said += map(self._text, found)
                    errors += "" if found else "slurm_load_jobs error: Invalid job id specified\n"
                case _:
                    raise AssertionError(f"the made-up Slurm is not shown {line}")
        return _said(b"".join(said), errors)

    def _listed(self, argv: Sequence[str]) -> bytes:
        match [*argv]:
            case ["sacctmgr", "-nP", "show", "user", name, "format=User,AdminLevel"]:
                return f"{name.removeprefix('name=')}|Operator\n".encode()
            case ["scontrol", *_, "show", what]:
                return self._cluster(what)
        raise AssertionError(f"the made-up Slurm knows no command {' '.join(argv)}")

    def _cluster(self, what: str) -> bytes:
        listed = ",".join(self.nodes)
        partition = "PartitionName={} Default=YES MaxTime=UNLIMITED Nodes={} PriorityTier=1 State=UP\n"
        configuration = (
            f"ClusterName             = made-up\nSlurmUser               = slurm(64030)\n"
            f"SLURM_VERSION           = {self.release}.8\n"
        )
        match what:
            case "config":
                return configuration.encode()
            case "partition":
                return "".join(partition.format(name, listed) for name in ("gpu", "debug")).encode()
            case "reservation":
                return b"No reservations in the system\n"
            case "node":
                return b"".join(map(self._node, self.nodes))
        raise AssertionError(f"the made-up Slurm knows no command scontrol show {what}")

    def _found(self, number: str) -> list[MadeUpJob]:
        return [job for job in self.jobs if str(job.number) == number]

    def _changed(self, lines: Sequence[str]) -> Answer:
        for line in lines:
            verb, _, number = line.partition(" ")
            if verb not in ("hold", "release"):
                raise AssertionError(f"the made-up Slurm knows no change {line}")
            for job in self._found(number):
                job.priority, job.reason = (0, "JobHeldAdmin") if verb == "hold" else (100, "None")
                job.forget()
        return Answer(0, "", "")

    def _shown(self, jobs: Sequence[MadeUpJob], verbose: bool) -> Answer:
        if not jobs:
            return Answer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        head = b"last_update_time=2026-11-21T01:26:49, records=%d\n" % len(jobs) if verbose else b""
        return _said(head + b"".join(map(self._text, jobs)))

    def _queue(self, words: Sequence[str]) -> Answer:
        chosen = self.jobs
        if "-j" in words:
            numbers = set(words[words.index("-j") + 1].split(","))
            chosen = [job for job in self.jobs if str(job.number) in numbers]
        if "-o" in words:
            form = words[words.index("-o") + 1]
            short = tuple((_LETTERS[letter], int(width or 0), b"", "") for width, letter in _LETTER.findall(form))
            return _said(b"".join(self._row(job, short) for job in chosen))
        if "-O" in words:
            columns = _columns(words[words.index("-O") + 1])
            known = [column for column in columns if column[0] not in _LATER.get(self.release, ())]
            complaints = (
                f"squeue: error: Invalid job format specification: {column[3]}\n"
                for column in columns
                if column not in known
            )
            return _said(b"".join(self._row(job, known) for job in chosen), "".join(complaints))
        raise AssertionError(f"the made-up Slurm knows no command squeue {' '.join(words)}")

    def _node(self, name: str) -> bytes:
        own = [job for job in self.jobs if job.node == name]
        taken = sorted(index for job in own for index in job.indices)
        used = f"gpu:v100:{len(taken)}(IDX:{','.join(map(str, taken)) or 'N/A'})"
        state = "IDLE" if not taken else "ALLOCATED" if len(taken) == GPUS else "MIXED"
        return (
            f"NodeName={name} Arch=x86_64 CoresPerSocket=12  CPUAlloc={sum(job.cpus for job in own)} CPUEfctv={_CPUS}"
            f" CPUTot={_CPUS} CPULoad=1.70 AvailableFeatures=v100 ActiveFeatures=v100 Gres=gpu:v100:{GPUS}"
            f" GresDrain=N/A GresUsed={used} NodeAddr={name} NodeHostName={name} RealMemory={_MEMORY}"
            f" AllocMem={sum(job.memory for job in own)} Sockets=2 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0"
            f" Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu,debug \n"
        ).encode()

    def _text(self, job: MadeUpJob) -> bytes:
        return record(job, self.release)

    def _row(self, job: MadeUpJob, columns: Sequence[_Column]) -> bytes:
        """A line of `squeue -O`: each column padded and cut to its bytes, or with what stands behind it."""
        values, row = cells(job, self.release), []
        for name, width, mark, _ in columns:
            if name not in values:
                raise AssertionError(f"the made-up squeue knows no column {name}")
            row.append(values[name][:width].ljust(width) if width else values[name])
            row.append(mark)
        return b"".join(row) + b"\n"


def _said(out: bytes, errors: str = "") -> Answer:
    """As `run_process` gives it."""
    return Answer(0, out.decode(errors="replace"), errors, out)


@lru_cache(maxsize=16)
def _columns(form: str) -> tuple[_Column, ...]:
    return tuple(_column(column) for column in form.split(","))


def _column(asked: str) -> _Column:
    """`Name:20` or `Name:|` (or neither: 20 wide)."""
    match = re.fullmatch(r"([A-Za-z_-]+)(?::\.?(\d*)(\D?))?", asked)
    if match is None:
        raise AssertionError(f"the made-up squeue knows no column {asked}")
    mark = (match[3] or "").encode()
    return match[1].lower(), int(match[2]) if match[2] else 0 if mark else 20, mark, match[1]
