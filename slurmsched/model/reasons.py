"""Reasons of what was done or not: the machine's code, the sentence for people, and how sentences write amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isinf
from typing import Final


class ReasonCode(StrEnum):
    """Machine reasons: stable, stored, safe to match on."""

    # a job gets, or keeps, its resources
    KEEPS_LEASE = "keeps_lease"
    FIRST_IN_ORDER = "first_in_order"
    TUNED_UP = "tuned_up"
    TUNED_DOWN = "tuned_down"
    PROPORTIONAL = "proportional"
    AS_REQUESTED = "as_requested"
    FILLS_IN = "fills_in"
    PAYS_FOR_RESTART = "pays_for_restart"
    MIXED = "mixed"
    FEWEST_FRAGMENTS = "fewest_fragments"
    ROOM_IS_MADE = "room_is_made"
    MAKES_ROOM = "makes_room"
    TURN = "turn"
    SHARES_GPU = "shares_gpu"
    SHARES_UNASKED = "shares_unasked"
    DISPATCHED = "dispatched"
    # a job waits
    BEHIND = "behind"
    NO_ROOM = "no_room"
    NO_SHARDS = "no_shards"
    BESIDE_ANOTHER = "beside_another"
    ONE_A_ROUND = "one_a_round"
    NO_CPUS = "no_cpus"
    NEVER_FITS = "never_fits"
    ONE_TYPE = "one_type"
    DEPENDENCY = "dependency"
    BEGIN_TIME = "begin_time"
    USER_HOLD = "user_hold"
    ADMIN_HOLD = "admin_hold"
    ARRAY_LIMIT = "array_limit"
    PARTITION_DOWN = "partition_down"
    MOVES_SPENT = "moves_spent"
    FREED_SOON = "freed_soon"
    RESERVED = "reserved"
    LIMITS = "limits"
    STALLED = "stalled"
    AWAITS_TURN = "awaits_turn"
    AWAITS_CHECKPOINT = "awaits_checkpoint"
    SLICE_ENDED = "slice_ended"
    COPIES_SUFFICE = "copies_suffice"
    # a running job is not touched
    MIN_RUN_TIME = "min_run_time"
    EXEMPT_TIME = "exempt_time"
    NO_REQUEUE = "no_requeue"
    NOT_BATCH = "not_batch"
    ASKED_TO_STAY = "asked_to_stay"
    JOB_MOVES_SPENT = "job_moves_spent"
    NO_CHECKPOINT = "no_checkpoint"
    ENDS_SOON = "ends_soon"
    WRITES_CHECKPOINT = "writes_checkpoint"
    # a job is not ours
    UNMANAGED = "unmanaged"
    SHARDS = "shards"
    NO_GPU = "no_gpu"
    SET_ASIDE = "set_aside"
    # an operation
    NEWCOMER_FIRST = "newcomer_first"
    PREPARE = "prepare"
    START = "start"
    TAKE_OVER = "take_over"
    GIVE_BACK = "give_back"
    RANK = "rank"
    LEAN = "lean"
    NOT_STARTED = "not_started"
    RETURNS = "returns"
    MENDED = "mended"
    RENDER = "render"


REASON_SENTENCES: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.KEEPS_LEASE: "keeps its place: it is still among the jobs that should run",
    ReasonCode.FIRST_IN_ORDER: "is next in {order} order and fits",
    ReasonCode.TUNED_UP: "gets {cpus} CPUs instead of its GPU share of {share}: {model} runs {gain} faster with them",
    ReasonCode.TUNED_DOWN: "gets {cpus} CPUs instead of its GPU share of {share}: {model} is no slower with fewer",
    ReasonCode.PROPORTIONAL: "gets its GPU share: {cpus} CPUs",
    ReasonCode.AS_REQUESTED: "gets the {cpus} CPUs it asked for",
    ReasonCode.FILLS_IN: "runs on GPUs that jobs ahead of it cannot use",
    ReasonCode.PAYS_FOR_RESTART: "is restarted with other resources: saves {saving}, costs {cost}",
    ReasonCode.FEWEST_FRAGMENTS: "is placed where it leaves the fewest idle GPUs that the usual jobs cannot use",
    ReasonCode.ROOM_IS_MADE: "starts once {jobs} moved to other nodes, which costs {cost} GPU-seconds of restarting",
    ReasonCode.MAKES_ROOM: "moves to {nodes}, so that job {job} can start",
    ReasonCode.MIXED: "runs on {mix}: sooner than on one type alone",
    ReasonCode.TURN: "has its turn: it was {ahead} ahead on the {due} GPUs that its tickets stand for",
    ReasonCode.SHARES_GPU: "shares {devices} with job {job}: together {work} times the work of one",
    ReasonCode.SHARES_UNASKED: "shares {devices} with {jobs}, which no round put there",
    ReasonCode.DISPATCHED: "does {steps} of the {left} steps left of job {job}: {part} of {speed} speed",
    ReasonCode.BEHIND: "waits behind {count} jobs in {order} order; the last one that runs is {last}",
    ReasonCode.NO_ROOM: "next in order, but no nodes have {gpus} fitting GPUs free together",
    ReasonCode.NO_SHARDS: "next in order, but no GPU has {shards} shards free with its CPUs and memory beside them",
    ReasonCode.BESIDE_ANOTHER: "waits: on {node} Slurm may put it on GPU {gpu}, beside {jobs}, and these may not share",
    ReasonCode.ONE_A_ROUND: "waits for the next round: this one starts others on {node}, and Slurm chooses their GPU",
    ReasonCode.NO_CPUS: "next in order, but no nodes have {cpus} CPUs and its memory free",
    ReasonCode.ONE_TYPE: "waits for {gpus} GPUs of one type, and cannot have several: {why}",
    ReasonCode.NEVER_FITS: "asks for more than the cluster has: {what}",
    ReasonCode.DEPENDENCY: "waits for another job: {dependency}",
    ReasonCode.BEGIN_TIME: "is not to start before {when}",
    ReasonCode.USER_HOLD: "is held by its owner: 'scontrol release {job}' lets it go",
    ReasonCode.ADMIN_HOLD: "is held by an administrator",
    ReasonCode.ARRAY_LIMIT: "its array runs {limit} tasks at a time",
    ReasonCode.PARTITION_DOWN: "its partition {partition} is down",
    ReasonCode.MOVES_SPENT: "would displace others, and this round's {limit} moves are spent",
    ReasonCode.FREED_SOON: "is placed on {nodes}, and waits for {jobs} to leave",
    ReasonCode.RESERVED: "the nodes it could use are reserved: {reservation}",
    ReasonCode.LIMITS: "is stopped by a limit of its account or QOS: {reason}",
    ReasonCode.STALLED: "could not start when it was let go ({reason}); it is tried again within a quarter of an hour",
    ReasonCode.AWAITS_TURN: "waits for its turn behind {count} jobs on {node}: it is {ahead} ahead on {due} GPUs due",
    ReasonCode.AWAITS_CHECKPOINT: "gets the place of {jobs} once their checkpoint is written, at {when} at the latest",
    ReasonCode.SLICE_ENDED: "has had its slice of {run}: it is {ahead} ahead on {due} GPUs due, {newcomer} {behind}",
    ReasonCode.COPIES_SUFFICE: "waits: the copies of job {job} that run are through with its last {left} steps sooner",
    ReasonCode.MIN_RUN_TIME: "has run {run} of the {minimum} every job may run before it is displaced",
    ReasonCode.EXEMPT_TIME: "is inside the site's PreemptExemptTime of {minimum}",
    ReasonCode.NO_REQUEUE: "was submitted with --no-requeue",
    ReasonCode.NOT_BATCH: "is not a batch job: requeueing would end it",
    ReasonCode.ASKED_TO_STAY: "its owner asked for move=no",
    ReasonCode.JOB_MOVES_SPENT: "has been moved {count} times in a day, the most that is allowed",
    ReasonCode.NO_CHECKPOINT: "named no checkpoint signal: submit with ckpt=usr1, or whichever signal makes it save",
    ReasonCode.ENDS_SOON: "ends in {left}, sooner than a restart pays",
    ReasonCode.WRITES_CHECKPOINT: "writes its checkpoint until {when} at the latest and then gives way to {newcomers}",
    ReasonCode.UNMANAGED: "is not managed: {why}",
    ReasonCode.SHARDS: "uses GPU shards, which Slurm places",
    ReasonCode.NO_GPU: "uses no GPU",
    ReasonCode.SET_ASIDE: "is set aside: {why}",
    ReasonCode.NEWCOMER_FIRST: "gives way to {newcomer}: {why}",
    ReasonCode.PREPARE: "is told to write its checkpoint, {lead} before it is requeued",
    ReasonCode.START: "starts on {nodes} with {gpus} GPUs, {cpus} CPUs",
    ReasonCode.TAKE_OVER: "is held so that this scheduler starts it",
    ReasonCode.GIVE_BACK: "is given back to Slurm as it was submitted",
    ReasonCode.RANK: "is number {rank} in {order} order",
    ReasonCode.LEAN: "is weighted so that Slurm fills nodes in the same order",
    ReasonCode.NOT_STARTED: "could not start: it waits again as it stood before",
    ReasonCode.RETURNS: "returns to {nodes}: the job it gave way to did not start",
    ReasonCode.MENDED: "was left half changed by an interrupted round: it is as it stood before",
    ReasonCode.RENDER: "is rendered anew from the settings",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A code with the particulars its sentence needs. Particulars are strings or numbers, JSON-safe."""

    code: ReasonCode
    details: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """For people; a detail that is missing shows as `?` rather than failing a round."""
        return REASON_SENTENCES[self.code].format_map(_DetailsOrQuestionMark(self.details))


class _DetailsOrQuestionMark(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


_DURATION_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def format_duration(seconds: float) -> str:
    """Seconds in the largest unit they fill: `45 s`, `2.5 h`, `3 d`."""
    if isinf(seconds):
        return "unknown time"
    size, unit = next(((size, unit) for size, unit in _DURATION_UNITS if seconds >= size), _DURATION_UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def format_gpu_hours(gpu_seconds: float) -> str:
    """`1.5 GPU-hours`; one unit throughout, so that a list of them compares at a glance."""
    return f"{gpu_seconds / 3600:.1f} GPU-hours"


def pluralise(number: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
