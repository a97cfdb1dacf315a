"""The table of sbatch's options: what becomes of each one for a managed job, and why some jobs are left to Slurm.

The rows are data, in `sbatch_options.toml`; its head says what the fields mean. `docs/flags.md` is rendered from it.
`read_options` reads the options of a submission, those alone of which it is certain what they mean; `without_comment`
finds the comment of any submission.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Final

from slurmsched.backends.slurm.errors import UnforeseenSubmissionError
from slurmsched.backends.slurm.records import or_empty

RELEASES: Final = ("22.05", "24.11", "26.05")
"""The releases of Slurm whose options the table has."""


class Treatment(StrEnum):
    """What becomes of an option: see the head of the table. NONE has no bearing on scheduling."""

    KEEP = "keep"
    TRANSLATE = "translate"
    PLAN = "plan"
    LET_GO = "let go"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """A row of the table: an option, or a value of one, with its short form.

    `reason` is why a job with it is let go. Where squeue shows it, `column` names the column and `unset` what stands
    there without it, beside 0 and Slurm's words for no value. `hook` is the field of job_desc by which the submit hook
    sees it; `marked` if of some jobs only the hook does, and notes it in the comment.
    """

    names: tuple[str, ...]
    group: str
    treatment: Treatment
    says: str
    releases: tuple[str, ...] = RELEASES
    reason: str = ""
    column: str = ""
    unset: frozenset[str] = frozenset()
    hook: str = ""
    marked: bool = False

    @property
    def mark(self) -> str:
        """The option as the hook writes it into a comment: `spread-job`."""
        return self.names[0].lstrip("-").partition("=")[0]


@cache
def sbatch_options() -> tuple[SbatchOption, ...]:
    """Return all rows, in the order of the table."""
    text = (files(__package__) / "sbatch_options.toml").read_text(encoding="utf-8")
    return tuple(
        SbatchOption(
            names=tuple(row["names"]),
            group=row["group"],
            treatment=Treatment(row["we"]),
            says=row["says"],
            releases=tuple(row.get("releases", RELEASES)),
            reason=row.get("reason", ""),
            column=row.get("column", ""),
            unset=frozenset(row.get("unset", ())),
            hook=row.get("hook", ""),
            marked=row.get("marked", False),
        )
        for row in tomllib.loads(text)["option"]
    )


def options_by_group() -> dict[str, tuple[SbatchOption, ...]]:
    """Return the rows by group, in the order of the table."""
    return {group: tuple(rows) for group, rows in groupby(sbatch_options(), key=lambda option: option.group)}


def let_go_reason(name: str) -> str:
    """Return why a job with this option is let go. Raises KeyError if it is not."""
    return _reasons()[name]


def shown_let_go_reasons(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons of the let-go options that squeue shows in these fields, which are named as its columns."""
    for option in sbatch_options():
        value = or_empty(fields.get(option.column)) if option.column else ""
        if value and value not in ("0", *option.unset):
            yield option.reason


def marked_let_go_reason(mark: str) -> str:
    """Return the reason for the hook's mark in a comment; empty for a word that is none of the hook's marks."""
    return next((option.reason for option in sbatch_options() if option.marked and option.mark == mark), "")


@cache
def _reasons() -> dict[str, str]:
    return {name: option.reason for option in sbatch_options() if option.reason for name in option.names}


_READ: Final = {
    "account": "A", "comment": "", "constraint": "C", "cpus-per-gpu": "", "cpus-per-task": "c", "exclude": "x",
    "gpus": "G", "gpus-per-node": "", "gpus-per-task": "", "gres": "", "job-name": "J", "mem": "", "mem-per-cpu": "",
    "mem-per-gpu": "", "nodelist": "w", "nodes": "N", "ntasks": "n", "ntasks-per-node": "", "partition": "p",
    "qos": "q", "reservation": "", "time": "t", "wrap": "",
}  # fmt: skip
"""Options with a value that a forecast goes by, with their short forms."""

_IGNORED: Final = {
    "acctg-freq": "", "chdir": "D", "cpu-freq": "", "distribution": "m", "error": "e", "export": "", "export-file": "",
    "gpu-bind": "", "gpu-freq": "", "input": "i", "mail-type": "", "mail-user": "", "mem-bind": "", "open-mode": "",
    "output": "o", "profile": "", "signal": "", "tres-bind": "", "wckey": "",
}  # fmt: skip
"""Options with a value that have no bearing on when a job starts."""

_FLAGS: Final = {
    "exclusive": "", "no-requeue": "", "parsable": "", "quiet": "Q", "requeue": "", "test-only": "",
    "use-min-nodes": "", "verbose": "v", "wait": "W",
}  # fmt: skip
"""Options without a value."""

_LONG: Final = {short: name for names in (_READ, _IGNORED, _FLAGS) for name, short in names.items() if short}
_BY_VARIABLE: Final = {
    "SBATCH_TIMELIMIT": "time", "SBATCH_MEM_PER_NODE": "mem", "SBATCH_JOB_NAME": "job-name",
    **{f"SBATCH_{name.upper().replace('-', '_')}": name for name in (*_READ, *_IGNORED, "requeue")},
}  # fmt: skip
"""Variables of the environment that stand for options (sbatch(1), INPUT ENVIRONMENT VARIABLES)."""
_HARMLESS: Final = frozenset({"SBATCH_DEBUG", "SBATCH_NO_REQUEUE", "SBATCH_WAIT", "SBATCH_IGNORE_PBS"})

_DIRECTIVE: Final = "#SBATCH"
_OTHER_DIRECTIVES: Final = ("#PBS", "#BSUB")
_LONGEST_SCRIPT: Final = 4 << 20
"""Bytes: max_script_size of slurm.conf unless it says otherwise."""
_UNCERTAIN: Final = re.compile(r"[\\#]")


def read_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the options of `sbatch ARGUMENTS` by their long names without dashes; flags have an empty value.

    Those of the command line come before those of the environment, and these before those of the script. Raises
    UnforeseenSubmissionError for an option that a forecast cannot go by, and where it is not certain how sbatch reads
    them.
    """
    given, script = _parse_words(arguments)
    by_environment = dict[str, str]()
    for variable, value in environment.items():
        if variable.startswith("SBATCH_") and variable not in _HARMLESS:
            name = _BY_VARIABLE.get(variable)
            if name is None:
                raise UnforeseenSubmissionError(f"the variable {variable} is set, which is not understood")
            by_environment[name] = value
    in_script = dict[str, str]() if "wrap" in given else _script_options(script)
    return {**in_script, **by_environment, **given}


_ALONE: Final = frozenset(_FLAGS) | {
    "contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "nice", "no-kill", "overcommit",
    "oversubscribe", "propagate", "reboot", "resv-ports", "spread-job", "stepmgr", "usage", "version",
}  # fmt: skip
"""Options that take no value from the next word."""
_ALONE_SHORT: Final = frozenset("QvWHhkOsV")


def without_comment(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Returns the arguments of `sbatch ARGUMENTS` without their --comment, and the comment that the job would get: of
    the command line, of the environment, or of the script, empty without any.

    Other options need not be known: those that are not are taken to have a value.
    """
    kept, comment, rest = list[str](), None, list(arguments)
    wrapped = False
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, separator, value = word.lstrip("-").partition("=")
        long = word.startswith("--")
        follows = not separator and name not in _ALONE if long else len(name) == 1 and name not in _ALONE_SHORT
        following = [rest.pop(0)] if follows and rest else []
        if long and name == "comment":
            comment = value if separator else "".join(following)
        else:
            kept += [word, *following]
        wrapped = wrapped or (long and name == "wrap")
    if comment is None:
        comment = environment.get("SBATCH_COMMENT")
    if comment is None and not wrapped:
        comment = _script_comment(next((word for word in rest if word != "--"), ""))
    return (*kept, *rest), comment or ""


def _script_comment(script: str) -> str:
    """The last --comment of the script's `#SBATCH` lines; empty without one, or where the script cannot be read."""
    comment = ""
    try:
        with Path(script).open("rb") as file:
            text = file.read(_LONGEST_SCRIPT).decode(errors="replace") if Path(script).is_file() else ""
    except (OSError, ValueError):
        return ""
    for line in _head(text.splitlines()):
        if line.startswith(_DIRECTIVE):
            try:
                words = shlex.split(line.removeprefix(_DIRECTIVE))
            except ValueError:  # an open quote: what stands in front of it may be read
                words = line.removeprefix(_DIRECTIVE).split()
            for word, following in zip(words, [*words[1:], ""], strict=True):
                if word.startswith("#"):
                    break
                if word == "--comment":
                    comment = following
                elif word.startswith("--comment="):
                    comment = word.partition("=")[2]
    return comment


def _parse_words(words: Sequence[str]) -> tuple[dict[str, str], str]:
    """Returns the options in front of the first word that is none, and that word; empty without one."""
    options, rest = dict[str, str](), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-") or word == "-":
            return options, next(iter(rest), "") if word == "--" else word
        for name, value in _parse_option(word, rest):
            options[name] = value
    return options, ""


def _parse_option(word: str, rest: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the options in one word; the value of the last may be the first of the `rest`, which is then removed."""
    if word.startswith("--"):
        name, separator, value = word[2:].partition("=")
        if name in _FLAGS:
            if separator:
                raise _not_understood(word)
            yield name, ""
        elif name in _READ or name in _IGNORED:
            yield name, value if separator else _next_value(word, rest)
        else:
            raise _not_understood(f"--{name}")
        return
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _LONG.get(letter, "")
        if not name:
            raise _not_understood(f"-{letter}")
        if name not in _FLAGS:
            yield name, letters or _next_value(f"-{letter}", rest)
            return
        yield name, ""


def _next_value(option: str, rest: list[str]) -> str:
    if not rest:
        raise UnforeseenSubmissionError(f"{option} has no value")
    return rest.pop(0)


def _not_understood(option: str) -> UnforeseenSubmissionError:
    """The error for an option that no forecast goes by, with the reason of one that is let go."""
    row = next((row for row in sbatch_options() if option.partition("=")[0] in row.names), None)
    why = row.reason if row is not None and row.reason else f"no forecast goes by the option {option[:40]}"
    return UnforeseenSubmissionError(why)


def _script_options(script: str) -> dict[str, str]:
    """Returns the options of the `#SBATCH` lines in front of the first command of the script."""
    options, path = dict[str, str](), Path(script)
    if not script or not path.is_file():
        raise UnforeseenSubmissionError("its script is no file that can be read: name it by its path")
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_SCRIPT).decode(errors="replace")
    except OSError as error:
        raise UnforeseenSubmissionError(f"its script cannot be read: {error.strerror}") from error
    for line in _head(text.splitlines()):
        if line.startswith(_OTHER_DIRECTIVES):
            raise UnforeseenSubmissionError(f"its script has {line.split()[0][:12]} lines, which sbatch reads too")
        if line.startswith(_DIRECTIVE):
            for name, value in _parse_directive(line.removeprefix(_DIRECTIVE)):
                options[name] = value
    return options


def _head(lines: Iterable[str]) -> Iterator[str]:
    """Yield the comments in front of the first line that is neither a comment nor blank."""
    for line in lines:
        if line.strip() and not line.startswith("#"):
            return
        yield line


def _parse_directive(text: str) -> Iterator[tuple[str, str]]:
    code, sign, _ = text.partition(" #")
    if _UNCERTAIN.search(code) or (sign and ("'" in text or '"' in text)):
        raise UnforeseenSubmissionError(
            "a #SBATCH line of its script has a # or a \\ in it, which sbatch may read otherwise"
        )
    try:
        words = shlex.split(code)
    except ValueError:
        raise UnforeseenSubmissionError("a #SBATCH line of its script has an open quote") from None
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            raise UnforeseenSubmissionError("a #SBATCH line of its script has a word that is no option")
        yield from _parse_option(word, words)
