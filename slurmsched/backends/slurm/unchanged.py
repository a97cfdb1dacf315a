"""Keeps what was parsed of jobs and nodes, so that a poll parses only those that have changed since the last one.

What is kept counts only while all that it was parsed from is the same, except for a job's run time and a node's load,
which change at every poll. A poll with kept results is equal to one without, and a job or node that is the same is the
same object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurmsched.backends.slurm.cluster import parse_node
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.job_details import JobDetails
from slurmsched.backends.slurm.jobs import ClusterLimits, ParsedJob
from slurmsched.backends.slurm.records import parse_seconds
from slurmsched.backends.slurm.squeue_table import NO_TASK, ShownRow, SqueueRow
from slurmsched.model import Node

RUN_TIME: Final = "TimeUsed"
"""The column that changes at every poll of a running job."""


@dataclass(frozen=True, slots=True)
class ParsedRow:
    """The jobs of one row of squeue's table, and what they were parsed from."""

    shown: ShownRow
    run_time: str
    details: JobDetails | None
    throttle: int | None
    jobs: tuple[ParsedJob, ...]
    warnings: tuple[str, ...]
    stands_alone: bool
    """Whether no other row tells anything of it, as of tasks of the same array."""

    @classmethod
    def of(
        cls,
        row: SqueueRow,
        details: JobDetails | None,
        throttle: int | None,
        jobs: Iterable[ParsedJob],
        warnings: Iterable[str],
    ) -> ParsedRow:
        alone = row.value("ArrayTaskID") == NO_TASK
        return cls(row.shown(RUN_TIME), row.text(RUN_TIME), details, throttle, tuple(jobs), tuple(warnings), alone)

    def is_of(self, details: JobDetails | None, throttle: int | None) -> bool:
        """Whether it was parsed from these details, and with this throttle of its array."""
        return self.throttle == throttle and (self.details is details or self.details == details)

    def at(self, row: SqueueRow) -> ParsedRow:
        """The same with what the row says now, which differs in the run time alone. Raises SlurmParseError."""
        run_time = row.text(RUN_TIME)
        if run_time == self.run_time:
            return self
        seconds = float(parse_seconds(run_time) or 0)
        jobs = tuple(ParsedJob(parsed.job.with_run_time(seconds), parsed.request_form) for parsed in self.jobs)
        return ParsedRow(self.shown, run_time, self.details, self.throttle, jobs, self.warnings, self.stands_alone)


@dataclass(slots=True)
class ParsedRows:
    """The rows that the last poll could parse, by job number."""

    _rows: dict[str, ParsedRow] = field(default_factory=dict)
    _limits: ClusterLimits | None = None

    def unchanged(self, table: Mapping[str, SqueueRow], limits: ClusterLimits) -> dict[str, ParsedRow]:
        """The rows that are shown as at the last poll, where the cluster's totals are the same too."""
        if limits != self._limits:
            self._rows, self._limits = {}, limits
        known: dict[str, ParsedRow] = {}
        for number, row in table.items():
            last = self._rows.get(number)
            if last is None or not last.shown.is_of(row, RUN_TIME):
                continue
            try:
                known[number] = last.at(row)
            except SlurmParseError:
                continue  # parsing all of it raises the same error
        return known

    def keep(self, rows: Mapping[str, ParsedRow]) -> None:
        """Keep these rows, and no others, for the next poll."""
        self._rows = dict(rows)


_VOLATILE: Final = re.compile(r" (?:CPULoad|FreeMem|LastBusyTime|(?:Cap|Current|Ave)Watts|ExtSensors\w+)=\S*")
"""Fields of a node that change at every poll, none of which is read."""
_NODE_TEXT: Final = re.compile(r" (?:Reason|Comment|Extra)=")
"""Where the text begins that people write."""


@dataclass(slots=True)
class ParsedNodes:
    """The nodes of the last poll by their lines, without what changes at every poll."""

    _nodes: dict[str, Node] = field(default_factory=dict)
    _used: dict[str, Node] = field(default_factory=dict)

    def parse(self, line: str) -> Node:
        """The node of a line of `scontrol -d -o show node`. Raises SlurmParseError."""
        text = _NODE_TEXT.search(line)
        end = text.start() if text else len(line)
        key = _VOLATILE.sub("", line[:end]) + line[end:]
        node = self._nodes.get(key)
        self._used[key] = node = parse_node(line) if node is None else node
        return node

    def end_poll(self) -> None:
        """Forget the lines that this poll did not have."""
        self._nodes, self._used = self._used, {}
