"""The simulation engine: runs a trace through a policy, with the daemon's rounds on a virtual cluster and clock.

Observing, deciding, planning and applying are the daemon's code; only the cluster, the clock and the state store are
simulated. The same inputs give the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, inf, nextafter
from typing import Final

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.simulated import (
    Delays,
    JobSubmitHook,
    SimulatedBackend,
    Submission,
    VirtualClock,
    VirtualCluster,
    profiled_speed,
)
from slurmsched.daemon.cleanup import stray_release_plan
from slurmsched.daemon.dispatch_files import DISPATCH_PERIODS, make_dispatches
from slurmsched.daemon.execution import Applier
from slurmsched.daemon.loop import PROBE_INTERVAL
from slurmsched.jobside.report import Report
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.lengths import JobLengths
from slurmsched.knowledge.usage import UseHistory
from slurmsched.model import AccountedRun, Block, Hold, JobId, JobState, Operation, SchedulerState, Snapshot
from slurmsched.model.reasons import pluralise
from slurmsched.policies.finish.restart import longer_run_from
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.policies import configured_policy, order_read, schedules_shards
from slurmsched.policies.stages import Policy
from slurmsched.rounds.guards import preemptible_times
from slurmsched.rounds.refusals import refused_starts
from slurmsched.rounds.round import RoundResult, run_round
from slurmsched.settings.definition import (
    CheckpointSettings,
    GuardSettings,
    ManageSettings,
    Mode,
    RoundSettings,
    Settings,
)
from slurmsched.simulation.failures import NodeFailures
from slurmsched.simulation.inputs import (
    CLOCK_START,
    DIRECT_START,
    PLAIN_SLURM,
    PolicyChoice,
    Scenario,
    SimulationError,
    SimulationOptions,
)
from slurmsched.simulation.results import (
    ClusterSample,
    FinishedSimulation,
    SimulationResult,
    collect_result,
    take_sample,
)
from slurmsched.simulation.state_store import InMemoryStateStore
from slurmsched.simulation.submissions import build_submission, impossible_reasons, with_shards
from slurmsched.traces import TraceJob
from slurmsched.traces.clusters import SPEC_PARTITION

LEFT_OUT_ROUNDS: Final = 6.0
"""Periods after which a full round is not left out: what users are due is counted over no more than 8."""

_MAX_IDLE_ROUNDS: Final = 2000
"""Rounds in a row without a running job or an event after which waiting jobs count as stuck, and rounds of an empty
cluster are left out."""


def simulate(
    scenario: Scenario,
    choice: PolicyChoice,
    options: SimulationOptions | None = None,
    settings: Settings | None = None,
    *,
    policy: Policy | None = None,
    on_round: Callable[[float], None] = lambda _done: None,
) -> SimulationResult:
    """Runs the trace until all jobs, or those of the measured window, have ended.

    `settings` replaces the default guards and round settings. `policy` decides instead of the one that `choice` names,
    and guards treat it as that one. `on_round` is called with the fraction of the measured jobs that have ended. Raises
    SimulationError, PolicyError.
    """
    return SimulationEngine(scenario, choice, options or SimulationOptions(), settings, policy=policy).run(on_round)


def _unchanged(submission: Submission, _now: float) -> Submission:
    return submission


class _AlwaysOpen:
    """The gate of a simulation, which is never paused and blocks no operation."""

    def closed_reason(self) -> Block | None:
        return None

    def block_reason(self, _operation: Operation) -> Block | None:
        return None


def settings_for(choice: PolicyChoice, options: SimulationOptions, base: Settings | None = None) -> Settings:
    """The settings of the simulated daemon: it manages all jobs and enforces its plans."""
    settings = base or Settings(
        guards=GuardSettings(restart_cost=options.overhead), checkpoint=CheckpointSettings(lead=options.lead)
    )
    policy = replace(settings.policy, system=choice.system, order=choice.order, las_queues=tuple(choice.las_queues))
    return replace(
        settings,
        rounds=replace(settings.rounds if base else RoundSettings(), mode=Mode.ENFORCE, period=options.period),
        manage=ManageSettings(partitions=(SPEC_PARTITION,)),
        policy=policy if choice.evenness is None else replace(policy, evenness=choice.evenness),
    )


class SimulatedDaemon:
    """The daemon's rounds on a cluster and a clock that are ready, from where these are; all its jobs and the journal
    are those of `store`. With `plain` there are none: Slurm alone schedules."""

    def __init__(
        self,
        cluster: VirtualCluster,
        clock: VirtualClock,
        store: InMemoryStateStore,
        *,
        settings: Settings,
        knowledge: Knowledge,
        options: SimulationOptions,
        plain: bool = False,
        on_full_round: Callable[[], None] = lambda: None,
        accounting: Callable[[AccountedRun], AccountedRun] | None = None,
        reports: Callable[[VirtualCluster], Mapping[JobId, Report]] = VirtualCluster.reports,
        policy: Policy | None = None,
    ) -> None:
        self.cluster, self.clock, self.store = cluster, clock, store
        self.settings, self.knowledge, self.options, self.plain = settings, knowledge, options, plain
        self.backend = SimulatedBackend(cluster, clock, Identity("slurm", Privilege.SLURM_USER))
        self.applier = Applier(self.backend, store, _AlwaysOpen(), clock, settings.rounds)
        self.policy = policy or configured_policy(settings.policy)
        self.rounds = 0
        self.decisions: list[float] = []
        self._on_full_round, self._accounting, self._reports = on_full_round, accounting, reports
        self._learnt_until = clock.now()
        self._quiet_at: int | None = None
        """What had happened on the cluster before the last full round, if that had no operations and nothing has been
        done since."""
        self._quiet_until = inf
        """When a running job may first be moved, by the guards that it saw."""
        self._full_round_at = -inf
        self._seen_before = -1
        """What had happened on the cluster when the last round began."""

    def run_due_round(self) -> None:
        """Runs a full round, unless it could change nothing."""
        if self.plain:
            self.cluster.advance(self.clock.now())
        elif not self._may_leave_out_round() and self._needs_round():
            self._full_round_at = self.clock.now()
            self._run_round()

    def _may_leave_out_round(self) -> bool:
        """Whether no job waits and there was a full round lately; only with `direct`."""
        if not self.options.direct:
            return False
        self.cluster.advance(self.clock.now())
        if self.clock.now() - self._full_round_at > LEFT_OUT_ROUNDS * self.options.period:
            return False
        self.cluster.start_all_waiting()
        return not self.cluster.waiting

    def advance(self, until: float, end: float) -> None:
        """Moves the time to the next full round, with the early rounds before it as the daemon has them.

        They follow what happens, `options.early` seconds apart; without that option only the end of a forked job, once
        its nodes are free. An early round may become the next full one.
        """
        earliest, wake_at, seen = self.clock.now() + self.options.early, inf, self._seen_before
        while not self.plain and (self.options.early or self.cluster.lifecycle.forked):
            if self._happened() == seen:
                soonest = min(self.cluster.events.next_time or inf, wake_at)
                if soonest >= until:
                    break
                self._advance_to(soonest)
                if self._happened() == seen and self.clock.now() < wake_at:
                    continue
            if self.options.direct and self._starts_directly(until):
                seen = self._happened()
                continue
            due = self._next_look(earliest, wake_at)
            if due >= until:
                break
            self._advance_to(due)
            seen, began = self._happened(), self.clock.now()
            if not self.options.skipping or self._may_start():
                result = self._run_round(starts_only=True)
                wake_at = result.decision.full_round_at if result.starts_only else inf
                if not result.starts_only:
                    until = min(began + self.options.period, end)
                    self._on_full_round()
            earliest = self.clock.now() + self.options.early
        self._advance_to(until)

    def _starts_directly(self, until: float) -> bool:
        """Whether all jobs that wait fitted, and were started; if not, time has hardly passed."""
        if not self.cluster.waiting:
            return True
        self._advance_to(min(self.clock.now() + DIRECT_START, until))
        return self.cluster.start_all_waiting()

    @property
    def is_quiet(self) -> bool:
        """Whether the last full round had no operations, and nothing has been done since."""
        return self._quiet_at is not None

    def is_active(self) -> bool:
        """Whether something may happen without an event: a job runs, or a round may do something."""
        return self._quiet_at is None or any(job.state is not JobState.PENDING for job in self.cluster.jobs.values())

    def _needs_round(self) -> bool:
        """Whether a round could change anything.

        False if nothing has happened since a full round without operations, guards still protect every running job that
        might be better elsewhere, and either no job is pending, or no GPU is idle and the order never preempts a job
        for a pending one (fifo). Copies of a forked job need each round: it divides their steps by what they have
        measured.
        """
        self.cluster.advance(self.clock.now())
        forked = self.cluster.lifecycle.forked and any(job.array_job for job in self.cluster.jobs.values())
        if not self.options.skipping or self._quiet_at != self.cluster.changes or forked:
            return True
        if self.clock.now() >= self._quiet_until:
            return True
        waiting = bool(self.cluster.waiting)
        is_fifo = order_read(self.settings.policy.system, self.settings.policy.order) == "fifo"
        return waiting and (self._may_start() or not is_fifo)

    def _advance_to(self, time: float) -> None:
        self.clock.advance_to(max(self.clock.now(), time))
        self.cluster.advance(self.clock.now())

    def _happened(self) -> int:
        """How often something has happened that an early round follows; our own changes count too, as they do in
        Slurm."""
        if not self.options.early:
            return len(self.cluster.lifecycle.ended_forked)
        return self.cluster.changes + self.backend.calls.writes

    def _next_look(self, earliest: float, wake_at: float) -> float:
        """When the daemon sees what has happened: it looks at intervals, from `earliest` on."""
        now = self.clock.now()
        if not self.options.early:
            return now if now >= wake_at else now + self.options.completing
        return earliest + PROBE_INTERVAL * max(0, ceil((now - earliest) / PROBE_INTERVAL))

    def _may_start(self) -> bool:
        """Whether jobs wait and there may be room for them; on a GPU of which a part is taken there may be, and for one
        without GPUs. Copies of a forked job are given other steps without a start."""
        waiting = self.cluster.waiting
        idle = any(node.idle_gpus or node.used_shards for node in self.cluster.nodes.values())
        room = idle or any(not (job.current_request.gpus or job.current_request.shards) for job in waiting)
        return (room and bool(waiting)) or bool(self.cluster.lifecycle.forked)

    def _run_round(self, *, starts_only: bool = False) -> RoundResult:
        self._seen_before = self._happened()
        snapshot, state = self._observe()
        if state.let_go:  # as the daemon gives them back to Slurm
            strays = stray_release_plan(snapshot, state, snapshot.jobs_by_id.keys() - state.let_go, Mode.ENFORCE)
            if strays.operations and self.applier.apply_without_waiting(self.rounds, strays, snapshot).changed:
                snapshot, state = self._observe()
        start = time.perf_counter()
        result = run_round(
            snapshot,
            state,
            self.settings,
            self.knowledge,
            self.backend.identity(),
            policy_override=self.policy,
            starts_only=starts_only,
        )
        self.decisions.append(time.perf_counter() - start)
        self.store.policy_state = result.decision.state
        self.rounds += 1
        if not result.starts_only:
            self._quiet_at, self._quiet_until = self.cluster.changes, self._movable_from(result)
        if result.plan.operations:
            applied = self.applier.apply(self.rounds, result.plan, snapshot)
            snapshot, known = applied.snapshot, self.store.refused_starts()
            self.store.record_refusals(refused_starts(applied.outcomes, result.snapshot, known, snapshot.time))
            self.store.record_poll(snapshot)
            self._quiet_at = None
        if result.starts_only:
            return result
        now = self.clock.now()
        until = now + DISPATCH_PERIODS * self.options.period
        self.cluster.dispatch(make_dispatches(result.decision.targets.values(), snapshot, round(now * 1000), until))
        return result

    def _movable_from(self, result: RoundResult) -> float:
        """When a round may first move a running job that this one without operations did not, in unix seconds."""
        situation, policy = result.situation, self.policy
        if isinstance(policy, Pipeline) and policy.only_starts:
            return inf
        times = preemptible_times(situation)
        waiting = any(job.state is JobState.PENDING for job in result.snapshot.jobs)
        if isinstance(policy, Pipeline) and policy.only_resizes and not waiting:
            decided = [job for job in situation.jobs if job.id in times and job.id not in situation.non_preemptible]
            times |= {job.id: longer_run_from(situation, job) for job in decided}
        return min(times.values(), default=inf)

    def _observe(self) -> tuple[Snapshot, SchedulerState]:
        snapshot = self.backend.observe()
        if self.store.learns and snapshot.time > self._learnt_until:
            for run in self.backend.finished_runs(nextafter(self._learnt_until, inf), snapshot.time).runs:
                self.store.ended(self._accounting(run) if self._accounting else run)
            self._learnt_until = snapshot.time
        if unknown := self.store.unknown_origins(snapshot.jobs_by_id):
            self.store.record_origins(self.backend.origins(unknown))
        self.store.record_poll(snapshot)
        self.store.record_reports(self._reports(self.cluster), snapshot)
        return snapshot, self.store.load_state(snapshot)


class SimulationEngine:
    """One simulation; `run` may be called once."""

    def __init__(
        self,
        scenario: Scenario,
        choice: PolicyChoice,
        options: SimulationOptions,
        settings: Settings | None = None,
        *,
        policy: Policy | None = None,
    ) -> None:
        if any(job.milli_gpu for job in scenario.trace.jobs):
            scenario = replace(scenario, nodes=with_shards(scenario.nodes))
        if not options.forking:
            jobs = tuple(replace(job, fork=0) for job in scenario.trace.jobs)
            scenario = replace(scenario, trace=replace(scenario.trace, jobs=jobs))
        if scenario.real is None:
            known = scenario.knowledge.simulated()
            scenario = replace(scenario, knowledge=known, real=known)
        self.scenario, self.choice, self.options = scenario, choice, options
        self.settings = settings_for(choice, options, settings)
        self.jobs = self._runnable_jobs()
        self.slurm_only = choice.system == PLAIN_SLURM
        delays = Delays(
            launch=self.options.launch,
            restart=options.overhead,
            completing=options.completing,
            min_job_age=0.0,
            quantum=options.period if options.quantised else 0.0,
            origin=CLOCK_START,
            exchange=options.exchange,
        )
        hook = JobSubmitHook(
            self.settings.manage,
            is_heartbeat_fresh=lambda _now: True,
            parts=schedules_shards(choice.system, self.settings.policy.parts),
        )
        speed = profiled_speed(scenario.real or scenario.knowledge, scenario.nodes)
        self.cluster = VirtualCluster(
            scenario.nodes, start=CLOCK_START, speed=speed, delays=delays, hook=_unchanged if self.slurm_only else hook
        )
        self.index_of: dict[JobId, int] = {}
        for index, job in enumerate(self.jobs):
            submission = scenario.submissions.get(job.id) or build_submission(
                job, scenario.nodes, options, scenario.knowledge
            )
            self.index_of[self.cluster.submit(submission, CLOCK_START + job.arrival, tasks=job.fork)] = index
        self.clock = VirtualClock(CLOCK_START)
        learning = self.settings.learning
        self.store = InMemoryStateStore(
            lengths=JobLengths() if learning.knows_lengths else None,
            use=UseHistory() if learning.accounting and scenario.accounting else None,
        )
        for run in scenario.earlier:
            self.store.ended(run)
        self.daemon = SimulatedDaemon(
            self.cluster,
            self.clock,
            self.store,
            settings=self.settings,
            knowledge=scenario.knowledge,
            options=options,
            plain=self.slurm_only,
            on_full_round=self._sample,
            accounting=scenario.accounting,
            reports=scenario.reports,
            policy=policy,
        )
        self.failures = NodeFailures(scenario.nodes, options, CLOCK_START)
        self.samples: list[ClusterSample] = []

    @property
    def rounds(self) -> int:
        return self.daemon.rounds

    @property
    def decisions(self) -> Sequence[float]:
        """The seconds that each round took to decide."""
        return self.daemon.decisions

    def run(self, on_round: Callable[[float], None]) -> SimulationResult:
        """Runs the simulation. Raises SimulationError if waiting jobs can never start."""
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        first, stop = self.options.window or (0, len(self.jobs))
        measured = {number for number, index in self.index_of.items() if first <= index < stop}
        idle_rounds, changes_seen = 0, -1
        end = inf if self.options.until is None else CLOCK_START + self.options.until
        while self._unfinished(measured) and self.clock.now() < end:
            next_round = min(self._next_round(idle_rounds), end)
            self.failures.schedule(self.cluster.events, next_round)
            self.daemon.run_due_round()
            self._sample()
            idle_rounds = 0 if self.cluster.changes != changes_seen or self.samples[-1].running else idle_rounds + 1
            changes_seen = self.cluster.changes
            if (idle_rounds > _MAX_IDLE_ROUNDS and self.cluster.waiting) or (
                self.cluster.events.next_time is None and not self.daemon.is_active()
            ):
                raise SimulationError(self._stuck_message())
            self.daemon.advance(next_round, end)
            on_round(1 - len(self._unfinished(measured)) / len(measured))
        jobs = {number: self.jobs[index] for number, index in self.index_of.items()}
        finished = FinishedSimulation(
            self.scenario, self.choice, self.options, self.cluster, jobs, self.samples, self.decisions
        )
        return collect_result(finished, time.perf_counter() - wall_start, time.process_time() - cpu_start)

    def _next_round(self, idle_rounds: int) -> float:
        """Returns when the next full round is, in unix seconds. After many rounds on an empty cluster those before the
        next event are left out: a trace may have weeks without a job."""
        now, period = self.clock.now(), self.options.period
        event = self.cluster.events.next_time
        if idle_rounds <= _MAX_IDLE_ROUNDS or event is None or self.cluster.waiting:
            return now + period
        return now + period * max(1.0, floor((event - now) / period))

    def _sample(self) -> None:
        self.samples.append(take_sample(self.cluster, self.clock.now() - CLOCK_START))

    def _unfinished(self, measured: set[JobId]) -> set[JobId]:
        lifecycle = self.cluster.lifecycle
        return measured - lifecycle.ended.keys() - lifecycle.ended_forked.keys()

    def _runnable_jobs(self) -> tuple[TraceJob, ...]:
        """The jobs that could run on this cluster, by arrival. Raises SimulationError."""
        possible: list[TraceJob] = []
        jobs = sorted(self.scenario.trace.jobs, key=lambda job: job.arrival)
        for job, reason in zip(jobs, impossible_reasons(jobs, self.scenario.nodes), strict=True):
            if not reason:
                possible.append(job)
            elif not self.options.skip_impossible:
                raise SimulationError(
                    f"job {job.id} can never run here: {reason}; --skip-impossible leaves such jobs out"
                )
        if not possible:
            raise SimulationError("no job of the trace could run on this cluster")
        first, stop = self.options.window or (0, len(possible))
        if not 0 <= first < stop <= len(possible):
            raise SimulationError(
                f"window {first}:{stop}: expected a range within 0:{len(possible)}, the number of jobs"
            )
        return tuple(possible)

    def _stuck_message(self) -> str:
        waiting = self.cluster.waiting
        named = self.jobs[self.index_of[waiting[0].array_job or waiting[0].id]].id if waiting else "none"
        held = " (held)" if waiting and waiting[0].hold is not Hold.NONE else ""
        verb = "waits" if len(waiting) == 1 else "wait"
        return (
            f"{pluralise(len(waiting), 'job')} {verb} and can never start, first job {named}{held}:"
            " try another cluster or policy"
        )
