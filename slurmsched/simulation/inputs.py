"""What people name on the command line, as values: a cluster, a trace, profiles."""

from __future__ import annotations

import re
from typing import Final

from slurmsched.knowledge import Knowledge, load_knowledge, shipped_profiles
from slurmsched.knowledge.synergy import is_synergy, iteration_seconds
from slurmsched.simulation.world import World
from slurmsched.traces import Trace
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generating import generate
from slurmsched.traces.imported import Imported, Sources
from slurmsched.traces.reading import read_trace

__all__ = ["GENERATED", "knowledge_from", "trace_from", "world_from"]

GENERATED: Final = re.compile(r"(?P<name>[a-z-]+):(?P<jobs>\d{1,7})(?:@(?P<rate>\d+(?:\.\d+)?))?\Z")
"""`synergy:400@6`: that workload, so many jobs, so many an hour."""

_RATE: Final = 10.0


def knowledge_from(path: str | None) -> Knowledge:
    """The profiles in a file, whosever; the shipped ones without. Raises ProfileError."""
    return load_knowledge(path) if path else shipped_profiles()


def trace_from(said: str, *, profiles: str | None = None, form: str | None = None, seed: int = 1) -> Imported:
    """The trace in a file, or one made up as `synergy:400@6` says. Raises TraceError, ProfileError."""
    made = GENERATED.match(said)
    if made:
        return Imported(generate(made["name"], int(made["jobs"]), seed, float(made["rate"] or _RATE)))
    seconds = iteration_seconds(profiles) if profiles and is_synergy(profiles) else {}
    return read_trace(said, form, Sources(seconds))


def world_from(cluster: str, trace: Trace, profiles: str | None) -> World:
    """Raises TraceError, ProfileError."""
    return World(load_cluster(cluster).nodes, trace, knowledge_from(profiles))
