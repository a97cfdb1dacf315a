"""Gavel's rounds (Narayanan et al., OSDI 2020, section 5): priorities from target and received time, the greedy choice
of jobs, the assignment of workers with lease extension, and the state between rounds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.model import JobId
from slurmsched.policies.state import decode_state, encode_state

JobCombination = tuple[str, ...]
"""The id of a job, or the ids of two jobs that share GPUs."""

RESET_INTERVAL: Final = 1920.0
"""Seconds before time fractions are computed again: Gavel's `minimum_time_between_allocation_resets`."""

_LEAST_TARGET: Final = 1e-6
"""Targets below are the rounding of a solver."""

_UNSERVED_FACTOR: Final = 1e9
"""The priority of a combination that has received nothing is its target fraction times this."""


@dataclass(slots=True)
class AllocationLedger:
    """Target and received time, by job combination and GPU type; arrays are [combinations, types].

    Since the last reset: `target_fractions` of time (NaN for a combination that came later) and `received` seconds.
    From before it: `deficit`, the target seconds that were not received. `total_received` is the seconds of all
    combinations by type, including those that left. Every combination starts with `credit` received seconds, so that
    nothing is divided by zero. `reset_time` is when time fractions were computed, in unix seconds.
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
        """Replaces the combinations, in this order. New ones have the credit and no target."""
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
        """Adds received seconds on a type; the combination may have left."""
        column = self.types.index(gpu_type)
        self.total_received[column] += seconds
        if combination in self._row:
            self.received[self._row[combination], column] += seconds

    def reset(self, now: float) -> None:
        """Adds target time that was not received to the deficit and starts to count anew at `now`."""
        self.deficit += np.nan_to_num(self.target_fractions) * (now - self.reset_time) - (self.received - self.credit)
        self.received = np.full_like(self.received, self.credit)
        self.total_received = self.received.sum(axis=0)
        self.reset_time = now

    def set_targets(self, targets: Mapping[JobCombination, Floats]) -> None:
        """Sets the target fractions; combinations that are not in `targets` get 0."""
        zeros = np.zeros(len(self.types))
        self.target_fractions = np.array(
            [targets.get(combination, zeros) for combination in self.combinations]
        ).reshape(self.deficit.shape)

    def priorities(self, runnable: Mask) -> Floats:
        """Returns target fraction over received fraction; 0 where `runnable` is unset or there is no target."""
        share = np.nan_to_num(self.target_fractions)
        with np.errstate(divide="ignore", invalid="ignore"):
            received_part = np.where(self.total_received > 0, self.received / self.total_received, 0.0)
            priority = np.where(received_part > 0, share / received_part, share * _UNSERVED_FACTOR)
        priority[~runnable] = 0.0
        result: Floats = priority
        return result

    def overdue(self, runnable: Mask, now: float, slices: Floats) -> Floats:
        """Returns for how many seconds each combination has been due half a slice; below 0 where it is not yet, minus
        infinity without a target or where `runnable` is unset.

        The priority in rounds that last as long as `slices`, in seconds by combination. All time received counts,
        unlike in `priorities`: these forget it at every reset, and where slices are longer than `RESET_INTERVAL` all
        that waited have the same priority then, however long.
        """
        share = np.nan_to_num(self.target_fractions)
        lag = self.deficit + share * (now - self.reset_time) - (self.received - self.credit) - slices[:, None] / 2
        due = runnable & (share > _LEAST_TARGET)
        return np.where(due, lag / np.where(due, share, 1.0), -np.inf)

    def without_target(self) -> Iterable[JobCombination]:
        """Returns the combinations that came after time fractions were computed."""
        return (
            combination
            for combination, share in zip(self.combinations, self.target_fractions, strict=True)
            if np.isnan(share).any()
        )

    @staticmethod
    def _carried_over(previous: Floats, old: Ints, known: Mask, new: float) -> Floats:
        rows: Floats = np.full((len(old), previous.shape[1]), new)
        rows[known] = previous[old[known]]
        return rows


def greedy_round(
    ledger: AllocationLedger,
    runnable: NDArray[np.bool_],
    widths: Floats,
    gpus: Sequence[int],
    types: Iterable[int],
    *,
    ranks: Floats | None = None,
) -> dict[int, list[JobCombination]]:
    """Returns the combinations that run on each type; types are filled in the order of `types`.

    On each type combinations go by priority, and those with more GPUs than are left are skipped. `runnable[e, w]`:
    whether combination e can run on type w; `widths[e]`: its GPUs. A combination of priority 0 comes last but is not
    left out, so no usable GPU idles. With `ranks`, [combinations, types], they go by these instead, the highest first.
    """
    busy = set[str]()
    chosen: dict[int, list[JobCombination]] = {}
    for kind in types:
        left = gpus[kind]
        chosen[kind] = []
        rows = rows_by_priority(ledger, runnable, kind) if ranks is None else np.argsort(-ranks[:, kind], kind="stable")
        for row in rows:
            entry = ledger.combinations[row]
            if left <= 0:
                break
            if runnable[row, kind] and widths[row] <= left and busy.isdisjoint(entry):
                left -= int(widths[row])
                busy.update(entry)
                chosen[kind].append(entry)
    return chosen


def rows_by_priority(ledger: AllocationLedger, runnable: NDArray[np.bool_], gpu_type: int) -> Ints:
    """Returns the rows of all combinations by priority on this GPU type, then deficit, then target, highest first.

    Rows with `runnable` unset have priority 0.
    """
    priority, share = ledger.priorities(runnable)[:, gpu_type], np.nan_to_num(ledger.target_fractions[:, gpu_type])
    return np.asarray(np.lexsort((-share, -ledger.deficit[:, gpu_type], -priority)), dtype=np.int64)


E = TypeVar("E", bound=Hashable)


def assign_workers(
    widths: Mapping[E, int], workers: Sequence[int], previous: Mapping[E, Sequence[int]]
) -> dict[E, tuple[int, ...]]:
    """Returns the workers of one type, ascending, of each entry: the widest first, so that gangs use few servers.

    `widths` is in the order in which entries were chosen, `previous` has their last workers. Of equal width, entries
    that can keep their workers come first (lease extension); the others fill server after server.
    """
    free, of_type = dict.fromkeys(workers), set(workers)
    assigned: dict[E, tuple[int, ...]] = {}
    for width in sorted({*widths.values()}, reverse=True):
        alike = [entry for entry in widths if widths[entry] == width]
        for entry in alike:
            kept_workers = previous.get(entry, ())
            if kept_workers and of_type.issuperset(kept_workers) and all(worker in free for worker in kept_workers):
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
    """A job's rows of the ledger, by type; `share` is its target, None if it came after the last reset."""

    received: tuple[float, ...]
    deficit: tuple[float, ...]
    share: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class GavelState:
    """`AllocationLedger` as JSON-safe values: `at` is the time of the last round, `since` that of the last reset (unix
    seconds), `total` the received seconds by type."""

    types: tuple[str, ...] = ()
    at: float = 0.0
    since: float = 0.0
    total: tuple[float, ...] = ()
    jobs: Mapping[JobId, _StoredAllocation] = field(default_factory=dict)

    @classmethod
    def decode(cls, state: object) -> GavelState:
        """Returns the state that `encode` returned, or an empty one for any other value."""
        decoded = decode_state(cls, state)
        accounts = [
            (account.received, account.deficit, account.share or account.received) for account in decoded.jobs.values()
        ]
        sizes = {len(decoded.total), *(len(amounts) for account in accounts for amounts in account)}
        return decoded if sizes == {len(decoded.types)} else cls()

    @classmethod
    def from_ledger(cls, ledger: AllocationLedger, at: float) -> GavelState:
        rows = zip(ledger.combinations, ledger.received, ledger.deficit, ledger.target_fractions, strict=True)
        accounts = {
            entry[0]: _StoredAllocation(
                _as_tuple(received), _as_tuple(deficit), None if np.isnan(target).any() else _as_tuple(target)
            )
            for entry, received, deficit, target in rows
        }
        return cls(ledger.types, at, ledger.reset_time, _as_tuple(ledger.total_received), accounts)

    def encode(self) -> dict[str, object]:
        """Returns the state as JSON-safe values."""
        return encode_state(self)

    def to_ledger(self, types: tuple[str, ...], credit: float) -> AllocationLedger:
        """Returns the ledger; an empty one if the cluster now has other GPU types."""
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
