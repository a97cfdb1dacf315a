"""Slurm's accounting: shares of accounts and users (`sshare -a -P`), users' AdminLevel (`sacctmgr`), what users used on
all clusters of a site (`sreport`), and the runs that have ended (`sacct`)."""

from __future__ import annotations

import binascii
import json
import os
import pwd
import secrets
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from slurmsched.backends.protocol import CLOCK_TOLERANCE, IDLE_PERCENT, BackendError, FinishedPage, Identity, Privilege
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.records import (
    format_time,
    or_empty,
    parse_count,
    parse_mebibytes,
    parse_seconds,
    parse_time,
    parse_tres,
)
from slurmsched.model import AccountedRun, Association, JobId, RunEnd, parse_hints

_COLUMNS: Final = ("Account", "User", "RawShares")


def parse_associations(text: str) -> tuple[Association, ...]:
    """Every association, each account before its users. The indentation of an account's name is its depth.

    Raises SlurmParseError.
    """
    heading, *rows = text.splitlines() or [""]
    columns = heading.split("|")
    if not set(_COLUMNS) <= set(columns):
        raise SlurmParseError(f"sshare prints no columns {', '.join(_COLUMNS)}: {heading[:60]!r}")
    columns_used = [columns.index(name) for name in _COLUMNS]
    associations: list[Association] = []
    parents: list[str] = []
    for row in filter(None, rows):
        cells = row.split("|")
        if len(cells) <= max(columns_used):
            raise SlurmParseError(f"not a line of sshare: {row[:60]!r}")
        account, user, shares = (cells[index] for index in columns_used)
        depth, name = len(account) - len(account.lstrip()), account.strip()
        if user:
            associations.append(Association(name, user, name, _raw_shares(shares)))
            continue
        del parents[depth:]
        associations.append(Association(name, "", parents[-1] if parents else "", _raw_shares(shares)))
        parents.append(name)
    return tuple(associations)


def _raw_shares(text: str) -> int | None:
    return parse_count(text) if or_empty(text) and text != "parent" else None


_LEVELS: Final = {
    "operator": Privilege.OPERATOR,
    "administrator": Privilege.ADMINISTRATOR,
    "admin": Privilege.ADMINISTRATOR,
}


def effective_user() -> str:
    """The name of the effective user id, which munge reports to Slurm."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_identity(commands: Commands, user: str, slurm_user: str) -> Identity:
    """The user's privilege. If accounting does not answer, only that of SlurmUser and root is known."""
    if user in ("root", slurm_user):
        return Identity(user, Privilege.SLURM_USER)
    try:
        output = commands.read("sacctmgr", "-nP", "show", "user", f"name={user}", "format=User,AdminLevel")
    except BackendError as error:
        return Identity(user, Privilege.NONE, unread=str(error))
    for line in output.splitlines():
        name, _, level = line.partition("|")
        if name == user:
            return Identity(user, _LEVELS.get(level.strip().lower(), Privilege.NONE))
    return Identity(user, Privilege.NONE)


def read_operators(commands: Commands, slurm_user: str) -> frozenset[str]:
    """The users to whom Slurm shows everything: SlurmUser, root, and operators if accounting answers."""
    try:
        output = commands.read("sacctmgr", "-nP", "show", "user", "format=User,AdminLevel")
    except BackendError:
        output = ""
    rows = (line.split("|") for line in output.splitlines())
    levels = {row[0]: row[1].strip().lower() for row in rows if len(row) > 1}
    return frozenset({"root", slurm_user, *(user for user, level in levels.items() if level in _LEVELS)}) - {""}


_HOUR: Final = 3600
_USED: Final = ("Cluster", "Login", "Account", "Used")


def usage_query(since: float, until: float) -> tuple[str, ...]:
    """The sreport command for the GPU-seconds of each user on each cluster between these times (unix seconds).

    slurmdbd adds up usage once an hour: the hour that has begun is not in it.
    """
    start, end = (format_time(at // _HOUR * _HOUR) for at in (since, until))
    report = ("cluster", "UserUtilizationByAccount", f"Start={start}", f"End={end}", f"Format={','.join(_USED)}")
    return ("sreport", "-a", "-n", "-P", "-t", "Seconds", "-T", "gres/gpu", *report)


def read_usage(commands: Commands, since: float, until: float) -> Mapping[str, Mapping[str, int]]:
    """GPU-seconds by user and cluster between these times (unix seconds), as far as slurmdbd shows them to the caller.

    Raises BackendError.
    """
    return parse_usage(commands.read_accounting(*usage_query(since, until)))


def parse_usage(text: str) -> Mapping[str, Mapping[str, int]]:
    """GPU-seconds by user and cluster: the sum of a user's accounts. Raises SlurmParseError."""
    usage: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in filter(None, text.splitlines()):
        cells = line.split("|")
        if len(cells) != len(_USED) or not all(cells[:2]):
            raise SlurmParseError(f"not a line of sreport: {line[:60]!r}")
        usage[cells[1]][cells[0]] += parse_count(cells[3])
    return {user: dict(clusters) for user, clusters in usage.items()}


_ENDS: Final[Mapping[str, RunEnd]] = {
    "COMPLETED": RunEnd.COMPLETED,
    "CANCELLED": RunEnd.CANCELLED,
    "TIMEOUT": RunEnd.TIMED_OUT,
    "DEADLINE": RunEnd.TIMED_OUT,
    "FAILED": RunEnd.FAILED,
    "NODE_FAIL": RunEnd.FAILED,
    "BOOT_FAIL": RunEnd.FAILED,
    "OUT_OF_MEMORY": RunEnd.FAILED,
    "PREEMPTED": RunEnd.REQUEUED,
    "REQUEUED": RunEnd.REQUEUED,
}
_RUN_COLUMNS: Final = (
    "JobIDRaw",
    "JobID",
    "User",
    "JobName",
    "State",
    "Start",
    "End",
    "ElapsedRaw",
    "TimelimitRaw",
    "AllocTRES",
    "NTasks",
    "TotalCPU",
    "MaxRSS",
    "TRESUsageInMax",
    "TRESUsageInTot",
    "WorkDir",
    "Comment",
    "AdminComment",
)
_MAX_AMOUNT: Final = 2.0**40
"""More than any amount of a run: seconds, MiB, CPUs."""
_MAX_TEXT: Final = 1024
"""Characters of a name or a folder that are kept."""
_Row = Mapping[str, str]


def finished_query(since: float, until: float, mark: str) -> tuple[str, ...]:
    """The sacct command for the runs that ended between these times (unix seconds), with their steps.

    sacct does not escape what owners wrote, so `mark`, a random text that nobody can know in advance, ends each column.
    Asked by final states, slurmdbd goes by the time of the end.
    """
    start, end = format_time(since), format_time(until)
    states = "BOOT_FAIL,CANCELLED,COMPLETED,DEADLINE,FAILED,NODE_FAIL,OUT_OF_MEMORY,PREEMPTED,REQUEUED,TIMEOUT"
    options = ("-a", "-D", "-n", "-p", "--noconvert", f"--delimiter={mark}")
    return ("sacct", *options, "-S", start, "-E", end, "-s", states, "-o", ",".join(_RUN_COLUMNS))


def read_finished(commands: Commands, since: float, until: float) -> FinishedPage:
    """The runs with GPUs that ended between these times (unix seconds), in the order of their ends. Raises
    BackendError."""
    mark = secrets.token_hex(16)
    return parse_finished(commands.read_accounting(*finished_query(since, until, mark)), mark)


def parse_finished(text: str, mark: str) -> FinishedPage:
    """The runs with GPUs in sacct's output, and how many could not be read. Raises SlurmParseError if it is no table of
    these columns."""
    cells = text.split(mark)
    if len(cells) % len(_RUN_COLUMNS) != 1 or cells.pop().strip():
        raise SlurmParseError("sacct does not print the columns that it was asked for")
    runs, numbers, unread = dict[tuple[str, float], AccountedRun](), dict[JobId, str](), 0
    for run, steps in _with_steps(cells):
        try:
            parsed = _parse_run(run, steps)
        except (SlurmParseError, ValueError, OverflowError):
            unread += 1
            continue
        if parsed is not None and parsed.gpus:
            runs[parsed.job, parsed.ended] = parsed
            numbers[parsed.job] = run["JobIDRaw"]
    return FinishedPage(tuple(sorted(runs.values(), key=lambda run: (run.ended, run.job))), unread, numbers)


def format_finished(rows: Iterable[Mapping[str, str]], mark: str) -> str:
    """What sacct prints of these rows: each column and the mark, each row and a line break. Columns that a row lacks
    are empty."""
    return "".join("".join(row.get(name, "") + mark for name in _RUN_COLUMNS) + "\n" for row in rows)


def _with_steps(cells: Sequence[str]) -> Iterator[tuple[_Row, Sequence[_Row]]]:
    """Yield each run with the steps that follow it."""
    run: _Row | None = None
    steps: list[_Row] = []
    for start in range(0, len(cells), len(_RUN_COLUMNS)):
        row = dict(zip(_RUN_COLUMNS, cells[start : start + len(_RUN_COLUMNS)], strict=True))
        row["JobIDRaw"] = number = row["JobIDRaw"].removeprefix("\n")
        if "." in number:
            if run is not None and number.partition(".")[0] == run["JobIDRaw"]:
                steps.append(row)
            continue
        if run is not None:
            yield run, steps
        run, steps = row, []
    if run is not None:
        yield run, steps


def _parse_run(row: _Row, steps: Sequence[_Row]) -> AccountedRun | None:
    """The run; None if it never started, or has not ended. Raises SlurmParseError, ValueError."""
    ended, end = parse_time(row["End"]), _ENDS.get(row["State"].partition(" ")[0])
    seconds, allocated = float(parse_count(row["ElapsedRaw"])), parse_tres(row["AllocTRES"])
    if ended is None or end is None or parse_time(row["Start"]) is None or seconds <= 0:
        return None
    job, array = row["JobID"], row["JobID"].partition("_")
    nodes, gpus = max(parse_count(allocated.get("node"), 1), 1), parse_count(allocated.get("gres/gpu"))
    types = [name.removeprefix("gres/gpu:") for name in allocated if name.startswith("gres/gpu:")]
    cpus, memory, limit = parse_count(allocated.get("cpu")), parse_mebibytes(allocated.get("mem")), row["TimelimitRaw"]
    stats = parse_jobstats(row["AdminComment"], seconds, gpus, cpus=cpus, memory=memory)
    used = [parse_tres(step["TRESUsageInTot"]) for step in steps]
    gathered = any("mem" in amounts for amounts in used) or any(or_empty(step["MaxRSS"]) for step in steps)
    cpu = _cpu_seconds(row["TotalCPU"])
    cpu = max(cpu, sum(_cpu_seconds(amounts.get("cpu")) for amounts in used), stats.get("cpu", 0.0))
    peak = max(_peak_memory(steps), round(stats.get("memory", 0.0)))
    most = [parse_tres(step["TRESUsageInMax"]) for step in steps]
    use = [float(amounts["gres/gpuutil"]) for amounts in most if "gres/gpuutil" in amounts]
    gpu_memory = [_mebibytes(amounts.get("gres/gpumem")) for amounts in most]
    gathered |= "cpu" in stats
    time_limit = 60 * int(limit) if limit.isdecimal() else None
    amounts = (*use, *gpu_memory, cpu, peak, seconds, cpus, memory, gpus, nodes, time_limit or 0)
    if not all(0 <= amount < _MAX_AMOUNT for amount in amounts):
        raise SlurmParseError("its use is no amount")
    return AccountedRun(
        job=job,
        owner=row["User"],
        name=row["JobName"][:_MAX_TEXT],
        ended=ended,
        seconds=seconds,
        end=end,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        nodes=nodes,
        gpu_type=types[0] if len(types) == 1 else "",
        time_limit=time_limit,
        array_job=array[0] if array[1] else "",
        folder=row["WorkDir"][:_MAX_TEXT],
        model=parse_hints(row["Comment"]).model or "",
        cpu_seconds=cpu if cpu or gathered else None,
        gathered=gathered,
        peak_memory=peak or None,
        gpu_use=stats.get("gpu"),
        peak_gpu_use=min(max(use) / 100, 1.0) if use else None,
        gpu_memory=max((*gpu_memory, round(stats.get("gpu_memory", 0.0)))) or None,
        idle_gpus=round(stats["idle_gpus"]) if "idle_gpus" in stats else None,
        gpu_source="jobstats" if "gpu" in stats else "",
    )


def _peak_memory(steps: Sequence[_Row]) -> int:
    """The most memory (MiB) that steps at the same time had on one node, by the peaks of each."""
    changes: list[tuple[float, int]] = []
    for step in steps:
        start, end = parse_time(step["Start"]), parse_time(step["End"])
        nodes = max(parse_count(parse_tres(step["AllocTRES"]).get("node"), 1), 1)
        on_node = -(-max(parse_count(step["NTasks"], 1), 1) // nodes)
        total = _mebibytes(parse_tres(step["TRESUsageInTot"]).get("mem"))
        peak = max(_mebibytes(step["MaxRSS"]) * on_node, -(-total // nodes))
        if peak and start is not None and end is not None:
            changes += [(start, peak), (max(end, start + 1), -peak)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _cpu_seconds(text: str | None) -> float:
    """Seconds of `1-02:03:04` or `03:04.567`; 0 for no value. Raises SlurmParseError."""
    fraction = (text or "").partition(".")[2]
    return (parse_seconds(text) or 0) + (float(f"0.{fraction}") if fraction.isdecimal() else 0.0)


def _mebibytes(text: str | None) -> int:
    """MiB of an amount of use, rounded up: `3072K`, or bytes where it has no unit. Raises SlurmParseError."""
    value = or_empty(text)
    if value.isdecimal() and len(value) <= _MAX_DIGITS:
        return -(-int(value) // 1024**2)
    return parse_mebibytes(value) + 1 if value else 0


_MAX_DIGITS: Final = 18


_JOBSTATS: Final = "JS1:"
_MAX_JOBSTATS: Final = 65_536
"""Characters of a jobstats summary, and a sixteenth of its bytes once unpacked: that of a job on 1,000 nodes."""


def parse_jobstats(comment: str, seconds: float, gpus: int, *, cpus: int = 0, memory: int = 0) -> Mapping[str, float]:
    """What jobstats recorded in AdminComment (`JS1:`, then gzipped JSON in base64) of a run of this length.

    The run had so many `cpus` and MiB of `memory`, 0 where these are not known.
    `cpu` (seconds), `memory` and `gpu_memory` (MiB, the most of one node and one GPU), `gpu` (mean use, 0 to 1),
    `idle_gpus` (how many were used for less than 5 % of the time). Empty if there is none, and for anything that it
    could not have written about this run.
    """
    if not comment.startswith(_JOBSTATS) or len(comment) > _MAX_JOBSTATS:
        return {}
    try:
        packed = binascii.a2b_base64(comment[len(_JOBSTATS) :].encode("ascii"))
        unpacked = zlib.decompressobj(wbits=31).decompress(packed, 16 * _MAX_JOBSTATS)
        nodes = list(json.loads(unpacked)["nodes"].values())
        use = [amount for node in nodes for amount in node.get("gpu_utilization", {}).values()]
        on_gpus = [amount for node in nodes for amount in node.get("gpu_used_memory", {}).values()]
        told = sum(_amount(node["cpus"]) for node in nodes)
        total = sum(_amount(node["total_time"]) for node in nodes)
        most = max((_amount(node["used_memory"]) for node in nodes), default=0.0) / 1024**2
        busiest = (seconds + CLOCK_TOLERANCE) * (min(told, cpus) if cpus else told)
        if not nodes or total > busiest or (memory and most > memory):
            return {}  # of another run, or of nothing that there was
        found = {"cpu": total, "memory": most}
        if len(use) == gpus > 0:
            found["gpu"] = min(sum(map(_amount, use)) / 100 / gpus, 1.0)
            found["idle_gpus"] = float(sum(amount < IDLE_PERCENT for amount in use))
            found["gpu_memory"] = max(map(_amount, on_gpus), default=0.0) / 1024**2
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error):
        return {}
    return found


def _amount(value: object) -> float:
    """A number of 0 or more, and below 2^60. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**60:
        raise ValueError("no amount")
    return float(value)
