"""Limits of associations and QOS: `scontrol show assoc_mgr`, and of `sacctmgr show qos` what that does not show.

slurmctld shows limits per user and account only of those with running jobs, and no flags of a QOS. A comment, which
coordinators write, is the last field of an association's record: the text before it is parsed by a grammar, and a
record that is there twice makes all of them unreadable, so that no text can pose as the limits of others.

Source: src/scontrol/info_assoc_mgr.c and src/slurmctld/acct_policy.c of Slurm 25.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from slurmsched.backends.protocol import BackendError, UnreachableError
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.records import parse_mebibytes, parse_tres
from slurmsched.model.limits import AssociationLimits, Limits, LimitSet, QosLimits

_ASSOCIATION: Final = re.compile(
    r"ClusterName=\S* Account=(?P<account>.*?) UserName=(?:(?P<user>\S+)\(\d+\))? Partition=(?P<partition>\S*)"
    r" Priority=\d+ ID=(?P<id>\d+) SharesRaw/Norm/Level/Factor=\S+ UsageRaw/Norm/Efctv=\S+"
    r" ParentAccount=(?:.*?\((?P<parent>\d+)\))? (?:Lft=\d+ )?(?:Lineage=.*? )?(?:DefAssoc=\w+ )?(?P<limits>GrpJobs=.*)"
)
_QOS: Final = re.compile(r"QOS=(?P<name>.*?)\(\d+\) UsageRaw=\S+ (?P<limits>GrpJobs=.*?) Account Limits=")
_VALUE: Final = re.compile(r"(N|\d+)(?:\((\d+)\))?\Z")
_RESOURCES: Final = {"cpu": "cpus", "mem": "memory", "node": "nodes", "gres/gpu": "gpus"}
_ADJUSTED: Final = frozenset({"cpus", "memory"})
"""What rounds give more or less of than was asked."""
_QOS_COLUMNS: Final = (
    "Name", "Flags", "LimitFactor", "MaxTRESPU", "MaxTRESPA", "MaxJobsPU", "MaxJobsPA", "MaxTRESRunMinsPU",
    "MaxTRESRunMinsPA",
)  # fmt: skip

_PREEMPTION_COLUMNS: Final = ("Name", "Preempt", "PreemptMode")


def read_limits(commands: Commands) -> Limits:
    """The limits, or why they are unknown. Raises UnreachableError."""
    try:
        shown = commands.read("scontrol", "-o", "show", "assoc_mgr", "flags=assoc,qos")
        return parse_limits(shown, commands.read("sacctmgr", "-nP", "show", "qos", f"format={','.join(_QOS_COLUMNS)}"))
    except UnreachableError:
        raise
    except BackendError as error:
        return Limits(enforced=True, unread=str(error))


def read_preempting_qos(commands: Commands, *, within: bool) -> frozenset[str]:
    """The QOS for whose jobs Slurm may preempt those of others, or of the same QOS; `within` is how the cluster has it
    for QOS that say nothing. Raises BackendError."""
    columns = ",".join(_PREEMPTION_COLUMNS)
    return parse_preempting_qos(commands.read("sacctmgr", "-nP", "show", "qos", f"format={columns}"), within)


def parse_preempting_qos(text: str, within: bool) -> frozenset[str]:
    """Parses the table of `read_preempting_qos`. Raises SlurmParseError."""
    preempting = set[str]()
    for line in filter(None, text.splitlines()):
        cells = line.split("|")
        if len(cells) != len(_PREEMPTION_COLUMNS):
            raise SlurmParseError(f"not a line of sacctmgr show qos: {line[:60]!r}")
        name, others, mode = cells[0], cells[1], cells[2].lower().split(",")
        if others or "within" in mode or (within and mode in (["cluster"], [""])):
            preempting.add(name)
    return frozenset(preempting)


def parse_limits(assoc_mgr: str, qos: str) -> Limits:
    """The limits that both commands print. Raises SlurmParseError."""
    associations, ids = dict[tuple[str, str, str], AssociationLimits](), set[int]()
    for found in filter(None, map(_ASSOCIATION.match, assoc_mgr.splitlines())):
        user = found["user"] or ""
        limits = _limit_set(found["limits"], user)
        row = AssociationLimits(
            int(found["id"]), found["account"], user, found["partition"], int(found["parent"] or 0), limits
        )
        key = row.account, row.user, row.partition
        if key in associations or row.id in ids:
            raise SlurmParseError(f"slurmctld shows an association twice: number {row.id}")
        associations[key] = row
        ids.add(row.id)
    shown = dict[str, LimitSet]()
    for found in filter(None, map(_QOS.match, assoc_mgr.splitlines())):
        if found["name"] in shown:
            raise SlurmParseError("slurmctld shows a QOS twice")
        shown[found["name"]] = _limit_set(found["limits"])
    if not associations:
        raise SlurmParseError("slurmctld shows no association to this user")
    return Limits(True, "", tuple(associations.values()), tuple(_parse_qos(qos, shown)))


def _limit_set(text: str, user: str = "") -> LimitSet:
    """The limits of a record; a comment ends it, and the first field of a name counts."""
    fields = dict[str, str]()
    for word in text.partition(" Comment=")[0].split():
        name, _, value = word.partition("=")
        fields.setdefault(name, value)
    return LimitSet(
        group=_amounts(fields.get("GrpTRES")) | _jobs(fields.get("GrpJobs")),
        per_association=_jobs(fields.get("MaxJobs")) if user else {},
        per_job=_amounts(fields.get("MaxTRESPJ")),
        per_node=_amounts(fields.get("MaxTRESPN")),
        minutes_per_job=_amounts(fields.get("MaxTRESMinsPJ")),
        exhausted={name: limit for name, (limit, used) in _values(fields.get("GrpTRESMins")).items() if used >= limit},
        fixed=_fixed(fields),
    )


def _fixed(fields: Mapping[str, str]) -> frozenset[str]:
    """The resources that no job gets more of: Slurm itself holds jobs to what is billed and to running minutes."""
    fixed = frozenset[str]()
    for name, text in fields.items():
        if name.startswith(("GrpTRES", "MaxTRES")):
            limited = set(_values(text))
            fixed |= (
                _ADJUSTED if "billing" in limited else limited if "Mins" in name and name != "MaxTRESMinsPJ" else set()
            )
    return fixed & _ADJUSTED


def _values(text: str | None) -> dict[str, tuple[int, int]]:
    """The limit and the use of each resource that has a limit: `cpu=4(2),mem=N(0)` gives `cpus: (4, 2)`.

    Raises SlurmParseError.
    """
    values = dict[str, tuple[int, int]]()
    for name, value in parse_tres(text).items():
        found = _VALUE.match(value)
        if found is None:
            raise SlurmParseError(f"not a limit: {name[:20]}={value[:20]!r}")
        if found[1] != "N":
            values[_resource(name)] = int(found[1]), int(found[2] or 0)
    return values


def _resource(name: str) -> str:
    return _RESOURCES.get(name) or name.replace("gres/gpu:", "gpus:")


def _amounts(text: str | None) -> dict[str, int]:
    """The limits on what a job can take of nodes."""
    return {name: limit for name, (limit, _) in _values(text).items() if _is_counted(name)}


def _is_counted(name: str) -> bool:
    return name in _RESOURCES.values() or name.startswith("gpus:")


def _jobs(text: str | None) -> dict[str, int]:
    limit = (text or "").partition("(")[0]
    return {"jobs": int(limit)} if limit.isdecimal() else {}


def _parse_qos(text: str, shown: Mapping[str, LimitSet]) -> Iterator[QosLimits]:
    """Each QOS of sacctmgr's table, with its limits that slurmctld shows. Raises SlurmParseError."""
    for line in filter(None, text.splitlines()):
        cells = line.split("|")
        if len(cells) != len(_QOS_COLUMNS):
            raise SlurmParseError(f"not a line of sacctmgr show qos: {line[:60]!r}")
        name, flags, factor, per_user, per_account, jobs_of_user, jobs_of_account, *running = cells
        limits = shown.get(name, LimitSet())
        limited = {
            _resource(resource) for amounts in (per_user, per_account, *running) for resource in parse_tres(amounts)
        }
        minutes = {_resource(resource) for amounts in running for resource in parse_tres(amounts)}
        yield QosLimits(
            name,
            replace(
                limits,
                per_user=_written_amounts(per_user) | _jobs(jobs_of_user),
                per_account=_written_amounts(per_account) | _jobs(jobs_of_account),
                fixed=limits.fixed | (_ADJUSTED if "billing" in limited else minutes & _ADJUSTED),
            ),
            "OverPartQOS" in flags.split(","),
            _factor(factor),
        )


def _written_amounts(text: str) -> dict[str, int]:
    """The amounts as sacctmgr writes them: `cpu=20,mem=100G`. Raises SlurmParseError."""
    amounts = {_resource(name): parse_mebibytes(amount) for name, amount in parse_tres(text).items()}
    return {name: amount for name, amount in amounts.items() if _is_counted(name)}


def _factor(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise SlurmParseError(f"not a LimitFactor: {text[:20]!r}") from None
