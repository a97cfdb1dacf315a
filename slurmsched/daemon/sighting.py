"""A poll written down: a job that cannot be costs itself alone."""

from __future__ import annotations

from collections.abc import Collection

from slurmsched.daemon.failing import RoundFailedError, kind_and_place
from slurmsched.model import JobId, Overview, Snapshot
from slurmsched.rounds.set_aside import without
from slurmsched.store.errors import StoreError
from slurmsched.store.sightings import failing
from slurmsched.store.store import Store

__all__ = ["sighted"]


def sighted(
    store: Store,
    round_id: int | None,
    snapshot: Snapshot,
    managed: Collection[JobId],
    overview: Overview | None = None,
) -> dict[JobId, str]:
    """Bring jobs and accounts up to a poll; the jobs that could not be, with the reason. Raises StoreError."""
    try:
        store.remembering.sight(round_id, snapshot, managed, overview)
    except StoreError:
        raise
    except Exception as error:
        failed = failing(store.database, snapshot, managed, kind_and_place)
        if not failed:
            raise RoundFailedError(f"the jobs cannot be written down: {kind_and_place(error)}") from error
        store.remembering.sight(round_id, without(snapshot, failed), managed, overview)
        return failed
    return {}
