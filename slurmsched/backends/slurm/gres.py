"""Parses GRES strings: what a node has and has allocated, what a job requests and has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.hostlist import expand_numbers
from slurmsched.backends.slurm.records import or_empty

_ENTRY = re.compile(
    r"(?:gres[/:])?([a-z_]+)"
    r"(?:[:/](?!\d*(?:[:=(]|\Z))([^:=(),]+))?"  # a type is whatever is not all digits
    r"(?:[:=](\d{1,9}))?(?:\(([^()]*)\))?\Z"
)
_SOCKETS: Final = "S:"
_INDICES: Final = "IDX:"
_COUNT: Final = "CNT:"
"""Stands instead of indices where the devices have no files."""
_MAX_CHARACTERS: Final = 65_536
"""The longest accepted list: 1,000 devices take 10 kB."""
_NO_TYPE: Final = ":(null)"  # shards of a node whose slurmd has not registered yet


@dataclass(frozen=True, slots=True)
class Gres:
    """One GRES entry. `indices` are its device indices; `shards_by_device` is (allocated, total) for each device."""

    name: str
    type: str
    count: int
    indices: tuple[int, ...] = ()
    shards_by_device: tuple[tuple[int, int], ...] = ()


@lru_cache(maxsize=4096)  # thousands of jobs share few different strings
def parse_gres(text: str | None) -> tuple[Gres, ...]:
    """The entries of a list such as `gpu:v100:3(IDX:0,2-3),shard:v100:5(3/10,2/10)`.

    Releases of Slurm write `gpu:v100:2`, `gres:gpu:2`, `gres/gpu:v100:2` and `gres/gpu:v100=2`. Entries of other TRES
    (`cpu=2`) are left out. Raises SlurmParseError.
    """
    typed = or_empty(text).replace(_NO_TYPE, "")
    if len(typed) > _MAX_CHARACTERS:
        raise SlurmParseError(f"a list of GRES of {len(typed)} characters")
    return tuple(_parse_entry(part) for part in _split_entries(typed) if not _is_other_tres(part))


def parse_gpus(text: str | None) -> tuple[Gres, ...]:
    """The GPU entries of the list, one per type."""
    return tuple(entry for entry in parse_gres(text) if entry.name == "gpu" and entry.count)


def parse_shards(text: str | None) -> tuple[Gres, ...]:
    """The shards in the list, each with the GPU type that it asks for."""
    return tuple(entry for entry in parse_gres(text) if entry.name == "shard")


def count_shards(text: str | None) -> int:
    """The number of shards in the list."""
    return sum(entry.count for entry in parse_shards(text))


def _is_other_tres(part: str) -> bool:
    name = re.split("[=:]", part, maxsplit=1)[0]
    return part in ("", "gres/") or name in ("cpu", "mem", "node", "billing") or part.startswith("license/")


def _split_entries(text: str) -> Iterator[str]:
    depth = start = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def _parse_entry(part: str) -> Gres:
    match = _ENTRY.match(part)
    if match is None:
        raise SlurmParseError(f"not a GRES: {part[:60]!r}")
    name, kind, count, detail = match.groups()
    if detail and detail.startswith(_COUNT):
        count, detail = _digits(detail.removeprefix(_COUNT)), ""
    number = 1 if count is None else int(count)
    if not detail or detail.startswith(_SOCKETS):
        return Gres(name, kind or "", number)
    if detail.startswith(_INDICES):
        return Gres(name, kind or "", number, indices=expand_numbers(detail.removeprefix(_INDICES)))
    return Gres(name, kind or "", number, shards_by_device=tuple(_parse_shards(piece) for piece in detail.split(",")))


def _digits(text: str) -> str:
    if not re.fullmatch(r"\d{1,9}", text):
        raise SlurmParseError(f"not a count of a GRES: {text[:40]!r}")
    return text


def _parse_shards(piece: str) -> tuple[int, int]:
    taken, _, total = piece.partition("/")
    taken = "0" if taken == "-" else taken  # 26.05, where the whole GPU is allocated
    if not (taken.isdecimal() and total.isdecimal()):
        raise SlurmParseError(f"not a count of shards: {piece[:40]!r}")
    return int(taken), int(total)
