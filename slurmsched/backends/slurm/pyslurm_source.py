"""Polls by pyslurm, and by commands for what pyslurm does not show, such as most limits and defaults of partitions.

Changes are made by commands only. pyslurm 25.11 silently ignores a nice of 0, an empty node list and a number of nodes,
and cannot address a task of an array; 200 changes take 0.14 to 0.30 s through it and 0.15 to 0.28 s as lines of one
scontrol.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm import pyslurm_model
from slurmsched.backends.slurm.cluster import SlurmctldConfiguration, parse_node, parse_reservation
from slurmsched.backends.slurm.command_source import (
    ClusterView,
    CommandSource,
    parse_each,
    read_lines,
    read_partitions,
    row_fields,
)
from slurmsched.backends.slurm.commands import CommandResult, Commands
from slurmsched.backends.slurm.errors import (
    NoSlurmError,
    PyslurmFailedError,
    PyslurmUnavailableError,
    SlurmParseError,
    last_message,
)
from slurmsched.backends.slurm.jobs import limits_from_totals, parse_jobs
from slurmsched.backends.slurm.pyslurm_model import PyslurmValues
from slurmsched.backends.slurm.pyslurm_program import NO_ANSWER, NOT_INSTALLED, WRONG_SERIES
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.backends.slurm.sbatch_options import sbatch_options
from slurmsched.backends.slurm.squeue_table import read_squeue
from slurmsched.model import Node, Reservation, SetAsideJob
from slurmsched.model.reasons import pluralise

_MIN_PAUSE: Final = 60.0
_MAX_PAUSE: Final = 3600.0
"""Seconds after which pyslurm is tried again: the first pause after a failure, and the longest."""
_REQUEST_COLUMNS: Final = (
    "TresPerJob", "TresPerNode", "TresPerSocket", "TresPerTask", "CpusPerTres", "MemPerTres", "TimeLimit",
    "MinCPUsNode", *(option.column for option in sbatch_options() if option.column),
)  # fmt: skip
"""The fields of a request that pyslurm does not show."""
_INVALID_VALUES: Final = "pyslurm's values cannot be parsed"
_MAX_NAMED: Final = 5
"""Jobs or nodes that a remark names at most."""


@dataclass(frozen=True, slots=True)
class _Backoff:
    """Why pyslurm is not used, when it is tried again (unix seconds), and the length of this pause in seconds."""

    reason: str
    retry_at: float
    pause: float
    incompatible: bool = False


@dataclass(slots=True)
class PyslurmSource:
    """Reads by pyslurm in a separate process, and by commands the jobs and nodes that pyslurm does not show in full.

    If pyslurm fails, polls go by commands for a minute, then for two, up to an hour; a failure counts and is reported
    only if commands get an answer. If pyslurm does not fit this Slurm, that is an error with `required`; otherwise it
    is tried again after an hour. `clock` returns unix seconds; `mebibytes` limits pyslurm's address space.
    """

    clock: Callable[[], float]
    mebibytes: int
    required: bool = False
    _commands: CommandSource = field(default_factory=CommandSource, init=False)
    _requests_cache: dict[str, tuple[tuple[object, ...], dict[str, str]]] = field(default_factory=dict, init=False)
    _has_read: bool = field(default=False, init=False)
    _backoff: _Backoff | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """See `PollSource`."""
        return self._commands.name if self._backoff is not None and self._backoff.incompatible else "pyslurm"

    def read(self, commands: Commands, configuration: SlurmctldConfiguration, *, with_partitions: bool) -> ClusterView:
        """See `PollSource`. Raises PyslurmUnavailableError if pyslurm is required and does not fit."""
        off = self._backoff
        if off is None or not off.retry_at - off.pause <= self.clock() < off.retry_at:
            try:
                polled = read_pyslurm(commands, ".".join(configuration.release.split(".")[:2]), self.mebibytes)
            except PyslurmUnavailableError as error:
                if self.required:
                    raise
                off = _Backoff(str(error), self.clock() + _MAX_PAUSE, _MAX_PAUSE, incompatible=True)
            except PyslurmFailedError as error:
                pause = _MIN_PAUSE if off is None or off.incompatible else min(2 * off.pause, _MAX_PAUSE)
                off = _Backoff(str(error), self.clock() + pause, pause)
            else:
                self._backoff, self._has_read = None, True
                return self._build_view(commands, polled, configuration, with_partitions=with_partitions)
        view = self._commands.read(commands, configuration, with_partitions=with_partitions)
        self._backoff = off
        if off.incompatible and not self._has_read:
            return replace(view, remarks=(*view.remarks, f"polls go by commands: {off.reason}"))
        warning = f"{off.reason}: polls go by commands, and pyslurm is tried again after {off.pause / 60:.0f} min"
        return replace(view, oddities=(*view.oddities, warning))

    def _build_view(
        self,
        commands: Commands,
        polled: PyslurmRecords,
        configuration: SlurmctldConfiguration,
        *,
        with_partitions: bool,
    ) -> ClusterView:
        partition_info = read_partitions(commands, configuration) if with_partitions else None
        reservations, odd_reservations, reservation_remarks = _build_reservations(commands, polled.reservations)
        reasons = {_job_number(job): _incomplete_reason(job) for job in polled.jobs}
        records = self._build_records(commands, polled, reasons)
        limits = limits_from_totals(pyslurm_model.node_totals(polled.nodes))
        jobs = {record.number: parse_jobs([record], limits) for record in records}
        reasons |= {number: _INVALID_VALUES for number, (_, unclear, _) in jobs.items() if unclear}
        read, unread = self._read_by_commands(commands, [job for job in polled.jobs if reasons[_job_number(job)]])
        jobs = {number: parsed for number, parsed in jobs.items() if not reasons[number]}
        jobs |= {record.number: parse_jobs([record], limits) for record in read}
        in_order = [jobs[number] for number in sorted(jobs, key=int)]
        nodes, odd_nodes, node_remarks = _build_nodes(commands, polled, [*records, *read], configuration.tracked_tres)
        return ClusterView(
            nodes,
            [job for parsed, _, _ in in_order for job in parsed],
            [*unread, *(aside for _, unclear, _ in in_order for aside in unclear)],
            partition_info,
            (*odd_reservations, *odd_nodes, *(warning for _, _, warnings in in_order for warning in warnings)),
            (
                f"pyslurm {polled.release} reads nodes, reservations and jobs ({polled.mebibytes} MiB)",
                *_group_by_reason("job", ((number, reason) for number, reason in reasons.items() if reason)),
                *node_remarks,
                *reservation_remarks,
            ),
            tuple(reservations),
        )

    def _build_records(self, commands: Commands, polled: PyslurmRecords, reasons: dict[str, str]) -> list[JobRecord]:
        """The records of the jobs without an entry in `reasons`; adds those that cannot be parsed to `reasons`."""
        requests = self._read_requests(commands, [job for job in polled.jobs if not reasons[_job_number(job)]], reasons)
        threads = {node["name"]: pyslurm_model.node_threads(node) for node in polled.nodes}
        separate_tasks = pyslurm_model.tasks_with_records(polled.jobs)
        records: list[JobRecord] = []
        for job in polled.jobs:
            number = _job_number(job)
            if reasons[number] or number not in requests:
                continue
            try:
                tasks = separate_tasks.get(job["array_id"], ())
                records.append(pyslurm_model.build_record(job, requests[number], polled.users, threads, tasks))
            except Exception:  # whatever is wrong with one job's values, only that job is read by commands
                reasons[number] = _INVALID_VALUES
        return records

    def _read_requests(
        self, commands: Commands, jobs: Sequence[PyslurmValues], reasons: dict[str, str]
    ) -> dict[str, dict[str, str]]:
        """The GPU request fields of each job that squeue still knows; adds mismatches to `reasons`.

        Every job is queried, as its TRES do not show GPUs that accounting does not track: once for each request, but at
        every poll for a pending job whose GPU type may change unseen.
        """
        by_number = {_job_number(job): job for job in jobs}
        keys = {number: pyslurm_model.request_key(job) for number, job in by_number.items()}
        self._requests_cache = {
            number: known for number, known in self._requests_cache.items() if keys.get(number) == known[0]
        }
        fresh = {
            number
            for number, job in by_number.items()
            if number not in self._requests_cache
            or pyslurm_model.may_change_gpu_type_unseen(job, self._requests_cache[number][1])
        }
        names = {number: _query_id(by_number[number]) for number in fresh}
        table = read_squeue(commands, names.values(), hidden_tasks=False)
        table |= read_squeue(commands, {names[number] for number in fresh - table.keys()})
        for number in fresh:
            self._requests_cache.pop(number, None)
            if number not in table:
                continue
            try:
                reasons[number] = pyslurm_model.row_mismatch(by_number[number], table[number])
                fields = row_fields(table[number])
            except Exception:  # as above; the job is set aside if commands cannot read it either
                reasons[number] = "squeue's values cannot be parsed"
            if not reasons[number]:
                self._requests_cache[number] = keys[number], {name: fields[name] for name in _REQUEST_COLUMNS}
        return {number: known[1] for number, known in self._requests_cache.items() if not reasons[number]}

    def _read_by_commands(
        self, commands: Commands, jobs: Sequence[PyslurmValues]
    ) -> tuple[list[JobRecord], list[SetAsideJob]]:
        """The records of these jobs read by commands, and those that cannot be read."""
        read, unread = self._commands.jobs.read_records(commands, {_query_id(job) for job in jobs})
        numbers, names = {_job_number(job) for job in jobs}, {name for job in jobs for name in _possible_ids(job)}
        return [record for record in read if record.number in numbers], [
            aside for aside in unread if aside.job in names
        ]


def _job_number(job: PyslurmValues) -> str:
    return str(job["id"])


def _query_id(job: PyslurmValues) -> str:
    """The number by which squeue is asked for it: that of its array or heterogeneous job, else its own."""
    return str(job["array_id"] or job["heterogeneous_id"] or job["id"])


def _possible_ids(job: PyslurmValues) -> tuple[str, ...]:
    """The ids that the job may have if it is set aside."""
    return (
        _job_number(job),
        f"{job['array_id']}_{job['array_task_id'] or 0}",
        f"{_query_id(job)}+{job['heterogeneous_offset'] or 0}",
    )


def _incomplete_reason(job: PyslurmValues) -> str:
    try:
        return pyslurm_model.incomplete_reason(job)
    except Exception:  # as above
        return _INVALID_VALUES


def _build_node(values: PyslurmValues, allocated: Iterable[int], tracked: Collection[str]) -> Node | None:
    try:
        return pyslurm_model.build_node(values, allocated, tracked)
    except (SlurmParseError, TypeError, ValueError, LookupError):
        return None  # read by scontrol instead, which reports the node by name if that fails too


def _build_nodes(
    commands: Commands, polled: PyslurmRecords, records: Iterable[JobRecord], tracked: Collection[str]
) -> tuple[list[Node], list[str], list[str]]:
    """The nodes in Slurm's order, a warning for each unreadable one, and remarks on those read by commands."""
    devices = pyslurm_model.allocated_devices(records)
    by_name = {values["name"]: _build_node(values, devices.get(values["name"], ()), tracked) for values in polled.nodes}
    missing = [name for name, node in by_name.items() if node is None]
    odd: list[str] = []
    if missing:
        # All nodes: a query by name would fail if one of them has been removed since.
        shown = read_lines(commands, "node", "-a", "-d", "-o")
        wanted = {f"NodeName={name}" for name in missing}
        read, odd = parse_each("node", (line for line in shown if line.split(" ", 1)[0] in wanted), parse_node)
        by_name |= {node.name: node for node in read}
    remarks = _group_by_reason(
        "node", ((name, "pyslurm does not show which of its GPUs are allocated") for name in missing)
    )
    return [node for node in by_name.values() if node is not None], odd, remarks


def _build_reservations(
    commands: Commands, shown: Sequence[PyslurmValues]
) -> tuple[list[Reservation], list[str], list[str]]:
    """The reservations, a warning for each unreadable one, and remarks if they are read by commands."""
    unread = {values["name"]: ", ".join(sorted(values["unread"])) for values in shown if values["unread"]}
    if not unread:
        return *parse_each("reservation", shown, pyslurm_model.build_reservation), []
    remarks = _group_by_reason(
        "reservation", ((name, f"pyslurm cannot read {fields}") for name, fields in unread.items())
    )
    return *parse_each("reservation", read_lines(commands, "reservation"), parse_reservation), remarks


def _group_by_reason(kind: str, reasons: Iterable[tuple[str, str]]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons:
        by_reason.setdefault(reason, []).append(name)
    remarks = []
    for reason, names in by_reason.items():
        more = ", ..." if len(names) > _MAX_NAMED else ""
        verb = "is" if len(names) == 1 else "are"
        remarks.append(
            f"{pluralise(len(names), kind)} {verb} read by commands, as {reason}: {', '.join(names[:_MAX_NAMED])}{more}"
        )
    return remarks


_KEY_FIELDS: Final = {"jobs": "id", "nodes": "name", "reservations": "name"}
"""The kinds of records, and the field that identifies each record."""


@dataclass(frozen=True, slots=True)
class PyslurmRecords:
    """All records of one poll. `release` is pyslurm's, `users` are names by uid, `mebibytes` is its peak memory."""

    release: str
    users: Mapping[str, str]
    mebibytes: int
    jobs: tuple[PyslurmValues, ...]
    nodes: tuple[PyslurmValues, ...]
    reservations: tuple[PyslurmValues, ...]


def read_pyslurm(commands: Commands, series: str, mebibytes: int) -> PyslurmRecords:
    """Reads the cluster once, from a slurmctld of this series (`25.11`), with at most so much memory in MiB.

    Raises PyslurmUnavailableError if pyslurm is missing or does not fit, PyslurmFailedError if it failed or got no
    answer, and BackendError.
    """
    try:
        answer = commands.read_with_pyslurm(series, mebibytes)
    except UnreachableError as error:
        raise PyslurmFailedError("pyslurm did not answer in time") from error
    except NoSlurmError as error:
        raise PyslurmFailedError("pyslurm's interpreter cannot be started") from error
    if answer.exit_code in (NOT_INSTALLED, WRONG_SERIES):
        raise PyslurmUnavailableError(last_message(answer.stderr))
    if answer.exit_code == NO_ANSWER:
        raise PyslurmFailedError(f"pyslurm has no answer from slurmctld ({last_message(answer.stderr)[:200]})")
    if answer.exit_code:
        raise PyslurmFailedError(f"pyslurm {_describe_exit(answer)}")
    try:
        answer_data = json.loads(answer.stdout_bytes)
        return PyslurmRecords(
            str(answer_data["release"]),
            answer_data["users"],
            int(answer_data["mebibytes"]),
            *(_records(answer_data[kind], key) for kind, key in _KEY_FIELDS.items()),
        )
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise PyslurmFailedError(f"pyslurm's answer cannot be parsed ({type(error).__name__})") from error


def _records(table: Mapping[str, Any], key: str) -> tuple[PyslurmValues, ...]:
    fields = (*table["fields"], "unread")
    records = tuple(dict(zip(fields, row, strict=True)) for row in table["rows"])
    if any(record[key] is None for record in records):
        raise ValueError(f"a record without its {key}")
    return records


def _describe_exit(answer: CommandResult) -> str:
    message = last_message(answer.stderr, "")[:200]
    suffix = f": {message}" if message else ""
    if answer.exit_code < 0:
        return f"was ended by {_signal_name(-answer.exit_code)}{suffix}"
    return f"ended with exit code {answer.exit_code}{suffix}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
