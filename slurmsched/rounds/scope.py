"""Which jobs are ours to schedule. Everything else is a fact."""

from __future__ import annotations

from slurmsched.model import Code, Job, JobState, Reason
from slurmsched.settings.definition import Manage

__all__ = ["unmanaged"]

_LIVE = (JobState.PENDING, JobState.RUNNING)


def unmanaged(job: Job, manage: Manage) -> Reason | None:
    """Why the job is left to Slurm; None where it is managed.

    Managed are batch jobs of whole GPUs, waiting or running, single ones and array tasks alike, in a managed partition
    or QOS or with a hint where hints opt in.
    """
    return _out_of_scope(job, manage) or _of_another_kind(job)


def _out_of_scope(job: Job, manage: Manage) -> Reason | None:
    barred = sorted(set(job.partitions) & set(manage.never_partitions))
    if barred:
        return _because(f"nothing is managed in partition {barred[0]}")
    if set(job.partitions) & set(manage.partitions) or job.qos in manage.qos:
        return None
    if not manage.opt_in:
        return _because("neither its partition nor its QOS is managed")
    return None if job.hints.given else _because("it carries no synsched: hint, and its partition and QOS ask for none")


def _of_another_kind(job: Job) -> Reason | None:
    if job.request.shards or any(share.shards for share in job.shares):
        return Reason(Code.SHARDS)
    if job.request.gpus == 0 and job.gpus == 0:
        return Reason(Code.NO_GPU)
    if not job.batch:
        return Reason(Code.NOT_BATCH)
    if "+" in job.id:
        return _because("it is part of a heterogeneous job, which Slurm starts as one")
    if job.unmanageable:
        return _because(job.unmanageable)
    return None if job.state in _LIVE else _because(f"it is {job.state_text.lower() or job.state}")


def _because(why: str) -> Reason:
    return Reason(Code.UNMANAGED, {"why": why})
