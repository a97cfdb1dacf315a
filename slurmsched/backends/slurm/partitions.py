"""Partitions, reservations and the settings of slurmctld that a round needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurmsched.backends.slurm.errors import NotUnderstoodError
from slurmsched.backends.slurm.hostlist import expand
from slurmsched.backends.slurm.records import fields_of
from slurmsched.backends.slurm.values import moment, said, seconds, whole
from slurmsched.model import Partition, Reservation

__all__ = ["Configuration", "configuration_of", "partition_of", "reservation_of"]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Of `scontrol show config`: who Slurm is here. `preempt_exempt_time` in seconds; `private_data` is what ordinary
    users do not see of others; `tracked` are the TRES that accounting counts, as `gres/gpu`."""

    cluster: str
    release: str
    slurm_user: str
    preempt_exempt_time: int = 0
    private_data: frozenset[str] = frozenset()
    tracked: frozenset[str] = frozenset()


def configuration_of(text: str) -> Configuration:
    """The settings in the output of `scontrol show config`. Raises NotUnderstoodError."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            found.setdefault(key.strip(), value.strip())
    if "SLURM_VERSION" not in found:
        raise NotUnderstoodError("scontrol show config does not say which release of Slurm this is")
    return Configuration(
        cluster=found.get("ClusterName", ""),
        release=found["SLURM_VERSION"],
        slurm_user=found.get("SlurmUser", "").partition("(")[0],
        preempt_exempt_time=seconds(found.get("PreemptExemptTime")) or 0,
        private_data=_names(found.get("PrivateData", "").lower()) - {"none"},
        tracked=_names(found.get("AccountingStorageTRES", "").lower()),
    )


def partition_of(line: str, preempt_exempt_time: int = 0) -> Partition:
    """One line of `scontrol -o show partition`. Raises NotUnderstoodError."""
    fields = fields_of(line)
    if "PartitionName" not in fields:
        raise NotUnderstoodError(f"not a partition: {line[:60]!r}")
    return Partition(
        name=fields["PartitionName"],
        nodes=frozenset(expand(fields.get("Nodes", ""))),
        up=fields.get("State") == "UP",
        max_time=seconds(fields.get("MaxTime")),
        default=fields.get("Default") == "YES",
        priority_tier=whole(fields.get("PriorityTier"), 1),
        preempt_exempt_time=preempt_exempt_time,
    )


def reservation_of(line: str) -> Reservation:
    """One line of `scontrol -o show reservation`. Raises NotUnderstoodError."""
    fields = fields_of(line)
    if "ReservationName" not in fields:
        raise NotUnderstoodError(f"not a reservation: {line[:60]!r}")
    return Reservation(
        name=fields["ReservationName"],
        nodes=frozenset(expand(fields.get("Nodes", ""))),
        start=moment(fields.get("StartTime")) or 0.0,
        end=moment(fields.get("EndTime")) or float("inf"),
        users=_names(fields.get("Users")),
        accounts=_names(fields.get("Accounts")),
    )


def _names(text: str | None) -> frozenset[str]:
    listed: Iterable[str] = said(text).split(",")
    return frozenset(name for name in listed if name)
