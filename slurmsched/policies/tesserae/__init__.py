"""Tesserae: packing and migration as graph matching, under any order of jobs."""

from slurmsched.policies.tesserae.migration import (
    NO_JOB,
    NodeRenaming,
    PlacementPlan,
    find_renaming,
    migrated_jobs,
    migration_cost,
)
from slurmsched.policies.tesserae.packing import (
    EdgeWeights,
    PackingEdge,
    PackingJob,
    PairRates,
    best_edge,
    best_edges,
    match_job_types,
    match_jobs,
    pack,
)

__all__ = [
    "NO_JOB",
    "EdgeWeights",
    "NodeRenaming",
    "PackingEdge",
    "PackingJob",
    "PairRates",
    "PlacementPlan",
    "best_edge",
    "best_edges",
    "find_renaming",
    "match_job_types",
    "match_jobs",
    "migrated_jobs",
    "migration_cost",
    "pack",
]
