"""HadarE in the replay: copies on nodes, and rates refined by measurements (Sultana et al., section V)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from slurmsched.policies.hadare.job_tracker import ForkedJob, assign_nodes
from slurmsched.policies.hadare.throughput import ThroughputEstimates, learned_scale
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
