"""The batch of a data-parallel job divided among its ranks by their speed.

A gang on several GPU types is as fast as its slowest rank (Hadar, equation 1b) where all ranks have equal parts of the
batch. With parts by speed all are through at the same time, and the gang is as fast as its ranks together. Each rank's
loss is weighted by its samples, so the mean of the gradients, which data-parallel training takes, is that of the whole
batch, however it is divided.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Final, Protocol, TypeVar

from slurmsched.jobside.environment import AllReduceMax, detect_ranks, read_slurm_environment
from slurmsched.jobside.errors import JobsideError

_MIN_GAIN: Final = 0.03
"""The part of a step's time that another division has to save: less is noise, and every new size of a part costs
libraries that prepare themselves for one."""

_UNIT: Final = 1e-6
"""Samples per second are exchanged in whole numbers of this."""


class Scalable(Protocol):
    """A loss: a number, or a tensor of one."""

    def __mul__(self, factor: float, /) -> Scalable: ...


L = TypeVar("L", bound=Scalable)


def divide_batch(samples: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Divides a batch over ranks with these rates in samples per second, so that the last rank is through earliest.

    Every rank gets a sample: one without any would leave the others waiting for its gradients. Raises JobsideError
    where there are fewer samples than ranks, or a rate is not above 0.
    """
    if samples < len(rates) or not all(isfinite(rate) and rate > 0 for rate in rates):
        raise JobsideError(f"cannot divide a batch of {samples} over {len(rates)} ranks: every rank needs a sample")
    total = sum(rates)
    sizes = [max(1, int(samples * (rate / total))) for rate in rates]
    while sum(sizes) > samples:  # slow ranks were given the one sample that they need
        givers = [rank for rank, size in enumerate(sizes) if size > 1]
        sizes[max(givers, key=lambda rank: sizes[rank] / rates[rank])] -= 1
    while sum(sizes) < samples:
        sizes[min(range(len(sizes)), key=lambda rank: (sizes[rank] + 1) / rates[rank])] += 1
    return tuple(sizes)


class BatchSplit:
    """This rank's part of every batch of `samples`, all ranks' together.

    Parts are equal at first. Every `every` steps the ranks tell each other how fast they were and divide anew, all at
    the same step; with 0 only `rebalance` does that. Make it after `init_process_group`, or pass `agree`, as for
    `Training`. Raises JobsideError where the batch has fewer samples than there are ranks.
    """

    def __init__(
        self,
        samples: int,
        *,
        every: int = 50,
        agree: AllReduceMax | None = None,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ranks, self._clock, self._every = detect_ranks(read_slurm_environment(environment), agree), clock, every
        self.sizes = divide_batch(samples, [1.0] * self._ranks.size)
        """The samples of each rank."""
        self._steps, self._seconds, self._measured = 0, 0.0, 0

    @property
    def part(self) -> slice:
        """Which samples of a batch are this rank's: `batch[split.part]`."""
        first = sum(self.sizes[: self._ranks.rank])
        return slice(first, first + self.sizes[self._ranks.rank])

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measures what is computed within: the forward pass, which waits for no other rank."""
        began = self._now()
        yield
        self._seconds += self._now() - began
        self._measured += self.sizes[self._ranks.rank]

    def weighted(self, loss: L) -> L:
        """The mean loss over this rank's samples, weighted so that the mean of all ranks' gradients is the gradient of
        the mean loss over the whole batch."""
        weight = self.sizes[self._ranks.rank] * self._ranks.size / sum(self.sizes)
        return loss * weight  # type: ignore[return-value]  # a loss times a number is a loss

    def step(self) -> None:
        """One step is done, on every rank."""
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            self.rebalance()

    def rebalance(self) -> None:
        """Divides the batch by the speeds measured since the last time; every rank has to call it at the same step.

        Nothing changes where a rank has measured nothing, or where it would save next to nothing.
        """
        rates = [0] * self._ranks.size
        if self._seconds > 0:
            rates[self._ranks.rank] = round(self._measured / self._seconds / _UNIT)
        self._seconds, self._measured = 0.0, 0
        known = self._ranks.all_reduce_max(rates)
        if not all(rate > 0 for rate in known):
            return
        sizes = divide_batch(sum(self.sizes), [float(rate) for rate in known])
        before, after = (max(size / rate for size, rate in zip(of, known, strict=True)) for of in (self.sizes, sizes))
        if after <= before * (1 - _MIN_GAIN):
            self.sizes = sizes

    def _now(self) -> float:
        """The time once all that was asked of the GPU is computed."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return self._clock()
