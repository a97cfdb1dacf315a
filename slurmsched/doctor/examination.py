"""Runs all checks of `synsched doctor` in order; a check that cannot be made is a finding too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmsched.backends.protocol import Backend
from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.daemon.lock import lock_holder
from slurmsched.doctor.finding import Finding, advice, ok, problem
from slurmsched.doctor.installation import (
    REHEARSAL_COMMENT,
    ROUNDS_EXAMINED,
    START_REMEDY,
    check_accounting,
    check_daemons,
    check_database,
    check_export,
    check_hook,
    check_lifted_holds,
    check_liveness,
    check_metrics,
    check_owners,
    check_prometheus,
    check_reports,
    check_round_times,
    check_settings,
    check_spool,
    check_switches,
    check_unit,
)
from slurmsched.doctor.slurm import (
    check_clock,
    check_configuration,
    check_limits,
    check_narrowing,
    check_nodes,
    check_private,
    check_release,
    check_rights,
    check_shards,
    parse_configuration,
)
from slurmsched.model import SynschedError
from slurmsched.report.status import ClusterStatus
from slurmsched.settings.file import LoadedSettings
from slurmsched.store.publication import export_folder
from slurmsched.store.read_only import open_read_only
from slurmsched.store.rows import SETTINGS_SWITCH, RejectedReportRow, SwitchRow


@dataclass(frozen=True, slots=True)
class Probes:
    """The sources that the checks read; each may raise a SynschedError.

    `configuration` returns the output of `scontrol show config`, `rehearse` the output of `sbatch --test-only` for a
    job with the comment that it is given, `unknown_names` what the settings name and Slurm does not have.
    """

    connect: Callable[[], Backend]
    configuration: Callable[[], str]
    rehearse: Callable[[str], str]
    status: Callable[[], ClusterStatus]
    rejected_reports: Callable[[], Sequence[RejectedReportRow]]
    now: Callable[[], float]
    unknown_names: Callable[[], Iterator[str]] = lambda: iter(())


def examine(loaded: LoadedSettings, probes: Probes) -> Iterator[Finding]:
    """Yield the findings about the settings, Slurm, its configuration, the installation, rounds and reports."""
    yield from check_settings(loaded, _refused_settings(loaded), tuple(probes.unknown_names()))
    yield from _guarded("Slurm", lambda: _check_slurm(loaded, probes))
    yield from _guarded("slurm.conf", lambda: _check_configuration(loaded, probes))
    yield from check_unit(loaded.settings)
    yield from check_database(Path(loaded.settings.storage.path))
    yield from check_owners(Path(loaded.settings.storage.path), os.geteuid())
    yield from _guarded("rounds", lambda: _check_rounds(loaded, probes))
    yield from _guarded("reports", lambda: _check_reports(loaded, probes))


def _refused_settings(loaded: LoadedSettings) -> SwitchRow | None:
    """Why the daemon keeps earlier settings; None where it does not, or where that cannot be read."""
    try:
        with open_read_only(Path(loaded.settings.storage.path)) as store:
            return store.switch(SETTINGS_SWITCH)
    except SynschedError:  # a check of its own tells what is wrong with the database
        return None


def _guarded(topic: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except SynschedError as error:
        what, _, remedy = str(error).partition(": ")
        yield problem(topic, what, remedy or "see the message")


def _check_slurm(loaded: LoadedSettings, probes: Probes) -> Iterator[Finding]:
    backend = probes.connect()
    snapshot = backend.observe()
    yield check_release(snapshot)
    yield ok("backend", backend.name)
    for remark in backend.remarks:
        yield ok("backend", remark)
    yield from check_nodes(snapshot, loaded.settings)
    yield from check_shards(snapshot, loaded.settings)
    yield from check_limits(snapshot)
    yield from check_narrowing(snapshot, loaded.settings)
    yield check_rights(backend.identity(), loaded.settings)
    yield from check_private(snapshot, backend.identity())


def _check_configuration(loaded: LoadedSettings, probes: Probes) -> Iterator[Finding]:
    configuration, as_of = parse_configuration(probes.configuration())
    yield from check_configuration(configuration, loaded.settings)
    yield check_clock(probes.now(), as_of)
    if "lua" in configuration.get("JobSubmitPlugins", "").split(","):
        beat = HeartbeatFile(Path(loaded.settings.hook.heartbeat)).read()
        yield from check_hook(probes.rehearse(REHEARSAL_COMMENT), loaded.settings.hook.heartbeat, beat, probes.now())


def _check_rounds(loaded: LoadedSettings, probes: Probes) -> Iterator[Finding]:
    if not Path(loaded.settings.storage.path).exists():
        yield advice("rounds", "none has run yet", START_REMEDY)
        return
    hook, database = loaded.settings.hook, Path(loaded.settings.storage.path)
    beat = HeartbeatFile(Path(hook.heartbeat)).read()
    yield from check_daemons(beat, lock_holder(database), probes.now(), hook.stale_after)
    with open_read_only(database) as store:
        latest = store.rounds(ROUNDS_EXAMINED)
        if loaded.settings.learning.accounting:
            yield from check_accounting(store.accounting_problem())
            yield from check_prometheus(loaded.settings.learning.prometheus, store.exporters(), probes.now())
        yield from check_round_times(latest[0].started if latest else None, probes.now())
        if latest:
            yield from check_lifted_holds(store.lifted_holds(latest[-1].started))
    status = probes.status()
    for row in status.set_aside:
        if row.readable:
            remedy = "it waits until no other job does, at most a day; please report the error"
            yield advice("jobs", row.sentence, remedy)
    yield check_liveness(status.liveness, sum(job.held_by_us for job in status.jobs))
    ended = status.round.finished if status.round else None
    yield check_export(export_folder(loaded.settings.storage), ended, database.stat().st_uid)
    yield from check_metrics(loaded.settings.metrics, ended)
    yield from check_switches(status.paused, Path(loaded.settings.hook.disable_file))


def _check_reports(loaded: LoadedSettings, probes: Probes) -> Iterator[Finding]:
    yield from check_spool(loaded.settings.reports.spool, Path(loaded.settings.storage.path))
    if loaded.settings.reports.spool and Path(loaded.settings.storage.path).exists():
        yield from check_reports(probes.rejected_reports())
