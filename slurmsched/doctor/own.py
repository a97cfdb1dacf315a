"""Our own side: the database, the sign of life, the switches, the hook's answer."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Final

from slurmsched.daemon.heartbeat import Beat
from slurmsched.daemon.instance import Instance
from slurmsched.doctor.finding import Finding, fine, hint, mend
from slurmsched.model import JobId
from slurmsched.report.liveness import Life, Liveness
from slurmsched.report.quantities import count
from slurmsched.store.checking import first_damage
from slurmsched.store.database import Database
from slurmsched.store.errors import StoreError, told_apart
from slurmsched.store.export import Part
from slurmsched.store.migrations import pending
from slurmsched.store.reading import reading

__all__ = [
    "LATEST",
    "REHEARSED",
    "about_daemons",
    "about_database",
    "about_export",
    "about_hook",
    "about_life",
    "about_overruled",
    "about_switches",
]

_LAG: Final = 60.0
"""Seconds for which a round may be over and not published."""

_SHOWN: Final = 20

LATEST: Final = 10
"""Rounds that are looked at for holds that others lifted."""

_OFTEN: Final = 3
"""In so many of them it is no coincidence."""

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

REHEARSED: Final = "synsched:doctor=1"
"""A comment that the hook cannot but complain about."""


def about_database(path: Path) -> Iterator[Finding]:
    """Whether it is there, whole, and of this release."""
    if not path.exists():
        where = "is not there yet" if path.parent.is_dir() else f"cannot be: the folder {path.parent} does not exist"
        remedy = "the first 'synsched run' makes it" if path.parent.is_dir() else f"create {path.parent} for our user"
        yield (hint if path.parent.is_dir() else mend)("database", f"{path} {where}", remedy)
        return
    if path.parent.stat().st_mode & _OTHERS_WRITE:
        what = f"others may write into {path.parent}: no round is run"
        yield mend("database", what, f"'chmod go-w {path.parent}', or set storage.path")
        return
    try:
        with told_apart(path), closing(_looked_at(path)) as connection:
            database = Database(connection, path)
            damage, waiting = first_damage(database, inf), pending(database)
    except StoreError as error:
        yield mend("database", str(error), "'synsched release' works without it; restore a copy, or move it away")
        return
    if damage:
        yield mend("database", f"{path} is damaged: {damage}", "restore a copy, or move it away and start anew")
    elif waiting:
        yield hint("database", f"{path} is older than this release", "the next 'synsched run' brings it up to date")
    else:
        yield fine("database", f"{path}, {path.stat().st_size / 1e6:.1f} MB")
        yield from _left_out(path)


def _left_out(path: Path) -> Iterator[Finding]:
    """Rows that rounds and our commands go on without, up to a screenful."""
    try:
        with reading(path) as opened:
            opened.jobs()
            rows = opened.unreadable()
    except StoreError as error:
        yield mend("database", str(error), "restore a copy, or move it away")
        return
    for row in rows[:_SHOWN]:
        yield hint("database", row.sentence, "nothing else is affected; look at the disk")
    if len(rows) > _SHOWN:
        yield hint("database", f"{count(len(rows) - _SHOWN, 'more row')} cannot be read", "look at the disk")


def about_export(folder: Path, ended: float | None, owner: int | None = None) -> Finding:
    """Whether ordinary users can read the documents, and whether these are as of the last round, which `ended` then.

    `owner` is the user id of the daemon, as far as it is known.
    """
    topic, writes = "export", "see the log of the daemon"
    try:
        if refused := _refused(folder, owner):
            return mend(topic, f"nothing is published: {refused}", f"remove {folder}, or set storage.export")
        seen = (folder / f"{Part.CURRENT.value}.json").stat()
    except FileNotFoundError:
        return hint(topic, f"nothing has been published in {folder}: users see no status", "the next round does it")
    except OSError as error:
        return mend(topic, f"cannot look at {folder} ({error.strerror})", writes)
    closed = [str(above) for above in (folder, *folder.parents) if not above.stat().st_mode & 0o001]
    if closed:
        return mend(topic, f"users cannot enter {closed[0]}", f"'chmod o+x {closed[0]}', or set storage.export")
    if ended is not None and seen.st_mtime < ended - _LAG:
        return mend(topic, f"{folder} is older than the last round", writes)
    return fine(topic, f"{folder}, for users who may not read the database")


def _refused(folder: Path, owner: int | None) -> str:
    """Why the daemon publishes nothing in a folder that is there; empty where it does. Raises OSError."""
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode):
        return f"{folder} is no folder"
    if seen.st_mode & _OTHERS_WRITE:
        return f"others may write to {folder}"
    if owner and seen.st_uid != owner:  # where it is root's, root may run rounds for the daemon
        return f"{folder} belongs to another user than the database"
    return ""


def about_life(life: Liveness, held: int) -> Finding:
    """Whether rounds happen."""
    match life.life:
        case Life.ALIVE:
            return fine("rounds", life.sentence)
        case Life.NEVER:
            return hint("rounds", "none has run yet", "systemctl start synsched, or the cron line ('synsched render')")
        case _:
            left = f", and {held} jobs are held by it" if held else ""
            return mend(
                "rounds", life.sentence.partition(";")[0] + left, "see its log; 'synsched release' gives jobs back"
            )


def about_daemons(beat: Beat | None, owner: Instance | None, now: float, stale_after: float) -> Iterator[Finding]:
    """Whether two processes schedule one cluster: `owner` holds, or held last, the lock of our database."""
    given = beat.daemon if beat is not None and not beat.stale(now, stale_after) else None
    if owner is not None and given is not None and given != owner and given.may_live:
        what = f"{given.sentence} gives the heartbeat, and {owner.sentence} has the lock of our database"
        yield mend(
            "daemons", f"{what}: two schedule one cluster", "stop one of them; the second only observes till then"
        )


def about_overruled(lifted: Mapping[int, Sequence[JobId]]) -> Iterator[Finding]:
    """Whether others undo what we do: `lifted` are, for the latest rounds in which there were any, the jobs whose hold
    is gone though nothing of ours did it.

    Once is a person; in several rounds it is another scheduler, on a host that shares neither heartbeat nor database.
    """
    if len(lifted) >= _OFTEN:
        jobs = sorted({job for told in lifted.values() for job in told})
        often = f"in {len(lifted)} of the last {LATEST} rounds"
        what = f"somebody else lifted our holds {often}, such as that of job {jobs[0]}"
        yield mend("daemons", what, "stop the other synsched, or share hook.heartbeat with it; people pause us first")


def about_switches(paused: str, disable_file: Path) -> Iterator[Finding]:
    """What keeps rounds from changing anything. `paused` is a sentence, empty where nobody paused."""
    if paused:
        yield hint("pause", paused, "'synsched resume' goes on")
    if disable_file.exists():
        yield hint("pause", f"{disable_file} exists: nothing is changed", "remove it to go on")


def about_hook(said: str) -> Finding:
    """Whether job_submit answered a rehearsed submission with the comment REHEARSED; `said` is all that sbatch said."""
    if "unknown hint" in said:
        return fine("hook", "answers at submission")
    last = (said.strip().splitlines() or ["sbatch said nothing"])[-1]
    return mend(
        "hook",
        f"did not answer a rehearsed submission ({last})",
        "install hooks/job_submit.lua, then 'scontrol reconfigure'",
    )


def _looked_at(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
