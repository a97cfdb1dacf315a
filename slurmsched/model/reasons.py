"""Why something was done, or not: the machine's code beside the sentence for people, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["SENTENCES", "Code", "Reason"]


class Code(StrEnum):
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


SENTENCES: Final[Mapping[Code, str]] = {
    Code.KEEPS_LEASE: "keeps its place: it is still among the jobs that should run",
    Code.FIRST_IN_ORDER: "is next in {order} order and fits",
    Code.TUNED_UP: "gets {cpus} CPUs instead of its GPU share of {share}: {model} runs {gain} faster with them",
    Code.TUNED_DOWN: "gets {cpus} CPUs instead of its GPU share of {share}: {model} is no slower with fewer",
    Code.PROPORTIONAL: "gets its GPU share: {cpus} CPUs",
    Code.AS_REQUESTED: "gets the {cpus} CPUs it asked for",
    Code.FILLS_IN: "runs on GPUs that jobs ahead of it cannot use",
    Code.PAYS_FOR_RESTART: "is restarted with other resources: saves {saving}, costs {cost}",
    Code.FEWEST_FRAGMENTS: "is placed where it leaves the fewest idle GPUs that the usual jobs cannot use",
    Code.ROOM_IS_MADE: "starts once {jobs} moved to other nodes, which costs {cost} GPU-seconds of restarting",
    Code.MAKES_ROOM: "moves to {nodes}, so that job {job} can start",
    Code.MIXED: "runs on {mix}: sooner than on one type alone",
    Code.TURN: "has its turn: it was {ahead} ahead on the {due} GPUs that its tickets stand for",
    Code.SHARES_GPU: "shares {devices} with job {job}: together {work} times the work of one",
    Code.SHARES_UNASKED: "shares {devices} with {jobs}, which no round put there",
    Code.DISPATCHED: "does {steps} of the {left} steps left of job {job}: {part} of {speed} speed",
    Code.BEHIND: "waits behind {count} jobs in {order} order; the last one that runs is {last}",
    Code.NO_ROOM: "next in order, but no nodes have {gpus} fitting GPUs free together",
    Code.NO_SHARDS: "next in order, but no GPU has {shards} shards free with its CPUs and memory beside them",
    Code.BESIDE_ANOTHER: "waits: on {node} Slurm may put it on GPU {gpu}, beside {jobs}, and these are not to share",
    Code.ONE_A_ROUND: "waits for the next round: this one starts others on {node}, and Slurm chooses their GPU",
    Code.NO_CPUS: "next in order, but no nodes have {cpus} CPUs and its memory free",
    Code.ONE_TYPE: "waits for {gpus} GPUs of one type, and cannot have several: {why}",
    Code.NEVER_FITS: "asks for more than the cluster has: {what}",
    Code.DEPENDENCY: "waits for another job: {dependency}",
    Code.BEGIN_TIME: "is not to start before {when}",
    Code.USER_HOLD: "is held by its owner: 'scontrol release {job}' lets it go",
    Code.ADMIN_HOLD: "is held by an administrator",
    Code.ARRAY_LIMIT: "its array runs {limit} tasks at a time",
    Code.PARTITION_DOWN: "its partition {partition} is down",
    Code.MOVES_SPENT: "would displace others, and this round's {limit} moves are spent",
    Code.FREED_SOON: "is placed on {nodes}, and waits for {jobs} to leave",
    Code.RESERVED: "the nodes it could use are reserved: {reservation}",
    Code.LIMITS: "is stopped by a limit of its account or QOS: {reason}",
    Code.STALLED: "could not start when it was let go ({reason}); it is tried again within a quarter of an hour",
    Code.AWAITS_TURN: "waits for its turn behind {count} jobs on {node}: it is {ahead} ahead on {due} GPUs due",
    Code.AWAITS_CHECKPOINT: "gets the place of {jobs} once the checkpoint there is written, at {when} at the latest",
    Code.SLICE_ENDED: "has had its slice of {run}: it is {ahead} ahead on {due} GPUs due, {newcomer} {behind}",
    Code.COPIES_SUFFICE: "waits: the copies of job {job} that run are through with its last {left} steps sooner",
    Code.MIN_RUN_TIME: "has run {run} of the {minimum} every job may run before it is displaced",
    Code.EXEMPT_TIME: "is inside the site's PreemptExemptTime of {minimum}",
    Code.NO_REQUEUE: "was submitted with --no-requeue",
    Code.NOT_BATCH: "is not a batch job: requeueing would end it",
    Code.ASKED_TO_STAY: "its owner asked for move=no",
    Code.JOB_MOVES_SPENT: "has been moved {count} times in a day, the most that is allowed",
    Code.NO_CHECKPOINT: "named no checkpoint signal: submit with ckpt=usr1, or whichever signal makes it save",
    Code.ENDS_SOON: "ends in {left}, sooner than a restart pays",
    Code.WRITES_CHECKPOINT: "writes its checkpoint until {when} at the latest and then gives way to {newcomers}",
    Code.UNMANAGED: "is not managed: {why}",
    Code.SHARDS: "uses GPU shards, which Slurm places",
    Code.NO_GPU: "uses no GPU",
    Code.SET_ASIDE: "is set aside: {why}",
    Code.NEWCOMER_FIRST: "gives way to {newcomer}: {why}",
    Code.PREPARE: "is told to write its checkpoint, {lead} before it is requeued",
    Code.START: "starts on {nodes} with {gpus} GPUs, {cpus} CPUs",
    Code.TAKE_OVER: "is held so that this scheduler starts it",
    Code.GIVE_BACK: "is given back to Slurm as it was submitted",
    Code.RANK: "is number {rank} in {order} order",
    Code.LEAN: "is weighted so that Slurm fills nodes in the same order",
    Code.NOT_STARTED: "could not start: it waits again as it stood before",
    Code.RETURNS: "returns to {nodes}: the job it gave way to did not start",
    Code.MENDED: "was left half changed by an interrupted round: it is as it stood before",
    Code.RENDER: "is rendered anew from the settings",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A code with the particulars its sentence needs. Particulars are strings or numbers, JSON-safe."""

    code: Code
    details: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """For people; a detail that is missing shows as `?` rather than failing a round."""
        return SENTENCES[self.code].format_map(_Lenient(self.details))


class _Lenient(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"
