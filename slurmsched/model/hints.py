"""Parses and renders the hints that a user may write into a job's `--comment`.

    sbatch --comment="synsched:model=resnet50,ckpt=usr1@60 my own words" job.sh

The grammar is `synsched:KEY=VALUE[,KEY=VALUE]...`, in at most `MAX_HINT_LENGTH` characters, in upper or lower case;
only the first `synsched:` word of a comment counts. The text is untrusted: a hint that does not parse is ignored and
reported in `Hints.problems`, and so is one behind a blank, which is not part of the word.
`hooks/job_submit.lua` implements the same grammar; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Final

HINT_PREFIX: Final = "synsched:"
MAX_HINT_LENGTH: Final = 256
_MAX_SHOWN: Final = 24
MARKS: Final = ("held", "left")
"""Keys that only the hook writes; it puts a comma between a bare `synsched:` of the owner and its mark."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,63}\Z")
_STEPS = re.compile(r"[1-9][0-9]{0,11}\Z")
_GPU_MEMORY = re.compile(r"([1-9][0-9]{0,6})([mg])\Z")
_TIME = re.compile(r"([0-9]{1,7})([smhd]?)\Z")
_SLURM_TIME = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,7})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?\Z")
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class CheckpointSignal(StrEnum):
    """The signal that makes a job write its checkpoint; NONE for a job that cannot."""

    NONE = "none"
    USR1 = "usr1"
    USR2 = "usr2"
    TERM = "term"
    INT = "int"
    HUP = "hup"


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints of one job. Times are in seconds; None means not given."""

    given: bool = False
    """Whether the comment has a `synsched:` word at all."""
    model: str | None = None
    task: str | None = None
    checkpoint: CheckpointSignal | None = None
    lead: int | None = None
    """Seconds that the job needs between the checkpoint signal and the requeue."""
    duration: int | None = None
    """Expected run time in seconds at the GPU-proportional share."""
    move: bool | None = None
    pack: bool | None = None
    """Whether it may share its GPUs with one other job; None leaves it to what the job asks for."""
    gpu_memory: int | None = None
    """`gpumem=12g`: the most MiB that it uses of the memory of one GPU."""
    memory_tunable: bool = False
    """`mem=tune`: the requested memory serves as a cache and may be reduced."""
    cpus_tunable: bool | None = None
    """`cpus=tune`: fewer CPUs than requested will do where measurements say so; `cpus=keep`: neither fewer nor more."""
    cpus_probed: bool = False
    """`cpus=probe`: of jobs of the same work one at a time may have another number of CPUs, so that it is measured."""
    fork: int | None = None
    """Total steps of the forked job (HadarE) whose copies are the tasks of this array; each does a part of them."""
    idle_last: bool = False
    """`idle=last`: while GPUs of it are idle for long, others may preempt it first."""
    held_by_hook: bool = False
    """`held=hook`: the job_submit hook holds the job until a round starts it; its owner does not."""
    left: str | None = None
    """`left=OPTION`: the job_submit hook leaves the job to Slurm for this option, which squeue does not show."""
    problems: tuple[str, ...] = ()
    marks_only: bool = False
    """Whether the word has nothing but marks of the hook (`held=hook`): its owner wrote none."""

    @property
    def opts_in(self) -> bool:
        """Whether the job's owner asks for it to be managed, if only with a bare `synsched:`."""
        return self.given and not self.marks_only

    @property
    def checkpoint_signal(self) -> CheckpointSignal | None:
        """The signal that makes the job write a checkpoint; None if it writes none, said (`ckpt=none`) or unsaid."""
        return None if self.checkpoint is CheckpointSignal.NONE else self.checkpoint


NO_HINTS: Final = Hints()


def parse_duration(text: str) -> int | None:
    """Returns `90`, `90s`, `5m`, `2h` or `1d` in seconds; None for any other text."""
    match = _TIME.match(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def _parse_time(text: str) -> int | None:
    """Returns a time as of `parse_duration`, or as sbatch's --time has it with a colon or days (`2:00:00`, `1-12`)."""
    match = _SLURM_TIME.match(text)
    if match is None or not ("-" in text or ":" in text):
        return parse_duration(text)
    days, first, second, third = match.groups()
    # [days-]hours:minutes:seconds, days-hours[:minutes], minutes:seconds
    hours, minutes, seconds = ("0", first, second) if days is None and third is None else (first, second, third)
    return ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)


def lower(text: str) -> str:
    """The text with the letters A to Z in lower case, as hints are read."""
    return text.translate(_LOWER)


def is_hint_word(word: str) -> bool:
    """Whether the word of a comment is one with hints."""
    return lower(word[: len(HINT_PREFIX)]) == HINT_PREFIX


@lru_cache(maxsize=4096)
def parse_hints(comment: str) -> Hints:
    """Returns the hints in a job's comment. Never raises: each mistake is one short sentence in `problems`."""
    words = comment.split()
    at = next((at for at, word in enumerate(words) if is_hint_word(word)), None)
    if at is None:
        return NO_HINTS
    word = words[at]
    if len(word) > MAX_HINT_LENGTH:
        return Hints(given=True, problems=(f"hint longer than {MAX_HINT_LENGTH} characters: ignored",))
    items = word[len(HINT_PREFIX) :].split(",")
    marks_only = all(lower(item.partition("=")[0]) in MARKS for item in items)
    hints, seen, problems = Hints(given=True, marks_only=marks_only), set[str](), list[str]()
    for item in items:
        given, separator, value = item.partition("=")
        key = lower(given)
        if not item:
            continue
        if key not in HINT_KEYS:
            problems.append(f"unknown hint {_printable(given)}: known are {', '.join(HINT_KEYS)}")
        elif not separator or not value:
            problems.append(f"hint {key} has no value: write {key}={HINT_KEYS[key].expected}")
        elif key in seen:
            problems.append(f"hint {key} given twice: the first counts")
        else:
            seen.add(key)
            changed = HINT_KEYS[key].parse(hints, lower(value))
            if changed is None:
                problems.append(f"hint {key}={_printable(value)}: expected {HINT_KEYS[key].expected}")
            else:
                hints = changed
    if (behind := next(iter(words[at + 1 :]), "")) and _looks_like_hint(behind):
        problems.append(f"hint {_printable(behind)} stands behind a blank: write commas between hints, and no blanks")
    return replace(hints, problems=tuple(problems))


def _looks_like_hint(word: str) -> bool:
    key, separator, _ = word.lstrip(",").partition("=")
    return bool(separator) and lower(key) in HINT_KEYS and lower(key) not in MARKS


def render_hints(hints: Hints) -> str:
    """Returns the comment word that parses to these hints; empty if none were given."""
    if not hints.given:
        return ""
    ckpt = hints.checkpoint and f"{hints.checkpoint}" + ("" if hints.lead is None else f"@{hints.lead}")
    values = {
        "model": hints.model,
        "task": hints.task,
        "ckpt": ckpt,
        "duration": None if hints.duration is None else str(hints.duration),
        "move": None if hints.move is None else ("yes" if hints.move else "no"),
        "pack": None if hints.pack is None else ("yes" if hints.pack else "no"),
        "gpumem": None if hints.gpu_memory is None else f"{hints.gpu_memory}m",
        "mem": "tune" if hints.memory_tunable else None,
        "cpus": {None: "probe" if hints.cpus_probed else None, True: "tune", False: "keep"}[hints.cpus_tunable],
        "fork": None if hints.fork is None else str(hints.fork),
        "idle": "last" if hints.idle_last else None,
        "held": "hook" if hints.held_by_hook else None,
        "left": hints.left,
    }
    items = [f"{key}={value}" for key, value in values.items() if value is not None]
    bare = bool(items) and not hints.marks_only and all(item.partition("=")[0] in MARKS for item in items)
    return HINT_PREFIX + ",".join(["", *items] if bare else items)


def _printable(text: str) -> str:
    """Returns untrusted text shortened and safe to print on one line."""
    clean = "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:_MAX_SHOWN])
    return f"'{clean}'" + ("..." if len(text) > _MAX_SHOWN else "")


@dataclass(frozen=True, slots=True)
class HintKey:
    """A hint: the form of its value for messages, what it means with an example for the reference, and its parser.

    Text between backticks in `meaning` is literal. The parser returns None for a value that is wrong.
    """

    expected: str
    meaning: str
    example: str
    parse: Callable[[Hints, str], Hints | None]


def _parse_model(hints: Hints, value: str) -> Hints | None:
    return replace(hints, model=value) if _NAME.match(value) else None


def _parse_task(hints: Hints, value: str) -> Hints | None:
    return replace(hints, task=value) if _NAME.match(value) else None


def _parse_checkpoint(hints: Hints, value: str) -> Hints | None:
    name, at, lead_text = value.partition("@")
    name = name.removeprefix("sig")
    lead = _parse_time(lead_text) if at else None
    if name not in CheckpointSignal.__members__.values() or (at and lead is None):
        return None
    return replace(hints, checkpoint=CheckpointSignal(name), lead=lead)


def _parse_expected_duration(hints: Hints, value: str) -> Hints | None:
    duration = _parse_time(value)
    return replace(hints, duration=duration) if duration else None


def _parse_move(hints: Hints, value: str) -> Hints | None:
    return replace(hints, move=value == "yes") if value in ("yes", "no") else None


def _parse_pack(hints: Hints, value: str) -> Hints | None:
    return replace(hints, pack=value == "yes") if value in ("yes", "no") else None


def _parse_gpu_memory(hints: Hints, value: str) -> Hints | None:
    amount = _GPU_MEMORY.match(value)
    return amount and replace(hints, gpu_memory=int(amount[1]) * (1024 if amount[2] == "g" else 1))


def _parse_memory(hints: Hints, value: str) -> Hints | None:
    return replace(hints, memory_tunable=value == "tune") if value in ("tune", "keep") else None


def _parse_cpus(hints: Hints, value: str) -> Hints | None:
    if value == "probe":
        return replace(hints, cpus_probed=True)
    return replace(hints, cpus_tunable=value == "tune") if value in ("tune", "keep") else None


def _parse_fork(hints: Hints, value: str) -> Hints | None:
    return replace(hints, fork=int(value)) if _STEPS.match(value) else None


def _parse_idle(hints: Hints, value: str) -> Hints | None:
    return replace(hints, idle_last=True) if value == "last" else None


def _parse_held(hints: Hints, value: str) -> Hints | None:
    return replace(hints, held_by_hook=True) if value == "hook" else None


def _parse_left(hints: Hints, value: str) -> Hints | None:
    return replace(hints, left=value) if _NAME.match(value) else None


HINT_KEYS: Final[dict[str, HintKey]] = {
    "model": HintKey(
        "a name such as resnet50", "the model, by which its speed is known", "model=resnet50", _parse_model
    ),
    "task": HintKey(
        "image, language, speech or another profiled task",
        "its kind (`image`, `language`, `speech`), for a model that nobody profiled",
        "task=image",
        _parse_task,
    ),
    "ckpt": HintKey(
        "usr1, usr2, term, int, hup or none, with @TIME for its lead, as usr1@60",
        "the signal that makes it write a checkpoint (`usr1`, `usr2`, `term`, `int`, `hup`, or `none`), and the time it"
        " needs",
        "ckpt=usr1@60",
        _parse_checkpoint,
    ),
    "duration": HintKey(
        "a time such as 90m, 2h or 2:00:00", "how long it runs, about", "duration=6h", _parse_expected_duration
    ),
    "move": HintKey("yes or no", "`no` keeps it where it is once it runs", "move=no", _parse_move),
    "pack": HintKey(
        "yes or no",
        "`no` keeps its GPUs to itself, `yes` lets one other job of as many GPUs use them too; on Slurm that takes half"
        " a GPU's shards, which say `yes` by themselves",
        "pack=no",
        _parse_pack,
    ),
    "gpumem": HintKey(
        "the memory that it uses of a GPU, as 12g or 9000m",
        "the most memory that it uses of one GPU: two jobs that need more together than a GPU of that type has never"
        " share one",
        "gpumem=12g",
        _parse_gpu_memory,
    ),
    "mem": HintKey(
        "tune or keep",
        "`tune`: the memory asked for is a cache and may shrink; `keep` (the default): it is a need",
        "mem=tune",
        _parse_memory,
    ),
    "cpus": HintKey(
        "tune, keep or probe",
        "`tune`: fewer CPUs than asked for will do, where its speed was measured; `keep`: exactly what was asked for."
        " Without it a job has fewer only where earlier runs left them idle, or where it has `ckpt` and earlier runs of"
        " the same work are known; and it may have more. `probe`: as without it, and while nothing is known of the same"
        " work, one of its tasks at a time is started with more CPUs than the others, or with fewer, though never fewer"
        " than asked for, to measure what that changes",
        "cpus=tune",
        _parse_cpus,
    ),
    "fork": HintKey(
        "the steps of the whole job, as 50000",
        "the tasks of this array are copies of one job that has so many steps",
        "fork=50000",
        _parse_fork,
    ),
    "idle": HintKey(
        "last",
        "`last`: while a GPU of it is idle for long, others may preempt it first, where the site looks at that",
        "idle=last",
        _parse_idle,
    ),
    "held": HintKey("hook", "the hook holds the job until a round starts it", "held=hook", _parse_held),
    "left": HintKey(
        "an option of sbatch",
        "the job is left to plain Slurm for this option, which squeue does not show",
        "left=batch",
        _parse_left,
    ),
}
