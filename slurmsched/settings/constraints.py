"""Constraints between settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final

from slurmsched.settings.definition import Settings, written_folders
from slurmsched.settings.schema import parse_tickets


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
        "storage.path, storage.export, hook.heartbeat and reports.spool must be absolute paths",
    ),
    _Constraint(_quanta_ascend, "tickets.quantum must not be longer than tickets.wide_quantum"),
)


def violated_constraint(settings: Settings) -> str | None:
    """Returns the message of the first violated constraint, which says what to do; None if all hold."""
    return next((constraint.message for constraint in _CONSTRAINTS if not constraint.holds(settings)), None)
