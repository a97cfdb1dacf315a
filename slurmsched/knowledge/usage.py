"""What earlier runs of the same work used, by Slurm's accounting: bounds of the CPUs that a job needs, not curves.

An average over a run tells little of speed, so that it counts conservatively. A run whose processes kept all their CPUs
busy, while its GPUs were not, may be faster with more. Runs that left CPUs idle while their GPUs were busy show that
fewer are enough: these are the donors of Synergy (Mohan et al., OSDI 2022, section 4.2), found without profiling. Of
memory only what processes had in use is known, and not the page cache, so that it is a floor.

Only runs of the same owner count: nobody's runs make another's job smaller or larger.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import log, sqrt
from statistics import fmean, median, variance
from typing import Final

from slurmsched.knowledge.knowledge import RULE_OF_THUMB, Knowledge, Profile
from slurmsched.knowledge.speed import SensitivityMatrix
from slurmsched.knowledge.work import Kind, Work, WorkKind
from slurmsched.model import AccountedRun, CpuNeed, Job, JobId, MeasuredUse, RunEnd

MAX_AGE: Final = 60 * 86400.0
"""Seconds after which a run tells nothing any more: code and data change."""
_MIN_SECONDS: Final = 60.0
"""Least seconds of a run from which anything is learnt, as starting up is not like the rest."""
MIN_RUNS: Final = 3
_MIN_SPARING_SECONDS: Final = 600.0
"""How many runs of which length have to leave CPUs idle before any may be given away."""
FULL: Final = 0.85
"""Part of its CPUs that processes keep busy if they could use more."""
_BUSY: Final = 0.5
"""Mean use of the GPUs from which idle CPUs are not for lack of work."""
SATURATED: Final = 0.8
"""Mean use of the GPUs from which more CPUs would not help."""
_GROWTH: Final = 2.0
"""How many times the CPUs a job may have at the next start that used all of them: then it is measured again."""
_QUICKER: Final = 0.9
"""Part of the time that a run may take at most for more CPUs to have helped."""
MEMORY_MARGIN: Final = 1.2
MAX_OF_A_KIND: Final = 30
"""Runs of one work or model that are looked at, the latest."""


@lru_cache(maxsize=4096)
def kinds_of_use(work: Work) -> tuple[tuple[WorkKind, Kind], ...]:
    """Returns the kinds of runs that tell what a work uses, from the nearest to the widest: what else its owner runs
    tells nothing of it."""
    return tuple((kind, key) for kind, key in work.kinds() if kind <= WorkKind.MODEL)


def measured_use(
    kinds: Iterable[tuple[WorkKind, Kind]], runs: Mapping[Kind, Sequence[AccountedRun]], now: float
) -> MeasuredUse | None:
    """Returns what runs of the nearest kind that tells anything of CPUs used; None if there were no runs of any kind.

    Memory is that of the nearest kind that tells any: an edited script has runs of its own from the first on, which
    tell of memory long before there are enough of them to tell of CPUs. Jobs that have only their model in common may
    differ in much else, so that it lets nothing be given away. How many CPUs runs had is told also of those that tell
    nothing else, such as failed ones, so that nothing is tried with them again and again.
    """
    kinds = tuple(kinds)
    alike, widths = _widths(kinds, runs, now)
    of_memory: MeasuredUse | None = None
    for kind, key in kinds:
        counted = [run for run in runs.get(key, ()) if tells(run, now)]
        by_type = {run.gpu_type: [same for same in counted if same.gpu_type == run.gpu_type] for run in counted}
        needs = [cpu_need(by_type[gpu_type]) for gpu_type in sorted(by_type)]
        known = tuple(need for need in needs if need is not None and not (need.lessens and kind is WorkKind.MODEL))
        memory = max((run.peak_memory * run.nodes / run.gpus for run in counted if run.peak_memory), default=0.0)
        if known or memory:
            told = Counter(run.gpu_source for run in counted if run.gpu_source).most_common()
            last = max(run.ended for run in counted)
            use = MeasuredUse(kind.words, len(counted), last, known, memory, tuple(told), widths)
            if known:
                return replace(use, memory=of_memory.memory) if of_memory else use
            of_memory = of_memory or use
    return of_memory or (MeasuredUse(alike.words, 0, now, widths=widths) if widths else None)


def _widths(
    kinds: Sequence[tuple[WorkKind, Kind]], runs: Mapping[Kind, Sequence[AccountedRun]], now: float
) -> tuple[WorkKind, tuple[float, ...]]:
    """Returns the CPUs for each GPU of recent runs of the same name and GPUs, or where there is no name of the same
    model: also of an edited script, so that an edit does not begin from nothing."""
    wanted = (WorkKind.NAME_AND_GPUS, WorkKind.MODEL)
    kind, key = min((each for each in kinds if each[0] in wanted), default=(WorkKind.OTHERS, ()))
    recent = (run for run in runs.get(key, ()) if now - run.ended < MAX_AGE and run.gpus > 0 and run.cpus > 0)
    return kind, tuple(sorted(run.cpus / run.gpus for run in recent))


def tells(run: AccountedRun, now: float) -> bool:
    """Whether anything is learnt of this run: one that failed has perhaps not done its work."""
    recent = now - run.ended < MAX_AGE
    return recent and run.end is not RunEnd.FAILED and run.seconds >= _MIN_SECONDS and run.gpus > 0 and run.cpus > 0


def cpu_need(runs: Sequence[AccountedRun]) -> CpuNeed | None:
    """Returns the CPUs for each GPU that these runs, all on this type of GPU, show to be needed; None if nothing.

    CPUs may be given away only above twice what was in use, and one more, in at least three runs whose GPUs were busy,
    and never those that any run had in use; a run on an unknown type does not count among the three, as a faster GPU
    needs more. Where the use of GPUs is unknown such runs show what is enough for a job that asked for less, and take
    nothing from one that asked for more.

    Where GPUs were less busy beside fewer CPUs than beside more, these are needed after all.

    A work that used all of its CPUs, with the most that it had yet, may have twice as many if the last such step made
    it quicker, and goes back if it did not. One that did so with fewer than it had before, as when it lent some, needs
    as many as the next larger of its runs had.
    """
    measured = [(run.cpus / run.gpus, run) for run in runs if run.cpu_seconds is not None]
    if not measured:
        return None
    gpu_type = runs[0].gpu_type
    in_use = max(min(had, busy_cpus(run)) for had, run in measured)
    starved = max((had for had, run in measured if _starves(had, run)), default=0.0)
    if starved:
        starved = min((had for had, _ in measured if had > starved), default=starved)
    sparing = [(had, busy_cpus(run)) for had, run in measured if _spares(had, run)]
    if len(sparing) >= MIN_RUNS and gpu_type:
        most = max(had for had, _ in sparing)
        enough = max(max(2 * used, used + 1) for _, used in sparing)
        return CpuNeed(gpu_type, max(min(enough, most), starved, in_use, _undelayed(measured)), spares=True)
    widths = sorted({had for had, _ in measured})
    widest = [run for had, run in measured if had == widths[-1]]
    if all(_starves(widths[-1], run) for run in widest):
        narrower = [run for had, run in measured if widths[-2:-1] == [had]]
        helped = not narrower or _helped(widest, narrower)
        more = widths[-1] if helped is None else _GROWTH * widths[-1] if helped else widths[-2]
        return CpuNeed(gpu_type, more, spares=False)
    idle = [(had, busy_cpus(run)) for had, run in measured if _leaves_idle(had, run) and run.gpu_use is None]
    if len(idle) >= MIN_RUNS and gpu_type:
        enough = max(max(2 * used, used + 1) for _, used in idle)
        return CpuNeed(gpu_type, max(min(enough, widths[-1]), starved, in_use), spares=False, suffices=True)
    return CpuNeed(gpu_type, widths[-1], spares=False) if starved else None


def _undelayed(measured: Sequence[tuple[float, AccountedRun]]) -> float:
    """The CPUs for each GPU of the narrowest runs that are wider than all beside whose GPUs were less busy than beside
    more CPUs; 0.0 if none were: an average does not tell that all CPUs are used at once."""
    uses = defaultdict[float, list[float]](list)
    for had, run in measured:
        if run.gpu_use is not None:
            uses[had].append(run.gpu_use)
    means = {had: fmean(each) for had, each in uses.items()}
    slow = [
        had
        for had, mean in means.items()
        if any(wider > had and mean < _QUICKER * other for wider, other in means.items())
    ]
    return min((had for had in means if had > max(slow)), default=0.0) if slow else 0.0


def _helped(wide: Sequence[AccountedRun], narrow: Sequence[AccountedRun]) -> bool | None:
    """Whether runs were quicker with more CPUs, as processes that wait busily use all that there are; None if these
    runs do not tell.

    A GPU is busier where the same work is done sooner. Where its use is unknown the lengths of completed runs tell, if
    they differ by more than they vary: runs of one script may be of any length.
    """
    uses = [[run.gpu_use for run in runs if run.gpu_use is not None] for runs in (wide, narrow)]
    if all(uses):
        return fmean(uses[1]) < _QUICKER * fmean(uses[0])
    lengths = [[log(run.seconds) for run in runs if run.end is RunEnd.COMPLETED] for runs in (wide, narrow)]
    if min(map(len, lengths)) < MIN_RUNS:
        return None
    gain = median(lengths[1]) - median(lengths[0]) + log(_QUICKER)
    doubt = 2 * sqrt(sum(variance(logs) / len(logs) for logs in lengths))
    return None if abs(gain) < doubt else gain > 0


def busy_cpus(run: AccountedRun) -> float:
    """The CPUs for each GPU that were busy on average."""
    return (run.cpu_seconds or 0.0) / run.seconds / run.gpus


def _starves(had: float, run: AccountedRun) -> bool:
    """Whether the run used all of its CPUs, and its GPUs are not known to have been busy."""
    return busy_cpus(run) >= FULL * had and (run.gpu_use is None or run.gpu_use < SATURATED)


def _spares(had: float, run: AccountedRun) -> bool:
    """Whether the run left CPUs idle while its GPUs were busy."""
    return run.gpu_use is not None and run.gpu_use >= _BUSY and _leaves_idle(had, run)


def _leaves_idle(had: float, run: AccountedRun) -> bool:
    """Whether the run left CPUs idle for long, and Slurm watched all of its processes."""
    return run.gathered and run.seconds >= _MIN_SPARING_SECONDS and busy_cpus(run) < FULL * had


@dataclass(slots=True)
class UseHistory:
    """What runs used, by kind of work, kept up to date: fed with the runs that end, asked in every round."""

    _runs: defaultdict[Kind, deque[AccountedRun]] = field(
        default_factory=lambda: defaultdict(partial(deque, maxlen=MAX_OF_A_KIND))
    )
    _known: dict[tuple[tuple[WorkKind, Kind], ...], MeasuredUse | None] = field(default_factory=dict)

    def ended(self, run: AccountedRun) -> None:
        """Adds a run; those of one kind have to be added in the order of their ends."""
        for _, key in kinds_of_use(Work.of_run(run)):
            self._runs[key].append(run)
        self._known.clear()

    def of(self, works: Mapping[JobId, Work], now: float) -> Mapping[JobId, MeasuredUse]:
        """Returns what runs of the same work used, by job; jobs of which nothing is known are missing."""
        use = dict[JobId, MeasuredUse]()
        for job, work in works.items():
            kinds = kinds_of_use(work)
            if kinds not in self._known:
                self._known[kinds] = measured_use(kinds, self._runs, now)
            if (known := self._known[kinds]) is not None:
                use[job] = known
        return use


def use_profiles(use: Mapping[JobId, MeasuredUse]) -> Mapping[JobId, Profile]:
    """Returns a profile by job from what was measured; jobs of which nothing is known of CPUs are missing.

    Its matrix rises up to the CPUs that are needed. Where these only tell that all CPUs were used, it is a rule of
    thumb, which takes nothing away; but of the same work a job with a checkpoint may lend CPUs above its share. Equal
    use gives the same profile, so that demands are computed once.
    """
    made: dict[MeasuredUse, Profile | None] = {}
    for known in use.values():
        if known not in made:
            made[known] = _profile(known)
    return {job: profile for job, known in use.items() if (profile := made[known]) is not None}


def with_memory_in_use(knowledge: Knowledge, jobs: Iterable[Job]) -> Mapping[JobId, Profile]:
    """Returns the measured profile of each job whose memory may shrink, with the memory that earlier runs of its work
    had in use: a sensitivity tells of the cache alone. Jobs of which no such run is known are missing."""
    made: dict[tuple[int, float], Profile] = {}
    found: dict[JobId, Profile] = {}
    for job in jobs:
        use = knowledge.by_use.get(job.id) if job.hints.memory_tunable else None
        known = knowledge.profile(job) if use is not None else None
        if use is not None and known is not None and known.least_memory < use.least_memory:
            key = id(known), use.least_memory
            if key not in made:
                made[key] = replace(known, least_memory=use.least_memory)
            found[job.id] = made[key]
    return found


def _profile(use: MeasuredUse) -> Profile | None:
    needs = [need for need in use.needs if need.spares] or list(use.needs)
    if not needs and not use.memory:
        return None
    matrices = {need.gpu_type: rising_to(need.cpus) for need in needs}
    source = f"accounting: {use.runs} earlier runs with the same {use.kind}"
    if use.gpu_sources:
        source += f", GPU use by {' and '.join(f'{name} ({runs})' for name, runs in use.gpu_sources)}"
    spares, suffices = any(need.spares for need in needs), bool(needs) and all(need.suffices for need in needs)
    source = source if spares else f"{RULE_OF_THUMB}: {source}"
    return Profile(
        "",
        "",
        matrices,
        source,
        least_memory=use.memory * MEMORY_MARGIN,
        spares=spares,
        last_run=use.at,
        suffices=suffices,
        same_work=use.kind != WorkKind.MODEL.words,
    )


def rising_to(cpus: float) -> SensitivityMatrix:
    """Returns a speed that rises with the CPUs up to these."""
    return SensitivityMatrix((cpus / 8, cpus), (), ((1 / 8,), (1.0,)))
