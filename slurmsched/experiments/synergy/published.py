"""Figures of Synergy: the paper's, and those of its authors' simulator (commit 1bb2bed, deterministic), run by us on a
machine with two busy cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PUBLISHED_MAKESPAN: Final[Mapping[str, float]] = {"proportional": 15.67, "tune": 11.33, "opt": 11.01}
"""Hours, table 5, static trace, FIFO, simulated."""

AUTHORS_MAKESPAN: Final[Mapping[tuple[str, int], float]] = {
    ("proportional", 300): 15.250,
    ("tune", 300): 11.000,
    ("greedy", 300): 12.334,
    ("opt", 300): 10.584,
    ("proportional", 1200): 15.667,
    ("tune", 1200): 11.334,
    ("opt", 1200): 11.0003,
}
"""Hours on the same trace, by mechanism and round length in seconds. Opt with HiGHS instead of GLPK."""

AUTHORS_CPU_SECONDS: Final[Mapping[str, float]] = {"proportional": 0.92, "tune": 1.13, "greedy": 0.81, "opt": 35.6}
"""CPU seconds of one replay of it with rounds of 300 s, without imports: the fastest of several runs."""

PUBLISHED_LOAD_JCT: Final[Mapping[str, float]] = {"proportional": 81.0, "tune": 22.0, "opt": 20.0}
"""Hours of mean JCT at 9 jobs an hour on 128 GPUs, one GPU each, FIFO (figure 1, section 5.3.2)."""

PUBLISHED_RATIO_GAINS: Final[Mapping[int, float]] = {3: 3.4, 4: 3.0, 5: 2.2, 6: 1.8}
"""Proportional over tune at 9 jobs an hour, by CPUs per GPU (section 5.5)."""
