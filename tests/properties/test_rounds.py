"""What holds of every plan, whatever was decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Decision,
    Hold,
    Job,
    JobState,
    NodeAllocation,
    Operation,
    Plan,
    Reason,
    ReasonCode,
    Request,
    Result,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.policies.stages import Situation
from slurmsched.rounds.planner import make_plan
from slurmsched.rounds.progress import FinishedOperation, ready_operations
from slurmsched.rounds.recovery import resolve_intents
from slurmsched.rounds.round import run_round
from slurmsched.rounds.specs import equivalent, release_plan, spec_of, with_original_requests
from slurmsched.settings.definition import GuardSettings, ManageSettings, Mode, PolicySettings, RoundSettings, Settings
from tests.builders import job, node, share, snapshot
from tests.ideal_cluster import IdealCluster
from tests.prescribing import Anyone, InOrder, decision, situation

GPUS, CPUS, MEMORY = 4, 12, 400
SETTINGS = Settings()


@dataclass(frozen=True)
class World:
    """A cluster, a foreign job on it, which of the running jobs are fixed, and an order of all managed ones."""

    seen: Snapshot
    foreign: Job
    fixed: frozenset[str]
    order: tuple[str, ...]

    @property
    def situation(self) -> Situation:
        at_hand = situation(self.seen, dict.fromkeys(self.fixed, Reason(ReasonCode.ASKED_TO_STAY)))
        return replace(at_hand, jobs=tuple(entry for entry in at_hand.jobs if entry.id != self.foreign.id))

    def cluster(self) -> IdealCluster:
        bare = [node(n.name, GPUS, cpus=CPUS, memory=MEMORY) for n in self.seen.nodes]
        return IdealCluster(bare, self.seen.jobs)

    def planned(self, decided: Decision, seen: Snapshot | None = None, memory: SchedulerState | None = None) -> Plan:
        at_hand = self.situation
        if seen is not None:
            known = with_original_requests(seen, memory or SchedulerState())
            live = (known.jobs_by_id[entry.id] for entry in at_hand.jobs)
            at_hand = replace(at_hand, snapshot=known, jobs=tuple(live))
        return make_plan(at_hand, decided, memory or SchedulerState(), SETTINGS, Anyone(), mode=Mode.ENFORCE)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Two or three small nodes with running jobs packed from the left, and some that wait, held or not."""
    names = [f"n{number}" for number in range(1, draw(st.integers(2, 3)) + 1)]
    jobs: list[Job] = []
    for name in names:
        taken = 0
        while taken < GPUS and draw(st.booleans()):
            gpus = draw(st.integers(1, GPUS - taken))
            on = share(name, range(taken, taken + gpus), cpus=3 * gpus, memory=100 * gpus)
            hint = draw(st.sampled_from(["ckpt=usr1@60", "ckpt=none"]))
            jobs.append(job(len(jobs) + 1, gpus, cpus=3 * gpus, memory=100 * gpus, hint=hint, on=[on]))
            taken += gpus
    for _ in range(draw(st.integers(0, 4))):
        nodes = draw(st.integers(1, 2))
        gpus = draw(st.integers(1, GPUS))
        asked = Request(
            gpus=gpus * nodes,
            gpus_per_node=gpus,
            nodes=nodes,
            cpus=draw(st.integers(1, 3)) * gpus * nodes,
            memory=draw(st.integers(1, 100)) * gpus,
        )
        hold = draw(st.sampled_from([Hold.NONE, Hold.ADMIN, Hold.REQUEUED]))
        jobs.append(job(len(jobs) + 1, request=asked, hold=hold))
    foreign = job("foreign", 0, on=[NodeAllocation(names[0], share(names[0], 0, cpus=0, memory=0).resources)])
    running = [entry.id for entry in jobs if entry.state is JobState.RUNNING]
    fixed = frozenset(draw(st.sets(st.sampled_from(running)))) if running else frozenset[str]()
    order = tuple(draw(st.permutations([entry.id for entry in jobs])))
    bare = [node(name, GPUS, cpus=CPUS, memory=MEMORY) for name in names]
    return World(snapshot(bare, [*jobs, foreign]), foreign, fixed, order)


@st.composite
def reckless(draw: st.DrawFn) -> tuple[World, Decision]:
    """A world, and a decision that respects nothing: targets and victims at random."""
    world = draw(worlds())
    shares = st.builds(
        share,
        st.sampled_from([*(n.name for n in world.seen.nodes), "nowhere"]),
        st.integers(1, GPUS + 1),
        st.integers(1, CPUS + 1),
        st.integers(1, MEMORY + 1),
    )
    target = st.lists(shares, min_size=1, max_size=2, unique_by=lambda s: s.node).map(tuple)
    names = st.sampled_from([*world.order, "foreign", "unheard-of"])
    targets = draw(st.dictionaries(names, target, max_size=5))
    victims = draw(st.dictionaries(names, names, max_size=4))
    return world, decision(world.situation.jobs, targets, victims, world.order)


def about(operations: tuple[Operation, ...], *verbs: Verb) -> set[str]:
    return {operation.subject for operation in operations if operation.verb in verbs}


@given(reckless())
@settings(deadline=None)
def test_no_decision_makes_a_plan_overcommit(case: tuple[World, Decision]) -> None:
    world, decided = case
    world.cluster().follow(world.planned(decided))


@given(reckless())
@settings(deadline=None)
def test_no_decision_touches_jobs_that_are_fixed_or_not_ours(case: tuple[World, Decision]) -> None:
    world, decided = case
    operations = world.planned(decided).operations
    assert about(operations, *Verb) <= set(world.order) - world.fixed
    assert about(operations, Verb.REQUEUE) <= set(decided.victims) | set(decided.targets)


@given(reckless())
@settings(deadline=None)
def test_whoever_is_displaced_makes_room_for_somebody(case: tuple[World, Decision]) -> None:
    world, decided = case
    operations = world.planned(decided).operations
    waited_for = {job_id for operation in operations if operation.verb is Verb.RELEASE for job_id in operation.gone}
    assert about(operations, Verb.REQUEUE) == waited_for


@given(worlds())
@settings(deadline=None)
def test_a_sound_decision_is_reached_and_the_next_plan_is_empty(world: World) -> None:
    decided = InOrder(world.order).decide(world.situation)
    first = world.planned(decided)
    assert first.deferred == {}
    cluster = world.cluster()
    after = cluster.follow(first)
    for target in decided.targets.values():
        assert after.jobs_by_id[target.job].state is JobState.RUNNING
        assert sorted(after.jobs_by_id[target.job].nodes) == sorted(target.nodes)
    assert world.planned(decided, after, cluster.remembered(world.seen)).operations == ()


@given(worlds(), st.integers(0, 20))
@settings(deadline=None)
def test_after_any_part_of_a_plan_giving_back_leaves_nothing_held_or_pinned(world: World, stop: int) -> None:
    cluster, whole = world.cluster(), world.planned(InOrder(world.order).decide(world.situation))
    done: dict[int, FinishedOperation] = {}
    while batch := ready_operations(whole, done, cluster.observe(), cluster.time + 60)[: stop - len(done)]:
        for index in batch:
            done[index] = FinishedOperation(cluster.execute(whole.operations[index]), cluster.time)
    for operation in release_plan(cluster.observe(), cluster.remembered(world.seen)).operations:
        cluster.execute(operation)
    for after in cluster.observe().jobs_in_state(JobState.PENDING):
        before = world.seen.jobs_by_id[after.id]
        assert equivalent(spec_of(after.current_request), spec_of(before.current_request))
        assert after.hold in (Hold.NONE, before.hold)


@given(worlds(), st.integers(0, 20))
@settings(deadline=None)
def test_undoing_what_was_done_in_reverse_order_restores_every_waiting_job(world: World, stop: int) -> None:
    undoable = (Verb.HOLD, Verb.UPDATE)
    operations = world.planned(InOrder(world.order).decide(world.situation)).operations
    part = [op for op in operations if op.verb in undoable and not op.gone][:stop]
    cluster = world.cluster()
    for operation in part:
        cluster.execute(operation)
    for operation in reversed(part):
        back = operation.undo()
        assert back is not None
        cluster.execute(back)
    for after in cluster.jobs.values():
        before = world.seen.jobs_by_id[after.id]
        assert equivalent(spec_of(after.current_request), spec_of(before.current_request))
        assert (after.hold, after.state) == (before.hold, before.state)


@given(worlds(), st.integers(0, 20), st.booleans())
@settings(deadline=None)
def test_a_kill_around_any_operation_is_told_from_the_cluster(world: World, stop: int, happened: bool) -> None:
    cluster = world.cluster()
    operations = world.planned(InOrder(world.order).decide(world.situation)).operations
    atoms = [op for op in operations if not op.gone and op.verb is not Verb.NOTIFY]
    for operation in atoms[:stop]:
        cluster.execute(operation)
    for operation in atoms[stop : stop + 1]:
        if happened:
            cluster.execute(operation)
        ((_, result),) = resolve_intents([operation], cluster.observe(), SchedulerState()).results
        # a RELEASE of a job that nothing held cannot be told from none: either way it may start
        nothing_to_see = operation.verb is Verb.RELEASE and operation.before == Hold.NONE.value
        assert result is (Result.DONE if happened or nothing_to_see else Result.FAILED)


@given(worlds(), st.sampled_from(["synergy", "proportional"]), st.sampled_from(["fifo", "srtf", "las", "ftf"]))
@settings(deadline=None, max_examples=50)
def test_a_round_of_a_named_system_is_reached_and_the_next_one_has_nothing_to_do(
    world: World, system: str, order: str
) -> None:
    chosen = Settings(
        manage=ManageSettings(partitions=("gpu",)),
        rounds=RoundSettings(mode=Mode.ENFORCE),
        policy=PolicySettings(system=system, order=order),
        guards=GuardSettings(min_run_time=0),
    )
    held = frozenset(entry.id for entry in world.seen.jobs if entry.hold is not Hold.NONE)
    memory = SchedulerState(held=held, service={name: 100.0 * place for place, name in enumerate(world.order)})
    first = run_round(world.seen, memory, chosen, Knowledge(), Anyone())
    assert first.plan.deferred == {}
    cluster = world.cluster()
    after = cluster.follow(first.plan)
    assert {after.jobs_by_id[name].state for name in first.decision.targets} <= {JobState.RUNNING}
    remembered = cluster.remembered(world.seen)
    still = held | remembered.held
    second = run_round(
        after,
        replace(memory, original_requests=remembered.original_requests, held=still),
        chosen,
        Knowledge(),
        Anyone(),
    )
    assert second.plan.operations == ()
