"""What less memory costs a job whose data set is cached in it (Synergy, section 3.1; MinIO: Mohan et al., VLDB 2021).

With such a cache a fixed part of the data set is found in memory in every epoch. The rest comes from storage, which
delivers so much and no more: a job is as fast as its CPUs let it, or as the storage lets it, whichever is less.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

__all__ = ["Cache", "fitted"]


@dataclass(frozen=True, slots=True)
class Cache:
    """`uncached` is the speed at which storage alone can feed the job, `dataset` the memory (MiB per GPU) that holds
    all its data: with m in memory, storage feeds it at uncached / (1 - m / dataset)."""

    uncached: float
    dataset: float

    def bound(self, memory: float) -> float:
        """The most speed that storage allows with so much memory; infinite where everything is cached."""
        missed = 1 - memory / self.dataset
        return self.uncached / missed if missed > 0 else inf


def fitted(less: tuple[float, float], more: tuple[float, float]) -> Cache | None:
    """The cache that explains two measurements, each memory and speed, of a job that waits for storage in both; None
    where more memory did not make it faster."""
    (little, slow), (much, fast) = less, more
    if not 0 < slow < fast or not 0 < little < much:
        return None
    dataset = (fast * much - slow * little) / (fast - slow)
    return Cache(slow * (1 - little / dataset), dataset)
