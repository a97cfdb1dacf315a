"""The settings that name files and folders, and which folders of them the daemon writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from slurmsched.settings.definition import Settings

__all__ = ["READ_PATHS", "WRITTEN_PATHS", "written_folders"]


def _itself(value: str) -> Iterator[str]:
    if value:
        yield value


def _folder_of(value: str) -> Iterator[str]:
    """The folder of a file that is replaced as a whole: the new one is written beside it first."""
    if value:
        yield str(PurePosixPath(value).parent)


def _folders_of_fragments(fragments: tuple[str, ...]) -> Iterator[str]:
    for fragment in fragments:
        yield from _folder_of(fragment.partition("=")[2])


WRITTEN_PATHS: Final[dict[str, Callable[[Any], Iterator[str]]]] = {  # a value's type is that of its setting
    "hook.heartbeat": _folder_of,
    "nodes.fragments": _folders_of_fragments,
    "reports.spool": _itself,
    "storage.export": _itself,
    "storage.path": _folder_of,
}
"""Settings that name what the daemon writes, with the folders it writes to; one that is not defined is passed over."""

READ_PATHS: Final = frozenset({"cluster.slurm_conf", "hook.disable_file", "policy.profiles"})
"""Settings that name what the daemon only reads."""


def written_folders(settings: Settings) -> tuple[str, ...]:
    """Every folder that the daemon writes to with these settings, in order and each once."""
    found: set[str] = set()
    for name, folders in WRITTEN_PATHS.items():
        section, _, key = name.partition(".")
        value = getattr(getattr(settings, section), key, None)
        if value is not None:
            found.update(folders(value))
    return tuple(sorted(found))
