"""Starts that Slurm refused: what each depended on, and when it is tried again. Pure.

A start is refused if Slurm does not start a released job, or does not take the request it was to start with. The same
plan is not made again while what it depended on is as it was: the nodes, the reservations, the partitions, the job's
request, and for a limit the jobs that count towards it. Causes that we cannot see are met by a wait that doubles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from slurmsched import model
from slurmsched.model.reasons import time_of_day

LIMIT_REASONS: Final = (
    "QOS", "Assoc", "InvalidQOS", "InvalidAccount", "AccountNotAllowed", "Licenses", "MaxBB", "MaxBilling", "MaxCpu",
    "MaxEnergy", "MaxGRES", "MaxJobs", "MaxLicense", "MaxMemory", "MaxNode", "MaxUnknown",
)  # fmt: skip
"""Prefixes of Slurm's reasons for jobs that it would not start even on free nodes."""

LET_GO_AFTER: Final = 3
"""Refusals after which a waiting job is left to Slurm as it was submitted: we do not understand what it needs."""

_SHORTEST: Final = 15.0
"""Seconds until the first new attempt; doubled with each further refusal."""
_DISPLACING: Final = 900.0
"""The same where running jobs had to leave for the start, and are there again: each attempt costs them a restart."""
_LONGEST: Final = 14400.0
_FORGOTTEN: Final = 86400.0
"""Seconds after which a refusal counts no more."""
_DOUBTED: Final = 60.0
"""Seconds after a refusal for which jobs that have something in common with the refused one may be refused as well."""
_OWN_HOLD: Final = "JobHeld"
"""Slurm's reason for a start that somebody held again: it says nothing of other jobs."""
_REFUSED_ITSELF: Final = 3
"""The doubt about a job that was refused itself: more than about any job that is only like one."""
_LIKE_REFUSED: Final = model.Reason(model.ReasonCode.LIKE_REFUSED)
_WHY_LATER: Final[Mapping[int, model.Reason]] = {
    1: _LIKE_REFUSED,
    2: _LIKE_REFUSED,
    _REFUSED_ITSELF: model.Reason(
        model.ReasonCode.STALLED, {"reason": "in an earlier round", "when": "the next full round"}
    ),
}
"""By doubt, why a job is tried after others."""


@dataclass(frozen=True, slots=True)
class RefusedStart:
    """The last refusal of a job: at `at` (unix seconds), the `tries`-th in a row, with Slurm's `reason`.

    `basis` is the fingerprint of what the start on `nodes` depended on, `displaced` whether running jobs left for it.
    """

    job: model.JobId
    at: float
    tries: int
    reason: str
    nodes: tuple[str, ...]
    basis: str
    displaced: bool = False

    def retry_at(self, job: model.Job, snapshot: model.Snapshot) -> float:
        """When it is tried again even if nothing has changed, in unix seconds."""
        costly = self.displaced and not self._has_room(job, snapshot)
        return self.at + min((_DISPLACING if costly else _SHORTEST) * 2.0 ** min(self.tries - 1, 30), _LONGEST)

    def why(self, job: model.Job, snapshot: model.Snapshot) -> model.Reason:
        """Why the job waits from now on."""
        return refusal_reason(self.reason, time_of_day(self.retry_at(job, snapshot), snapshot.time))

    def is_let_go(self, job: model.Job, snapshot: model.Snapshot) -> bool:
        """Whether the job is left to Slurm."""
        age = abs(snapshot.time - self.at)  # a clock that was set back prolongs nothing
        seen_anew = age >= _DISPLACING and self._has_changed(job, snapshot)
        return self.counts(job, snapshot) and self.tries >= LET_GO_AFTER and not seen_anew

    def counts(self, job: model.Job, snapshot: model.Snapshot) -> bool:
        """Whether the job waits, and the refusal is not forgotten."""
        return job.state is model.JobState.PENDING and abs(snapshot.time - self.at) < _FORGOTTEN

    def stands(self, job: model.Job, snapshot: model.Snapshot) -> bool:
        """Whether the job is not to be started, or started elsewhere, for now."""
        age = abs(snapshot.time - self.at)
        if age >= self.retry_at(job, snapshot) - self.at:
            return False
        return age < _SHORTEST or not self._has_changed(job, snapshot)

    def _has_room(self, job: model.Job, snapshot: model.Snapshot) -> bool:
        """Whether as many nodes as a waiting job was to start on have its GPUs idle: nobody need leave for it again."""
        gpus, kind = -(-job.original_request.gpus // max(len(self.nodes), 1)), job.original_request.gpu_type
        names = frozenset().union(*(p.nodes for p in snapshot.partitions if p.up and p.name in job.partitions))
        idle = sum(
            node.name in names
            and node.state is model.NodeState.UP
            and node.free.gpus >= gpus
            and sum(gpu.idle and kind in (None, gpu.type) for gpu in node.gpus) >= gpus
            for node in snapshot.nodes
        )
        return job.state is model.JobState.PENDING and idle >= len(self.nodes)

    def _has_changed(self, job: model.Job, snapshot: model.Snapshot) -> bool:
        return self.basis != _basis(job, self.nodes, self.reason, snapshot)


def limit_reason(slurm_reason: str) -> model.Reason | None:
    """The reason for people if Slurm's is a limit or licences."""
    if slurm_reason.startswith("Licenses"):
        return model.Reason(model.ReasonCode.LICENSES)
    limited = slurm_reason.startswith(LIMIT_REASONS)
    return model.Reason(model.ReasonCode.LIMITS, {"reason": slurm_reason}) if limited else None


def refusal_reason(slurm_reason: str, when: str) -> model.Reason:
    """The reason for people of a job that Slurm did not start for this reason, and that is tried again at `when`."""
    details = {"reason": slurm_reason or "Slurm gave no reason", "when": when}
    return limit_reason(slurm_reason) or model.Reason(model.ReasonCode.STALLED, details)


def refused_starts(
    outcomes: Iterable[model.Outcome], snapshot: model.Snapshot, earlier: Mapping[model.JobId, RefusedStart], at: float
) -> Iterator[RefusedStart]:
    """Yield the refusals among the outcomes of a plan; `snapshot` is the one that the plan was made from, with the
    original requests, `earlier` the last refusal of each job."""
    for outcome in outcomes:
        operation, job = outcome.operation, snapshot.jobs_by_id.get(outcome.operation.subject)
        if job is None or not _is_refusal(outcome):
            continue
        before, nodes = earlier.get(job.id), _planned_nodes(operation)
        tries = before.tries + 1 if before is not None and abs(at - before.at) < _FORGOTTEN else 1
        displaced = bool(operation.gone)
        basis = _basis(job, nodes, outcome.detail, snapshot)
        yield RefusedStart(job.id, at, tries, outcome.detail, nodes, basis, displaced)


def with_refusals(
    state: model.SchedulerState, refused: Mapping[model.JobId, RefusedStart], snapshot: model.Snapshot
) -> model.SchedulerState:
    """The state with the jobs of the snapshot, with its original requests, whose last refusal still stands."""
    present = [(snapshot.jobs_by_id[one.job], one) for one in refused.values() if one.job in snapshot.jobs_by_id]
    let_go = frozenset(job.id for job, one in present if one.is_let_go(job, snapshot))
    standing = {job.id: one for job, one in present if job.id in let_go or one.stands(job, snapshot)}
    recent = [(job, one.reason) for job, one in present if abs(snapshot.time - one.at) < _DOUBTED]
    return replace(
        state,
        stalled={job: one.reason for job, one in standing.items()},
        retry_at={
            job: one.retry_at(snapshot.jobs_by_id[job], snapshot) for job, one in standing.items() if job not in let_go
        },
        let_go=let_go,
        refused_before=frozenset(
            job.id for job, one in present if job.id not in standing and one.counts(job, snapshot)
        ),
        like_refused=dict(_likeness(snapshot, recent)),
    )


def tried_later(
    jobs: Iterable[model.Job], state: model.SchedulerState, promised: model.JobId = ""
) -> list[dict[model.JobId, model.Reason]]:
    """The jobs that an early round leaves out while it can start others, each with its reason: first as many as
    possible, then fewer.

    Many starts that Slurm refuses would otherwise take what is free from a good one, again and again. So jobs that
    have nothing in common with a refused one are tried first, and those that were refused themselves at last: these
    are left out wherever others wait, and tried again in full rounds. The job that is `promised` its start is left
    out only if it was refused itself: without it, what starts could delay it.
    """
    doubts = {job.id: _doubt(job.id, state) for job in jobs if job.state is model.JobState.PENDING}
    doubts |= {job: 0 for job, doubt in doubts.items() if job == promised and doubt < _REFUSED_ITSELF}
    levels = sorted(set(doubts.values()) - {_REFUSED_ITSELF}) or [_REFUSED_ITSELF]
    return [{job: _WHY_LATER[doubt] for job, doubt in doubts.items() if doubt > level} for level in levels]


def _doubt(job: model.JobId, state: model.SchedulerState) -> int:
    return _REFUSED_ITSELF if job in state.refused_before else state.like_refused.get(job, 0)


def _likeness(snapshot: model.Snapshot, recent: Iterable[tuple[model.Job, str]]) -> Iterator[tuple[model.JobId, int]]:
    """Yield the waiting jobs that are like a recently refused one, given with Slurm's reason: 1 for the same owner, or
    what a limit counts by, 2 for the same owner and request. Another owner's request counts for nothing, as an owner
    can have starts of his own refused."""
    alike = set[object]()
    for job, reason in recent:
        if reason.startswith(_OWN_HOLD):
            continue
        alike |= {job.user, (job.user, job.original_request)}
        if reason.startswith(LIMIT_REASONS):
            alike |= {("account", job.account), ("qos", job.qos)}
    for job in snapshot.jobs_in_state(model.JobState.PENDING) if alike else ():
        one = (job.user, ("account", job.account), ("qos", job.qos))
        if not alike.isdisjoint(one):
            yield job.id, 2 if (job.user, job.original_request) in alike else 1


def kept_jobs(jobs: Iterable[model.Job], state: model.SchedulerState) -> dict[model.JobId, model.Reason]:
    """The running jobs that Slurm did not start elsewhere, each with the reason why it stays where it is for now."""
    return {
        job.id: model.Reason(model.ReasonCode.REFUSED_ELSEWHERE, {"reason": state.stalled[job.id]})
        for job in jobs
        if job.id in state.stalled and job.state is model.JobState.RUNNING
    }


def _is_refusal(outcome: model.Outcome) -> bool:
    if outcome.operation.reason.code in (
        model.ReasonCode.GIVE_BACK,
        model.ReasonCode.NOT_STARTED,
        model.ReasonCode.RETURNS,
    ):
        return False
    match outcome.operation.verb:
        case model.Verb.RELEASE:
            return outcome.result is model.Result.UNDONE
        case model.Verb.UPDATE:
            return outcome.result is model.Result.REFUSED
        case _:
            return False


def _planned_nodes(operation: model.Operation) -> tuple[str, ...]:
    if isinstance(operation.after, model.JobSpec):
        return operation.after.nodes
    return tuple(filter(None, str(operation.reason.details.get("nodes", "")).split(",")))


def _basis(job: model.Job, names: Iterable[str], reason: str, snapshot: model.Snapshot) -> str:
    nodes = (snapshot.nodes_by_name.get(name) for name in sorted(names))
    partitions = (partition for partition in snapshot.partitions if partition.name in job.partitions)
    asks = job.original_request
    return _digest(
        [
            (asks.gpus, asks.gpu_type, asks.cpus, asks.memory, asks.nodes, asks.tasks, asks.features, asks.shards),
            (sorted(asks.excluded), job.time_limit, job.partitions, job.qos, job.account, job.reservation),
            [(node.name, node.state.value, node.total, node.reservation) for node in nodes if node is not None],
            [(p.name, p.up, p.max_time, len(p.nodes)) for p in partitions],
            [(r.name, r.start, r.end, sorted(r.nodes), sorted(r.users)) for r in snapshot.reservations],
            sorted(_counted_jobs(job, snapshot)) if reason.startswith(LIMIT_REASONS) else (),
        ]
    )


def _counted_jobs(job: model.Job, snapshot: model.Snapshot) -> Iterator[model.JobId]:
    """The running jobs that a limit of this job's user, account or QOS may count."""
    for other in snapshot.jobs_in_state(model.JobState.RUNNING):
        if other.id != job.id and (other.user == job.user or other.account == job.account or other.qos == job.qos):
            yield other.id


def _digest(parts: object) -> str:
    return blake2b(repr(parts).encode(errors="replace"), digest_size=12).hexdigest()
