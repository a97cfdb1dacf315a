"""The baselines of Hadar's comparison (Sultana et al., section V): Tiresias, YARN's capacity scheduler, a lower bound.

Tiresias is least attained service in two queues (Gu et al., NSDI 2019, section 3.2), without promotion and without
regard to GPU types. The bound on the makespan holds for every schedule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from slurmsched.policies.gavel.rounds import JobCombination, assign_workers
from slurmsched.simulation.replay import ActiveJob, Grant, ReplayError, ReplayJob, RoundInput


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Orders jobs by queue, then by arrival.

    `queue_bounds` are the attained GPU-seconds that separate the queues; Hadar's text gives their number but not their
    size. A gang gets GPUs of one type: its current type if that has enough, else the type with the most free GPUs. A
    gang that does not fit is skipped.
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
        return [Grant(entry, granted) for of_type in assigned for entry, granted in of_type.items()]


def _gpu_type_for(job: ActiveJob, round_input: RoundInput, free: dict[str, int]) -> str | None:
    current = round_input.workers.types_of(job.workers)
    fit = [kind for kind, gpus in free.items() if gpus >= job.spec.gpus and job.spec.rates.get(kind, 0.0) > 0]
    return max(fit, key=lambda kind: (kind in current, free[kind]), default=None)


@dataclass(frozen=True, slots=True)
class YarnCapacity:
    """Runs jobs first in, first out, to their end. No job passes the first waiting one.

    Containers do not distinguish GPU types: a gang takes free GPUs of any types that the job can run on, those of the
    emptiest servers first.
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
            gpu_types = round_input.workers.gpu_types
            usable = [worker for worker in free if job.spec.rates.get(gpu_types[worker], 0.0) > 0]
            if len(usable) < job.spec.gpus:
                break
            workers = _emptiest_servers_first(usable, round_input.workers.server_indices)[: job.spec.gpus]
            grants.append(Grant((name,), tuple(sorted(workers))))
            free = [worker for worker in free if worker not in workers]
        return grants


def _emptiest_servers_first(free: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Returns the free workers, those of the server with the most free workers first."""
    count = [servers[worker] for worker in free]
    return sorted(free, key=lambda worker: (-count.count(servers[worker]), worker))


def makespan_lower_bound(jobs: Sequence[ReplayJob], gpus_by_type: Mapping[str, int]) -> float:
    """Returns a lower bound in seconds: all jobs are there at once, restarts are free, and a job has any copies.

    It is a linear program over the GPU-seconds of each type for each job. Raises ReplayError if a job can run nowhere.
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
        raise ReplayError(f"these jobs can never all end: {answer.message}")
    return float(answer.fun)
