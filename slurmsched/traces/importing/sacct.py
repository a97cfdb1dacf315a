"""History as `sacct --parsable2` (or `--parsable`) prints it, whatever columns were asked for in whatever order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from slurmsched.traces.errors import TraceError
from slurmsched.traces.imported import Imported, Sources, in_order
from slurmsched.traces.importing.history import Record, jobs
from slurmsched.traces.lines import Line, parted

__all__ = ["ASK", "read_sacct", "seconds"]

ASK: Final = (
    "JobID",
    "JobIDRaw",
    "User",
    "Account",
    "State",
    "Submit",
    "Start",
    "Elapsed",
    "Timelimit",
    "NNodes",
    "ReqTRES",
    "AllocTRES",
    "Comment",
)
"""What to ask sacct for: `sacct -aX --parsable2 -o` these."""

_NEEDED: Final = ("JobID", "State", "Submit", "Start", "Elapsed")
_SPAN: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?\Z")
_AMOUNT: Final = re.compile(r"([0-9.]+)([KMGTP]?)[nc]?\Z")
_MIB: Final = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_NOTHING: Final = frozenset({"", "Unknown", "None", "N/A"})


def read_sacct(text: str, name: str, _sources: Sources) -> Imported:
    """The jobs that ran and are over; steps are left out. Raises TraceError.

    Times without a zone are taken as UTC: only their distances matter. `SLURM_TIME_FORMAT=%s` gives unix seconds, which
    no change of the clock disturbs.
    """
    if "|" not in text.partition("\n")[0]:
        raise TraceError(f"{name}:1: expected columns parted by '|': run sacct with --parsable2")
    skipped = Counter[str]()
    found = jobs(_records(text, name), skipped)
    return Imported(in_order(name, found, f"imported: {name}", from_first=True), dict(skipped))


def _records(text: str, name: str) -> Iterator[Record]:
    for line in parted(text, name, _NEEDED):
        if "." not in line.text("JobID"):
            yield _record(line)


def _record(line: Line) -> Record:
    asked, had = _tres(line, "ReqTRES"), _tres(line, "AllocTRES")
    gpus = _gpus(had) or _gpus(asked)
    typed = next((key.partition(":")[2] for key in asked if key.startswith("gres/gpu:")), "")
    memory = asked.get("mem") or had.get("mem")
    cpus = asked.get("cpu") or had.get("cpu")
    return Record(
        id=line.text("JobIDRaw") or line.text("JobID"),
        state=(line.text("State").split() or [""])[0].rstrip("+"),
        submit=_time(line, "Submit"),
        start=_time(line, "Start"),
        elapsed=seconds(line, "Elapsed") or 0.0,
        gpus=int(gpus),
        gpu_type=typed,
        shards=int(had.get("gres/shard", 0)),
        cpus=int(cpus) if cpus else None,
        memory=int(memory) if memory else None,
        nodes=line.optional_whole("NNodes") or 1,
        limit=seconds(line, "Timelimit"),
        user=line.text("User"),
        account=line.text("Account"),
        comment=line.text("Comment"),
    )


def _gpus(tres: dict[str, float]) -> float:
    typed = sum(amount for key, amount in tres.items() if key.startswith("gres/gpu:"))
    return tres.get("gres/gpu", 0.0) or typed


def _tres(line: Line, field: str) -> dict[str, float]:
    """`cpu=4,mem=16G,gres/gpu:v100=2` as numbers, memory in MiB."""
    amounts: dict[str, float] = {}
    for part in filter(None, line.text(field).split(",")):
        key, _, said = part.partition("=")
        match = _AMOUNT.match(said)
        if match is None or match[1].count(".") > 1 or match[1] == ".":
            raise line.mistake(field, "amounts such as cpu=4,mem=16G,gres/gpu=2")
        amounts[key] = float(match[1]) * (_MIB[match[2]] if key == "mem" else 1)
    return amounts


def seconds(line: Line, field: str) -> float | None:
    """`1-02:03:04`, `02:03:04` or `03:04`; None for what has no end. Raises TraceError."""
    said = line.text(field)
    if said in _NOTHING or said.upper() in ("UNLIMITED", "PARTITION_LIMIT"):
        return None
    match = _SPAN.match(said)
    if match is None or len(said) > 32:  # noqa: PLR2004  # longer than any time Slurm prints
        raise line.mistake(field, "a time such as 1-02:03:04")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return 86400.0 * days + 3600.0 * hours + 60.0 * minutes + rest


def _time(line: Line, field: str) -> float | None:
    said = line.text(field)
    if said in _NOTHING:
        return None
    if said.isdecimal():
        return line.number(field)
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        raise line.mistake(field, "a time such as 2026-01-31T12:00:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
