"""Readers for the trace formats of other projects and of Slurm."""

from slurmsched.traces.formats.gavel import read_gavel
from slurmsched.traces.formats.openb import read_openb
from slurmsched.traces.formats.philly import read_philly
from slurmsched.traces.formats.sacct import read_sacct
from slurmsched.traces.formats.sacct_json import read_sacct_json
from slurmsched.traces.formats.synergy import SynergyRow, read_synergy, synergy_rows

__all__ = [
    "SynergyRow",
    "read_gavel",
    "read_openb",
    "read_philly",
    "read_sacct",
    "read_sacct_json",
    "read_synergy",
    "synergy_rows",
]
