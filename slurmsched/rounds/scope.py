"""Which jobs are ours to schedule. Everything else is a fact."""

from __future__ import annotations

from slurmsched.model import Code, Job, JobState, Reason
from slurmsched.policies.systems import PARTS
from slurmsched.settings.definition import Manage, Settings

__all__ = ["unmanaged"]

_LIVE = (JobState.PENDING, JobState.RUNNING)


def unmanaged(job: Job, settings: Settings) -> Reason | None:
    """Why the job is left to Slurm; None where it is managed.

    Managed are batch jobs of whole GPUs, waiting or running, single ones and array tasks alike, in a managed partition
    or QOS or with a hint where hints opt in; under a system that places parts of GPUs also jobs with those, or with
    none.
    """
    parts = settings.policy.system in PARTS
    return _out_of_scope(job, settings.manage) or (None if parts else _of_parts(job)) or _of_another_kind(job)


def _out_of_scope(job: Job, manage: Manage) -> Reason | None:
    barred = sorted(set(job.partitions))
    # Only where it can go nowhere else: nobody is left to Slurm in a managed partition for naming one of these as well.
    if barred and set(barred) <= set(manage.never_partitions):
        return _because(f"nothing is managed in partition {barred[0]}")
    if set(job.partitions) & set(manage.partitions) or job.qos in manage.qos:
        return None
    if not manage.opt_in:
        return _because("neither its partition nor its QOS is managed")
    return None if job.hints.given else _because("it carries no synsched: hint, and its partition and QOS ask for none")


def _of_parts(job: Job) -> Reason | None:
    if job.request.shards or any(share.shards for share in job.shares):
        return Reason(Code.SHARDS)
    return Reason(Code.NO_GPU) if job.request.gpus == 0 and job.gpus == 0 else None


def _of_another_kind(job: Job) -> Reason | None:
    if job.request.shards and job.request.gpus:
        return Reason(Code.SHARDS)
    if not job.batch:
        return Reason(Code.NOT_BATCH)
    if "+" in job.id:
        return _because("it is part of a heterogeneous job, which Slurm starts as one")
    if job.unmanageable:
        return _because(job.unmanageable)
    return None if job.state in _LIVE else _because(f"it is {job.state_text.lower() or job.state}")


def _because(why: str) -> Reason:
    return Reason(Code.UNMANAGED, {"why": why})
