"""How a model's speed grows with GPUs of one type, and what it loses across nodes and beside another job."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Scaling"]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Work per second of one model on one GPU type, in a unit that all types of the model share.

    `rate[i]` is that of the whole job on `gpus[i]` GPUs of one node; `gpus` ascend. 0 is a job that cannot run there,
    for lack of GPU memory. `apart` is the same on more than one node, empty where it was not measured. `beside` is what
    part of its speed a job keeps while one of another model uses the same GPU.
    """

    gpus: tuple[int, ...]
    rate: tuple[float, ...]
    apart: tuple[float, ...] = ()
    beside: Mapping[str, float] = field(default_factory=dict)

    def times(self, factor: float) -> Scaling:
        """The same in another unit."""
        rate, apart = (tuple(speed * factor for speed in speeds) for speeds in (self.rate, self.apart))
        return Scaling(self.gpus, rate, apart, self.beside)

    def at(self, gpus: int, nodes: int = 1) -> float:
        """Work per second: what was measured, linear per GPU between that, and outside it linear in GPUs."""
        rates = self.apart if self.apart and nodes > 1 else self.rate
        after = bisect_right(self.gpus, gpus)
        if after == 0 or after == len(self.gpus):
            edge = 0 if after == 0 else after - 1
            return rates[edge] * gpus / self.gpus[edge]
        low, high = self.gpus[after - 1], self.gpus[after]
        part = (gpus - low) / (high - low)
        return gpus * (rates[after - 1] / low * (1 - part) + rates[after] / high * part)
