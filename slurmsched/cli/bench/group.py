"""The group of measurements: each command is a module of its own."""

from __future__ import annotations

import click

from slurmsched.cli.bench.decide import decide
from slurmsched.cli.bench.fragmentation import fragmentation
from slurmsched.cli.bench.gavel import gavel
from slurmsched.cli.bench.hadar import hadar
from slurmsched.cli.bench.hostile import hostile
from slurmsched.cli.bench.jobside import jobside
from slurmsched.cli.bench.round import round_
from slurmsched.cli.bench.tesserae import tesserae

__all__ = ["bench"]


@click.group(commands=(round_, decide, fragmentation, tesserae, gavel, hadar, hostile, jobside))
def bench() -> None:
    """Measure a round on the cluster, a decision, a placement, the wrapper of jobs.

    \b
    Example:
      synsched bench decide --policy synergy --gpus 256 --jobs 1000
      synsched bench round --json
    """
