"""What one look at the cluster shows: release, nodes, GPUs, rights, the clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.doctor.finding import Finding, fine, hint, mend
from slurmsched.model import Snapshot
from slurmsched.report.quantities import count, duration
from slurmsched.settings.definition import Mode, Settings

__all__ = ["about_clock", "about_nodes", "about_release", "about_rights"]

OLDEST, NEWEST = (22, 5), (26, 5)
"""Releases of Slurm that are tested."""

_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")
_NAMED: Final = 20
"""So many jobs that are set aside are named one by one."""
_SET_ASIDE: Final = "it waits until nobody else does, a day at most; 'scontrol show job {job}' shows it"
_SKEW: Final = 5.0
"""Seconds by which two clocks may differ unnoticed."""


def about_release(snapshot: Snapshot) -> Finding:
    """Whether this release of Slurm is one that is tested."""
    match = _RELEASE.search(snapshot.release)
    if match is None:
        return hint("Slurm", f"says it is release {snapshot.release or 'unknown'}", "see 'scontrol --version'")
    release = (int(match[1]), int(match[2]))
    if OLDEST <= release <= NEWEST:
        return fine("Slurm", f"release {snapshot.release}, cluster {snapshot.cluster or 'without a name'}")
    tested = f"{OLDEST[0]}.{OLDEST[1]:02} to {NEWEST[0]}.{NEWEST[1]:02}"
    return hint(
        "Slurm", f"release {snapshot.release} is not tested", f"tested are {tested}: stay in mode observe at first"
    )


def about_nodes(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Whether Slurm shows GPUs, with types, in partitions that are managed."""
    gpus = [gpu for node in snapshot.nodes for gpu in node.gpus]
    if not gpus:
        yield mend("GPUs", "no node has any", "describe them: Gres= in slurm.conf, and gres.conf ('synsched render')")
        return
    types = sorted({gpu.type for gpu in gpus if gpu.type})
    nodes = sum(bool(node.gpus) for node in snapshot.nodes)
    yield fine("GPUs", f"{count(len(gpus), 'GPU')} on {count(nodes, 'node')}: {', '.join(types) or 'without a type'}")
    if any(not gpu.type for gpu in gpus):
        yield hint(
            "GPUs", "some have no type: all count as alike", "write Type= in gres.conf ('synsched render gres.conf')"
        )
    for name in sorted(set(settings.manage.partitions) - set(snapshot.partition)):
        yield mend(
            "partitions", f"manage.partitions names {name}, which does not exist", "see 'sinfo -s' for the names"
        )
    if not settings.manage.partitions and not settings.manage.qos:
        which = "only jobs with a synsched: hint are managed" if settings.manage.opt_in else "no job is managed"
        yield hint("partitions", which, "set manage.partitions or manage.qos for more")
    for oddity in snapshot.oddities:
        yield hint("Slurm", oddity, "'synsched dump' records what Slurm showed")
    for aside in snapshot.set_aside[:_NAMED]:
        of = f" of {aside.user}" if aside.user else ""
        yield hint("jobs", f"job {aside.job}{of} is set aside: {aside.reason}", _SET_ASIDE.format(job=aside.job))
    if len(snapshot.set_aside) > _NAMED:
        more = count(len(snapshot.set_aside) - _NAMED, "more job")
        yield hint("jobs", f"{more} set aside", "see 'synsched status --json'")


def about_rights(identity: Identity, settings: Settings) -> Finding:
    """Whether we may do what the settings ask of us."""
    needed, what = _needed(settings)
    have = f"{identity.user} acts as {_ROLES[identity.privilege]}"
    if identity.privilege >= needed:
        return fine("rights", have)
    remedy = {
        Privilege.OPERATOR: f"sacctmgr modify user {identity.user} set AdminLevel=Operator",
        Privilege.ADMINISTRATOR: f"sacctmgr modify user {identity.user} set AdminLevel=Administrator",
    }.get(needed, "run as SlurmUser or root, or switch nodes.weights and nodes.fragments off")
    return mend("rights", f"{have}; {what} needs {_ROLES[needed]}", remedy)


def about_clock(ours: float, theirs: float | None) -> Finding:
    """Whether slurmctld's clock (unix seconds, to the second) and ours agree."""
    if theirs is None:
        return hint("clock", "slurmctld's time could not be read", "see the first line of 'scontrol show config'")
    skew = abs(ours - theirs)
    if skew > _SKEW:
        return mend("clock", f"is {duration(skew)} away from slurmctld's: ages and leads are wrong", "run NTP on both")
    return fine("clock", "agrees with slurmctld's")


_ROLES: Final = {
    Privilege.NONE: "an ordinary user",
    Privilege.OPERATOR: "Operator",
    Privilege.ADMINISTRATOR: "Administrator",
    Privilege.SLURM_USER: "SlurmUser or root",
}


def _needed(settings: Settings) -> tuple[Privilege, str]:
    if settings.rounds.mode is Mode.OBSERVE:
        return Privilege.NONE, "mode observe"
    if settings.nodes.weights or settings.nodes.fragments:
        return Privilege.SLURM_USER, "writing node weights or files"
    if settings.nodes.admin_comment:
        return Privilege.ADMINISTRATOR, "nodes.admin_comment"
    return Privilege.OPERATOR, f"mode {settings.rounds.mode.value}"
