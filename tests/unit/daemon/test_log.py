"""The daemon's log: what is done to a job is one line, in the systemd journal with fields, and nobody forges one."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.backends.simulated import VirtualClock
from slurmsched.daemon import log as log_module
from slurmsched.daemon.cleanup import release_all
from slurmsched.daemon.log import (
    DaemonLog,
    JournalSocket,
    LogEntry,
    Severity,
    journal_datagram,
    json_writer,
    one_line,
    open_log,
    text_writer,
)
from slurmsched.daemon.scheduler import schedule_round
from slurmsched.model import Operation, Outcome, Reason, ReasonCode, Result, Verb
from slurmsched.report.job_view import job_history
from slurmsched.settings.definition import DaemonSettings, Mode, Settings
from slurmsched.store.read_only import open_read_only
from tests.builders import job, node, snapshot
from tests.unit.daemon.test_killed import before_the_round, killed_round
from tests.unit.daemon.test_loop import Running, Scripted
from tests.unit.daemon.test_loop import running as daemon_in
from tests.unit.daemon.world import PERIOD, World

HOSTILE = "x\nMESSAGE=forged\nSYNSCHED_USER=root\r\n\0\x1b[2J\u2028\u202eJ\udcff"


def parse_native(datagram: bytes) -> list[tuple[str, bytes]]:
    """The fields of a message, as systemd's JOURNAL_NATIVE_PROTOCOL defines them: `NAME=value` in a line, or the name
    in a line, the length of the value in 64 bits, and the value."""
    fields = []
    while datagram:
        line, _, rest = datagram.partition(b"\n")
        name, sign, value = line.partition(b"=")
        if not sign:
            size, value = int.from_bytes(rest[:8], "little"), rest[8:]
            value, rest = value[:size], value[size:]
            assert rest[:1] == b"\n", "no line break after a value"
            rest = rest[1:]
        assert name.isupper()
        fields.append((name.decode("ascii"), value))
        datagram = rest
    return fields


@dataclass
class FakeJournal:
    """A datagram socket where systemd-journald would be."""

    path: Path
    socket: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)

    def messages(self) -> list[dict[str, str]]:
        """What came in since the last call; a name is there once."""
        found = []
        while True:
            try:
                fields = parse_native(self.socket.recv(1 << 20))
            except BlockingIOError:
                return found
            assert len({name for name, _ in fields}) == len(fields)
            found.append({name: value.decode() for name, value in fields})

    def of_job(self, job: str) -> list[tuple[str, str, str, str]]:
        """What `journalctl -t synsched SYNSCHED_JOB=...` would show: verb, user, reason and result."""
        return [
            tuple(row.get(f"SYNSCHED_{name}", "") for name in ("VERB", "USER", "REASON", "RESULT"))
            for row in self.messages()
            if row["SYSLOG_IDENTIFIER"] == "synsched" and row.get("SYNSCHED_JOB") == job
        ]

    def restart(self) -> None:
        self.socket.close()
        self.path.unlink()
        self.__post_init__()


@pytest.fixture
def journal() -> Iterator[FakeJournal]:
    """In a folder of its own: the path of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        journal = FakeJournal(Path(folder) / "socket")
        yield journal
        journal.socket.close()


def to_journal(journal: FakeJournal, clock: VirtualClock | None = None) -> DaemonLog:
    def missing(entry: LogEntry) -> None:
        raise AssertionError(f"not in the journal: {entry.message}")

    return DaemonLog(JournalSocket(missing, journal.path, clock))


def rounds(world: World, count: int, log: DaemonLog) -> None:
    for _ in range(count):
        schedule_round(world.site(), world.store, world.clock, log=log)
        world.later(PERIOD)


def history_of(world: World, job: str) -> list[tuple[str, str]]:
    with open_read_only(world.path) as store:
        return [(event.kind, event.sentence) for event in job_history(store, job).events]


def test_who_requeued_a_job_is_told_by_the_journal_and_by_history(tmp_path: Path, journal: FakeJournal) -> None:
    world = World(tmp_path)
    victim = world.submit(8)
    log = to_journal(journal)
    rounds(world, 10, log)
    newcomer = world.submit(8)
    rounds(world, 2, log)
    told = journal.of_job(victim)
    assert told[-2:] == [
        ("notify", "alice", "prepare", "done"),
        ("requeue", "alice", "newcomer_first", "done"),
    ]
    assert world.where()[newcomer] == ("n1",)
    kind, sentence = history_of(world, victim)[-1]
    assert (kind, sentence.partition(": ")[0]) == ("displaced", f"gives way to job {newcomer}")


def test_what_others_requeued_is_told_to_be_no_act_of_ours(tmp_path: Path, journal: FakeJournal) -> None:
    world = World(tmp_path)
    job = world.submit(8)
    log = to_journal(journal)
    rounds(world, 2, log)
    journal.messages()
    cluster = world.cluster
    cluster.lifecycle.requeue(cluster.jobs[job], held=False, now=cluster.now)
    rounds(world, 2, log)
    assert ("requeue", "alice", "by_others", "") in journal.of_job(job)
    assert ("requeued", "was requeued by a person or by Slurm, not by synsched") in history_of(world, job)


def test_our_own_requeue_is_never_taken_for_one_of_others(tmp_path: Path, journal: FakeJournal) -> None:
    world = World(tmp_path)
    world.submit(8)
    log = to_journal(journal)
    rounds(world, 10, log)
    world.submit(8)
    rounds(world, 8, log)
    told = journal.messages()
    assert [row["SYNSCHED_REASON"] for row in told if row.get("SYNSCHED_VERB") == "requeue"] == ["newcomer_first"]


def test_a_round_that_changes_nothing_writes_nothing(tmp_path: Path, journal: FakeJournal) -> None:
    world = World(tmp_path)
    world.submit(8)
    log = to_journal(journal)
    rounds(world, 2, log)
    assert journal.messages()
    rounds(world, 3, log)
    assert journal.messages() == []


def test_every_job_given_back_has_a_line(tmp_path: Path, journal: FakeJournal) -> None:
    world = World(tmp_path)
    jobs = [world.submit(8) for _ in range(3)]
    rounds(world, 1, to_journal(journal))
    journal.messages()
    release_all(world.simulated, world.store, world.clock, 0.0, log=to_journal(journal))
    rows = journal.messages()
    assert {row["SYNSCHED_JOB"] for row in rows} == set(jobs[1:])
    assert {row["SYNSCHED_REASON"] for row in rows} == {"give_back"}


def test_without_a_database_what_is_given_back_is_told_too(tmp_path: Path, journal: FakeJournal) -> None:
    world = World(tmp_path)
    job = world.submit(8)
    release_all(world.simulated, None, world.clock, 0.0, log=to_journal(journal))
    assert journal.of_job(job) == [("release", "alice", "give_back", "done")]


def test_after_a_kill_it_is_told_what_had_been_done(
    tmp_path: Path, journal: FakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in range(10, 200):  # until the process is killed within its operations
        folder = tmp_path / str(steps)
        folder.mkdir()
        world = before_the_round(folder)
        assert killed_round(world, steps, monkeypatch)
        world.restart()
        if world.store.journal.open_intents():
            break
    schedule_round(world.site(), world.store, world.clock, log=to_journal(journal))
    messages = [row["MESSAGE"] for row in journal.messages()]
    assert messages[0] == "1 round of an earlier process did not end: it was killed"
    assert [message for message in messages if " before an interruption: job " in message]


def test_a_pause_and_its_end_are_told_once_each(tmp_path: Path, journal: FakeJournal) -> None:
    daemon = daemon_in(tmp_path)
    switches = daemon.world.store.switches
    daemon.clock.after(400.0, lambda: switches.pause("root", "upgrade", daemon.clock.now()))
    daemon.clock.after(1000.0, switches.resume)
    daemon.run(1300.0)
    assert daemon.said == ["nothing is changed: paused by root: upgrade", "resumed: jobs are changed again"]


def test_the_disable_file_is_told_like_a_pause(tmp_path: Path) -> None:
    daemon = daemon_in(tmp_path)
    disable = Path(daemon.world.settings.hook.disable_file)
    daemon.clock.after(400.0, disable.touch)
    daemon.clock.after(1000.0, disable.unlink)
    daemon.run(1300.0)
    assert daemon.said == [f"nothing is changed: {disable} exists", "resumed: jobs are changed again"]


def test_the_first_line_names_version_mode_policy_and_what_is_managed(tmp_path: Path) -> None:
    world = World(tmp_path)
    entries: list[LogEntry] = []
    manage = replace(world.settings.manage, partitions=("gpu", "long"))
    DaemonLog(entries.append).introduce(replace(world.settings, manage=manage))
    assert entries[0].message.endswith(
        " starts in mode enforce with policy synergy, order las; it manages partition gpu, partition long, jobs with a"
        " hint; a round every 5 min"
    )
    assert (entries[0].fields["mode"], entries[0].fields["partitions"]) == ("enforce", "gpu,long")


def outcome(detail: str, result: Result = Result.REFUSED, verb: Verb = Verb.RELEASE, subject: str = "7") -> Outcome:
    reason = Reason(ReasonCode.START, {"nodes": HOSTILE, "gpus": 2, "cpus": 6})
    return Outcome(Operation(verb, subject, reason), result, detail=detail)


SEEN = snapshot([node("n1")], [job(7, user="alice")])


@given(st.text() | st.just(HOSTILE))
@settings(max_examples=200)
def test_no_text_ends_a_value_or_begins_a_field(text: str) -> None:
    entries: list[LogEntry] = []
    log = DaemonLog(entries.append)
    log.operations([outcome(text)], SEEN)
    log.event(text, verb="fail", job=text, user=text)
    log(text)
    names = [[name for name, _ in parse_native(journal_datagram(entry))] for entry in entries]
    usual = ["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "SYSLOG_FACILITY"]
    own = ["SYNSCHED_VERB", "SYNSCHED_JOB", "SYNSCHED_USER", "SYNSCHED_REASON", "SYNSCHED_RESULT"]
    assert names[0] == [*usual, *own]
    assert names[2] == usual
    for entry in entries:
        values = [value for _, value in parse_native(journal_datagram(entry))]
        assert not [value for value in values if b"\n" in value or b"\0" in value or b"\x1b" in value]
        assert len(values[0]) <= 4000


@given(st.text() | st.just(HOSTILE))
@settings(max_examples=200)
def test_each_entry_is_one_line_of_text_and_one_json_object(text: str) -> None:
    plain, objects = StringIO(), StringIO()
    for write in (text_writer(plain, once=False), json_writer(objects, lambda: 0.0)):
        log = DaemonLog(write)
        log.operations([outcome(text)], SEEN)
        log(text)
    assert [line.startswith("synsched: ") for line in plain.getvalue().splitlines()] == [True, True]
    first, second = (json.loads(line) for line in objects.getvalue().splitlines())
    assert list(first) == ["time", "level", "message", "verb", "job", "user", "reason", "result"]
    assert (first["level"], first["job"], first["user"]) == ("warning", "7", "alice")
    assert list(second) == ["time", "level", "message"]


SENTENCES = [
    ("done", outcome("", Result.DONE, Verb.RELEASE), "released: job 7 of alice starts on "),
    ("refused", outcome("no such node"), "release was refused (no such node): job 7 of alice starts on "),
    ("failed", outcome("timeout", Result.FAILED), "release was failed (timeout): job 7 of alice starts on "),
    ("undone", outcome("Resources", Result.UNDONE), "release was undone: job 7 of alice did not start (Resources)"),
    ("of nobody known", outcome("", Result.DONE, subject="9"), "released: job 9 starts on "),
]


@pytest.mark.parametrize("row", SENTENCES, ids=[name for name, _, _ in SENTENCES])
def test_an_operation_is_told_in_a_sentence(row: tuple[str, Outcome, str]) -> None:
    entries: list[LogEntry] = []
    DaemonLog(entries.append).operations([row[1]], SEEN)
    assert [entry.message.startswith(row[2]) for entry in entries] == [True]


def test_what_is_blocked_or_overtaken_is_not_told_since_each_round_plans_it_again() -> None:
    entries: list[LogEntry] = []
    DaemonLog(entries.append).operations([outcome("", Result.BLOCKED), outcome("", Result.OVERTAKEN)], SEEN)
    assert entries == []


def test_a_job_that_ends_by_its_checkpoint_signal_has_a_line_that_tells_who_sent_it() -> None:
    entries: list[LogEntry] = []
    prepare = Operation(Verb.NOTIFY, "7", Reason(ReasonCode.PREPARE, {"lead": "30 s"}))
    DaemonLog(entries.append).operations([Outcome(prepare, Result.OVERTAKEN, detail="job 7 is completed")], SEEN)
    told = "job 7 of alice is told to write its checkpoint, 30 s before it is requeued"
    assert [entry.message for entry in entries] == [f"notify was overtaken (job 7 is completed): {told}"]


def test_nice_values_notes_and_weights_are_counted() -> None:
    entries: list[LogEntry] = []
    verbs = [Verb.PRIORITIZE] * 3 + [Verb.NOTE] + [Verb.WEIGH] * 2
    DaemonLog(entries.append).operations([outcome("", Result.DONE, verb) for verb in verbs], SEEN)
    assert [entry.message for entry in entries] == [
        "set: the nice values of 3 jobs",
        "written: the AdminComment of 1 job",
        "set: the weights of 2 nodes",
    ]


def test_lines_that_find_the_journal_full_cost_no_time_and_are_counted(journal: FakeJournal) -> None:
    clock = VirtualClock(0.0)
    log = to_journal(journal, clock)
    for number in range(2000):  # a socket takes a few hundred
        log(f"line {number}")
    taken = len(journal.messages())
    assert 0 < taken < 2000
    log("the last one")
    assert [row["MESSAGE"] for row in journal.messages()] == [
        f"the journal was full: {2000 - taken} lines of the log got lost",
        "the last one",
    ]


def test_a_journal_that_is_restarted_is_found_again(journal: FakeJournal) -> None:
    log = to_journal(journal)
    log("before")
    journal.restart()
    log("after")
    assert [row["MESSAGE"] for row in journal.messages()] == ["after"]


def test_without_a_journal_lines_go_to_standard_error(tmp_path: Path) -> None:
    said = StringIO()
    DaemonLog(JournalSocket(text_writer(said, once=False), tmp_path / "none"))("all is lost")
    assert said.getvalue() == "synsched: all is lost\n"


class Connected(StringIO):
    """Standard error as a file descriptor."""

    def fileno(self) -> int:
        return 2


def stream_of_stderr() -> str:
    status = os.fstat(2)
    return f"{status.st_dev}:{status.st_ino}"


WAYS = [
    ("auto, and systemd connected standard error to the journal", "auto", stream_of_stderr, True),
    ("auto, and standard error was redirected since", "auto", lambda: "8:12345", False),
    ("auto on a terminal", "auto", str, False),
    ("journal, from cron", "journal", str, True),
    ("text, under systemd", "text", stream_of_stderr, False),
]


@pytest.mark.parametrize("row", WAYS, ids=[name for name, *_ in WAYS])
def test_where_lines_go(
    row: tuple[str, str, Callable[[], str], bool], journal: FakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, form, journal_stream, to_the_journal = row
    monkeypatch.setattr(log_module, "JOURNAL_SOCKET", journal.path)
    stream = Connected()
    open_log(Settings(daemon=DaemonSettings(log=form)), {"JOURNAL_STREAM": journal_stream()}, stream)("hello")
    assert (len(journal.messages()), stream.getvalue()) == ((1, "") if to_the_journal else (0, "synsched: hello\n"))


def test_a_round_from_cron_mails_no_line_that_its_table_shows() -> None:
    said = StringIO()
    log = DaemonLog(text_writer(said, once=True))
    log.operations([outcome("no such node")], SEEN)
    log("rounds are late")
    assert said.getvalue() == "synsched: rounds are late\n"


def test_a_closed_stream_ends_no_round() -> None:
    stream = StringIO()
    stream.close()
    DaemonLog(text_writer(stream, once=False))("hello")


def test_a_long_text_is_cut() -> None:
    assert len(one_line("x" * 10_000)) == 200
    assert one_line(" a\t b\n") == "a b"
    assert Severity.WARNING == 4


def test_in_mode_observe_nothing_is_told_of_jobs(tmp_path: Path, journal: FakeJournal) -> None:
    world = World(tmp_path, mode=Mode.OBSERVE)
    world.submit(8)
    rounds(world, 2, to_journal(journal))
    assert journal.messages() == []


def test_a_daemon_tells_its_start_and_stop_and_what_it_did(tmp_path: Path, journal: FakeJournal) -> None:
    clock = Scripted()
    world = World(tmp_path, clock=clock)
    job, waiting = world.submit(8), world.submit(8)
    daemon = Running(world, clock, log=to_journal(journal))
    daemon.run(100.0)
    verbs = [(row["SYNSCHED_VERB"], row.get("SYNSCHED_JOB", "")) for row in journal.messages()]
    assert verbs == [("run", ""), ("release", job), ("release", waiting), ("stop", "")]
