"""What every job was promised and what it has had since: the priorities of Gavel's rounds (section 5).

Who runs in the coming round, and where: Gavel's greedy pass over priorities (section 5).

Which workers those that run have: their own again where they can (Gavel, section 5: lease extension).

The books between two rounds of a live cluster, JSON-safe.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from cattrs import BaseValidationError, Converter
from numpy.typing import NDArray

from slurmsched.model import JobId
from slurmsched.policies.gavel.problem import Floats, Ints, Mask

JobCombination = tuple[str, ...]
"""A job, or two that share GPUs, by id."""

RESET_INTERVAL: Final = 1920.0
"""Seconds that shares hold at least, though jobs come and end: Gavel's `minimum_time_between_allocation_resets`."""

_UNSERVED_FACTOR: Final = 1e9
"""Times its share: the priority of who has had nothing at all."""


@dataclass(slots=True)
class AllocationLedger:
    """By entry and GPU type, since shares were last computed: parts of time promised (`share`, NaN for who came later),
    seconds had (`received`), and from before that, seconds promised and not had (`deficit`).

    `total` are the seconds that all entries have had, also those that left since. `credit` seconds are counted as had
    by everybody from the start, so that nothing is divided by zero. `since`: when shares were computed.
    """

    types: tuple[str, ...]
    credit: float
    combinations: tuple[JobCombination, ...] = ()
    target_fractions: Floats = field(init=False)
    received: Floats = field(init=False)
    deficit: Floats = field(init=False)
    total_received: Floats = field(init=False)
    reset_time: float = 0.0
    _row: dict[JobCombination, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shape = (len(self.combinations), len(self.types))
        self.target_fractions, self.received, self.deficit = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape)
        self.total_received = np.zeros(len(self.types))
        self._row = {combination: row for row, combination in enumerate(self.combinations)}

    def set_combinations(self, combinations: Sequence[JobCombination]) -> None:
        """From now on these entries, in this order. Who is new has the credit and no share."""
        wanted = tuple(combinations)
        if wanted == self.combinations:
            return
        old: Ints = np.array([self._row.get(combination, -1) for combination in wanted], dtype=np.int64)
        known = old >= 0
        self.target_fractions = self._carried_over(self.target_fractions, old, known, np.nan)
        self.deficit = self._carried_over(self.deficit, old, known, 0.0)
        self.received = self._carried_over(self.received, old, known, self.credit)
        self.combinations, self._row = wanted, {combination: row for row, combination in enumerate(wanted)}

    def add_received(self, combination: JobCombination, gpu_type: str, seconds: float) -> None:
        """These seconds were had on this type, by an entry that may have left."""
        column = self.types.index(gpu_type)
        self.total_received[column] += seconds
        if combination in self._row:
            self.received[self._row[combination], column] += seconds

    def reset(self, now: float) -> None:
        """Book what was promised and not had as deficit, and count anew from now."""
        self.deficit += np.nan_to_num(self.target_fractions) * (now - self.reset_time) - (self.received - self.credit)
        self.received = np.full_like(self.received, self.credit)
        self.total_received = self.received.sum(axis=0)
        self.reset_time = now

    def set_targets(self, targets: Mapping[JobCombination, Floats]) -> None:
        """New shares, of every entry that has any; the others are promised nothing."""
        nothing = np.zeros(len(self.types))
        self.target_fractions = np.array(
            [targets.get(combination, nothing) for combination in self.combinations]
        ).reshape(self.deficit.shape)

    def priorities(self, runnable: Mask) -> Floats:
        """Share over the part of all time that was had; 0 where `runs` is not set, and without a share."""
        share = np.nan_to_num(self.target_fractions)
        with np.errstate(divide="ignore", invalid="ignore"):
            received_part = np.where(self.total_received > 0, self.received / self.total_received, 0.0)
            priority = np.where(received_part > 0, share / received_part, share * _UNSERVED_FACTOR)
        priority[~runnable] = 0.0
        found: Floats = priority
        return found

    def without_target(self) -> Iterable[JobCombination]:
        """Who came after shares were computed."""
        return (
            combination
            for combination, share in zip(self.combinations, self.target_fractions, strict=True)
            if np.isnan(share).any()
        )

    @staticmethod
    def _carried_over(previous: Floats, old: Ints, known: Mask, new: float) -> Floats:
        found: Floats = np.full((len(old), previous.shape[1]), new)
        found[known] = previous[old[known]]
        return found


def greedy_round(
    ledger: AllocationLedger, runnable: NDArray[np.bool_], widths: Floats, gpus: Sequence[int], types: Iterable[int]
) -> dict[int, list[JobCombination]]:
    """The entries that run on each type, which are gone through in the order of `types`.

    On each type by priority; who is too wide for what is left is passed over. `runs[e, w]`: whether the entry can run
    there; `widths[e]`: its GPUs. An entry of priority 0 comes last but is not left out, so no GPU idles that somebody
    can use.
    """
    busy = set[str]()
    chosen: dict[int, list[JobCombination]] = {}
    for kind in types:
        left = gpus[kind]
        chosen[kind] = []
        for row in rows_by_priority(ledger, runnable, kind):
            entry = ledger.combinations[row]
            if left <= 0:
                break
            if runnable[row, kind] and widths[row] <= left and busy.isdisjoint(entry):
                left -= int(widths[row])
                busy.update(entry)
                chosen[kind].append(entry)
    return chosen


def rows_by_priority(ledger: AllocationLedger, runnable: NDArray[np.bool_], gpu_type: int) -> Ints:
    """The rows of all entries, who comes first on this GPU type first: by priority, then deficit, then share, the
    highest first. Rows whose `runs` is not set have none."""
    priority, share = ledger.priorities(runnable)[:, gpu_type], np.nan_to_num(ledger.target_fractions[:, gpu_type])
    return np.asarray(np.lexsort((-share, -ledger.deficit[:, gpu_type], -priority)), dtype=np.int64)


E = TypeVar("E", bound=Hashable)


def assign_workers(
    widths: Mapping[E, int], workers: Sequence[int], previous: Mapping[E, Sequence[int]]
) -> dict[E, tuple[int, ...]]:
    """Workers of one type, ascending, for each entry: the widest first, so that gangs lie on few servers.

    `widths` in the order of picking; `before`: who had which workers. Of equal width, those that can keep theirs come
    first; the others fill server after server.
    """
    free, here = dict.fromkeys(workers), set(workers)
    assigned: dict[E, tuple[int, ...]] = {}
    for width in sorted({*widths.values()}, reverse=True):
        alike = [entry for entry in widths if widths[entry] == width]
        for entry in alike:
            kept_workers = previous.get(entry, ())
            if kept_workers and here.issuperset(kept_workers) and all(worker in free for worker in kept_workers):
                assigned[entry] = _take_workers(free, kept_workers)
        for entry in alike:
            if entry not in assigned:
                assigned[entry] = _take_workers(free, list(free)[:width])
    return assigned


def _take_workers(free: dict[int, None], workers: Sequence[int]) -> tuple[int, ...]:
    for worker in workers:
        del free[worker]
    return tuple(sorted(workers))


@dataclass(frozen=True, slots=True)
class _StoredAllocation:
    """One job's, by type; `share` is missing where it came after shares were computed."""

    received: tuple[float, ...]
    deficit: tuple[float, ...]
    share: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class GavelState:
    """`at`: when the last round was; `since`: when shares were computed. Unix seconds; the rest as in `Books`."""

    types: tuple[str, ...] = ()
    at: float = 0.0
    since: float = 0.0
    total: tuple[float, ...] = ()
    jobs: Mapping[JobId, _StoredAllocation] = field(default_factory=dict)

    @classmethod
    def decode(cls, state: object) -> GavelState:
        """What `said` gave; nothing at all where it is of another form."""
        try:
            found = Converter().structure(state, cls)
        except (BaseValidationError, TypeError, ValueError):
            return cls()
        accounts = [
            (representatives.received, representatives.deficit, representatives.share or representatives.received)
            for representatives in found.jobs.values()
        ]
        sizes = {len(found.total), *(len(amounts) for account in accounts for amounts in account)}
        return found if sizes == {len(found.types)} else cls()

    @classmethod
    def from_ledger(cls, ledger: AllocationLedger, at: float) -> GavelState:
        rows = zip(ledger.combinations, ledger.received, ledger.deficit, ledger.target_fractions, strict=True)
        accounts = {
            entry[0]: _StoredAllocation(
                _as_tuple(had), _as_tuple(short), None if np.isnan(share).any() else _as_tuple(share)
            )
            for entry, had, short, share in rows
        }
        return cls(ledger.types, at, ledger.reset_time, _as_tuple(ledger.total_received), accounts)

    def encode(self) -> dict[str, object]:
        """As JSON has it."""
        found = Converter().unstructure(self)
        return {str(key): value for key, value in found.items()}

    def to_ledger(self, types: tuple[str, ...], credit: float) -> AllocationLedger:
        """The books anew; empty where the cluster has other types now."""
        if types != self.types:
            return AllocationLedger(types, credit)
        ledger = AllocationLedger(types, credit, tuple((job,) for job in self.jobs))
        ledger.reset_time, ledger.total_received = self.since, np.array(self.total)
        for row, account in enumerate(self.jobs.values()):
            ledger.received[row], ledger.deficit[row] = account.received, account.deficit
            if account.share is not None:
                ledger.target_fractions[row] = account.share
        return ledger


def _as_tuple(amounts: Floats) -> tuple[float, ...]:
    return tuple(float(amount) for amount in amounts)
