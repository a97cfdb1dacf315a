"""Which waiting job shares the GPUs of which running one (Tesserae, section 4.2, algorithm 4).

Placed jobs are on one side of a graph, pending ones on the other. An edge joins two that ask for as many GPUs, that fit
into the memory of a GPU together and that both allow it; its weight is what the two together do of what each does
alone. A matching has at most one edge at each job, so never more than two jobs are on a GPU.

Jobs of one kind have the same edges. So it is enough to say how many of each kind are packed with how many of each
other: a transport problem over kinds whose size does not grow with the queue. Where most jobs are of a kind of their
own, the matching of single jobs is smaller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csr_matrix

from slurmsched.policies.errors import PolicyError
from slurmsched.policies.pools import Ints
from slurmsched.policies.tesserae.layout import Floats

__all__ = ["Packable", "Weights", "pack", "pack_each", "pack_kinds"]


@dataclass(frozen=True, slots=True)
class Packable:
    """A job as packing sees it. `kind` is its row in the weights; one that is not `willing` has no edges: its owner
    said no, or it is urgent."""

    gpus: int
    kind: int
    willing: bool = True


Weights = Floats
"""Combined normalised throughput of a placed kind (row) with a pending kind (column); 0 where there is no edge."""


def pack(placed: Sequence[Packable], pending: Sequence[Packable], weights: Weights) -> tuple[tuple[int, int], ...]:
    """Pairs of places, one in each sequence, whose weights add up to the most there is. Of pending jobs that are alike
    the first ones are packed, with the first placed ones. Raises PolicyError."""
    pairs: list[tuple[int, int]] = []
    for hosts, guests in _of_one_width(placed, pending):
        host_kinds = np.array([placed[place].kind for place in hosts])
        guest_kinds = np.array([pending[place].kind for place in guests])
        kinds = len(np.unique(host_kinds)) * len(np.unique(guest_kinds))
        way = pack_kinds if kinds * _WORTH_IT < len(hosts) * len(guests) else pack_each
        pairs += [(hosts[host], guests[guest]) for host, guest in way(host_kinds, guest_kinds, weights)]
    return tuple(sorted(pairs))


_WORTH_IT = 1000
"""A linear program costs as much as a matching with so many times its entries."""


def _of_one_width(
    placed: Sequence[Packable], pending: Sequence[Packable]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Places of the willing jobs that ask for as many GPUs, where there are some on both sides."""
    sides: list[defaultdict[int, list[int]]] = []
    for jobs in (placed, pending):
        by_width = defaultdict[int, list[int]](list)
        for place, job in enumerate(jobs):
            if job.willing:
                by_width[job.gpus].append(place)
        sides.append(by_width)
    for width in sorted(sides[0].keys() & sides[1].keys()):
        yield sides[0][width], sides[1][width]


def pack_each(hosts: Ints, guests: Ints, weights: Weights) -> list[tuple[int, int]]:
    """The matching of single jobs, given the kind of each."""
    each = weights[np.ix_(hosts, guests)]
    rows, columns = linear_sum_assignment(each, maximize=True)
    edges = each[rows, columns] > 0
    return list(zip(rows[edges].tolist(), columns[edges].tolist(), strict=True))


def pack_kinds(hosts: Ints, guests: Ints, weights: Weights) -> list[tuple[int, int]]:
    """The same by counts of kinds. Raises PolicyError where the program has no answer."""
    from_host, hosts_of = np.unique(hosts, return_inverse=True)
    from_guest, guests_of = np.unique(guests, return_inverse=True)
    table = weights[np.ix_(from_host, from_guest)]
    row, column = np.nonzero(table > 0)
    if not len(row):
        return []
    edges = np.arange(len(row))
    at_most = csr_matrix(
        (
            np.ones(2 * len(edges)),
            (np.concatenate((row, column + len(from_host))), np.concatenate((edges, edges))),
        ),
        shape=(len(from_host) + len(from_guest), len(edges)),
    )
    there_are = np.concatenate((np.bincount(hosts_of), np.bincount(guests_of)))
    answer = milp(
        -table[row, column],
        integrality=np.ones(len(edges), dtype=np.int64),
        constraints=LinearConstraint(at_most, -np.inf, there_are),
    )
    if answer.x is None:
        raise PolicyError(f"no packing was found: {answer.message}")
    return _handed_out(hosts_of, guests_of, row, column, np.rint(answer.x).astype(np.int64))


def _handed_out(hosts_of: Ints, guests_of: Ints, row: Ints, column: Ints, counts: Ints) -> list[tuple[int, int]]:
    """Pairs of single jobs from counts of pairs of kinds."""
    free_hosts, free_guests = _by_kind(hosts_of), _by_kind(guests_of)
    return [
        (next(free_hosts[host]), next(free_guests[guest]))
        for host, guest, count in zip(row.tolist(), column.tolist(), counts.tolist(), strict=True)
        for _ in range(count)
    ]


def _by_kind(kinds: Ints) -> list[Iterator[int]]:
    order = np.argsort(kinds, kind="stable")
    return [iter(group.tolist()) for group in np.split(order, np.cumsum(np.bincount(kinds))[:-1])]
