"""Fragmentation gradient descent on Slurm, for jobs with shards, with whole GPUs and without GPUs."""

from slurmsched.policies.fgd.defragment import Defragmentation, Movable, defragment, movable_jobs
from slurmsched.policies.fgd.placer import FgdCluster, FgdPlacer, NodeDemands, node_demands, target_workload
from slurmsched.policies.fgd.policy import (
    FragmentationDescent,
    completing_reason,
    keeps_allocation,
    unschedulable_reason,
)
from slurmsched.policies.place.scores import SlurmDevice

__all__ = [
    "Defragmentation",
    "FgdCluster",
    "FgdPlacer",
    "FragmentationDescent",
    "Movable",
    "NodeDemands",
    "SlurmDevice",
    "completing_reason",
    "defragment",
    "keeps_allocation",
    "movable_jobs",
    "node_demands",
    "target_workload",
    "unschedulable_reason",
]
