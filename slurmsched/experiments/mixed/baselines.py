"""Tiresias in the replay: least attained service in two queues (Gu et al., NSDI 2019, section 3.2), as Hadar compares
with it: nobody is promoted, and GPU types are not told apart (section V of its paper).

YARN's capacity scheduler in the replay, as Hadar compares with it (section V of its paper).

The soonest that jobs could be through, whatever the schedule: what any figure of total time is held against.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from slurmsched.experiments.mixed.problem import ActiveJob, Grant, ReplayJob, RoundInput
from slurmsched.experiments.mixed.replay import ReplayError
from slurmsched.policies.gavel.rounds import JobCombination, assign_workers


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Jobs go by queue, then by arrival; `queues` are the bounds between queues in GPU-seconds attained, of which
    Hadar's text names the number and not the size.

    A gang lies on one GPU type: on the one it had where there is room, else on that with the most GPUs left. Who is too
    wide for what is left is passed over.
    """

    queue_bounds: tuple[float, ...] = (3600.0,)
    name: str = "tiresias"

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        workers = round_input.workers
        free, selected = (
            dict(workers.gpus_by_type),
            {kind: dict[JobCombination, int]() for kind in workers.gpus_by_type},
        )
        for name, job in sorted(
            round_input.jobs.items(), key=lambda item: bisect_right(self.queue_bounds, item[1].attained_service)
        ):
            gpu_type = _gpu_type_for(job, round_input, free)
            if gpu_type is not None:
                free[gpu_type] -= job.spec.gpus
                selected[gpu_type][name,] = job.spec.gpus
        workers_before = {outcome.grant.jobs: outcome.grant.workers for outcome in round_input.previous}
        assigned = (
            assign_workers(widths, workers.workers_by_type[kind], workers_before) for kind, widths in selected.items()
        )
        return [Grant(entry, place) for of_type in assigned for entry, place in of_type.items()]


def _gpu_type_for(job: ActiveJob, round_input: RoundInput, free: dict[str, int]) -> str | None:
    current = round_input.workers.types_of(job.workers)
    fit = [kind for kind, gpus in free.items() if gpus >= job.spec.gpus and job.spec.rates.get(kind, 0.0) > 0]
    return max(fit, key=lambda kind: (kind in current, free[kind]), default=None)


@dataclass(frozen=True, slots=True)
class YarnCapacity:
    """One queue, first in first out: who runs, runs to its end, and nobody passes the first that waits.

    Containers know no GPU types: a gang takes what is free, on several types too, the emptiest servers first.
    Types on which the job cannot run at all are left out.
    """

    name: str = "yarn-cs"

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        grants = [outcome.grant for outcome in round_input.previous if outcome.grant.jobs[0] in round_input.jobs]
        running = {grant.jobs[0] for grant in grants}
        taken = {worker for grant in grants for worker in grant.workers}
        free = [worker for worker in range(len(round_input.workers)) if worker not in taken]
        for name, job in round_input.jobs.items():
            if name in running:
                continue
            usable = [at for at in free if job.spec.rates.get(round_input.workers.gpu_types[at], 0.0) > 0]
            if len(usable) < job.spec.gpus:
                break
            workers = _emptiest_servers_first(usable, round_input.workers.server_indices)[: job.spec.gpus]
            grants.append(Grant((name,), tuple(sorted(workers))))
            free = [worker for worker in free if worker not in workers]
        return grants


def _emptiest_servers_first(free: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Those of the server with the most of them first."""
    count = [servers[worker] for worker in free]
    return sorted(free, key=lambda worker: (-count.count(servers[worker]), worker))


def makespan_lower_bound(jobs: Sequence[ReplayJob], gpus_by_type: Mapping[str, int]) -> float:
    """Seconds that the jobs take at least if all are there at once, rounds and restarts cost nothing, and any number of
    a job's copies run beside each other: a linear program over the GPU-seconds that each type gives each job.

    Raises ReplayError where a job can run nowhere.
    """
    gpu_types, job_count = tuple(gpus_by_type), len(jobs)
    variable = np.arange(job_count * len(gpu_types)).reshape(job_count, len(gpu_types))
    rates = np.array([[job.rates.get(kind, 0.0) / job.gpus for kind in gpu_types] for job in jobs])
    done = csr_array(
        (-rates.ravel(), (np.repeat(np.arange(job_count), len(gpu_types)), variable.ravel())),
        (job_count, variable.size + 1),
    )
    last = np.full(len(gpu_types), variable.size)
    spent = csr_array(
        (
            np.concatenate([np.ones(variable.size), [-float(gpus_by_type[kind]) for kind in gpu_types]]),
            (
                np.concatenate([np.tile(np.arange(len(gpu_types)), job_count), np.arange(len(gpu_types))]),
                [*variable.ravel(), *last],
            ),
        ),
        (len(gpu_types), variable.size + 1),
    )
    cost = np.concatenate([np.zeros(variable.size), [1.0]])
    limits = np.concatenate([[-float(job.steps) for job in jobs], np.zeros(len(gpu_types))])
    answer = milp(cost, constraints=LinearConstraint(vstack([done, spent]), -np.inf, limits))
    if answer.fun is None:
        raise ReplayError(f"these jobs can never all be done: {answer.message}")
    return float(answer.fun)
