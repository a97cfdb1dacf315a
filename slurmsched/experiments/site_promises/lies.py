"""What a user can tell or do to be served before others: a table of lies, each of which changes what is submitted.

A lie gets a user's jobs as an honest owner submits them, and returns what the liar submits in their place. The work
stays the same, and cut jobs also load a checkpoint at each start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from slurmsched.backends.simulated import Submission, VirtualCluster
from slurmsched.experiments.mixed.benchmark_workloads import SITE_OPTIONS, hinted_submission
from slurmsched.jobside.report import Report, Stage
from slurmsched.model import JobId, JobState, Node
from slurmsched.settings.definition import Settings, TicketSettings
from slurmsched.traces import TraceJob
from slurmsched.traces.generators import HOUR, MINUTE

LIAR_ACCOUNTS: Final = ("physics", "biology", "medicine")
"""The accounts of the site that lists them; users have one each, and the liar may charge all."""
_ACCOUNT_SETTINGS: Final = Settings(tickets=TicketSettings(accounts=tuple(f"{name}=1" for name in LIAR_ACCOUNTS)))


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """What is submitted for a job of the trace, or a part of it. `trace.id` begins with the id of that job and a dot,
    where it is not that job itself.

    `after` is the id of what has to end first. A decoy does none of the job's work.
    """

    trace: TraceJob
    submission: Submission
    after: str = ""
    decoy: bool = False

    @property
    def origin(self) -> str:
        """The id of the job of the trace."""
        return self.trace.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class HonestJob:
    """A job as an honest owner submits it: the true model and duration, a checkpoint signal, CPUs and memory that may
    be changed. `slowest` is its duration on the slowest type."""

    trace: TraceJob
    nodes: tuple[Node, ...]
    slowest: float

    def submitted(self, *, says: float | None = None, model: str | None = None, **changed: object) -> SubmittedJob:
        """Returns the submission, with a hinted duration of `says` seconds, that model, and `changed` in the trace."""
        job = replace(self.trace, **changed)  # type: ignore[arg-type]
        told = replace(job, duration=job.duration if says is None else says)
        limit = 1.1 * self.slowest * job.duration / self.trace.duration + 10 * MINUTE
        submission = hinted_submission(told, self.nodes, limit, job.model if model is None else model, hinted=True)
        return SubmittedJob(job, replace(submission, work=job.duration))


Lying = Callable[[HonestJob], Iterator[SubmittedJob]]
"""Yields what the liar submits in place of a job."""

Reports = Callable[[VirtualCluster, str], Iterator[Report]]
"""Yields what the running jobs of a user report at a time."""


@dataclass(frozen=True, slots=True)
class Lie:
    """A lie: what is submitted, and reported, by a liar. `settings` are those of the site, honest and lying."""

    submits: Lying
    reports: Reports | None = None
    settings: Settings = Settings()  # noqa: RUF009  # frozen


def honest(job: HonestJob) -> Iterator[SubmittedJob]:
    """Submits the job as it is."""
    yield job.submitted()


def _with_hints(job: HonestJob, change: Callable[[str], str]) -> SubmittedJob:
    done = job.submitted()
    return replace(done, submission=replace(done.submission, comment=change(done.submission.comment)))


def _pinned(job: HonestJob) -> Iterator[SubmittedJob]:
    yield job.submitted(gpu_type="v100")


def _says(times: float, job: HonestJob) -> Iterator[SubmittedJob]:
    yield job.submitted(says=times * job.trace.duration)


def _says_a_minute(job: HonestJob) -> Iterator[SubmittedJob]:
    yield job.submitted(says=MINUTE)


def _single_jobs(job: HonestJob) -> Iterator[SubmittedJob]:
    for number in range(job.trace.gpus):
        yield job.submitted(id=f"{job.trace.id}.{number}", gpus=1)


def _chain(pieces: int, job: HonestJob) -> Iterator[SubmittedJob]:
    """Each piece after the first also loads a checkpoint."""
    for number in range(pieces):
        seconds = job.trace.duration / pieces + (SITE_OPTIONS.overhead if number else 0.0)
        before = f"{job.trace.id}.{number - 1}" if number else ""
        yield replace(job.submitted(id=f"{job.trace.id}.{number}", duration=seconds), after=before)


_PIECE: Final = 0.5 * HOUR


def _tiny_jobs(job: HonestJob) -> Iterator[SubmittedJob]:
    yield from _chain(max(1, round(job.trace.duration / _PIECE)), job)


def _resubmitted(job: HonestJob) -> Iterator[SubmittedJob]:
    """Cancelled and submitted again once a quarter is done: its attained service and age begin anew each time."""
    yield from _chain(4, job)


def _no_checkpoint(job: HonestJob) -> Iterator[SubmittedJob]:
    yield _with_hints(job, lambda comment: comment.replace("ckpt=usr1", "ckpt=none"))


def _urgent(job: HonestJob) -> Iterator[SubmittedJob]:
    done = _with_hints(job, lambda comment: f"{comment},deadline=1h,priority=urgent")
    yield replace(done, submission=replace(done.submission, qos="urgent", nice=-10000))


def _claims(model: str, job: HonestJob) -> Iterator[SubmittedJob]:
    yield job.submitted(model=model)


_OVER_ASKED: Final = 2.0


def _over_asked(job: HonestJob) -> Iterator[SubmittedJob]:
    """Twice the share of CPUs and memory, to be kept, as far as a node has them."""
    done = _with_hints(job, lambda comment: comment.replace("mem=tune", "mem=keep").replace("cpus=tune", "cpus=keep"))
    asked, node = done.submission.request, min(job.nodes, key=lambda node: node.total.cpus)
    most = node.total
    request = replace(
        asked,
        cpus=min(ceil(_OVER_ASKED * asked.cpus), most.cpus * asked.nodes),
        memory=min(ceil(_OVER_ASKED * asked.memory), most.memory),
    )
    yield replace(done, submission=replace(done.submission, request=request))


def _decoys(job: HonestJob) -> Iterator[SubmittedJob]:
    """With each job a gang of 8 GPUs that says a day and ends after a minute: the liar asks for more than is needed,
    and so is due more."""
    yield job.submitted()
    decoy = job.submitted(id=f"{job.trace.id}.decoy", gpus=8, duration=MINUTE, says=24 * HOUR)
    yield replace(decoy, submission=replace(decoy.submission, time_limit=round(25 * HOUR)), decoy=True)


def _accounts(job: HonestJob) -> Iterator[SubmittedJob]:
    account = LIAR_ACCOUNTS[int(job.trace.id) % len(LIAR_ACCOUNTS)]
    yield job.submitted(account=account)


_NAMES: Final = 3


def _other_names(job: HonestJob) -> Iterator[SubmittedJob]:
    yield job.submitted(user=f"{job.trace.user}-{int(job.trace.id) % _NAMES}")


_FALSE_RATES: Final[Mapping[str, float]] = {"v100": 1000.0, "p100": 100.0, "k80": 10.0}
"""Steps per second that a liar reports, ten times as many on each faster type."""


def _false_reports(rates: Mapping[str, float], late: float, cluster: VirtualCluster, user: str) -> Iterator[Report]:
    """Yields reports with these rates by GPU type; after a restart the first step took `late` seconds longer."""
    for job in cluster.jobs.values():
        run = job.work.run
        if job.submission.user != user or job.state is not JobState.RUNNING or run is None:
            continue
        kind = cluster.nodes[job.allocations[0].node].configured.gpus[0].type
        seconds = cluster.now - run.productive_from - (late if job.restarts else 0.0)
        rate = rates.get(kind, 1.0)
        if (steps := int(seconds * rate)) > 0:
            yield Report(job.id, job.restarts, Stage.RUNNING, cluster.now, steps, steps, seconds, rate)


def _false_rates(cluster: VirtualCluster, user: str) -> Iterator[Report]:
    return _false_reports(_FALSE_RATES, 0.0, cluster, user)


def _false_restarts(cluster: VirtualCluster, user: str) -> Iterator[Report]:
    return _false_reports(dict.fromkeys(_FALSE_RATES, 10.0), 15 * MINUTE, cluster, user)


def reports_of(reports: Reports | None, user: str) -> Callable[[VirtualCluster], Mapping[JobId, Report]]:
    """Returns what jobs report where this user's report so."""
    if reports is None:
        return VirtualCluster.reports
    return lambda cluster: {report.job: report for report in reports(cluster, user)}


LIES: Final[Mapping[str, Lie]] = {
    "pins the fastest GPU type": Lie(_pinned),
    "splits gangs into single jobs": Lie(_single_jobs),
    "charges jobs to all accounts": Lie(_accounts, settings=_ACCOUNT_SETTINGS),
    "submits under three names": Lie(_other_names),
    "submits under three names of one account": Lie(_other_names, settings=_ACCOUNT_SETTINGS),
    "says that there are no checkpoints": Lie(_no_checkpoint),
    "says a quarter of the duration": Lie(lambda job: _says(0.25, job)),
    "says a minute": Lie(_says_a_minute),
    "says four times the duration": Lie(lambda job: _says(4.0, job)),
    "claims a model that fast GPUs help more": Lie(lambda job: _claims("transformer", job)),
    "claims a model that CPUs help more": Lie(lambda job: _claims("alexnet", job)),
    "reports false rates by GPU type": Lie(honest, _false_rates),
    "reports slow restarts": Lie(honest, _false_restarts),
    "cuts jobs into chains of tiny ones": Lie(_tiny_jobs),
    "cancels and submits again": Lie(_resubmitted),
    "claims a deadline, a QOS and a high priority": Lie(_urgent),
    "asks for twice the CPUs and memory": Lie(_over_asked),
    "keeps gangs in the queue that are not meant to run": Lie(_decoys),
}
"""Every lie by what the liar does."""
