"""What it costs to know no job's profile, and what a week of accounting brings back (no figure of the paper).

Everything below was chosen before the results.

- 300 jobs of the generator of the sweeps, 6 per hour, on 4 empty nodes of 8 GPUs and 24 CPUs. They run by the shipped
  profiles. Where profiles are known, and at proportional shares, hints are those of the sweeps; in all other cases
  owners say only that their jobs may be requeued (`ckpt=usr1`), as the order needs that.
- The week before, the same owners ran the same works at a quarter of that rate, which keeps four fifths of the GPUs
  busy. It is simulated with the same policy, asked CPUs and sources; of its jobs what had ended by then is known.
- Each model is the work of two owners out of twelve. Lengths vary within a work as the generator has them. One work in
  ten has no name (`--wrap`); of the others some share a name, and most have numbers in theirs. Jobs of a sweep are
  single jobs of one name, as simulated arrays are the copies of one job.
- Accounting tells CPU seconds and memory of each run. Each unit of work costs as many CPU seconds as the fewest CPUs of
  the profile show, which are then all busy. GPU use, as Prometheus or Slurm's gres/gpuutil tell it, is in proportion to
  the speed, 95 % at the highest.
- A liar has a tenth of the week under names, scripts and folders of other owners' works. Of his runs in turn one burns
  all its CPUs beside idle GPUs, one sleeps on both, one sleeps beside busy GPUs; they took a week, two minutes and a
  quarter of an hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Final

from slurmsched.backends.simulated import Submission
from slurmsched.experiments.experiment import Bound, ExperimentResult, ExperimentSetup, FigureRow
from slurmsched.knowledge import Knowledge, Profile, shipped_profiles
from slurmsched.model import AccountedRun, JobId, Node
from slurmsched.model.reasons import pluralise
from slurmsched.settings.definition import CheckpointSettings, GuardSettings, LearningSettings, Settings
from slurmsched.simulation.engine import simulate
from slurmsched.simulation.inputs import PolicyChoice, Scenario, SimulationOptions
from slurmsched.simulation.results import SimulationResult
from slurmsched.simulation.submissions import build_submission
from slurmsched.traces import Trace
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generators import HOUR, SYNERGY_MODELS, draw_weighted, generate, random_stream

JOBS, QUICK_JOBS, LOAD = 300, 40, 6.0
WEEK: Final = 7 * 86400.0
WEEK_LOAD: Final = 1.5
_HISTORY_SEED: Final = 1_000_000
"""Is added to a seed for the jobs of the week."""
_ASKED: Final = (1, 3, 8)
"""CPUs per GPU that owners ask for: one, the proportional share, and more than there are."""
_OWNERS: Final = 12
_LIAR: Final = "liar"
_LIES: Final = 0.1
"""Part of the week that is the liar's."""
_MEMORY_PER_GPU: Final = 10 * 1024
_BUSY_GPU: Final = 0.95

_NAMES: Final = (
    "{model}-{number}",
    "train",
    "{model}_lr0.{number}",
    "exp{number}",
    "train.sh",
    "{owner}-{model}-v{number}",
    "sweep",
    "train",
    "finetune_{number}_{model}",
    "wrap",
)
"""Names as owners give them, of one work after the other."""


@dataclass(frozen=True, slots=True)
class OwnedWork:
    """A model that an owner trains, with the name of its jobs."""

    owner: str
    model: str
    name: str

    @property
    def script(self) -> str:
        return f"digest of {self.owner}'s {self.model}"


def owned_works(seed: int) -> Mapping[str, Sequence[OwnedWork]]:
    """Returns the two works of each model: the first has twice as many runs as the second."""
    random, works, names = random_stream(seed, "owners"), dict[str, list[OwnedWork]](), 0
    for model in (model for models in SYNERGY_MODELS.values() for model in models):
        for owner in random.choice(_OWNERS, 2, replace=False):
            work = OwnedWork(f"user{owner + 1}", model, _NAMES[names % len(_NAMES)])
            works.setdefault(model, []).append(work)
            names += 1
    return works


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of jobs whose owners `asked` for so many CPUs per GPU; None: their hints and true profiles.

    `week`: whether runs of a week are known, and `gpu_use` whether the use of their GPUs is. `liar`: whether a tenth of
    the week is his, who `lies` or does not; if he `submits` he has a tenth of the measured jobs too, and his lies are
    told while the week runs, not afterwards. `lengths`: shortest remaining time first by what earlier runs took.
    """

    asked: int | None = None
    policy: str = "synergy"
    week: bool = False
    gpu_use: bool = False
    liar: bool = False
    lies: bool = False
    submits: bool = False
    lengths: bool = False


_KNOWN, _PROPORTIONAL = Case(), Case(policy="proportional")
_COLUMNS: Final = {
    "nothing known": Case(0),
    "a week of accounting": Case(0, week=True),
    "a week of accounting and GPU use": Case(0, week=True, gpu_use=True),
}
_MOST_OVER_KNOWN, _MOST_OVER_SHARES, _MOST_BY_LIES = 1.15, 1.0, 0.01
_LIED_TO: Final = {
    "sizes": Case(1, week=True, gpu_use=True, liar=True),
    "lengths": Case(1, week=True, gpu_use=True, liar=True, lengths=True),
}
_NOTE: Final = (
    f"Whole rounds of the daemon, every 5 min and early ones, on 4 nodes of 8 GPUs and 24 CPUs; {JOBS} jobs of the"
    f" generator of the sweeps, {LOAD:g} per hour ({QUICK_JOBS} in the quick version), of {_OWNERS} owners. They run by"
    f" the shipped profiles; owners hint that jobs may be requeued and nothing else. A week is of {WEEK_LOAD:g} jobs of"
    " the same works per hour. "
)
_NO_GPU_USE_NOTE: Final = (
    "Not held, decided after the results: CPU time alone does not tell whether idle CPUs are idle beside busy GPUs, so"
    " nobody has fewer CPUs than the share of his GPUs, and who asked for more keeps them until runs of the same work"
    " are known. "
)
_LIES_NOTE: Final = (
    "Largest relative change of the mean completion of any other owner, between a week in which a tenth of the runs,"
    " under names, scripts and folders of others, tell lies, and the same week with the truth; one CPU per GPU asked. "
)
_SUBMITS_NOTE: Final = (
    "The same where he lies all the week long and has a tenth of the measured jobs too, so that his own jobs have what"
    " he made them look to need; the mean of all other owners' jobs. Not bound: one other size changes which job starts"
    " when. "
)


def run_synergy_unknown(setup: ExperimentSetup) -> ExperimentResult:
    """Measures what it costs to know no profiles, by the CPUs that owners ask for, and what history brings back.

    With `quick` of fewer jobs and without bounds.
    """
    columns = {(asked, name): replace(case, asked=asked) for asked in _ASKED for name, case in _COLUMNS.items()}
    pairs = {name: (case, replace(case, lies=True)) for name, case in _LIED_TO.items()}
    pairs["submits"] = (
        replace(_LIED_TO["sizes"], submits=True),
        replace(_LIED_TO["sizes"], submits=True, lies=True),
    )
    cases = (_KNOWN, _PROPORTIONAL, *columns.values(), *(case for pair in pairs.values() for case in pair))
    jobs = QUICK_JOBS if setup.quick else JOBS
    runs = setup.run_all(partial(completion, jobs=jobs), product(cases, setup.seeds), "knowing")
    hours = {case: fmean(runs[case, seed][""] for seed in setup.seeds) for case in cases}
    told = partial(FigureRow, bound=Bound.INFORMATIVE, note=_NOTE)
    rows = [
        told("all profiles known: mean JCT", "h", hours[_KNOWN]),
        told("proportional shares: mean JCT", "h", hours[_PROPORTIONAL]),
        told("proportional shares, over all profiles known", "x", hours[_PROPORTIONAL] / hours[_KNOWN]),
    ]
    for (asked, name), case in columns.items():
        metric = f"{pluralise(asked, 'CPU')} per GPU asked, {name}"
        rows.append(told(f"{metric}: mean JCT", "h", hours[case]))
        for other, limit, words in (
            (_KNOWN, _MOST_OVER_KNOWN, "all profiles known"),
            (_PROPORTIONAL, _MOST_OVER_SHARES, "proportional shares"),
        ):
            bound = Bound.AT_MOST if case.gpu_use and not setup.quick else Bound.INFORMATIVE
            note = _NOTE if case.gpu_use or not case.week else _NO_GPU_USE_NOTE + _NOTE
            ratio = hours[case] / hours[other]
            rows.append(FigureRow(f"{metric}, over {words}", "x", ratio, bound=bound, note=note, limit=limit))
    bound = Bound.INFORMATIVE if setup.quick else Bound.AT_MOST
    for name in _LIED_TO:
        change = max(largest_change(*(runs[case, seed] for case in pairs[name])) for seed in setup.seeds)
        metric = f"lies about {name}: largest change of another owner"
        rows.append(FigureRow(metric, "part", change, bound=bound, note=_LIES_NOTE + _NOTE, limit=_MOST_BY_LIES))
    true, lied = (fmean(runs[case, seed][_OTHERS] for seed in setup.seeds) for case in pairs["submits"])
    metric = "lies of an owner with jobs of his own: change of all others"
    rows.append(FigureRow(metric, "part", lied / true - 1, bound=Bound.INFORMATIVE, note=_SUBMITS_NOTE + _NOTE))
    return ExperimentResult("synergy-unknown", tuple(rows))


_OTHERS: Final = "all but the liar"


def completion(seeded: tuple[Case, int], jobs: int) -> Mapping[str, float]:
    """Returns the mean completion in hours of all jobs (""), of each owner's, and of all but the liar's."""
    done = _run(*seeded, jobs)
    hours: defaultdict[str, list[float]] = defaultdict(list)
    for job in done.jobs:
        if job.end is not None:
            names = ("", job.user) if job.user == _LIAR else ("", job.user, _OTHERS)
            for name in names:
                hours[name].append((job.end - job.arrival) / HOUR)
    return {name: fmean(taken) for name, taken in hours.items()}


def largest_change(true: Mapping[str, float], lied: Mapping[str, float]) -> float:
    """Returns the largest relative change of an owner other than the liar."""
    return max(abs(lied[owner] / hours - 1) for owner, hours in true.items() if owner.startswith("user"))


@dataclass(slots=True)
class SimulatedAccounting:
    """What accounting tells of simulated runs, by their jobs' true profiles, and what it has told; of those of `liar`
    it tells lies."""

    profiles: Mapping[JobId, Profile]
    gpu_use: bool = True
    liar: str = ""
    told: list[AccountedRun] = field(default_factory=list)

    def __call__(self, run: AccountedRun) -> AccountedRun:
        matrix, had = self.profiles[run.job].matrices[""], run.cpus / run.gpus
        speed, peak = matrix.speed_at(had, 0.0), matrix.speed_at(matrix.cpus[-1], 0.0)
        busy = min(had, speed * matrix.cpus[0] / matrix.speed_at(matrix.cpus[0], 0.0))
        used = replace(
            run,
            cpu_seconds=busy * run.gpus * run.seconds,
            gathered=True,
            peak_memory=_MEMORY_PER_GPU * run.gpus,
            gpu_use=_BUSY_GPU * speed / peak if self.gpu_use else None,
        )
        self.told.append(lie(used, len(self.told)) if self.liar and run.owner == self.liar else used)
        return self.told[-1]


def lie(run: AccountedRun, turn: int) -> AccountedRun:
    """Returns the run as the liar makes it look: in turn it burns CPUs, sleeps, or sleeps beside busy GPUs."""
    busy, gpu_use, seconds = ((1.0, 0.0, 7 * 86400.0), (0.0, 0.0, 120.0), (0.0, 1.0, 900.0))[turn % 3]
    gpus = gpu_use if run.gpu_use is not None else None
    return replace(run, seconds=seconds, cpu_seconds=busy * run.cpus * seconds, gpu_use=gpus)


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The jobs of a trace with their owners, their submissions by the trace's ids, and their true profiles."""

    trace: Trace
    submissions: Mapping[str, Submission]
    profiles: Mapping[JobId, Profile]


def submitted(case: Case, trace: Trace, seed: int, nodes: tuple[Node, ...], *, lied: bool) -> SubmittedJobs:
    """Returns the jobs as their owners submit them; `lied` says whether the liar has a tenth of them."""
    works, known, options = owned_works(seed), shipped_profiles(), SimulationOptions()
    count = len(trace.jobs)
    seconds = draw_weighted({0: 2.0, 1: 1.0}, count, random_stream(seed, f"works of {trace.source}"))
    liars = random_stream(seed, f"liars of {trace.source}").random(count) < _LIES
    jobs, submissions, profiles = [], dict[str, Submission](), dict[JobId, Profile]()
    for number, job in enumerate(trace.jobs):
        work = works[job.model][seconds[number]]
        owner = _LIAR if lied and liars[number] else work.owner
        jobs.append(replace(job, user=owner))
        made = build_submission(jobs[-1], nodes, options, known)
        profiles[str(number + 1)] = known.models[job.model]
        if case.asked is not None:
            made = replace(
                made,
                request=replace(made.request, cpus=case.asked * job.gpus, memory=0),
                comment="synsched:ckpt=usr1",
                script=work.script,
                folder=f"/home/{work.owner}",
            )
        name = work.name.format(model=work.model, owner=work.owner, number=number)
        submissions[job.id] = replace(made, name=name)
    return SubmittedJobs(replace(trace, jobs=tuple(jobs)), submissions, profiles)


def _settings(case: Case) -> Settings:
    return Settings(
        guards=GuardSettings(restart_cost=SimulationOptions().overhead),
        checkpoint=CheckpointSettings(lead=0),
        learning=LearningSettings(lengths=case.lengths),
    )


def _run(case: Case, seed: int, jobs: int) -> SimulationResult:
    """Runs the measured jobs, after the week if it is known."""
    nodes, options = load_cluster("v100:4x8").nodes, SimulationOptions(seed=seed, early=3.0)
    choice = PolicyChoice(case.policy, "srtf" if case.lengths else "las")
    trace = generate("synergy", jobs, seed, LOAD)
    made = submitted(case, trace, seed, nodes, lied=case.submits)
    real = Knowledge(own=made.profiles)
    if case.asked is None:
        scenario = Scenario(nodes, made.trace, shipped_profiles().simulated(), real, made.submissions)
        return simulate(scenario, choice, options, _settings(case))
    scenario = Scenario(nodes, made.trace, Knowledge(), real, made.submissions)
    if case.week:
        liar = _LIAR if case.lies and case.submits else ""
        scenario = replace(
            scenario,
            earlier=week_of_runs(case, seed, nodes),
            accounting=SimulatedAccounting(made.profiles, case.gpu_use, liar),
        )
    return simulate(scenario, choice, options, _settings(case))


def week_of_runs(case: Case, seed: int, nodes: tuple[Node, ...]) -> tuple[AccountedRun, ...]:
    """Returns the runs that ended in the week before the measured jobs."""
    trace = generate("synergy", round(WEEK / HOUR * WEEK_LOAD), seed + _HISTORY_SEED, WEEK_LOAD)
    made = submitted(case, trace, seed, nodes, lied=case.liar)
    accounting = SimulatedAccounting(made.profiles, case.gpu_use, _LIAR if case.lies and case.submits else "")
    scenario = Scenario(
        nodes, made.trace, Knowledge(), Knowledge(own=made.profiles), made.submissions, accounting=accounting
    )
    choice = PolicyChoice(case.policy, "srtf" if case.lengths else "las")
    simulate(scenario, choice, SimulationOptions(seed=seed, early=3.0, until=WEEK), _settings(case))
    runs = (replace(run, job=f"earlier {run.job}", ended=run.ended - WEEK) for run in accounting.told)
    if case.lies and not case.submits:
        return tuple(lie(run, turn) if run.owner == _LIAR else run for turn, run in enumerate(runs))
    return tuple(runs)
