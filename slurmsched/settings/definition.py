"""Every setting, once: type, default, meaning, example.

Validation, the shipped configuration file, `synsched config show` and the reference page all derive from these classes.
Times are seconds here and may be written `90`, `90s`, `5m`, `2h`, `1d` in the file.

The settings that name files and folders, and which folders of them the daemon writes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final


class Mode(StrEnum):
    """How much a round may change."""

    OBSERVE = "observe"
    """Decide and record, change nothing."""
    ADVISE = "advise"
    """Also write our notes and print what would be done."""
    PRIORITIZE = "prioritize"
    """Only order waiting jobs; Slurm places them."""
    ENFORCE = "enforce"
    """Place, size, requeue."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Which Slurm, and how it is reached."""

    backend: str = field(
        default="auto",
        metadata={"doc": "how Slurm is reached", "choices": ("auto", "commands", "pyslurm")},
    )
    pyslurm_memory_max: int = field(
        default=4096,
        metadata={"doc": "most address space of the process in which pyslurm reads, in MiB", "at_least": 256},
    )
    slurm_conf: str = field(default="", metadata={"doc": "path of slurm.conf; empty leaves SLURM_CONF as it is"})
    timeout: float = field(
        default=30.0, metadata={"doc": "longest wait for one answer of slurmctld", "unit": "time", "at_least": 1}
    )
    associations: bool = field(
        default=False, metadata={"doc": "also read the shares of accounts and users (sshare), as tickets"}
    )


@dataclass(frozen=True, slots=True)
class ManageSettings:
    """Which jobs are managed; all others are never touched."""

    partitions: tuple[str, ...] = field(default=(), metadata={"doc": "partitions whose GPU batch jobs are managed"})
    qos: tuple[str, ...] = field(default=(), metadata={"doc": "QOS whose GPU batch jobs are managed"})
    opt_in: bool = field(default=True, metadata={"doc": "manage any GPU batch job that carries a synsched: hint"})
    never_partitions: tuple[str, ...] = field(
        default=(), metadata={"doc": "partitions where nothing is managed, hint or not, unless a job names others too"}
    )


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The loop in time."""

    mode: Mode = field(default=Mode.OBSERVE, metadata={"doc": "how much a round may change"})
    period: float = field(
        default=300.0, metadata={"doc": "from the start of one round to the next", "unit": "time", "at_least": 1}
    )
    settle_interval: float = field(
        default=2.0, metadata={"doc": "between two looks while a round settles", "unit": "time", "at_least": 0.1}
    )
    settle_timeout: float = field(
        default=120.0,
        metadata={"doc": "a start that has not happened by then is undone", "unit": "time"},
    )


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How a round decides."""

    system: str = field(default="synergy", metadata={"doc": "a row of the table of systems"})
    order: str = field(
        default="las",
        metadata={"doc": "who comes first", "choices": ("fifo", "srtf", "las", "ftf")},
    )
    las_queues: tuple[float, ...] = field(
        default=(3600.0, 14400.0, 86400.0),
        metadata={
            "doc": "bounds of the discretised queues of las, in GPU-seconds attained (Tiresias); empty for plain las"
        },
    )
    defragment: bool = field(
        default=False,
        metadata={"doc": "system fgd: move running jobs where that lets a waiting one start, within the guards"},
    )
    profiles: str = field(
        default="", metadata={"doc": "file of measured sensitivity profiles; empty uses the shipped ones"}
    )


@dataclass(frozen=True, slots=True)
class TicketSettings:
    """Who is entitled to what part of the GPUs, for system gandiva-fair."""

    users: tuple[str, ...] = field(
        default=(), metadata={"doc": 'tickets of users, each "USER=TICKETS", e.g. "alice=4"'}
    )
    accounts: tuple[str, ...] = field(
        default=(),
        metadata={"doc": 'tickets of accounts among their like, each "ACCOUNT=TICKETS" or "PARENT/ACCOUNT=TICKETS"'},
    )
    default: int = field(default=1, metadata={"doc": "tickets of users and accounts not named", "at_least": 1})
    quantum: float = field(
        default=600.0,
        metadata={"doc": "shortest slice of a job on one node, before it gives way", "unit": "time", "at_least": 1},
    )
    wide_quantum: float = field(
        default=1800.0,
        metadata={"doc": "shortest slice of a job on several nodes", "unit": "time", "at_least": 1},
    )
    migrations: int = field(
        default=8, metadata={"doc": "most waiting jobs that a round gives another home", "at_least": 0}
    )
    trading: bool = field(default=True, metadata={"doc": "let users exchange fast GPUs for slow ones where both gain"})


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """What no round may do."""

    min_run_time: float = field(
        default=1200.0,
        metadata={"doc": "a job runs at least this long before it is displaced", "unit": "time"},
    )
    moves_per_round: int = field(default=8, metadata={"doc": "most jobs displaced in one round", "at_least": 0})
    moves_per_job_day: int = field(
        default=6, metadata={"doc": "most times one job is displaced in 24 hours", "at_least": 0}
    )
    restart_cost: float = field(
        default=120.0,
        metadata={"doc": "what a restart costs a job beside its checkpoint lead", "unit": "time"},
    )
    require_checkpoint: bool = field(
        default=True, metadata={"doc": "displace only jobs that named a checkpoint signal"}
    )


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """What a job that said less than all is taken to mean."""

    lead: float = field(
        default=60.0,
        metadata={"doc": "between the checkpoint signal and the requeue", "unit": "time"},
    )
    longest_lead: float = field(
        default=900.0, metadata={"doc": "a longer lead in a hint counts as this", "unit": "time"}
    )


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """What jobs tell of themselves through `slurmsched.jobside`."""

    spool: str = field(
        default="",
        metadata={
            "doc": "folder where jobs report, on a file system that all nodes and the daemon share, open to all"
            " (mode 1777, or 3773 to hide reports from other users); empty reads nothing"
        },
    )


@dataclass(frozen=True, slots=True)
class HookSettings:
    """The dead-man's switch that job_submit.lua and the watchdog read."""

    heartbeat: str = field(
        default="/var/lib/synsched/heartbeat",
        metadata={"doc": "file whose first line is `unix-time mode period` of the last sign of life"},
    )
    stale_after: float = field(
        default=900.0,
        metadata={"doc": "a heartbeat older than this means that nobody schedules", "unit": "time"},
    )
    disable_file: str = field(
        default="/etc/synsched/disable", metadata={"doc": "while this file exists nothing is changed"}
    )


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What is done to Slurm's own configuration, where we are SlurmUser or root."""

    weights: bool = field(default=False, metadata={"doc": "weight nodes so that Slurm packs in the same direction"})
    fragments: tuple[str, ...] = field(
        default=(),
        metadata={"doc": "rendered files, each `TEMPLATE=PATH`, e.g. gres.conf.j2=/etc/slurm/gres.conf"},
    )
    admin_comment: bool = field(
        default=False,
        metadata={"doc": "write a note into AdminComment where it is empty or ours"},
    )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The database, which is for our user alone, and what is published of it."""

    path: str = field(default="/var/lib/synsched/synsched.db", metadata={"doc": "the SQLite database"})
    keep_days: int = field(default=90, metadata={"doc": "history older than this is dropped", "at_least": 1})
    keep_snapshots: int = field(
        default=200, metadata={"doc": "rounds whose whole snapshot is kept for replay", "at_least": 0}
    )
    export: str = field(
        default="",
        metadata={
            "doc": "folder of what people are shown of the database without reading it, written anew after each round;"
            " empty means `export` beside it"
        },
    )
    export_ended: float = field(
        default=86400.0,
        metadata={"doc": "how long people are shown jobs that have ended, the last 2000 at most", "unit": "time"},
    )


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """The daemon's process."""

    memory_max: int = field(
        default=0,
        metadata={
            "doc": "most memory of the daemon and the Slurm commands it runs, in MiB; 0 is 512, and 1/16 for each job"
            " that slurmctld keeps at most (MaxJobCount), and 1/4 for each node"
        },
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them. A default-constructed one is what an empty file means."""

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    manage: ManageSettings = field(default_factory=ManageSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    tickets: TicketSettings = field(default_factory=TicketSettings)
    guards: GuardSettings = field(default_factory=GuardSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    reports: ReportSettings = field(default_factory=ReportSettings)
    hook: HookSettings = field(default_factory=HookSettings)
    nodes: NodeSettings = field(default_factory=NodeSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    daemon: DaemonSettings = field(default_factory=DaemonSettings)


def _folder(value: str) -> Iterator[str]:
    if value:
        yield value


def _folder_of(value: str) -> Iterator[str]:
    """The folder of a file that is replaced as a whole: the new one is written beside it first."""
    if value:
        yield str(PurePosixPath(value).parent)


def _folders_of_rendered_files(fragments: tuple[str, ...]) -> Iterator[str]:
    for fragment in fragments:
        yield from _folder_of(fragment.partition("=")[2])


WRITTEN_PATHS: Final[dict[str, Callable[[Any], Iterator[str]]]] = {  # a value's type is that of its setting
    "hook.heartbeat": _folder_of,
    "nodes.fragments": _folders_of_rendered_files,
    "reports.spool": _folder,
    "storage.export": _folder,
    "storage.path": _folder_of,
}
"""Settings that name what the daemon writes, with the folders it writes to; one that is not defined is passed over."""

READ_PATHS: Final = frozenset({"cluster.slurm_conf", "hook.disable_file", "policy.profiles"})
"""Settings that name what the daemon only reads."""


def written_folders(settings: Settings) -> tuple[str, ...]:
    """Every folder that the daemon writes to with these settings, in order and each once."""
    result: set[str] = set()
    for name, folders in WRITTEN_PATHS.items():
        section, _, key = name.partition(".")
        value = getattr(getattr(settings, section), key, None)
        if value is not None:
            result.update(folders(value))
    return tuple(sorted(result))
