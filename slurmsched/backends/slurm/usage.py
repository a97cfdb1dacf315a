"""What users used on all clusters of a site, as slurmdbd keeps it (`sreport`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.records import parse_count

_HOUR: Final = 3600
_COLUMNS: Final = ("Cluster", "Login", "Account", "Used")


def usage_query(since: float, until: float) -> tuple[str, ...]:
    """The sreport command for the GPU-seconds of each user on each cluster between these times (unix seconds).

    slurmdbd adds up usage once an hour: the hour that has begun is not in it.
    """
    start, end = (
        datetime.fromtimestamp(at // _HOUR * _HOUR, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at in (since, until)
    )
    report = ("cluster", "UserUtilizationByAccount", f"Start={start}", f"End={end}", f"Format={','.join(_COLUMNS)}")
    return ("sreport", "-a", "-n", "-P", "-t", "Seconds", "-T", "gres/gpu", *report)


def read_usage(commands: Commands, since: float, until: float) -> Mapping[str, Mapping[str, int]]:
    """GPU-seconds by user and cluster between these times (unix seconds), as far as slurmdbd shows them to the caller.

    Raises BackendError.
    """
    return parse_usage(commands.read_accounting(*usage_query(since, until)))


def parse_usage(text: str) -> Mapping[str, Mapping[str, int]]:
    """GPU-seconds by user and cluster: the sum of a user's accounts. Raises SlurmParseError."""
    usage: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in filter(None, text.splitlines()):
        cells = line.split("|")
        if len(cells) != len(_COLUMNS) or not all(cells[:2]):
            raise SlurmParseError(f"not a line of sreport: {line[:60]!r}")
        usage[cells[1]][cells[0]] += parse_count(cells[3])
    return {user: dict(clusters) for user, clusters in usage.items()}
