"""Forked jobs (HadarE) in simulations: small ones worked out by hand, and the rules that hold for all of them."""

from __future__ import annotations

import inspect
from dataclasses import replace
from getpass import getuser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slurmsched.backends.simulated import forked
from slurmsched.backends.simulated.events import Event, SimulatedEventKind
from slurmsched.daemon.scheduler import SchedulerContext, schedule_round
from slurmsched.jobside.dispatch import read_dispatch
from slurmsched.jobside.forking import ForkedTraining
from slurmsched.jobside.spool import Spool
from slurmsched.knowledge import Knowledge, Profile
from slurmsched.knowledge.speed import Scaling
from slurmsched.simulation import (
    Scenario,
    SimulationError,
    SimulationOptions,
    SimulationResult,
    parse_policy,
    run_metrics,
)
from slurmsched.simulation.engine import SimulationEngine
from slurmsched.simulation.inputs import CLOCK_START
from slurmsched.simulation.submissions import forked_steps
from slurmsched.store.store import Store
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster

FREE = SimulationOptions(overhead=0.0, exchange=5.0)


def known(**rates: float) -> Knowledge:
    """One model `m` with these rates by GPU type; durations are in seconds on a k80."""
    scaling = {kind: Scaling((1,), (rate,)) for kind, rate in rates.items()}
    return Knowledge({"m": Profile("m", "", {}, "made up", scaling)}, reference="k80")


FOUR_TIMES = known(v100=4.0, k80=1.0)


def job(number: int, duration: float = 3600.0, fork: int = 2, arrival: float = 0.0, **more: object) -> TraceJob:
    return TraceJob(str(number), arrival, 1, duration, model="m", fork=fork, **more)  # type: ignore[arg-type]  # by name


def engine(
    *jobs: TraceJob,
    policy: str = "hadare",
    cluster: str = "v100:1x1,k80:1x1",
    options: SimulationOptions = FREE,
    knowledge: Knowledge = FOUR_TIMES,
) -> SimulationEngine:
    made = Scenario(load_cluster(cluster).nodes, Trace("t", jobs), knowledge)
    return SimulationEngine(made, parse_policy(policy), options)


def run(made: SimulationEngine) -> SimulationResult:
    return made.run(lambda _part: None)


def steps_of(made: SimulationEngine) -> list[list[int]]:
    """The steps that each copy of each forked job has done."""
    return [[copy.counted for copy in one.copies.values()] for one in made.cluster.lifecycle.forked.values()]


def test_times_that_copies_wait_are_those_of_the_job_side() -> None:
    parameters = inspect.signature(ForkedTraining).parameters
    theirs = tuple(parameters[name].default for name in ("slot", "grace", "every"))
    assert theirs == (forked.SLOT, forked.GRACE, forked.CHECKPOINT_EVERY)


@pytest.mark.parametrize(
    ("policy", "cluster", "copies", "end"),
    [
        pytest.param("slurm", "k80:2x1", [1800, 1800], 1830.0, id="equal nodes: six slots, an exchange each"),
        pytest.param("slurm", "v100:1x1,k80:1x1", [2880, 720], 735.0, id="a slot in equal parts, the next by rates"),
        pytest.param("slurm", "v100:1x1", [3600], 915.0, id="one copy goes on alone"),
        pytest.param("hadare", "v100:1x1,k80:1x1", [2880, 720], 740.5, id="each round divides again, by rates"),
        pytest.param("hadare", "v100:1x1,k80:1x1", [2880, 720, 0], 740.5, id="a copy without a node is not missed"),
        pytest.param("hadare", "k80:1x1", [3600, 0], 3670.0, id="a second copy that never runs in time"),
    ],
)
def test_a_job_alone(policy: str, cluster: str, copies: list[int], end: float) -> None:
    made = engine(job(0, fork=len(copies)), policy=policy, cluster=cluster)
    (done,) = run(made).jobs
    assert (done.state, done.end) == ("COMPLETED", pytest.approx(end))
    assert steps_of(made) == [copies]


def test_with_forking_set_aside_it_is_one_job() -> None:
    (done,) = run(engine(job(0), policy="slurm", options=replace(FREE, forking=False))).jobs
    assert (done.end, done.copies, done.service) == (900.0, 0, 900.0)


def test_the_copies_are_one_job_in_the_result() -> None:
    result = run(engine(job(0), job(1, arrival=10.0, fork=0), policy="slurm", cluster="v100:1x1,k80:1x1"))
    copied, single = result.jobs
    assert (copied.job, copied.copies, copied.gpus, copied.start, copied.restarts) == ("0", 2, 1, 0.0, 0)
    assert copied.service == pytest.approx(2 * 735.0)
    assert copied.by_type == {"v100": pytest.approx(735.0), "k80": pytest.approx(735.0)}
    assert copied.useful == pytest.approx(2 * 720.0)
    assert (single.start, single.copies) == (735.0, 0)
    metrics = run_metrics(result)
    assert (metrics.jobs, metrics.finished, metrics.states) == (2, 2, {"COMPLETED": 2})
    assert [(sample.running, sample.waiting) for sample in result.samples[1:4]] == [(1, 1), (1, 1), (1, 0)]


def test_a_killed_copy_costs_its_steps_since_its_checkpoint_and_the_others_do_them() -> None:
    """At 100 s the second node fails, 40 s after the copy's checkpoint: 60 of its 100 steps are left."""
    made = engine(job(0, duration=1000.0), policy="slurm", cluster="k80:2x1")
    made.cluster.events.push(Event(CLOCK_START + 100.0, SimulatedEventKind.NODE_DOWN, "k80-2"))
    (done,) = run(made).jobs
    assert steps_of(made) == [[940, 60]]
    assert done.state == "COMPLETED"
    assert done.useful == pytest.approx(1000.0)


def test_a_copy_that_starts_when_all_is_done_ends_at_once() -> None:
    """The second copy waits for the only node until the first is through."""
    made = engine(job(0, fork=2), job(1, fork=0, arrival=1.0, duration=360.0), policy="slurm", cluster="v100:1x1")
    first, second = run(made).jobs
    assert (first.end, second.start) == (915.0, 915.0)
    assert made.cluster.lifecycle.ended["1_2"].state_text == "COMPLETED"


def test_a_copy_that_ends_at_its_time_limit_leaves_its_steps_to_the_next() -> None:
    made = engine(job(0, time_limit=400.0), policy="slurm", cluster="k80:1x1")
    (done,) = run(made).jobs
    assert (done.state, done.end) == ("TIMEOUT", 800.0)
    assert sum(map(sum, steps_of(made))) < 3600


def test_a_forked_job_that_fails_does_so_after_as_much_work() -> None:
    made = engine(job(0, fails_after=360.0), policy="slurm")
    (done,) = run(made).jobs
    assert done.state == "FAILED"
    assert sum(map(sum, steps_of(made))) == 360


def test_what_rounds_know_of_steps_and_rates_comes_from_the_copies() -> None:
    made = engine(job(0), options=replace(FREE, until=650.0))
    run(made)
    state = made.store.load_state(made.cluster.snapshot())
    assert {name: steps > 1400 for name, steps in state.steps.items()} == {"1_1": True, "1_2": True}
    rates = {name: [(rate.gpu_type, rate.rate) for rate in rates] for name, rates in state.measured.items()}
    assert rates == {"1_1": [("v100", pytest.approx(4.0))], "1_2": [("k80", pytest.approx(1.0))]}


@pytest.mark.parametrize(
    ("made", "steps"),
    [
        pytest.param(job(0, iterations=77), 77, id="the trace's iterations"),
        pytest.param(job(0), 3600, id="duration by the rate on the reference type"),
        pytest.param(job(0, gpu_type="v100"), 14400, id="the type that the job asks for"),
        pytest.param(replace(job(0), model="other"), 3600, id="one a second without a profile"),
        pytest.param(job(0, duration=1.0, fork=4), 4, id="at least one for each copy"),
    ],
)
def test_steps_of_a_forked_job(made: TraceJob, steps: int) -> None:
    assert forked_steps(made, FOUR_TIMES) == steps


@pytest.mark.parametrize(("model", "known_as"), [("M", "m"), ("a model, named freely", None), ("", None)])
def test_a_model_that_no_hint_can_name_leaves_the_other_hints_alone(model: str, known_as: str | None) -> None:
    made = engine(replace(job(0), model=model))
    made.cluster.advance(CLOCK_START)
    hints = made.cluster.jobs["1_2"].view_at(CLOCK_START).hints
    assert (hints.model, hints.fork, hints.problems) == (known_as, 3600, ())


def test_copies_that_no_node_can_hold_are_refused() -> None:
    wide = replace(job(0), gpus=2)
    with pytest.raises(SimulationError, match="its copies ask for 2 GPUs, and a copy runs on one node"):
        engine(wide, cluster="v100:2x1")


def test_it_is_what_the_daemons_own_round_does_with_its_spool(tmp_path: Path) -> None:
    """The same jobs through the daemon's round with its database: reports and dispatches are files."""
    lean = engine(*THREE, cluster="v100:2x1,k80:2x1", options=replace(FREE, skipping=False))
    live = engine(*THREE, cluster="v100:2x1,k80:2x1", options=replace(FREE, skipping=False))
    own = replace(
        live.settings,
        hook=replace(live.settings.hook, disable_file="/dev/null/none"),
        reports=replace(live.settings.reports, spool=str(tmp_path)),
    )
    tmp_path.chmod(0o1777)
    cluster, clock, store = live.cluster, live.clock, Store.in_memory(CLOCK_START)
    context = SchedulerContext(own, live.daemon.backend, live.scenario.knowledge)
    lifecycle, seen, early_rounds = cluster.lifecycle, 0, 0
    while len(lifecycle.ended_forked) < len(THREE):
        due = clock.now() + live.options.period
        for number, report in cluster.reports().items():
            Spool(tmp_path, number).write(report)
        done = schedule_round(context, store, clock, starts_only=len(lifecycle.ended_forked) > seen)
        assert not done.result.starts_only, "the end of a forked job makes the round a full one"
        early_rounds, seen = early_rounds + (len(lifecycle.ended_forked) > seen), len(lifecycle.ended_forked)
        dispatches = (read_dispatch(tmp_path, array, clock.now()) for array in lifecycle.forked)
        cluster.dispatch(dispatch for dispatch in dispatches if dispatch is not None)
        while len(lifecycle.ended_forked) == seen and clock.now() < due:
            clock.advance_to(max(clock.now(), min(cluster.events.next_time or due, due)))
            cluster.advance(clock.now())
    assert early_rounds == len(THREE) - 1
    reported = store.measurements.last_reports(["1_1", "2_1", "3_1"])
    store.close()
    assert (len(reported), (tmp_path / "dispatched").is_dir()) == (3, True)
    ended = [cluster.lifecycle.ended_forked[number].end_time for number in live.index_of]
    assert [done.end for done in run(lean).jobs] == [pytest.approx((end or 0.0) - CLOCK_START) for end in ended]
    assert steps_of(live) == steps_of(lean)


THREE = tuple(
    job(number, duration=7200.0 * (number + 1), fork=4, arrival=60.0 * number, user=getuser()) for number in range(3)
)


def test_a_round_begins_when_a_forked_job_ends_and_the_next_one_a_period_later() -> None:
    """The first job does its steps in 100 s; without a round then, its two nodes would wait until 300 s. There is an
    exchange of 5 s in each round."""
    made = engine(job(0, duration=200.0), job(1, duration=2000.0), cluster="k80:2x1")
    first, second = run(made).jobs
    assert (first.end, second.end) == (pytest.approx(110.0), pytest.approx(110.0 + 1000.0 + 5 * 5.0))
    assert made.rounds == 6, "at 0, 110, 410, 710 and 1010 s, and when the last job ends"


def test_hadare_is_sooner_through_than_hadar() -> None:
    """Two GPU types, four nodes, three jobs: Hadar leaves a node idle, and slow ones busy for long."""
    cluster = "v100:2x1,k80:2x1"
    hadare = run_metrics(run(engine(*THREE, cluster=cluster)))
    hadar = run_metrics(run(engine(*THREE, cluster=cluster, policy="hadar", options=replace(FREE, forking=False))))
    assert (hadare.finished, hadar.finished) == (3, 3)
    assert hadare.avg_jct_s < 0.75 * hadar.avg_jct_s
    assert hadare.makespan_s < 0.9 * hadar.makespan_s


def test_the_same_inputs_give_the_same_bytes() -> None:
    options = replace(FREE, overhead=30.0, failures=0.2, repair=600.0, seed=3)
    once, again = (run(engine(*THREE, cluster="v100:2x1,k80:2x1", options=options)) for _ in range(2))
    assert (once.jobs, once.samples, once.rounds) == (again.jobs, again.samples, again.rounds)


tiny_jobs = some.builds(
    job,
    some.just(0),
    duration=some.floats(1.0, 4000.0),
    fork=some.sampled_from([0, 2, 3, 5]),
    arrival=some.floats(0.0, 2000.0),
)


@settings(max_examples=40, deadline=None)
@given(
    some.lists(tiny_jobs, min_size=1, max_size=4),
    some.sampled_from(["hadare", "hadar", "slurm", "synergy/srtf"]),
    some.sampled_from(["v100:2x1,k80:2x1", "v100:1x2,k80:1x1", "k80:1x1"]),
    some.sampled_from([0.0, 0.5, 3.0]),
    some.integers(0, 99),
    some.sampled_from([0.0, 5.0]),
)
def test_each_step_is_done_once_whoever_fails_when(
    jobs: list[TraceJob], policy: str, cluster: str, failures: float, seed: int, exchange: float
) -> None:
    jobs = [replace(one, id=str(number)) for number, one in enumerate(jobs)]
    options = SimulationOptions(overhead=20.0, failures=failures, repair=300.0, seed=seed, exchange=exchange)
    made = engine(*jobs, policy=policy, cluster=cluster, options=options)
    result = run(made)
    for forked_job in made.cluster.lifecycle.forked.values():
        counted = sum(copy.counted for copy in forked_job.copies.values())
        assert counted == forked_job.done == forked_job.total
    for done in result.jobs:
        assert done.completed
        assert done.useful <= done.service + 1e-5  # each time is in unix seconds, to 2.4e-7
        if done.copies:
            work = sum(
                copy.counted * forked_job.step_work
                for number, forked_job in made.cluster.lifecycle.forked.items()
                if result.jobs[made.index_of[number]].job == done.job
                for copy in forked_job.copies.values()
            )
            assert work == pytest.approx(done.work)
    assert all(sample.gpus <= result.total_gpus for sample in result.samples)
