"""`synsched advise`: what runs that have ended used of what they had, and what to ask for; a week by user for admins.

Averages over whole runs hide short needs, so that nothing is advised from fewer than three runs, or where Slurm did not
gather what runs used, and every amount has a margin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding

from slurmsched.knowledge.usage import (
    FULL,
    MAX_AGE,
    MEMORY_MARGIN,
    MIN_RUNS,
    SATURATED,
    busy_cpus,
    cpu_need,
    tells,
)
from slurmsched.knowledge.work import Kind, Work, WorkKind
from slurmsched.model import AccountedRun, IdleGpus, JobId, RunEnd, SynschedError, work_of
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import amount, duration, fixed, memory, percent
from slurmsched.report.status import idle_view
from slurmsched.report.tables import Column, Listing, safe_line
from slurmsched.store.read_only import ReadOnlyStore

WEEK: Final = 7 * 86400.0
_QUANTILE: Final = 0.95
_LIMIT_MARGIN: Final = 1.2
"""How much longer than 95 % of the runs a time limit is advised to be."""
_WORTH_IT: Final = 0.9
"""Less is advised only where it is at most this part of what was asked for."""
_MAX_TIMED_OUT: Final = 0.05
"""Part of the runs that may end at their limit before a shorter limit is not advised."""
_GIBIBYTE: Final = 1024
_WORKS_LISTED: Final = 10


class NothingLearntError(SynschedError):
    """No run is known from which anything could be advised."""


@dataclass(frozen=True, slots=True)
class ResourceAdvice:
    """What `runs` runs used of a resource, and what the last had: seconds, CPUs for each GPU, MiB on a node, or GPUs.

    `advised` is the amount to ask for with `option` of sbatch; None, and no option, if nothing is advised.
    """

    resource: str
    runs: int
    sentence: str
    had: float | None = None
    used: float | None = None
    advised: float | None = None
    option: str = ""


@dataclass(frozen=True, slots=True)
class WorkAdvice:
    """Advice for an owner's work, by `runs` runs that have the `kind` in common; the last of them ended at `at`."""

    owner: str
    name: str
    kind: str
    runs: int
    at: float
    gpus: int
    gpu_type: str
    resources: tuple[ResourceAdvice, ...]
    sbatch: str
    """The options to give sbatch; empty if nothing is advised."""


def advise_user(store: ReadOnlyStore, user: str, now: float, *, required: bool = True) -> tuple[WorkAdvice, ...]:
    """Advice for each of this user's works, the last one first, as for its last run. Raises NothingLearntError if
    there is none and one is `required`, UnreadableError."""
    runs = _by_kind(store.finished_runs(now - MAX_AGE, user), now)
    latest = dict[Kind, AccountedRun]()
    for run in sorted((run for same in runs.values() for run in same), key=lambda run: run.ended):
        latest[_kinds(Work.of_run(run))[-1][1]] = run
    if not latest and required:
        past = pluralise(round(MAX_AGE / 86400), "day")
        raise NothingLearntError(
            f"no run of {user} is known from the last {past} that had GPUs and a name, ran for a minute or"
            " longer and did not fail: nothing is advised"
        )
    last_first = sorted(latest.values(), key=lambda run: run.ended, reverse=True)
    return tuple(_advise_work(_kinds(Work.of_run(run)), runs) for run in last_first)


def advise_job(store: ReadOnlyStore, job: JobId, now: float) -> WorkAdvice:
    """Advice for the work of one job, waiting, running or ended. Raises NothingLearntError, UnreadableError."""
    ended = store.runs_of_job(job)
    row = store.job(job) or next((store.job(task) for task in store.array_tasks(job)), None)
    if ended:
        work = Work.of_run(ended[-1])
    elif row is not None:
        script, folder = store.origin(row.id)
        array = "_" in row.id
        work = Work(owner=row.owner, name=row.name, script=script, folder=folder, array=array, gpus=row.original.gpus)
    else:
        raise NothingLearntError(f"job {job} is not known here: 'synsched advise' without a job lists what is")
    runs, kinds = _by_kind(store.finished_runs(now - MAX_AGE, work.owner), now), _kinds(work)
    if not any(key in runs for _, key in kinds):
        raise NothingLearntError(f"no run of the same work as job {job} is known: nothing is advised")
    return _advise_work(kinds, runs)


def _kinds(work: Work) -> Sequence[tuple[WorkKind, Kind]]:
    """The kinds of the work down to its name: runs that have less in common may differ in much else."""
    return [(kind, key) for kind, key in work.kinds() if kind <= WorkKind.NAME]


def _by_kind(runs: Iterable[AccountedRun], now: float) -> Mapping[Kind, Sequence[AccountedRun]]:
    """The runs that tell anything, by each kind that they belong to, in the order of their ends."""
    kinds: defaultdict[Kind, list[AccountedRun]] = defaultdict(list)
    for run in runs:
        for _, key in _kinds(Work.of_run(run)) if tells(run, now) else ():
            kinds[key].append(run)
    return kinds


def _advise_work(kinds: Sequence[tuple[WorkKind, Kind]], by_kind: Mapping[Kind, Sequence[AccountedRun]]) -> WorkAdvice:
    """Advice by the nearest kind that has enough runs, else by the widest that has any."""
    known = [(kind, by_kind[key]) for kind, key in kinds if by_kind.get(key)]
    kind, runs = next((one for one in known if len(one[1]) >= MIN_RUNS), known[-1])
    last = runs[-1]
    alike = [run for run in runs if (run.gpus, run.nodes) == (last.gpus, last.nodes)]
    gpus = _gpus(last, alike)
    fewer = last.gpus if gpus.advised is None else round(gpus.advised)
    resources = (_time(last, alike), _cpus(last, runs, fewer), _memory(last, alike), gpus)
    options = " ".join(advice.option for advice in (gpus, *resources[:-1]) if advice.option)
    line = f"sbatch {options}" if options else ""
    return WorkAdvice(
        last.owner, last.name, kind.words, len(runs), last.ended, last.gpus, last.gpu_type, resources, line
    )


def _quantile(values: Iterable[float]) -> float:
    """The least of the values that 95 % of them do not exceed."""
    ascending = sorted(values)
    return ascending[ceil(_QUANTILE * len(ascending)) - 1]


def _time(last: AccountedRun, runs: Sequence[AccountedRun]) -> ResourceAdvice:
    """The limit against the length of the jobs that completed, with what they ran before they were requeued."""
    seconds: defaultdict[JobId, float] = defaultdict(float)
    for run in runs:
        seconds[run.job] += run.seconds
    completed = [seconds[run.job] for run in runs if run.end is RunEnd.COMPLETED]
    timed_out = sum(run.end is RunEnd.TIMED_OUT for run in runs)
    limit = last.time_limit
    asked = f"asked for {duration(limit)}" if limit else "no limit is known"
    if timed_out > _MAX_TIMED_OUT * (timed_out + len(completed)):
        sentence = f"{asked}; {timed_out} of {pluralise(timed_out + len(completed), 'run')} ended at the limit"
        return ResourceAdvice("time", len(completed), f"{sentence}: ask for more, or go on from a checkpoint", limit)
    if len(completed) < MIN_RUNS:
        return _too_few("time", completed, f"completed with {_on(last)}", limit)
    used = _quantile(completed)
    enough = _limit(_LIMIT_MARGIN * used)
    within = duration(ceil(used / 60) * 60)
    sentence = f"{asked}; {_part(len(completed))} completed within {within}"
    if limit is not None and enough > _WORTH_IT * limit:
        return ResourceAdvice("time", len(completed), sentence, limit, used)
    return ResourceAdvice(
        "time",
        len(completed),
        f"{sentence}: {duration(enough)} is enough",
        limit,
        used,
        float(enough),
        f"--time={_slurm_time(enough)}",
    )


def _limit(seconds: float) -> int:
    """The seconds, rounded up to five minutes, above six hours to the half hour."""
    step = 300 if seconds <= 6 * 3600 else 1800
    return ceil(seconds / step) * step


def _slurm_time(seconds: int) -> str:
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    return f"{days}-{hours:02}:{minutes:02}:00" if days else f"{hours}:{minutes:02}:00"


def _cpus(last: AccountedRun, runs: Sequence[AccountedRun], gpus: int) -> ResourceAdvice:
    """CPUs for each GPU against those that were busy, for jobs that will have so many `gpus`."""
    measured = [run for run in runs if run.gathered and run.cpu_seconds is not None]
    had = last.cpus / gpus
    if len(measured) < MIN_RUNS:
        return _too_few("CPUs", measured, "had their CPU time gathered", had)
    used = _quantile(map(busy_cpus, measured)) * last.gpus / gpus
    sentence = f"had {amount(had)} per GPU, of which {fixed(used)} were busy in {_part(len(measured))}"
    starved = max((run.cpus / gpus * last.gpus / run.gpus for run in measured if _starved(run)), default=0.0)
    same_type = [run for run in runs if run.gpu_type == last.gpu_type]
    need = cpu_need(same_type) if same_type else None
    if need is not None and not need.spares and need.cpus > last.cpus / last.gpus:
        more = ceil(need.cpus * last.gpus / gpus)
        return _cpu_advice(len(measured), f"{sentence}: {more} may be faster", had, used, more)
    enough = ceil(max(2 * used, used + 1, starved))
    if enough > _WORTH_IT * had:
        return ResourceAdvice("CPUs", len(measured), sentence, had, used)
    known = all(run.gpu_use is not None for run in measured)
    unknown = "" if known else " (how busy GPUs were was not gathered)"
    return _cpu_advice(len(measured), f"{sentence}: {enough} are enough{unknown}", had, used, enough)


def _cpu_advice(runs: int, sentence: str, had: float, used: float, advised: int) -> ResourceAdvice:
    return ResourceAdvice("CPUs", runs, sentence, had, used, float(advised), f"--cpus-per-gpu={advised}")


def _starved(run: AccountedRun) -> bool:
    """Whether the run used all of its CPUs, and its GPUs are not known to have been busy."""
    return busy_cpus(run) >= FULL * run.cpus / run.gpus and (run.gpu_use is None or run.gpu_use < SATURATED)


def _memory(last: AccountedRun, runs: Sequence[AccountedRun]) -> ResourceAdvice:
    """Memory of a node against the most that was in use there."""
    peaks = [run.peak_memory for run in runs if run.gathered and run.peak_memory is not None]
    had = last.memory // last.nodes
    if len(peaks) < MIN_RUNS:
        return _too_few("memory", peaks, f"had their memory gathered with {_on(last)}", had or None)
    used = max(peaks)
    if not had:
        return ResourceAdvice("memory", len(peaks), f"{memory(used)} of a node were in use at most", None, used)
    enough = ceil(MEMORY_MARGIN * used / _GIBIBYTE) * _GIBIBYTE
    sentence = f"had {memory(had)} on a node, of which {memory(used)} were in use in {pluralise(len(peaks), 'run')}"
    if enough > _WORTH_IT * had:
        return ResourceAdvice("memory", len(peaks), sentence, had, used)
    text = f"{sentence}: {memory(enough)} are enough, if files need not be cached"
    return ResourceAdvice("memory", len(peaks), text, had, used, float(enough), f"--mem={enough // _GIBIBYTE}G")


def _gpus(last: AccountedRun, runs: Sequence[AccountedRun]) -> ResourceAdvice:
    """GPUs against how busy they were on average."""
    uses = [run.gpu_use for run in runs if run.gpu_use is not None]
    if len(uses) < MIN_RUNS:
        return _too_few("GPUs", uses, "had the use of GPUs gathered", last.gpus)
    mean = sum(uses) / len(uses)
    busy = mean * last.gpus
    sentence = f"had {last.gpus}, busy for {percent(mean)} of the time in {pluralise(len(uses), 'run')}"
    idle = min((run.idle_gpus for run in runs if run.gpu_use is not None and run.idle_gpus is not None), default=0)
    if idle >= last.gpus:
        return ResourceAdvice("GPUs", len(uses), f"{sentence}: does the program use them?", last.gpus, busy)
    used = last.gpus - idle
    if idle:
        sentence += f"; {idle} of them idle in each: use all, or ask for {used}"
    if not idle or last.nodes > 1:  # on fewer nodes a program may need other options too
        return ResourceAdvice("GPUs", len(uses), sentence, last.gpus, busy)
    return ResourceAdvice("GPUs", len(uses), sentence, last.gpus, busy, float(used), f"--gres=gpu:{used}")


def _too_few(resource: str, known: Sequence[float | AccountedRun], what: str, had: float | None) -> ResourceAdvice:
    how_many = pluralise(len(known), "run") if known else "no run"
    return ResourceAdvice(resource, len(known), f"nothing is advised: {how_many} {what}, {MIN_RUNS} are needed", had)


def _on(run: AccountedRun) -> str:
    return pluralise(run.gpus, "GPU") + (f" on {run.nodes} nodes" if run.nodes > 1 else "")


def _part(runs: int) -> str:
    return f"95 % of {pluralise(runs, 'run')}" if runs >= 1 / (1 - _QUANTILE) else f"all of {pluralise(runs, 'run')}"


@dataclass(frozen=True, slots=True)
class AdvisedWorks:
    """Advice for the works of a user or a job, and the GPUs that are idle in their running jobs now."""

    works: tuple[WorkAdvice, ...]
    idle: tuple[IdleGpus, ...]


@dataclass(frozen=True, slots=True)
class UserWeek:
    """A user's runs that ended in a week. `idle` are the GPU-hours of the `measured` ones in which GPUs were not busy;
    `limit_ratio` are the time limits of completed runs over their lengths, None if there is none."""

    user: str
    runs: int
    gpu_hours: float
    measured: float
    idle: float
    limit_ratio: float | None


@dataclass(frozen=True, slots=True)
class IdleWork:
    """A user's work whose GPUs were idle for so many GPU-hours in a week, of those measured; `use` is the mean, and
    `unused` are the GPU-hours of GPUs that were idle in all of a run."""

    user: str
    name: str
    runs: int
    gpu_hours: float
    idle: float
    unused: float
    use: float


@dataclass(frozen=True, slots=True)
class WeekSummary:
    """All runs with GPUs that ended from `since` to `until` (unix seconds): who had them, the most idle first."""

    since: float
    until: float
    users: tuple[UserWeek, ...]
    works: tuple[IdleWork, ...]
    running: tuple[IdleGpus, ...] = ()
    """Running jobs with GPUs that are idle for long, as lately told; the most idle GPU time first."""


def week_summary(store: ReadOnlyStore, now: float) -> WeekSummary:
    """The last week by user; a run that began before it counts with its part in it. Raises UnreadableError."""
    since = now - WEEK
    ended = store.finished_runs(since)
    users: defaultdict[str, list[AccountedRun]] = defaultdict(list)
    works: defaultdict[tuple[str, str], list[AccountedRun]] = defaultdict(list)
    for run in ended:
        within = replace(run, seconds=min(run.seconds, run.ended - since))
        users[run.owner].append(within)
        if run.gpu_use is not None:
            works[run.owner, work_of(run.name) or run.name].append(within)
    limits = _limit_ratios(ended)
    by_user = [
        UserWeek(user, len(runs), _hours(runs), *_measured(runs), limits.get(user)) for user, runs in users.items()
    ]
    by_work = [_idle_work(user, runs) for (user, _), runs in works.items()]
    return WeekSummary(
        since,
        now,
        tuple(sorted(by_user, key=lambda week: (-week.idle, -week.gpu_hours, week.user))),
        tuple(sorted((work for work in by_work if work.idle > 0), key=lambda work: (-work.idle, work.user, work.name))),
        idle_now(store, now),
    )


_IDLE_SHOWN: Final = 3600.0
"""Seconds for which it is shown that GPUs were idle."""


def idle_now(store: ReadOnlyStore, now: float, user: str | None = None) -> tuple[IdleGpus, ...]:
    """The running jobs with idle GPUs, of this user or of all. Raises UnreadableError."""
    return tuple(row for row in store.idle_gpus(now - _IDLE_SHOWN) if user in (None, row.owner))


def _limit_ratios(runs: Iterable[AccountedRun]) -> Mapping[str, float]:
    asked, used = defaultdict[str, float](float), defaultdict[str, float](float)
    for run in runs:
        if run.end is RunEnd.COMPLETED and run.time_limit:
            asked[run.owner] += run.time_limit
            used[run.owner] += run.seconds
    return {user: asked[user] / used[user] for user in asked}


def _hours(runs: Iterable[AccountedRun]) -> float:
    return sum(run.gpus * run.seconds for run in runs) / 3600


def _measured(runs: Sequence[AccountedRun]) -> tuple[float, float]:
    """GPU-hours of the runs whose use of GPUs is known, and those of them that were idle."""
    known = [run for run in runs if run.gpu_use is not None]
    return _hours(known), sum(run.gpus * run.seconds * (1 - (run.gpu_use or 0.0)) for run in known) / 3600


def _idle_work(user: str, runs: Sequence[AccountedRun]) -> IdleWork:
    hours, idle = _measured(runs)
    unused = sum((run.idle_gpus or 0) * run.seconds for run in runs) / 3600
    return IdleWork(user, runs[-1].name, len(runs), hours, idle, unused, 1 - idle / hours if hours else 0.0)


def advice_view(works: Sequence[WorkAdvice], now: float, idle: Sequence[IdleGpus] = ()) -> RenderableType:
    """The running jobs with idle GPUs, then each work with what it used, and the options to give."""
    parts: list[RenderableType] = list(_idle_parts(idle))
    for work in works:
        parts += [*[""] * bool(parts), *_work_parts(work, now)]
    return Group(*parts)


def _idle_parts(idle: Sequence[IdleGpus]) -> Iterator[RenderableType]:
    if idle:
        hours = sum(row.idle_gpu_hours for row in idle)
        yield safe_line(f"running now with idle GPUs, {fixed(hours)} GPU-hours so far", "bold")
        yield idle_view(idle[:_WORKS_LISTED])


def _work_parts(work: WorkAdvice, now: float) -> Iterator[RenderableType]:
    on = pluralise(work.gpus, f"{work.gpu_type} GPU".lstrip())
    yield safe_line(f"{work.name} of {work.owner}, {on}", "bold")
    last = f"the last one {duration(now - work.at)} ago"
    yield safe_line(f"  {pluralise(work.runs, 'run')} with the same {work.kind}, {last}")
    rows = [(advice.resource, advice.sentence) for advice in work.resources]
    listing = Listing((Column(""), Column("")), rows, headings=False, wrapped=True)
    yield Padding(listing, (0, 0, 0, 2), expand=False)
    if work.sbatch:
        yield safe_line(f"  {work.sbatch}", "green")


def week_view(week: WeekSummary) -> RenderableType:
    """A line for each user, then the works with the most idle GPU-hours."""
    columns = (
        Column("USER"),
        *(Column(name, right=True) for name in ("RUNS", "GPU-HOURS", "MEASURED", "IDLE", "LIMIT/USED")),
    )
    rows = [
        (
            user.user,
            str(user.runs),
            fixed(user.gpu_hours),
            fixed(user.measured) if user.measured else "-",
            fixed(user.idle) if user.measured else "-",
            fixed(user.limit_ratio) if user.limit_ratio is not None else "-",
        )
        for user in week.users
    ]
    parts: list[RenderableType] = [
        safe_line("runs with GPUs that ended in the last 7 days, in GPU-hours", "bold"),
        Listing(columns, rows, shrinking=0),
    ]
    if week.works:
        columns = (
            Column("USER"),
            *(Column(name, right=True) for name in ("RUNS", "MEASURED", "IDLE", "UNUSED", "BUSY")),
            Column("WORK"),
        )
        worst = [
            (
                *(work.user, str(work.runs), fixed(work.gpu_hours), fixed(work.idle), fixed(work.unused)),
                *(percent(work.use), work.name),
            )
            for work in week.works[:_WORKS_LISTED]
        ]
        parts += ["", safe_line("most idle GPU-hours by work", "bold"), Listing(columns, worst)]
    else:
        parts.append(safe_line("How busy GPUs were was gathered of no run: jobstats records it in AdminComment."))
    running = list(_idle_parts(week.running))
    return Group(*parts, *[""] * bool(running), *running)
