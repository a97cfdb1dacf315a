"""What is known about the speed of jobs: profiles of models and tasks, and what jobs have measured themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, islice
from math import inf
from typing import Final

from slurmsched.knowledge.estimation import complete_rates
from slurmsched.knowledge.length_distribution import MEDIAN_OF_UNKNOWN, left_of_unknown
from slurmsched.knowledge.speed import Scaling, SensitivityMatrix
from slurmsched.model import ExpectedLength, Job, JobId, Node, NodeAllocation, OutOfMemory

RULE_OF_THUMB: Final = "rule of thumb"
"""The source of numbers that nobody has measured."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a model or of a task, by GPU type: its sensitivity to CPUs and memory (`matrices`, with key "" for
    all other types) and its rates (`scaling`).

    `source` is the origin of the numbers (`measured`, `imported: FILE`, `rule of thumb`). `measured` is the time of
    measurement (unix seconds) if speeds are in steps per second; if it is None, their unit is arbitrary. `least_memory`
    are the MiB for each GPU that are needed at least; 0 if that is unknown. `spares` is set if it is of what runs of
    the job's own owner used: whether these left CPUs idle, or only used all that they had; `last_run` is then when the
    last of them ended (unix seconds), and `same_work` whether they had more than their model in common with the job.
    With `suffices` a job that asked for less than its share needs no more CPUs than its matrix tells. With `probes` the
    matrix tells nothing of speed, but with how many CPUs the job shall be tried.
    """

    name: str
    task: str
    matrices: Mapping[str, SensitivityMatrix]
    source: str
    scaling: Mapping[str, Scaling] = field(default_factory=dict)
    measured: float | None = None
    least_memory: float = 0.0
    spares: bool | None = None
    suffices: bool = False
    same_work: bool = False
    last_run: float | None = None
    probes: bool = False

    @property
    def was_measured(self) -> bool:
        """Whether somebody has measured the numbers; a rule of thumb may give a job more, but take nothing away."""
        return not self.source.startswith(RULE_OF_THUMB)

    def matrix(self, gpu_type: str) -> SensitivityMatrix | None:
        return self.matrices.get(gpu_type) or self.matrices.get("")


@dataclass(frozen=True)
class MeasuredPairs:
    """The fraction of its rate alone that a job keeps beside another one, as jobs of its family measured it.

    `by_family` is by family, the other's family and GPU type, `by_model` by family, the other's model and GPU type. No
    owner's measurements count for the jobs of another.
    """

    by_family: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    by_model: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    def rate(self, job: Job, other: Job, gpu_type: str) -> float | None:
        """Returns the fraction beside the other's family, else beside its model, else None."""
        if not self.by_family:
            return None
        known = self.by_family.get((job.family, other.family, gpu_type))
        return self.by_model.get((job.family, other.hints.model or "", gpu_type)) if known is None else known

    @cached_property
    def families(self) -> frozenset[str]:
        """The families of both sides."""
        return frozenset(family for one, other, _ in self.by_family for family in (one, other))


OUT_OF_MEMORY_SECONDS: Final = 30 * 86400.0
"""How long two jobs that ran out of memory together count."""


@dataclass(frozen=True)
class OutOfMemoryPairs:
    """Models that ran out of memory together on one GPU, and when that was last (unix seconds).

    An owner's job counts for the owner's jobs of the same model (`by_owner`: owner, model, the other model). It counts
    for all (`by_models`) once jobs of two pairs of owners with nobody in common ran out of memory: whoever writes hints
    and ends jobs as he likes keeps his own jobs from sharing, and not those of others.
    """

    by_owner: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    by_models: Mapping[frozenset[str], float] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[OutOfMemory]) -> OutOfMemoryPairs:
        by_owner = dict[tuple[str, str, str], float]()
        owners = defaultdict[frozenset[str], dict[frozenset[str], float]](dict)
        for event in sorted(events, key=lambda event: event.at):
            by_owner[event.owner, event.model, event.other_model] = event.at
            owners[frozenset((event.model, event.other_model))][frozenset((event.owner, event.other_owner))] = event.at
        by_models = {
            models: max(seen.values())
            for models, seen in owners.items()
            if any(one.isdisjoint(two) for one, two in combinations(islice(seen, _MOST_COMPARED), 2))
        }
        return cls(by_owner, by_models)

    def last(self, job: Job, other: Job) -> float | None:
        """Returns when jobs like these two ran out of memory together last; None if they may share a GPU."""
        if not self.by_owner:
            return None
        model, others = job.hints.model or "", other.hints.model or ""
        known = (
            self.by_owner.get((job.user, model, others)),
            self.by_owner.get((other.user, others, model)),
            self.by_models.get(frozenset((model, others))),
        )
        return max((at for at in known if at is not None), default=None)

    def concerns(self, job: Job) -> bool:
        """Returns whether the owner's own jobs of this model ran out of memory, so that it may differ from others."""
        return (job.user, job.hints.model or "") in self._owners

    @cached_property
    def models(self) -> frozenset[str]:
        """All models that ran out of memory, or whose partner did."""
        return frozenset(model for _, one, other in self.by_owner for model in (one, other))

    @cached_property
    def _owners(self) -> frozenset[tuple[str, str]]:
        return frozenset((owner, model) for owner, model, _ in self.by_owner)


_OVERRUN, _LEAST_OVERRUN = 0.25, 120.0
"""How much longer than its hinted duration a job may take before that counts as wrong: a part of it, and seconds at
least. A minute more than was said, as each start costs, would else make the shortest job one of the longest; most on a
type that is several times as fast as that of which durations are, since seconds of the start count as often there."""

_MOST_COMPARED: Final = 50
"""Pairs of owners that are compared for one pair of models."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Profiles by model and by task, and the attained GPU-seconds (`service`), rates and steps of jobs.

    `reference` is the GPU type that durations refer to if a job asks for no type; empty for the fastest type that its
    model has a rate on. `measured` are the steps per second
    that jobs have reported, by GPU type, and `steps` all the steps that they have reported.
    """

    models: Mapping[str, Profile] = field(default_factory=dict)
    tasks: Mapping[str, Profile] = field(default_factory=dict)
    service: Mapping[JobId, float] = field(default_factory=dict)
    reference: str = ""
    own: Mapping[JobId, Profile] = field(default_factory=dict)
    """Profiles of single jobs, refined by their own measurements; not used for other jobs."""
    by_family: Mapping[JobId, Profile] = field(default_factory=dict)
    """Profiles of jobs with the rates by GPU type that they and other jobs of their family reported; of these profiles
    only the rates are used."""
    by_use: Mapping[JobId, Profile] = field(default_factory=dict)
    """Profiles of jobs by what earlier runs of their owner's same work used (see `usage`); without rates."""
    measured: Mapping[JobId, Mapping[str, float]] = field(default_factory=dict)
    steps: Mapping[JobId, int] = field(default_factory=dict)
    parts_of_gpu: Mapping[JobId, float] = field(default_factory=dict)
    """The GPUs of jobs with shards, as a fraction: their service is counted by it."""
    out_of_memory: OutOfMemoryPairs = field(default_factory=OutOfMemoryPairs)
    """Jobs that must not share a GPU, whatever their rates."""
    pairs: MeasuredPairs = field(default_factory=MeasuredPairs)
    """What jobs keep of their rates beside others; it counts before profiles."""
    lengths: Mapping[JobId, ExpectedLength] = field(default_factory=dict)
    """How long jobs still run by what earlier runs took (`lengths_of`)."""
    service_by_type: Mapping[JobId, Mapping[str, float]] = field(default_factory=dict)
    """`service` by GPU type, empty for runs of which it is not known."""
    _speeds: dict[tuple[JobId, str, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What `_speed_on` returned: orders ask for each job many times."""

    def profile(self, job: Job) -> Profile | None:
        """Returns the job's own profile, else that of its model, else that of its task, else None: then it counts as
        insensitive to CPUs and memory. What earlier runs used comes before a rule of thumb."""
        known, use = self._profiled(job), self.by_use.get(job.id)
        if use is None or (known is not None and (known.was_measured or not use.matrices)):
            return known
        return use

    def _profiled(self, job: Job) -> Profile | None:
        known = self.own.get(job.id) or self.models.get(job.hints.model or "")
        return known or self.tasks.get(job.hints.task or "")

    def rate_profile(self, job: Job) -> Profile | None:
        """Returns the profile whose rates by GPU type count for the job: its own or its family's reports first."""
        return self.by_family.get(job.id) or self._profiled(job)

    def simulated(self) -> Knowledge:
        """Returns the same knowledge for a simulation, whose jobs are as fast as it says: no profile of it is a mere
        rule of thumb there."""
        models, tasks = (
            {name: replace(known, source=f"simulated: {known.source}") for name, known in profiles.items()}
            for profiles in (self.models, self.tasks)
        )
        return replace(self, models=models, tasks=tasks)

    def attained_gpu_seconds(self, job: Job) -> float:
        """Returns the GPU-seconds of all its runs."""
        return self.service.get(job.id, 0.0)

    def executed_seconds(self, job: Job) -> float:
        """Returns the seconds of all its runs, at its current number of GPUs or shards."""
        attained = self.attained_gpu_seconds(job)
        return attained / self._gpus_of(job) if attained else 0.0  # most jobs that wait have never run

    def _gpus_of(self, job: Job) -> float:
        return self.parts_of_gpu.get(job.id) or max(job.gpus, 1)

    def done_seconds(self, job: Job) -> float:
        """Returns the seconds that its runs would have taken on the GPU type that durations refer to."""
        by_type = self.service_by_type.get(job.id)
        if by_type is None:
            return self.executed_seconds(job)
        gpus = self._gpus_of(job)
        return sum(seconds / gpus * self._speed_on(job, kind) for kind, seconds in by_type.items())

    def _speed_on(self, job: Job, gpu_type: str) -> float:
        """Returns its speed on this type relative to the one that durations refer to; 1.0 where it is not known."""
        if not gpu_type:
            return 1.0
        key = job.id, gpu_type, job.gpus
        if key not in self._speeds:
            self._speeds[key] = self.type_speed(job, {gpu_type: max(job.gpus, 1)}) or 1.0
        return self._speeds[key]

    def seconds_there(self, job: Job, seconds: float) -> float:
        """Returns how long so many seconds of the GPU type that durations refer to take on the GPUs that it has."""
        if not job.allocations:
            return seconds
        return seconds / min([self._speed_on(job, share.gpu_type) for share in job.allocations])

    def learnt_length(self, job: Job) -> ExpectedLength | None:
        """Returns how long the job still runs by earlier runs of its owner; None if there are none."""
        known = self.lengths.get(job.id)
        return known if known is not None and known.runs else None

    def remaining_seconds(self, job: Job) -> float:
        """Returns the seconds that it still needs: the mean of its distribution if runs of its owner tell it, else by
        the hinted duration, of the GPU type that durations refer to, or, once that has passed by more than an estimate
        may be wrong, by its time limit.

        Always above zero; infinite if nothing is known or all has passed.
        """
        return self._remaining_as_told(job) or self._remaining_by_limit(job)

    def likely_seconds(self, job: Job, with_same_limit: float) -> float:
        """Returns `remaining_seconds` where earlier runs or the hinted duration tell it; else a geometric mean of what
        is left of the time limit and of what jobs still run that have run for as long.

        The limit counts alone unless more than half of all jobs have the same, and the less the more have it: what all
        have, as the limit of their partition, tells nothing. A job in its first hour, or the first half of its limit,
        counts as if that had passed, so that none gives way to one like it soon after its start. Always above zero and
        finite.
        """
        told = self._remaining_as_told(job)
        if told is not None:
            return told
        by_limit = self._remaining_by_limit(job)
        tells = min(2.0 * (1.0 - with_same_limit), 1.0) if by_limit < inf else 0.0
        if tells == 1.0:
            return by_limit
        age = max(self.executed_seconds(job), min(MEDIAN_OF_UNKNOWN, (job.time_limit or inf) / 2))
        by_age = left_of_unknown(age, job.time_limit)
        return by_age * (by_limit / by_age) ** tells if tells else by_age

    def tells_length(self, job: Job) -> bool:
        """Returns whether earlier runs tell how long the job still takes, or its hinted duration does."""
        return self._remaining_as_told(job) is not None

    def _remaining_as_told(self, job: Job) -> float | None:
        """Returns what earlier runs tell, or the hinted duration; None where neither does, or it has passed."""
        learnt = self.learnt_length(job)
        if learnt is not None:
            return learnt.mean
        return self._remaining_by_duration(job) or self._remaining_by_duration(job, overrun=True)

    def _remaining_by_duration(self, job: Job, *, overrun: bool = False) -> float | None:
        """Returns what is left of the hinted duration, with `overrun` of that and what it may be wrong by, where the
        least seconds are of the fastest type that the job ran on; None if there is none, or once it has passed."""
        if (hinted := job.hints.duration) is None:
            return None
        more = max(_OVERRUN * hinted, _LEAST_OVERRUN * self._fastest_speed(job)) if overrun else 0.0
        left = hinted + more - self.done_seconds(job)
        return left if left > 0 else None

    def _fastest_speed(self, job: Job) -> float:
        """Returns the highest `_speed_on` of the types on which it ran, 1.0 at least: what a start costs counts there
        as so much work."""
        return max([1.0, *(self._speed_on(job, kind) for kind in self.service_by_type.get(job.id, ()))])

    def _remaining_by_limit(self, job: Job) -> float:
        left = inf if job.time_limit is None else job.time_limit - self.executed_seconds(job)
        return left if left > 0 else inf

    def duration_left_there(self, job: Job) -> float | None:
        """Returns how much longer the hinted duration lasts on the GPUs that the job has; None if there is none, and
        once it has passed."""
        left = self._remaining_by_duration(job)
        return None if left is None else self.seconds_there(job, left)

    def remaining_seconds_there(self, job: Job) -> float:
        """Returns `remaining_seconds` on the GPUs that the job has: a hinted duration takes longer on a slower type."""
        by_duration = self.duration_left_there(job) if self.learnt_length(job) is None else None
        return self.remaining_seconds(job) if by_duration is None else by_duration

    def latest_remaining_seconds(self, job: Job) -> float:
        """Returns the seconds after which a job without a time limit has ended, for what others are promised: in 19 of
        20 cases by its distribution, else when its hinted duration ends there or, once that has passed, its limit."""
        if (learnt := self.learnt_length(job)) is not None:
            return learnt.latest
        return self.duration_left_there(job) or self._remaining_by_limit(job)

    def relative_speed(self, job: Job, allocations: Iterable[NodeAllocation], nodes: Mapping[str, Node]) -> float:
        """Returns the speed with these allocations relative to that at the GPU-proportional share of the same nodes.

        The slowest node decides, because the workers of a gang wait for each other. 1.0 without a profile.
        """
        profile = self.profile(job)
        if profile is None:
            return 1.0
        pairs = [pair for allocation in allocations if (pair := _speeds(profile, allocation, nodes)) is not None]
        return min((speed for speed, _ in pairs), default=1.0) / min((fair for _, fair in pairs), default=1.0)

    def type_speed(self, job: Job, types: Mapping[str, int], nodes: int = 1) -> float:
        """Returns the speed on `types` (GPUs by type), relative to as many GPUs of the reference type on one node.

        The slowest type decides. 0.0 if the job cannot run there, 1.0 without any rate of its model.
        """
        gpus = sum(types.values())
        full = self.reference_rate(self.rate_profile(job), job.original_request.gpu_type, gpus)
        rates = self.rates_by_type(job, types, gpus, nodes) if full else {}
        return min(rates.values()) / full if rates else 1.0

    def reference_rate(self, profile: Profile | None, gpu_type: str | None, gpus: int) -> float:
        """Returns the work per second on one node with GPUs of the type that durations refer to.

        That is `gpu_type`, which the job asks for, else `reference`, else the fastest type with a rate. 0.0 if no type
        has one.
        """
        known = {kind: scaling.rate_at(gpus) for kind, scaling in profile.scaling.items()} if profile else {}
        named = gpu_type or self.reference
        rate = complete_rates(known, (named,)).get(named, 0.0) if named else 0.0
        return rate or max(known.values(), default=0.0)

    def rates_by_type(self, job: Job, types: Iterable[str], gpus: int, nodes: int = 1) -> Mapping[str, float]:
        """Returns the work per second with `gpus` GPUs of each of `types` alone, in a unit that these types share.

        Types without a measured rate have an estimated one (`complete_rates`). Empty without any rate of the model.
        """
        profile = self.rate_profile(job)
        known = {kind: scaling.rate_at(gpus, nodes) for kind, scaling in profile.scaling.items()} if profile else {}
        return complete_rates(known, types)

    def compares_types(self, job: Job) -> bool:
        """Returns whether rates of the job are known on two GPU types, so that no estimate has to tell their ratio."""
        profile = self.rate_profile(job)
        return profile is not None and len(profile.scaling) > 1

    def measured_types(self, job: Job) -> frozenset[str]:
        """Returns the GPU types on which the rate of the job was measured: only between these is it restarted."""
        profile = self.rate_profile(job)
        return frozenset(profile.scaling) if profile is not None and profile.was_measured else frozenset()

    def speed(
        self, job: Job, allocations: Sequence[NodeAllocation], nodes: Mapping[str, Node], partners: Iterable[Job] = ()
    ) -> float:
        """Returns the work per second, with work in seconds on the reference type at the GPU-proportional share.

        It is the product of `relative_speed`, `type_speed` and the lowest `shared_gpu_speed` beside the partners.
        """
        types: dict[str, int] = {}
        for allocation in allocations:
            types[allocation.gpu_type] = types.get(allocation.gpu_type, 0) + (allocation.resources.gpus or 1)
        alone = self.relative_speed(job, allocations, nodes) * self.type_speed(job, types, len(allocations))
        return alone * min(
            (self.shared_gpu_speed(job, partner, kind) for partner in partners for kind in types), default=1.0
        )

    def shared_gpu_speed(self, job: Job, partner: Job, gpu_type: str) -> float:
        """Returns the fraction of its speed that the job keeps beside the partner on the same GPU; 1.0 if unknown."""
        known = self.known_rate_beside(job, partner, gpu_type)
        return 1.0 if known is None else known

    def known_rate_beside(self, job: Job, partner: Job, gpu_type: str) -> float | None:
        """Returns the same as its family measured it, else by its profile; None if unknown."""
        measured = self.pairs.rate(job, partner, gpu_type)
        profile = self._profiled(job) if measured is None else None
        known = profile.scaling.get(gpu_type) if profile else None
        return known.beside.get(partner.hints.model or "") if known else measured

    def differs_by_owner(self, job: Job) -> bool:
        """Returns whether jobs of this owner and model may pair otherwise than those of other owners."""
        return job.family in self.pairs.families or self.out_of_memory.concerns(job)


def _speeds(profile: Profile, allocation: NodeAllocation, nodes: Mapping[str, Node]) -> tuple[float, float] | None:
    """Returns the speeds with the allocation and with the GPU-proportional share; None if either is unknown."""
    node, matrix = nodes.get(allocation.node), profile.matrix(allocation.gpu_type)
    gpus = allocation.resources.gpus
    if node is None or matrix is None or not node.gpus or not gpus:
        return None
    fair = node.proportional_share(gpus)
    return (
        matrix.speed_at(allocation.resources.cpus / gpus, allocation.resources.memory / gpus),
        matrix.speed_at(fair.cpus / gpus, fair.memory / gpus),
    )
