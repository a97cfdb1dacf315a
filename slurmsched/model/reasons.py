"""Why a job runs, waits or moves: a code for programs, a sentence for people, and how sentences write amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import isfinite, isinf, isnan
from typing import Final


class ReasonCode(StrEnum):
    """Codes for programs: stable, stored, safe to match on."""

    # a job gets, or keeps, its resources
    KEEPS_LEASE = "keeps_lease"
    FIRST_IN_ORDER = "first_in_order"
    TUNED_UP = "tuned_up"
    TUNED_DOWN = "tuned_down"
    PROBES_CPUS = "probes_cpus"
    PROPORTIONAL = "proportional"
    AS_REQUESTED = "as_requested"
    FILLS_IN = "fills_in"
    PAYS_FOR_RESTART = "pays_for_restart"
    MIXED = "mixed"
    FEWEST_FRAGMENTS = "fewest_fragments"
    FASTEST_HERE = "fastest_here"
    ROOM_IS_MADE = "room_is_made"
    MAKES_ROOM = "makes_room"
    TURN = "turn"
    SHARES_GPU = "shares_gpu"
    SHARES_UNASKED = "shares_unasked"
    TRIES_SHARING = "tries_sharing"
    WORSE_TOGETHER = "worse_together"
    DISPATCHED = "dispatched"
    # a job waits
    BEHIND = "behind"
    NO_ROOM = "no_room"
    NO_SHARDS = "no_shards"
    BESIDE_ANOTHER = "beside_another"
    ONE_A_ROUND = "one_a_round"
    NEVER_TOGETHER = "never_together"
    NO_CPUS = "no_cpus"
    BESIDE_GPUS = "beside_gpus"
    NEVER_FITS = "never_fits"
    ONE_TYPE = "one_type"
    DEPENDENCY = "dependency"
    DEPENDENCY_FAILED = "dependency_failed"
    BEGIN_TIME = "begin_time"
    USER_HOLD = "user_hold"
    ADMIN_HOLD = "admin_hold"
    LAUNCH_FAILED = "launch_failed"
    ARRAY_LIMIT = "array_limit"
    PARTITION_DOWN = "partition_down"
    MOVES_SPENT = "moves_spent"
    MOVES_SAVED = "moves_saved"
    FREED_SOON = "freed_soon"
    FREED_NOW = "freed_now"
    RESERVED = "reserved"
    NODES_CLOSED = "nodes_closed"
    RESERVED_FROM = "reserved_from"
    PROMISED_START = "promised_start"
    EXPECTED_START = "expected_start"
    OVERTAKEN = "overtaken"
    NODES_DRAIN = "nodes_drain"
    BEHIND_PROMISE = "behind_promise"
    BEHIND_DRAIN = "behind_drain"
    LIMITS = "limits"
    LICENSES = "licenses"
    STALLED = "stalled"
    REFUSED = "refused"
    LIKE_REFUSED = "like_refused"
    REFUSED_ELSEWHERE = "refused_elsewhere"
    AWAITS_TURN = "awaits_turn"
    SHARE_HELD = "share_held"
    OUTBID = "outbid"
    AWAITS_CHECKPOINT = "awaits_checkpoint"
    SLICE_ENDED = "slice_ended"
    COPIES_SUFFICE = "copies_suffice"
    FULL_ROUND = "full_round"
    ENDS_IN_ROUND = "ends_in_round"
    STARTING = "starting"
    GIVES_WAY = "gives_way"
    CONTESTED = "contested"
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
    # a job is not managed
    UNMANAGED = "unmanaged"
    SHARDS = "shards"
    NO_GPU = "no_gpu"
    ENDED = "ended"
    SET_ASIDE = "set_aside"
    # an operation
    NEWCOMER_FIRST = "newcomer_first"
    IDLE_GPUS = "idle_gpus"
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
    ReasonCode.KEEPS_LEASE: "keeps its nodes",
    ReasonCode.FIRST_IN_ORDER: "is next in {order} order and fits",
    ReasonCode.TUNED_UP: (
        "gets {cpus:CPU} instead of its GPU-proportional share of {share}: {model} runs {gain} faster with them"
    ),
    ReasonCode.TUNED_DOWN: (
        "gets {cpus:CPU} instead of its GPU-proportional share of {share}: {model} is no slower with fewer"
    ),
    ReasonCode.PROBES_CPUS: (
        "gets {cpus:CPU}, where others of its work have {others:CPU}, to measure how fast it is with them: its owner"
        " allows that with cpus=probe"
    ),
    ReasonCode.PROPORTIONAL: "gets its GPU-proportional share of {cpus:CPU}",
    ReasonCode.AS_REQUESTED: "gets {cpus:CPU}, as requested",
    ReasonCode.FILLS_IN: "runs on GPUs that jobs ahead of it cannot use",
    ReasonCode.PAYS_FOR_RESTART: "is restarted with other resources: this saves {saving} and costs {cost}",
    ReasonCode.FEWEST_FRAGMENTS: "is placed where the fewest idle GPUs become unusable for typical jobs",
    ReasonCode.FASTEST_HERE: (
        "is placed where its GPU type and the CPUs beside it make it {times} times as fast as where it came first"
    ),
    ReasonCode.ROOM_IS_MADE: "starts after {jobs:job #} moved to other nodes: restarting costs {cost:GPU-second}",
    ReasonCode.MAKES_ROOM: "moves to {nodes} so that {job:job #} can start",
    ReasonCode.MIXED: "runs on {mix}: it finishes sooner than on one GPU type",
    ReasonCode.TURN: "is next: it is {ahead} ahead of the job furthest behind there (its share: {due:GPU})",
    ReasonCode.SHARES_GPU: "shares {devices} with {job:job #}: together they do {work} times the work of one",
    ReasonCode.TRIES_SHARING: (
        "shares {devices} with {job:job #} to find out: together they should do {work} times the work of one"
    ),
    ReasonCode.WORSE_TOGETHER: "moves to a GPU of its own: beside {job:job #} both do {work} times the work of one",
    ReasonCode.SHARES_UNASKED: "shares {devices} with {jobs:job #}, which no round placed there",
    ReasonCode.DISPATCHED: "does {steps} of the {left:step} left of {job:job #}: {part} of the {speed} speed",
    ReasonCode.BEHIND: (
        "waits behind {count:job} in {order} order on the nodes it could use; the last one of them is {last:job #}"
    ),
    ReasonCode.NO_ROOM: "waits: no nodes have {gpus:GPU} free for it",
    ReasonCode.NO_SHARDS: "waits: no GPU has {shards:free shard} with enough free CPUs and memory",
    ReasonCode.BESIDE_ANOTHER: (
        "waits: on {node} Slurm may place it on GPU {gpu} beside {jobs:job #}, and these must not share a GPU"
    ),
    ReasonCode.ONE_A_ROUND: "waits for the next round: this one starts a job on {node}, and Slurm chooses the GPU",
    ReasonCode.NEVER_TOGETHER: (
        "waits: it shares no GPU with {job:job #} until {until}, since {models} ran out of memory together at {when}"
    ),
    ReasonCode.NO_CPUS: "waits: no nodes have {cpus:CPU} and enough memory free for it",
    ReasonCode.BESIDE_GPUS: "waits: it lacks {what} beside {gpus:free GPU}",
    ReasonCode.ONE_TYPE: "waits for {gpus:GPU} of one type and cannot use several types: {why}",
    ReasonCode.NEVER_FITS: "asks for what the cluster does not have: {what}",
    ReasonCode.DEPENDENCY: "waits for its dependency: {dependency}",
    ReasonCode.DEPENDENCY_FAILED: "can never start, since its dependency failed: {dependency}",
    ReasonCode.BEGIN_TIME: "may not start before {when}",
    ReasonCode.USER_HOLD: "is held by its owner: 'scontrol release {job}' releases it",
    ReasonCode.ADMIN_HOLD: "is held by an administrator",
    ReasonCode.LAUNCH_FAILED: "is held by Slurm, which could not launch it: 'scontrol release {job}' lets it try again",
    ReasonCode.ARRAY_LIMIT: "waits: its array runs at most {limit:task} at a time",
    ReasonCode.PARTITION_DOWN: "waits: its partition {partition} is down",
    ReasonCode.MOVES_SPENT: "waits: other jobs would have to move, and this round's limit of {limit:move} is used up",
    ReasonCode.MOVES_SAVED: (
        "waits: more jobs would have to move than the {limit:move} of a round, so rounds save their moves for it"
    ),
    ReasonCode.FREED_SOON: "is placed on {nodes} and waits for {jobs:job #} to leave",
    ReasonCode.FREED_NOW: "starts on {nodes} next: Slurm still shows as used there what a job had that ended just now",
    ReasonCode.RESERVED: "waits: the nodes it could use are reserved ({reservation})",
    ReasonCode.NODES_CLOSED: "waits for nodes that start no jobs now: {nodes}",
    ReasonCode.RESERVED_FROM: "waits: {nodes} is free but reserved from {when} ({reservation}), before it would end",
    ReasonCode.PROMISED_START: (
        "will start at {when} at the latest on {nodes}: by then {jobs:job #} must have ended, and nothing may delay it"
    ),
    ReasonCode.EXPECTED_START: (
        "should start by {when} on {nodes}: {jobs:job #} should have left by then, and nothing may delay it"
    ),
    ReasonCode.OVERTAKEN: (
        "waits in Slurm's own queue, since {job:job #} came later, is not managed, and started before it{promise}"
    ),
    ReasonCode.NODES_DRAIN: (
        "starts on {nodes} once {jobs:job #} ended, nobody knows when: only jobs with a time limit start there now"
    ),
    ReasonCode.BEHIND_PROMISE: "waits: it could delay {job:job #}, which is promised its start on {nodes} by {when}",
    ReasonCode.BEHIND_DRAIN: (
        "waits: nobody knows when it ends, and {job:job #} waits for {nodes}; with a time limit it would start now"
    ),
    ReasonCode.LIMITS: "waits because of a limit of its account or QOS: {reason}",
    ReasonCode.LICENSES: "waits: the licenses that it asks for are in use",
    ReasonCode.STALLED: (
        "was not started by Slurm ({reason}): it is tried again when that has changed, at {when} at the latest"
    ),
    ReasonCode.REFUSED: "was refused by Slurm again and again ({reason}): it is left to Slurm as it was submitted",
    ReasonCode.LIKE_REFUSED: "waits: Slurm has just refused to start a job like it, so others are started before it",
    ReasonCode.REFUSED_ELSEWHERE: "stays as it is: Slurm did not start it otherwise ({reason})",
    ReasonCode.AWAITS_TURN: (
        "waits behind {count:job} on {node}: it is {ahead} ahead of the job furthest behind (its share: {due:GPU})"
    ),
    ReasonCode.SHARE_HELD: (
        "waits: once started it could not be preempted, and such jobs of {user} hold {held:GPU} of a share of {due:GPU}"
    ),
    ReasonCode.OUTBID: (
        "waits: it bids {bid} for a {kind} and these cost {price}, since shorter jobs and users behind their share come"
        " first; it has {has} to go, with {most} it would be next"
    ),
    ReasonCode.AWAITS_CHECKPOINT: "replaces {jobs:job #} once its checkpoint is written, by {when} at the latest",
    ReasonCode.SLICE_ENDED: (
        "has used its slice of {run} and is {ahead} ahead (its share: {due:GPU});"
        " {newcomer:job #} is next, {behind} ahead"
    ),
    ReasonCode.COPIES_SUFFICE: "waits: the running copies of {job:job #} finish its last {left:step} sooner",
    ReasonCode.STARTING: "is about to start on {nodes}",
    ReasonCode.GIVES_WAY: "is leaving for {newcomers:job #}",
    ReasonCode.CONTESTED: "leaves for nobody, since {jobs:job #}, left to Slurm, would take its GPUs",
    ReasonCode.ENDS_IN_ROUND: "{job:job #} ends in this round",
    ReasonCode.FULL_ROUND: "waits for the next full round, which divides the steps of {job:job #} among its copies",
    ReasonCode.MIN_RUN_TIME: "has run for {run}: a job is preempted after {minimum} at the earliest",
    ReasonCode.EXEMPT_TIME: "is within the site's PreemptExemptTime of {minimum}",
    ReasonCode.NO_REQUEUE: "was submitted with --no-requeue",
    ReasonCode.NOT_BATCH: "is not a batch job: requeueing would end it",
    ReasonCode.ASKED_TO_STAY: "must not be moved: its owner asked for move=no",
    ReasonCode.JOB_MOVES_SPENT: "has been moved {count:time} in 24 hours, which is the limit",
    ReasonCode.NO_CHECKPOINT: "has no checkpoint signal: submit it with ckpt=usr1, or the signal that makes it save",
    ReasonCode.ENDS_SOON: "ends in {left}, too soon for a restart to pay",
    ReasonCode.WRITES_CHECKPOINT: (
        "writes its checkpoint until {when} at the latest and then gives way to {newcomers:job #}"
    ),
    ReasonCode.UNMANAGED: "is not managed: {why}",
    ReasonCode.ENDED: "has ended: it is {state}",
    ReasonCode.SHARDS: "is not managed: it uses GPU shards, which Slurm places",
    ReasonCode.NO_GPU: "is not managed: it uses no GPU",
    ReasonCode.SET_ASIDE: "is set aside: {why}",
    ReasonCode.NEWCOMER_FIRST: "gives way to {newcomer:job #}: {why}",
    ReasonCode.IDLE_GPUS: (
        "gives way to {newcomer:job #}: {idle} of its {gpus:GPU} have been idle for {idle_for}, and its owner said"
        " idle=last"
    ),
    ReasonCode.PREPARE: "is told to write its checkpoint, {lead} before it is requeued",
    ReasonCode.START: "starts on {nodes} with {gpus:GPU}, {cpus:CPU}",
    ReasonCode.TAKE_OVER: "is held so that this scheduler starts it",
    ReasonCode.GIVE_BACK: "is given back to Slurm as it was submitted",
    ReasonCode.RANK: "is number {rank} in {order} order",
    ReasonCode.LEAN: "is weighted so that Slurm fills nodes in the same order",
    ReasonCode.NOT_STARTED: "did not start: it waits again with its previous request",
    ReasonCode.RETURNS: "returns to {nodes}: the job it gave way to did not start",
    ReasonCode.MENDED: "was left half changed by an interrupted round: its previous request is restored",
    ReasonCode.RENDER: "is rendered again from the settings",
}
"""The sentence for each code. `{gpus:GPU}` counts (`1 GPU`, `2 GPUs`), `{jobs:job #}` names (`job 5`, `jobs 5, 7`)."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and the details that its sentence needs: strings or numbers, JSON-safe. The detail `also` is what more
    there is to say, behind a semicolon."""

    code: ReasonCode
    details: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The sentence for people; a missing detail is shown as `?` rather than failing a round."""
        sentence, also = REASON_SENTENCES[self.code].format_map(_Details(self.details)), self.details.get("also")
        return f"{sentence}; {also}" if also else sentence


class _Details(dict[str, object]):
    """The details as `str.format_map` reads them."""

    def __getitem__(self, key: str) -> _Detail:
        return _Detail(self.get(key, "?"))


class _Detail:
    """One detail; the format specification is a noun in the singular, with ` #` where the value is its number."""

    __slots__ = ("_text",)

    def __init__(self, value: object) -> None:
        self._text = str(value)

    def __format__(self, noun: str) -> str:
        text = self._text
        if not noun:
            return text
        if noun.endswith(" #"):
            noun = noun.removesuffix(" #")
            # Some callers name the noun themselves, and a redacted number reads `another job`.
            return f"{noun}{'s' if ',' in text else ''} {text}" if text[:1].isdigit() else text
        return f"{text} {noun if text == '1' else noun + 's'}"


def shorter_limit(seconds: float) -> dict[str, str]:
    """The detail `also` for a job that would start now with a time limit of these seconds; none below a minute, since
    Slurm's time limits are whole minutes."""
    whole = 0.0 if isinf(seconds) else seconds // 60 * 60
    # What is told is rounded down, so that it is no longer than may be.
    return {"also": f"with a time limit of {format_duration(whole)} it would start now"} if whole > 0 else {}


_DURATION_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_WITH_SECONDS: Final = 600
"""Seconds below which minutes are told with their seconds."""

_MOST_UNITS: Final = 2
_MILLISECOND: Final = 0.001


def format_duration(seconds: float) -> str:
    """At most two units, rounded down: `45 s`, `1 min 30 s`, `12 min`, `3 h 20 min`, `2 d 4 h`; under a second in
    milliseconds; `unknown time` for infinity, `-` for NaN."""
    if isnan(seconds):
        return "-"
    if isinf(seconds):
        return "unknown time"
    if 0 < seconds < 1:
        return f"{int(seconds * 1000)} ms" if seconds >= _MILLISECOND else "under 1 ms"
    left, parts = int(max(seconds, 0)), list[str]()
    for size, unit in _DURATION_UNITS:
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount} {unit}")
        if parts and (amount == 0 or len(parts) == _MOST_UNITS or (unit == "min" and amount * size >= _WITH_SECONDS)):
            break
    return " ".join(parts) or "0 s"


def format_percent(fraction: float) -> str:
    """A fraction of 1 as `42 %`; `-` for one that is no number."""
    return f"{round(100 * fraction)} %" if isfinite(fraction) else "-"


def time_of_day(at: float, now: float) -> str:
    """Local time of day, with the date if it is not that of `now`. Both in unix seconds."""
    then = datetime.fromtimestamp(at)
    today = then.date() == datetime.fromtimestamp(now).date()
    return f"{then:%H:%M}" if today else f"{then:%Y-%m-%d %H:%M}"


_LITTLE: Final = 0.05
"""Hours that would be written as 0.0."""


def format_gpu_hours(gpu_seconds: float) -> str:
    """`1.5 GPU-hours`: always in hours, so that lines of a list compare at a glance; `0.004 GPU-hours` of little."""
    if not isfinite(gpu_seconds):
        return "unknown GPU-hours"
    hours = gpu_seconds / 3600
    return f"{hours:.1g} GPU-hours" if 0 < hours < _LITTLE else f"{hours:.1f} GPU-hours"


def pluralise(number: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
