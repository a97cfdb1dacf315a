"""Expands and folds Slurm's hostlists, such as `v100-[1-2,5],k80-1`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from typing import Final

from slurmsched.backends.slurm.errors import SlurmParseError

MAX_NAMES: Final = 100_000
"""The most names that a hostlist may expand to; a longer one is a mistake or an attack."""
_MAX_CHARACTERS: Final = 1_048_576
"""The longest accepted hostlist: 100,000 names of ten characters."""

_MAX_BRACKETS: Final = 8
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\Z")
_LAST_NUMBER = re.compile(r"(.*?)(\d{1,9})(\D*)\Z", re.DOTALL)


def expand_hostlist(text: str, max_names: int = MAX_NAMES) -> tuple[str, ...]:
    """The names in order; none for an empty list, `(null)` or `None`.

    Raises SlurmParseError, also for more than `max_names` names.
    """
    if text in ("", "(null)", "None"):
        return ()
    if len(text) > _MAX_CHARACTERS:
        raise SlurmParseError(f"a hostlist of {len(text)} characters")
    names: list[str] = []
    for part in _split_outside_brackets(text):
        names += _expand_part(part, max_names - len(names))
    return tuple(names)


def expand_numbers(text: str) -> tuple[int, ...]:
    """`0-3,12,20-30:5` as numbers; none for `N/A`. Raises SlurmParseError, also for more than `MAX_NAMES`."""
    expanded = tuple(islice(chain.from_iterable(parse_ranges(text)), MAX_NAMES + 1))
    if len(expanded) > MAX_NAMES:
        raise SlurmParseError(f"more than {MAX_NAMES} numbers: {text[:60]!r}")
    return expanded


def parse_ranges(text: str) -> Iterator[range]:
    """`0-3,12` as ranges of any length. Raises SlurmParseError."""
    if text not in ("", "N/A", "(null)"):
        for piece in text.split(","):
            yield _parse_range(piece)[0]


def fold_hostlist(names: Iterable[str]) -> str:
    """Folds names into a hostlist: sorted, without duplicates, the last number of each name in ranges."""
    groups: dict[tuple[str, int, str], set[int]] = {}
    plain: set[str] = set()
    split = {name: _LAST_NUMBER.match(name) for name in names}
    padded = {(m[1], len(m[2]), m[3]) for m in split.values() if m and _is_padded(m[2])}
    for name, match in split.items():
        if match is None:
            plain.add(name)
            continue
        prefix, digits, suffix = match.groups()
        width = len(digits) if (prefix, len(digits), suffix) in padded else 0
        groups.setdefault((prefix, width, suffix), set()).add(int(digits))
    folded = [_fold_numbers(*key, sorted(numbers)) for key, numbers in groups.items()]
    return ",".join(sorted(folded + list(plain)))


def _is_padded(digits: str) -> bool:
    return len(digits) > 1 and digits.startswith("0")


def _fold_numbers(prefix: str, width: int, suffix: str, values: list[int]) -> str:
    runs = []
    for _, run in groupby(enumerate(values), lambda item: item[1] - item[0]):
        members = [number for _, number in run]
        ends = [members[0]] if len(members) == 1 else [members[0], members[-1]]
        runs.append("-".join(f"{end:0{width}d}" for end in ends))
    inner = ",".join(runs)
    return f"{prefix}{inner}{suffix}" if len(values) == 1 else f"{prefix}[{inner}]{suffix}"


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth = start = 0
    for index, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise SlurmParseError(f"brackets do not match in the hostlist {text[:60]!r}")
        if character == "," and depth == 0:
            yield _check_brackets(text[start:index])
            start = index + 1
    if depth:
        raise SlurmParseError(f"brackets do not match in the hostlist {text[:60]!r}")
    yield _check_brackets(text[start:])


def _check_brackets(part: str) -> str:
    if part.count("[") > _MAX_BRACKETS:
        raise SlurmParseError(f"more than {_MAX_BRACKETS} brackets in the hostlist {part[:60]!r}")
    return part


def _expand_part(part: str, max_names: int) -> list[str]:
    match = _BRACKETS.search(part)
    if match is None:
        if not part or max_names < 1:
            raise SlurmParseError(f"an empty name, or too many, in a hostlist near {part[:60]!r}")
        return [part]
    middles: list[str] = []
    for piece in match[1].split(","):
        middles += _expand_range(piece, max_names - len(middles))
    ends = _expand_part(part[match.end() :], max_names) if match.end() < len(part) else [""]
    if len(middles) * len(ends) > max_names:
        raise SlurmParseError(f"the hostlist {part[:60]!r} expands to more than {MAX_NAMES} names")
    return [part[: match.start()] + middle + end for middle in middles for end in ends]


def _expand_range(piece: str, max_names: int) -> list[str]:
    values, width = _parse_range(piece)
    if len(values) > max_names:
        raise SlurmParseError(f"a hostlist with {piece[:60]!r} expands to more than {MAX_NAMES} names")
    return [f"{number:0{width}d}" for number in values]


def _parse_range(piece: str) -> tuple[range, int]:
    """The numbers, and the digits they are padded to; 0 for no padding."""
    match = _RANGE.match(piece)
    if match is None:
        raise SlurmParseError(f"not a number or a range: {piece[:60]!r}")
    first, last, step = match[1], match[2] or match[1], int(match[3] or 1)
    if int(last) < int(first) or step < 1:
        raise SlurmParseError(f"an empty range: {piece[:60]!r}")
    return range(int(first), int(last) + 1, step), len(first) if _is_padded(first) else 0
