"""The log of what is done to jobs: one line per event, in the systemd journal with fields, or on standard error as text
or JSON.

The journal is written to by its native protocol (systemd, JOURNAL_NATIVE_PROTOCOL), in which the length of each value
goes before it: what the owner of a job wrote can end no value and begin no other.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Final, TextIO

from slurmsched import __version__
from slurmsched.daemon.clock import Clock, RealClock
from slurmsched.model import JobId, Operation, Outcome, ReasonCode, Result, Snapshot, Verb
from slurmsched.model.reasons import format_duration, pluralise
from slurmsched.policies.policies import order_read
from slurmsched.rounds.guards import settings_contradictions
from slurmsched.settings.definition import Settings
from slurmsched.settings.file import changed_settings
from slurmsched.store.journal import JobEvent, JobEventKind

JOURNAL_SOCKET: Final = Path("/run/systemd/journal/socket")
IDENTIFIER: Final = "synsched"
"""What `journalctl -t` selects by."""

_MAX_MESSAGE: Final = 1000
_MAX_VALUE: Final = 200
"""Characters."""
_DAEMON_FACILITY: Final = "3"
_MAX_REMARKS: Final = 100
"""Most distinct remarks that are remembered so as not to be repeated."""


class Severity(IntEnum):
    """As in syslog(3)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


class LogForm(StrEnum):
    """Where log lines go."""

    AUTO = "auto"
    """To the journal if systemd connected standard error to it, otherwise as text."""
    JOURNAL = "journal"
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One event. `fields` are `verb`, `job`, `user`, `reason` and the like, in the journal SYNSCHED_VERB and so on.

    `shown` is False where the command that runs shows the same in a table of its own.
    """

    message: str
    severity: Severity = Severity.INFO
    fields: Mapping[str, str] = field(default_factory=dict)
    shown: bool = True


WriteEntry = Callable[[LogEntry], None]


def one_line(text: object, most: int = _MAX_VALUE) -> str:
    """At most so many printable characters of `text`, which may be anybody's, in one line."""
    line = " ".join(str(text)[: 4 * most].split())
    line = "".join(sign if sign.isprintable() else "?" for sign in line)
    return line if len(line) <= most else f"{line[: most - 3]}..."


class DaemonLog:
    """Writes the events of rounds; what cannot be written is lost, and ends nothing."""

    def __init__(self, write: WriteEntry = lambda _entry: None) -> None:
        self._write = write
        self._remarks: set[str] = set()

    def __call__(self, message: str) -> None:
        """Log what went wrong, in a sentence."""
        self.event(message, Severity.WARNING)

    def once(self, message: str) -> None:
        """Log what went wrong in a round, unless the same was logged recently."""
        if message not in self._remarks:
            if len(self._remarks) >= _MAX_REMARKS:
                self._remarks.clear()
            self._remarks.add(message)
            self(message)

    def event(self, message: str, severity: Severity = Severity.NOTICE, **fields: str) -> None:
        """Log an event that concerns the daemon, or a job named in `fields`."""
        self._put(message, severity, fields, shown=True)

    def introduce(self, settings: Settings) -> None:
        """Log that the daemon starts, under which settings."""
        manage, policy = settings.manage, settings.policy
        order = order_read(policy.system, policy.order)
        managed = [f"partition {name}" for name in manage.partitions] + [f"QOS {name}" for name in manage.qos]
        managed += ["jobs with a hint"] if manage.opt_in else []
        self.event(
            f"slurmsched {__version__} starts in mode {settings.rounds.mode.value} with policy {policy.system}"
            f"{f', order {order}' if order else ''}; it manages {', '.join(managed) or 'nothing'};"
            f" a round every {format_duration(settings.rounds.period)}",
            verb="run",
            version=__version__,
            mode=settings.rounds.mode.value,
            policy=policy.system,
            order=order,
            partitions=",".join(manage.partitions),
        )
        self._contradictions(settings)

    def reloaded(self, before: Settings, after: Settings) -> None:
        """Log which settings have changed, and which of them wait for the next start of the daemon."""
        changed = changed_settings(before, after)
        late = [setting for setting in changed if setting.startswith(("storage.path ", "daemon.log "))]
        waits = f"; as of the next start {', '.join(late)}" if late else ""
        now = ", ".join(setting for setting in changed if setting not in late)
        self.event(f"the settings were read again: {now or 'nothing in force has changed'}{waits}", verb="reload")
        self._contradictions(after)

    def _contradictions(self, settings: Settings) -> None:
        """Log what the settings say in vain or against each other."""
        for sentence in settings_contradictions(settings):
            self.event(f"the settings: {sentence}", Severity.WARNING, verb="settings")

    def operations(self, outcomes: Iterable[Outcome], snapshot: Snapshot, *, resumed: bool = False) -> None:
        """Log what was done: one line per job, and one per batch for nice values, notes and weights.

        `resumed` are the operations that an interrupted process left open, as they turned out to be.
        """
        ended = tuple(outcomes)
        released = {one.operation.subject for one in ended if one.operation.verb is Verb.RELEASE}
        counted: Counter[Verb] = Counter()
        for outcome in ended:
            operation = outcome.operation
            if outcome.result is Result.DONE and operation.verb in _COUNTED:
                counted[operation.verb] += 1
            elif resumed or _is_news(outcome, released):
                owner = _owner(operation.subject, snapshot)
                severity = Severity.NOTICE if resumed else _severity(outcome)
                self._put(_sentence(outcome, owner, resumed=resumed), severity, _fields(outcome, owner), shown=False)
        for verb, count in counted.items():
            sentence, noun = _COUNTED[verb]
            self._put(sentence.format(pluralise(count, noun)), Severity.INFO, {"verb": verb.value}, shown=False)

    def job_events(self, events: Iterable[JobEvent], snapshot: Snapshot) -> None:
        """Log what happened to jobs that is no operation of ours but overrules one."""
        for event in events:
            if event.kind not in _FOREIGN:
                continue
            owner = _owner(event.job, snapshot)
            fields = {"verb": _FOREIGN[event.kind], "job": event.job, "user": owner, "reason": _BY_OTHERS}
            self._put(f"{_job(event.job, owner)} {event.sentence}", Severity.NOTICE, fields, shown=False)

    def _put(self, message: str, severity: Severity, fields: Mapping[str, str], *, shown: bool) -> None:
        clean = {name: one_line(value) for name, value in fields.items() if value}
        with suppress(OSError, ValueError):  # a closed stream, or no room on the disk
            self._write(LogEntry(one_line(message, _MAX_MESSAGE), severity, clean, shown))


NO_LOG: Final = DaemonLog()
"""Writes nothing."""

_COUNTED: Final = {
    Verb.PRIORITIZE: ("set: the nice values of {}", "job"),
    Verb.NOTE: ("written: the AdminComment of {}", "job"),
    Verb.WEIGH: ("set: the weights of {}", "node"),
}
_FOREIGN: Final = {JobEventKind.OVERRULED: "release", JobEventKind.REQUEUED: "requeue"}
_BY_OTHERS: Final = "by_others"
_PAST: Final[Mapping[Verb, str]] = {
    Verb.HOLD: "held",
    Verb.UPDATE: "reshaped",
    Verb.RELEASE: "released",
    Verb.NOTIFY: "signalled",
    Verb.REQUEUE: "requeued",
    Verb.PRIORITIZE: "prioritized",
    Verb.NOTE: "noted",
    Verb.WEIGH: "weighed",
    Verb.CONFIGURE: "configured",
}
_OF_NO_JOB: Final = frozenset({Verb.WEIGH, Verb.CONFIGURE})


def _owner(job: JobId, snapshot: Snapshot) -> str:
    known = snapshot.jobs_by_id.get(job)
    if known is not None:
        return known.user
    return next((aside.user for aside in snapshot.set_aside if aside.job in (job, job.partition("_")[0])), "")


def _job(job: JobId, owner: str) -> str:
    return f"job {job} of {owner}" if owner else f"job {job}"


def _subject(operation: Operation, owner: str) -> str:
    return operation.subject if operation.verb in _OF_NO_JOB else _job(operation.subject, owner)


def _sentence(outcome: Outcome, owner: str, *, resumed: bool) -> str:
    operation, subject = outcome.operation, _subject(outcome.operation, owner)
    verb, why = operation.verb.value, operation.reason.sentence
    detail = f" ({outcome.detail})" if outcome.detail and not resumed else ""
    if resumed:
        happened = "" if outcome.result is Result.DONE else "not "
        return f"{happened}{_PAST[operation.verb]} before an interruption: {subject} {why}"
    match outcome.result:
        case Result.DONE:
            return f"{_PAST[operation.verb]}: {subject} {why}"
        case Result.UNDONE:
            return f"{verb} was undone: {subject} did not start{detail}"
        case result:
            return f"{verb} was {result.value}{detail}: {subject} {why}"


def _is_news(outcome: Outcome, released: Collection[JobId]) -> bool:
    """Whether it needs a line of its own: not if nothing was done and the same is planned again, nor as a part of what
    has one: a start, a start that is undone, a job that is given back."""
    operation, code = outcome.operation, outcome.operation.reason.code
    match outcome.result, operation.verb:
        case ((Result.INTENDED | Result.BLOCKED), _):
            return False
        case Result.OVERTAKEN, verb:
            return verb in (Verb.HOLD, Verb.NOTIFY, Verb.REQUEUE)
        case Result.DONE, Verb.UPDATE:
            return code is ReasonCode.MENDED or (code is ReasonCode.GIVE_BACK and operation.subject not in released)
        case Result.DONE, Verb.HOLD:
            return code is not ReasonCode.NOT_STARTED
    return True


def _severity(outcome: Outcome) -> Severity:
    match outcome.result, outcome.operation.verb:
        case ((Result.DONE | Result.OVERTAKEN), verb):
            return Severity.NOTICE if verb in (Verb.NOTIFY, Verb.REQUEUE) else Severity.INFO
    return Severity.WARNING


def _fields(outcome: Outcome, owner: str) -> dict[str, str]:
    operation = outcome.operation
    subject = "node" if operation.verb is Verb.WEIGH else "file" if operation.verb is Verb.CONFIGURE else "job"
    return {
        "verb": operation.verb.value,
        subject: operation.subject,
        "user": owner,
        "reason": operation.reason.code.value,
        "result": outcome.result.value,
    }


_PATIENCE: Final = 0.1
"""Seconds that a full journal is waited for, once in `_RESPITE`; otherwise a line that finds it full is lost."""
_RESPITE: Final = 10.0


class JournalSocket:
    """Sends entries to systemd-journald. `otherwise` writes those that find no journal; those that find it full are
    counted and told later, since no round may wait for it."""

    def __init__(self, otherwise: WriteEntry, path: Path | None = None, clock: Clock | None = None) -> None:
        self._otherwise = otherwise
        self._path = path or JOURNAL_SOCKET
        self._clock = clock or RealClock()
        self._socket: socket.socket | None = None
        self._lost = 0
        self._patient_from = 0.0

    def __call__(self, entry: LogEntry) -> None:
        if self._lost:
            lost = f"the journal was full: {pluralise(self._lost, 'line')} of the log got lost"
            if not self._sends(LogEntry(lost, Severity.WARNING)):
                self._lost += 1
                return
            self._lost = 0
        if not self._sends(entry):
            self._lost += 1

    def _sends(self, entry: LogEntry) -> bool:
        """Whether the entry was written; not if the journal is full."""
        datagram = journal_datagram(entry)
        for _ in range(2):  # a journal that was restarted has another socket
            try:
                self._connected().send(datagram)
            except (BlockingIOError, TimeoutError):
                self._patient_from = self._clock.monotonic() + _RESPITE
                return False
            except OSError:
                self._close()
            else:
                return True
        self._otherwise(entry)
        return True

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.connect(str(self._path))
        self._socket.settimeout(_PATIENCE if self._clock.monotonic() >= self._patient_from else 0.0)
        return self._socket

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def journal_datagram(entry: LogEntry) -> bytes:
    """The entry as the journal reads it: each field as its name, the length of its value, and the value."""
    own = {f"SYNSCHED_{name.upper()}": value for name, value in entry.fields.items()}
    values = {
        "MESSAGE": entry.message,
        "PRIORITY": str(int(entry.severity)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "SYSLOG_FACILITY": _DAEMON_FACILITY,
        **own,
    }
    return b"".join(_journal_field(name, value.encode(errors="replace")) for name, value in values.items())


def _journal_field(name: str, value: bytes) -> bytes:
    return name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"


def text_writer(stream: TextIO, *, once: bool) -> WriteEntry:
    """Writes lines for people; with `once` not those that the command shows in a table."""

    def write(entry: LogEntry) -> None:
        if entry.shown or not once:
            stream.write(f"{IDENTIFIER}: {entry.message}\n")
            stream.flush()

    return write


def json_writer(stream: TextIO, now: Callable[[], float] = time.time) -> WriteEntry:
    """Writes one JSON object per line: the local time with its offset, the level, the message and the fields."""

    def write(entry: LogEntry) -> None:
        at = datetime.fromtimestamp(now()).astimezone().isoformat(timespec="milliseconds")
        row = {"time": at, "level": entry.severity.name.lower(), "message": entry.message, **entry.fields}
        stream.write(json.dumps(row) + "\n")
        stream.flush()

    return write


def open_log(settings: Settings, environment: Mapping[str, str], stream: TextIO, *, once: bool = False) -> DaemonLog:
    """The log of `daemon.log`. `once` is for a command that prints a table of what it did, on a terminal or by mail."""
    text = text_writer(stream, once=once)
    match LogForm(settings.daemon.log):
        case LogForm.JSON:
            return DaemonLog(json_writer(stream))
        case LogForm.JOURNAL:
            return DaemonLog(JournalSocket(text))
        case LogForm.AUTO if _is_journal(environment, stream):
            return DaemonLog(JournalSocket(text))
        case _:
            return DaemonLog(text)


def journal_if_any(settings: Settings) -> DaemonLog:
    """The journal alone, for a command that prints what it does by itself; nothing where there is no journal."""
    wanted = LogForm(settings.daemon.log) in (LogForm.AUTO, LogForm.JOURNAL)
    return DaemonLog(JournalSocket(lambda _entry: None)) if wanted else DaemonLog()


def remarks(say: Callable[[str], None]) -> DaemonLog:
    """The log of a daemon inside a command, which is told what goes wrong and nothing else."""
    return DaemonLog(lambda entry: say(entry.message) if entry.severity <= Severity.WARNING else None)


def _is_journal(environment: Mapping[str, str], stream: TextIO) -> bool:
    """Whether the stream is what systemd connected to the journal (systemd.exec(5), JOURNAL_STREAM)."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"
