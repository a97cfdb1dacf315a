"""A site of its own for each test: settings file, database, heartbeat, and a clock that stands still."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from slurmsched.cli import main
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.json_schema import command_schema, json_commands
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.model import JobId, NodeAllocation, Reason, Snapshot, Target, cluster_overview, encode
from slurmsched.store.database import Database
from slurmsched.store.jobs import update_jobs
from slurmsched.store.journal import Journal, RoundStatistics
from slurmsched.store.maintenance import migrate

_APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
"""Until click 8.2 the two output streams have to be asked for apart."""

NOON = 1_790_000_000.0
"""The time at which every test looks."""


@cache
def json_validator(path: str) -> Draft202012Validator:
    """Checks what a command prints against its published schema, which has to be a schema itself."""
    published = command_schema(path, json_commands()[path])
    Draft202012Validator.check_schema(published)
    return Draft202012Validator(published)


def command_path(arguments: Sequence[str]) -> str:
    """The words of the command that these arguments call."""
    known = json_commands()
    return next(" ".join(arguments[:count]) for count in (2, 1) if " ".join(arguments[:count]) in known)


@dataclass
class StandingClock:
    """A clock at which nothing passes; who wants to sleep is interrupted, as by Ctrl-C."""

    time: float = NOON
    naps: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        raise KeyboardInterrupt


@dataclass
class Site:
    """Files in `folder`, and the command run against them."""

    folder: Path
    clock: Clock = field(default_factory=StandingClock)
    now: float = NOON

    @property
    def config(self) -> Path:
        return self.folder / "synsched.toml"

    @property
    def database(self) -> Path:
        return self.folder / "synsched.db"

    def configure(self, extra: str = "") -> None:
        self.config.write_text(
            f'[storage]\npath = "{self.database}"\n'
            f'[hook]\nheartbeat = "{self.folder / "heartbeat"}"\ndisable_file = "{self.folder / "disable"}"\n{extra}',
            encoding="utf-8",
        )

    def opened(self) -> Database:
        opened = Database.open(self.database)
        migrate(opened, self.now)
        return opened

    def beat(self, age: float = 1.0, mode: str = "enforce") -> None:
        HeartbeatFile(self.folder / "heartbeat").write(self.now - age, mode, 300.0)

    def round(
        self,
        snapshot: Snapshot,
        *,
        why: dict[JobId, Reason] | None = None,
        targets: dict[JobId, tuple[NodeAllocation, ...]] | None = None,
        order: Iterable[JobId] = (),
        age: float = 30.0,
        error: str = "",
    ) -> int:
        """A finished round that saw this and decided that; every job of it is managed."""
        database = self.opened()
        journal = Journal(database)
        number = journal.begin_round(self.now - age - 1, "enforce", "synergy", "las")
        update_jobs(database, snapshot, [job.id for job in snapshot.jobs])
        for rank, job in enumerate(order, start=1):
            database.write("UPDATE jobs SET rank = ? WHERE id = ?", (rank, job))
        for job, reason in (why or {}).items():
            text = (encode(reason), f"{reason.sentence}", job)
            database.write("UPDATE jobs SET reason = ?, sentence = ? WHERE id = ?", text)
        for job, shares in (targets or {}).items():
            database.write("UPDATE jobs SET target = ? WHERE id = ?", (encode(Target(job, shares)), job))
        database.write("UPDATE rounds SET overview = ? WHERE id = ?", (encode(cluster_overview(snapshot)), number))
        running = sum(bool(job.allocations) for job in snapshot.jobs)
        counts = RoundStatistics(
            len(snapshot.nodes), len(snapshot.jobs), len(snapshot.jobs), running, len(snapshot.jobs) - running
        )
        journal.finish_round(number, self.now - age, counts, error)
        database.close()
        return number

    def run(self, *arguments: str, columns: int = 80, **environment: str) -> Result:
        """`synsched ARGUMENTS` in a window of so many columns, without colour."""
        runner = CliRunner(**_APART, env={"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb", **environment})
        invocation = Invocation(self.config, self.clock)
        result = runner.invoke(main, list(arguments), obj=invocation, prog_name="synsched")
        if "--json" in arguments and result.stdout.startswith("{"):
            json_validator(command_path(arguments)).validate(json.loads(result.stdout))
        return result

    def lines(self, *arguments: str, columns: int = 80) -> list[str]:
        """What it prints, line by line, trailing blanks aside."""
        result = self.run(*arguments, columns=columns)
        assert result.exit_code == 0, result.output
        return [line.rstrip() for line in result.stdout.splitlines()]

    def json(self, *arguments: str) -> dict[str, object]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))


@pytest.fixture(autouse=True)
def memory_as_before() -> Iterator[None]:
    """`synsched run` limits the memory of its process, which here is that of all tests."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.configure()
    return made
