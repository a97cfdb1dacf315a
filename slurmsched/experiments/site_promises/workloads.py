"""What the users of a site submit, how careful they are, and workloads: the jobs of a seed and a length in hours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from slurmsched.backends.simulated import Submission
from slurmsched.experiments.mixed.workloads import mix_jobs
from slurmsched.knowledge import Knowledge
from slurmsched.model import Node
from slurmsched.simulation.inputs import SimulationOptions
from slurmsched.simulation.submissions import build_submission
from slurmsched.traces import TraceJob
from slurmsched.traces.clusters import SPEC_PARTITION
from slurmsched.traces.generators import HOUR, MINUTE, PHILLY_WIDTHS, draw_weighted, poisson_arrivals, random_stream

PLAIN_PARTITION: Final = "plain"
"""A partition of all nodes whose jobs are not managed."""

_CHECKPOINT_SECONDS: Final = 10.0
PAIRED_MODELS: Final = ("heavy", "light")
_MIX_MODELS: Final = ("resnet50", "alexnet", "m5", "transformer")
LONGEST: Final = 8 * HOUR
"""The longest of the jobs of a site's day, in seconds."""
_ENDLESS: Final = 1e6
"""Seconds of jobs that outlast every scenario."""


class Care(StrEnum):
    """What the owner of a job tells of it."""

    CAREFUL = "careful"
    """Its model and its checkpoint signal."""
    NO_CHECKPOINT = "no checkpoint"
    """Its model only."""
    NO_HINTS = "no hints"
    UNMANAGED = "unmanaged"
    """Nothing, and it is submitted to a partition that is not managed."""


@dataclass(frozen=True, slots=True)
class SiteJob:
    """A job of the trace, and the care with which it is submitted."""

    trace: TraceJob
    care: Care = Care.CAREFUL

    def submission(self, nodes: Sequence[Node], options: SimulationOptions, knowledge: Knowledge) -> Submission:
        """Returns what the owner submits; the time limit is twice what the job takes."""
        model = f"model={self.trace.model}" if self.trace.model else ""
        comment = {
            Care.CAREFUL: f"synsched:{model}{',' if model else ''}ckpt=usr1",
            Care.NO_CHECKPOINT: f"synsched:{model}",
        }.get(self.care, "")
        return replace(
            build_submission(self.trace, nodes, options, knowledge),
            comment=comment,
            partitions=(PLAIN_PARTITION if self.care is Care.UNMANAGED else SPEC_PARTITION,),
            checkpoint_time=_CHECKPOINT_SECONDS,
            time_limit=round(2 * self.trace.duration),
        )


def endless_jobs(
    user: str, gpus: Sequence[int], seed: int, *, care: Care = Care.CAREFUL, model: str = "", gpu_type: str = ""
) -> Iterator[SiteJob]:
    """Yields the jobs of a user, who submits them one after another within two hours."""
    arrivals = np.sort(random_stream(seed, f"arrivals of {user}").uniform(0, 2 * HOUR, len(gpus))).round(3)
    for number, (width, arrival) in enumerate(zip(gpus, arrivals, strict=True)):
        job = TraceJob(f"{user}-{number}", float(arrival), width, _ENDLESS, model=model, user=user, gpu_type=gpu_type)
        yield SiteJob(job, care)


def users_of_widths(widths: Mapping[str, Sequence[int]], seed: int, _hours: float) -> Sequence[SiteJob]:
    """Users with jobs of these GPUs, which outlast the run."""
    return [job for user, gpus in widths.items() for job in endless_jobs(user, gpus, seed)]


FOUR_USERS: Final = ("alice", "bob", "carol", "dave")


def _four_users(seed: int, hours: float) -> Sequence[SiteJob]:
    return users_of_widths(dict.fromkeys(FOUR_USERS, (1,) * 16), seed, hours)


def two_careless_jobs(seed: int, hours: float) -> Sequence[SiteJob]:
    """Four users of 16 one-GPU jobs; the first two of `alice`, as many as her share, never write a checkpoint."""
    jobs = enumerate(_four_users(seed, hours))
    return [replace(job, care=Care.NO_CHECKPOINT) if index < 2 else job for index, job in jobs]  # noqa: PLR2004  # two, as the name says


def careless_user(care: Care, seed: int, hours: float) -> Sequence[SiteJob]:
    """Three users of 16 one-GPU jobs, and `alice` with a queue that no round may touch once it runs."""
    others = dict.fromkeys(FOUR_USERS[1:], (1,) * 16)
    return [*_queue("alice", 80, care, seed), *users_of_widths(others, seed, hours)]


def unmanaged_holder(seed: int, hours: float) -> Sequence[SiteJob]:
    """Four users of 16 one-GPU jobs; `alice` also has two, as many as her share, that are not managed."""
    unmanaged = [
        replace(job, trace=replace(job.trace, id=f"plain-{job.trace.id}", arrival=0.0))
        for job in endless_jobs("alice", (1,) * 2, seed, care=Care.UNMANAGED)
    ]
    return [*unmanaged, *_four_users(seed, hours)]


def _queue(user: str, number: int, care: Care, seed: int) -> Iterator[SiteJob]:
    """Yields one-GPU jobs of one to three hours."""
    durations = random_stream(seed, f"durations of {user}").uniform(HOUR, 3 * HOUR, number).round(3)
    for job, seconds in zip(endless_jobs(user, (1,) * number, seed, care=care), durations, strict=True):
        yield replace(job, trace=replace(job.trace, duration=float(seconds)))


def nobody_tells(seed: int, _hours: float) -> Sequence[SiteJob]:
    """Four users with queues of one-GPU jobs that end, none with a hint."""
    return [job for user in FOUR_USERS for job in _queue(user, 40, Care.NO_HINTS, seed)]


def seventy_users(seed: int, _hours: float) -> Sequence[SiteJob]:
    """Seventy users with a job each, of Philly's widths, that outlasts the run (Gandiva_fair, slide 14)."""
    widths = draw_weighted(PHILLY_WIDTHS, 70, random_stream(seed, "widths"))
    return [
        SiteJob(TraceJob(f"user{number:02}-0", 0.0, width, _ENDLESS, user=f"user{number:02}"))
        for number, width in enumerate(widths)
    ]


_TRADED_MODELS: Final = {"alice": "vae", "bob": "resnet50", "carol": "dcgan", "dave": "superresolution"}


def users_of_models(pins: str, seed: int, _hours: float) -> Sequence[SiteJob]:
    """Four users with a model each; `pins` is who pins V100 in all jobs."""
    return [
        job
        for user, model in _TRADED_MODELS.items()
        for job in endless_jobs(user, (1,) * 30, seed, model=model, gpu_type="v100" if user == pins else "")
    ]


def site_day(gpus: int, seed: int, hours: float) -> Sequence[SiteJob]:
    """A day of a site of two GPU types at 80 % load: Philly's widths and a gang of 16, half an hour to eight hours, and
    three jobs of ten without checkpoints, without hints or not managed, one of ten pinned to a type."""
    random = random_stream(seed, "mix")
    durations = np.exp(random_stream(seed, "durations").uniform(np.log(0.5 * HOUR), np.log(LONGEST), 4096))
    widths = draw_weighted(PHILLY_WIDTHS, 4096, random_stream(seed, "widths"))
    offered = np.cumsum(durations * np.array(widths))
    count = int(np.searchsorted(offered, 0.8 * gpus * hours * HOUR)) + 1
    arrivals = poisson_arrivals(count, count / hours, random_stream(seed, "arrivals"))
    cares = draw_weighted(
        {Care.CAREFUL: 0.7, Care.NO_CHECKPOINT: 0.1, Care.NO_HINTS: 0.1, Care.UNMANAGED: 0.1}, count, random
    )
    pinned, models = random.random(count) < 0.1, draw_weighted(dict.fromkeys(_MIX_MODELS, 1.0), count, random)  # noqa: PLR2004  # of the docstring
    jobs = [
        SiteJob(
            TraceJob(
                str(number),
                float(arrivals[number]),
                widths[number],
                float(durations[number].round(3)),
                model=models[number],
                user=f"user{number % 8}",
                gpu_type="v100" if pinned[number] else "",
            ),
            cares[number],
        )
        for number in range(count)
    ]
    gang = TraceJob("gang", 0.25 * hours * HOUR, 16, 2 * HOUR, model=_MIX_MODELS[0], user="user0")
    return [*jobs, SiteJob(gang)] if gpus >= 2 * gang.gpus else jobs


def jobs_at_once(number: int, seed: int, _hours: float) -> Sequence[SiteJob]:
    """One-GPU jobs of half an hour to two hours that all come at once."""
    durations = random_stream(seed, "durations").uniform(0.5 * HOUR, 2 * HOUR, number).round(3)
    models = draw_weighted(dict.fromkeys(PAIRED_MODELS, 1.0), number, random_stream(seed, "models"))
    return [
        SiteJob(TraceJob(str(index), 0.0, 1, float(seconds), model=model, user=f"user{index % 4}"))
        for index, (seconds, model) in enumerate(zip(durations, models, strict=True))
    ]


def one_job(blocked: str, seed: int, _hours: float) -> Sequence[SiteJob]:
    """One careful job of a known model; the only node of type `blocked` is held by a job that is not managed."""
    (job,) = endless_jobs("alice", (1,), seed, model="lm")
    holder = (job for job in endless_jobs("bob", (1,), seed, care=Care.UNMANAGED, gpu_type=blocked) if blocked)
    return [*(replace(other, trace=replace(other.trace, arrival=0.0)) for other in holder), job]


def steep_and_flat_users(seed: int, _hours: float) -> Sequence[SiteJob]:
    """Two users of 16 one-GPU jobs: the type matters much to those of one, and little to the other's."""
    return [
        *endless_jobs("alice", (1,) * 16, seed, model="steep"),
        *endless_jobs("bob", (1,) * 16, seed, model="flat"),
    ]


def two_families(seed: int, _hours: float) -> Sequence[SiteJob]:
    """Two forked jobs, in an order that the seed decides."""
    models = random_stream(seed, "families").permutation(["steep", "flat"])
    return [
        SiteJob(TraceJob(f"family-{model}", MINUTE * place, 1, _ENDLESS / 10, model=str(model), user="alice", fork=2))
        for place, model in enumerate(models)
    ]


def mix_of_families(mix: str, nodes: tuple[str, ...], seed: int, _hours: float) -> Sequence[SiteJob]:
    """The jobs of one of HadarE's mixes, all at once, each with a copy for every node."""
    return [
        SiteJob(
            TraceJob(
                job.id,
                0.0,
                1,
                job.steps / job.rates[nodes[0]],
                model=job.model.lower(),
                user="alice",
                iterations=round(job.steps),
                fork=len(nodes),
            )
        )
        for job in mix_jobs(mix, nodes, seed)
    ]
