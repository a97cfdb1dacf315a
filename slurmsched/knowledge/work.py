"""What runs of the same work have in common, from which later ones are known.

Kinds go from the nearest to the widest. All but GPUs and limits is text of the owner, which is only compared, never
understood; no kind holds runs of two owners. Time limits count as in Smith, Foster and Taylor (JSSPP 1998): who asks
for more time mostly needs more. The type of GPU is no part of it: a job that waits need not have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

from slurmsched.model import AccountedRun, Job, JobId, work_of

_MOST_OF_A_TEXT: Final = 128
"""Characters of a name, and of a folder from its end, that are compared."""


class WorkKind(IntEnum):
    """What runs have in common with a job, from the nearest to the widest."""

    LIMIT = 0
    """Time limit, GPUs, and what the nearest of the other kinds has in common. It tells of lengths alone."""
    SCRIPT = 1
    """Owner, name, script, folder, model, array or not, and GPUs."""
    NAME_AND_GPUS = 2
    NAME = 3
    """Owner and name, digits aside."""
    MODEL = 4
    """Owner and hinted model."""
    GPUS = 5
    """Owner and number of GPUs."""
    OWNER = 6
    OTHERS = 7
    """None of the owner's runs: what all owners' jobs of that size, and all jobs, tell together."""

    @property
    def words(self) -> str:
        """What is the same, as in `runs with the same name`."""
        return _WORDS[self]


_WORDS: Final = {
    WorkKind.LIMIT: "work and time limit",
    WorkKind.SCRIPT: "script, folder and GPUs",
    WorkKind.NAME_AND_GPUS: "name and GPUs",
    WorkKind.NAME: "name",
    WorkKind.MODEL: "model",
    WorkKind.GPUS: "number of GPUs",
    WorkKind.OWNER: "owner",
    WorkKind.OTHERS: "cluster",
}

Kind = tuple[object, ...]
"""The key of a kind of work of one owner: equal for runs that have that in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the runs of a work have in common. Texts are empty where not known; `script` is a digest. `limit` is the
    time limit of a run in seconds, 0 if there is none."""

    owner: str
    name: str = ""
    script: str = ""
    folder: str = ""
    model: str = ""
    array: bool = False
    gpus: int = 0
    limit: int = 0

    @classmethod
    def of_job(cls, job: Job, script: str = "", folder: str = "", **others: Any) -> Self:
        """Returns the work of a job, whose script and folder are asked for separately; `others` are further fields."""
        return cls(
            owner=job.user,
            name=job.name,
            script=script,
            folder=folder,
            model=job.hints.model or "",
            array=bool(job.array_job),
            gpus=job.original_request.gpus,
            limit=job.time_limit or 0,
            **others,
        )

    @classmethod
    def of_run(cls, run: AccountedRun, **others: Any) -> Self:
        return cls(
            owner=run.owner,
            name=run.name,
            script=run.script,
            folder=run.folder,
            model=run.model,
            array=bool(run.array_job),
            gpus=run.gpus,
            limit=run.time_limit or 0,
            **others,
        )

    def kinds(self) -> tuple[tuple[WorkKind, Kind], ...]:
        """Returns the kinds that the work belongs to, the nearest first. A name that a job has which was given none
        tells nothing, and nor does its script, which may be no more than a shell."""
        owner, gpus = self.owner, self.gpus
        name, model = work_of(self.name[:_MOST_OF_A_TEXT]), self.model[:_MOST_OF_A_TEXT]
        kinds: list[tuple[WorkKind, Kind]] = []
        if name and self.script:
            script, folder = self.script[:_MOST_OF_A_TEXT], self.folder[-_MOST_OF_A_TEXT:]
            kinds.append((WorkKind.SCRIPT, (owner, name, script, folder, model, self.array, gpus)))
        if name:
            kinds += [(WorkKind.NAME_AND_GPUS, (owner, name, gpus)), (WorkKind.NAME, (owner, name))]
        if model:
            kinds.append((WorkKind.MODEL, (owner, model, "model")))
        return (*kinds, (WorkKind.GPUS, (owner, gpus)), (WorkKind.OWNER, (owner,)))

    def kinds_of_length(self) -> tuple[tuple[WorkKind, Kind], ...]:
        """Returns the kinds that tell how long it runs, the nearest first: those of `kinds`, and before them, for a job
        that has a time limit, the runs of the nearest one with as many GPUs and the same limit."""
        kinds = self.kinds()
        if not self.limit:
            return kinds
        nearest, key = kinds[0]
        return ((WorkKind.LIMIT, (nearest, *key, self.gpus, self.limit)), *kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun(Work):
    """A run that is over, of `seconds`; `completed` if it ended by itself, well or not, and not if it was cancelled,
    timed out or gave way: then it might have taken longer. `ended_at` is in unix seconds.

    `hint` is the duration that the owner had told. `likely` is the 80 % range that was forecast when it was submitted.
    """

    seconds: float
    ended_at: float
    completed: bool = True
    time_limit: float | None = None
    hint: float | None = None
    likely: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedJob(Work):
    """A job that waits or runs. `elapsed` are the seconds of its runs, `steps` and `total_steps` what it reported."""

    id: JobId
    elapsed: float = 0.0
    time_limit: float | None = None
    hint: float | None = None
    steps: int = 0
    total_steps: int = 0
