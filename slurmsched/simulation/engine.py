"""A trace run through a policy: the rounds of the daemon over a virtual cluster, under a virtual clock.

Observing, deciding, planning and applying are the live code; only the cluster, the clock and the store's memory are
not. The same inputs give the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Final

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.simulated import (
    Cluster,
    Delays,
    JobSubmit,
    SimulatedBackend,
    Submission,
    VirtualClock,
    profiled_speed,
)
from slurmsched.daemon.applying import Applier
from slurmsched.model import Hold, JobId, JobState, Operation
from slurmsched.policies.systems import OWN_ORDER, PARTS, system
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Checkpoint, Guards, Manage, Mode, Rounds, Settings
from slurmsched.settings.definition import Policy as PolicySettings
from slurmsched.simulation.bookkeeping import Bookkeeping
from slurmsched.simulation.breaking import Breaking
from slurmsched.simulation.outcome import Course, outcome, sampled
from slurmsched.simulation.run import Run, Sample
from slurmsched.simulation.submitting import cut, impossible, submission
from slurmsched.simulation.world import ALONE, START, Options, Policy, SimulationError, World
from slurmsched.traces import TraceJob
from slurmsched.traces.clusters import PARTITION

__all__ = ["Engine", "simulate"]

_IN_VAIN: Final = 2000
"""Rounds in a row in which nothing runs and nothing happens, though jobs wait: then none of them ever will."""


def simulate(
    world: World,
    policy: Policy,
    options: Options | None = None,
    settings: Settings | None = None,
    *,
    on_round: Callable[[float], None] = lambda _done: None,
) -> Run:
    """Run the trace to its end, or to the end of the measured window. `settings` gives guards and settling where they
    are not the defaults; `on_round` is told the part of the measured jobs that have ended.

    Raises SimulationError, PolicyError.
    """
    return Engine(world, policy, options or Options(), settings).run(on_round)


def _as_submitted(submitted: Submission, _now: float) -> Submission:
    return submitted


class _Open:
    """Nobody pauses a simulation, and all is permitted."""

    def closed(self) -> str | None:
        return None

    def bars(self, _operation: Operation) -> str | None:
        return None


def settings_for(policy: Policy, options: Options, base: Settings | None = None) -> Settings:
    """The settings of a daemon that would do this: it manages everything, and acts."""
    own = base or Settings(guards=Guards(restart_cost=options.overhead), checkpoint=Checkpoint(lead=options.lead))
    return replace(
        own,
        rounds=replace(own.rounds if base else Rounds(), mode=Mode.ENFORCE, period=options.period),
        manage=Manage(partitions=(PARTITION,)),
        policy=PolicySettings(policy.system, policy.order, policy.las_queues),
    )


class Engine:
    """One simulation; `run` may be called once."""

    def __init__(self, world: World, policy: Policy, options: Options, settings: Settings | None = None) -> None:
        if any(job.milli_gpu for job in world.trace.jobs):
            world = replace(world, nodes=cut(world.nodes))
        self.world, self.policy, self.options = world, policy, options
        self.settings = settings_for(policy, options, settings)
        self.jobs = self._possible()
        self.alone = policy.system == ALONE
        delays = Delays(
            restart=options.overhead,
            completing=options.completing,
            remember=0.0,
            quantum=options.period if options.quantised else 0.0,
            origin=START,
        )
        hook = JobSubmit(self.settings.manage, fresh=lambda _now: True, parts=policy.system in PARTS)
        speed = profiled_speed(world.knowledge, world.nodes)
        self.cluster = Cluster(
            world.nodes, start=START, speed=speed, delays=delays, hook=_as_submitted if self.alone else hook
        )
        self.ids: dict[JobId, int] = {}
        for place, job in enumerate(self.jobs):
            number = self.cluster.submit(submission(job, world.nodes, options), START + job.arrival)
            self.ids[number] = place
        self.clock = VirtualClock(START)
        self.backend = SimulatedBackend(self.cluster, self.clock, Identity("slurm", Privilege.SLURM_USER))
        self.books = Bookkeeping()
        self.applier = Applier(self.backend, self.books, _Open(), self.clock, self.settings.rounds)
        self.system = system(policy.system, policy.order, policy.las_queues)
        self.breaking = Breaking(world.nodes, options, START)
        self.rounds = 0
        self.decisions: list[float] = []
        self.samples: list[Sample] = []
        self._rest: int | None = None

    def run(self, on_round: Callable[[float], None]) -> Run:
        """Raises SimulationError where jobs wait for what never comes."""
        began, cpu = time.perf_counter(), time.process_time()
        first, beyond = self.options.window or (0, len(self.jobs))
        awaited = {number for number, place in self.ids.items() if first <= place < beyond}
        in_vain, seen = 0, -1
        last = inf if self.options.until is None else START + self.options.until
        while awaited - self.cluster.life.ended.keys() and self.clock.now() < last:
            due = min(self.clock.now() + self.options.period, last)
            self.breaking.enter(self.cluster.agenda, due)
            if self.alone:
                self.cluster.advance(self.clock.now())
            elif self._worth_a_round():
                self._round()
            self.samples.append(sampled(self.cluster, self.clock.now() - START))
            in_vain = 0 if self.cluster.changes != seen or self.samples[-1].running else in_vain + 1
            seen = self.cluster.changes
            if in_vain > _IN_VAIN or (self.cluster.agenda.next_time is None and not self._anything_moves()):
                raise SimulationError(self._stuck())
            self.clock.advance_to(max(self.clock.now(), due))
            self.cluster.advance(self.clock.now())
            on_round(sum(job in self.cluster.life.ended for job in awaited) / len(awaited))
        jobs = {number: self.jobs[place] for number, place in self.ids.items()}
        course = Course(self.world, self.policy, self.options, self.cluster, jobs, self.samples, self.decisions)
        return outcome(course, time.perf_counter() - began, time.process_time() - cpu)

    def _worth_a_round(self) -> bool:
        """Whether a round could change anything.

        Not, when nothing has happened since one that changed nothing, and either nobody waits, or no GPU is idle and
        the order is one in which nobody is displaced for a newcomer, however long it waits.
        """
        self.cluster.advance(self.clock.now())
        if not self.options.skipping or self._rest != self.cluster.changes:
            return True
        waiting = any(job.state is JobState.PENDING for job in self.cluster.jobs.values())
        full = all(not machine.idle for machine in self.cluster.machines.values())
        first_come = self.policy.order == "fifo" and self.policy.system not in OWN_ORDER
        return waiting and not (full and first_come)

    def _round(self) -> None:
        snapshot = self.backend.observe()
        self.books.sight(snapshot)
        memory = self.books.memory(snapshot)
        start = time.perf_counter()
        result = run_round(
            snapshot,
            memory,
            self.settings,
            self.world.knowledge,
            self.backend.identity(),
            deciding=self.system,
        )
        self.decisions.append(time.perf_counter() - start)
        self.books.policy_state = result.decision.state
        self.rounds += 1
        if not result.plan.operations:
            self._rest = self.cluster.changes
            return
        applied = self.applier.apply(self.rounds, result.plan, snapshot)
        self.books.sight(applied.snapshot)
        self._rest = None

    def _possible(self) -> tuple[TraceJob, ...]:
        """The jobs that could run here, in order of arrival. Raises SimulationError."""
        possible: list[TraceJob] = []
        for job in sorted(self.world.trace.jobs, key=lambda job: job.arrival):
            why = impossible(job, self.world.nodes)
            if not why:
                possible.append(job)
            elif not self.options.skip_impossible:
                raise SimulationError(f"job {job.id} can never run here: {why}; --skip-impossible leaves such jobs out")
        if not possible:
            raise SimulationError("there is no job that could run on this cluster")
        first, beyond = self.options.window or (0, len(possible))
        if not 0 <= first < beyond <= len(possible):
            raise SimulationError(f"window {first}:{beyond}: expected a part of the {len(possible)} jobs there are")
        return tuple(possible)

    def _anything_moves(self) -> bool:
        return self._rest is None or any(job.state is not JobState.PENDING for job in self.cluster.jobs.values())

    def _stuck(self) -> str:
        waiting = [job for job in self.cluster.jobs.values() if job.state is JobState.PENDING]
        named = self.jobs[self.ids[waiting[0].id]].id if waiting else "none"
        held = " (held)" if waiting and waiting[0].hold is not Hold.NONE else ""
        return (
            f"{len(waiting)} jobs wait for what never comes, the first is {named}{held}: try another cluster or policy"
        )
