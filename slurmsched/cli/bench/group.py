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
from slurmsched.cli.bench.store import store
from slurmsched.cli.bench.tesserae import tesserae

__all__ = ["bench"]


@click.group(commands=(round_, decide, fragmentation, tesserae, gavel, hadar, hostile, jobside, store))
def bench() -> None:
    """Measure rounds, decisions, placements, the wrapper of jobs, the database.

    \b
    Example:
      synsched bench decide --policy synergy --gpus 256 --jobs 1000
      synsched bench round --json
    """
