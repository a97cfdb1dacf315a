"""Packing and migration as graph matching, under any order (Tesserae)."""

from slurmsched.policies.tesserae.layout import NOBODY, Layout
from slurmsched.policies.tesserae.migration import Renaming, moved, renamed, renaming_cost
from slurmsched.policies.tesserae.packing import Packable, Weights, pack, pack_each, pack_kinds
from slurmsched.policies.tesserae.strategies import Edge, PairRates, best_edges, weighed

__all__ = [
    "NOBODY",
    "Edge",
    "Layout",
    "Packable",
    "PairRates",
    "Renaming",
    "Weights",
    "best_edges",
    "moved",
    "pack",
    "pack_each",
    "pack_kinds",
    "renamed",
    "renaming_cost",
    "weighed",
]
