"""Probes: of jobs of the same work whose owner allows it, one at a time runs with other CPUs than the others.

What the owner allows is `cpus=probe`, on an array or a sweep. While nothing is known of its speed, its jobs have their
GPU-proportional share, or what they asked for where that is more. One of them has twice that at most; where jobs report
their steps, one may later have half of it, and never less than it asked for. What their rates come to is then a
sensitivity for all of them, and accounting tells what the runs used.

A probe is a wish for CPUs, as a profile tells one: others lose no share for it, as with any job that could use more. It
is made only while runs are few and some jobs still wait that gain by it, and of jobs that are expected to be short.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from statistics import median
from typing import Final

from slurmsched.knowledge.knowledge import RULE_OF_THUMB, Knowledge, Profile
from slurmsched.knowledge.speed import SensitivityMatrix
from slurmsched.knowledge.usage import rising_to
from slurmsched.model import Job, JobId, JobState, MeasuredRate, Node, NodeAllocation, SchedulerState, Snapshot

FEWEST_WAITING: Final = 3
"""Jobs of a work that have to wait for one of them to be a probe: the others gain by it."""
MOST_RUNS: Final = 20
"""Finished runs of a work after which it has no probe any more."""
_ALIKE: Final = 1.15
"""Two numbers of CPUs count as the same within this factor, as cores and parts of a gang are rounded."""
_QUICKER: Final = 1.05
"""A rate has to be so many times another to count as higher."""
_SOURCE: Final = f"{RULE_OF_THUMB}: a probe, as cpus=probe allows"

_Work = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Type:
    """The CPUs for each GPU of a type that a job has without a probe, and the most that its nodes have for it."""

    usual: float
    most: float


def probe_profiles(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    decided: Collection[JobId],
    knowledge: Knowledge,
    state: SchedulerState,
    *,
    longest: float,
) -> Mapping[JobId, Profile]:
    """Returns a profile for each of these jobs that is a probe, and for those of which probes have measured the work.

    `jobs` are all that are managed, of which the running ones tell whether a probe runs; only those that are `decided`
    about may become one. `longest` is the longest that
    a probe may be expected to run, in seconds; 0 for none. Jobs of which `knowledge` has a measured profile are left
    out, and while it has one by accounting there is no probe: what runs then has the CPUs that accounting tells of.
    """
    works = defaultdict[_Work, list[Job]](list)
    for job in jobs:
        if job.hints.cpus_probed and (key := _work(job)) is not None:
            known = knowledge.profile(job)
            if known is None or not known.was_measured:
                works[key].append(job)
    profiles: dict[JobId, Profile] = {}
    nodes = tuple({_shape(node): node for node in snapshot.nodes}.values()) if works else ()
    for alike in works.values():
        told = any(job.id in knowledge.by_use and knowledge.by_use[job.id].matrices for job in alike)
        profiles |= _of_work(nodes, alike, decided, state, None if told else longest)
    return {job: _with_memory(profile, knowledge.by_use.get(job)) for job, profile in profiles.items()}


def _work(job: Job) -> _Work | None:
    """Returns what jobs have in common that count as the same work here; None for a job that cannot be a probe."""
    request, name = job.original_request, job.work or job.array_job
    if not (job.hints.model or name) or request.gpus <= 0 or request.keeps_cpus or job.copy_of:
        return None
    return job.user, job.hints.model or "", name, request, job.partitions


def _of_work(
    nodes: Sequence[Node], jobs: Sequence[Job], decided: Collection[JobId], state: SchedulerState, longest: float | None
) -> dict[JobId, Profile]:
    """Returns the profiles of one work; without `longest` only what probes have measured."""
    types, rates = _types(nodes, jobs[0]), _rates(jobs, state)
    profiles = dict[JobId, Profile]()
    if any(len(of_type) > 1 for of_type in rates.values()):
        profiles = dict.fromkeys((job.id for job in jobs), _measured(rates))
    if longest is None:
        return profiles
    runs_one = False
    for job in jobs:
        unusual = {on.gpu_type: cpus for on in _allocations(job, state) if (cpus := _unusual(on, types)) is not None}
        if unusual:
            runs_one = True
            points = {kind: (cpus, cpus > types[kind].usual) for kind, cpus in unusual.items()}
            profiles.setdefault(job.id, _probe(points, types))
    waiting = [job for job in jobs if job.state is JobState.PENDING and job.id not in state.starting]
    short = [job for job in waiting if job.id in decided and _expected(job, state) <= longest]
    if runs_one or not longest or not short or len(waiting) < FEWEST_WAITING:
        return profiles
    first = min(short, key=lambda job: job.queue_key)
    ended = state.use[first.id].widths if first.id in state.use else ()
    wanted = {
        kind: point
        for kind, of_type in types.items()
        if (point := _next_point(of_type, first, rates.get(kind, {}), ended)) is not None
    }
    return profiles | {first.id: _probe(wanted, types)} if wanted and len(ended) < MOST_RUNS else profiles


def _shape(node: Node) -> tuple[object, ...]:
    """Returns what of a node decides on shares: there are few such nodes in a cluster of thousands."""
    return node.gpu_types, len(node.gpus), node.total.cpus, node.cpu_unit, node.partitions


def _types(nodes: Iterable[Node], job: Job) -> Mapping[str, _Type]:
    """Returns the types of GPU that a job may have, by what a node of that type gives it at least."""
    request = job.original_request
    found = defaultdict[str, list[tuple[float, float]]](list)
    for node in nodes:
        kinds = [kind for kind in node.gpu_types if request.gpu_type in (None, kind)]
        on_node = min(request.gpus, len(node.gpus))
        if not node.partitions.isdisjoint(job.partitions) and on_node and len(kinds) == 1:
            share = floor(node.proportional_share(on_node).cpus)
            found[kinds[0]].append((share / on_node, node.total.cpus / on_node))
    asked = request.cpus / request.gpus
    return {
        kind: _Type(max(asked, min(share for share, _ in of_type)), min(most for _, most in of_type))
        for kind, of_type in found.items()
    }


def _allocations(job: Job, state: SchedulerState) -> tuple[NodeAllocation, ...]:
    """Returns what the job has, or will have by a start that is open."""
    start = state.starting.get(job.id)
    return job.allocations or (start.allocations if start is not None else ())


def _unusual(on_node: NodeAllocation, types: Mapping[str, _Type]) -> float | None:
    """Returns the CPUs for each GPU of an allocation if they are others than without a probe."""
    of_type, has = types.get(on_node.gpu_type), on_node.resources
    if of_type is None or not has.gpus:
        return None
    cpus = has.cpus / has.gpus
    return None if of_type.usual / _ALIKE < cpus < of_type.usual * _ALIKE else cpus


def _rates(jobs: Iterable[Job], state: SchedulerState) -> Mapping[str, Mapping[float, float]]:
    """Returns the steps per second that jobs of the work reported, by GPU type and CPUs for each GPU: those with as
    many GPUs and nodes as the latest. Of several with the same CPUs the median counts, so that one odd job does not."""
    families = sorted({job.family for job in jobs if job.family})
    gpus = {job.original_request.gpus for job in jobs}
    points = [point for family in families for point in state.family_rates.get(family, ()) if point.gpus in gpus]
    of_type = defaultdict[str, list[MeasuredRate]](list)
    for point in sorted(points, key=lambda point: -point.at):
        known = of_type[point.gpu_type]
        if 0 < point.rate < inf and (not known or known[0].nodes == point.nodes):
            known.append(point)
    rates = dict[str, Mapping[float, float]]()
    for kind, measured in of_type.items():
        by_cpus = defaultdict[float, list[float]](list)
        for point in measured:
            by_cpus[point.cpus].append(point.rate)
        rates[kind] = {cpus: median(each) for cpus, each in sorted(by_cpus.items()) if cpus > 0}
    return rates


def _next_point(
    of_type: _Type, job: Job, rates: Mapping[float, float], ended: Sequence[float]
) -> tuple[float, bool] | None:
    """Returns the CPUs for each GPU that are tried next and whether they are more than usual; None if none are. Fewer
    are tried where rates show that more were no quicker, or could not be tried."""
    gpus, tried = job.original_request.gpus, (*ended, *rates)
    asked = job.original_request.cpus / gpus
    up = floor(min(2 * of_type.usual, of_type.most) * gpus) / gpus
    if up > of_type.usual * _ALIKE and not any(cpus * _ALIKE > up for cpus in tried):
        return up, True
    down = ceil(max(of_type.usual / 2, asked) * gpus) / gpus
    flat = len(rates) > 0 and max(rates.values()) <= rates[min(rates)] * _QUICKER
    if flat and down * _ALIKE < of_type.usual and not any(cpus < down * _ALIKE for cpus in tried):
        return down, False
    return None


def _probe(points: Mapping[str, tuple[float, bool]], types: Mapping[str, _Type]) -> Profile:
    """Returns the profile of a probe: on types without a point of their own it has what is usual."""
    counts = {kind: of_type.usual for kind, of_type in types.items()} | {
        kind: cpus for kind, (cpus, _) in points.items()
    }
    return Profile(
        "",
        "",
        {kind: rising_to(cpus) for kind, cpus in counts.items()},
        _SOURCE,
        spares=False,
        suffices=not any(more for _, more in points.values()),
        probes=True,
    )


def _measured(rates: Mapping[str, Mapping[float, float]]) -> Profile:
    """Returns what rates with several numbers of CPUs come to: a speed that never falls with more CPUs, and rises only
    where it does so by more than rates vary."""
    matrices = dict[str, SensitivityMatrix]()
    for kind, by_cpus in rates.items():
        if len(by_cpus) > 1:
            cpus, speed = sorted(by_cpus), list[float]()
            for count in cpus:
                before = speed[-1] if speed else 0.0
                speed.append(by_cpus[count] if by_cpus[count] > before * _QUICKER else before)
            matrices[kind] = SensitivityMatrix(tuple(cpus), (), tuple((each,) for each in speed))
    counts = "; ".join(
        f"{kind} with {', '.join(f'{count:g}' for count in matrix.cpus)} CPUs" for kind, matrix in matrices.items()
    )
    return Profile("", "", matrices, f"measured by jobs of its work, for each {counts}")


def _with_memory(profile: Profile, use: Profile | None) -> Profile:
    """Returns the profile with what accounting tells of memory."""
    return profile if use is None else replace(profile, least_memory=use.least_memory)


def _expected(job: Job, state: SchedulerState) -> float:
    """Returns the seconds that a job is expected to run at most; infinite if nobody tells."""
    known = state.lengths.get(job.id)
    told = known.high if known is not None and known.runs else job.hints.duration or job.time_limit
    return inf if told is None else float(told)
