"""What partitions, QOS and reservations say of jobs: where a job may be planned, and which jobs are left to Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from slurmsched.model import Job, JobId, JobState, Partition, Reason, ReasonCode, Request, Reservation, Snapshot
from slurmsched.rounds.scope import PartitionTotals

_SHARING: Final = {
    "EXCLUSIVE": "gives each job whole nodes (OverSubscribe=EXCLUSIVE)",
    "USER": "shares a node among the jobs of one user only (ExclusiveUser)",
    "TOPO": "shares a part of the topology with no other job (ExclusiveTopo)",
}


def within_time_limits(snapshot: Snapshot) -> Snapshot:
    """The snapshot with waiting jobs in those of their partitions that allow their time limits; in all where none does,
    which Slurm then says."""
    known, narrowed = snapshot.partitions_by_name, dict[JobId, Job]()
    for job in snapshot.jobs_in_state(JobState.PENDING):
        enough = [name for name in job.partitions if name not in known or _allows_time(known[name], job)]
        if 0 < len(enough) < len(job.partitions):
            narrowed[job.id] = replace(job, partitions=tuple(enough))
    if not narrowed:
        return snapshot
    return replace(snapshot, jobs=tuple(narrowed.get(job.id, job) for job in snapshot.jobs))


def _allows_time(partition: Partition, job: Job) -> bool:
    return partition.max_time is None or (job.time_limit is not None and job.time_limit <= partition.max_time)


def jobs_left_to_slurm(snapshot: Snapshot, totals: Mapping[str, PartitionTotals]) -> dict[JobId, Reason]:
    """The jobs that are left to Slurm because of one of their partitions, their QOS or a reservation, each with the
    reason. `totals` are those of the partitions."""
    left, by_reservation = dict[JobId, Reason](), _by_their_reservations(snapshot)
    for job in snapshot.jobs:
        why = by_reservation.get(job.id) or next(_reasons(job, snapshot.partitions_of(job), snapshot, totals), "")
        if why:
            left[job.id] = Reason(ReasonCode.UNMANAGED, {"why": why})
    return left


def _reasons(
    job: Job, named: Sequence[Partition], snapshot: Snapshot, totals: Mapping[str, PartitionTotals]
) -> Iterator[str]:
    if snapshot.preempting_qos is None:
        yield "Slurm preempts by QOS, and which QOS may preempt others cannot be read"
    elif job.qos in snapshot.preempting_qos or any(partition.preempts for partition in named):
        yield "Slurm may preempt other jobs for it"
    for partition in named:
        if partition.sharing:
            several = f"lets several jobs have a CPU (OverSubscribe={partition.sharing})"
            yield f"its partition {partition.name} {_SHARING.get(partition.sharing, several)}"
    if job.state is not JobState.PENDING:
        return
    for partition in named:
        # With nodes named, Slurm does not look at the other partitions.
        if len(job.partitions) > 1 and not partition.admits(job.account, job.qos):
            yield f"its partition {partition.name} does not admit its account or QOS"
        asked, most = _cpus_on_node(job.original_request, totals.get(partition.name)), partition.max_cpus_per_node
        if most is not None and asked > most:
            beyond = f"more CPUs on a node ({asked} of {most})"
            yield f"it asks for {beyond} than its partition {partition.name} lets its jobs have"


def _cpus_on_node(request: Request, totals: PartitionTotals | None) -> int:
    """The CPUs that the request has on each of as few nodes as it may have."""
    gpus = totals.gpus.get(request.gpu_type or "", (0, 0))[0] if totals else 0
    return -(-request.cpus // max(request.nodes, -(-request.gpus // gpus) if gpus else 1))


_FLEX: Final = "its reservation has the flag FLEX, so it may also start before and outside of it (--reservation)"


def _by_their_reservations(snapshot: Snapshot) -> dict[JobId, str]:
    """Why jobs that may run in a reservation and outside of it are left to Slurm: those of one with the flag FLEX, in
    the words of `--reservation=flex` in the table of sbatch's options, and those that one with MAGNETIC may take."""
    flex = {reservation.name for reservation in snapshot.reservations if reservation.flex}
    active = Reservation.active(snapshot.reservations, snapshot.time)
    magnetic = [r for r in snapshot.reservations if r.magnetic and (r.flex or r in active)]
    return {
        job.id: why
        for job in (snapshot.jobs if flex or magnetic else ())
        if (why := _FLEX if job.reservation in flex else _magnetic_reason(job, magnetic, snapshot))
    }


def _magnetic_reason(job: Job, magnetic: Iterable[Reservation], snapshot: Snapshot) -> str:
    """Say which of these reservations may take the job, whether it has or Slurm may yet let it; empty for none."""
    known = [p for p in snapshot.partitions if p.name in job.partitions]
    nodes = frozenset().union(*(partition.nodes for partition in known))
    for reservation in magnetic:
        may_take = job.reservation in ("", reservation.name) and (not known or not nodes.isdisjoint(reservation.nodes))
        if may_take and reservation.may_admit(job.user, job.account):
            return f"Slurm may start it in the reservation {reservation.name}, which has the flag MAGNETIC"
    return ""
