"""The replay kernel: the one loop that runs jobs to their end, round by round, under anything that decides rounds.

What decides is a `Decider`: a policy of the daemon (`simulation.live_policy`), or an experiment's own reading of a
paper. What a round costs and when it ends are `RoundSemantics`, since papers differ in that. Arrivals are seen in the
next round. Equal inputs give equal results.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from slurmsched.model.reasons import pluralise
from slurmsched.simulation.replay import (
    ActiveJob,
    Decider,
    GpuWorkers,
    Grant,
    GrantOutcome,
    ReplayError,
    ReplayJob,
    ReplayResult,
    RoundInput,
    RoundRecord,
    RoundSemantics,
    gang_rate,
)
from slurmsched.simulation.results import JobResult

WORK_EPSILON: Final = 1e-6
"""Steps that count as none where steps may be divided."""

_ROUNDING: Final = 1e-9
_MAX_IDLE_ROUNDS: Final = 200
"""Consecutive rounds without a step, while jobs wait and none will arrive, after which the replay fails."""

WorkerFailure = Callable[[int, int], float]
"""Returns when a worker fails in a round, given the numbers of both, in seconds from the round's start."""


def replay(
    jobs: Iterable[ReplayJob],
    workers: GpuWorkers,
    decider: Decider,
    semantics: RoundSemantics,
    *,
    window: tuple[int, int] | None = None,
    same_until_change: bool = False,
    failure_time: WorkerFailure | None = None,
) -> ReplayResult:
    """Run all jobs, or those of the window by arrival, to their end.

    `same_until_change`: the decider grants the same until a job arrives or ends, so that rounds may be skipped; only
    where changes are for nothing. Raises ReplayError.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    by_arrival = tuple(sorted(jobs, key=lambda job: job.arrival))
    if repeated := [job for job, count in Counter(job.id for job in by_arrival).items() if count > 1]:
        raise ReplayError(f"there are several jobs {repeated[0]}: give each an id of its own")
    loop = _Replay(by_arrival, workers, decider, semantics, failure_time)
    loop.run({job.id for job in by_arrival[slice(*(window or (None,)))]}, skips=same_until_change)
    return ReplayResult(
        policy=decider.name,
        order="",
        trace="replay",
        seed=0,
        jobs=tuple(_job_result(loop.states[job.id], loop.end_times.get(job.id)) for job in by_arrival),
        samples=(),
        total_gpus=float(len(workers)),
        total_cpus=0.0,
        total_memory=0.0,
        rounds=loop.rounds,
        decisions=tuple(loop.decisions),
        wall_s=time.perf_counter() - wall,
        cpu_s=time.process_time() - cpu,
        window=window,
        records=tuple(loop.records),
        gpus_by_type=workers.gpus_by_type,
    )


def _job_result(state: ActiveJob, end: float | None) -> JobResult:
    job = state.spec
    work = job.work or (job.steps / max(job.rates.values()) if job.rates else job.steps)
    return JobResult(
        job=job.id,
        arrival=job.arrival,
        work=work,
        gpus=float(job.gpus),
        model=job.model,
        start=state.start,
        end=end,
        state="UNFINISHED" if end is None else "COMPLETED",
        service=state.attained_service,
        useful=work * job.gpus if end is not None else work * job.gpus * state.steps_done / job.steps,
        restarts=state.restarts,
        migrations=state.migrations,
    )


@dataclass(slots=True)
class _Share:
    """One job of one grant in a round: its steps, busy seconds, and when all the work it was given would be done."""

    grant: int
    job: str
    steps: float
    busy: float
    end: float


class _Replay:
    """The state between two rounds."""

    def __init__(
        self,
        by_arrival: Sequence[ReplayJob],
        workers: GpuWorkers,
        decider: Decider,
        semantics: RoundSemantics,
        failure_time: WorkerFailure | None,
    ) -> None:
        self.workers, self.decider, self.semantics, self.failure_time = workers, decider, semantics, failure_time
        self.arrivals = list(reversed(by_arrival))
        self.states = {job.id: ActiveJob(job, job.steps) for job in by_arrival}
        self.active: dict[str, ActiveJob] = {}
        self.end_times: dict[str, float] = {}
        self.previous: tuple[GrantOutcome, ...] = ()
        self.records: list[RoundRecord] = []
        self.decisions: list[float] = []
        self.rounds = 0
        self.cut = inf
        """When the round under way ends before its period, in seconds from when its work begins; else infinity."""
        self.now = semantics.first_round

    def run(self, measured: set[str], *, skips: bool) -> None:
        """Run rounds until the measured jobs have ended."""
        idle_rounds = 0
        while measured:
            while self.arrivals and self.arrivals[-1].arrival <= self.now:
                job = self.arrivals.pop().id
                self.active[job] = self.states[job]
            if not self.active:
                self.now = self._next_round(self.arrivals[-1].arrival)
                continue
            round_input = RoundInput(self.rounds, self.now, self.semantics, self.active, self.workers, self.previous)
            began = time.perf_counter()
            grants = self.decider.decide(round_input)
            self.decisions.append(time.perf_counter() - began)
            _check_grants(round_input, grants, self.decider.name)
            count = self._equal_rounds(grants) if skips else 1
            shares = self._serve(grants, count)
            idle_rounds = 0 if self.arrivals or any(share.steps for share in shares) else idle_rounds + 1
            if idle_rounds > (0 if skips else _MAX_IDLE_ROUNDS):
                raise ReplayError(self._stuck_message(grants))
            measured -= self._close_round(round_input, grants, shares, count)

    def _next_round(self, arrival: float) -> float:
        """Return when the first round after an arrival on an empty cluster begins."""
        period = self.semantics.period
        if self.semantics.ends_with_busiest:
            return max(self.now, arrival)
        return self.now + period * max(1, ceil((arrival - self.now) / period))

    def _stuck_message(self, grants: Sequence[Grant]) -> str:
        if grants:
            return f"job {grants[0].jobs[0]} never ends: a step of it takes longer than a round"
        others = pluralise(len(self.active) - 1, "other job")
        return f"{self.decider.name} never runs job {next(iter(self.active))} and {others}"

    def _equal_rounds(self, grants: Sequence[Grant]) -> int:
        """Return the number of rounds until a job arrives or ends."""
        if self.semantics.restart_seconds or self.semantics.exchange_seconds:
            return 1
        period, rounds = self.semantics.period, list[int]()
        for grant in grants:
            rates = grant.rates or self._rates(grant)
            for at, job in enumerate(grant.jobs):
                each = self._steps_in(grant, at, rates[at], period)
                if each:
                    rounds.append(ceil(self.active[job].remaining / each - _ROUNDING))
        if self.arrivals:
            rounds.append(ceil((self.arrivals[-1].arrival - self.now) / period))
        return max(1, min(rounds, default=1))

    def _rates(self, grant: Grant) -> tuple[float, ...]:
        """Return the rates of a grant that names none."""
        types, specs = self.workers.types_of(grant.workers), [self.active[job].spec for job in grant.jobs]
        partners = (None,) if len(specs) == 1 else reversed(specs)
        return tuple(gang_rate(spec, types, partner) for spec, partner in zip(specs, partners, strict=True))

    def _steps_in(self, grant: Grant, at: int, rate: float, seconds: float) -> float:
        """Return the most steps of one job of the grant in so many seconds of a round."""
        if not self.semantics.whole_steps:
            return rate * seconds
        # Steps that were given come from a division of the same numbers, which may be the next whole number.
        return min(grant.steps[at], int(rate * seconds + _ROUNDING)) if grant.steps else int(rate * seconds)

    def _serve(self, grants: Sequence[Grant], count: int) -> list[_Share]:
        """Return what each job of each grant does in `count` equal rounds."""
        semantics = self.semantics
        before = {outcome.grant for outcome in self.previous} if any(grant.moved is None for grant in grants) else ()
        serve = self._serve_whole_steps if semantics.whole_steps else self._serve_divided
        slots, delays = list[float](), list[list[float]]()
        for grant in grants:
            slot = semantics.period - semantics.exchange_seconds
            if self.failure_time is not None and grant.workers:
                fails = min(self.failure_time(self.rounds, worker) for worker in grant.workers)
                slot = max(0.0, min(slot, fails - semantics.exchange_seconds))
            slots.append(slot)
            delays.append([self._restart_seconds(job, grant, before, slot) for job in grant.jobs])

        def served(until: float) -> list[_Share]:
            rows = enumerate(zip(grants, delays, slots, strict=True))
            return [
                share
                for index, (grant, delay, slot) in rows
                for share in serve(index, grant, delay, min(slot, until), count)
            ]

        shares, self.cut = served(inf), inf
        if semantics.ends_with_copies and count == 1:
            self.cut = max(self._first_end_of_copies(grants, shares), semantics.restart_seconds)
            if self.cut < inf:
                shares = served(self.cut)
        return shares

    def _first_end_of_copies(self, grants: Sequence[Grant], shares: Sequence[_Share]) -> float:
        """Return when the first job ends that runs as copies, in seconds from when the work begins."""
        steps, ends = defaultdict[str, float](float), defaultdict[str, float](float)
        for share in shares:
            if grants[share.grant].steps:
                steps[share.job] += share.steps
                ends[share.job] = max(ends[share.job], share.end)
        return min((ends[job] for job, done in steps.items() if done >= self.active[job].remaining), default=inf)

    def _restart_seconds(self, job: str, grant: Grant, before: Collection[Grant], slot: float) -> float:
        """Return the seconds that a job loses by a start or a move, which is counted."""
        state = self.active[job]
        restarts = grant not in before if grant.moved is None else not state.runs or job in grant.moved
        # Copies of one job start one by one; only what it was put on again after it had run is a restart of a job.
        state.restarts += restarts and state.start is not None and not grant.steps
        state.migrations += restarts and state.runs and not grant.steps
        if state.start is None:
            state.start = self.now
        return min(self.semantics.restart_seconds, slot) if restarts else 0.0

    def _serve_whole_steps(
        self, index: int, grant: Grant, delays: Sequence[float], slot: float, count: int
    ) -> Iterator[_Share]:
        for at, (job, delay, rate) in enumerate(
            zip(grant.jobs, delays, grant.rates or self._rates(grant), strict=True)
        ):
            most = self._steps_in(grant, at, rate, slot - delay) * count
            remaining = self.active[job].remaining
            if grant.steps:
                # A copy that is not through with its steps works until the round ends.
                steps, given = min(most, remaining), min(grant.steps[at] * count, remaining)
                end = delay + steps / rate if rate and steps == given else slot * count
                busy = end
            elif most >= remaining:
                steps, end = remaining, (remaining + rate * delay) / rate
                busy = min(delay + most / rate, end)
            else:
                steps, end = most, inf
                busy = delay + (most / rate if rate else 0.0)
            yield _Share(index, job, steps, busy, end)

    def _serve_divided(
        self, index: int, grant: Grant, delays: Sequence[float], slot: float, count: int
    ) -> Iterator[_Share]:
        rates, slot = grant.rates or self._rates(grant), slot * count
        alone = grant.rates_alone or rates
        remaining = [self.active[job].remaining for job in grant.jobs]
        ends = [
            delay + left / rate if rate else inf for delay, left, rate in zip(delays, remaining, rates, strict=True)
        ]
        for at, (job, delay, left) in enumerate(zip(grant.jobs, delays, remaining, strict=True)):
            partners = ends[:at] + ends[at + 1 :] if self.semantics.partner_speeds_up else ()
            # Only the first of a pair to end does so at the shared rate; the other has the GPUs to itself from then on.
            alone_from, end = min((*partners, slot)), ends[at]
            shared = max(alone_from - delay, 0.0) * rates[at]
            if end > alone_from:
                end = max(alone_from, delay) + (left - shared) / alone[at] if alone[at] else inf
            most = shared + max(slot - max(alone_from, delay), 0.0) * alone[at]
            ended = left <= most + WORK_EPSILON
            end = min(end, slot) if ended else slot
            yield _Share(index, job, left if ended else most, end, end)

    def _close_round(
        self, round_input: RoundInput, grants: Sequence[Grant], shares: Sequence[_Share], count: int
    ) -> set[str]:
        """Add the shares to the jobs, record the round, and return the jobs that have ended."""
        semantics, span = self.semantics, self.semantics.period * count
        for state in (self.states[job] for outcome in self.previous for job in outcome.grant.jobs):
            state.runs, state.workers = False, ()
        busy, steps = [0.0] * len(grants), list[tuple[float, ...]]([()] * len(grants))
        types = round_input.workers.gpu_types
        finished_after = dict[str, float]()
        for share in shares:
            job, at = share.job, share.grant
            seconds, end = (share.busy, share.end) if semantics.ends_within_round else (span, span)
            busy[at] = max(busy[at], seconds)
            steps[at] = (*steps[at], share.steps)
            state, workers = self.active[job], grants[at].workers
            state.remaining -= share.steps
            service, kind = seconds * (len(workers) or state.spec.gpus), types[workers[0]] if workers else ""
            state.attained_service += service
            state.service_by_type[kind] = state.service_by_type.get(kind, 0.0) + service
            state.runs = True
            if workers:
                state.workers = tuple(sorted((*state.workers, *workers)))
            finished_after[job] = max(finished_after[job], end) if job in finished_after else end
        ended = {job: after for job, after in finished_after.items() if self.active[job].remaining <= 0}
        is_cut = semantics.ends_with_busiest or (not self.arrivals and len(ended) == len(self.active))
        length = semantics.exchange_seconds + max(busy) if is_cut and busy else span
        length = min(length, semantics.exchange_seconds + self.cut)
        outcomes = tuple(
            GrantOutcome(grant, busy[at], tuple(filter(ended.__contains__, grant.jobs)) if ended else (), steps[at])
            for at, grant in enumerate(grants)
        )
        self.records.append(_round_record(round_input, outcomes, length, len(finished_after)))
        begins = self.now + semantics.exchange_seconds
        for job in finished_after:
            self.active[job].last_run = self.now + length
        for job, after in ended.items():
            self.end_times[job] = begins + after
            del self.active[job]
        self.previous, self.rounds, self.now = outcomes, self.rounds + count, self.now + length
        return set(ended)


def _round_record(
    round_input: RoundInput, outcomes: Sequence[GrantOutcome], seconds: float, running: int
) -> RoundRecord:
    busy, granted, types = defaultdict[str, float](float), Counter[str](), round_input.workers.gpu_types
    on_workers = [outcome for outcome in outcomes if outcome.grant.workers]
    for outcome in on_workers:
        for worker in outcome.grant.workers:
            busy[types[worker]] += outcome.busy_seconds
            granted[types[worker]] += 1
    before = {outcome.grant for outcome in round_input.previous if outcome.grant.workers}
    return RoundRecord(
        round_input.time,
        seconds,
        dict(busy),
        dict(granted),
        running,
        len(round_input.jobs) - running,
        sum(outcome.grant in before for outcome in on_workers),
        sum(any(job in round_input.jobs for job in grant.jobs) for grant in before),
    )


def _check_grants(round_input: RoundInput, grants: Iterable[Grant], decider: str) -> None:
    """Raise ReplayError for an invalid grant."""
    taken, granted = set[int](), set[str]()
    for grant in grants:
        if wrong := _violation(grant, round_input, taken, granted):
            raise ReplayError(f"{decider} cannot grant {','.join(grant.jobs)} workers {grant.workers}: {wrong}")
        taken.update(grant.workers)
        granted.update(grant.jobs)


def _violation(grant: Grant, round_input: RoundInput, taken: set[int], granted: set[str]) -> str:
    jobs, workers = grant.jobs, grant.workers
    if len(jobs) != 1 and (len(jobs) != 2 or jobs[0] == jobs[1]):  # noqa: PLR2004 as the next words say
        return "expected one job or two"
    for job in jobs:
        if job not in round_input.jobs:
            return f"{job} is not there"
        if job in granted and not grant.steps:
            return "copies of one job need the steps of each"
    if not workers:
        return "" if grant.rates and grant.moved is not None else "it needs workers, or rates and moves"
    if any(not 0 <= worker < len(round_input.workers) for worker in workers):
        return "there are no such workers"
    return "a worker is granted twice" if len({*workers}) < len(workers) or not taken.isdisjoint(workers) else ""
