"""Everybody's equal part of the cluster, which fairness is measured against (Gavel, section 4.1)."""

from __future__ import annotations

import numpy as np

from slurmsched.policies.gavel.problem import Floats, Problem, Shares

__all__ = ["equal_shares", "proportional_rates"]


def equal_shares(problem: Problem) -> Shares:
    """To each job an equal part of the GPUs of every type, or as much of that as it has time for; `level` is the least
    part of its time that any job has."""
    jobs = max(len(problem.widths), 1)
    single: Floats = problem.gpus / (jobs * problem.widths[:, None])
    single /= np.maximum(single.sum(axis=1, keepdims=True), 1.0)
    return Shares.unshared(float(single.sum(axis=1).min(initial=1.0)), single)


def proportional_rates(problem: Problem) -> Floats:
    """Steps per second of each job if all its time were divided over the types as the GPUs are."""
    rates: Floats = problem.rates @ (problem.gpus / problem.gpus.sum())
    return rates
