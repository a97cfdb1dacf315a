"""Constraints between settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from os.path import normpath
from pathlib import PurePosixPath
from typing import Final

from slurmsched.settings.definition import Settings
from slurmsched.settings.paths import written_folders
from slurmsched.settings.schema import parse_listen_address, parse_tickets


@dataclass(frozen=True, slots=True)
class _Constraint:
    holds: Callable[[Settings], bool]
    message: str


def _heartbeat_outlives_period(settings: Settings) -> bool:
    return settings.hook.stale_after > settings.rounds.period


def _early_rounds_are_bounded(settings: Settings) -> bool:
    return settings.rounds.early_interval == 0 or settings.rounds.early_interval >= 1


def _leads_ascend(settings: Settings) -> bool:
    return settings.checkpoint.lead <= settings.checkpoint.longest_lead


def _queues_ascend(settings: Settings) -> bool:
    return all(lower < upper for lower, upper in pairwise((0.0, *settings.policy.las_queues)))


def _fragments_are_pairs(settings: Settings) -> bool:
    pairs = (fragment.partition("=") for fragment in settings.nodes.fragments)
    return all(template and PurePosixPath(path).is_absolute() for template, _, path in pairs)


def _tickets_are_valid(settings: Settings) -> bool:
    entries = (*settings.tickets.users, *settings.tickets.accounts)
    return all(parse_tickets(entry) is not None for entry in entries)


def _tickets_are_named_once(settings: Settings) -> bool:
    """Whether no user and no account has tickets twice; an account may have one parent only."""
    entries = (settings.tickets.users, [entry.rpartition("/")[2] for entry in settings.tickets.accounts])
    names = [[entry.partition("=")[0] for entry in of_kind] for of_kind in entries]
    return all(len(of_kind) == len(set(of_kind)) for of_kind in names)


def _quanta_ascend(settings: Settings) -> bool:
    return settings.tickets.quantum <= settings.tickets.wide_quantum


def _written_paths_are_absolute(settings: Settings) -> bool:
    return all(PurePosixPath(folder).is_absolute() for folder in written_folders(settings))


def _prometheus_is_a_url(settings: Settings) -> bool:
    """Whether it is a URL without a password, which `config show` would print."""
    url = settings.learning.prometheus
    return not url or re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9._~/-]*)?", url) is not None


def _idle_time_is_measurable(settings: Settings) -> bool:
    return settings.learning.idle_after == 0 or settings.learning.idle_after >= _SHORTEST_IDLE


_SHORTEST_IDLE: Final = 600.0
"""Seconds: a GPU waits for minutes while a job loads its data, and exporters look now and then."""


def _idle_is_told(settings: Settings) -> bool:
    learning = settings.learning
    return not settings.policy.idle_last or bool(learning.prometheus and learning.idle_after)


def _cluster_is_a_label(settings: Settings) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._-]*", settings.learning.prometheus_cluster) is not None


def _metrics_have_an_address(settings: Settings) -> bool:
    return not settings.metrics.listen or parse_listen_address(settings.metrics.listen) is not None


def _textfile_is_collected(settings: Settings) -> bool:
    file = PurePosixPath(settings.metrics.textfile).name
    return not settings.metrics.textfile or (file.endswith(".prom") and not file.startswith("."))


def _named_users_are_told(settings: Settings) -> bool:
    metrics = settings.metrics
    return not metrics.users or bool(metrics.listen or metrics.textfile)


def _named_users_are_bounded(settings: Settings) -> bool:
    return settings.metrics.users <= _MOST_USERS


_MOST_USERS: Final = 200


def _daemon_can_start(settings: Settings) -> bool:
    return settings.daemon.memory_max == 0 or settings.daemon.memory_max >= _LEAST_MEMORY


_LEAST_MEMORY: Final = 128
"""MiB. The process alone needs about 100."""

_DATABASE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal", ".lock", ".skipped")
"""What SQLite and the daemon append to the database's name, for files of their own."""


def _files(settings: Settings) -> Iterator[tuple[str, str]]:
    """The files that the daemon writes, and those that another program writes for it: setting and path."""
    yield from (("storage.path", settings.storage.path + suffix) for suffix in _DATABASE_SUFFIXES)
    yield "hook.heartbeat", settings.hook.heartbeat
    yield "hook.disable_file", settings.hook.disable_file
    yield "metrics.textfile", settings.metrics.textfile
    yield "cluster.slurm_conf", settings.cluster.slurm_conf or _SLURM_CONF
    yield from (("nodes.fragments", fragment.partition("=")[2]) for fragment in settings.nodes.fragments)


_SLURM_CONF: Final = "/etc/slurm/slurm.conf"


def _shared_files(settings: Settings) -> Iterator[str]:
    """Says which two settings name one file, since writing one would destroy the other."""
    named = dict[str, str]()
    for setting, path in _files(settings):
        file = normpath(path)
        if path and file in named:
            both = f"{named[file]} and {setting}" if named[file] != setting else f"{setting} twice"
            yield f"{file} is named by {both}: one would overwrite the other, so each needs a file of its own"
        named[file] = setting


_CONSTRAINTS: Final = (
    _Constraint(
        _heartbeat_outlives_period,
        "hook.stale_after must be longer than rounds.period, or the heartbeat is stale between two rounds",
    ),
    _Constraint(
        _early_rounds_are_bounded,
        "rounds.early_interval must be 0, or at least 1 s: each early round polls slurmctld;"
        " from rounds.period on there are none",
    ),
    _Constraint(_leads_ascend, "checkpoint.lead must not be longer than checkpoint.longest_lead"),
    _Constraint(_queues_ascend, "policy.las_queues must be ascending and above 0, for example [3600, 14400]"),
    _Constraint(
        _fragments_are_pairs,
        'nodes.fragments holds "TEMPLATE=/absolute/path", for example ["gres.conf.j2=/etc/slurm/gres.conf"]',
    ),
    _Constraint(
        _tickets_are_valid,
        'tickets.users and tickets.accounts hold "NAME=TICKETS" with tickets above 0, for example ["alice=4", "bob=1"]',
    ),
    _Constraint(
        _tickets_are_named_once,
        "tickets.users or tickets.accounts name a user or an account twice: each has tickets once, below one parent",
    ),
    _Constraint(
        _written_paths_are_absolute,
        "storage.path, storage.export, storage.page, hook.heartbeat, metrics.textfile and reports.spool must be"
        " absolute paths",
    ),
    _Constraint(
        _prometheus_is_a_url,
        'learning.prometheus must be a URL without user and password, for example "http://prometheus:9090"',
    ),
    _Constraint(
        _cluster_is_a_label, "learning.prometheus_cluster is a name of letters, digits, dots, dashes and underscores"
    ),
    _Constraint(
        _idle_time_is_measurable,
        "learning.idle_after must be 0, or at least 10m: GPUs wait for minutes while a job loads its data",
    ),
    _Constraint(
        _idle_is_told,
        "policy.idle_last needs learning.prometheus, which tells what GPUs do, and learning.idle_after above 0",
    ),
    _Constraint(
        _metrics_have_an_address,
        'metrics.listen must be an IP address and a port from 1024 on, for example "127.0.0.1:9797" or "[::1]:9797"',
    ),
    _Constraint(
        _textfile_is_collected,
        "metrics.textfile must have a name that ends in .prom and does not begin with a dot, or node_exporter ignores"
        " it",
    ),
    _Constraint(
        _named_users_are_told,
        "metrics.users names users nowhere without metrics.listen or metrics.textfile: set one, or remove it",
    ),
    _Constraint(
        _named_users_are_bounded,
        f"metrics.users must be {_MOST_USERS} at most: each user is two series of Prometheus",
    ),
    _Constraint(_quanta_ascend, "tickets.quantum must not be longer than tickets.wide_quantum"),
    _Constraint(
        _daemon_can_start,
        f"daemon.memory_max is in MiB and must be 0, or at least {_LEAST_MEMORY}: the daemon does not start with less",
    ),
)


def violated_constraints(settings: Settings) -> Iterator[str]:
    """Yields the message of each violated constraint, which says what to do."""
    yield from (constraint.message for constraint in _CONSTRAINTS if not constraint.holds(settings))
    yield from _shared_files(settings)
