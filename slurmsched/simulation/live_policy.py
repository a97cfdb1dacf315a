"""The daemon's policies as deciders of a replay: what a site would run, under the rounds of a paper or of the daemon.

Every round a policy sees a snapshot as Slurm would show it, with the guards at their defaults, and its own state of the
last round. What its targets say is granted at once. The experiment knows how fast jobs really run, the policy only what
`Knowledge` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import (
    MILLI_PER_GPU,
    Decision,
    Gpu,
    Hints,
    Job,
    JobId,
    JobState,
    Node,
    NodeAllocation,
    Request,
    Resources,
    SchedulerState,
    Snapshot,
    Target,
)
from slurmsched.model.hints import CheckpointSignal
from slurmsched.policies.stages import Policy, Situation
from slurmsched.rounds.guards import GuardContext, cannot_move, guarded_jobs, preemptible_from
from slurmsched.settings.definition import GuardSettings, Settings
from slurmsched.simulation.inputs import CLOCK_START
from slurmsched.simulation.replay import (
    ActiveJob,
    GpuWorkers,
    Grant,
    ReplayError,
    ReplayJob,
    RoundInput,
    RoundSemantics,
    gang_rate,
)
from slurmsched.traces.clusters import SPEC_PARTITION

RateFunction = Callable[[ReplayJob, Sequence[NodeAllocation], ReplayJob | None], float]
"""Returns the real steps per second of a job with these allocations, beside a partner or alone."""

_CPUS_PER_GPU: Final = 4
_MIB_PER_GPU: Final = 64_000


def daemon_rounds(restart_seconds: float, period: float = 300.0, *, whole_steps: bool = True) -> RoundSemantics:
    """Return the rounds of the daemon: at fixed times, with leases; only a start or a move costs."""
    return RoundSemantics(
        period, restart_seconds=restart_seconds, leases=True, whole_steps=whole_steps, partner_speeds_up=True
    )


def rate_by_types(job: ReplayJob, allocations: Sequence[NodeAllocation], partner: ReplayJob | None) -> float:
    """Return `gang_rate`: CPUs, memory and the spread over nodes make no difference."""
    return gang_rate(job, {allocation.gpu_type for allocation in allocations}, partner)


def nodes_of(workers: GpuWorkers, *, shards: int = 0) -> tuple[Node, ...]:
    """Return the workers' servers as nodes, in order, each with GPUs of one type; `shards` are those of each GPU."""
    by_server = defaultdict[int, list[str]](list)
    for server, kind in zip(workers.server_indices, workers.gpu_types, strict=True):
        by_server[server].append(kind)
    return tuple(
        Node(
            name=f"{types[0]}-{server}",
            gpus=tuple(Gpu(index, kind, shards=shards) for index, kind in enumerate(types)),
            total=Resources(len(types), _CPUS_PER_GPU * len(types), _MIB_PER_GPU * len(types)),
            used=Resources(),
            partitions=frozenset({SPEC_PARTITION}),
        )
        for server, types in by_server.items()
    )


def knowledge_of(jobs: Iterable[ReplayJob], reference: str) -> Knowledge:
    """Return profiles with the jobs' own rates, by model; a job without a model has one by its id.

    `reference` is the GPU type that durations are of.
    """
    rates = defaultdict[str, dict[str, dict[int, float]]](lambda: defaultdict(dict))
    beside: dict[tuple[str, str], Mapping[str, float]] = {}
    for job in jobs:
        for kind, rate in job.rates.items():
            rates[job.model or job.id][kind][job.gpus] = rate
            if job.colocated_fractions:
                beside[job.model or job.id, kind] = job.colocated_fractions.get(kind, {})
    return Knowledge(
        models={
            model: Profile(
                model,
                "",
                {},
                "replay",
                {
                    kind: Scaling(
                        tuple(sorted(by_width)),
                        tuple(by_width[width] for width in sorted(by_width)),
                        beside=beside.get((model, kind), {}),
                    )
                    for kind, by_width in by_type.items()
                },
            )
            for model, by_type in rates.items()
        },
        reference=reference,
    )


@dataclass(frozen=True, slots=True)
class SubmissionForm:
    """How owners submit their jobs.

    With `copies` each job is an array of so many copies of a forked job. With `half_gpus` jobs of one GPU ask for half
    of its shards, of which it has two, so that two may share it. Gangs accept any number of nodes, so that they may be
    placed on several GPU types; with `gpus_per_node` those that are wider ask for as few nodes as hold them.
    """

    copies: int = 0
    half_gpus: bool = False
    gpus_per_node: int = 0
    cpus_per_gpu: int = 1
    memory_per_gpu: int = 0
    """MiB, which may be tuned, and the CPUs with it; 0 where jobs ask for no memory."""


def submissions(
    jobs: Iterable[ReplayJob], seconds: Callable[[ReplayJob], float], form: SubmissionForm | None = None
) -> dict[str, tuple[Job, ...]]:
    """Return each job as its owner would submit it, by its id in the replay. `seconds` is its duration for the hint."""
    chosen = form or SubmissionForm()
    return {job.id: tuple(_submission(number, job, seconds(job), chosen)) for number, job in enumerate(jobs, 1)}


def _submission(number: int, job: ReplayJob, seconds: float, form: SubmissionForm) -> Iterator[Job]:
    copies, half = form.copies, form.half_gpus and job.gpus == 1
    nodes = ceil(job.gpus / (form.gpus_per_node or job.gpus))
    request = Request(
        gpus=0 if half else job.gpus,
        shards=1 if half else 0,
        nodes=nodes,
        max_nodes=job.gpus if job.gpus > 1 else None,
        tasks=job.gpus,
        cpus=form.cpus_per_gpu * job.gpus,
        memory=ceil(form.memory_per_gpu * job.gpus / nodes),
    )
    hints = Hints(
        given=True,
        model=job.model or job.id,
        checkpoint=CheckpointSignal.USR1,
        lead=0,
        duration=max(1, ceil(seconds)),
        memory_tunable=form.memory_per_gpu > 0,
        cpus_tunable=form.memory_per_gpu > 0 or None,
        fork=round(job.steps) if copies else None,
    )
    for task in range(max(copies, 1)):
        yield Job(
            f"{number}_{task}" if copies else str(number),
            "user",
            request,
            request,
            partitions=(SPEC_PARTITION,),
            submit_time=CLOCK_START + job.arrival,
            array_job=str(number) if copies else "",
            hints=hints,
        )


@dataclass(frozen=True, slots=True)
class _Lease:
    """A running job as Slurm shows it, with the indices of its GPUs, and the workers that these are."""

    job: Job
    workers: tuple[int, ...]


@dataclass(slots=True)
class LivePolicy:
    """A policy of the daemon as a decider. One object serves one replay.

    `nodes` are the workers' servers in order. `submitted` are by the replay's ids: one job, or the copies of a forked
    one. What copies measure is known to the policy from the next round on.
    """

    policy: Policy
    nodes: tuple[Node, ...]
    submitted: Mapping[str, tuple[Job, ...]]
    knowledge: Knowledge
    rate: RateFunction = rate_by_types
    _state: Mapping[str, object] = field(default_factory=dict)
    _leases: dict[JobId, _Lease] = field(default_factory=dict)
    _moves: dict[JobId, tuple[float, ...]] = field(default_factory=dict)
    _measured: dict[JobId, Mapping[str, float]] = field(default_factory=dict)
    _copy_service: dict[JobId, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        jobs = {job.id: (name, job) for name in round_input.jobs for job in self.submitted[name]}
        self._leases = {job: lease for job, lease in self._leases.items() if job in jobs}
        self._record_measurements(round_input)
        situation = self._situation(round_input, [job for _, job in jobs.values()])
        decision = self.policy.decide(situation)
        self._state = decision.state
        before = self._leases
        self._leases = {}
        moved = self._lease_targets(decision, situation.snapshot, before)
        evicted = (before.keys() - self._leases.keys()) | (moved & before.keys())
        for job in evicted:
            self._moves[job] = (*self._moves.get(job, ()), situation.snapshot.time)
        owners = {job: round_input.jobs[name] for job, (name, _) in jobs.items()}
        return [*self._grants(owners, decision.targets, moved)]

    def _situation(self, round_input: RoundInput, submitted: Sequence[Job]) -> Situation:
        semantics, now = round_input.semantics, CLOCK_START + round_input.time
        leases = self._leases if semantics.leases else {}
        jobs = tuple(
            lease.job.with_run_time(now - (lease.job.start_time or now)) if (lease := leases.get(job.id)) else job
            for job in submitted
        )
        service, by_type, steps = dict[JobId, float](), dict[JobId, Mapping[str, float]](), dict[JobId, int]()
        for name, active in round_input.jobs.items():
            for job in self.submitted[name]:
                service[job.id] = self._copy_service[job.id] if job.hints.fork else active.attained_service
                if job.hints.fork:
                    steps[job.id] = round(active.steps_done)
                else:
                    by_type[job.id] = active.service_by_type
        snapshot = Snapshot(now, _used(self.nodes, leases.values()), jobs)
        settings = Settings(guards=GuardSettings(restart_cost=semantics.restart_seconds))
        known = replace(self.knowledge, service=service, service_by_type=by_type, measured=self._measured, steps=steps)
        guards = GuardContext(snapshot, SchedulerState(service=service, moves=self._moves), settings, known)
        return Situation(
            snapshot,
            jobs,
            known,
            non_preemptible=guarded_jobs(jobs, guards),
            open_nodes={SPEC_PARTITION: frozenset(node.name for node in self.nodes)},
            max_moves=settings.guards.moves_per_round,
            restart_cost=settings.guards.restart_cost,
            period=semantics.period,
            state=self._state,
            preemptible_from=preemptible_from(jobs, guards),
            unmovable=frozenset(job.id for job in jobs if cannot_move(job, guards)),
        )

    def _record_measurements(self, round_input: RoundInput) -> None:
        """Take over the GPU-seconds of the copies in the last round, and the rates of those that did a step."""
        outcomes = {outcome.grant.workers: outcome for outcome in round_input.previous if outcome.grant.steps}
        for job, lease in self._leases.items():
            if lease.job.hints.fork and (outcome := outcomes.get(lease.workers)):
                self._copy_service[job] += outcome.busy_seconds * len(lease.workers)
                if outcome.steps[0]:
                    kind = lease.job.allocations[0].gpu_type
                    self._measured[job] = {**self._measured.get(job, {}), kind: outcome.grant.rates[0]}

    def _lease_targets(
        self, decision: Decision, snapshot: Snapshot, before: Mapping[JobId, _Lease]
    ) -> frozenset[JobId]:
        """Lease what the targets say, with the same GPUs to who keeps an allocation; return who does not: a victim that
        is to have as much of another GPU of its node moves too."""
        devices, new = _Devices(self.nodes), list[Target]()
        for target in decision.targets.values():
            lease = before.get(target.job)
            if (
                lease is not None
                and target.job not in decision.victims
                and _same(lease.job.allocations, target.allocations)
            ):
                self._leases[target.job] = lease
                devices.take(lease.job.allocations)
            else:
                new.append(target)
        jobs = snapshot.jobs_by_id
        for target in sorted(new, key=lambda target: not any(share.indices for share in target.allocations)):
            allocations = devices.find(target.allocations)
            job = replace(
                jobs[target.job],
                state=JobState.RUNNING,
                state_text="RUNNING",
                allocations=allocations,
                start_time=snapshot.time,
                run_time=0.0,
            )
            self._leases[target.job] = _Lease(job, devices.workers(allocations))
        return frozenset(target.job for target in new)

    def _grants(
        self, owners: Mapping[JobId, ActiveJob], targets: Mapping[JobId, Target], moved: frozenset[JobId]
    ) -> Iterator[Grant]:
        on_workers = defaultdict[tuple[int, ...], list[JobId]](list)
        for job, lease in self._leases.items():
            on_workers[lease.workers].append(job)
        for workers, jobs in on_workers.items():
            specs = [owners[job].spec for job in jobs]
            shares = [self._leases[job].job.allocations for job in jobs]
            alone = tuple(self.rate(spec, share, None) for spec, share in zip(specs, shares, strict=True))
            rates = alone
            if len(jobs) > 1:
                rates = tuple(
                    self.rate(spec, share, other)
                    for spec, share, other in zip(specs, shares, reversed(specs), strict=True)
                )
            steps = tuple(float(given) for job in jobs if (given := targets[job].steps) is not None)
            if self._leases[jobs[0]].job.hints.fork and not any(steps):
                continue
            names = tuple(spec.id for spec in specs)
            at_start = frozenset(spec.id for job, spec in zip(jobs, specs, strict=True) if job in moved)
            yield Grant(names, workers, rates, alone, steps, at_start)


def _same(held: Sequence[NodeAllocation], target: Sequence[NodeAllocation]) -> bool:
    def amounts(of: Sequence[NodeAllocation]) -> list[tuple[str, str, Resources, int]]:
        return sorted(
            ((share.node, share.gpu_type, share.resources, share.shards) for share in of), key=lambda one: one[:2]
        )

    return amounts(held) == amounts(target)


def _used(nodes: Sequence[Node], leases: Iterable[_Lease]) -> tuple[Node, ...]:
    """Return the nodes with what the leases use."""
    shares = defaultdict[str, list[NodeAllocation]](list)
    for lease in leases:
        for share in lease.job.allocations:
            shares[share.node].append(share)
    return tuple(_used_node(node, shares[node.name]) if node.name in shares else node for node in nodes)


def _used_node(node: Node, shares: Sequence[NodeAllocation]) -> Node:
    milli = defaultdict[int, int](int)
    for share in shares:
        for index in share.indices:
            milli[index] += share.shards * MILLI_PER_GPU // node.gpus[index].shards if share.shards else MILLI_PER_GPU
    amounts = sum((share.resources for share in shares), Resources())
    return replace(
        node,
        gpus=tuple(replace(gpu, used=milli[gpu.index]) if milli[gpu.index] else gpu for gpu in node.gpus),
        used=replace(amounts, gpus=len(milli)),
    )


class _Devices:
    """The shards, or else whole GPUs, that are free on every device while targets are given theirs."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._free = {node.name: [gpu.shards or 1 for gpu in node.gpus] for node in nodes}
        self._whole = {node.name: [gpu.shards or 1 for gpu in node.gpus] for node in nodes}
        self._types = {node.name: [gpu.type for gpu in node.gpus] for node in nodes}
        firsts = [0]
        for node in nodes:
            firsts.append(firsts[-1] + len(node.gpus))
        self._first = {node.name: first for node, first in zip(nodes, firsts, strict=False)}

    def take(self, allocations: Iterable[NodeAllocation]) -> None:
        for share in allocations:
            for index in share.indices:
                self._free[share.node][index] -= share.shards or self._whole[share.node][index]

    def find(self, allocations: Iterable[NodeAllocation]) -> tuple[NodeAllocation, ...]:
        """Take GPUs for a target: those that it names, else the first that are free. Raises ReplayError."""
        found = list[NodeAllocation]()
        for share in allocations:
            free, whole, types = self._free[share.node], self._whole[share.node], self._types[share.node]
            fits = [
                index
                for index, left in enumerate(free)
                if left >= (share.shards or whole[index]) and share.gpu_type in ("", types[index])
            ]
            wanted = 1 if share.shards else share.resources.gpus
            indices = share.indices if {*share.indices} <= {*fits} and share.indices else tuple(fits[:wanted])
            if len(indices) < wanted:
                raise ReplayError(f"{share.node} has no {wanted} GPUs left for a target of the policy")
            found.append(replace(share, indices=indices, gpu_type=share.gpu_type or types[indices[0]]))
            self.take(found[-1:])
        return tuple(found)

    def workers(self, allocations: Iterable[NodeAllocation]) -> tuple[int, ...]:
        return tuple(sorted(self._first[share.node] + index for share in allocations for index in share.indices))
