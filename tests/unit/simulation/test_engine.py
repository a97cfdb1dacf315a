"""Simulations small enough to be worked out by hand, and the rules that hold for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slurmsched.backends.simulated import (
    Delays,
    JobSubmitHook,
    SimulatedBackend,
    VirtualClock,
    VirtualCluster,
    profiled_speed,
)
from slurmsched.daemon.scheduler import SchedulerContext, schedule_round
from slurmsched.knowledge import Knowledge, Profile, Scaling, shipped_profiles
from slurmsched.model import decode, encode
from slurmsched.settings import GuardSettings, Settings
from slurmsched.simulation import (
    PolicyChoice,
    Scenario,
    SimulationError,
    SimulationOptions,
    SimulationResult,
    parse_policy,
    run_metrics,
)
from slurmsched.simulation.engine import SimulationEngine, settings_for, simulate
from slurmsched.simulation.inputs import CLOCK_START
from slurmsched.simulation.submissions import build_submission
from slurmsched.store.store import Store
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.generators import synergy_workload

FREE = SimulationOptions(overhead=0.0)


def job(number: int, arrival: float = 0.0, duration: float = 600.0, gpus: int = 8, **more: object) -> TraceJob:
    return TraceJob(str(number), arrival, gpus, duration, **more)  # type: ignore[arg-type]  # fields by name


def world(*jobs: TraceJob, cluster: str = "v100:1x8", knowledge: Knowledge | None = None) -> Scenario:
    return Scenario(load_cluster(cluster).nodes, Trace("t", jobs), knowledge or Knowledge())


def ends(made: Scenario, policy: str, options: SimulationOptions = FREE) -> list[float | None]:
    run = simulate(made, parse_policy(policy), options)
    return [None if done.end is None else round(done.end, 1) for done in run.jobs]


def test_a_job_starts_with_a_round_and_ends_when_its_work_is_done() -> None:
    assert ends(world(job(0, 10.0, 450.0)), "synergy/fifo") == [750.0]


EARLY = replace(FREE, early=3.0)


def test_an_early_round_starts_a_job_at_the_next_look_after_what_happened() -> None:
    looks = [3.0, 5.0, 7.0, 9.0, 11.0]
    assert ends(world(job(0, 10.0, 450.0)), "synergy/fifo", EARLY) == [looks[-1] + 450.0]


def test_a_job_that_ends_makes_place_for_the_next_within_a_look() -> None:
    first, second = ends(world(job(0, 0.0, 100.0), job(1, 5.0, 100.0)), "synergy/fifo", EARLY)
    assert first == 100.0
    assert second is not None
    assert 200.0 < second <= 200.0 + EARLY.early


def test_early_rounds_displace_nobody_but_take_the_displaced_back() -> None:
    made = world(job(0, 0.0, 5000.0), job(1, 310.0, 100.0))
    assert ends(made, "synergy/las") == [5300.0, 1300.5], "displaced in the round at 1200, again from the one at 1500"
    assert ends(made, "synergy/las", EARLY) == [5101.0, 1300.5]


def test_an_early_round_follows_what_the_last_one_changed() -> None:
    """Slurm's counters do not tell our changes from others'. The second job finds no room, so that nothing follows the
    second round, and where rounds may be skipped there is none."""
    made = world(job(0, 0.0, 100.0), job(1, 0.0, 100.0))
    rounds = list[int]()
    for skipping in (False, True):
        engine = SimulationEngine(made, parse_policy("synergy/fifo"), replace(EARLY, skipping=skipping, until=60.0))
        engine.run(lambda _done: None)
        rounds.append(len(engine.decisions))
    assert rounds == [2, 1]


def test_a_job_that_a_round_starts_runs_a_little_later() -> None:
    """Without delay it has run for 300 s in the round at 300, with 1 s for nearly as long, with 40 s not."""
    delays = [replace(FREE, launch=seconds) for seconds in (0.0, 1.0, 40.0)]
    assert ends(world(job(0, 10.0, 450.0)), "synergy/fifo", delays[1]) == [751.0]
    made = world(job(0, 0.0, 900.0, 8), job(1, 10.0, 100.0, 8))
    at_once = Settings(guards=GuardSettings(min_run_time=300.0, restart_cost=0.0, require_checkpoint=False))
    runs = [simulate(made, parse_policy("synergy/srtf"), each, at_once).jobs for each in delays]
    assert [jobs[1].end for jobs in runs] == [400.5, 401.5, 740.5]


def test_without_rounds_slurm_starts_it_at_once() -> None:
    assert ends(world(job(0, 10.0, 450.0)), "slurm") == [460.0]


def test_jobs_run_as_fast_as_they_really_do_and_not_as_policies_believe() -> None:
    """Policies take the model for twice as fast on the second type, where it is half as fast."""
    believed, real = (
        Knowledge(
            models={
                "m": Profile("m", "", {}, "measured", {"v100": Scaling((1,), (1.0,)), "k80": Scaling((1,), (k80,))})
            },
            reference="v100",
        )
        for k80 in (2.0, 0.5)
    )
    made = world(job(0, 0.0, 600.0, 1, model="m"), cluster="v100:1x1,k80:1x1", knowledge=believed)
    (done,) = simulate(replace(made, real=real), parse_policy("hadar"), FREE).jobs
    assert (list(done.by_type), done.end) == (["k80"], 1200.0)


def test_a_job_is_submitted_as_its_owner_does_where_that_is_said() -> None:
    """The second job's owner takes a partition that is not managed, so that Slurm starts it before the round."""
    nodes = tuple(replace(node, partitions=frozenset({"gpu", "plain"})) for node in load_cluster("v100:1x8").nodes)
    jobs = (job(0, 10.0, 450.0, 1), job(1, 10.0, 450.0, 1))
    unmanaged = replace(build_submission(jobs[1], nodes, FREE), partitions=("plain",), comment="")
    assert ends(Scenario(nodes, Trace("t", jobs), submissions={"1": unmanaged}), "synergy/fifo") == [750.0, 460.0]


def test_jobs_end_at_the_ends_of_rounds_where_that_is_asked_for() -> None:
    assert ends(world(job(0, 0.0, 450.0)), "synergy/fifo", replace(FREE, quantised=True)) == [600.0]


@pytest.mark.parametrize("policy", ["slurm", "synergy/las", "unified"])
@pytest.mark.parametrize("options", [FREE, EARLY, replace(EARLY, direct=True)], ids=["rounds", "early", "direct"])
@pytest.mark.parametrize("days", [8, 20_000])
def test_a_trace_may_have_weeks_without_a_job(policy: str, options: SimulationOptions, days: int) -> None:
    first, last = ends(world(job(0), job(1, 86400.0 * days + 1.0)), policy, options)
    assert first is not None
    assert last is not None
    assert 600.0 <= first <= 620.0
    assert 601.0 <= last - 86400.0 * days <= 1201.0  # at a round at the latest


def test_a_displaced_job_pays_the_overhead_once_and_loses_no_work() -> None:
    """The long job gives way to the short one at 1500 s, and goes on at 1800 s with 60 s lost."""
    made = world(job(0, 0.0, 6000.0), job(1, 1450.0, 240.0))
    first, second = simulate(made, parse_policy("synergy/srtf"), SimulationOptions(overhead=60.0)).jobs
    assert (first.restarts, second.restarts) == (1, 0)
    assert first.migrations == 0
    assert second.end is not None
    assert second.end < 1800
    assert first.end is not None
    assert first.useful == pytest.approx(8 * 6000.0)
    assert first.service == pytest.approx(8 * 6060.0, rel=0.001)


def test_a_lease_that_goes_on_costs_nothing() -> None:
    assert ends(world(job(0, 0.0, 6000.0)), "synergy/las", SimulationOptions(overhead=60.0)) == [6000.0]


def test_a_job_fails_where_the_trace_says_so() -> None:
    (failed,) = simulate(world(job(0, 0.0, 600.0, fails_after=100.0)), parse_policy("synergy"), FREE).jobs
    assert (failed.state, failed.end) == ("FAILED", 100.0)


def test_a_failing_node_costs_the_work_since_the_last_checkpoint() -> None:
    made = world(job(0, 0.0, 40_000.0))
    calm = simulate(made, parse_policy("synergy/fifo"), FREE)
    rough = simulate(made, parse_policy("synergy/fifo"), replace(FREE, failures=0.2, repair=600.0, seed=3))
    assert rough.jobs[0].restarts > 0
    assert (rough.jobs[0].end or 0) > (calm.jobs[0].end or 0)
    assert rough.jobs[0].service > rough.jobs[0].useful


def test_time_limits_end_jobs_unless_they_are_left_aside() -> None:
    made = world(job(0, 0.0, 600.0, time_limit=300.0))
    assert simulate(made, parse_policy("slurm"), FREE).jobs[0].state == "TIMEOUT"
    assert simulate(made, parse_policy("slurm"), replace(FREE, limits=False)).jobs[0].state == "COMPLETED"


def test_only_the_window_is_measured_and_has_to_end() -> None:
    made = world(job(0, 0.0), job(1, 1.0), job(2, 2.0, 10.0**7))
    run = simulate(made, parse_policy("synergy/fifo"), replace(FREE, window=(1, 2)))
    assert [done.job for done in run.measured_jobs] == ["1"]
    assert run_metrics(run).jobs == 1
    assert run.jobs[2].state == "UNFINISHED"


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        (world(job(7, gpus=9)), FREE, "job 7 can never run here: it asks for 9 GPUs, and there are 8"),
        (world(job(7, gpu_type="a100")), FREE, "no node has GPUs of type a100"),
        (world(job(7, gpus=1, cpus=25)), FREE, "it asks for 1 node with 1 GPU, 25 CPUs and"),
        (world(job(7, gpus=0, milli_gpu=500, cpus=99)), FREE, "no node with such a GPU has 99 CPUs and 0 MiB"),
        (world(job(7)), replace(FREE, window=(0, 9)), "window 0:9: expected a range within 0:1"),
    ],
)
def test_what_can_never_be_is_said_before_it_starts(made: Scenario, options: SimulationOptions, said: str) -> None:
    with pytest.raises(SimulationError, match=said):
        simulate(made, parse_policy("synergy"), options)


def test_what_can_never_run_may_be_left_out() -> None:
    run = simulate(world(job(0), job(1, gpus=9)), parse_policy("synergy"), replace(FREE, skip_impossible=True))
    assert [done.job for done in run.jobs] == ["0"]


def small(seed: int, jobs: int = 30) -> Scenario:
    return Scenario(
        load_cluster("v100:2x8:24:500G").nodes, synergy_workload(jobs, seed, 3.0, multi=True), shipped_profiles()
    )


@pytest.mark.parametrize("policy", ["synergy/fifo", "synergy/las", "proportional/srtf", "synergy/ftf"])
def test_skipping_rounds_changes_nothing(policy: str) -> None:
    made, options = small(5, 20), SimulationOptions(overhead=30.0)
    skipping = simulate(made, parse_policy(policy), options)
    computed = simulate(made, parse_policy(policy), replace(options, skipping=False))
    assert skipping.jobs == computed.jobs
    assert skipping.samples == computed.samples
    assert skipping.rounds < computed.rounds


def test_same_seed_same_bytes() -> None:
    once, again = (
        simulate(small(2, 25), parse_policy("synergy/las"), SimulationOptions(failures=0.02)) for _ in range(2)
    )
    assert (once.jobs, once.samples, once.rounds) == (again.jobs, again.samples, again.rounds)


@pytest.mark.parametrize("order", ["las", "srtf"])
def test_it_is_what_the_daemons_own_round_does(order: str) -> None:
    """The same jobs through `one_round` with its database, as the daemon runs it; 15 and more of them are displaced."""
    made, policy = small(5, 20), PolicyChoice("synergy", order)
    options = SimulationOptions(overhead=30.0, skipping=False)
    lean = simulate(made, policy, options)
    own = settings_for(policy, options)
    own = replace(own, hook=replace(own.hook, disable_file="/dev/null/none"))
    delays = Delays(restart=30.0, completing=0.0, min_job_age=0.0, origin=CLOCK_START)
    hook = JobSubmitHook(own.manage, is_heartbeat_fresh=lambda _now: True)
    cluster = VirtualCluster(
        made.nodes, start=CLOCK_START, speed=profiled_speed(made.knowledge, made.nodes), delays=delays, hook=hook
    )
    numbers = [
        cluster.submit(build_submission(one, made.nodes, options), CLOCK_START + one.arrival) for one in made.trace.jobs
    ]
    clock = VirtualClock(CLOCK_START)
    site, store = (
        SchedulerContext(own, SimulatedBackend(cluster, clock), made.knowledge.simulated()),
        Store.in_memory(CLOCK_START),
    )
    while cluster.unfinished:
        due = clock.now() + options.period
        schedule_round(site, store, clock)
        clock.advance_to(max(clock.now(), due))
        cluster.advance(clock.now())
    store.close()
    ended = [cluster.lifecycle.ended[number].end_time for number in numbers]
    assert [done.end for done in lean.jobs] == [None if end is None else end - CLOCK_START for end in ended]


@settings(max_examples=12, deadline=None)
@given(some.integers(0, 10**6), some.sampled_from(["slurm", "synergy/las", "synergy/srtf", "proportional/fifo"]))
def test_service_is_conserved_and_nothing_is_used_twice(seed: int, policy: str) -> None:
    engine = SimulationEngine(small(seed, 16), parse_policy(policy), SimulationOptions(overhead=30.0, seed=seed))
    run = engine.run(lambda _part: None)
    intervals = engine.cluster.lifecycle.usage_intervals
    assert sum(done.service for done in run.jobs) == pytest.approx(sum(i.gpus * (i.end - i.start) for i in intervals))
    assert all(done.useful <= done.service + 1e-6 for done in run.jobs)
    assert all(done.completed and done.useful * 1.0 > 0 for done in run.jobs)
    edges = sorted([(i.start, i.gpus) for i in intervals] + [(i.end, -i.gpus) for i in intervals])
    used = 0
    for _, change in edges:
        used += change
        assert 0 <= used <= run.total_gpus
    assert all(sample.gpus <= run.total_gpus and sample.cpus <= run.total_cpus for sample in run.samples)


def test_a_run_is_json_and_back() -> None:
    run = simulate(small(1, 6), parse_policy("synergy/las"), SimulationOptions())
    assert decode(SimulationResult, encode(run)) == run


@pytest.mark.parametrize(
    "policy", [PolicyChoice("slurm"), PolicyChoice("fgd", "fifo"), PolicyChoice("synergy", "fifo")]
)
def test_two_halves_share_a_gpu(policy: PolicyChoice) -> None:
    """Three halves on a node of one GPU: the third waits until one of the others is done."""
    jobs = [TraceJob(str(place), 0.0, 0, 1000.0, milli_gpu=500, cpus=1, memory=1) for place in range(3)]
    made = Scenario(load_cluster("v100:1x1").nodes, Trace("halves", tuple(jobs)))
    run = simulate(made, policy, SimulationOptions(period=100.0))
    ends = sorted(job.end or 0.0 for job in run.jobs)
    assert ends[:2] == [1000.0, 1000.0]
    assert 2000.0 <= ends[2] <= 2100.0
    assert sum(job.service for job in run.jobs) == 1500.0
    assert run_metrics(run).gpu_utilization == pytest.approx(1500.0 / ends[2])


def test_jobs_that_fit_start_directly_three_seconds_after_they_come_and_rounds_with_nothing_to_do_are_left_out() -> (
    None
):
    made = world(job(0, 10.0, 450.0, gpus=4), job(1, 11.0, 450.0, gpus=4), job(2, 1000.0, 7200.0, gpus=8))
    run = simulate(made, parse_policy("synergy/fifo"), replace(EARLY, direct=True))
    assert [done.start for done in run.jobs] == [13.0, 13.0, 1003.0]
    assert run.rounds < simulate(made, parse_policy("synergy/fifo"), EARLY).rounds


def test_jobs_that_do_not_all_fit_are_decided_by_rounds_as_ever() -> None:
    made = world(job(0, 0.0, 5000.0), *(job(number, 100.0 * number, 900.0) for number in range(1, 5)))
    decided, direct = (
        simulate(made, parse_policy("synergy/srtf"), replace(EARLY, direct=each)) for each in (False, True)
    )
    assert [done.end for done in direct.jobs] == pytest.approx([done.end for done in decided.jobs], abs=60.0)
