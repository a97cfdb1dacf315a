"""Checks of the installation: database, export, metrics, heartbeat, switches, hook, systemd unit and the spool of
reports."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import sqlite3
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from math import inf
from pathlib import Path, PurePosixPath
from typing import Final

from slurmsched.backends.prometheus import RUNNING_JOBS
from slurmsched.daemon.heartbeat import STOPPED, HeartbeatRecord, ProcessIdentity
from slurmsched.doctor.finding import Finding, advice, ok, problem
from slurmsched.installation import extra_write_folders
from slurmsched.jobside.untrusted import insecure_spool_reason, is_private_spool
from slurmsched.knowledge import load_knowledge
from slurmsched.model import JobId, SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.policies.policies import comparison_remark
from slurmsched.report.quantities import duration, local_time
from slurmsched.report.status import Liveness, LivenessState
from slurmsched.rounds.guards import settings_contradictions
from slurmsched.settings.definition import MetricsSettings, Settings
from slurmsched.settings.file import LoadedSettings
from slurmsched.settings.schema import parse_listen_address
from slurmsched.store.database import Database
from slurmsched.store.errors import StoreError, translate_sqlite_errors
from slurmsched.store.maintenance import find_damage, pending_migrations
from slurmsched.store.publication import DocumentKind
from slurmsched.store.read_only import open_read_only
from slurmsched.store.rows import ExporterRow, RejectedReportRow, SwitchRow

_LAG: Final = 60.0
"""Seconds after the end of a round within which it has to be published."""

_MAX_SHOWN: Final = 20

ROUNDS_EXAMINED: Final = 10
"""Number of rounds that are searched for holds released by others."""

_LIFTED_OFTEN: Final = 3
"""Number of these rounds from which on it is a problem."""

START_REMEDY: Final = "systemctl start synsched, or the cron line ('synsched render')"
"""What to do where no round has run yet."""

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

REHEARSAL_COMMENT: Final = "synsched:doctor=1"
"""A comment with an unknown hint, which the hook rejects."""


def settings_mistakes(loaded: LoadedSettings) -> Iterator[str]:
    """All that is wrong with the settings, as far as that can be told without Slurm, each in a sentence."""
    settings = loaded.settings
    yield from loaded.mistakes
    yield from settings_contradictions(settings, loaded.given)
    if settings.policy.profiles:
        try:
            load_knowledge(settings.policy.profiles)
        except SynschedError as error:
            yield f"policy.profiles: {error}"


def check_settings(loaded: LoadedSettings, refused: SwitchRow | None, unknown: Sequence[str]) -> Iterator[Finding]:
    """Whether the settings have mistakes, among them the `unknown` names, and whether the daemon took them: `refused`
    is set where it keeps earlier ones."""
    topic, where = "settings", str(loaded.file) if loaded.file else "no file, so the defaults"
    if loaded.file is not None and not os.access(loaded.file, os.R_OK, effective_ids=True):
        user = _user_name(os.geteuid())
        yield problem(topic, f"{user} may not read {loaded.file}", f"let {user} read it, and enter its folder")
    mistakes = (*settings_mistakes(loaded), *unknown)
    reload = f"correct {loaded.file}, then 'synsched config check' and 'systemctl reload synsched'"
    for mistake in mistakes:
        yield problem(topic, mistake, reload)
    if refused is not None:
        what = f"the daemon keeps the settings from before {local_time(refused.at)}: {refused.value}"
        yield problem(topic, what, reload if mistakes else "'systemctl reload synsched' reads the corrected file")
    if not mistakes:
        yield ok(topic, f"{where}; mode {loaded.settings.rounds.mode.value}, policy {loaded.settings.policy.system}")
    if remark := comparison_remark(loaded.settings.policy.system):
        yield advice(topic, remark, "see the table of policies in docs/settings.md")


def check_database(path: Path) -> Iterator[Finding]:
    """Whether the database exists, is undamaged, and has this release's schema."""
    if not path.exists():
        if path.parent.is_dir():
            yield advice("database", f"{path} does not exist yet", "the first 'synsched run' creates it")
        else:
            what = f"{path} cannot be created: the folder {path.parent} does not exist"
            yield problem("database", what, f"create {path.parent} for the user of synsched")
        return
    if path.parent.stat().st_mode & _OTHERS_WRITE:
        what = f"others may write into {path.parent}: no round runs"
        yield problem("database", what, f"'chmod go-w {path.parent}', or set storage.path")
        return
    try:
        with translate_sqlite_errors(path), closing(_connect_read_only(path)) as connection:
            database = Database(connection, path)
            damage, pending = find_damage(database, inf), pending_migrations(database)
    except StoreError as error:
        yield problem("database", str(error), "'synsched release' works without it; restore a backup, or move it away")
        return
    if damage:
        yield problem("database", f"{path} is damaged: {damage}", "restore a backup, or move it away to start afresh")
    elif pending:
        yield advice("database", f"{path} is of an older release", "the next 'synsched run' migrates it")
    else:
        yield ok("database", f"{path}, {path.stat().st_size / 1e6:.1f} MB")
        yield from _unreadable_rows(path)


def _connect_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _unreadable_rows(path: Path) -> Iterator[Finding]:
    """The rows that rounds and commands skip, the first twenty one by one."""
    try:
        with open_read_only(path) as store:
            store.jobs()
            rows = store.unreadable_rows()
    except StoreError as error:
        yield problem("database", str(error), "restore a backup, or move it away")
        return
    for row in rows[:_MAX_SHOWN]:
        yield advice("database", row.sentence, "nothing else is affected; check the disk")
    if len(rows) > _MAX_SHOWN:
        yield advice("database", f"{pluralise(len(rows) - _MAX_SHOWN, 'more row')} cannot be read", "check the disk")


def check_export(folder: Path, ended: float | None, owner: int | None = None) -> Finding:
    """Whether ordinary users can read the published documents, and whether these are as of the last round.

    That round finished at `ended` (unix seconds). `owner` is the user id of the daemon, None if unknown.
    """
    topic, remedy = "export", "see 'journalctl -t synsched'"
    try:
        if refused := _export_refusal(folder, owner):
            return problem(topic, f"nothing is published: {refused}", f"remove {folder}, or set storage.export")
        status = (folder / f"{DocumentKind.CURRENT.value}.json").stat()
    except FileNotFoundError:
        return advice(topic, f"nothing has been published in {folder}: users see no status", "the next round publishes")
    except OSError as error:
        return problem(topic, f"cannot read {folder} ({error.strerror})", remedy)
    closed = [str(parent) for parent in (folder, *folder.parents) if not parent.stat().st_mode & 0o001]
    if closed:
        return problem(topic, f"users cannot enter {closed[0]}", f"'chmod o+x {closed[0]}', or set storage.export")
    if ended is not None and status.st_mtime < ended - _LAG:
        return problem(topic, f"{folder} is older than the last round", remedy)
    return ok(topic, f"{folder}, for users who may not read the database")


def _export_refusal(folder: Path, owner: int | None) -> str:
    """Why the daemon does not publish into an existing folder; empty if it does. Raises OSError."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if status.st_mode & _OTHERS_WRITE:
        return f"others may write to {folder}"
    if owner and status.st_uid != owner:  # if the database is root's, root may run rounds for the daemon
        return f"{folder} belongs to another user than the database"
    return ""


def check_owners(database: Path, us: int) -> Iterator[Finding]:
    """Whether the database and its lock belong to the owner of their folder, as whom rounds run; and whether what else
    was found is true for that user: `us` is the id of the user who asks."""
    files = [file for file in (database, database.with_name(f"{database.name}.lock")) if file.exists()]
    if not files:
        return
    owner = database.parent.stat().st_uid
    stray = next((file for file in files if file.stat().st_uid != owner), None)
    if stray is not None:
        what = f"{database.parent} belongs to {_user_name(owner)}, and {stray} to {_user_name(stray.stat().st_uid)}"
        yield problem("database", f"{what}: one of them cannot run rounds", f"chown {_user_name(owner)} {database}*")
    elif us == 0 != owner:
        what = f"those of root, but rounds run as {_user_name(owner)}"
        yield advice("rights", what, f"'sudo -u {_user_name(owner)} synsched doctor' looks at theirs")


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def check_liveness(liveness: Liveness, held: int) -> Finding:
    """Whether rounds run; `held` is the number of jobs that synsched holds."""
    match liveness.life:
        case LivenessState.ALIVE:
            return ok("rounds", liveness.sentence)
        case LivenessState.NEVER:
            return advice("rounds", "none has run yet", START_REMEDY)
        case _:
            what = liveness.sentence.partition(";")[0]
            if held:
                what += f", and synsched holds {pluralise(held, 'job')}"
            return problem("rounds", what, "see 'journalctl -t synsched'; 'synsched release' gives jobs back")


def check_daemons(
    beat: HeartbeatRecord | None, owner: ProcessIdentity | None, now: float, stale_after: float
) -> Iterator[Finding]:
    """Whether two processes schedule the cluster; `owner` holds, or held last, the lock of the database."""
    beating = beat.daemon if beat is not None and not beat.is_stale(now, stale_after) else None
    if owner is not None and beating is not None and beating != owner and beating.may_be_alive:
        what = f"{beating.sentence} writes the heartbeat, and {owner.sentence} holds the lock of the database"
        remedy = "stop one of them; until then the second only observes"
        yield problem("daemons", f"{what}: two daemons schedule one cluster", remedy)


def check_round_times(began: float | None, now: float) -> Iterator[Finding]:
    """Whether the latest round in the database began in the future (unix seconds; None without one)."""
    if began is not None and began > now + _CLOCK_SLACK:
        what = f"the latest round in the database began {duration(began - now)} in the future: a clock was set back"
        yield problem("clock", what, "run NTP on the daemon's host; ages are right again after that time")


_CLOCK_SLACK: Final = 5.0


def check_lifted_holds(lifted: Mapping[int, Sequence[JobId]]) -> Iterator[Finding]:
    """Whether others undo our holds: `lifted` are the jobs whose hold was released by others, by round.

    Once, it was a person; in several rounds, it is another synsched on a host that shares neither heartbeat nor
    database.
    """
    if len(lifted) >= _LIFTED_OFTEN:
        job = min(job for jobs in lifted.values() for job in jobs)
        often = f"in {len(lifted)} of the last {ROUNDS_EXAMINED} rounds"
        what = f"somebody else released our holds {often}, such as that of job {job}"
        remedy = "stop the other synsched, or share hook.heartbeat with it; to release holds by hand, pause first"
        yield problem("daemons", what, remedy)


def check_accounting(error: str) -> Iterator[Finding]:
    """Yield a finding if Slurm's accounting does not say which runs have ended; rounds do without."""
    if error:
        remedy = "nothing is learnt of runs that end: start slurmdbd, or set accounting = false in [learning]"
        yield advice("accounting", error, remedy)


def check_prometheus(url: str, records: Sequence[ExporterRow], now: float) -> Iterator[Finding]:
    """Who of the exporters tells how busy the GPUs of jobs were, and why another does not; nothing without a URL."""
    topic = "Prometheus"
    if not url:
        return
    failing = [record for record in records if record.failures]
    for record in records:
        if record.exporter == RUNNING_JOBS and record.told and not record.failures:
            ago = duration(max(now - record.last_told, 0.0))
            yield ok(topic, f"it told how busy the GPUs of running jobs were, the last time {ago} ago")
    records = [record for record in records if record.exporter != RUNNING_JOBS]
    telling = [record for record in records if record.told]
    for record in telling:
        ago = duration(max(now - record.last_told, 0.0))
        yield ok(topic, f"{record.exporter} told of {pluralise(record.told, 'run')}, the last time {ago} ago")
    for problem_said in sorted({record.problem for record in failing}):
        names = ", ".join(record.exporter for record in failing if record.problem == problem_said)
        remedy = f"how busy GPUs were is not learnt from there: see whether {url} answers"
        yield advice(topic, f"{problem_said} (asked for {names})", remedy)
    if records and not failing and not telling:
        known = ", ".join(record.exporter for record in records)
        remedy = "see that one of them is scraped and labels its series with jobs, or set learning.prometheus_cluster"
        yield advice(topic, f"{url} has told of no run: it was asked for series of {known}", remedy)
    elif not records:
        yield ok(topic, f"{url} was not asked yet: no job with GPUs ended lately")


def check_metrics(metrics: MetricsSettings, ended: float | None) -> Iterator[Finding]:
    """Whether the metrics can be had where the settings say; nothing where these say nothing. The last round finished
    at `ended` (unix seconds)."""
    if metrics.listen:
        yield _check_metrics_port(metrics.listen)
    if metrics.textfile:
        yield _check_textfile(Path(metrics.textfile), ended)


def _check_metrics_port(address: str) -> Finding:
    topic, where = "metrics", f"http://{address}/metrics"
    host, port = parse_listen_address(address) or ("", 0)
    connection = HTTPConnection(_THIS_HOST.get(host, host), port, timeout=_SCRAPE_TIMEOUT)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read(_MAX_SCRAPE)
    except (OSError, HTTPException) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return problem(topic, f"{where} does not answer ({why})", "start 'synsched run', or see its log")
    finally:
        connection.close()
    if _OWN_METRIC not in text:
        return problem(topic, f"another program answers on {where}", "end it, or set metrics.listen")
    return ok(topic, f"{where} answers")


_THIS_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - who listens everywhere is asked here
_SCRAPE_TIMEOUT: Final = 3.0
_MAX_SCRAPE: Final = 1 << 20
_OWN_METRIC: Final = b"synsched_build_info"


def _check_textfile(file: Path, ended: float | None) -> Finding:
    topic, remedy = "metrics", "see the daemon's log"
    try:
        status = file.stat()
        closed = [str(parent) for parent in file.parents if not parent.stat().st_mode & 0o001]
    except FileNotFoundError:
        what = f"{file} does not exist"
        return problem(topic, what, remedy) if ended else advice(topic, what, "the next round writes it")
    except OSError as error:
        return problem(topic, f"cannot read {file} ({error.strerror})", remedy)
    if closed or not status.st_mode & 0o004:
        where = closed[0] if closed else file
        return problem(topic, f"node_exporter cannot read {file}, because of {where}", f"chmod o+rx {where}")
    if ended is not None and status.st_mtime < ended - _LAG:
        return problem(topic, f"{file} is older than the last round", remedy)
    return ok(topic, f"{file}, as of the last round")


def check_switches(paused: str, disable_file: Path) -> Iterator[Finding]:
    """What keeps rounds from changing anything. `paused` says who paused and why, empty when not paused."""
    if paused:
        yield advice("pause", paused, "'synsched resume' ends the pause")
    if disable_file.exists():
        yield advice("pause", f"{disable_file} exists: nothing is changed", "remove it to resume")


def check_hook(output: str, heartbeat: str, beat: HeartbeatRecord | None, now: float) -> Iterator[Finding]:
    """Whether the job_submit hook answered a test submission with REHEARSAL_COMMENT, and whether slurmctld's host,
    where it runs, sees our heartbeat. `output` is that of sbatch, `beat` the heartbeat in the file `heartbeat` here."""
    topic, install = "hook", "install hooks/job_submit.lua of this release, then 'scontrol reconfigure'"
    if "unknown hint" not in output:
        last = (output.strip().splitlines() or ["sbatch printed nothing"])[-1]
        yield problem(topic, f"did not answer a test submission ({last})", install)
        return
    seen = _HOOK_SEES.search(output)
    if seen is None:
        yield advice(topic, "answers at submission, but is of another release", install)
    elif seen["path"] != heartbeat:
        remedy = f"write heartbeat = {heartbeat} into /etc/synsched/hook.conf on slurmctld's host"
        yield problem(topic, f"looks for the heartbeat in {seen['path']}, and the daemon writes {heartbeat}", remedy)
    elif beat is None or beat.mode == STOPPED:
        yield ok(topic, "answers at submission")
    elif seen["age"] is None:
        what = f"answers, but slurmctld's host has no heartbeat {heartbeat} that it may read: it holds no job"
        remedy = "put hook.heartbeat into a folder that both hosts share, and that slurmctld's user may enter"
        yield problem(topic, what, remedy)
    elif abs(int(seen["age"]) - (now - beat.at)) > _SEEN_WITHIN:
        ages = f"{duration(int(seen['age']))} old on slurmctld's host and {duration(max(now - beat.at, 0.0))} here"
        remedy = "put hook.heartbeat into a folder that both hosts share, and run NTP on both"
        yield problem(topic, f"the heartbeat {heartbeat} is {ages}: it is another file, or a clock is wrong", remedy)
    else:
        yield ok(topic, "answers at submission and sees the heartbeat")


_HOOK_SEES: Final = re.compile(r"heartbeat (?P<path>/\S*) (?:is not there|has mode [a-z]+ and is (?P<age>-?\d+) s old)")
_SEEN_WITHIN: Final = 30.0
"""Seconds: a heartbeat is written every ten, and the rehearsal may take a while."""


UNIT: Final = Path("/etc/systemd/system/synsched.service")
PACKAGED_UNIT: Final = Path("/usr/lib/systemd/system/synsched.service")
_SETTING: Final = "ReadWritePaths="


def check_unit(settings: Settings, own: Path = UNIT, packaged: Path = PACKAGED_UNIT) -> Iterator[Finding]:
    """Whether the unit lets the daemon write to the paths in the settings: the site's `own`, else that of the package;
    nothing without a unit."""
    path = own if own.exists() else packaged
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if "ProtectSystem=strict" not in text:
        yield problem("unit", f"{path} does not protect the host from the daemon", _remedy(own))
        return
    allowed = tuple(_writable_paths(text))
    missing = [
        folder
        for folder in extra_write_folders(settings)
        if not any(PurePosixPath(folder).is_relative_to(base) for base in allowed)
    ]
    if missing:
        yield problem("unit", f"{path} does not let the daemon write to {', '.join(missing)}", _remedy(own))
    else:
        yield ok("unit", f"{path} lets the daemon write to all paths in the settings")


def _writable_paths(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(_SETTING):
            try:
                words = shlex.split(line.removeprefix(_SETTING))
            except ValueError:  # an unclosed quote: systemd ignores the line too
                continue
            yield from (word.lstrip("-+").replace("%%", "%") for word in words)


def _remedy(path: Path) -> str:
    return f"'synsched render synsched.service > {path}', 'systemctl daemon-reload', restart it"


_TOPIC: Final = "reports"


def check_spool(path: str, database: Path) -> Iterator[Finding]:
    """Whether jobs can write reports into the spool, and no user can forge another's. Nothing if no spool is set.

    The spool has to belong to root or to the user of the rounds: to us, or if we are root to the owner of `database`.
    """
    if not path:
        return
    try:
        status = Path(path).stat()
        trusted = {0, database.stat().st_uid if os.geteuid() == 0 and database.exists() else os.geteuid()}
        insecure = _insecure_parent(Path(path).resolve(), trusted)
    except OSError as error:
        yield problem(_TOPIC, f"the spool {path} cannot be used: {error.strerror}", f"install -d -m 1777 {path}")
        return
    mode = status.st_mode
    if not stat.S_ISDIR(mode) or not mode & stat.S_IWOTH or not mode & stat.S_IXOTH:
        yield problem(_TOPIC, f"jobs cannot write into the spool {path}", f"install -d -m 1777 {path}")
    elif (why := insecure_spool_reason(status, trusted)) is not None:
        remedy = f"chmod 1777 {path}" if status.st_uid in trusted else f"chown {path} to root or to synsched's user"
        yield problem(_TOPIC, f"the spool {path} {why}: no steps of forked jobs are written there", remedy)
    elif insecure is not None:
        folder, reason = insecure
        yield problem(
            _TOPIC, f"the spool {path} can be replaced: {folder} {reason}", "let only root change that folder"
        )
    elif is_private_spool(status) and status.st_gid not in {os.getegid(), *os.getgroups()} and os.geteuid() != 0:
        what = f"reports in {path} are for a group that synsched's user is not in"
        yield problem(_TOPIC, what, f"add the user to the group, or chmod 1777 {path}")
    else:
        yield ok(_TOPIC, f"are read from {path}")


def _insecure_parent(spool: Path, trusted: Collection[int]) -> tuple[Path, str] | None:
    """A parent folder in which users could replace the spool, and why they can. Raises OSError."""
    for folder in spool.parents:
        if (why := insecure_spool_reason(folder.stat(), trusted)) is not None:
            return folder, why
    return None


def check_reports(rejected: Sequence[RejectedReportRow]) -> Iterator[Finding]:
    """The jobs and users whose reports were rejected in the last day, latest first, the first twenty one by one."""
    shown = rejected[:_MAX_SHOWN]
    for rejection in shown:
        yield advice(_TOPIC, f"{rejection.subject}: {rejection.sentence}", "the report is not used; ask its owner")
    if len(rejected) > len(shown):
        yield advice(_TOPIC, pluralise(len(rejected) - len(shown), "more rejected report"), "look at the spool")
