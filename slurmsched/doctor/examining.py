"""Everything looked at, one thing after the other; what cannot be looked at is a finding too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmsched.backends.protocol import Backend
from slurmsched.daemon.heartbeat import Heartbeat
from slurmsched.daemon.locking import holder
from slurmsched.doctor.cluster import about_clock, about_nodes, about_release, about_rights
from slurmsched.doctor.configuration import about_configuration, parsed
from slurmsched.doctor.finding import Finding, fine, hint, mend
from slurmsched.doctor.own import (
    LATEST,
    REHEARSED,
    about_daemons,
    about_database,
    about_export,
    about_hook,
    about_life,
    about_overruled,
    about_switches,
)
from slurmsched.doctor.reports import about_reports, about_spool
from slurmsched.doctor.unit import about_unit
from slurmsched.model import SynschedError
from slurmsched.report.status import Status
from slurmsched.settings.loading import Loaded
from slurmsched.store.published import export_folder
from slurmsched.store.reading import reading
from slurmsched.store.rows import ComplaintRow

__all__ = ["Instruments", "examine"]


@dataclass(frozen=True, slots=True)
class Instruments:
    """How things are looked at; each may raise a SynschedError.

    `configuration` gives what `scontrol show config` prints, `rehearse` what sbatch says of a job with this comment.
    """

    connect: Callable[[], Backend]
    configuration: Callable[[], str]
    rehearse: Callable[[str], str]
    status: Callable[[], Status]
    complaints: Callable[[], Sequence[ComplaintRow]]
    now: Callable[[], float]


def examine(loaded: Loaded, instruments: Instruments) -> Iterator[Finding]:
    """Findings as they are made: the settings, Slurm, the hook, our own files."""
    where = str(loaded.file) if loaded.file else "no file, so the defaults"
    yield fine("settings", f"{where}; mode {loaded.settings.rounds.mode.value}")
    yield from _guarded("Slurm", lambda: _slurm(loaded, instruments))
    yield from _guarded("slurm.conf", lambda: _configuration(loaded, instruments))
    yield from about_unit(loaded.settings)
    yield from about_database(Path(loaded.settings.storage.path))
    yield from _guarded("rounds", lambda: _rounds(loaded, instruments))
    yield from _guarded("reports", lambda: _reports(loaded, instruments))


def _guarded(topic: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except SynschedError as error:
        what, _, remedy = str(error).partition(": ")
        yield mend(topic, what, remedy or "see the message")


def _slurm(loaded: Loaded, instruments: Instruments) -> Iterator[Finding]:
    backend = instruments.connect()
    snapshot = backend.observe()
    yield about_release(snapshot)
    yield fine("backend", backend.name)
    for remark in backend.remarks:
        yield fine("backend", remark)
    yield from about_nodes(snapshot, loaded.settings)
    yield about_rights(backend.identity(), loaded.settings)


def _configuration(loaded: Loaded, instruments: Instruments) -> Iterator[Finding]:
    configuration, as_of = parsed(instruments.configuration())
    yield from about_configuration(configuration, loaded.settings)
    yield about_clock(instruments.now(), as_of)
    if "lua" in configuration.get("JobSubmitPlugins", "").split(","):
        yield about_hook(instruments.rehearse(REHEARSED))


def _rounds(loaded: Loaded, instruments: Instruments) -> Iterator[Finding]:
    if not Path(loaded.settings.storage.path).exists():
        yield hint("rounds", "none has run yet", "systemctl start synsched, or the cron line ('synsched render')")
        return
    hook, database = loaded.settings.hook, Path(loaded.settings.storage.path)
    beat = Heartbeat(Path(hook.heartbeat)).last()
    yield from about_daemons(beat, holder(database), instruments.now(), hook.stale_after)
    with reading(database) as opened:
        latest = opened.rounds(LATEST)
        if latest:
            yield from about_overruled(opened.overruled(latest[-1].started))
    status = instruments.status()
    for own in status.set_aside:
        if own.readable:
            yield hint("jobs", own.sentence, "it waits until nobody else does, a day at most; please report the error")
    yield about_life(status.liveness, sum(job.held_by_us for job in status.jobs))
    ended = status.round.finished if status.round else None
    yield about_export(export_folder(loaded.settings.storage), ended, database.stat().st_uid)
    yield from about_switches(status.paused, Path(loaded.settings.hook.disable_file))


def _reports(loaded: Loaded, instruments: Instruments) -> Iterator[Finding]:
    yield from about_spool(loaded.settings.reports.spool, Path(loaded.settings.storage.path))
    if loaded.settings.reports.spool and Path(loaded.settings.storage.path).exists():
        yield from about_reports(instruments.complaints())
