"""What systemd is told (sd_notify(3)): ready, a status line, the watchdog's keep-alive, reloading, stopping."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["Systemd"]


class Systemd:
    """The datagram socket of `NOTIFY_SOCKET`; without one (a terminal, cron) nothing is said."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """Started, or done reloading."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`; keeps the watchdog content too."""
        self._send(f"WATCHDOG=1\nSTATUS={_line(status)}")

    def alive(self) -> None:
        """Keeps the watchdog content."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """The settings are being read again; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """On the way out."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.sendto(message.encode(), self._address)


def _line(text: str) -> str:
    return " ".join(text.split())
