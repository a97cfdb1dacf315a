"""Limits of associations and QOS in Slurm's accounting, as of one poll: Slurm does not hold us to them, we do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Amounts = Mapping[str, int]
"""Amounts by resource: `cpus`, `memory` (MiB), `nodes`, `jobs`, `gpus`, `gpus:TYPE`. What is missing is not limited."""


@dataclass(frozen=True, slots=True)
class LimitSet:
    """The limits of one association or QOS. Those `per_user` and `per_account` only a QOS has."""

    group: Amounts = field(default_factory=dict)
    """Of all running jobs together: GrpTRES, GrpJobs."""
    per_association: Amounts = field(default_factory=dict)
    """Of all running jobs of a user's association: MaxJobs."""
    per_user: Amounts = field(default_factory=dict)
    """Of all running jobs of a user: MaxTRESPU, MaxJobsPU."""
    per_account: Amounts = field(default_factory=dict)
    """Of all running jobs of an account: MaxTRESPA, MaxJobsPA."""
    per_job: Amounts = field(default_factory=dict)
    """MaxTRESPJ, sacctmgr's MaxTRES."""
    per_node: Amounts = field(default_factory=dict)
    """Of a job, on the mean of its nodes: MaxTRESPN."""
    minutes_per_job: Amounts = field(default_factory=dict)
    """Amounts times minutes of the job's time limit: MaxTRESMinsPJ."""
    exhausted: Amounts = field(default_factory=dict)
    """The limits in GrpTRESMins that are used up, in minutes."""
    fixed: frozenset[str] = frozenset()
    """Resources of which no job gets more than it asks for, since limits of other kinds count them: what is billed, and
    minutes of running jobs."""


@dataclass(frozen=True, slots=True)
class AssociationLimits:
    """The limits of an account or, with `user`, of a user in it; with `partition` only there. `parent` is the id of the
    account's parent, 0 for the root and for users."""

    id: int
    account: str
    user: str = ""
    partition: str = ""
    parent: int = 0
    limits: LimitSet = LimitSet()


@dataclass(frozen=True, slots=True)
class QosLimits:
    """The limits of a QOS. `over_partition`: they come before those of the partition's QOS (OverPartQOS). `factor`
    multiplies the limits of associations for its jobs (LimitFactor); None leaves them."""

    name: str
    limits: LimitSet = LimitSet()
    over_partition: bool = False
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What `AccountingStorageEnforce=limits` holds jobs to. Not `enforced`: nothing is limited. `unread` says why the
    limits are unknown; no job is given more than it asks for then."""

    enforced: bool = False
    unread: str = ""
    associations: tuple[AssociationLimits, ...] = ()
    qos: tuple[QosLimits, ...] = ()


NO_LIMITS = Limits()
