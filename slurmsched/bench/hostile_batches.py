"""One batch of jobs of honest owners with jobs of a hostile one between them, and the same batch with harmless text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from slurmsched.bench.hostile_jobs import GPUS, MadeUpJob, Release
from slurmsched.bench.hostile_text import hostile_fields

__all__ = ["NODES", "NOW", "Batch", "batch", "held_batch"]

NOW: Final = 1_795_298_700
"""Unix seconds of every poll."""
NODES: Final = tuple(f"n{number}" for number in range(1, 7))

_FIRST: Final = 1000
_HONEST: Final = (("alice", 2001), ("bob", 2002), ("carol", 2003))
_HOSTILE: Final = ("mallory", 2004)
_SIZES: Final = (1, 1, 1, 2, 2, 4, 8)
_ODDS_OF_RUNNING: Final = 0.3
_ODDS_OF_ARRAY: Final = 0.05
_HINTS: Final = (b"", b"synsched:task=image,ckpt=usr1@60", b"synsched:model=gnmt,ckpt=usr1@60,duration=2h")


@dataclass(frozen=True, slots=True)
class Batch:
    """`jobs` in the order in which Slurm lists them; `hostile` are the numbers of those whose text is hostile."""

    release: Release
    jobs: tuple[MadeUpJob, ...]
    hostile: frozenset[int]

    def harmless(self) -> tuple[MadeUpJob, ...]:
        """The same jobs; the hostile ones with the text that Slurm puts where nobody writes any."""
        return tuple(
            replace(job, text={}, record=b"", cells={}) if job.number in self.hostile else job for job in self.jobs
        )


def batch(random: Random, hostile: int) -> Batch:
    """As many hostile jobs, and a third as many honest ones; some of both run."""
    jobs = _jobs(random, hostile)
    numbers = {job.number for job in jobs if job.user == _HOSTILE[0]}
    return Batch(random.choice(tuple(Release)), _with_text(random, jobs, numbers), frozenset(numbers))


def held_batch(random: Random, hostile: int) -> Batch:
    """Likewise, on a cluster that jobs of an unmanaged partition fill: whoever waits will be held, nobody starts.

    None of the jobs is an array, so that each is held and released by its own number.
    """
    made = batch(random, hostile)
    waiting = tuple(job for job in made.jobs if not job.node and not job.tasks)
    filling = tuple(
        MadeUpJob(
            number, "carol", 2003, GPUS, NOW - 7200, partition="debug", node=node, indices=tuple(range(GPUS)),
            started=NOW - 3600,
        )
        for number, node in enumerate(NODES, start=_FIRST - len(NODES))
    )  # fmt: skip
    return Batch(made.release, (*filling, *waiting), made.hostile & {job.number for job in waiting})


def _jobs(random: Random, hostile: int) -> list[MadeUpJob]:
    owners = [_HOSTILE] * hostile + [random.choice(_HONEST) for _ in range(max(hostile // 3, 3))]
    random.shuffle(owners)
    free = {node: list(range(GPUS)) for node in NODES}
    jobs = []
    for number, (user, uid) in enumerate(owners, start=_FIRST):
        submitted = NOW - random.randint(100, 500_000)
        job = MadeUpJob(number, user, uid, random.choice(_SIZES), submitted)
        node = random.choice(NODES)
        if len(free[node]) >= job.gpus and random.random() < _ODDS_OF_RUNNING:
            job.node, job.indices, job.started = node, tuple(free[node][: job.gpus]), submitted + 50
            del free[node][: job.gpus]
        elif random.random() < _ODDS_OF_ARRAY:
            job.tasks = f"0-{random.randint(1, 3)}"
        jobs.append(job)
    return jobs


def _with_text(random: Random, jobs: Sequence[MadeUpJob], hostile: set[int]) -> tuple[MadeUpJob, ...]:
    """The hostile jobs pose as any of the others, and as jobs that there are not."""
    victims = [job.number for job in jobs if job.number not in hostile] + [1, 4_000_000_000]
    for job in jobs:
        if job.number in hostile:
            job.text = hostile_fields(random, victims)
        else:
            comment = random.choice(_HINTS)
            job.text = {"name": b"train", **({"comment": comment} if comment else {})}
    return tuple(jobs)
