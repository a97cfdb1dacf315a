"""Which replays the experiment makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from slurmsched.experiments.tesserae.variants import VARIANTS, Cell

__all__ = ["BASELINES", "COSTLY", "EVERY", "KNOWN", "NOISE", "SOME", "WIDE", "cells", "fewer"]

COSTLY: Final = "gavel-ftf packed"
"""Its program has a variable for any two jobs, so it is replayed with fewer of them."""
EVERY: Final = tuple(filter(COSTLY.__ne__, VARIANTS))
FEWER: Final = 300
BASELINES: Final = ("tiresias", "tiresias single", "gavel packed")
NOISE: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
KNOWN: Final = (0.1, 0.3, 0.5)
SOME: Final = 0.3
"""What part of the pairs was measured where the others are completed and both are wrong."""
WIDE: Final = (0.9, 0.8, 0.7)
"""What pairs of wide jobs keep of what is assumed."""


def cells(base: Cell) -> Iterator[Cell]:
    """Every replay, as `base` but for what is varied; some come more than once."""
    for variant in (COSTLY, "gavel-ftf: tesserae"):
        yield replace(fewer(base), variant=variant)
    for variant in EVERY:
        yield replace(base, variant=variant)
    for variant in ("tesserae-t", "text", "text, no names"):
        yield replace(base, variant=variant, overhead=0.0)
    for noise in NOISE:
        yield replace(base, variant="tesserae-t", noise=noise)
        yield replace(base, variant="tesserae-t", noise=noise, known=SOME)
    for known in KNOWN:
        yield replace(base, variant="tesserae-t", known=known)
        yield replace(base, variant="tesserae-t", known=known, guessed=True)
    for variant in ("tiresias single", "tesserae-t"):
        for wide in WIDE:
            yield replace(base, variant=variant, wide=wide)
    yield replace(base, variant="text", least=0.0)
    for variant in (*BASELINES, "tesserae-t"):
        yield replace(base, variant=variant, trace="gavel")
        yield replace(base, variant=variant, gpu_type="p100")


def fewer(base: Cell) -> Cell:
    """The same with as many jobs as are not too many for any policy."""
    return replace(base, jobs=min(base.jobs, FEWER))
