"""One job as Slurm shows it, whichever way it was read; and the fields of a line of `scontrol show`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["JobRecord", "Placement", "fields_of"]


@dataclass(frozen=True, slots=True)
class Placement:
    """What a job has on each of `nodes` (a hostlist): CPU numbers, MiB and GRES as Slurm writes them."""

    nodes: str
    cpus: str
    memory: str
    gres: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job, taken apart. `array` and `tasks` are empty unless it belongs to an array, `offset` unless to a het job.

    `fields` are the others under the names that scontrol gives them.
    """

    number: str
    user: str
    state: str
    reason: str
    priority: int
    nice: int
    account: str
    qos: str
    name: str
    fields: Mapping[str, str]
    placements: tuple[Placement, ...] = ()
    array: str = ""
    tasks: str = ""
    throttle: int | None = None
    het: str = ""
    offset: str = ""
    comment: str = ""
    admin_comment: str = ""


def fields_of(line: str) -> dict[str, str]:
    """A node, partition or reservation by field: values end at a blank, and the first of a name counts."""
    fields: dict[str, str] = {}
    for word in line.split():
        key, separator, value = word.partition("=")
        if separator:
            fields.setdefault(key, value)
    return fields
