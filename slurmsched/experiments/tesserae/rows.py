"""What is told of the replays: figure by figure, beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from slurmsched.experiments.experiment import Bound, Row
from slurmsched.experiments.tesserae.cells import BASELINES, COSTLY, EVERY, KNOWN, NOISE, SOME, WIDE, fewer
from slurmsched.experiments.tesserae.variants import Cell
from slurmsched.simulation.figures import Figures

__all__ = ["Found", "held", "others", "parts"]

_HOUR: Final = 3600.0
_TENTH: Final = 0.1
_INPUTS: Final = (
    "Pairs of one-GPU jobs as Gavel's V100 table has them. Wider pairs are assumed to keep the same parts of their"
    " rates (the linear model of section 4.3), since nobody published theirs, and no rate depends on placement. 20"
    " nodes of 4 GPUs; a start or a move costs 60 s, which the text leaves open."
)
_UP_TO: Final = "The paper's figure is its best against any of them. " + _INPUTS
_BASIC: Final = "Against the text's placement with names as they fall, which is the rule of figure 1. " + _INPUTS
_GAVEL: Final = (
    "Against the released rule: workers are kept where they are free, a pair only as the same pair. " + _INPUTS
)
_LOST: Final = "How much better the paper does not say in its text; asked is that it is. " + _INPUTS
_OURS: Final = "Ours also seats who runs at home first and lets pairs last. " + _INPUTS
_OVER: Final = (
    "Ours in the order of Gavel's priorities, which know nothing of pairs; beside it Gavel as it is, with its own rule"
    " of keeping workers. Its program of fairness with pairs has a variable for any two jobs: of it, only 300 jobs."
    " " + _INPUTS
)
_WIDE: Final = "Wider pairs keep this part of what is assumed, which packing still goes by. " + _INPUTS


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of every replay, by seed; of each the mean. Hours, and numbers of moves."""

    runs: Mapping[Cell, Sequence[Figures]]

    def jct(self, cell: Cell) -> float:
        return fmean(one.avg_jct_s for one in self.runs[cell]) / _HOUR

    def makespan(self, cell: Cell) -> float:
        return fmean(one.makespan_s for one in self.runs[cell]) / _HOUR

    def moves(self, cell: Cell) -> float:
        return fmean(one.migrations for one in self.runs[cell])

    def worst(self, cell: Cell) -> float:
        """The largest rho of any job."""
        return fmean(one.ftf_max for one in self.runs[cell])


def held(found: Found, base: Cell) -> Iterator[Row]:
    """What the text gives figures for."""
    ours = replace(base, variant="tesserae-t")
    theirs = [replace(base, variant=name) for name in BASELINES]
    best = max(found.jct(other) for other in theirs) / found.jct(ours)
    yield Row("mean JCT: up to, over Tesserae-T", "x", best, 1.62, bound=Bound.AT_LEAST, note=_UP_TO)
    best = max(found.makespan(other) for other in theirs) / found.makespan(ours)
    yield Row("makespan: up to, over Tesserae-T", "x", best, 1.15, bound=Bound.AT_LEAST, note=_UP_TO)
    for other in theirs:
        name = other.variant
        ratio = found.jct(other) / found.jct(ours)
        yield Row(f"mean JCT: {name} over Tesserae-T", "x", ratio, 1.0, bound=Bound.AT_LEAST, note=_LOST)
        ratio = found.makespan(other) / found.makespan(ours)
        yield Row(f"makespan: {name} over Tesserae-T", "x", ratio, bound=Bound.STATED, note=_INPUTS)
    yield from _moved(found, base, "", "tesserae-t", Bound.EQUAL)
    yield from _moved(found, base, "las: ", "tesserae-t", Bound.EQUAL)
    yield from _moved(found, base, "gavel: ", "tesserae", Bound.AT_MOST)
    ratio = found.worst(replace(base, variant="tesserae-ftf")) / found.worst(replace(base, variant="ftf"))
    yield Row("worst rho: Tesserae-FTF over FTF", "x", ratio, 1.0, bound=Bound.AT_MOST, note=_LOST)
    yield from _over_gavel(found, base)


def _moved(found: Found, base: Cell, order: str, ours: str, bound: Bound) -> Iterator[Row]:
    """Moves against either rule, over one order; `bound` is how the text's against the basic rule are held."""
    text, unnamed, kept, own = (
        found.moves(replace(base, variant=f"{order}{name}"))
        for name in ("text", "text, no names", "text, gavel rule", ours)
    )
    yield Row(f"{order}moves, text over no names", "x", text / unnamed, 0.64, None, _TENTH, bound, _BASIC)
    yield Row(f"{order}moves, text over Gavel's rule", "x", text / kept, 0.64, bound=Bound.STATED, note=_GAVEL)
    yield Row(f"{order}moves, ours over no names", "x", own / unnamed, 0.64, bound=Bound.AT_MOST, note=_OURS)
    yield Row(f"{order}moves, ours over Gavel's rule", "x", own / kept, 0.64, bound=Bound.AT_MOST, note=_OURS)


def _over_gavel(found: Found, base: Cell) -> Iterator[Row]:
    """Tesserae on Gavel's order against Gavel as it is."""
    for of, own, over in (
        (base, "gavel packed", "gavel"),
        (base, "gavel-ftf", "gavel-ftf"),
        (fewer(base), COSTLY, "gavel-ftf"),
    ):
        theirs, ours = replace(of, variant=own), replace(of, variant=f"{over}: tesserae")
        name = f"{own} over ours"
        ratio = found.jct(theirs) / found.jct(ours)
        yield Row(f"mean JCT: {name} on its order", "x", ratio, bound=Bound.STATED, note=_OVER)
        ratio = found.makespan(theirs) / found.makespan(ours)
        yield Row(f"makespan: {name} on its order", "x", ratio, bound=Bound.STATED, note=_OVER)
        ratio = found.moves(theirs) / found.moves(ours)
        yield Row(f"moves: {name} on its order", "x", ratio, bound=Bound.STATED, note=_OVER)
        ratio = found.worst(theirs) / found.worst(ours)
        fair = (1.0, Bound.AT_LEAST) if over == "gavel-ftf" else (None, Bound.STATED)
        yield Row(f"worst rho: {name} on its order", "x", ratio, fair[0], bound=fair[1], note=_OVER)


def parts(found: Found, base: Cell) -> Iterator[Row]:
    """Every policy by itself, and what moves cost."""
    for variant in EVERY:
        yield from _figures(found, replace(base, variant=variant), variant)
        moves = found.moves(replace(base, variant=variant))
        yield Row(f"{variant}: moves", "", moves, bound=Bound.STATED, note=_INPUTS)
    for variant in ("tesserae-t", "text", "text, no names"):
        yield from _figures(found, replace(base, variant=variant, overhead=0.0), f"{variant}, moves free")
    for without in ("no packing", "no homes", "no lasting pairs", "no names"):
        yield from _without(found, replace(base, variant=without), replace(base, variant="tesserae-t"))
    yield from _without(found, replace(base, variant="text, no names"), replace(base, variant="text"))


def _without(found: Found, without: Cell, whole: Cell) -> Iterator[Row]:
    name = f"{without.variant} over {whole.variant}"
    ratio = found.jct(without) / found.jct(whole)
    yield Row(f"{name}: mean JCT", "x", ratio, bound=Bound.STATED, note=_INPUTS)
    ratio = found.makespan(without) / found.makespan(whole)
    yield Row(f"{name}: makespan", "x", ratio, bound=Bound.STATED, note=_INPUTS)


def others(found: Found, base: Cell) -> Iterator[Row]:
    """Wrong and missing rates, another trace and other GPUs."""
    ours = replace(base, variant="tesserae-t")
    for noise in NOISE:
        cell = replace(ours, noise=noise)
        yield from _figures(found, cell, f"noise {noise:.0%}")
        some = replace(cell, known=SOME)
        yield from _figures(found, some, f"noise {noise:.0%}, {SOME:.0%} measured")
    for known in KNOWN:
        yield from _figures(found, replace(ours, known=known), f"{known:.0%} of pairs measured, others completed")
        guessed = replace(ours, known=known, guessed=True)
        yield from _figures(found, guessed, f"{known:.0%} of pairs measured, others guessed")
    for wide in WIDE:
        cell = replace(ours, wide=wide)
        name = f"wide pairs at {wide:.0%}"
        yield from _figures(found, cell, name, _WIDE)
        ratio = found.jct(replace(cell, variant="tiresias single")) / found.jct(cell)
        yield Row(f"{name}: mean JCT, single over ours", "x", ratio, bound=Bound.STATED, note=_WIDE)
    yield from _figures(found, replace(base, variant="text", least=0.0), "text, any pair that fits")
    for what, other in (("Gavel's trace", replace(ours, trace="gavel")), ("P100", replace(ours, gpu_type="p100"))):
        for name in BASELINES:
            ratio = found.jct(replace(other, variant=name)) / found.jct(other)
            yield Row(f"{what}: mean JCT, {name} over ours", "x", ratio, 1.0, bound=Bound.AT_LEAST, note=_LOST)
            ratio = found.makespan(replace(other, variant=name)) / found.makespan(other)
            yield Row(f"{what}: makespan, {name} over ours", "x", ratio, bound=Bound.STATED, note=_INPUTS)


def _figures(found: Found, cell: Cell, name: str, note: str = _INPUTS) -> Iterator[Row]:
    yield Row(f"{name}: mean JCT", "h", found.jct(cell), bound=Bound.STATED, note=note)
    yield Row(f"{name}: makespan", "h", found.makespan(cell), bound=Bound.STATED, note=note)
