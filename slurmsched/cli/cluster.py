"""Builds what commands need to schedule: the backend, the profiles and the stored scheduler state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slurmsched.backends.protocol import Backend, BackendError
from slurmsched.backends.slurm.backend import connect
from slurmsched.backends.slurm.commands import Commands
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.doctor.slurm import parse_configuration
from slurmsched.installation import DEFAULT_CLUSTER_SIZE, ClusterSize
from slurmsched.knowledge import Knowledge, load_knowledge, shipped_profiles
from slurmsched.model import SchedulerState, Snapshot
from slurmsched.policies.policies import configured_policy
from slurmsched.settings.definition import Settings
from slurmsched.store.database import Database
from slurmsched.store.errors import translate_sqlite_errors
from slurmsched.store.finished_runs import FinishedRuns
from slurmsched.store.state import StateStore


def connect_backend(settings: Settings) -> Backend:
    """Returns the backend of the configured cluster. Raises BackendError."""
    return connect(settings.cluster)


def cluster_size(settings: Settings) -> ClusterSize:
    """Returns the size of the configured cluster, or DEFAULT_CLUSTER_SIZE if Slurm does not answer."""
    commands = Commands(settings.cluster.timeout, settings.cluster.slurm_conf)
    try:
        configuration, _ = parse_configuration(commands.read("scontrol", "show", "config"))
        nodes = commands.read("scontrol", "-a", "-o", "show", "node").splitlines()
        return ClusterSize(sum(line.startswith("NodeName=") for line in nodes), int(configuration["MaxJobCount"]))
    except (BackendError, KeyError, ValueError):
        return DEFAULT_CLUSTER_SIZE


def configured_knowledge(settings: Settings) -> Knowledge:
    """Returns the profiles of policy.profiles, or the shipped ones. Raises ProfileError."""
    return load_knowledge(settings.policy.profiles) if settings.policy.profiles else shipped_profiles()


def scheduler_context(settings: Settings) -> SchedulerContext:
    """Returns the context for running rounds. Raises BackendError, ProfileError, PolicyError."""
    configured_policy(settings.policy)  # a round could not be decided with a policy that does not exist
    return SchedulerContext(settings, connect_backend(settings), configured_knowledge(settings))


def stored_state(path: Path, snapshot: Snapshot, settings: Settings) -> SchedulerState:
    """Returns the state of earlier rounds, empty without a database. Opens it read-only. Raises StoreError."""
    if not path.exists():
        return SchedulerState()
    with _opened(path) as database:
        return StateStore(database).load_state(
            snapshot, settings.policy.system, lengths=settings.learning.knows_lengths
        )


def with_lengths(path: Path, snapshot: Snapshot, state: SchedulerState, settings: Settings) -> SchedulerState:
    """Returns the state with how long jobs still run by what earlier runs took, whether decisions go by that or not.

    Opens the database read-only. Raises StoreError.
    """
    if not settings.learning.accounting:
        return state
    with _opened(path) as database:
        return replace(state, lengths=FinishedRuns(database).lengths_of(snapshot, state.service, state.steps))


@contextmanager
def _opened(path: Path) -> Iterator[Database]:
    with translate_sqlite_errors(path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    database = Database(connection, path)
    try:
        yield database
    finally:
        database.close()
