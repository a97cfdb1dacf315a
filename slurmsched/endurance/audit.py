"""What a daemon leaves that has stopped: its journal against what the cluster carried out, its holds, and its jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import Final

from slurmsched.backends.simulated import VirtualCluster
from slurmsched.endurance.faults import FaultyBackend
from slurmsched.endurance.jobs import SoakJobs
from slurmsched.model import Hold
from slurmsched.store.store import Store

_DAY: Final = 86400.0
_LONGEST: Final = 30 * _DAY
"""Seconds that jobs may take to end under plain Slurm."""
_LATELY: Final = 7200.0
_LONGEST_SILENCE: Final = 6 * 3600.0
"""Seconds that accounting does not answer at most, with the pause after failures: later runs have to be known."""
_TOLD_LATER: Final = 600.0
"""Seconds before an answer of which the next one tells again."""
_PRUNED_EARLY: Final = 0.25
"""Days: a clock that was ahead has deleted history earlier."""
_REMEMBERED: Final = 1.5
"""Days for which the simulated cluster surely has its runs."""
_DETERMINED: Final = "determined by a later round"


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts; all but the first two are 0 where nothing went wrong.

    `carried_out`: operations that the cluster carried out on jobs of the last days. `written_down`: those of them that
    the journal has as done, or as what a later round found. `unwritten`: those that it has not. `made_up`: operations
    that it has as done and the cluster never did. `open_intents`: without a result. `holds` and `requests`: waiting
    jobs that are held by us, or ask for something else than their owners did. `held_rows`: jobs that the database has
    under our hold. `unlearnt`: runs of the last days whose end accounting told and of which nothing was learnt.
    `lost`: jobs that never end, though nobody schedules but Slurm.
    """

    carried_out: int
    written_down: int
    unwritten: int
    made_up: int
    open_intents: int
    holds: int
    requests: int
    held_rows: int
    unlearnt: int
    lost: int

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong, one sentence each."""
        return tuple(
            f"{sentence}: {getattr(self, one.name)}"
            for one in fields(self)
            if (sentence := _SENTENCES.get(one.name)) and getattr(self, one.name)
        )


_SENTENCES: Final = {
    "unwritten": "operations that the journal does not have",
    "made_up": "operations that the journal has as done and nobody did",
    "open_intents": "operations without a result in the journal",
    "holds": "waiting jobs that are still held",
    "requests": "waiting jobs whose request is not the owner's",
    "held_rows": "jobs that the database has under our hold",
    "unlearnt": "runs of which nothing was learnt",
    "lost": "jobs that never end",
}


def audit_end(
    store: Store, cluster: VirtualCluster, arrivals: SoakJobs, backend: FaultyBackend, keep_days: int
) -> Audit:
    """Compare what a stopped daemon left with the cluster, then let Slurm alone run the jobs to their end."""
    arrivals.note_ends(cluster.lifecycle.ended)
    since = cluster.now - (keep_days - 1 / 2) * _DAY
    lately = {job for job, at in (*arrivals.open.items(), *arrivals.recent.items()) if at >= since}
    truth = [one for one in backend.executed if one.subject in lately]
    done = Counter((one.verb.value, one.subject) for one in truth if one.done)
    asked = Counter((one.verb.value, one.subject) for one in truth)
    rows = store.database.rows(
        "SELECT verb, subject, result, detail FROM operations WHERE result NOT IN ('blocked', 'intended')"
    )
    journal = Counter((row["verb"], row["subject"]) for row in rows)
    claimed = Counter(
        (row["verb"], row["subject"])
        for row in rows
        if row["subject"] in lately and row["result"] in ("done", "undone") and row["detail"] != _DETERMINED
    )
    pending = cluster.waiting
    return Audit(
        carried_out=done.total(),
        written_down=(done & journal).total(),
        unwritten=(asked - journal).total(),
        made_up=(claimed - done).total(),
        open_intents=len(store.journal.open_intents()),
        holds=sum(job.hold is not Hold.NONE for job in pending),
        requests=sum(job.current_request != job.submission.request for job in pending),
        held_rows=len(store.state.held_jobs()),
        unlearnt=_unlearnt(store, cluster, min(keep_days - _PRUNED_EARLY, _REMEMBERED), backend.accounted),
        lost=_never_ending(cluster, arrivals),
    )


def _unlearnt(store: Store, cluster: VirtualCluster, days: float, accounted: float) -> int:
    """Return how many runs of these days are not known, the last two hours aside, as accounting is asked once a round,
    and what ended since accounting answered last."""
    known = {(row["job"], round(row["ended"])) for row in store.database.rows("SELECT job, ended FROM finished_runs")}
    answered = max(accounted - _TOLD_LATER, cluster.now - _LONGEST_SILENCE)
    since, until = cluster.now - days * _DAY, min(cluster.now - _LATELY, answered)
    ended = {(run.job, round(run.end)) for run in cluster.lifecycle.usage_intervals if since <= run.end <= until}
    return len(ended - known)


def _never_ending(cluster: VirtualCluster, arrivals: SoakJobs) -> int:
    """Let the cluster run, and return how many jobs do not end. It forgets those that ended some minutes ago."""
    end = cluster.now + _LONGEST
    while arrivals.open and cluster.now < end and cluster.events.next_time is not None:
        cluster.advance(min(cluster.events.next_time + 60.0, end))
        arrivals.note_ends(cluster.lifecycle.ended)
    return len(arrivals.open)
