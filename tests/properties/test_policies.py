"""What no decision may ever do, on random tiny clusters, each decided with every policy and order of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurmsched.knowledge import Knowledge, Profile, SensitivityMatrix, shipped_profiles
from slurmsched.model import (
    Decision,
    Job,
    JobState,
    Node,
    NodeAllocation,
    Reason,
    ReasonCode,
    Request,
    Resources,
    Snapshot,
    Target,
)
from slurmsched.policies import ORDERS, POLICIES, Policy, Situation, policy
from tests.builders import GIB, job, node, snapshot

PROFILES = shipped_profiles()
CACHED = Profile(
    "cached",
    "image",
    {
        "": SensitivityMatrix(
            (1, 3, 6), (20 * GIB, 60 * GIB, 120 * GIB), ((0.2, 0.3, 0.3), (0.6, 1, 1.2), (0.6, 1.4, 2))
        )
    },
    "by hand",
)
CHOSEN = [policy(name, order) for name, row in POLICIES.items() for order in (ORDERS if row.takes_order else ("las",))]
CHOSEN += [policy("synergy", "las", ()), policy("fgd", "las", defragment=True)]

MIXING = ("hadar", "hadare")
"""Policies that mix GPU types where it pays. Under the others a job gets several only if none has enough for it."""

unhurried = settings(max_examples=50, deadline=None)
policies = st.sampled_from(CHOSEN)
"""Every row of the table in every order that it takes."""
tuned = st.sampled_from([chosen for chosen in CHOSEN if chosen.name == "synergy"])
sizing = st.sampled_from([chosen for chosen in CHOSEN if not POLICIES[chosen.name].shards])
"""Policies that size jobs by GPU. The others place them as requested: CPUs by node, and where a job does not ask for
memory, Slurm decides how much it gets."""


def _situation(seen: Snapshot, service: dict[str, float] | None = None) -> Situation:
    return Situation(
        snapshot=seen,
        jobs=seen.jobs,
        knowledge=Knowledge({**PROFILES.models, "cached": CACHED}, PROFILES.tasks, service or {}),
        open_nodes={"gpu": frozenset(one.name for one in seen.nodes)},
    )


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    """One to four nodes of one or two kinds, some with a GPU somebody else has."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        gpus, gpu_type = draw(st.sampled_from(((8, "v100"), (8, "v100"), (4, "a100"))))
        busy = range(draw(st.integers(0, 1)))
        cpus = draw(st.sampled_from((22, 24, 30, 48)))
        taken = 3 * len(busy)
        found.append(node(f"n{number}", gpus, gpu_type, cpus, 500 * GIB, busy, taken, taken * GIB))
    return found


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """One GPU to two nodes full, fixed or free in how they are split."""
    gpus = draw(st.sampled_from((1, 1, 2, 3, 4, 8, 16)))
    spread = draw(st.sampled_from(((1, None), (1, None), (1, 3), (2, 2))))
    fixed = gpus // spread[0] if spread[1] in (None, 2) and gpus % spread[0] == 0 and draw(st.booleans()) else None
    tasks = draw(st.sampled_from((spread[0], max(gpus, spread[0]))))
    return Request(
        gpus=gpus,
        gpu_type=draw(st.sampled_from((None, None, "v100"))),
        gpus_per_node=fixed,
        nodes=spread[0],
        max_nodes=spread[1],
        tasks=tasks,
        cpus=tasks * draw(st.integers(1, 3)),
        memory=draw(st.sampled_from((0, 0, 20 * GIB))),
        exclusive=draw(st.integers(0, 9)) == 9,
    )


@st.composite
def waiting_jobs(draw: st.DrawFn, most: int = 10) -> list[Job]:
    """Jobs that could start now."""
    found = []
    for number in range(draw(st.integers(1, most))):
        model = draw(st.sampled_from(("", "model=resnet18,", "model=cached,", "model=bert,", "task=speech,")))
        hours = draw(st.sampled_from((1, 5, 50)))
        found.append(
            job(
                number,
                hint=f"{model}duration={hours}h",
                request=draw(requests()),
                submit_time=float(draw(st.integers(0, 5000))),
                priority=draw(st.integers(0, 3)),
                time_limit=hours * 7200,
            )
        )
    return found


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Some jobs run, as a first decision left them, others have come since, with service attained in between."""
    cluster, early = draw(nodes()), draw(waiting_jobs())
    first = _situation(snapshot(cluster, early))
    begun = draw(sizing).decide(first)
    service = {j.id: draw(st.sampled_from((0.0, 5e3, 2e4, 1e5))) for j in early}
    late = [replace(j, id=f"{100 + int(j.id)}") for j in draw(waiting_jobs(6))]
    after = _after(cluster, early, begun, late)
    return replace(_situation(after, service), max_moves=draw(st.sampled_from((0, 1, 8))))


@unhurried
@given(situations(), policies)
def test_every_job_is_either_a_target_or_waiting_and_ranked_once(situation: Situation, chosen: Policy) -> None:
    decision = chosen.decide(situation)
    every = {j.id for j in situation.jobs}
    assert set(decision.targets) | set(decision.waiting) == every
    assert not set(decision.targets) & set(decision.waiting)
    assert sorted(ranked.job for ranked in decision.order) == sorted(every)
    assert all("?" not in reason.sentence for reason in decision.waiting.values())
    assert all("?" not in reason.sentence for target in decision.targets.values() for reason in target.reasons)


@unhurried
@given(situations(), policies)
def test_nothing_is_given_twice(situation: Situation, chosen: Policy) -> None:
    decision = chosen.decide(situation)
    taken, gpus = defaultdict[str, Resources](Resources), defaultdict[tuple[str, str], int](int)
    for target in decision.targets.values():
        for share in target.allocations:
            taken[share.node] += share.resources
            gpus[share.node, share.gpu_type] += share.resources.gpus
    for one in situation.snapshot.nodes:
        others = one.used - _held_on(one.name, situation.jobs)
        assert (taken[one.name] + others).fits_in(one.total)
        for gpu_type in one.gpu_types:
            assert gpus[one.name, gpu_type] <= sum(gpu.type == gpu_type for gpu in one.gpus)


def _eight_tasks_of_24_cpus() -> Situation:
    """Their GPUs fit on one node and their CPUs on none: two nodes are the fewest that hold the job."""
    wanted = Request(gpus=8, tasks=8, cpus=24)
    return _situation(
        snapshot([node(f"n{number}", 8, cpus=22, memory=500 * GIB) for number in range(2)], [job(0, request=wanted)])
    )


@unhurried
@example(_eight_tasks_of_24_cpus(), policy("synergy"))
@given(situations(), policies)
def test_a_gang_gets_all_its_gpus_as_it_asked_for_them_or_none(situation: Situation, chosen: Policy) -> None:
    for target in chosen.decide(situation).targets.values():
        request, shares = situation.snapshot.jobs_by_id[target.job].original_request, target.allocations
        assert target.resources.gpus == request.gpus
        assert request.nodes <= len(set(target.nodes)) == len(shares) <= _most_nodes(request, situation.snapshot)
        kept = shares == situation.snapshot.jobs_by_id[target.job].allocations
        mixed = len({share.gpu_type for share in shares}) > 1
        may_mix = chosen.name in MIXING or kept or not _a_type_has_enough(request, situation.snapshot)
        assert not mixed or (may_mix and not request.gpu_type)
        assert request.gpu_type in (None, shares[0].gpu_type)
        assert request.gpus_per_node in (None, *{share.resources.gpus for share in shares})
        assert len({share.resources.memory for share in shares}) == 1


@unhurried
@given(situations(), sizing)
def test_cpus_are_whole_tasks_and_alike_for_each_gpu(situation: Situation, chosen: Policy) -> None:
    for target in chosen.decide(situation).targets.values():
        request = situation.snapshot.jobs_by_id[target.job].original_request
        for share in () if request.exclusive else target.allocations:
            uneven = len({share.resources.gpus for share in target.allocations}) > 1
            if request.tasks < len(target.allocations) + uneven:  # a task on each node
                assert share.resources.cpus == target.allocations[0].resources.cpus >= request.cpus // request.tasks
                continue
            tasks, rest = divmod(request.tasks * share.resources.gpus, request.gpus)
            assert share.resources.cpus % (tasks + (rest > 0)) == 0
            assert share.resources.cpus * request.gpus == target.resources.cpus * share.resources.gpus


@unhurried
@given(situations(), tuned)
def test_no_profiled_job_is_slower_than_at_its_share_in_whole_cpus_per_task(
    situation: Situation, chosen: Policy
) -> None:
    for target in chosen.decide(situation).targets.values():
        one = situation.snapshot.jobs_by_id[target.job]
        if one.allocations == target.allocations:
            continue
        at_share = _in_whole_cpus(one, target, situation.snapshot)
        slowest = situation.knowledge.relative_speed(one, at_share, situation.snapshot.nodes_by_name)
        if target.speed < slowest - 1e-9:  # what others have of its share it cannot get; it gains what is free
            before = situation.knowledge.relative_speed(one, one.allocations, situation.snapshot.nodes_by_name)
            assert _grows_where_it_is(one, target)
            assert target.speed > before
        if not one.original_request.exclusive and situation.knowledge.profile(one) is None:
            asked, gpus, nodes = one.original_request.cpus, one.original_request.gpus, situation.snapshot.nodes_by_name
            of_gpu = max(
                -(-nodes[share.node].total.cpus // len(nodes[share.node].gpus)) for share in target.allocations
            )
            assert asked <= target.resources.cpus <= max(asked + gpus - 1, of_gpu * gpus)
        assert all(share.resources.memory >= one.original_request.memory for share in target.allocations)


@unhurried
@given(situations(), policies)
def test_only_what_gives_way_to_somebody_leaves_and_no_more_than_may(situation: Situation, chosen: Policy) -> None:
    decision = chosen.decide(situation)
    changed = {
        j.id
        for j in situation.jobs
        if j.allocations and (j.id not in decision.targets or decision.targets[j.id].allocations != j.allocations)
    }
    assert changed == set(decision.victims)
    assert len(decision.victims) <= situation.max_moves
    for victim, newcomer in decision.victims.items():
        assert situation.snapshot.jobs_by_id[victim].allocations
        assert newcomer in decision.targets
        assert newcomer in changed or not situation.snapshot.jobs_by_id[newcomer].allocations


@unhurried
@given(situations(), policies)
def test_an_early_round_starts_jobs_and_leaves_the_running_ones_and_the_policys_state(
    situation: Situation, chosen: Policy
) -> None:
    full = chosen.decide(situation)
    between = replace(situation, state=full.state, starts_only=True)
    early = chosen.decide(between)
    assert early.victims == {}
    assert early.state == full.state
    assert (
        chosen.decide(replace(between, starts_only=False)).state
        == chosen.decide(replace(between, state=early.state, starts_only=False)).state
    ), "the next full round finds the state of the last one"
    assert all(early.targets[one.id].allocations == one.allocations for one in situation.jobs if one.allocations)


@unhurried
@given(situations(), policies)
def test_what_is_fixed_is_left_alone(situation: Situation, chosen: Policy) -> None:
    running = {j.id: j for j in situation.jobs if j.allocations}
    decision = chosen.decide(
        replace(situation, non_preemptible=dict.fromkeys(running, Reason(ReasonCode.ASKED_TO_STAY)))
    )
    assert not decision.victims
    assert all(decision.targets[j.id].allocations == j.allocations for j in running.values())


@unhurried
@given(situations(), policies)
def test_the_same_question_has_the_same_answer(situation: Situation, chosen: Policy) -> None:
    turned = replace(situation, jobs=situation.jobs[::-1])
    assert chosen.decide(situation) == chosen.decide(situation)
    assert chosen.decide(turned).targets == chosen.decide(situation).targets


@unhurried
@given(situations(), policies)
def test_a_newcomer_that_displaced_somebody_is_not_displaced_next_round(situation: Situation, chosen: Policy) -> None:
    first = chosen.decide(situation)
    second = chosen.decide(_next_round(situation, first))
    assert not set(first.victims.values()) & set(second.victims)


@unhurried
@given(situations(), policies)
def test_deciding_again_and_again_comes_to_rest_and_then_changes_nothing(situation: Situation, chosen: Policy) -> None:
    """What leaves for one newcomer may make room for another the round after; that ends, and goes in no circle."""
    generous = replace(situation, max_moves=100)
    first = chosen.decide(generous)
    for _ in generous.jobs:
        generous = _next_round(generous, first)
        again = chosen.decide(generous)
        if not again.victims and again.targets.keys() == first.targets.keys():
            break
        first = again
    assert not again.victims
    assert {j: t.resources for j, t in again.targets.items()} == {j: t.resources for j, t in first.targets.items()}
    assert {j: t.nodes for j, t in again.targets.items()} == {j: t.nodes for j, t in first.targets.items()}
    assert all(target.reasons[0].code is ReasonCode.KEEPS_LEASE for target in again.targets.values())


@unhurried
@given(situations(), tuned)
def test_no_gpu_idles_for_lack_of_cpus_beside_jobs_that_may_restart(situation: Situation, chosen: Policy) -> None:
    cluster = _bare(situation.snapshot)
    singles = [_profiled(j) for j in situation.jobs]
    early, late = singles[::2], singles[1::2]
    begun = chosen.decide(_situation(snapshot(cluster, early)))
    decision = chosen.decide(replace(_situation(_after(cluster, early, begun, late)), max_moves=100))
    idle = sum(gpu.idle for one in cluster for gpu in one.gpus)
    assert len(decision.targets) == min(idle, len(singles))


def _most_nodes(request: Request, seen: Snapshot) -> int:
    """The most nodes that the job may have: any number if it names none and no node has its GPUs and CPUs."""
    if request.max_nodes is not None or request.gpus_per_node or request.nodes > 1:
        return request.max_nodes or request.nodes
    of_type = [one.total for one in seen.nodes if request.gpu_type in {None, *one.gpu_types}]
    on_one = any(total.gpus >= request.gpus and total.cpus >= request.cpus for total in of_type)
    return 1 if on_one else request.gpus


def _a_type_has_enough(request: Request, seen: Snapshot) -> bool:
    """Whether the nodes of one GPU type together are enough for the job, once they are empty."""
    for gpu_type in {gpu.type for one in seen.nodes for gpu in one.gpus}:
        counts = sorted((one.total.gpus for one in seen.nodes if gpu_type in one.gpu_types), reverse=True)
        counts = [count for count in counts if count >= (request.gpus_per_node or 1)][: _most_nodes(request, seen)]
        if len(counts) >= request.nodes and sum(counts) >= request.gpus:
            return True
    return False


def _profiled(one: Job) -> Job:
    """The job with one GPU of any type and a model whose speed is known."""
    hints = replace(one.hints, model=one.hints.model or "resnet18", task=None)
    return replace(one, original_request=Request(gpus=1), hints=hints, allocations=(), state=JobState.PENDING)


def _next_round(situation: Situation, decision: Decision) -> Situation:
    """The same moment, with everything done as decided, and remembered."""
    seen = _after(_bare(situation.snapshot), situation.jobs, decision)
    return replace(situation, snapshot=seen, jobs=seen.jobs, state=decision.state)


def _after(cluster: list[Node], jobs: Iterable[Job], decision: Decision, late: Iterable[Job] = ()) -> Snapshot:
    """The cluster once the decision holds, with GPUs handed out from the lowest index on."""
    idle = {(n.name, t): [g.index for g in n.gpus if g.idle and g.type == t] for n in cluster for t in n.gpu_types}
    held = list[Job]()
    for one in jobs:
        shares = list[NodeAllocation]()
        for share in decision.targets[one.id].allocations if one.id in decision.targets else ():
            free = idle[share.node, share.gpu_type]
            indices = tuple(free.pop(0) for _ in range(share.resources.gpus))
            shares.append(replace(share, indices=indices))
        state = JobState.RUNNING if shares else JobState.PENDING
        held.append(replace(one, allocations=tuple(shares), state=state))
    return snapshot(cluster, [*held, *late])


def _bare(seen: Snapshot) -> list[Node]:
    """The nodes with nothing of these jobs on them."""
    found = []
    for one in seen.nodes:
        held = {index for j in seen.jobs for s in j.allocations if s.node == one.name for index in s.indices}
        devices = tuple(replace(gpu, used=0) if gpu.index in held else gpu for gpu in one.gpus)
        found.append(replace(one, gpus=devices, used=one.used - _held_on(one.name, seen.jobs)))
    return found


def _held_on(name: str, jobs: Iterable[Job]) -> Resources:
    return sum((share.resources for j in jobs for share in j.allocations if share.node == name), Resources())


def _grows_where_it_is(one: Job, target: Target) -> bool:
    """Whether the job runs, and is restarted on the same GPUs with more CPUs or memory."""
    before, after = (sorted((s.node, s.resources.gpus) for s in given.allocations) for given in (one, target))
    return before == after


def _in_whole_cpus(one: Job, target: Target, seen: Snapshot) -> list[NodeAllocation]:
    """The same GPUs with their proportional share, rounded down to whole CPUs for each task.

    A job with a task on each node, and fewer GPUs on one than on others, has whole CPUs for each GPU of that node on
    all of them: Slurm gives its tasks the same. The others may then be slower than at their own share.
    """
    request, found, nodes = one.original_request, list[NodeAllocation](), seen.nodes_by_name
    of_gpu = min(
        nodes[s.node].proportional_share(s.resources.gpus).cpus // s.resources.gpus for s in target.allocations
    )
    least = min(share.resources.gpus for share in target.allocations)
    uneven = request.tasks <= len(target.allocations) and any(s.resources.gpus > least for s in target.allocations)
    for share in target.allocations:
        fair = nodes[share.node].proportional_share(share.resources.gpus)
        if uneven:
            cpus = max(of_gpu, 1) * least
        else:
            tasks = -(-max(request.tasks, request.nodes) * share.resources.gpus // request.gpus)
            cpus = max(fair.cpus // tasks, 1) * tasks
        found.append(replace(share, resources=replace(fair, cpus=cpus)))
    return found
