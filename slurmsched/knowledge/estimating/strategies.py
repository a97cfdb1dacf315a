"""How a job that is parallel in three ways can be divided over its GPUs (Tesserae, section 4.2, figure 8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

__all__ = ["Strategy", "strategies"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """Copies of the model (`data`), GPUs that share each layer (`tensor`), and the number of layers of each stage of
    the pipeline; GPUs are the product of the first two and the number of stages."""

    data: int
    tensor: int
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"dp{self.data}-tp{self.tensor}-pp{'.'.join(map(str, self.layers))}"

    @property
    def features(self) -> tuple[float, float, float, float, float]:
        """What estimates go by: the degrees as powers of two, and of the layers of an even stage the part that the
        first stage and the last one have more."""
        stages = len(self.layers)
        even = sum(self.layers) / stages
        return (log2(self.data), log2(self.tensor), log2(stages), self.layers[0] / even - 1, self.layers[-1] / even - 1)


def strategies(gpus: int, layers: int, shift: int = 2) -> tuple[Strategy, ...]:
    """Every division of so many layers over so many GPUs by three degrees; of pipelines the even one, and those whose
    first stage has up to `shift` layers more or fewer and the last one as many fewer or more."""
    return tuple(
        Strategy(data, tensor, split)
        for data in _divisors(gpus)
        for tensor in _divisors(gpus // data)
        for split in _splits(gpus // data // tensor, layers, shift)
    )


def _divisors(number: int) -> Iterator[int]:
    return (divisor for divisor in range(1, number + 1) if number % divisor == 0)


def _splits(stages: int, layers: int, shift: int) -> Iterator[tuple[int, ...]]:
    if stages > layers:
        return
    least, more = divmod(layers, stages)
    even = [least + (stage < more) for stage in range(stages)]
    for by in range(-shift, shift + 1) if stages > 1 else (0,):
        split = (even[0] + by, *even[1:-1], even[-1] - by) if stages > 1 else tuple(even)
        if min(split) > 0:
            yield split
