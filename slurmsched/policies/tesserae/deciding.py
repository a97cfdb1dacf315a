"""One round of Tesserae: order, place, pack, rename (section 3.2, algorithm 1), on nodes of one GPU type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from slurmsched.policies.pools import Ints, Mask
from slurmsched.policies.tesserae.layout import NOBODY, Layout, together
from slurmsched.policies.tesserae.migration import moved, renamed
from slurmsched.policies.tesserae.packing import Packable, Weights, pack
from slurmsched.policies.tesserae.seating import Seat, Seating, keeping_homes

__all__ = ["Decided", "Question", "Reading", "decide"]


@dataclass(frozen=True, slots=True)
class Question:
    """Jobs by number: GPUs, kind and whether each may share them. `order` has the active ones, who comes first first.
    `sizes` are the GPUs of each node, `before` is the last round."""

    order: Sequence[int]
    gpus: Ints
    kind: Ints
    willing: Mask
    sizes: Ints
    before: Layout


@dataclass(frozen=True, slots=True)
class Reading:
    """What parts of it are used. `widest` is the width up to which jobs are packed, 0 for none. Pairs that last keep
    each other where neither gets GPUs to itself; without that every round is packed anew."""

    seating: Seating = keeping_homes
    widest: float = inf
    lasting: bool = True
    renaming: bool = True


@dataclass(frozen=True, slots=True)
class Decided:
    """`pairs` are the job that was placed and the one that shares its GPUs; `moved` run on other GPUs than before."""

    layout: Layout
    pairs: tuple[tuple[int, int], ...]
    moved: frozenset[int]


def decide(
    question: Question, weights: Weights, reading: Reading, done: Callable[[str], None] = lambda _stage: None
) -> Decided:
    """Who runs in the coming round, where and beside whom. `done` is told the name of each stage behind it."""
    seats = reading.seating(question.order, question.gpus, question.sizes, _homes(question.before))
    done("place")
    pairs = _packed(question, seats, weights, reading)
    done("pack")
    layout = _layout(seats, dict(pairs))
    if reading.renaming:
        found = renamed(question.before, layout, question.sizes)
        layout, changed = layout.renamed(found.names), found.moved
    else:
        changed = moved(question.before, layout)
    done("rename")
    return Decided(layout, pairs, changed)


def _homes(before: Layout) -> Mapping[int, list[Seat]]:
    homes: dict[int, dict[int, int]] = {}
    jobs, gpus, row = before.entries()
    for job, count, node in zip(jobs.tolist(), gpus.tolist(), before.node[row].tolist(), strict=True):
        seats = homes.setdefault(job, {})
        seats[node] = seats.get(node, 0) + count
    return {job: list(seats.items()) for job, seats in homes.items()}


def _packed(
    question: Question, seats: Mapping[int, Sequence[Seat]], weights: Weights, reading: Reading
) -> tuple[tuple[int, int], ...]:
    if not reading.widest:
        return ()
    able = question.willing & (question.gpus <= reading.widest)
    placed = [job for job in seats if able[job]]
    pending = [job for job in question.order if job not in seats and able[job]]
    kept = _lasting(question, set(placed), set(pending), weights) if reading.lasting else {}
    guests = set(kept.values())
    placed, pending = [job for job in placed if job not in kept], [job for job in pending if job not in guests]
    found = pack(_packable(question, placed), _packable(question, pending), weights)
    return (*kept.items(), *((placed[host], pending[guest]) for host, guest in found))


def _packable(question: Question, jobs: Sequence[int]) -> list[Packable]:
    return [Packable(int(question.gpus[job]), int(question.kind[job])) for job in jobs]


def _lasting(question: Question, placed: set[int], pending: set[int], weights: Weights) -> dict[int, int]:
    """Pairs of the last round of which one is placed and the other pending now."""
    last = question.before.jobs[question.before.jobs[:, 1] != NOBODY].tolist()
    both = [(a, b) if a in placed else (b, a) for a, b in last]
    return {
        host: guest
        for host, guest in both
        if host in placed and guest in pending and weights[question.kind[host], question.kind[guest]] > 0
    }


def _layout(seats: Mapping[int, Sequence[Seat]], guest_of: Mapping[int, int]) -> Layout:
    rows = [(node, gpus, job, guest_of.get(job, NOBODY)) for job, places in seats.items() for node, gpus in places]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    jobs = table[:, 2:]
    ascending = np.where((jobs[:, 1:] != NOBODY) & (jobs[:, :1] > jobs[:, 1:]), jobs[:, ::-1], jobs)
    return together(table[:, 0], table[:, 1], ascending)
