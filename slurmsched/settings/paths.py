"""Which settings name paths, and the folders that the daemon writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from slurmsched.settings.definition import Settings


def _folder(value: str) -> Iterator[str]:
    if value:
        yield value


def _folder_of(value: str) -> Iterator[str]:
    """Yields the file's folder, since a new version is first written beside the old one."""
    if value:
        yield str(PurePosixPath(value).parent)


def _folders_of_rendered_files(fragments: tuple[str, ...]) -> Iterator[str]:
    for fragment in fragments:
        yield from _folder_of(fragment.partition("=")[2])


WRITTEN_PATHS: Final[dict[str, Callable[[Any], Iterator[str]]]] = {  # a value's type is that of its setting
    "hook.heartbeat": _folder_of,
    "metrics.textfile": _folder_of,
    "nodes.fragments": _folders_of_rendered_files,
    "reports.spool": _folder,
    "storage.export": _folder,
    "storage.page": _folder_of,
    "storage.path": _folder_of,
}
"""Settings that name what the daemon writes, and the folders that it writes to; undefined settings are skipped."""

READ_PATHS: Final = frozenset({"cluster.others", "cluster.slurm_conf", "hook.disable_file", "policy.profiles"})
"""Settings that name files that the daemon only reads."""


def written_folders(settings: Settings) -> tuple[str, ...]:
    """Returns the folders that the daemon writes to with these settings, sorted and without duplicates."""
    result: set[str] = set()
    for name, folders in WRITTEN_PATHS.items():
        section, _, key = name.partition(".")
        value = getattr(getattr(settings, section), key, None)
        if value is not None:
            result.update(folders(value))
    return tuple(sorted(result))
