"""What of a report is believed: nothing that Slurm knows better, and only what can be so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from slurmsched.jobside.report import Report
from slurmsched.model import Job, Measured, Node, Resources
from slurmsched.store.measurements import Gain, Word

__all__ = ["doubt", "gain", "word"]

_SLACK: Final = 60.0
"""Seconds by which clocks, and what they count, may differ."""

_LEAST: Final = 1.0
"""Seconds of work that say something of a rate."""

_FASTEST: Final = 100_000.0
"""Steps per second that nobody does."""

_APART: Final = 10.0
"""A claimed rate so many times that of the steps is no matter of averaging."""


def word(job: Job, report: Report) -> Word:
    """What is kept of a report until the next one."""
    return Word(job.id, report.run, report.at, report.steps, report.done, report.busy)


def doubt(job: Job, report: Report, before: Word | None, now: float) -> str | None:
    """Why the report cannot be so; None where it can. `before` is the last word of the same run that was believed."""
    return next((said for check in _DOUBTS if (said := check(job, report, before, now)) is not None), None)


def gain(job: Job, report: Report, before: Word | None, nodes: Mapping[str, Node]) -> Gain | None:
    """What the report adds to what was measured, with what Slurm says the job has; None where that is nothing, and for
    jobs on several types of GPUs, whose rate says nothing of either."""
    steps, seconds = _since(report, before)
    types = {share.gpu_type for share in job.shares}
    hosts = [(nodes[share.node], share.resources.gpus) for share in job.shares if share.node in nodes]
    if steps <= 0 or seconds < _LEAST or len(types) != 1 or not job.gpus or len(hosts) != len(job.shares):
        return None
    had, fair = job.allocated, sum((node.proportional(gpus) for node, gpus in hosts), Resources())
    each = 1 / job.gpus
    measured = Measured(
        gpu_type=types.pop(),
        gpus=job.gpus,
        nodes=len(job.shares),
        cpus=had.cpus * each,
        memory=had.memory * each,
        fair_cpus=fair.cpus * each,
        fair_memory=fair.memory * each,
        rate=steps / seconds,
        at=report.at,
    )
    return Gain(job.id, measured, steps, seconds)


def _since(report: Report, before: Word | None) -> tuple[int, float]:
    """Steps and seconds of this run that are new."""
    return (report.done - before.done, report.busy - before.busy) if before else (report.done, report.busy)


_Check = Callable[[Job, Report, Word | None, float], str | None]


def _another_job(job: Job, report: Report, _before: Word | None, _now: float) -> str | None:
    return f"reports as job {report.job}" if report.job != job.id else None


def _another_run(job: Job, report: Report, _before: Word | None, _now: float) -> str | None:
    return f"reports of a run {report.run} that has not been" if report.run > job.restarts else None


def _another_place(job: Job, report: Report, _before: Word | None, _now: float) -> str | None:
    share = next((share for share in job.shares if share.node == report.node), None)
    if report.run != job.restarts or not report.node:
        return None
    if share is None:
        return f"reports from {report.node}, where it is not"
    foreign = share.indices and not set(report.gpus) <= set(share.indices)
    return f"reports GPUs of {report.node} that it has not" if foreign else None


def _another_time(_job: Job, report: Report, before: Word | None, now: float) -> str | None:
    if report.at > now + _SLACK:
        return "reports from the future: look at the clock of its node"
    return "reports an older time than before" if before is not None and report.at < before.at else None


def _more_than_there_was(job: Job, report: Report, _before: Word | None, _now: float) -> str | None:
    if report.run == job.restarts and report.busy > job.run_time + _SLACK:
        return f"claims {report.busy:.0f} s of work in a run of {job.run_time:.0f} s"
    return f"claims {report.done} steps of {report.steps}" if report.done > report.steps else None


def _less_than_before(_job: Job, report: Report, before: Word | None, _now: float) -> str | None:
    steps, seconds = _since(report, before)
    fell = steps < 0 or seconds < 0
    return "counts backwards within a run" if fell else None


def _too_fast(_job: Job, report: Report, before: Word | None, _now: float) -> str | None:
    steps, seconds = _since(report, before)
    if max(steps - 1, 0) > _FASTEST * seconds or report.rate > _FASTEST:
        return f"claims more than {_FASTEST:.0f} steps per second"
    if seconds >= _SLACK and steps and not 1 / _APART < report.rate * seconds / steps < _APART:
        return f"claims {report.rate:.3g} steps per second and counts {steps / seconds:.3g}"
    return None


_DOUBTS: Final[tuple[_Check, ...]] = (
    _another_job,
    _another_run,
    _another_place,
    _another_time,
    _more_than_there_was,
    _less_than_before,
    _too_fast,
)
