"""Where published documents lie, and how people read them: from files, and from sockets where something is private."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.settings.definition import Storage
from slurmsched.store.export import Document, ExportError, Part

__all__ = ["FOLDER_FLAGS", "NotPublishedError", "Published", "export_folder", "published"]

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = "export"
_SECONDS: Final = 5.0
"""How long a daemon may take to answer."""
_PATIENCE: Final = struct.pack("@ll", int(_SECONDS), 0)
"""The same as the kernel's `struct timeval`."""
_LARGEST: Final = 1 << 28
_CHUNK: Final = 1 << 16


class NotPublishedError(ExportError):
    """There is no document."""


@dataclass(frozen=True, slots=True)
class Published:
    """Documents as we may see them; `note` says what is missing of them and why, empty where nothing is."""

    documents: tuple[Document, ...]
    note: str = ""


def export_folder(storage: Storage) -> Path:
    """The folder of the documents: the one that is set, or `export` beside the database."""
    return Path(storage.export) if storage.export else Path(storage.path).with_name(_FOLDER)


def published(folder: Path, parts: Sequence[Part]) -> Published:
    """These parts as we may see them. Raises NotPublishedError, ExportError."""
    public = tuple(_from_file(folder / f"{part.value}.json") for part in parts)
    hidden = frozenset[str]().union(*(document.hidden for document in public))
    if not hidden:
        return Published(public)
    own = [_from_socket(folder, part) for part in parts]
    if all(own):
        return Published(tuple(document for document in own if document is not None))
    return Published(public, f"PrivateData of slurm.conf hides {', '.join(sorted(hidden))}: {_UNTOLD}")


_UNTOLD: Final = "what is your own is told by a running daemon on this host only, and none answers"


def _from_file(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST)
    except FileNotFoundError as error:
        raise NotPublishedError(
            f"nothing has been published in {path.parent} yet: is 'synsched run' at work?"
        ) from error
    except OSError as error:
        raise NotPublishedError(f"cannot read {path} ({error.strerror}): ask the administrator for it") from error
    return Document.decoded(data, str(path))


def _from_socket(folder: Path, part: Part) -> Document | None:
    """What the daemon tells us; None where none is there, or it is too busy."""
    received, until = bytearray(), time.monotonic() + _SECONDS
    with suppress(OSError):
        descriptor = os.open(folder, FOLDER_FLAGS)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
                # A blocking connect waits in line while others fill the queue; with Python's timeout it fails at once.
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
                connected.connect(f"/proc/self/fd/{descriptor}/{part.value}.sock")
                while (left := until - time.monotonic()) > 0 and len(received) <= _LARGEST:
                    connected.settimeout(left)
                    chunk = connected.recv(_CHUNK)
                    if not chunk:
                        break
                    received += chunk
        finally:
            os.close(descriptor)
    with suppress(ExportError):
        return Document.decoded(bytes(received), str(folder / f"{part.value}.sock"))
    return None
