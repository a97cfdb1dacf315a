"""What each metric of the daemon is: the source of the metrics and of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from slurmsched.model import BlockCause, Result, Verb
from slurmsched.settings.definition import Mode
from slurmsched.store.journal import JobEventKind


class MetricKind(StrEnum):
    """What Prometheus does with the values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric: `labels` are names and what they tell, `group` is its section on the page."""

    name: str
    kind: MetricKind
    group: str
    doc: str
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.labels)

    @property
    def series_name(self) -> str:
        """The name in queries, of a histogram without the suffix of its parts."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


def _words(values: Iterable[StrEnum]) -> str:
    return ", ".join(f"`{value.value}`" for value in values)


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_ROUND_KIND: Final = ("kind", "`full` or `early`")
_GPU_TYPE: Final = ("type", "as Slurm names it; beyond 100 types `(others)`")

ROUNDS: Final = Metric(
    "synsched_rounds", _COUNTER, "Rounds", "Rounds that have ended.", (_ROUND_KIND, ("outcome", "`ok` or `failed`"))
)
STAGE_SECONDS: Final = Metric(
    "synsched_round_stage_seconds",
    _HISTOGRAM,
    "Rounds",
    "Seconds that a stage of a round took, of rounds that were ok.",
    (_ROUND_KIND, ("stage", "`observe`, `decide`, `plan`, `apply`")),
)
LAST_ROUND: Final = Metric(
    "synsched_last_round_timestamp_seconds",
    _GAUGE,
    "Rounds",
    "When the last round ended, in unix seconds; none before the first.",
    (("outcome", "`ok` or `failed`"),),
)
FAILURES: Final = Metric("synsched_round_failures", _GAUGE, "Rounds", "Rounds that have failed since the last ok one.")
PERIOD: Final = Metric("synsched_round_period_seconds", _GAUGE, "Rounds", "The setting `rounds.period`.")
OPERATIONS: Final = Metric(
    "synsched_operations",
    _COUNTER,
    "Operations",
    "Operations of plans; one that was undone counts as done before.",
    (("verb", _words(Verb)), ("result", _words(result for result in Result if result is not Result.INTENDED))),
)
BLOCKED: Final = Metric(
    "synsched_operations_blocked",
    _COUNTER,
    "Operations",
    "Operations that were planned and not done, by what forbids them. Each round counts them again.",
    (("cause", _words(BlockCause)),),
)
EVENTS: Final = Metric(
    "synsched_job_events",
    _COUNTER,
    "Operations",
    "What happened to managed jobs, as `synsched history` tells it: `started` however that came about, `released` to"
    " start by a round, `displaced` preempted, `moved` requeued to start elsewhere in the same round.",
    (("event", _words(JobEventKind)),),
)
REFUSED: Final = Metric(
    "synsched_starts_refused",
    _COUNTER,
    "Operations",
    "Starts that Slurm refused: a released job that it did not start, or a request that it did not take.",
)
JOBS: Final = Metric("synsched_jobs", _GAUGE, "Jobs", "Managed jobs.", (("state", "`pending` or `running`"),))
WAITING: Final = Metric(
    "synsched_jobs_waiting",
    _GAUGE,
    "Jobs",
    "Managed jobs that wait, by why, as the last round found it.",
    (("reason", "a code of `slurmsched/model/reasons.py`, such as `behind`, `no_room`, `limits`, `dependency`"),),
)
HELD: Final = Metric(
    "synsched_jobs_held",
    _GAUGE,
    "Jobs",
    "Jobs that synsched holds until their turn. Slurm's own gauges for autoscaling leave held jobs out: add this one.",
)
OLDEST_HOLD: Final = Metric(
    "synsched_oldest_hold_timestamp_seconds",
    _GAUGE,
    "Jobs",
    "When the job was submitted, or requeued last, that synsched holds longest, in unix seconds; none where it holds"
    " none.",
)
LEFT: Final = Metric(
    "synsched_jobs_left_to_slurm",
    _GAUGE,
    "Jobs",
    "Pending and running jobs that are not managed, or were let go, by why.",
    (
        (
            "reason",
            "`out_of_scope` of `[manage]`, `no_gpu`, `never_fits`, an option of sbatch ([all](flags.md)), ...",
        ),
    ),
)
SET_ASIDE: Final = Metric(
    "synsched_jobs_set_aside",
    _GAUGE,
    "Jobs",
    "Jobs about which nothing is decided.",
    (("reason", "`unreadable` record, or `undecidable`: deciding about it fails"),),
)
GPUS: Final = Metric(
    "synsched_gpus",
    _GAUGE,
    "GPUs",
    "GPUs by what they do, whoever has them.",
    (
        _GPU_TYPE,
        (
            "state",
            "`allocated`, `partly_allocated` by shards, `idle`, `unavailable`: idle on a node that starts no jobs",
        ),
    ),
)
STRANDED: Final = Metric(
    "synsched_gpus_stranded",
    _GAUGE,
    "GPUs",
    "Idle GPUs on nodes that start jobs, as `synsched free` counts them, by what is lacking: a free CPU for each, free"
    " memory; or the whole GPU-proportional share, with which a job could still start.",
    (_GPU_TYPE, ("cause", "`cpu`, `memory`, `below_share`")),
)
FRAGMENTED: Final = Metric(
    "synsched_gpus_fragmented",
    _GAUGE,
    "GPUs",
    "Idle GPUs that a typical job of the last two weeks cannot use, on average (FGD), by what its node lacks.",
    (_GPU_TYPE, ("cause", "`gpus` together, `cpus`, `gpus_and_cpus`, `other_type`: the job asks for another type")),
)
SHARE_USERS: Final = Metric(
    "synsched_share_users",
    _GAUGE,
    "Shares",
    "Users with jobs that take part in shares by tickets (policies gandiva-fair and unified).",
)
SHORTFALL: Final = Metric(
    "synsched_share_shortfall_max_gpu_seconds",
    _GAUGE,
    "Shares",
    "By how much the user who is furthest behind has had less than due, in GPU-seconds of the slowest type.",
)
DUE: Final = Metric(
    "synsched_user_share_due_gpu_seconds",
    _GAUGE,
    "Shares",
    "GPU-seconds that a user is due by tickets since the oldest of the present jobs came, in GPUs of the slowest type.",
    (("user", "of the users who are due most, `metrics.users` of them; all further ones as `(others)`"),),
)
HAD: Final = Metric("synsched_user_share_had_gpu_seconds", _GAUGE, "Shares", "What the user has had of it.", DUE.labels)
FORECASTS: Final = Metric(
    "synsched_start_forecasts",
    _COUNTER,
    "Forecasts",
    "First forecasts of starts of which it is known what became of them. It goes on over restarts.",
)
FORECASTS_RIGHT: Final = Metric(
    "synsched_start_forecasts_in_range",
    _COUNTER,
    "Forecasts",
    "Those whose job started within the 80 % range that was told.",
)
RANGE_FACTOR: Final = Metric(
    "synsched_start_range_factor",
    _GAUGE,
    "Forecasts",
    "How many times as wide as drawn the ranges of starts are told now, by what became of earlier ones.",
    (("side", "`below` or `above` the median"),),
)
LENGTHS: Final = Metric(
    "synsched_length_forecasts",
    _GAUGE,
    "Forecasts",
    "Kept runs that have ended and whose length was forecast; 0 without `learning.lengths`.",
)
LENGTHS_RIGHT: Final = Metric(
    "synsched_length_forecasts_in_range", _GAUGE, "Forecasts", "Those whose length was within the 80 % range."
)
CALLS: Final = Metric(
    "synsched_slurm_calls",
    _COUNTER,
    "Slurm",
    "Calls to Slurm by the daemon: whole polls, queries (those of polls too), and changes.",
    (("kind", "`poll`, `read`, `write`"),),
)
HEARTBEAT: Final = Metric(
    "synsched_heartbeat_timestamp_seconds",
    _GAUGE,
    "State",
    "When the last heartbeat was written, in unix seconds. Its age is `time()` less this, also while the daemon hangs.",
)
STALE_AFTER: Final = Metric(
    "synsched_heartbeat_stale_after_seconds", _GAUGE, "State", "The setting `hook.stale_after`."
)
MODE: Final = Metric("synsched_mode", _GAUGE, "State", "1 for the mode in force, else 0.", (("mode", _words(Mode)),))
STOPS: Final = (BlockCause.PAUSED, BlockCause.DISABLED, BlockCause.OTHER_SCHEDULER)
STOPPED: Final = Metric(
    "synsched_changes_stopped",
    _GAUGE,
    "State",
    "1 for what keeps rounds from changing anything now, else 0.",
    (("cause", _words(STOPS)),),
)
POLICY: Final = Metric(
    "synsched_policy_info",
    _GAUGE,
    "State",
    "1 for the policy in force.",
    (("policy", "the setting `policy.system`"), ("order", "empty where the policy has an order of its own")),
)
BUILD: Final = Metric(
    "synsched_build_info",
    _GAUGE,
    "State",
    "1 for the release that runs.",
    (("version", "of slurmsched"), ("backend", "how Slurm is read")),
)

METRICS: Final = (
    *(ROUNDS, STAGE_SECONDS, LAST_ROUND, FAILURES, PERIOD),
    *(OPERATIONS, BLOCKED, EVENTS, REFUSED),
    *(JOBS, WAITING, HELD, OLDEST_HOLD, LEFT, SET_ASIDE),
    *(GPUS, STRANDED, FRAGMENTED),
    *(SHARE_USERS, SHORTFALL, DUE, HAD),
    *(FORECASTS, FORECASTS_RIGHT, RANGE_FACTOR, LENGTHS, LENGTHS_RIGHT),
    *(CALLS, HEARTBEAT, STALE_AFTER, MODE, STOPPED, POLICY, BUILD),
)
"""All of them, in the order of the page."""


def metrics_by_group() -> dict[str, tuple[Metric, ...]]:
    """The metrics by the section of the page."""
    return {group: tuple(metrics) for group, metrics in groupby(METRICS, key=lambda metric: metric.group)}
