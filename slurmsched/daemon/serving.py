"""Tells each user what PrivateData leaves to that user, through one Unix socket for each document.

An unprivileged daemon cannot make a file that one other user alone may read: it may not give files away, and access
lists are not on every file system. The kernel however says for certain who has connected to a socket (SO_PEERCRED). A
client sends nothing and nothing is read from it: it connects, gets its document and the end of the stream.

All of it happens in a thread of its own that never waits for a client and that no round waits for. Bounded are the
clients at a time, of all users and of one, the seconds each of them has, the connections taken in a second, and the
documents kept ready: of one user there is one of each part for each round, however often it is asked for.
"""

from __future__ import annotations

import os
import pwd
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from slurmsched.store.export import Contents, Part
from slurmsched.store.visibility import Visibility

__all__ = ["Server"]

MOST_CLIENTS: Final = 64
MOST_OF_ONE: Final = 4
"""Clients at a time, of all users and of one; who is one too many is closed at once."""
SECONDS: Final = 10.0
"""For which a client may take its time."""
MOST_READY: Final = 64 << 20
"""Bytes of documents that are kept ready for users to come."""
_PAUSE: Final = 0.005
"""Seconds between two connections: a user who does nothing but connect costs next to no time."""
_CHUNK: Final = 1 << 16
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class _Told:
    """What there is to tell since the last round, and what has been made ready of it."""

    contents: Contents
    hidden: frozenset[str]
    operators: frozenset[str]
    ready: dict[tuple[str | None, Part], bytes] = field(default_factory=dict)

    def document(self, uid: int, part: Part) -> bytes:
        """What this user may see; everything for operators, for root and for ourselves."""
        name = _name_of(uid)
        everything = uid in (0, os.geteuid()) or name in self.operators
        key = None if everything else name or f"uid {uid}"
        if (key, part) not in self.ready:
            hidden = frozenset[str]() if everything else self.hidden
            encoded = Visibility(self.contents, hidden, key).document(part).encoded()
            if sum(map(len, self.ready.values())) + len(encoded) > MOST_READY:
                self.ready.clear()
            self.ready[key, part] = encoded
        return self.ready[key, part]


@dataclass(slots=True)
class _Client:
    """Somebody who is being told something: `left` is what has not been sent."""

    socket: socket.socket
    uid: int
    left: memoryview
    until: float


class Server:
    """Listens in the folder behind a descriptor until it is closed."""

    def __init__(self, folder: int) -> None:
        """Raises OSError."""
        self._folder = os.dup(folder)
        self._told: _Told | None = None
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Client] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        for part in Part:
            self._selector.register(self._listening(f"{part.value}.sock"), selectors.EVENT_READ, part)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="synsched-export", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def tell(self, contents: Contents, hidden: frozenset[str], operators: frozenset[str]) -> None:
        """From now on this; who is being told something still gets the old whole."""
        self._told = _Told(contents, hidden, operators)

    def close(self) -> None:
        """End the thread and remove the sockets."""
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(timeout=SECONDS)

    def _listening(self, name: str) -> socket.socket:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)  # of a daemon that was killed
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        where = f"/proc/self/fd/{self._folder}/{name}"  # a socket's path may be 107 bytes long
        made.bind(where)
        os.chmod(where, 0o666)  # noqa: PTH101, S103 - below a descriptor; everybody may ask
        made.listen(MOST_CLIENTS)
        return made

    def _serve(self) -> None:
        try:
            while not self._closing:
                for key, _ in self._selector.select(timeout=1.0):
                    if isinstance(key.data, Part) and isinstance(key.fileobj, socket.socket):
                        self._accept(key.fileobj, key.data)
                    elif isinstance(key.data, _Client):
                        self._send(key.data)
                self._end_late_ones()
        finally:
            self._end()

    def _accept(self, listening: socket.socket, part: Part) -> None:
        try:
            connected, _ = listening.accept()
        except OSError:
            time.sleep(_PAUSE)  # gone again, or we have no descriptors left
            return
        try:
            connected.setblocking(False)
            credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            uid: int = _CREDENTIALS.unpack(credentials)[1]
            told = self._told
            of_one = Counter(client.uid for client in self._clients.values())[uid]
            if told is None or of_one >= MOST_OF_ONE or len(self._clients) >= MOST_CLIENTS:
                connected.close()
            else:
                left = memoryview(told.document(uid, part))
                client = _Client(connected, uid, left, time.monotonic() + SECONDS)
                self._clients[connected.fileno()] = client
                self._selector.register(connected, selectors.EVENT_WRITE, client)
        except Exception:  # whoever asks and whatever goes wrong about it: the others are told on
            connected.close()
        time.sleep(_PAUSE)

    def _send(self, client: _Client) -> None:
        try:
            sent = client.socket.send(client.left[:_CHUNK], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            self._dismiss(client)
            return
        client.left = client.left[sent:]
        if not client.left:
            self._dismiss(client)

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        for client in [client for client in self._clients.values() if client.until < now]:
            self._dismiss(client)

    def _dismiss(self, client: _Client) -> None:
        self._clients.pop(client.socket.fileno(), None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()

    def _end(self) -> None:
        for part in Part:
            with suppress(OSError):
                os.unlink(f"{part.value}.sock", dir_fd=self._folder)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._wake.close()
        os.close(self._folder)


def _name_of(uid: int) -> str | None:
    """The user's name; None for a number that has none, who then has no jobs either."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
