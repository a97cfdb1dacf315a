"""Slurm's feature constraints (`sbatch --constraint`), as far as they can be decided node by node."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from slurmsched.policies.errors import PolicyError

__all__ = ["Constraint", "constraint"]

Constraint = Callable[[frozenset[str]], bool]
"""Whether a node with these features will do."""

_WORD: Final = re.compile(r"\s*([\w.+:-]+|[&,|()])")
_LONGEST: Final = 1000
_MOST_WORDS: Final = 200
"""Names, operators and brackets: each may nest what is read, and what is asked of every node, one level deeper."""


def constraint(text: str) -> Constraint:
    """`a&b`, `a|b`, `(a|b)&c`; a comma is an `&`. The empty text accepts every node.

    Raises PolicyError for what is no such expression, among them counts (`a*2`) and one-of-all groups (`[a|b]`).
    """
    words = _words(text)
    accepts = _either(words) if words else _anything
    if words:
        raise _unreadable(text)
    return accepts


def _words(text: str) -> list[str]:
    """The words in reverse, so that the next one is taken off the end."""
    words, at = list[str](), 0
    text = text.strip()
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None or len(text) > _LONGEST:
            raise _unreadable(text)
        words.append(match[1])
        at = match.end()
    if len(words) > _MOST_WORDS:
        raise _unreadable(text)
    return words[::-1]


def _either(words: list[str]) -> Constraint:
    left = _both(words)
    while words and words[-1] == "|":
        words.pop()
        left = _or(left, _both(words))
    return left


def _both(words: list[str]) -> Constraint:
    left = _single(words)
    while words and words[-1] in ("&", ","):
        words.pop()
        left = _and(left, _single(words))
    return left


def _single(words: list[str]) -> Constraint:
    word = words.pop() if words else ""
    if word == "(":
        inner = _either(words)
        if not words or words.pop() != ")":
            raise _unreadable("(")
        return inner
    if not word or word in "&,|)":
        raise _unreadable(word)
    return lambda features: word in features


def _or(left: Constraint, right: Constraint) -> Constraint:
    return lambda features: left(features) or right(features)


def _and(left: Constraint, right: Constraint) -> Constraint:
    return lambda features: left(features) and right(features)


def _anything(features: frozenset[str]) -> bool:  # noqa: ARG001 as every constraint is called
    return True


def _unreadable(text: str) -> PolicyError:
    return PolicyError(f"constraint {text!r} is not of the form a&b, a|b or (a|b)&c")
