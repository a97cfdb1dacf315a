"""Builds, starts and stops a small real Slurm cluster in docker."""

from __future__ import annotations

from .cluster import Cluster, ClusterOptions
from .commands import ClusterError, Commands

__all__ = ["Cluster", "ClusterError", "ClusterOptions", "Commands"]
