"""The scenarios of sites: their nodes, their users' jobs, what is known of these and what is so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from slurmsched.experiments.mixed.replay_policies import HadarEReplayPolicy
from slurmsched.experiments.mixed.workloads import CLUSTER_NODES, estimated_throughputs, mix_jobs, one_gpu_nodes
from slurmsched.experiments.site_promises.measures import JobOutcome, SiteRun
from slurmsched.experiments.site_promises.promises import PAIRING_POLICIES, POLICIES_BY_TYPES, PROMISED, SitePromise
from slurmsched.experiments.site_promises.workloads import (
    FOUR_USERS,
    LONGEST,
    PAIRED_MODELS,
    PLAIN_PARTITION,
    Care,
    SiteJob,
    careless_user,
    jobs_at_once,
    mix_of_families,
    nobody_tells,
    one_job,
    seventy_users,
    site_day,
    steep_and_flat_users,
    two_careless_jobs,
    two_families,
    unmanaged_holder,
    users_of_models,
    users_of_widths,
)
from slurmsched.knowledge import Knowledge, Profile, Scaling, sample_speedups, shipped_profiles
from slurmsched.model import MILLI_PER_GPU
from slurmsched.policies.stages import RUN_OVER_RESTART
from slurmsched.settings.definition import CheckpointSettings, GuardSettings, Settings, TicketSettings
from slurmsched.simulation.inputs import Scenario, SimulationOptions
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.replay import RoundSemantics
from slurmsched.traces import Trace
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generators import HOUR, MINUTE


@dataclass(frozen=True, slots=True)
class SiteScenario:
    """A scenario, the same for every policy in `policies`. Times are in seconds unless in `hours`.

    `workload` makes the jobs of a seed and a length in hours. `known` is what policies know, `real` how fast jobs
    run, which may depend on the seed. `restart_cost` is what a restart really costs; the settings say the default
    whatever it is. `start_within` is the longest wait that is promised; in a site's day that is the longest job,
    since some of them cannot be preempted. `waves` is how many times the jobs ask for all GPUs, and one user's jobs
    for that user's share: the last of them starts after all but one of so many of the shortest slices, each a round
    longer, where the policy keeps shares of the second number; chosen after the results, as are those in `stated`,
    which are told and not held, with the reason. `halves`: jobs ask for half of a GPU where the policy schedules
    shards. `compared` is the other scenario and policy (empty: the same) of figures that compare, and `ideal` makes
    the run of a seed with which they are compared instead. `quick_hours` is its length in the small version, 0 for
    none.
    """

    name: str
    cluster: str
    workload: Callable[[int, float], Sequence[SiteJob]]
    promises: tuple[SitePromise, ...]
    hours: float = 24.0
    restart_cost: float = 120.0
    policies: tuple[str, ...] = tuple(PROMISED)
    known: Knowledge = field(default_factory=Knowledge)
    real: Knowledge | Callable[[int], Knowledge] | None = None
    settings: Settings = field(default_factory=Settings)
    start_within: float = 2 * HOUR
    waves: tuple[int, int] = (0, 0)
    stated: Mapping[SitePromise, str] = field(default_factory=dict)
    halves: bool = False
    compared: tuple[str, str] = ("", "")
    ideal: Callable[[int], SiteRun] | None = None
    period: float = field(default_factory=lambda: Settings().rounds.period)
    quick_hours: float = 0.0

    def starts_within(self, policy: str) -> float:
        """Returns the longest wait in seconds that this policy promises."""
        waves = self.waves[SitePromise.SHARE in PROMISED[policy]]
        return (waves - 1) * (SHORTEST_SLICE + self.period) if waves else self.start_within

    def inputs(self, seed: int, hours: float, *, halves: bool) -> tuple[Scenario, Sequence[SiteJob], SimulationOptions]:
        """Returns the simulation's inputs and the jobs."""
        jobs = self.workload(seed, hours)
        nodes = tuple(
            replace(node, partitions=node.partitions | {PLAIN_PARTITION}) for node in load_cluster(self.cluster).nodes
        )
        if halves:
            half = MILLI_PER_GPU // 2
            memory = min(node.total.memory // len(node.gpus) for node in nodes) // 2
            jobs = [
                replace(job, trace=replace(job.trace, gpus=0, milli_gpu=half, cpus=1, memory=memory)) for job in jobs
            ]
        options = SimulationOptions(
            period=self.period,
            early=self.settings.rounds.early_interval,
            overhead=self.restart_cost,
            completing=5.0,
            seed=seed,
            until=hours * HOUR,
        )
        real = self.real(seed) if callable(self.real) else self.real or self.known
        submissions = {job.trace.id: job.submission(nodes, options, real) for job in jobs if not job.trace.fork}
        trace = Trace(self.name, tuple(job.trace for job in jobs))
        return Scenario(nodes, trace, self.known, real, submissions), jobs, options


def _profiles(
    rates: Mapping[str, Mapping[str, float]],
    reference: str = "",
    beside: Mapping[str, Mapping[str, float]] | None = None,
) -> Knowledge:
    """Returns measured profiles: work per second of one GPU by model and type; `beside` is the part of its rate that a
    model keeps beside each other one."""
    return Knowledge(
        models={
            model: Profile(
                model,
                "",
                {},
                "measured",
                {kind: Scaling((1,), (rate,), beside=(beside or {}).get(model, {})) for kind, rate in by_type.items()},
                measured=0.0,
            )
            for model, by_type in rates.items()
        },
        reference=reference,
    )


_PAIR_RATES: Final = {"heavy": {"heavy": 0.5, "light": 0.6}, "light": {"heavy": 0.7, "light": 0.85}}
"""Beside each other models keep from half to most of their rates, as in Gavel's measurements (section 3.1)."""

_PAIRS_KNOWN: Final = _profiles({model: {"v100": 1.0} for model in PAIRED_MODELS}, "v100", _PAIR_RATES)
_STEEP_AND_FLAT: Final = {"steep": {"v100": 100.0, "k80": 5.0}, "flat": {"v100": 12.0, "k80": 10.0}}
_MIX: Final = "M-5"
_COPIES_PERIOD: Final = 360.0
"""HadarE's mix with a job for each node, and its slot time in seconds (section VI)."""

_EVERY_RUN: Final = (SitePromise.RATE, SitePromise.USEFUL, SitePromise.RESTARTS)
_SHARES: Final = (SitePromise.SHARE, SitePromise.MOST_SHARE, SitePromise.PARTITION, *_EVERY_RUN)
_SHARE_POLICIES: Final = ("gandiva-fair", "gavel", "synergy", "tesserae", "tiresias", "slurm")
"""Who promises shares, and with whom to compare."""
_TYPE_POLICIES: Final = (*POLICIES_BY_TYPES, "synergy")
_WHOLE: Final = "proportional"

SHORTEST_SLICE: Final = RUN_OVER_RESTART * (GuardSettings().restart_cost + CheckpointSettings().lead)
"""Seconds that are worth a restart by the default settings; the first queue of `las` is as long."""

_COARSE: Final = (
    "A job of four GPUs has four slices of its user's share in a day, one of eight GPUs two: one more or less is a"
    " quarter or a half of it."
)
_EQUAL_USERS: Final = dict.fromkeys(FOUR_USERS, (1,) * 8)
_GANG_AMONG_NARROW: Final = {"alice": (1,) * 48, "bob": (16,)}
_WIDTHS: Final = {"alice": (1,) * 24, "bob": (2,) * 12, "carol": (4,) * 6, "dave": (8,) * 3}
_WIDE: Final = {"alice": (1,) * 32, "bob": (4,) * 8, "carol": (8,) * 4, "dave": (16,) * 2}


def _long_slices(rounds: int) -> Settings:
    """Slices of so many rounds of the default period."""
    seconds = rounds * Settings().rounds.period
    return Settings(tickets=TicketSettings(quantum=seconds, wide_quantum=max(seconds, TicketSettings().wide_quantum)))


def _scenarios() -> Iterator[SiteScenario]:
    one_type = "v100:2x8"
    for minutes in (2, 5):
        yield SiteScenario(
            f"32 equal jobs, restarts of {minutes} min",
            one_type,
            partial(users_of_widths, _EQUAL_USERS),
            (*_SHARES, SitePromise.JOB_SHARE, SitePromise.MOST_JOB_SHARE, SitePromise.START),
            restart_cost=minutes * MINUTE,
        )
        yield SiteScenario(
            f"a site's day, restarts of {minutes} min",
            "v100:3x8,k80:2x8",
            partial(site_day, 40),
            (SitePromise.START, *_EVERY_RUN),
            restart_cost=minutes * MINUTE,
            known=shipped_profiles(),
            start_within=LONGEST,
            quick_hours=9.0 if minutes == 2 else 0.0,  # noqa: PLR2004  # the first of the two
        )
        yield SiteScenario(
            f"70 users on 48 GPUs, restarts of {minutes} min",
            "p100:6x8",
            seventy_users,
            (SitePromise.NEAR_SHARE, *_SHARES, SitePromise.START),
            restart_cost=minutes * MINUTE,
            policies=_SHARE_POLICIES,
            start_within=4 * HOUR,
            stated=dict.fromkeys((SitePromise.SHARE, SitePromise.MOST_SHARE, SitePromise.PARTITION), _COARSE),
        )
    for rounds in (2, 3, 4):
        yield SiteScenario(
            f"a gang of 16 among 48 narrow jobs, slices of {rounds} rounds",
            one_type,
            partial(users_of_widths, _GANG_AMONG_NARROW),
            (*_SHARES, SitePromise.START),
            policies=_SHARE_POLICIES if rounds == 2 else ("gandiva-fair",),  # noqa: PLR2004  # the default slice
            settings=_long_slices(rounds),
            waves=(4, 6),
            quick_hours=8.0 if rounds == 2 else 0.0,  # noqa: PLR2004  # the default slice
        )
        yield SiteScenario(
            f"widths of 1, 2, 4 and 8, slices of {rounds} rounds",
            "v100:3x8",
            partial(users_of_widths, _WIDTHS),
            _SHARES,
            policies=_SHARE_POLICIES if rounds == 2 else ("gandiva-fair",),  # noqa: PLR2004  # the default slice
            settings=_long_slices(rounds),
        )
    shares = partial(SiteScenario, promises=_SHARES, policies=_SHARE_POLICIES)
    yield shares("gangs over nodes", "v100:4x8", partial(users_of_widths, _WIDE))
    eight = "v100:1x8"
    yield shares("a user without checkpoints", eight, partial(careless_user, Care.NO_CHECKPOINT), quick_hours=6.0)
    yield shares("a user without hints", eight, partial(careless_user, Care.NO_HINTS))
    yield shares("two jobs without checkpoints of one user", eight, two_careless_jobs)
    yield shares("a user who holds GPUs by unmanaged jobs", eight, unmanaged_holder)
    yield shares("nobody gives hints", eight, nobody_tells)
    three_types, speedups = "v100:2x4,p100:2x4,k80:2x4", sample_speedups()
    types = partial(SiteScenario, cluster=three_types, known=speedups)
    promised = (SitePromise.PARTITION, SitePromise.MATCH, *_EVERY_RUN)
    yield types("three types", workload=partial(users_of_models, ""), promises=promised, policies=_TYPE_POLICIES)
    yield types(
        "three types, carol pins V100",
        workload=partial(users_of_models, "carol"),
        promises=(SitePromise.PINNING, *promised),
        policies=_TYPE_POLICIES,
        compared=("three types", ""),
    )
    yield types(
        "three types, no trading",
        workload=partial(users_of_models, ""),
        promises=(SitePromise.TRADED, SitePromise.PARTITION, *_EVERY_RUN),
        policies=("gandiva-fair",),
        settings=Settings(tickets=TicketSettings(trading=False)),
        compared=("three types", ""),
    )
    yield from _unknown_rates()
    for number in (8, 16, 32, 150):
        yield SiteScenario(
            f"{number} one-GPU jobs on 32 GPUs",
            "v100:4x8",
            partial(jobs_at_once, number),
            (
                SitePromise.UNPAIRED,
                SitePromise.MAKESPAN,
                SitePromise.COMPLETION,
                SitePromise.USEFUL,
                SitePromise.RESTARTS,
            ),
            known=_PAIRS_KNOWN,
            policies=(*PAIRING_POLICIES, _WHOLE),
            halves=True,
            compared=(f"{number} one-GPU jobs on 32 GPUs", _WHOLE),
            quick_hours=24.0 if number == 16 else 0.0,  # noqa: PLR2004  # one of them is enough
        )


def _unknown_rates() -> Iterator[SiteScenario]:
    """Rates that a site knows in part: without a reference, without a type, without the model; families of copies."""
    measured = {"lm": {"v100": 100.0, "k80": 10.0}}
    partly = {"lm": {"v100": 100.0, "p100": 50.0}}
    really = {"lm": {"v100": 100.0, "p100": 50.0, "k80": 10.0}}
    one = partial(SiteScenario, hours=6.0, promises=(SitePromise.FASTEST, *_EVERY_RUN), policies=_TYPE_POLICIES)
    yield one(
        "a profile without reference",
        "k80:1x1,v100:1x1",
        partial(one_job, ""),
        known=_profiles(measured),
        real=_profiles(measured, "v100"),
        quick_hours=3.0,
    )
    yield one(
        "a type without rate",
        "k80:1x1,p100:1x1,v100:1x1",
        partial(one_job, "v100"),
        known=_profiles(partly, "v100"),
        real=_profiles(really, "v100"),
        quick_hours=3.0,
    )
    yield one(
        "a model without profile",
        "k80:1x1,v100:1x1",
        partial(one_job, ""),
        known=Knowledge(),
        real=_profiles({"lm": {"v100": 100.0, "k80": 10.0}}, "v100"),
    )
    for kind, reference in (("with", "v100"), ("without", "")):
        yield SiteScenario(
            f"jobs of steep and flat rates, {kind} reference",
            "v100:1x8,k80:1x8",
            steep_and_flat_users,
            (SitePromise.PARTITION, SitePromise.MATCH, *_EVERY_RUN),
            known=_profiles(_STEEP_AND_FLAT, reference),
            real=_profiles(_STEEP_AND_FLAT, "v100"),
            policies=_TYPE_POLICIES,
        )
    yield SiteScenario(
        "two families of copies",
        "v100:1x1,k80:1x1",
        two_families,
        (SitePromise.MATCH,),
        hours=6.0,
        known=_profiles(_STEEP_AND_FLAT),
        real=_profiles(_STEEP_AND_FLAT, "v100"),
        policies=("hadare",),
    )
    nodes = CLUSTER_NODES["aws"]
    yield SiteScenario(
        "five families of copies on five nodes of three types",
        ",".join(f"{kind}:{nodes.count(kind)}x1" for kind in dict.fromkeys(nodes)),
        partial(mix_of_families, _MIX, nodes),
        (SitePromise.COPIES,),
        policies=("hadare",),
        known=_profiles(
            {job.model.lower(): estimated_throughputs(job.model, nodes) for job in mix_jobs(_MIX, nodes, 0)}
        ),
        real=lambda seed: _profiles({job.model.lower(): job.rates for job in mix_jobs(_MIX, nodes, seed)}, nodes[0]),
        ideal=_replayed_copies,
        period=_COPIES_PERIOD,
    )


def _replayed_copies(seed: int) -> SiteRun:
    """Returns the same mix as HadarE's authors divide it, by the replay of `hadare-mixes`."""
    nodes = CLUSTER_NODES["aws"]
    jobs = mix_jobs(_MIX, nodes, seed)
    policy = HadarEReplayPolicy({job.model: estimated_throughputs(job.model, nodes) for job in jobs})
    rounds = RoundSemantics(_COPIES_PERIOD, exchange_seconds=SimulationOptions().exchange)
    ended = replay(jobs, one_gpu_nodes(nodes), policy, rounds)
    outcomes = (JobOutcome(job.job, "alice", float(len(nodes)), 0.0, {}, end=job.end) for job in ended.jobs)
    gpus = tuple(((f"{kind}-{index}", 0), kind) for index, kind in enumerate(nodes))
    return SiteRun(gpus, tuple(outcomes), ended.makespan)


SCENARIOS: Final[Mapping[str, SiteScenario]] = {scenario.name: scenario for scenario in _scenarios()}
"""Every scenario by name."""
