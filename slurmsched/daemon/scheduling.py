"""One round in time: observe, decide, plan, apply, record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import Backend, Calls
from slurmsched.backends.recorded import pack
from slurmsched.daemon.applying import Applied, Applier
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.dispatching import dispatch, dispatches
from slurmsched.daemon.failing import RoundFailedError, kind_and_place, traced
from slurmsched.daemon.fragments import fragments
from slurmsched.daemon.gate import Gate
from slurmsched.daemon.ingesting import ingest
from slurmsched.daemon.isolating import Decided, decided, known_trouble, managed_among, overview_of
from slurmsched.daemon.recovering import no_longer_ours, read_back
from slurmsched.daemon.sighting import sighted
from slurmsched.daemon.spool import checkpointed
from slurmsched.daemon.stopwatch import Timed
from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, JobState, Memory, Outcome, Plan, Snapshot, SynschedError
from slurmsched.policies.systems import system
from slurmsched.rounds.foreseen import surprises
from slurmsched.rounds.round import RoundResult, run_round
from slurmsched.rounds.set_aside import without
from slurmsched.settings.definition import Mode, Settings
from slurmsched.store.errors import StoreError
from slurmsched.store.journal import Tally
from slurmsched.store.store import Store

__all__ = ["RoundReport", "Site", "one_round"]

_ROUNDS: Final = 3
"""Periods for which copies go by what they were told where nobody tells them anything new."""


@dataclass(frozen=True, slots=True)
class Site:
    """What rounds are run with: the settings in force, the cluster they name, what is known of its jobs."""

    settings: Settings
    backend: Backend
    knowledge: Knowledge


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round that is over. `snapshot` is the cluster as it was seen last."""

    id: int
    result: RoundResult
    outcomes: tuple[Outcome, ...]
    snapshot: Snapshot
    tally: Tally


def one_round(
    site: Site,
    store: Store,
    clock: Clock,
    *,
    tick: Callable[[], None] = lambda: None,
    stopping: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> RoundReport:
    """Run one. Raises BackendError, StoreError, RoundFailedError and what else keeps a round from being decided.

    The round is in the database before the cluster is asked: with no space for it nothing is changed. What was under
    way when an error is raised is read back by the next round. `say` gets what went wrong and did not end the round.
    """
    rounds, policy = site.settings.rounds, site.settings.policy
    store.journal.close_interrupted(clock.now())
    round_id = store.journal.begin_round(clock.now(), rounds.mode.value, policy.system, policy.order)
    gate = Gate(site.settings, store.switches, clock)
    spool = site.settings.reports.spool
    applier = Applier(
        site.backend,
        store.journal,
        gate,
        clock,
        rounds,
        tick=tick,
        stopping=stopping,
        saved=lambda jobs: _saved(spool, jobs),
    )
    try:
        report = _Round(round_id, site, store, clock, applier, gate, say).run()
        store.journal.finish_round(round_id, clock.now(), report.tally)
    except SynschedError as error:
        with suppress(StoreError):  # the first error is the one to tell
            store.journal.finish_round(round_id, clock.now(), Tally(), str(error))
        raise
    except Exception as error:
        failed = RoundFailedError(f"the round failed: {kind_and_place(error)}")
        say(f"the round failed: {traced(error)}")
        with suppress(StoreError):  # as above
            store.journal.finish_round(round_id, clock.now(), Tally(), str(failed))
        raise failed from error
    return report


def _saved(spool: str, jobs: Sequence[Job]) -> frozenset[JobId]:
    """Those that report that their checkpoint is written; nobody where the reports cannot be read."""
    try:
        return checkpointed(Path(spool), jobs) if spool and jobs else frozenset()
    except (SynschedError, OSError, ValueError):
        return frozenset()


@dataclass(frozen=True, slots=True)
class _Seen:
    """The cluster as this round found it, with nothing of ours where it should not be.

    `troubled` are jobs of the poll that are set aside by us, with the reason.
    """

    snapshot: Snapshot
    memory: Memory
    managed: frozenset[JobId]
    troubled: Mapping[JobId, str]


@dataclass(frozen=True, slots=True)
class _Round:
    id: int
    site: Site
    store: Store
    clock: Clock
    applier: Applier
    gate: Gate
    say: Callable[[str], None]

    def run(self) -> RoundReport:
        calls, began = replace(self.site.backend.calls), self.clock.monotonic()
        seen, returned = self._observe()
        observed = self.clock.monotonic()
        found, decide_s = self._decide(seen)
        planned, result = self.clock.monotonic(), found.result
        self._record(seen, found)
        applied = self._apply(seen, result)
        tally = replace(
            _count(seen, calls, self.site.backend.calls),
            observe_s=observed - began,
            decide_s=decide_s,
            plan_s=planned - observed - decide_s,
            apply_s=self.clock.monotonic() - planned,
        )
        return RoundReport(self.id, result, (*returned, *applied.outcomes), applied.snapshot, tally)

    def _observe(self) -> tuple[_Seen, tuple[Outcome, ...]]:
        """Look; where an interrupted round or other settings left something behind, mend that and look again."""
        seen = self._look()
        mode, at = self.site.settings.rounds.mode, self.clock.now()
        repairs = read_back(self.store.journal, seen.snapshot, seen.memory, at).operations
        strays = no_longer_ours(seen.snapshot, seen.memory, seen.managed, mode).operations
        if not repairs and not strays:
            return seen, ()
        mended = self.applier.apply_at_once(self.id, Plan((*repairs, *strays)), seen.snapshot)
        return self._look() if mended.changed else seen, mended.outcomes

    def _look(self) -> _Seen:
        settings = self.site.settings
        polled = self.site.backend.observe()
        managed, troubled = managed_among(polled, settings)
        troubled |= sighted(self.store, self.id, without(polled, troubled), managed)
        troubled |= known_trouble(polled, self.store)
        snapshot = without(polled, troubled)
        managed -= troubled.keys()
        if settings.reports.spool:
            self._ingest(snapshot, managed)
        memory = self.store.remembering.memory(snapshot, settings.policy.system)
        saved = _saved(settings.reports.spool, [snapshot.job[job] for job in memory.notified])
        notified = {job: replace(told, saved=job in saved) for job, told in memory.notified.items()}
        return _Seen(snapshot, replace(memory, notified=notified), managed, troubled)

    def _ingest(self, snapshot: Snapshot, managed: frozenset[JobId]) -> None:
        """What jobs report; anybody may write there, so whatever it does it does not end a round."""
        try:
            ingest(Path(self.site.settings.reports.spool), snapshot, managed, self.store.measurements)
        except SynschedError:
            raise
        except Exception as error:
            self.say(f"the reports of jobs are left out: {traced(error)}")

    def _decide(self, seen: _Seen) -> tuple[Decided, float]:
        settings = self.site.settings
        timed = Timed(
            system(
                settings.policy.system,
                settings.policy.order,
                settings.policy.las_queues,
                defragment=settings.policy.defragment,
            ),
            self.clock,
        )
        identity = self.site.backend.identity()
        files = fragments(settings, seen.snapshot)

        def decide(snapshot: Snapshot) -> RoundResult:
            return run_round(
                snapshot, seen.memory, settings, self.site.knowledge, identity, deciding=timed, fragments=files
            )

        return decided(seen.snapshot, decide, self.store, self.clock, self.say), timed.seconds

    def _record(self, seen: _Seen, found: Decided) -> None:
        storage, result = self.site.settings.storage, found.result
        recording = pack(seen.snapshot, seen.memory) if storage.keep_snapshots else None
        overview = overview_of(result.snapshot, seen.memory.usual)
        self.store.remembering.remember(self.id, result, found.explain, recording, overview)
        carried = {job: mark for job, mark in self.store.set_aside.marks().items() if job in seen.troubled}
        self.store.set_aside.keep(result.snapshot.set_aside, seen.snapshot.time, {**carried, **found.marks})
        self.store.remembering.prune(self.clock.now(), storage.keep_days, storage.keep_snapshots)

    def _apply(self, seen: _Seen, result: RoundResult) -> Applied:
        settles = self.site.settings.rounds.mode is Mode.ENFORCE
        apply = self.applier.apply if settles else self.applier.apply_at_once
        applied = apply(self.id, result.plan, seen.snapshot)
        if settles and self.gate.closed() is None:
            self._dispatch(result, applied.snapshot)
        if applied.changed:
            last, targets = applied.snapshot, result.decision.targets
            surprised = surprises(targets.values(), seen.snapshot, last)
            self.store.remembering.happened(self.id, applied.outcomes, targets, last.time, surprised)
            sighted(self.store, self.id, last, seen.managed, overview_of(last, seen.memory.usual))
        return applied

    def _dispatch(self, result: RoundResult, last: Snapshot) -> None:
        """Tell copies that run how many steps each does."""
        spool, now = self.site.settings.reports.spool, self.clock.now()
        forked = {job.copy_of for job in last.jobs if job.copy_of}
        if not spool:
            return
        until = now + _ROUNDS * self.site.settings.rounds.period
        words = dispatches(result.decision.targets.values(), last, round(now * 1000), until)
        if complaints := dispatch(Path(spool), words, forked) if forked or words else ():
            self.store.measurements.record((), (), complaints, now)


def _count(seen: _Seen, before: Calls, after: Calls) -> Tally:
    managed = [job for job in seen.snapshot.jobs if job.id in seen.managed]
    return Tally(
        nodes=len(seen.snapshot.nodes),
        jobs=len(seen.snapshot.jobs),
        managed=len(managed),
        running=sum(job.state is JobState.RUNNING for job in managed),
        waiting=sum(job.state is JobState.PENDING for job in managed),
        reads=after.reads - before.reads,
        writes=after.writes - before.writes,
    )
