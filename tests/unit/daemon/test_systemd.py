"""What systemd is told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmsched.daemon.keepalive import SystemdNotifier


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        yield listening


def test_each_message_is_one_datagram(listener: socket.socket) -> None:
    systemd = SystemdNotifier({"NOTIFY_SOCKET": listener.getsockname()})
    systemd.ready("mode enforce")
    systemd.status("two\nlines")
    systemd.keep_alive()
    systemd.stopping()
    assert [listener.recv(200) for _ in range(4)] == [
        b"READY=1\nSTATUS=mode enforce",
        b"WATCHDOG=1\nSTATUS=two lines",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


def test_a_reload_carries_the_monotonic_time_that_systemd_asks_for(listener: socket.socket) -> None:
    SystemdNotifier({"NOTIFY_SOCKET": listener.getsockname()}).reloading()
    first, second = listener.recv(200).decode().splitlines()
    assert first == "RELOADING=1"
    assert int(second.removeprefix("MONOTONIC_USEC=")) > 0


def test_an_abstract_address_works_too() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0slurmsched-test-notify")
        listening.settimeout(5)
        SystemdNotifier({"NOTIFY_SOCKET": "@slurmsched-test-notify"}).keep_alive()
        assert listening.recv(200) == b"WATCHDOG=1"


def test_in_a_terminal_or_under_cron_no_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(socket, "socket", lambda *kind: opened.append(kind))
    SystemdNotifier({}).keep_alive()
    assert opened == []


def test_a_listener_that_was_away_is_spoken_to_again(tmp_path: Path) -> None:
    systemd = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    systemd.keep_alive()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        systemd.status("back")
        assert listening.recv(200) == b"WATCHDOG=1\nSTATUS=back"
