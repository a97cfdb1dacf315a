"""A simulation that leaves out rounds in which nothing can change gives every job the same runs as one that computes
them all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurmsched.experiments.site_promises.workloads import Care, SiteJob
from slurmsched.knowledge import Knowledge, Profile, Scaling, shipped_profiles
from slurmsched.policies.policies import POLICIES, schedules_shards
from slurmsched.settings import GuardSettings, Settings
from slurmsched.simulation import PolicyChoice, Scenario, SimulationOptions
from slurmsched.simulation.engine import SimulationEngine
from slurmsched.simulation.inputs import PLAIN_SLURM
from slurmsched.simulation.submissions import build_submission
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster

MODELS = {
    "steep": Profile("steep", "", {}, "measured", {"v100": Scaling((1,), (10.0,)), "k80": Scaling((1,), (1.0,))}),
    "flat": Profile("flat", "", {}, "measured", {"v100": Scaling((1,), (1.2,)), "k80": Scaling((1,), (1.0,))}),
}
BESIDE = {"steep": {"steep": 0.8, "flat": 0.6}, "flat": {"steep": 0.7, "flat": 0.9}}
TYPED = Knowledge(
    models={
        name: replace(
            profile,
            scaling={kind: replace(rates, beside=BESIDE[name]) for kind, rates in profile.scaling.items()},
            measured=0.0,
        )
        for name, profile in MODELS.items()
    },
    reference="v100",
)
"""How fast two models are on each GPU type, and beside each other."""


@dataclass(frozen=True)
class SmallSite:
    """A cluster, its jobs, of which some have a time limit, and how the daemon runs there."""

    cluster: str
    jobs: tuple[tuple[SiteJob, bool], ...]
    knowledge: Knowledge
    guards: GuardSettings
    options: SimulationOptions


@st.composite
def small_sites(draw: st.DrawFn) -> SmallSite:
    knowledge, models = draw(
        st.sampled_from([(TYPED, ("steep", "flat")), (shipped_profiles(), ("resnet18", "m5", "transformer", ""))])
    )
    jobs = [
        (
            SiteJob(
                TraceJob(
                    f"job{number}",
                    draw(st.sampled_from([0.0, 0.0, 10.0, 700.0, 2000.0])),
                    draw(st.sampled_from([1, 1, 1, 2])),
                    draw(st.sampled_from([300.0, 900.0, 15_000.0, 15_000.0])),
                    model=draw(st.sampled_from(models)),
                    user=draw(st.sampled_from(["alice", "bob"])),
                ),
                draw(st.sampled_from([Care.CAREFUL, Care.CAREFUL, Care.CAREFUL, Care.NO_CHECKPOINT])),
            ),
            draw(st.booleans()),
        )
        for number in range(draw(st.integers(2, 5)))
    ]
    return SmallSite(
        draw(st.sampled_from(["v100:1x2", "v100:1x1,k80:1x2", "v100:1x1,k80:1x1"])),
        tuple(jobs),
        knowledge,
        draw(
            st.sampled_from([GuardSettings(), GuardSettings(moves_per_job_day=1), GuardSettings(min_run_time=2000.0)])
        ),
        SimulationOptions(early=draw(st.sampled_from([0.0, 3.0])), overhead=120.0, completing=5.0, until=9000.0),
    )


def runs(site: SmallSite, choice: PolicyChoice, *, skipping: bool) -> tuple[dict[str, list[object]], int]:
    """When and where each job ran, and how many rounds there were."""
    options, nodes = replace(site.options, skipping=skipping), load_cluster(site.cluster).nodes
    jobs = [job for job, _ in site.jobs]
    if schedules_shards(choice.system):
        memory = min(node.total.memory for node in nodes) // 4
        jobs = [
            replace(job, trace=replace(job.trace, gpus=0, milli_gpu=500, cpus=1, memory=memory))
            if job.trace.gpus == 1
            else job
            for job in jobs
        ]
    submissions = {
        job.trace.id: replace(
            job.submission(nodes, options, site.knowledge),
            time_limit=build_submission(job.trace, nodes, options).time_limit if limited else None,
        )
        for job, (_, limited) in zip(jobs, site.jobs, strict=True)
    }
    trace = Trace("small", tuple(job.trace for job in jobs))
    scenario = Scenario(nodes, trace, site.knowledge, site.knowledge, submissions)
    engine = SimulationEngine(scenario, choice, options, Settings(guards=site.guards))
    engine.run(lambda _done: None)
    now, lifecycle, ran = engine.cluster.now, engine.cluster.lifecycle, dict[str, list[object]]()
    for usage in lifecycle.usage_intervals:
        ran.setdefault(usage.job, []).append(usage)
    for job in engine.cluster.jobs.values():
        ran.setdefault(job.id, []).append((job.state, job.view_at(now).allocations, job.start_time))
    return ran, engine.rounds


def one_gpu(number: int, arrival: float, duration: float, model: str = "flat") -> tuple[SiteJob, bool]:
    return SiteJob(TraceJob(f"job{number}", arrival, 1, duration, model=model, user="alice")), True


GPU_IDLE_BEFORE_THE_GUEST_MAY_MOVE = SmallSite(
    "v100:1x2",
    (one_gpu(0, 0.0, 300.0), one_gpu(1, 0.0, 15_000.0), one_gpu(2, 10.0, 15_000.0)),
    TYPED,
    GuardSettings(),
    SimulationOptions(early=3.0, overhead=120.0, completing=5.0, until=9000.0),
)
FASTER_IN_EACH_OTHERS_PLACES = replace(
    GPU_IDLE_BEFORE_THE_GUEST_MAY_MOVE,
    cluster="v100:1x1,k80:1x1",
    jobs=(one_gpu(0, 0.0, 15_000.0), one_gpu(1, 10.0, 15_000.0, "steep")),
)


CHOICES = [PolicyChoice(name) for name in POLICIES if name != PLAIN_SLURM] + [
    PolicyChoice(name, "fifo") for name in ("synergy", "tesserae-packed", "fgd")
]


@pytest.mark.parametrize("choice", [pytest.param(choice, id=choice.name) for choice in CHOICES])
@settings(max_examples=6)
@given(small_sites())
@example(GPU_IDLE_BEFORE_THE_GUEST_MAY_MOVE)
@example(FASTER_IN_EACH_OTHERS_PLACES)
def test_leaving_out_rounds_changes_no_run(choice: PolicyChoice, site: SmallSite) -> None:
    skipped, fewer = runs(site, choice, skipping=True)
    computed, rounds = runs(site, choice, skipping=False)
    assert skipped == computed
    assert fewer <= rounds
