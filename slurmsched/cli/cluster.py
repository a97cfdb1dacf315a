"""What commands need that look at the cluster itself: the backend, the profiles, what earlier rounds remember."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from slurmsched.backends.protocol import Backend, BackendError
from slurmsched.backends.slurm import connect
from slurmsched.backends.slurm.commands import Commands
from slurmsched.daemon.scheduling import Site
from slurmsched.doctor.configuration import parsed
from slurmsched.knowledge import Knowledge, load_knowledge, shipped_profiles
from slurmsched.model import Memory, Snapshot
from slurmsched.settings.definition import Settings
from slurmsched.settings.memory import USUAL_SIZE, ClusterSize
from slurmsched.store.database import Database
from slurmsched.store.errors import told_apart
from slurmsched.store.remembering import Remembering

__all__ = ["backend", "cluster_size", "knowledge", "remembered", "site"]


def backend(settings: Settings) -> Backend:
    """The cluster that the settings name. Raises BackendError."""
    return connect(settings.cluster)


def cluster_size(settings: Settings) -> ClusterSize:
    """The size of the cluster that the settings name; USUAL_SIZE where Slurm cannot be asked."""
    commands = Commands(settings.cluster.timeout, settings.cluster.slurm_conf)
    try:
        configuration, _ = parsed(commands.read("scontrol", "show", "config"))
        nodes = commands.read("scontrol", "-a", "-o", "show", "node").splitlines()
        return ClusterSize(sum(line.startswith("NodeName=") for line in nodes), int(configuration["MaxJobCount"]))
    except (BackendError, KeyError, ValueError):
        return USUAL_SIZE


def knowledge(settings: Settings) -> Knowledge:
    """The profiles that the settings name, or the shipped ones. Raises ProfileError."""
    return load_knowledge(settings.policy.profiles) if settings.policy.profiles else shipped_profiles()


def site(settings: Settings) -> Site:
    """What rounds are run with. Raises BackendError, ProfileError."""
    return Site(settings, backend(settings), knowledge(settings))


def remembered(path: Path, snapshot: Snapshot, system: str) -> Memory:
    """What earlier rounds left for this one, read without changing anything; nothing where there was none.

    Raises StoreError.
    """
    if not path.exists():
        return Memory()
    with told_apart(path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    database = Database(connection, path)
    try:
        return Remembering(database).memory(snapshot, system)
    finally:
        database.close()
