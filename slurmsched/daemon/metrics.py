"""The values of the daemon's metrics as rounds go by.

Every label has a bounded number of values: names that others give (GPU types, users) are cut, and counted together
beyond a number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from slurmsched import __version__
from slurmsched.backends.protocol import CallCounts
from slurmsched.backends.slurm.sbatch_options import sbatch_options
from slurmsched.daemon import metric_definitions as defined
from slurmsched.daemon.metric_definitions import Metric, MetricKind
from slurmsched.daemon.scheduler import RoundReport
from slurmsched.model import (
    MILLI_PER_GPU,
    Block,
    BlockCause,
    ClusterOverview,
    JobId,
    JobState,
    NodeState,
    Reason,
    ReasonCode,
)
from slurmsched.model.overview import StrandedCause, usable_gpus
from slurmsched.policies.policies import order_read
from slurmsched.policies.state import TicketAccounts, decode_state
from slurmsched.rounds.round import RoundResult
from slurmsched.rounds.scope import out_of_scope_reason
from slurmsched.settings.definition import Mode, Settings
from slurmsched.store.journal import JobEventKind
from slurmsched.store.store import Store
from slurmsched.store.visibility import OF_PEOPLE

BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds in seconds: a round takes hundredths on a small cluster, and should take less than its period."""
MOST_TYPES: Final = 100
OTHERS: Final = "(others)"
"""No name of a user or a GPU type has parentheses."""
_LONGEST: Final = 64
"""Characters of a name that others gave."""
_LIVE: Final = (JobState.PENDING, JobState.RUNNING)
_LET_GO: Final = (ReasonCode.REFUSED, ReasonCode.OVERTAKEN, ReasonCode.NEVER_FITS)
"""Reasons by which a managed job that waits is given back to Slurm."""

_OUTCOMES: Final = ((), ("ok",), ("failed",))

LabelValues = tuple[str, ...]


@dataclass(slots=True)
class Distribution:
    """How often values were in each bucket, the last of which has no upper bound, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.total += value

    @property
    def cumulative(self) -> tuple[int, ...]:
        """The counts of values up to each bound."""
        return tuple(accumulate(self.counts))


@dataclass(frozen=True, slots=True)
class Series:
    """One metric's values, by those of its labels; a histogram has cumulative counts and a sum."""

    metric: Metric
    values: tuple[tuple[LabelValues, float], ...] = ()
    distributions: tuple[tuple[LabelValues, tuple[int, ...], float], ...] = ()


class DaemonMetrics:
    """The values since the start of this process, or since those that `restore` was given. Not thread-safe: `series`
    returns a value that another thread may read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._values: dict[Metric, dict[LabelValues, float]] = {metric: {} for metric in defined.METRICS}
        self._seconds = defaultdict[LabelValues, Distribution](Distribution)
        self._restored: dict[tuple[Metric, LabelValues], float] = {}
        # A counter that appears at 1 has not increased for Prometheus: those of few labels begin at 0.
        for kind in (_kind(starts_only) for starts_only in (False, True)):
            self._values[defined.ROUNDS] |= {(kind, "ok"): 0.0, (kind, "failed"): 0.0}
        self._values[defined.BLOCKED] = {(cause.value,): 0.0 for cause in BlockCause}
        self._values[defined.EVENTS] = {(event.value,): 0.0 for event in JobEventKind}
        self._calls: tuple[CallCounts, CallCounts] | None = None

    def restore(self, series: Iterable[Series]) -> None:
        """Go on from the counters, distributions and last rounds of an earlier process."""
        for one in series:
            if one.metric.kind is MetricKind.COUNTER and one.metric not in (defined.FORECASTS, defined.FORECASTS_RIGHT):
                self._restored |= {(one.metric, labels): value for labels, value in one.values}
                self._values[one.metric] |= dict(one.values)
            elif one.metric in (defined.LAST_ROUND, defined.FAILURES):
                self._values[one.metric] |= {labels: value for labels, value in one.values if labels in _OUTCOMES}
            for labels, cumulative, total in one.distributions:
                counts = [after - before for before, after in zip((0, *cumulative), cumulative, strict=False)]
                self._seconds[labels] = Distribution(counts, total)

    def configured(self, settings: Settings, backend: str) -> None:
        """Note the settings in force, and how Slurm is read."""
        order = order_read(settings.policy.system, settings.policy.order)
        self._values[defined.PERIOD] = {(): settings.rounds.period}
        self._values[defined.STALE_AFTER] = {(): settings.hook.stale_after}
        self._values[defined.POLICY] = {(settings.policy.system, order): 1.0}
        self._values[defined.BUILD] = {(__version__, backend): 1.0}

    def heartbeat(self, at: float | None, mode: Mode, closed: Block | None) -> None:
        """Note a heartbeat at this time (unix seconds), None for one that is left to another daemon; and what keeps
        rounds from changing anything."""
        if at is not None:
            self._values[defined.HEARTBEAT] = {(): at}
        self._values[defined.MODE] = {(each.value,): float(each is mode) for each in Mode}
        self._values[defined.STOPPED] = {
            (cause.value,): float(closed is not None and closed.cause is cause) for cause in defined.STOPS
        }

    def called(self, calls: CallCounts) -> None:
        """Count what was called since the last time; after a reload the counts are those of another backend."""
        known = self._calls
        before = known[1] if known is not None and known[0] is calls else CallCounts()
        for kind, now, then in (
            ("poll", calls.polls, before.polls),
            ("read", calls.reads, before.reads),
            ("write", calls.writes, before.writes),
        ):
            self._add(defined.CALLS, (kind,), now - then)
        self._calls = calls, CallCounts(calls.polls, calls.reads, calls.writes)

    def round_failed(self, at: float, *, starts_only: bool) -> None:
        """Count a round that failed at this time (unix seconds)."""
        self._add(defined.ROUNDS, (_kind(starts_only), "failed"))
        self._add(defined.FAILURES, ())
        self._values[defined.LAST_ROUND][("failed",)] = at

    def round_ended(self, report: RoundReport, settings: Settings, at: float) -> None:
        """Take over the figures of a round that ended at this time (unix seconds). Raises StoreError."""
        kind, tally = _kind(report.result.starts_only), report.tally
        self._add(defined.ROUNDS, (kind, "ok"))
        self._values[defined.FAILURES] = {(): 0.0}
        self._values[defined.LAST_ROUND][("ok",)] = at
        for stage, seconds in (
            ("observe", tally.observe_s),
            ("decide", tally.decide_s),
            ("plan", tally.plan_s),
            ("apply", tally.apply_s),
        ):
            if seconds is not None:
                self._seconds[kind, stage].add(max(seconds, 0.0))
        self._count_jobs(report, settings)
        if self._store.state.overview is not None:
            self._count_gpus(self._store.state.overview)
        self._count_shares(report, settings)

    def series(self) -> tuple[Series, ...]:
        """The metrics that have values, in the order of the definitions. Raises StoreError."""
        self._take_recorded()
        told = (
            Series(defined.STAGE_SECONDS, (), tuple(self._distributions()))
            if metric is defined.STAGE_SECONDS
            else Series(metric, tuple(sorted(self._values[metric].items())))
            for metric in defined.METRICS
        )
        return tuple(one for one in told if one.values or one.distributions)

    def _distributions(self) -> Iterator[tuple[LabelValues, tuple[int, ...], float]]:
        for labels, seconds in sorted(self._seconds.items()):
            yield labels, seconds.cumulative, seconds.total

    def _take_recorded(self) -> None:
        """Take over what the store has counted and keeps."""
        counts, ranges = self._store.counts, self._store.start_forecasts.ranges()
        for (verb, result), number in counts.operations.items():
            self._set_counter(defined.OPERATIONS, (verb.value, result.value), number)
        for cause, number in counts.blocked.items():
            self._set_counter(defined.BLOCKED, (cause.value,), number)
        for event, number in counts.events.items():
            self._set_counter(defined.EVENTS, (event.value,), number)
        self._set_counter(defined.REFUSED, (), counts.refused_starts)
        self._values[defined.FORECASTS] = {(): float(ranges.counted)}
        self._values[defined.FORECASTS_RIGHT] = {(): float(ranges.covered)}
        self._values[defined.RANGE_FACTOR] = {("below",): ranges.below, ("above",): ranges.above}
        forecast, right = self._store.finished_runs.length_forecasts
        self._values[defined.LENGTHS], self._values[defined.LENGTHS_RIGHT] = {(): float(forecast)}, {(): float(right)}

    def _count_jobs(self, report: RoundReport, settings: Settings) -> None:
        result, jobs = report.result, report.snapshot.jobs_by_id
        managed = result.snapshot.jobs_by_id.keys() - result.unmanaged.keys()
        states = Counter(job.state for job in report.snapshot.jobs if job.id in managed)
        self._values[defined.JOBS] = {(state.value,): float(states[state]) for state in _LIVE}
        waits = {**result.ineligible, **result.decision.waiting}
        waits = {job: why for job, why in waits.items() if job in jobs and jobs[job].state is JobState.PENDING}
        let_go = {job for job, why in waits.items() if why.code in _LET_GO}
        self._values[defined.WAITING] = _counted(why.code.value for job, why in waits.items() if job not in let_go)
        left = {job: why for job, why in result.unmanaged.items() if job in jobs and jobs[job].state in _LIVE}
        left |= {job: waits[job] for job in let_go}
        self._values[defined.LEFT] = _counted(_why_left(job, why, result, settings) for job, why in left.items())
        held = self._store.state.held_jobs()
        since = [jobs[job].submit_time for job in held if job in jobs and jobs[job].submit_time > 0]
        self._values[defined.HELD] = {(): float(len(held))}
        self._values[defined.OLDEST_HOLD] = {(): min(since)} if since else {}
        unreadable, undecidable = self._store.set_aside.counts()
        self._values[defined.SET_ASIDE] = {("unreadable",): float(unreadable), ("undecidable",): float(undecidable)}

    def _count_gpus(self, overview: ClusterOverview) -> None:
        states, stranded = defaultdict[LabelValues, float](float), defaultdict[LabelValues, float](float)
        types = dict[str, str]()
        for node in overview.nodes:
            open_for_jobs = node.state is NodeState.UP and not node.reservation
            for gpu in node.gpus:
                full = gpu.used >= MILLI_PER_GPU
                busy = "allocated" if full else "partly_allocated" if gpu.used else ""
                states[gpu.type, busy or ("idle" if open_for_jobs else "unavailable")] += 1
            for kind in {gpu.type for gpu in node.gpus}:
                types[node.name] = kind
                usable = usable_gpus(node, kind)
                if open_for_jobs and usable.cause is not None:
                    lost = usable.idle - usable.usable
                    if lost:
                        stranded[kind, usable.cause.value] += lost
                    if below := usable.usable - min(usable.at_share, usable.usable):
                        stranded[kind, StrandedCause.SHARE.value] += below
        kinds = _most({kind: sum(states[label] for label in states if label[0] == kind) for kind, _ in states})
        self._values[defined.GPUS] = _by_type(states, kinds, _GPU_STATES)
        self._values[defined.STRANDED] = _by_type(stranded, kinds, _CAUSES)
        fragments = defaultdict[LabelValues, float](float)
        for row in overview.fragments.nodes if overview.fragments else ():
            for cause, amount in zip(_LACKS, row.columns[2:], strict=True):
                fragments[types.get(row.node, ""), cause] += amount
        self._values[defined.FRAGMENTED] = _by_type(fragments, kinds, _LACKS) if overview.fragments else {}

    def _count_shares(self, report: RoundReport, settings: Settings) -> None:
        """Of single users only where the settings allow it, and never where PrivateData hides what users have: nobody
        knows who asks."""
        tickets = decode_state(TicketAccounts, report.result.decision.state)
        accounts = tickets.accounts if tickets.time is not None else {}
        behind = max((account.due - account.received for account in accounts.values()), default=0.0)
        self._values[defined.SHARE_USERS] = {(): float(len(accounts))} if accounts else {}
        self._values[defined.SHORTFALL] = {(): max(behind, 0.0)} if accounts else {}
        private = report.snapshot.private_data & OF_PEOPLE
        named = {} if private or not settings.metrics.users else accounts
        users = _most({user: account.due for user, account in named.items()}, settings.metrics.users)
        for metric, amounts in (
            (defined.DUE, {user: account.due for user, account in named.items()}),
            (defined.HAD, {user: account.received for user, account in named.items()}),
        ):
            told = defaultdict[LabelValues, float](float)
            for user, amount in amounts.items():
                told[(users[user],)] += amount
            self._values[metric] = dict(told)

    def _add(self, metric: Metric, labels: LabelValues, amount: float = 1.0) -> None:
        self._values[metric][labels] = self._values[metric].get(labels, 0.0) + amount

    def _set_counter(self, metric: Metric, labels: LabelValues, number: int) -> None:
        self._values[metric][labels] = self._restored.get((metric, labels), 0.0) + number


_GPU_STATES: Final = ("allocated", "partly_allocated", "idle", "unavailable")
_CAUSES: Final = (StrandedCause.CPU.value, StrandedCause.MEMORY.value, StrandedCause.SHARE.value)
_LACKS: Final = ("gpus", "cpus", "gpus_and_cpus", "other_type")


def _kind(starts_only: bool) -> str:
    return "early" if starts_only else "full"


def _counted(words: Iterable[str]) -> dict[LabelValues, float]:
    return {(word,): float(number) for word, number in Counter(words).items()}


def _why_left(job: JobId, why: Reason, result: RoundResult, settings: Settings) -> str:
    """Why a job is left to Slurm, as a word of a bounded set."""
    if why.code is not ReasonCode.UNMANAGED:
        return why.code.value
    known = result.snapshot.jobs_by_id.get(job)
    if known is not None and out_of_scope_reason(known, settings.manage) is not None:
        return "out_of_scope"
    return _OPTIONS.get(str(why.details.get("why", "")), "other")


_OPTIONS: Final[Mapping[str, str]] = {option.reason: option.names[0] for option in sbatch_options() if option.reason}
"""By the reason for which a job with an option is let go: the option."""


def _most(amounts: Mapping[str, float], most: int = MOST_TYPES) -> dict[str, str]:
    """By name how it is told: those of the greatest amounts by themselves, the others together."""
    named = set(sorted(amounts, key=lambda name: (-amounts[name], name))[:most])
    return {name: _cut(name) if name in named else OTHERS for name in amounts}


def _cut(name: str) -> str:
    """The name as a label's value: of a bounded length, and encodable."""
    return name[:_LONGEST].encode("utf-8", "replace").decode()


def _by_type(
    amounts: Mapping[LabelValues, float], kinds: Mapping[str, str], words: tuple[str, ...]
) -> dict[LabelValues, float]:
    """The amounts by GPU type as it is told, and word; 0 where there are none, so that each type has each series."""
    told: dict[LabelValues, float] = {(kind, word): 0.0 for kind in kinds.values() for word in words}
    for (kind, word), amount in amounts.items():
        label = kinds.get(kind, OTHERS), word
        told[label] = told.get(label, 0.0) + amount
    return told
