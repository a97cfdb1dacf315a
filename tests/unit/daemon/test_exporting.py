"""What people read instead of the database: files for everybody, and a socket for each user's own."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.daemon import exporter as serving
from slurmsched.daemon.exporter import DocumentServer, Exporter
from slurmsched.daemon.log import DaemonLog
from slurmsched.daemon.single_round import run_once
from slurmsched.model import AccountedRun, RunEnd, Snapshot
from slurmsched.settings.definition import StorageSettings
from slurmsched.store.errors import BusyStoreError
from slurmsched.store.finished_runs import AccountingCursor
from slurmsched.store.publication import (
    Document,
    DocumentKind,
    ExportError,
    NotPublishedError,
    PrivateRequest,
    PublishedContents,
    ask_to_forget,
    export_folder,
    open_documents,
    read_published,
    read_runs,
)
from tests.unit.daemon.world import World

NOBODY = 65534
"""A user who is neither root nor the daemon's."""


def storage(folder: Path, **other: str) -> StorageSettings:
    return StorageSettings(path=str(folder / "synsched.db"), **other)


def world_with_jobs(folder: Path) -> World:
    world = World(folder)
    world.submit(8)
    world.submit(8)
    world.round()
    return world


def exporter(world: World, said: list[str], serves: bool = False) -> Exporter:
    return Exporter(world.settings.storage, world.clock, said.append, serves=serves)


def private(world: World, *hidden: str, operators: frozenset[str] = frozenset()) -> Snapshot:
    return replace(world.simulated.observe(), private_data=frozenset(hidden), operators=operators)


def jobs(folder: Path) -> list[str]:
    found = read_published(folder, list(DocumentKind))
    with open_documents(found.documents, folder) as shown:
        return [row.id for row in shown.jobs()]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, which those of pytest are not."""
    made = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    Path(made).chmod(0o755)
    yield Path(made)
    subprocess.run(["rm", "-rf", made], check=True)


READ = f"""
import os, sys
from pathlib import Path
from slurmsched.store.publication import DocumentKind, read_published
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
found = read_published(Path(sys.argv[1]), list(DocumentKind))
print(found.note, *sorted({{row["id"] for document in found.documents for row in document.tables["jobs"]}}))
"""


def seen_by_nobody(folder: Path) -> list[str]:
    """The words of the note, and the jobs that another user is shown."""
    run = subprocess.run(
        [sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


def test_after_a_round_everybody_may_read_the_documents_and_nobody_else_may_write_there(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(8)
    before = os.umask(0o077)
    try:
        assert run_once(world.site, world.clock, lambda _settings: DaemonLog()) is not None
    finally:
        os.umask(before)
    made = tmp_path / "export"
    assert stat.S_IMODE(made.stat().st_mode) == 0o755
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in made.iterdir()}
    assert files == {"current.json": 0o644, "history.json": 0o644}
    assert jobs(made) == ["1"]


def test_links_and_leftovers_in_the_folder_are_replaced_and_never_followed(tmp_path: Path) -> None:
    world, said = world_with_jobs(tmp_path), list[str]()
    made = tmp_path / "export"
    made.mkdir()
    (tmp_path / "precious").write_text("mine")
    (made / "current.json").symlink_to(tmp_path / "precious")
    (made / ".current.json.new").symlink_to(tmp_path / "precious")
    exporter(world, said).publish(world.simulated.observe())
    assert said == []
    assert (tmp_path / "precious").read_text() == "mine"
    assert len(jobs(made)) == 2


def test_a_folder_that_others_may_write_to_is_refused_and_said_once(tmp_path: Path) -> None:
    world, said = world_with_jobs(tmp_path), list[str]()
    made = tmp_path / "export"
    made.mkdir()
    made.chmod(0o777)
    publishing = exporter(world, said)
    publishing.publish(world.simulated.observe())
    publishing.publish(world.simulated.observe())
    assert said == [f"others may write to {made}: 'chmod 755 {made}', or set storage.export"]
    assert list(made.iterdir()) == []


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    world, said = world_with_jobs(tmp_path), list[str]()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "export").symlink_to(tmp_path / "elsewhere")
    exporter(world, said).publish(world.simulated.observe())
    assert len(said) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_until_the_cluster_has_been_seen_nothing_is_published(tmp_path: Path) -> None:
    world, said = world_with_jobs(tmp_path), list[str]()
    publishing = exporter(world, said)
    publishing.publish(None)
    assert not (tmp_path / "export").exists()
    publishing.publish(private(world, "jobs"))
    publishing.publish(None)
    assert jobs(tmp_path / "export") == []


def test_where_jobs_are_private_and_no_daemon_runs_a_line_says_what_is_missing(tmp_path: Path) -> None:
    world = world_with_jobs(tmp_path)
    exporter(world, []).publish(private(world, "jobs", "users"))
    found = read_published(tmp_path / "export", [DocumentKind.CURRENT])
    assert found.note.startswith("PrivateData of slurm.conf hides jobs, users: only a running daemon")
    assert jobs(tmp_path / "export") == []
    exporter(world, []).publish(private(world, "cloud"))
    assert read_published(tmp_path / "export", [DocumentKind.CURRENT]).note == ""
    assert len(jobs(tmp_path / "export")) == 2


def test_without_documents_it_is_said_where_they_would_be(tmp_path: Path) -> None:
    with pytest.raises(NotPublishedError, match=f"nothing has been published in {tmp_path}/export yet"):
        read_published(export_folder(storage(tmp_path)), [DocumentKind.CURRENT])
    assert export_folder(storage(tmp_path, export="/run/synsched")) == Path("/run/synsched")


@needs_root
def test_each_user_is_told_the_own_jobs_and_root_all(folder: Path) -> None:
    world, said = World(folder), list[str]()
    own = world.submit(8)
    world.cluster.jobs[own].submission = replace(world.cluster.jobs[own].submission, user="nobody")
    world.submit(8)
    world.round()
    publishing = exporter(world, said, serves=True)
    publishing.publish(private(world, "jobs"))
    try:
        assert said == []
        assert seen_by_nobody(folder / "export") == [own]
        assert len(jobs(folder / "export")) == 2  # we are root
        publishing.publish(private(world, "jobs", operators=frozenset({"nobody"})))
        assert len(seen_by_nobody(folder / "export")) == 2
    finally:
        publishing.close()
    assert sorted(file.name for file in (folder / "export").iterdir()) == ["current.json", "history.json"]
    assert "hides jobs" in " ".join(seen_by_nobody(folder / "export"))


RUNS = f"""
import os, sys
from pathlib import Path
from slurmsched.store.publication import ask_to_forget, read_runs
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
if sys.argv[2] == "forget":
    ask_to_forget(Path(sys.argv[1]))
else:
    found = read_runs(Path(sys.argv[1]))
    print(*sorted(found.hidden), *(row["owner"] + row["job"] for row in found.tables["finished_runs"]), sep=",")
"""


def runs_seen_by_nobody(folder: Path, what: str = "read") -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", RUNS, str(folder), what], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip().split(",")


def world_with_runs(folder: Path) -> World:
    world = world_with_jobs(folder)
    ended = AccountedRun(
        "1", "nobody", "train", 5.0, 600.0, RunEnd.COMPLETED, gpus=1, cpus=2, memory=9, script="digest"
    )
    runs = [ended, replace(ended, job="2", owner="alice"), replace(ended, job="3", owner="uid 4242")]
    world.store.finished_runs.record(AccountingCursor(5.0), runs)
    return world


@needs_root
@pytest.mark.parametrize("hidden", [(), ("jobs", "usage")], ids=["nothing private", "jobs private"])
def test_what_is_learnt_of_a_user_is_told_to_that_user_and_operators_alone(
    folder: Path, hidden: tuple[str, ...]
) -> None:
    world, said = world_with_runs(folder), list[str]()
    publishing = exporter(world, said, serves=True)
    publishing.publish(private(world, *hidden))
    try:
        assert said == []
        assert runs_seen_by_nobody(folder / "export") == ["runs of others", "nobody1"]
        assert {row["owner"] for row in read_runs(folder / "export").tables["finished_runs"]} == {
            *("nobody", "alice", "uid 4242")
        }, "we are root"
        publishing.publish(private(world, *hidden, operators=frozenset({"nobody"})))
        assert len(runs_seen_by_nobody(folder / "export")) == 3
        files = [file.read_text() for file in (folder / "export").iterdir() if file.suffix == ".json"]
        assert len(files) == 2
        assert not any("digest" in text or "finished_runs" in text for text in files)
    finally:
        publishing.close()
    with pytest.raises(ExportError, match="only a running daemon on this host shows you what was learnt"):
        read_runs(folder / "export")
    with pytest.raises(ExportError, match="only a running daemon on this host deletes what was learnt"):
        ask_to_forget(folder / "export")


@needs_root
def test_a_user_who_asks_is_forgotten_and_nobody_else(folder: Path) -> None:
    world, said = world_with_runs(folder), list[str]()
    publishing = exporter(world, said, serves=True)
    publishing.publish(private(world))
    forget = world.store.finished_runs.forget
    try:
        publishing.forget_who_asked(pytest.fail)
        runs_seen_by_nobody(folder / "export", "forget")
        runs_seen_by_nobody(folder / "export", "forget")

        def busy(_user: str) -> None:
            raise BusyStoreError("later")

        with pytest.raises(BusyStoreError):
            publishing.forget_who_asked(busy)
        assert runs_seen_by_nobody(folder / "export") == ["runs of others", "nobody1"]
        publishing.forget_who_asked(lambda user: forget(user, 10.0))
        publishing.forget_who_asked(pytest.fail)
        assert said == ["what was learnt of nobody was deleted, as nobody asked"]
        assert runs_seen_by_nobody(folder / "export") == ["runs of others"], "also before the next round"
        assert {run.owner for run in world.store.finished_runs.runs(0.0)} == {"alice", "uid 4242"}
    finally:
        publishing.close()


def test_users_who_wait_to_be_forgotten_are_bounded(
    folder: Path, server: DocumentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.update(contents(10), frozenset(), frozenset())
    monkeypatch.setattr(serving, "MAX_TO_FORGET", 1)
    monkeypatch.setattr(serving, "_user_name", lambda _uid: next(names))
    names = iter(["alice", "bob", "alice", None])
    answers = []
    for _ in range(4):
        with closing(connected(folder, PrivateRequest.FORGET)) as client:
            answers.append(bool(received(client)))
    assert answers == [True, False, True, False]
    assert server.users_to_forget() == ("alice",)


def contents(size: int) -> PublishedContents:
    rows = [{"name": "x" * size, "value": "", "set_by": "", "at": 0.0}]
    return PublishedContents(0.0, {part: {"switches": rows} for part in DocumentKind})


@pytest.fixture
def server(folder: Path) -> Iterator[DocumentServer]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    made = DocumentServer(descriptor)
    os.close(descriptor)
    yield made
    made.close()


def connected(folder: Path, part: DocumentKind | PrivateRequest = DocumentKind.CURRENT) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(folder / f"{part.value}.sock"))  # waits while the queue is full, as with a timeout it would not
    made.settimeout(5)
    return made


def received(client: socket.socket) -> bytes:
    data = b""
    while chunk := client.recv(1 << 16):
        data += chunk
    return data


def test_clients_that_do_not_read_hold_up_nobody_and_are_dismissed(
    folder: Path, server: DocumentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CLIENT_TIMEOUT", 1.5)
    monkeypatch.setattr(serving, "MAX_CLIENTS_PER_USER", 8)
    server.update(contents(8_000_000), frozenset({"jobs"}), frozenset())
    idle = [connected(folder) for _ in range(5)]
    began = time.monotonic()
    with closing(connected(folder)) as client:
        assert len(received(client)) > 8_000_000
    server.update(contents(10), frozenset({"jobs"}), frozenset())
    assert time.monotonic() - began < 1.5
    time.sleep(3.0)
    for client in idle:
        with closing(client):
            assert len(received(client)) < 8_000_000


def test_one_user_has_few_clients_at_a_time(folder: Path, server: DocumentServer) -> None:
    server.update(contents(8_000_000), frozenset({"jobs"}), frozenset())
    clients = [connected(folder) for _ in range(serving.MAX_CLIENTS_PER_USER + 3)]
    time.sleep(0.5)
    ended = 0
    for client in clients[serving.MAX_CLIENTS_PER_USER :]:
        with closing(client):
            ended += received(client) == b""
    assert ended == 3
    for client in clients[: serving.MAX_CLIENTS_PER_USER]:
        client.close()


STORM = """
import socket, sys, time
end = time.monotonic() + 2
while time.monotonic() < end:
    made = socket.socket(socket.AF_UNIX)
    made.connect(sys.argv[1])
    made.close()
"""


def test_a_user_who_only_connects_costs_next_to_no_time(folder: Path, server: DocumentServer) -> None:
    server.update(contents(1000), frozenset({"jobs"}), frozenset())
    with closing(connected(folder)) as first:
        received(first)
    before, began = time.process_time(), time.monotonic()
    storm = subprocess.Popen([sys.executable, "-c", STORM, str(folder / "current.sock")])
    assert storm.wait(timeout=60) == 0
    assert time.process_time() - before < 0.25 * (time.monotonic() - began)
    with closing(connected(folder)) as last:
        assert Document.from_json(received(last), "current.sock").tables["switches"]


def test_whoever_asks_waits_in_line_while_another_user_fills_the_queue(folder: Path) -> None:
    where = folder / "current.sock"
    for part in DocumentKind:
        (folder / f"{part.value}.json").write_bytes(Document(0.0, {}, frozenset({"jobs"})).to_json())
    with closing(socket.socket(socket.AF_UNIX)) as listening, closing(socket.socket(socket.AF_UNIX)) as first:
        listening.bind(str(where))
        listening.listen(0)
        first.connect(str(where))

        def serve() -> None:
            time.sleep(0.5)
            for _ in range(2):
                accepted, _ = listening.accept()
                with closing(accepted), suppress(OSError):
                    accepted.sendall(Document(5.0, {}, frozenset({"jobs"})).to_json())

        serving_thread = threading.Thread(target=serve, daemon=True)
        serving_thread.start()
        told = read_published(folder, [DocumentKind.CURRENT])
        assert (told.note, told.documents[0].at) == ("", 5.0)
        serving_thread.join(timeout=10)


def test_what_clients_send_is_not_read(folder: Path, server: DocumentServer) -> None:
    server.update(contents(10), frozenset({"jobs"}), frozenset())
    with closing(connected(folder)) as client:
        client.send(b"give me everything")
        with suppress(ConnectionResetError):  # the kernel says that nobody read it
            assert b"xxxxxxxxxx" in received(client)
    assert server.alive


def test_a_server_that_has_nothing_to_tell_yet_ends_the_stream(folder: Path, server: DocumentServer) -> None:
    with closing(connected(folder)) as client:
        assert received(client) == b""
    assert server.alive


def test_documents_kept_ready_are_bounded(
    folder: Path, server: DocumentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_CACHED_BYTES", 1500)
    server.update(contents(1000), frozenset({"jobs"}), frozenset())
    for part in (DocumentKind.CURRENT, DocumentKind.HISTORY, DocumentKind.CURRENT):
        with closing(connected(folder, part)) as client:
            assert len(received(client)) > 1000
    assert server._documents is not None
    assert sum(map(len, server._documents.encoded.values())) <= 1500


def test_a_database_that_is_gone_is_said_and_the_last_documents_stay(tmp_path: Path) -> None:
    world, said = world_with_jobs(tmp_path), list[str]()
    publishing = exporter(world, said)
    publishing.publish(world.simulated.observe())
    world.store.close()
    world.path.unlink()
    publishing.publish(world.simulated.observe())
    assert len(said) == 1
    assert "cannot publish " in said[0]
    assert len(jobs(tmp_path / "export")) == 2
    with pytest.raises(ExportError):
        Document.from_json(b"", "x")
