"""Workloads of the mixed benchmark, at any load, and what is known of their jobs.

What is drawn: which jobs of a trace there are, models (no trace has any that was recorded), users where a trace has
none, widths and durations of the drawn workloads, and arrivals of all but Philly's and ITP's, which keep their order
and their bursts. A seed gives the same jobs at every load; only the time between them differs. Recorded jobs that run
longer than a day are cut to one, since one of a month would decide on every figure, and openb's pods, of which half are
over in ten minutes, to eight hours; of them there are five times as many.

Load: the GPU-seconds on the reference type that arrive in a second, over those that the cluster can do in a second. A
GPU counts as much as the mean job, weighted by GPU-seconds, does on its type relative to the reference type. At load 1
the jobs would just keep all GPUs busy if each type had an equal part of every job.

Knowledge is `perfect`: everybody hints the true model and duration, all profiles are true, and limits are a tenth and
ten minutes above what the job takes on the slowest type. Or it is a `site`'s: nobody hints a duration, limits are two
to ten times too long, a third of the jobs have no profile, and of each profile rates and gains by more CPUs are 20 %
too high or too low; Slurm's accounting tells what ended runs used, from which daemons learn. With `same-limits` it is
the same, and everybody leaves the limit that the partition has, a week.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import Final

import numpy as np

from slurmsched.backends.simulated import Submission
from slurmsched.experiments.experiment import ExperimentError, ExperimentSetup
from slurmsched.experiments.forecasts.lengths import DAY, TracedRun, read_runs
from slurmsched.experiments.synergy.unknown import SimulatedAccounting
from slurmsched.knowledge import Knowledge, Profile, SensitivityMatrix, sample_speedups, shipped_profiles
from slurmsched.model import MILLI_PER_GPU, AccountedRun, JobId, Node
from slurmsched.settings.definition import Settings
from slurmsched.simulation.inputs import Scenario, SimulationOptions, load_trace
from slurmsched.simulation.submissions import build_submission, impossible_reasons
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generators import HOUR, MINUTE, draw_weighted, poisson_arrivals, random_stream

REFERENCE: Final = "v100"
"""The GPU type that durations refer to."""

_SPEEDUPS_AS: Final[Mapping[str, str]] = {
    "alexnet": "superresolution",
    "shufflenet": "vae",
    "resnet18": "resnet50",
    "resnet50": "resnet50",
    "mobilenet": "dcgan",
    "m5": "gru",
    "deepspeech": "gru",
    "lstm": "lstm",
    "gnmt": "lstm",
    "transformer": "resnext50",
}
"""Models with sensitivity to CPUs, and whose measured rates by GPU type they are taken to have: from networks that gain
little by a faster GPU to those that run five times as fast."""

_LONGEST, _SHORTEST = DAY, MINUTE
_LONGEST_POD: Final = 8 * HOUR
"""Half of the pods are over in ten minutes: with longer ones at the end, arrivals would not be the load."""
_WIDTHS: Final = (1, 2, 4, 8, 16)
_DRAWN_WIDTHS: Final[Mapping[int, float]] = {1: 0.6, 2: 0.12, 4: 0.15, 8: 0.1, 16: 0.03}
"""Philly's, with more gangs."""
_DRAWN_USERS: Final[Mapping[str, float]] = {"user1": 0.4, **{f"user{number}": 0.1 for number in range(2, 8)}}
"""One user has four tenths of the jobs."""
_PARTS: Final = (250, 500, 750)
_WITH_PART: Final = 0.5
"""One-GPU jobs that ask for such a part of a GPU, in thousandths."""
_MODELS_OF_USER: Final = 3
_GPUS: Final = 48
"""About as many as each of the clusters has."""
_DAYS: Final = 3
"""Days of a trace of which its jobs are drawn."""

SITE_SETTINGS: Final = Settings()
SITE_OPTIONS: Final = SimulationOptions(
    period=SITE_SETTINGS.rounds.period,
    early=SITE_SETTINGS.rounds.early_interval,
    overhead=SITE_SETTINGS.guards.restart_cost,
    completing=5.0,
)
"""Rounds and restarts are as the default settings say."""
_CHECKPOINT_SECONDS: Final = 10.0

NO_PROFILE, RATE_ERROR, LEAST_OVER, MOST_OVER = 1 / 3, 0.2, 2.0, 10.0
"""What a site knows: the part of jobs without a profile, the error of rates, and times by which limits are too long."""
_SAME_LIMIT: Final = 7 * DAY


@dataclass(frozen=True, slots=True)
class MixedWorkload:
    """A workload: its nodes, and so many jobs of a seed, in order of arrival at any rate. With `parts` some jobs ask
    for a part of a GPU, and policies that can schedule them do. It has `times` as many jobs as others."""

    summary: str
    nodes: Callable[[ExperimentSetup], tuple[Node, ...]]
    draw: Callable[[int, int, ExperimentSetup], Sequence[TraceJob]]
    parts: bool = False
    times: int = 1


def _described(spec: str) -> Callable[[ExperimentSetup], tuple[Node, ...]]:
    return lambda _setup: load_cluster(spec).nodes


def drawn_jobs(count: int, seed: int, _setup: ExperimentSetup) -> Sequence[TraceJob]:
    """Draws gangs of 1 to 16 GPUs of ten minutes to a day, that arrive as a Poisson process."""
    users = draw_weighted(_DRAWN_USERS, count, random_stream(seed, "users"))
    return jobs_of_users(users, seed, longest=_LONGEST, widths=_DRAWN_WIDTHS)


def jobs_of_users(
    users: Sequence[str], seed: int, *, longest: float, widths: Mapping[int, float]
) -> Sequence[TraceJob]:
    """Draws a job for each of these owners, in order of arrival: of ten minutes to `longest` seconds by the logarithm,
    that wide, and with a model of the owner's. Ids are numbers."""
    count = len(users)
    arrivals = poisson_arrivals(count, 1.0, random_stream(seed, "arrivals"))
    durations = np.exp(random_stream(seed, "durations").uniform(np.log(10 * MINUTE), np.log(longest), count))
    drawn = draw_weighted(widths, count, random_stream(seed, "widths"))
    return _with_models(
        [
            TraceJob(str(number), float(arrivals[number]), width, float(durations[number].round(3)), user=user)
            for number, (width, user) in enumerate(zip(drawn, users, strict=True))
        ],
        seed,
    )


def _jobs_with_parts(count: int, seed: int, setup: ExperimentSetup) -> Sequence[TraceJob]:
    random = random_stream(seed, "parts")
    chosen, parts = random.random(count) < _WITH_PART, draw_weighted(dict.fromkeys(_PARTS, 1.0), count, random)
    memory = min(node.total.memory // len(node.gpus) for node in WORKLOADS["parts"].nodes(setup))
    return [
        replace(job, gpus=0, milli_gpu=part, cpus=1, memory=memory * part // MILLI_PER_GPU)
        if takes and job.gpus == 1
        else job
        for job, takes, part in zip(drawn_jobs(count, seed, setup), chosen, parts, strict=True)
    ]


def _openb_nodes(setup: ExperimentSetup) -> tuple[Node, ...]:
    """Returns nodes at equal distances in openb's list, sorted by kind, that have about as many GPUs as the others."""
    nodes = load_cluster(str(setup.data_file("fgd", "openb_node_list_gpu_node.csv"))).nodes
    kinds = sorted(nodes, key=lambda node: (node.gpus[0].type, len(node.gpus), node.total.cpus, node.name))
    count = round(len(kinds) * _GPUS / sum(len(node.gpus) for node in kinds))
    return tuple(kinds[int((number + 0.5) * len(kinds) / count)] for number in range(count))


def _openb_jobs(count: int, seed: int, setup: ExperimentSetup) -> Sequence[TraceJob]:
    """Draws pods with GPUs that fit; users are drawn, models there are none."""
    pods = load_trace(str(setup.data_file("fgd", "openb_pod_list_default.csv")), form="openb").trace.jobs
    nodes = _openb_nodes(setup)
    fitting = [
        job
        for job, reason in zip(pods, impossible_reasons(pods, nodes), strict=True)
        if job.duration >= _SHORTEST and not reason
    ]
    chosen = random_stream(seed, "openb").choice(len(fitting), min(count, len(fitting)), replace=False).tolist()
    arrivals = poisson_arrivals(len(chosen), 1.0, random_stream(seed, "arrivals"))
    users = draw_weighted(_DRAWN_USERS, len(chosen), random_stream(seed, "users"))
    return [
        replace(
            fitting[index],
            id=str(number),
            arrival=float(arrivals[number]),
            duration=min(fitting[index].duration, _LONGEST_POD),
            user=users[number],
        )
        for number, index in enumerate(chosen)
    ]


def _traced_jobs(runs: Sequence[TracedRun], count: int, seed: int, name: str) -> Sequence[TraceJob]:
    """Draws jobs of three days of a trace, which keep the order and the rhythm of their arrivals."""
    usable = [run for run in runs if run.gpus in _WIDTHS and run.seconds >= _SHORTEST]
    random, times = random_stream(seed, name), np.array([run.submitted for run in usable])
    latest = max(times[0], times[-1] - _DAYS * DAY)
    begin = float(random.uniform(times[0], latest))
    first, stop = np.searchsorted(times, (begin, begin + _DAYS * DAY))
    if stop - first < count:
        raise ExperimentError(f"{name}: expected at least {count} usable jobs within {_DAYS} days, not {stop - first}")
    chosen = np.sort(random.choice(np.arange(first, stop), count, replace=False)).tolist()
    jobs = [
        TraceJob(
            str(number),
            usable[index].submitted - usable[chosen[0]].submitted,
            usable[index].gpus,
            min(usable[index].seconds, _LONGEST),
            user=usable[index].owner,
        )
        for number, index in enumerate(chosen)
    ]
    return _with_models(jobs, seed)


def _philly_jobs(count: int, seed: int, setup: ExperimentSetup) -> Sequence[TraceJob]:
    return _traced_jobs(read_runs(setup.data_file("traces", "philly_users.csv")), count, seed, "philly")


def _itp_jobs(count: int, seed: int, setup: ExperimentSetup) -> Sequence[TraceJob]:
    """ITP has no users: each of its clusters counts as one."""
    clusters = (f"cluster{number:02}" for number in range(1, 8))
    runs = [
        replace(run, owner=name)
        for name in clusters
        for run in read_runs(setup.data_file("traces", "itp", f"{name}.csv"))
    ]
    return _traced_jobs(sorted(runs, key=lambda run: run.submitted), count, seed, "itp")


def _with_models(jobs: Sequence[TraceJob], seed: int) -> Sequence[TraceJob]:
    """Returns the jobs with one of the three models that each user trains."""
    models = list(_SPEEDUPS_AS)
    of_user = {
        user: random_stream(seed, f"models of {user}").choice(len(models), _MODELS_OF_USER, replace=False).tolist()
        for user in {job.user for job in jobs}
    }
    spins = random_stream(seed, "models").integers(0, _MODELS_OF_USER, len(jobs)).tolist()
    return [replace(job, model=models[of_user[job.user][spin]]) for job, spin in zip(jobs, spins, strict=True)]


_THREE_TYPES: Final = _described("v100:2x8,p100:2x8,k80:2x8")

WORKLOADS: Final[Mapping[str, MixedWorkload]] = {
    "drawn": MixedWorkload(
        "Three GPU types; gangs of 1 to 16, 10 min to a day, CPU-hungry and other models, one heavy user of seven.",
        _THREE_TYPES,
        drawn_jobs,
    ),
    "parts": MixedWorkload(
        "The same, but half of the one-GPU jobs ask for 1/4, 1/2 or 3/4 of a GPU.",
        _THREE_TYPES,
        _jobs_with_parts,
        parts=True,
    ),
    "openb": MixedWorkload(
        "Pods of openb's default trace on every 135th of its nodes, by kind; arrivals and users drawn, no models.",
        _openb_nodes,
        _openb_jobs,
        parts=True,
        times=5,
    ),
    "philly": MixedWorkload(
        "Three days of Philly with users, on two GPU types; models drawn.",
        _described("v100:3x8,p100:3x8"),
        _philly_jobs,
    ),
    "itp": MixedWorkload(
        "Three days of ITP's seven clusters, each as a user, on one GPU type; models drawn.",
        _described("v100:6x8"),
        _itp_jobs,
    ),
}
"""Every workload by name."""

COMPARED_KNOWLEDGE: Final = ("perfect", "site")
"""What is compared unless something else is asked for."""


def true_profiles(types: Sequence[str] = (REFERENCE, "p100", "k80")) -> Mapping[str, Profile]:
    """Returns the profiles that jobs run by."""
    sensitive, measured = shipped_profiles().models, sample_speedups().models
    return {
        model: Profile(
            model,
            "",
            sensitive[model].matrices,
            "simulated",
            {kind: measured[other].scaling[kind] for kind in types},
        )
        for model, other in _SPEEDUPS_AS.items()
    }


def misjudged_profiles(profiles: Mapping[str, Profile], seed: int) -> Mapping[str, Profile]:
    """Returns the profiles with rates and gains by CPUs that are a fifth too high or too low, each by a coin."""
    random = random_stream(seed, "errors")

    def factor() -> float:
        return 1.0 + RATE_ERROR * (1 if random.random() < 0.5 else -1)  # noqa: PLR2004  # a coin

    return {
        model: replace(
            profile,
            matrices={kind: _misjudged(matrix, factor()) for kind, matrix in profile.matrices.items()},
            scaling={kind: scaling.scaled_by(factor()) for kind, scaling in profile.scaling.items()},
        )
        for model, profile in profiles.items()
    }


def _misjudged(matrix: SensitivityMatrix, factor: float) -> SensitivityMatrix:
    """Returns the matrix with `factor` times the gains and losses relative to the proportional share's speed, 1."""
    speeds = (tuple(max(0.05, 1.0 + factor * (speed - 1.0)) for speed in row) for row in matrix.speed)
    return replace(matrix, speed=tuple(speeds))


def gpus_of(job: TraceJob) -> float:
    """Returns the GPUs that a job asks for, which may be a part of one."""
    return job.gpus + job.milli_gpu / MILLI_PER_GPU


def _relative_rates(job: TraceJob, types: Sequence[str], profiles: Mapping[str, Profile]) -> Sequence[float]:
    profile = profiles.get(job.model)
    if profile is None:
        return [1.0] * len(types)
    reference = profile.scaling[REFERENCE].rate_at(1)
    return [profile.scaling[kind].rate_at(1) / reference for kind in types]


def mean_alone(jobs: Sequence[TraceJob], nodes: Sequence[Node], profiles: Mapping[str, Profile]) -> float:
    """Returns the mean seconds that the jobs take if each is alone, on the type that is fastest for it, and has all of
    its nodes, of which there are as few as hold it: no policy has a shorter mean completion."""
    kinds = list({(node.gpus[0].type, len(node.gpus), node.total): node for node in nodes if node.gpus}.values())
    return fmean(job.duration / max(_rates_alone(job, kinds, profiles)) for job in jobs)


def _rates_alone(job: TraceJob, nodes: Sequence[Node], profiles: Mapping[str, Profile]) -> Iterator[float]:
    """Yields what a job that is alone does in a second on each of these nodes, or several of its kind; a proportional
    share does 1 on the reference."""
    profile = profiles.get(job.model)
    for node, rate in zip(nodes, _relative_rates(job, [node.gpus[0].type for node in nodes], profiles), strict=True):
        matrix, gpus = profile and profile.matrix(node.gpus[0].type), max(min(job.gpus, len(node.gpus)), 1)
        yield rate * matrix.speed_at(node.total.cpus / gpus, node.total.memory / gpus) if matrix else rate


def slowest_runs(jobs: Sequence[TraceJob], nodes: Sequence[Node], profiles: Mapping[str, Profile]) -> Sequence[float]:
    """Returns the seconds that each job takes on the type that is slowest for it."""
    types = list(dict.fromkeys(gpu.type for node in nodes for gpu in node.gpus))
    return [job.duration / min(_relative_rates(job, types, profiles)) for job in jobs]


def at_load(
    jobs: Sequence[TraceJob], nodes: Sequence[Node], load: float, profiles: Mapping[str, Profile]
) -> Sequence[TraceJob]:
    """Returns the jobs with their arrivals stretched, from 0 on, so that they are this load; see the module."""
    types = [gpu.type for node in nodes for gpu in node.gpus]
    kinds = list(dict.fromkeys(types))
    work = np.array([gpus_of(job) * job.duration for job in jobs])
    rates = np.array([_relative_rates(job, kinds, profiles) for job in jobs])
    worth = dict(zip(kinds, (work @ rates / work.sum()).tolist(), strict=True))
    seconds = float(work.sum()) / (load * sum(worth[kind] for kind in types))
    first, last = jobs[0].arrival, jobs[-1].arrival
    if last <= first:
        raise ExperimentError("jobs that all arrive at once have no load: use more of them")
    factor = seconds * (len(jobs) - 1) / len(jobs) / (last - first)
    return [replace(job, arrival=round((job.arrival - first) * factor, 3)) for job in jobs]


def hinted_submission(job: TraceJob, nodes: Sequence[Node], limit: float, model: str, *, hinted: bool) -> Submission:
    """Returns what the owner submits: `model` is the hint, empty for none; with `hinted` also the duration."""
    hints = {
        "model": model,
        "ckpt": "usr1",
        "duration": str(max(1, ceil(job.duration))) if hinted else "",
        "mem": "tune" if job.memory is None else "",
        "cpus": "tune" if job.memory is None else "",
    }
    work = f"{job.user}-{job.model or 'train'}"
    return replace(
        build_submission(job, nodes, SITE_OPTIONS),
        comment="synsched:" + ",".join(f"{key}={value}" for key, value in hints.items() if value),
        checkpoint_time=_CHECKPOINT_SECONDS,
        time_limit=ceil(limit),
        name=work,
        script=work,
        folder=f"/home/{job.user}",
    )


def _accounting_of(profiles: Mapping[JobId, Profile]) -> Callable[[AccountedRun], AccountedRun]:
    """Returns what accounting tells: CPU time and memory of runs on whole GPUs, of others nothing."""
    use = SimulatedAccounting(profiles, gpu_use=False)
    return lambda run: use(run) if run.gpus else run


@dataclass(frozen=True, slots=True)
class MixedInputs:
    """So many jobs of a workload, by its name, at one load; `knowledge` is what is known of them."""

    workload: str
    knowledge: str
    load: float
    seed: int
    jobs: int

    def scenario(self, setup: ExperimentSetup) -> Scenario:
        """Returns the simulation's inputs. Raises ExperimentError, TraceError."""
        workload = WORKLOADS[self.workload]
        nodes, profiles = workload.nodes(setup), true_profiles()
        jobs = at_load(workload.draw(self.jobs * workload.times, self.seed, setup), nodes, self.load, profiles)
        longest = slowest_runs(jobs, nodes, profiles)
        trace = Trace(self.workload, tuple(jobs), workload.summary)
        perfect = Knowledge(models=profiles, reference=REFERENCE)
        if self.knowledge == "perfect":
            submissions = {
                job.id: hinted_submission(job, nodes, 1.1 * seconds + 10 * MINUTE, job.model, hinted=True)
                for job, seconds in zip(jobs, longest, strict=True)
            }
            return Scenario(nodes, trace, perfect, submissions=submissions)
        over = random_stream(self.seed, "limits").uniform(LEAST_OVER, MOST_OVER, len(jobs))
        limits = np.full(len(jobs), _SAME_LIMIT) if self.knowledge == "same-limits" else over * longest
        told = random_stream(self.seed, "profiles").random(len(jobs)) >= NO_PROFILE
        submissions = {
            job.id: hinted_submission(job, nodes, limit, job.model if tells else "", hinted=False)
            for job, limit, tells in zip(jobs, limits.tolist(), told, strict=True)
        }
        # The simulated cluster numbers jobs in order of arrival, from 1.
        own: Mapping[JobId, Profile] = {
            str(number): profiles[job.model] for number, job in enumerate(jobs, start=1) if job.model
        }
        return Scenario(
            nodes,
            trace,
            replace(perfect, models=misjudged_profiles(profiles, self.seed)),
            replace(perfect, own=own),
            submissions,
            accounting=_accounting_of(own) if own else None,
        )
