"""Traces of others, read as ours."""

from slurmsched.traces.importing.gavel import read_gavel
from slurmsched.traces.importing.openb import read_openb
from slurmsched.traces.importing.philly import read_philly
from slurmsched.traces.importing.sacct import read_sacct
from slurmsched.traces.importing.sacct_json import read_sacct_json
from slurmsched.traces.importing.synergy import SynergyRow, read_synergy, synergy_rows

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
