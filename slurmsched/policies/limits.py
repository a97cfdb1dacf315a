"""Limits of associations, QOS and partitions: what a job may be given at most, and whether it may start now.

An Operator's update makes Slurm forget the limits on the job's CPUs, memory and nodes (ADMIN_SET_LIMIT), so rounds hold
to them: no job gets by an update what its owner could not have asked for, and none starts that Slurm would not start.

Source: src/slurmctld/acct_policy.c of Slurm 25.11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode, Snapshot
from slurmsched.model.limits import Amounts, AssociationLimits, LimitSet, QosLimits
from slurmsched.policies.cluster.gang import fewest_nodes
from slurmsched.policies.cluster.resources import Allocation, Pools

_HOLDING: Final = (JobState.RUNNING, JobState.SUSPENDED)
_NOUNS: Final = {"cpus": "CPU", "nodes": "node", "jobs": "job", "gpus": "GPU"}


@dataclass(frozen=True, slots=True)
class ResourceCap:
    """The most that a round may give one job: CPUs and MiB of the whole job and on each node, and nodes; None: any."""

    cpus: int | None = None
    memory: int | None = None
    cpus_per_node: int | None = None
    memory_per_node: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class _Limit:
    """One amount: of all jobs in `group` together, or of each job. `name` is `GrpTRES of account vision`."""

    name: str
    resource: str
    amount: int
    group: Hashable = None


@dataclass(frozen=True, slots=True)
class _JobLimits:
    """The limits of all jobs of one user, account, QOS and partition, and the groups in which they are counted."""

    groups: frozenset[Hashable] = frozenset()
    shared: tuple[_Limit, ...] = ()
    per_job: tuple[_Limit, ...] = ()
    per_node: tuple[_Limit, ...] = ()
    minutes: tuple[_Limit, ...] = ()
    exhausted: tuple[_Limit, ...] = ()
    fixed: frozenset[str] = frozenset()


class LimitAccount:
    """What every group has in use, and what its limits leave. A session has a copy of its own.

    Where no limits are enforced it allows everything; where they are unknown it allows what jobs ask for.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._table = snapshot, snapshot.limits
        self._of: dict[tuple[object, ...], tuple[_JobLimits, ...]] = {}
        self._charges: dict[JobId, tuple[frozenset[Hashable], Mapping[str, int]]] = {}
        self._used: dict[Hashable, Counter[str]] = {}
        self._waiting: dict[Hashable, Counter[str]] = {}
        self._gpus: dict[tuple[tuple[str, ...], str | None], Sequence[int]] = {}
        self._partition_caps: dict[tuple[str, ...], ResourceCap | None] = {}
        self._nodes = {
            name: min((node.total.cpus for node in snapshot.nodes if name in node.partitions), default=0)
            for name in snapshot.partitions_by_name
        }
        if not self._table.enforced or self._table.unread:
            return
        self._chains = {(row.account, row.user, row.partition): row for row in self._table.associations}
        self._accounts = {row.id: row for row in self._table.associations}
        self._qos = {row.name: row for row in self._table.qos}
        for job in snapshot.jobs:
            if job.state in _HOLDING:
                has = job.allocated
                types = Counter[str]()
                for on_node in job.allocations:
                    types[f"gpus:{on_node.gpu_type}"] += on_node.resources.gpus
                self._add(job, {"cpus": has.cpus, "memory": has.memory, "gpus": has.gpus, "jobs": 1, **types})
            elif job.state is JobState.PENDING:
                for group in self._groups(job):
                    self._waiting.setdefault(group, Counter()).update(self._asked(job))
        self._charges_at_start = dict(self._charges)
        self._used_at_start = {group: Counter(used) for group, used in self._used.items()}

    def copy(self) -> LimitAccount:
        """Return an account that can be changed without changing this one."""
        other = object.__new__(LimitAccount)
        other.__dict__.update(self.__dict__)
        other._charges, other._used = dict(self._charges), {group: Counter(used) for group, used in self._used.items()}
        return other

    def charge(self, job: Job, allocation: Allocation, pools: Pools) -> None:
        """Count what the job was given, instead of what it had."""
        if not self._table.enforced or self._table.unread:
            return
        self.release(job.id)
        types = Counter[str]()
        for pool, gpus in zip(allocation.pools, allocation.gpus, strict=True):
            types[f"gpus:{pools.gpu_types[pool]}"] += gpus
        amounts = {"cpus": sum(allocation.cpus), "memory": sum(allocation.memory), "gpus": sum(allocation.gpus)}
        self._add(job, {**amounts, "jobs": 1, **types})

    def release(self, job: JobId) -> None:
        """Count nothing of the job any more."""
        groups, amounts = self._charges.pop(job, (frozenset(), {}))
        for group in groups:
            self._used[group].subtract(amounts)

    def reached(self, job: Job) -> Reason | None:
        """Return the limit by which Slurm would not start the job as it was submitted, with what is in use now; None
        if none does. A job in several partitions may start if one of them lets it."""
        if not self._table.enforced:
            return None
        by_partition = [self._reached(job, limits) for limits in self._limits(job)]
        return by_partition[0] if by_partition and None not in by_partition else None

    def cap(self, job: Job) -> ResourceCap | None:
        """Return the most that this round may give the job; None if nothing limits it.

        Of what a group shares, a job gets more than it asks for only if all that wait get what they ask for, and
        another job like it after them; what is left is divided evenly. It is never less than what the job asks for.
        """
        if not self._table.enforced:
            return self._partition_cap(job)
        asked = self._asked(job)
        if self._table.unread:
            of_partition = self._partition_cap(job) or ResourceCap()
            return replace(of_partition, cpus=asked["cpus"], memory=asked["memory"] or None)
        most = {name: self._most(name, job, asked) for name in ("cpus", "memory")}
        per_node, nodes = dict[str, int](), list[int]()
        for limits in self._limits(job):
            for limit in limits.per_node:
                per_node[limit.resource] = min(limit.amount, per_node.get(limit.resource, limit.amount))
            nodes += [limit.amount for limit in limits.per_job if limit.resource == "nodes"]
        of_partition = self._partition_cap(job) or ResourceCap()
        cap = ResourceCap(
            most["cpus"],
            most["memory"],
            _least(per_node.get("cpus"), of_partition.cpus_per_node),
            _least(per_node.get("memory"), of_partition.memory_per_node),
            _least(*nodes, of_partition.nodes),
        )
        return None if cap == ResourceCap() else cap

    def _partition_cap(self, job: Job) -> ResourceCap | None:
        """Return the most that the job's partitions let a job have; None if they do not limit it."""
        if job.partitions not in self._partition_caps:
            self._partition_caps[job.partitions] = _partition_cap(job, self._snapshot)
        return self._partition_caps[job.partitions]

    def _most(self, resource: str, job: Job, asked: Amounts) -> int | None:
        """Return the most of the resource for this job; None for any amount. It is the same all round."""
        most = list[int]()
        for limits in self._limits(job):
            most += [limit.amount for limit in limits.per_job if limit.resource == resource]
            if not asked[resource]:
                continue  # a default that is not known
            for limit in (limit for limit in limits.minutes if limit.resource == resource):
                most.append(limit.amount * 60 // job.time_limit if job.time_limit else asked[resource])
            most += [asked[resource]] if resource in limits.fixed else []
            for limit in (limit for limit in limits.shared if limit.resource == resource):
                waiting = self._waiting.get(limit.group, Counter())
                used = self._used_at_start.get(limit.group, Counter())[resource]
                had = self._charges_at_start.get(job.id, (frozenset(), {}))[1].get(resource, 0)
                another = asked[resource] * (1 if job.state is JobState.PENDING else 2)
                left = limit.amount - used + had - waiting[resource] - another
                most.append(asked[resource] + max(0, left) // max(waiting["jobs"], 1))
        return max(min(most), asked[resource]) if most else None

    def _used_by_others(self, limit: _Limit, job: Job) -> int:
        _, own = self._charges.get(job.id, (frozenset(), {}))
        return self._used.get(limit.group, Counter())[limit.resource] - own.get(limit.resource, 0)

    def _reached(self, job: Job, limits: _JobLimits) -> Reason | None:
        asked = self._asked(job)
        for limit in limits.exhausted:
            return _reason(f"{limit.name} allows {_minutes(limit)}, and they are used up")
        for limit in limits.per_job:
            if asked[limit.resource] > limit.amount:
                return _reason(f"{limit.name} allows a job {_amount(limit.resource, limit.amount)}")
        for limit in limits.per_node:
            if asked[limit.resource] // max(asked["nodes"], 1) > limit.amount:
                return _reason(f"{limit.name} allows a job {_amount(limit.resource, limit.amount)} on a node")
        for limit in limits.minutes:
            if job.time_limit and asked[limit.resource] * job.time_limit > limit.amount * 60:
                return _reason(f"{limit.name} allows a job {_minutes(limit)}")
        for limit in limits.shared:
            used = self._used_by_others(limit, job)
            if asked[limit.resource] and used + asked[limit.resource] > limit.amount:
                allowed = f"{limit.name} allows {_amount(limit.resource, limit.amount)}"
                return _reason(f"{allowed}, with {_amount(limit.resource, used)} in use" if used > 0 else allowed)
        return None

    def _asked(self, job: Job) -> Counter[str]:
        """What Slurm would count of the job as its owner submitted it, on the fewest nodes that may hold it.

        Memory is 0 where Slurm has a default.
        """
        request = job.original_request
        nodes = max(fewest_nodes(request, self._gpus_of_nodes(job)), request.nodes)
        cpus = max(request.cpus, nodes)  # a task on each of its nodes at least
        if request.exclusive:
            cpus = max(cpus, nodes * min((self._nodes.get(name, 0) for name in job.partitions), default=0))
        asked = Counter(cpus=cpus, memory=request.memory * nodes, nodes=nodes, gpus=request.gpus, jobs=1)
        if request.gpu_type:
            asked[f"gpus:{request.gpu_type}"] = request.gpus
        return asked

    def _gpus_of_nodes(self, job: Job) -> Sequence[int]:
        """The GPUs of the type that the job asks for on each node of its partitions, the most first."""
        key = job.partitions, job.original_request.gpu_type
        if key not in self._gpus:
            kind, partitions = job.original_request.gpu_type, set(job.partitions)
            nodes = (node for node in self._snapshot.nodes if not partitions.isdisjoint(node.partitions))
            counts = (sum(kind in (None, gpu.type) for gpu in node.gpus) for node in nodes)
            self._gpus[key] = sorted(filter(None, counts), reverse=True)
        return self._gpus[key]

    def _add(self, job: Job, amounts: Mapping[str, int]) -> None:
        groups = self._groups(job)
        self._charges[job.id] = groups, amounts
        for group in groups:
            self._used.setdefault(group, Counter()).update(amounts)

    def _groups(self, job: Job) -> frozenset[Hashable]:
        return frozenset(group for limits in self._limits(job) for group in limits.groups)

    def _limits(self, job: Job) -> tuple[_JobLimits, ...]:
        """The job's limits in each of its partitions, the same object for jobs that share them."""
        if not self._table.enforced or self._table.unread:
            return ()
        key = job.user, job.account, job.qos, job.partitions
        if key not in self._of:
            self._of[key] = tuple(self._resolve(job, partition) for partition in job.partitions or ("",))
        return self._of[key]

    def _resolve(self, job: Job, partition: str) -> _JobLimits:
        """The limits in this partition. A limit of the first QOS that has one counts, and those of associations only
        where no QOS has one of the kind."""
        rows, qos = tuple(self._chain(job, partition)), self._qos_in_order(job, partition)
        factor = next((row.factor for row in qos if row.factor is not None), None)
        groups: set[Hashable] = {("association", row.id) for row in rows}
        groups |= {("QOS", row.name) for row in qos}
        groups |= {("QOS", row.name, "user", job.user) for row in qos}
        groups |= {("QOS", row.name, "account", job.account) for row in qos}
        found: dict[str, list[_Limit]] = {kind: [] for kind in _KINDS}
        for kind in _KINDS:
            taken = set[str]()
            for of_qos in qos:
                amounts = getattr(of_qos.limits, kind)
                group = _group(kind, of_qos.name, job)
                found[kind] += [
                    _Limit(f"{_title(kind, r)} of QOS {of_qos.name}", r, amount, group)
                    for r, amount in amounts.items()
                    if r not in taken
                ]
                taken |= set(amounts) | (of_qos.limits.fixed if kind == "exhausted" else frozenset())
            if kind in ("per_user", "per_account"):
                continue
            of_users = any("jobs" in (*row.limits.per_user, *row.limits.per_account) for row in qos)
            if kind == "per_association" and of_users:
                taken.add("jobs")
            for row in rows if kind in ("group", "exhausted") else rows[:1]:
                for r, amount in getattr(row.limits, kind).items():
                    scaled = int(amount * factor) if factor and kind in ("group", "per_job") and r != "jobs" else amount
                    limit = _Limit(f"{_title(kind, r)} of {_who(row)}", r, scaled, ("association", row.id))
                    found[kind] += [limit] if r not in taken else []
        limits: list[LimitSet] = [row.limits for row in qos] + [row.limits for row in rows]
        shared = [limit for kind in _SHARED for limit in found[kind]]
        return _JobLimits(
            frozenset(groups),
            tuple(limit for limit in shared if limit.resource != "nodes"),
            # Nodes that jobs of a group share count once: only a job that needs more of them is known to be too much.
            (*found["per_job"], *(limit for limit in shared if limit.resource == "nodes")),
            tuple(found["per_node"]),
            tuple(found["minutes_per_job"]),
            tuple(found["exhausted"]),
            frozenset().union(*(each.fixed for each in limits)),
        )

    def _chain(self, job: Job, partition: str) -> Iterator[AssociationLimits]:
        """The user's association, then the account and the accounts above it."""
        user = self._chains.get((job.account, job.user, partition)) or self._chains.get((job.account, job.user, ""))
        if user is not None:
            yield user
        row, seen = self._chains.get((job.account, "", "")), set[int]()
        while row is not None and row.id not in seen:
            yield row
            seen.add(row.id)
            row = self._accounts.get(row.parent)

    def _qos_in_order(self, job: Job, partition: str) -> tuple[QosLimits, ...]:
        of_partition = self._snapshot.partitions_by_name.get(partition)
        names = [of_partition.qos if of_partition else "", job.qos]
        if (own := self._qos.get(job.qos)) is not None and own.over_partition:
            names.reverse()
        return tuple(self._qos[name] for name in dict.fromkeys(names) if name in self._qos)


_KINDS: Final = {
    "group": "GrpTRES",
    "per_association": "MaxTRES",
    "per_user": "MaxTRESPerUser",
    "per_account": "MaxTRESPerAccount",
    "per_job": "MaxTRES",
    "per_node": "MaxTRESPerNode",
    "minutes_per_job": "MaxTRESMins",
    "exhausted": "GrpTRESMins",
}
"""The kinds of limits in `LimitSet`, by sacctmgr's names."""
_SHARED: Final = ("group", "per_association", "per_user", "per_account")
"""Those on what several jobs have together."""


def _title(kind: str, resource: str) -> str:
    return _KINDS[kind].replace("TRES", "Jobs") if resource == "jobs" else _KINDS[kind]


def _group(kind: str, qos: str, job: Job) -> Hashable:
    return {
        "group": ("QOS", qos),
        "per_user": ("QOS", qos, "user", job.user),
        "per_account": ("QOS", qos, "account", job.account),
    }.get(kind)


def _who(row: AssociationLimits) -> str:
    where = f" in partition {row.partition}" if row.partition else ""
    return f"user {row.user} of account {row.account}{where}" if row.user else f"account {row.account}"


def _partition_cap(job: Job, snapshot: Snapshot) -> ResourceCap | None:
    """The most that the job's partitions let a job have; None if they do not limit it."""
    known = snapshot.partitions_of(job)
    cap = ResourceCap(
        None,
        None,
        _least(*(partition.max_cpus_per_node for partition in known)),
        _least(*(partition.max_memory_per_node for partition in known)),
        _least(*(partition.max_nodes for partition in known)),
    )
    return None if cap == ResourceCap() else cap


def _least(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


def _reason(text: str) -> Reason:
    return Reason(ReasonCode.LIMITS, {"reason": text})


def _minutes(limit: _Limit) -> str:
    """`60 CPU-minutes`, `60 MiB-minutes`, `60 v100 GPU-minutes`."""
    name, _, gpu_type = limit.resource.partition(":")
    noun = "MiB" if name == "memory" else f"{gpu_type} {_NOUNS.get(name, name)}".strip()
    return f"{limit.amount} {noun}-minutes"


def _amount(resource: str, amount: int) -> str:
    if resource == "memory":
        return f"{amount} MiB"
    name, _, gpu_type = resource.partition(":")
    noun = f"{gpu_type} {_NOUNS.get(name, name)}" if gpu_type else _NOUNS.get(name, name)
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"
