"""HadarE in the replay: copies on nodes, and rates refined by measurements (Sultana et al., section V).

Every job has a copy for every node, and all copies together run at the sum of their rates. Mean completion time is
lowest when the job that ends first goes first, on all nodes. A job that can end in this round gets only the nodes it
needs (the last job the fastest, the paper's beta), and the next job gets the others. Nodes that are left help the job
that ends last, so no node is idle while a job has a step for it (theorem 3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from slurmsched.policies.hadare.policy import ThroughputEstimates, divide_steps, learned_scale
from slurmsched.simulation.replay import Grant, RoundInput

_UNMEASURED_SCALE: Final = 1e-12
"""Steps per second of one unit of the estimates before any measurement: so slow that no job ends in the first round and
all nodes take part in it."""


@dataclass(slots=True)
class HadarEReplayPolicy:
    """Gives the nodes to the job that ends first, as the paper reads; workers are nodes with one GPU each.

    `estimates` are the throughputs by model and GPU type, in any unit.
    """

    estimates: Mapping[str, Mapping[str, float]]
    name: str = "hadare"
    _throughput: dict[str, ThroughputEstimates] = field(default_factory=dict)

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        types = round_input.workers.gpu_types
        for job, active in round_input.jobs.items():
            self._throughput.setdefault(job, ThroughputEstimates(self.estimates[active.spec.model]))
        for outcome in round_input.previous:
            (job,), (worker,) = outcome.grant.jobs, outcome.grant.workers
            if outcome.steps[0]:
                measured = self._throughput[job].with_measurement(types[worker], outcome.grant.rates[0])
                self._throughput[job] = measured
        scale = learned_scale(self._throughput.values()) or _UNMEASURED_SCALE
        forked_jobs = [
            ForkedJob(job, round(active.remaining), tuple(self._throughput[job].rate_on(kind, scale) for kind in types))
            for job, active in round_input.jobs.items()
        ]
        slot = round_input.period - round_input.semantics.exchange_seconds
        return [*_grants(round_input, assign_nodes(forked_jobs, slot))]


def _grants(round_input: RoundInput, plan: Mapping[str, Mapping[int, int]]) -> Iterator[Grant]:
    for job, active in round_input.jobs.items():
        for worker, steps in plan.get(job, {}).items():
            rate = active.spec.rates[round_input.workers.gpu_types[worker]]
            yield Grant((job,), (worker,), (rate,), steps=(steps,))


@dataclass(frozen=True, slots=True)
class ForkedJob:
    """A job with `remaining` steps. `rates` are the steps per second of a copy on each node, 0.0 if it cannot run."""

    job: str
    remaining: int
    rates: tuple[float, ...]


def assign_nodes(jobs: Sequence[ForkedJob], slot: float) -> Mapping[str, Mapping[int, int]]:
    """Returns by job the steps of each of its nodes. `slot` is the seconds of work in a round."""
    queue = sorted(
        (job for job in jobs if job.remaining and any(job.rates)), key=lambda job: job.remaining / sum(job.rates)
    )
    nodes: dict[str, list[int]] = {}
    free = set(range(max((len(job.rates) for job in queue), default=0)))
    for job in queue:
        nodes[job.job] = _nodes_needed(job, free, slot, is_last=job is queue[-1])
        free.difference_update(nodes[job.job])
    for node in sorted(free):
        helpable = [job for job in queue if _adds_work(job, nodes[job.job], node)]
        if helpable:
            nodes[max(helpable, key=lambda job: _seconds_to_end(job, nodes[job.job])).job].append(node)
    return {job.job: _portions(job, nodes[job.job]) for job in queue if nodes[job.job]}


def _nodes_needed(job: ForkedJob, free: Collection[int], slot: float, *, is_last: bool) -> list[int]:
    """Returns the nodes on which the job ends in this round: the slowest single node that suffices, which leaves faster
    ones to later jobs, else the fewest fastest; all free nodes if the job does not end."""
    by_rate = sorted((node for node in free if job.rates[node] > 0), key=lambda node: (-job.rates[node], node))
    sufficient = [node for node in reversed(by_rate) if not is_last and _seconds_to_end(job, [node]) <= slot]
    if sufficient:
        return sufficient[:1]
    taken: list[int] = []
    for node in by_rate:
        if _seconds_to_end(job, taken) > slot and _adds_work(job, taken, node):
            taken.append(node)
    return taken


def _seconds_to_end(job: ForkedJob, nodes: Sequence[int]) -> float:
    """Returns the seconds until the job ends on these nodes."""
    portions = _portions(job, nodes)
    return max((steps / job.rates[node] for node, steps in portions.items()), default=float("inf"))


def _adds_work(job: ForkedJob, nodes: Sequence[int], node: int) -> bool:
    """Returns whether one more node would get a step of this job and leave one to each of `nodes`."""
    portions = _portions(job, [*nodes, node]) if job.rates[node] > 0 else {}
    return len(portions) > len(nodes)


def _portions(job: ForkedJob, nodes: Sequence[int]) -> dict[int, int]:
    steps = divide_steps(job.remaining, [job.rates[node] for node in nodes]) if nodes else ()
    return {node: count for node, count in zip(nodes, steps, strict=True) if count}
