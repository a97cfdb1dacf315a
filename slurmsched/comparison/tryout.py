"""What a site's own jobs would have had: its accounting simulated under plain Slurm and under a policy.

A long period is cut into windows of equal length, and as many of them are simulated, drawn at random, as there is time
for. A window begins with the jobs that the accounting shows at its start, which hold their GPUs and are not measured;
the jobs that arrive in it are, and run to their end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from multiprocessing import get_context
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.backends.simulated import Submission
from slurmsched.knowledge import shipped_profiles
from slurmsched.model import Node, parse_hints
from slurmsched.settings.definition import GuardSettings, LearningSettings, Settings
from slurmsched.simulation import Scenario, SimulationError, SimulationOptions, SimulationResult, parse_policy
from slurmsched.simulation.engine import LEFT_OUT_ROUNDS, simulate
from slurmsched.simulation.inputs import PLAIN_SLURM
from slurmsched.simulation.results import JobResult, finish_time_fairness
from slurmsched.simulation.submissions import build_submission, impossible_reasons, request_key
from slurmsched.traces import Trace
from slurmsched.traces.accounting import AccountedJob

RECORDED: Final = "sacct"
"""The name of what the accounting records, beside those of policies."""

DAY: Final = 86400.0
_CUT_FROM: Final = DAY / 4
"""Seconds from the first arrival to the first end from which on the period is taken to begin with the latter: sacct
also prints jobs that began before it."""
_EARLY: Final = (3.0, 10.0, 30.0, 60.0)
_WINDOWS: Final = (DAY / 4, DAY / 2, DAY, 2 * DAY, 4 * DAY, 7 * DAY)
_WINDOWS_IN_TIME: Final = 8
"""Windows that there should be time for."""
_LEAST_SECONDS: Final = 1.0
BUDGET: Final = 180.0
"""Seconds of real time after which no other window is begun: a month then ends within five minutes."""


@dataclass(frozen=True, slots=True)
class TryoutOptions:
    """`period` seconds from round to round, of which a restart costs a job `overhead`. `checkpoints`: whether all jobs
    are taken to write a checkpoint when they are signalled, and not only those whose hints say so. `budget` are the
    seconds of real time after which no other window is begun; None for no end. `seed` draws the windows."""

    policy: str = "unified"
    period: float = 300.0
    overhead: float = 60.0
    checkpoints: bool = False
    budget: float | None = BUDGET
    processes: int = 2
    seed: int = 1
    early: float | None = None
    """Seconds between early rounds; None for what the number of jobs allows."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the period, in unix seconds. Of `jobs` the first `carried` ran or waited at its start, and do not
    count, as do those in `unmeasured`; all `arrival` are from its start."""

    start: float
    end: float
    jobs: tuple[AccountedJob, ...]
    carried: int

    @property
    def measured(self) -> tuple[AccountedJob, ...]:
        """The jobs that arrived in it and are over."""
        return tuple(job for job in self.jobs[self.carried :] if job.end is not None)


@dataclass(frozen=True, slots=True)
class WindowOutcome:
    """What the measured jobs of a window had, in its order: seconds from arrival to start and to end, finish-time
    fairness, and restarts.

    `idle` is the part of all GPUs without a job from the window's start to its end, `idle_beside_waiting` that while
    jobs waited for their first start (NaN if none did), `waiting` the mean number of these. `seconds` is what the
    simulation took of one core.
    """

    policy: str
    waits: Floats
    completions: Floats
    fairness: Floats
    restarts: Floats
    makespan: float
    idle: float
    idle_beside_waiting: float
    waiting: float
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TryoutRun:
    """The windows that were simulated, in order of time, with their outcomes by policy: `sacct`, `slurm` and the policy
    of the options, in which `early` is known. `windows` is how many there are in the period."""

    options: TryoutOptions
    simulated: tuple[Window, ...]
    outcomes: tuple[Mapping[str, WindowOutcome], ...]
    windows: int
    impossible: Mapping[str, int]
    began_before: int
    seconds: float

    @property
    def core_seconds(self) -> float:
        """What all simulations took of one core."""
        return sum(of.seconds for outcomes in self.outcomes for of in outcomes.values())

    def joined(self, policy: str, of: Callable[[WindowOutcome], Floats]) -> Floats:
        """Returns what all measured jobs had under a policy, in the order of the windows."""
        return np.concatenate([of(outcomes[policy]) for outcomes in self.outcomes])


def period_of(jobs: Sequence[AccountedJob]) -> tuple[float, float]:
    """Returns the unix seconds at which the period begins, and after its last arrival."""
    first, last = jobs[0].job.arrival, jobs[-1].job.arrival
    ended = min((job.end for job in jobs if job.end is not None), default=first)
    begins = min(ended, last) if ended - first > _CUT_FROM else first
    return begins, last + 1.0


def possible_jobs(jobs: Sequence[AccountedJob], nodes: Sequence[Node]) -> tuple[list[AccountedJob], Mapping[str, int]]:
    """Returns the jobs that the cluster can hold, and how many it cannot, by reason."""
    reasons = list(impossible_reasons((accounted.job for accounted in jobs), nodes))
    kept = [accounted for accounted, reason in zip(jobs, reasons, strict=True) if not reason]
    return kept, dict(Counter(filter(None, reasons)).most_common())


def cut_windows(jobs: Sequence[AccountedJob], length: float) -> list[tuple[float, float]]:
    """Returns the bounds of the windows of the period in order, those without a measured job left out. `jobs` are by
    arrival."""
    begins, ends = period_of(jobs)
    edges = np.linspace(begins, ends, max(1, ceil((ends - begins) / length)) + 1)
    arrivals = np.array([job.job.arrival for job in jobs if job.end is not None])
    counts = np.diff(np.searchsorted(arrivals, edges)).tolist()
    return [(low, high) for (low, high), count in zip(pairwise(edges.tolist()), counts, strict=True) if count]


def window_of(jobs: Sequence[AccountedJob], start: float, end: float) -> Window:
    """Returns a window of these jobs, which are by arrival."""
    before = [job for job in jobs if job.job.arrival < start < _until(job)]
    before.sort(key=lambda job: (job.start > start, job.start))
    inside = [job for job in jobs if start <= job.job.arrival < end]
    return Window(start, end, tuple(_moved(job, start) for job in (*before, *inside)), len(before))


def _until(job: AccountedJob) -> float:
    return job.start + job.job.duration if job.end is None else job.end


def _moved(job: AccountedJob, start: float) -> AccountedJob:
    """Returns the job with its arrival from the start of a window, and what was left of it by then."""
    ran = max(0.0, start - job.start)
    left = max(_LEAST_SECONDS, job.job.duration - ran)
    limit = None if job.job.time_limit is None else max(left, job.job.time_limit - ran)
    arrival = max(0.0, job.job.arrival - start)
    moved = replace(job.job, arrival=arrival, duration=left, time_limit=limit, fails_after=None)
    return replace(job, job=moved)


def early_interval(jobs: int, seconds: float, period: float) -> float:
    """Returns the seconds between early rounds: 3 as the daemon's, more where there would be many more than rounds."""
    events = 2.0 * jobs / max(seconds, 1.0)
    return next((early for early in _EARLY if period / max(early, 1.0 / max(events, 1e-9)) < _MOST_EARLY), _EARLY[-1])


_MOST_EARLY: Final = 5.0
"""Early rounds in the time of a round."""


def window_length(jobs: Sequence[AccountedJob], options: TryoutOptions) -> float:
    """Returns the seconds of a window: the whole period if there is time for it, by how long rounds usually take. Else
    there are several, for ranges."""
    begins, ends = period_of(jobs)
    seconds = ends - begins
    if options.budget is None:
        return seconds
    present = sum(_until(job) - job.job.arrival for job in jobs) / seconds
    waiting = sum(max(0.0, job.start - job.job.arrival - options.period) for job in jobs) / seconds
    early = options.early or _EARLY[0]
    events = 2.0 * len(jobs) / seconds
    busy = min(1.0 / options.period + min(1.0 / early, events), 2.0 * events)
    kept = min(busy, 1.0 / (LEFT_OUT_ROUNDS * options.period))
    rounds = kept + min(1.0, waiting) * (busy - kept)
    cost = rounds * (_ROUND_SECONDS + _ROUND_SECONDS_PER_JOB * present)
    last = kept * max(job.job.duration for job in jobs) * _ROUND_SECONDS
    if cost * seconds + last < _PART_OF_BUDGET * options.budget:
        return seconds
    affordable = (options.budget * options.processes / _WINDOWS_IN_TIME - last) / cost
    most = min(affordable, seconds / _WINDOWS_IN_TIME)
    return max((length for length in _WINDOWS if length <= most), default=_WINDOWS[0])


_ROUND_SECONDS: Final = 0.01
_ROUND_SECONDS_PER_JOB: Final = 0.00015
"""Of one core, of which there is one that is five years old."""
_PART_OF_BUDGET: Final = 0.3


def run_tryout(
    jobs: Sequence[AccountedJob],
    nodes: Sequence[Node],
    options: TryoutOptions,
    *,
    on_progress: Callable[[float], None] = lambda _part: None,
    clock: Callable[[], float] = time.monotonic,
) -> TryoutRun:
    """Simulates the windows. `jobs` are by arrival. Raises SimulationError if the cluster can hold none of them."""
    began = clock()
    kept, impossible = possible_jobs(jobs, nodes)
    if not kept:
        reason = next(iter(impossible), "there are none")
        raise SimulationError(f"the cluster can hold none of the jobs ({reason}): give its nodes with --cluster")
    begins, ends = period_of(kept)
    if options.early is None:
        options = replace(options, early=early_interval(len(kept), ends - begins, options.period))
    bounds = cut_windows(kept, window_length(kept, options))
    if not bounds:
        raise SimulationError("no job arrived in the period and is over: take a longer one with sacct's -S and -E")
    drawn = [bounds[at] for at in np.random.default_rng(options.seed).permutation(len(bounds)).tolist()]
    found = _run_windows(kept, drawn, nodes, options, _Progress(on_progress, lambda: clock() - began))
    found.sort(key=lambda pair: pair[0].start)
    return TryoutRun(
        options=options,
        simulated=tuple(window for window, _ in found),
        outcomes=tuple({RECORDED: recorded_outcome(window, nodes), **outcome} for window, outcome in found),
        windows=len(bounds),
        impossible=impossible,
        began_before=sum(job.job.arrival < begins for job in kept),
        seconds=clock() - began,
    )


_Task = tuple[int, str]
_progress: SynchronizedArray[float] | None = None


def _share_progress(shared: SynchronizedArray[float]) -> None:
    global _progress  # noqa: PLW0603  # a process of the pool gets what it shares with the others only so
    _progress = shared


@dataclass(frozen=True, slots=True)
class _Progress:
    """Who is told the part done, and the seconds that have been spent."""

    tell: Callable[[float], None]
    spent: Callable[[], float]

    def update(self, simulated: float, budget: float | None) -> None:
        self.tell(min(1.0, max(simulated, self.spent() / budget if budget else 0.0)))


_Simulated = tuple[Window, Mapping[str, WindowOutcome]]


def _run_windows(
    jobs: Sequence[AccountedJob],
    bounds: Sequence[tuple[float, float]],
    nodes: Sequence[Node],
    options: TryoutOptions,
    progress: _Progress,
) -> list[_Simulated]:
    """Returns the first windows with their outcomes, as many as there is time for, at least one."""
    policies = tuple(dict.fromkeys((options.policy, PLAIN_SLURM)))
    if len(bounds) == 1 and len(jobs) < _FEW_JOBS:
        window = window_of(jobs, *bounds[0])
        return [(window, {policy: run_window(window, nodes, policy, options) for policy in policies})]
    context = get_context("spawn")
    shared: SynchronizedArray[float] = context.Array("d", len(bounds) * len(policies))
    found = list[tuple[Window, dict[str, WindowOutcome]]]()
    pending: dict[Future[WindowOutcome], _Task] = {}
    longest, started = 0.0, list[float]()
    with ProcessPoolExecutor(options.processes, context, _share_progress, (shared,)) as pool:
        try:
            while len(found) < len(bounds) or pending:
                in_time = options.budget is None or progress.spent() + longest <= options.budget
                while len(found) < len(bounds) and len(pending) < options.processes and (in_time or not found):
                    window = window_of(jobs, *bounds[len(found)])
                    for place, policy in enumerate(policies):
                        at = len(found) * len(policies) + place
                        future = pool.submit(run_window, window, nodes, policy, options, at=at)
                        pending[future] = (len(found), policy)
                    started.append(progress.spent())
                    found.append((window, {}))
                if not pending:
                    break
                done, _ = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    number, policy = pending.pop(future)
                    found[number][1][policy] = future.result()
                    longest = max(longest, progress.spent() - started[number])
                progress.update(sum(shared[:]) / len(shared), options.budget)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [*found]


_FEW_JOBS: Final = 300
"""With fewer a process takes longer to start than its work."""


def run_window(
    window: Window, nodes: Sequence[Node], policy: str, options: TryoutOptions, *, at: int = 0
) -> WindowOutcome:
    """Simulates a window under a policy; `at` is where the part done is told. Raises SimulationError, PolicyError."""
    trace = Trace("sacct", tuple(job.job for job in window.jobs), "sacct")
    submissions = build_submissions(window.jobs, nodes, checkpoints=options.checkpoints)
    scenario = Scenario(tuple(nodes), trace, shipped_profiles(), submissions=submissions)
    chosen = SimulationOptions(
        period=options.period,
        early=options.early or 0.0,
        overhead=options.overhead,
        seed=options.seed,
        direct=True,
        window=(window.carried, len(window.jobs)),
    )
    settings = Settings(guards=GuardSettings(restart_cost=options.overhead), learning=LearningSettings(lengths=True))

    def report(part: float) -> None:
        if _progress is not None:
            _progress[at] = part

    run = simulate(scenario, parse_policy(policy), chosen, settings, on_round=report)
    return outcome_of(run, window)


def build_submissions(
    jobs: Sequence[AccountedJob], nodes: Sequence[Node], *, checkpoints: bool
) -> Mapping[str, Submission]:
    """Returns the jobs as they were submitted, by id: nobody knows their length but by their limits and hints."""
    known, found = dict[tuple[object, ...], Submission](), dict[str, Submission]()
    for accounted in jobs:
        job, key = accounted.job, request_key(accounted.job)
        if key not in known:
            known[key] = build_submission(job, nodes, SimulationOptions())
        found[job.id] = replace(
            known[key],
            user=job.user or "user",
            account=job.account,
            name=job.name or job.id,
            work=max(job.duration, 1e-3),
            time_limit=None if job.time_limit is None else ceil(job.time_limit),
            comment=_comment(accounted.comment, checkpoints=checkpoints),
            checkpoint_time=0.0,
            fails=False,
        )
    return found


def _comment(comment: str, *, checkpoints: bool) -> str:
    """Returns the hints of a comment without marks of the hook, and without those that nothing can be made of here."""
    hints = parse_hints(comment)
    signal = hints.checkpoint or ("usr1" if checkpoints else None)
    kept = {
        "model": hints.model,
        "task": hints.task,
        "ckpt": signal and f"{signal}" + ("" if hints.lead is None or signal == "none" else f"@{hints.lead}"),
        "duration": hints.duration,
        "mem": "tune" if hints.memory_tunable else None,
        "cpus": {True: "tune", False: "keep", None: None}[hints.cpus_tunable],
    }
    words = ",".join(f"{key}={value}" for key, value in kept.items() if value)
    return f"synsched:{words}" if words else ""


def recorded_outcome(window: Window, nodes: Sequence[Node]) -> WindowOutcome:
    """Returns what the accounting records of a window."""
    gpus = sum(len(node.gpus) for node in nodes)
    jobs = [
        JobResult(
            job.job.id,
            job.job.arrival,
            job.job.duration,
            float(job.job.gpus),
            job.job.user,
            start=max(job.job.arrival, job.start - window.start),
            end=max(0.0, _until(job) - window.start),
            state="COMPLETED",
            service=job.job.gpus * job.job.duration,
        )
        for job in window.jobs
    ]
    return outcome_of(_result(RECORDED, jobs, gpus), window)


def _result(policy: str, jobs: Sequence[JobResult], gpus: int) -> SimulationResult:
    return SimulationResult(policy, "", "sacct", 0, tuple(jobs), (), float(gpus), 0.0, 0.0, 0, (), 0.0, 0.0)


def outcome_of(run: SimulationResult, window: Window) -> WindowOutcome:
    """Returns what the measured jobs of a window had in a run."""
    by_id = {job.job: job for job in run.jobs}
    measured = [by_id[job.job.id] for job in window.measured]
    unfinished = [job.job for job in measured if job.end is None or job.start is None]
    if unfinished:
        raise SimulationError(f"job {unfinished[0]} did not end under {run.policy}")
    fairness = dict(
        zip((job.job for job in run.measured_jobs if job.completed), finish_time_fairness(run), strict=True)
    )
    ends = [job.end or 0.0 for job in measured]
    idle, beside, waiting = _use_of_gpus(run.jobs, run.total_gpus, window.end - window.start)
    return WindowOutcome(
        policy=run.policy,
        waits=np.array([(job.start or 0.0) - job.arrival for job in measured]),
        completions=np.array([job.jct for job in measured]),
        fairness=np.array([float(fairness.get(job.job, np.nan)) for job in measured]),
        restarts=np.array([float(job.restarts) for job in measured]),
        makespan=max(ends, default=0.0),
        idle=idle,
        idle_beside_waiting=beside,
        waiting=waiting,
        rounds=run.rounds,
        seconds=run.cpu_s,
    )


def _use_of_gpus(jobs: Sequence[JobResult], gpus: float, until: float) -> tuple[float, float, float]:
    """Returns the part of the GPUs that was idle until then, that while jobs waited for their first start, and how many
    of these there were on average. A job that was restarted counts as if it had held its GPUs evenly, one that still
    runs as if it had held them since it started."""
    last = 2.0 * until + max((job.end or 0.0 for job in jobs), default=0.0)
    arrivals = np.array([job.arrival for job in jobs])
    starts = np.array([last if job.start is None else job.start for job in jobs])
    ends = np.array([last if job.end is None else job.end for job in jobs])
    evenly = np.array([job.service for job in jobs]) / np.maximum(ends - starts, 1e-9)
    held = np.where([job.end is None for job in jobs], [job.gpus for job in jobs], evenly)
    times = np.concatenate([arrivals, starts, ends])
    order, nothing, one = np.argsort(times, kind="stable"), np.zeros(len(jobs)), np.ones(len(jobs))
    in_use = np.cumsum(np.concatenate([nothing, held, -held])[order])
    waiting = np.cumsum(np.concatenate([one, -one, nothing])[order])
    edges = np.clip(np.append(times[order], last), 0.0, until)
    seconds = np.diff(edges)
    empty = max(0.0, until - float(seconds.sum()))
    idle = np.clip(1.0 - in_use / gpus, 0.0, 1.0)
    beside = seconds * (waiting > 0)
    part = float(idle @ beside / beside.sum()) if beside.sum() > 0 else float("nan")
    return (float(idle @ seconds) + empty) / until, part, float(waiting @ seconds) / until
