"""Our own side: the database, the sign of life, the switches, the hook, the systemd unit, the jobs' reports."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from math import inf
from pathlib import Path, PurePosixPath
from typing import Final

from slurmsched.daemon.heartbeat import HeartbeatRecord, ProcessIdentity
from slurmsched.doctor.finding import Finding, advice, ok, problem
from slurmsched.installation import extra_write_folders
from slurmsched.jobside.untrusted import insecure_spool_reason, is_private_spool
from slurmsched.model import JobId
from slurmsched.model.reasons import pluralise
from slurmsched.report.status import Liveness, LivenessState
from slurmsched.settings.definition import Settings
from slurmsched.store.database import Database
from slurmsched.store.errors import StoreError, translate_sqlite_errors
from slurmsched.store.maintenance import find_damage, pending_migrations
from slurmsched.store.publication import DocumentKind
from slurmsched.store.read_only import open_read_only
from slurmsched.store.rows import RejectedReportRow

_LAG: Final = 60.0
"""Seconds for which a round may be over and not published."""

_MAX_SHOWN: Final = 20

ROUNDS_EXAMINED: Final = 10
"""Rounds that are looked at for holds that others lifted."""

_LIFTED_OFTEN: Final = 3
"""In so many of them it is no coincidence."""

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

REHEARSAL_COMMENT: Final = "synsched:doctor=1"
"""A comment that the hook cannot but complain about."""


def check_database(path: Path) -> Iterator[Finding]:
    """Whether it is there, whole, and of this release."""
    if not path.exists():
        where = "is not there yet" if path.parent.is_dir() else f"cannot be: the folder {path.parent} does not exist"
        remedy = "the first 'synsched run' makes it" if path.parent.is_dir() else f"create {path.parent} for our user"
        yield (advice if path.parent.is_dir() else problem)("database", f"{path} {where}", remedy)
        return
    if path.parent.stat().st_mode & _OTHERS_WRITE:
        what = f"others may write into {path.parent}: no round is run"
        yield problem("database", what, f"'chmod go-w {path.parent}', or set storage.path")
        return
    try:
        with translate_sqlite_errors(path), closing(_connect_read_only(path)) as connection:
            database = Database(connection, path)
            damage, waiting = find_damage(database, inf), pending_migrations(database)
    except StoreError as error:
        yield problem("database", str(error), "'synsched release' works without it; restore a copy, or move it away")
        return
    if damage:
        yield problem("database", f"{path} is damaged: {damage}", "restore a copy, or move it away and start anew")
    elif waiting:
        yield advice("database", f"{path} is older than this release", "the next 'synsched run' brings it up to date")
    else:
        yield ok("database", f"{path}, {path.stat().st_size / 1e6:.1f} MB")
        yield from _unreadable_rows(path)


def _unreadable_rows(path: Path) -> Iterator[Finding]:
    """Rows that rounds and our commands go on without, up to a screenful."""
    try:
        with open_read_only(path) as opened:
            opened.jobs()
            rows = opened.unreadable_rows()
    except StoreError as error:
        yield problem("database", str(error), "restore a copy, or move it away")
        return
    for row in rows[:_MAX_SHOWN]:
        yield advice("database", row.sentence, "nothing else is affected; look at the disk")
    if len(rows) > _MAX_SHOWN:
        yield advice("database", f"{pluralise(len(rows) - _MAX_SHOWN, 'more row')} cannot be read", "look at the disk")


def check_export(folder: Path, ended: float | None, owner: int | None = None) -> Finding:
    """Whether ordinary users can read the documents, and whether these are as of the last round, which `ended` then.

    `owner` is the user id of the daemon, as far as it is known.
    """
    topic, writes = "export", "see the log of the daemon"
    try:
        if refused := _export_refusal(folder, owner):
            return problem(topic, f"nothing is published: {refused}", f"remove {folder}, or set storage.export")
        seen = (folder / f"{DocumentKind.CURRENT.value}.json").stat()
    except FileNotFoundError:
        return advice(topic, f"nothing has been published in {folder}: users see no status", "the next round does it")
    except OSError as error:
        return problem(topic, f"cannot look at {folder} ({error.strerror})", writes)
    closed = [str(above) for above in (folder, *folder.parents) if not above.stat().st_mode & 0o001]
    if closed:
        return problem(topic, f"users cannot enter {closed[0]}", f"'chmod o+x {closed[0]}', or set storage.export")
    if ended is not None and seen.st_mtime < ended - _LAG:
        return problem(topic, f"{folder} is older than the last round", writes)
    return ok(topic, f"{folder}, for users who may not read the database")


def _export_refusal(folder: Path, owner: int | None) -> str:
    """Why the daemon publishes nothing in a folder that is there; empty where it does. Raises OSError."""
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode):
        return f"{folder} is no folder"
    if seen.st_mode & _OTHERS_WRITE:
        return f"others may write to {folder}"
    if owner and seen.st_uid != owner:  # where it is root's, root may run rounds for the daemon
        return f"{folder} belongs to another user than the database"
    return ""


def check_liveness(liveness: Liveness, held: int) -> Finding:
    """Whether rounds happen."""
    match liveness.life:
        case LivenessState.ALIVE:
            return ok("rounds", liveness.sentence)
        case LivenessState.NEVER:
            return advice(
                "rounds", "none has run yet", "systemctl start synsched, or the cron line ('synsched render')"
            )
        case _:
            left = f", and {held} jobs are held by it" if held else ""
            return problem(
                "rounds", liveness.sentence.partition(";")[0] + left, "see its log; 'synsched release' gives jobs back"
            )


def check_daemons(
    beat: HeartbeatRecord | None, owner: ProcessIdentity | None, now: float, stale_after: float
) -> Iterator[Finding]:
    """Whether two processes schedule one cluster: `owner` holds, or held last, the lock of our database."""
    beating = beat.daemon if beat is not None and not beat.is_stale(now, stale_after) else None
    if owner is not None and beating is not None and beating != owner and beating.may_be_alive:
        what = f"{beating.sentence} gives the heartbeat, and {owner.sentence} has the lock of our database"
        yield problem(
            "daemons", f"{what}: two schedule one cluster", "stop one of them; the second only observes till then"
        )


def check_lifted_holds(lifted: Mapping[int, Sequence[JobId]]) -> Iterator[Finding]:
    """Whether others undo what we do: `lifted` are, for the latest rounds in which there were any, the jobs whose hold
    is gone though nothing of ours did it.

    Once is a person; in several rounds it is another scheduler, on a host that shares neither heartbeat nor database.
    """
    if len(lifted) >= _LIFTED_OFTEN:
        jobs = sorted({job for told in lifted.values() for job in told})
        often = f"in {len(lifted)} of the last {ROUNDS_EXAMINED} rounds"
        what = f"somebody else lifted our holds {often}, such as that of job {jobs[0]}"
        yield problem(
            "daemons", what, "stop the other synsched, or share hook.heartbeat with it; people pause us first"
        )


def check_switches(paused: str, disable_file: Path) -> Iterator[Finding]:
    """What keeps rounds from changing anything. `paused` is a sentence, empty where nobody paused."""
    if paused:
        yield advice("pause", paused, "'synsched resume' goes on")
    if disable_file.exists():
        yield advice("pause", f"{disable_file} exists: nothing is changed", "remove it to go on")


def check_hook(output: str) -> Finding:
    """Whether job_submit answered a rehearsed submission with the comment REHEARSED; `said` is all that sbatch said."""
    if "unknown hint" in output:
        return ok("hook", "answers at submission")
    last = (output.strip().splitlines() or ["sbatch said nothing"])[-1]
    return problem(
        "hook",
        f"did not answer a rehearsed submission ({last})",
        "install hooks/job_submit.lua, then 'scontrol reconfigure'",
    )


def _connect_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


UNIT: Final = Path("/etc/systemd/system/synsched.service")
_SETTING: Final = "ReadWritePaths="


def check_unit(settings: Settings, path: Path = UNIT) -> Iterator[Finding]:
    """Whether the unit at `path` lets the daemon write where the settings say; nothing where there is no unit."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if "ProtectSystem=strict" not in text:
        yield problem("unit", f"{path} does not protect the host from the daemon", _remedy(path))
        return
    allowed = tuple(_allowed(text))
    missing = [
        folder
        for folder in extra_write_folders(settings)
        if not any(PurePosixPath(folder).is_relative_to(base) for base in allowed)
    ]
    if missing:
        yield problem("unit", f"{path} does not let the daemon write to {', '.join(missing)}", _remedy(path))
    else:
        yield ok("unit", f"{path} lets the daemon write to what is set")


def _allowed(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(_SETTING):
            try:
                words = shlex.split(line.removeprefix(_SETTING))
            except ValueError:  # quotes that do not end: systemd passes over the line, and so do we
                continue
            yield from (word.lstrip("-+").replace("%%", "%") for word in words)


def _remedy(path: Path) -> str:
    return f"'synsched render synsched.service > {path}', 'systemctl daemon-reload', restart it"


_TOPIC: Final = "reports"


def check_spool(path: str, database: Path) -> Iterator[Finding]:
    """Whether jobs can report there, and nobody in another's place. Nothing where no spool is set.

    The spool has to belong to root or to whom rounds run as: to us, or where root asks to the owner of the `database`.
    """
    if not path:
        return
    try:
        found = Path(path).stat()
        trusted = {0, database.stat().st_uid if os.geteuid() == 0 and database.exists() else os.geteuid()}
        above = _insecure_above(Path(path).resolve(), trusted)
    except OSError as error:
        yield problem(_TOPIC, f"the spool {path} cannot be used: {error.strerror}", f"install -d -m 1777 {path}")
        return
    mode = found.st_mode
    if not stat.S_ISDIR(mode) or not mode & stat.S_IWOTH or not mode & stat.S_IXOTH:
        yield problem(_TOPIC, f"jobs cannot write into the spool {path}", f"install -d -m 1777 {path}")
    elif (why := insecure_spool_reason(found, trusted)) is not None:
        remedy = f"chmod 1777 {path}" if found.st_uid in trusted else f"chown it to root or to our user: {path}"
        yield problem(_TOPIC, f"the spool {path} {why}: no steps of forked jobs are written there", remedy)
    elif above is not None:
        yield problem(
            _TOPIC, f"the spool {path} can be replaced: {above[0]} {above[1]}", "let only root change that folder"
        )
    elif is_private_spool(found) and found.st_gid not in {os.getegid(), *os.getgroups()} and os.geteuid() != 0:
        yield problem(
            _TOPIC, f"reports in {path} are for a group that we are not in", "make us a member, or chmod 1777"
        )
    else:
        yield ok(_TOPIC, f"are read from {path}")


def _insecure_above(spool: Path, trusted: Collection[int]) -> tuple[Path, str] | None:
    """A folder above the spool in which users could put another spool, and how they can. Raises OSError."""
    for folder in spool.parents:
        if (why := insecure_spool_reason(folder.stat(), trusted)) is not None:
            return folder, why
    return None


def check_reports(rejected: Sequence[RejectedReportRow]) -> Iterator[Finding]:
    """Each job or user whose reports were not believed in the last day, the most recent first, up to a screenful."""
    shown = rejected[:_MAX_SHOWN]
    for complaint in shown:
        yield advice(_TOPIC, f"{complaint.subject}: {complaint.sentence}", "it is not used; ask its owner")
    if len(rejected) > len(shown):
        yield advice(_TOPIC, f"{pluralise(len(rejected) - len(shown), 'more complaint')}", "look at the spool")
