"""Where the paper and its authors' simulator differ, and which of the two is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["AUTHORS", "OURS", "PAPER", "Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read Synergy. Each field says what is done when it is true."""

    consolidates: bool
    """A job goes where the least is free that is just enough, and onto as few servers as can be (section 4.2). Else it
    takes the first GPUs, server by server, beside which its share of CPUs and memory is free."""
    sorts_by_demand: bool
    """The runnable jobs are packed by GPUs, CPUs and memory, the largest first (section 4.2). Else in the policy's
    order."""
    reverts_only_excess: bool
    """A demand is cut to the proportional share only where it is above it. Else CPUs and memory both become the
    proportional share, be it more."""
    spares_the_useless: bool
    """Jobs are reverted only as far as that frees what is needed. Else all jobs of a server are placed anew, the
    hungriest first, until it is."""
    reads_matrix: bool
    """Speed is what the sensitivity matrix says of what a job has. Else one figure: the speed-up with the whole
    best-case demand, which anything less forfeits."""
    hands_back: bool
    """What is spare on a server in the end goes to jobs that run faster with it."""
    whole_iterations: bool
    """A round books whole iterations when it begins, and a job ends at a round's end. Else work is done as time
    passes, and a job ends when it is done."""


PAPER: Final = Reading(
    consolidates=True,
    sorts_by_demand=True,
    reverts_only_excess=True,
    spares_the_useless=True,
    reads_matrix=True,
    hands_back=False,
    whole_iterations=False,
)
"""As the text has it."""

AUTHORS: Final = Reading(
    consolidates=False,
    sorts_by_demand=False,
    reverts_only_excess=False,
    spares_the_useless=False,
    reads_matrix=False,
    hands_back=False,
    whole_iterations=True,
)
"""As the authors' simulator does it (msr-fiddle/synergy, commit 1bb2bed, the schedulers without `+place`)."""

OURS: Final = Reading(
    consolidates=False,
    sorts_by_demand=False,
    reverts_only_excess=True,
    spares_the_useless=True,
    reads_matrix=True,
    hands_back=True,
    whole_iterations=False,
)
"""What measured best of both: the authors' packing in the policy's order, which mixes hungry and frugal jobs on a
server; the paper's sparing cuts; and nothing left idle that makes somebody faster."""
