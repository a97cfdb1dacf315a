"""Parts of GPUs and jobs without GPUs beside whole ones, under policies that were made for whole GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import Decision, Gpu, Job, JobState, Node, NodeAllocation, Reason, ReasonCode, Request, Resources
from slurmsched.policies import policy
from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools
from slurmsched.policies.state import decode_state
from slurmsched.policies.unified import MarketState
from tests.builders import job, node, share, situation


def has(count: int, gpu: int, where: str = "n1") -> NodeAllocation:
    return NodeAllocation(where, Resources(0, 1, 0), "", (gpu,), count)


def shards(count: int, **other: object) -> Request:
    return Request(shards=count, cpus=1, **other)  # type: ignore[arg-type]  # by name


def nodes_of(decision: Decision) -> dict[str, str]:
    return {target.job: ",".join(sorted(target.nodes)) for target in decision.targets.values()}


def test_tesserae_renames_nodes_though_jobs_without_gpus_move_too() -> None:
    jobs = [
        job(1, 2, hint="duration=1h", submit_time=1.0),
        job(2, 1, hint="duration=2h", submit_time=2.0),
        job(3, request=Request(cpus=13), on=[NodeAllocation("n1", Resources(0, 13, 0))], submit_time=3.0),
        job(4, request=Request(cpus=10), on=[NodeAllocation("n2", Resources(0, 10, 0))], submit_time=4.0),
    ]
    decision = policy("tesserae", "srtf").decide(situation([node("n1", 2), node("n2", 2)], jobs))
    assert set(nodes_of(decision)) == {"1", "2", "4"}


@pytest.mark.parametrize("name", ["fgd", "slurm", "synergy", "proportional"])
def test_a_gang_uses_nodes_of_unequal_kinds_though_a_smaller_one_is_there(name: str) -> None:
    """The share of n0 is the least, but n0 has too few GPUs for half of the gang."""
    nodes = [node("n0", 1, cpus=4), node("n1", 4, cpus=8), node("n2", 4, cpus=24)]
    gang = job(1, request=Request(gpus=4, nodes=2, tasks=2, cpus=4, memory=100))
    assert nodes_of(policy(name, "fifo").decide(situation(nodes, [gang]))) == {"1": "n1,n2"}


def test_the_rest_of_a_gpu_is_taken_before_a_whole_one_with_fewer_shards() -> None:
    nodes = [node("n1", 1, shards=8), node("n2", 1, shards=4)]
    jobs = [job(1, request=shards(4), on=[has(4, 0)]), job(2, request=shards(4))]
    usual = ((shards(4), 50), (Request(gpus=1), 10))
    assert nodes_of(policy("fgd", "fifo").decide(situation(nodes, jobs, recent_requests=usual)))["2"] == "n1"


def test_backfill_does_not_take_the_rest_of_a_gpu_that_the_first_job_needs_whole() -> None:
    jobs = [
        job(1, request=shards(4), on=[has(4, 0)], start_time=9000.0, time_limit=2000, priority=10),
        job(2, request=shards(8), time_limit=5000, priority=9),
        job(3, request=shards(4), time_limit=100_000, priority=8),
    ]
    assert set(nodes_of(policy("slurm").decide(situation([node("n1", 1, shards=8)], jobs)))) == {"1"}


def test_what_a_job_leaves_is_kept_for_the_first_that_waits_for_it() -> None:
    jobs = [
        job(1, request=shards(4), on=[has(4, 0)], state=JobState.COMPLETING),
        job(2, request=shards(8), submit_time=2.0),
        job(3, request=shards(4), submit_time=3.0),
    ]
    decision = policy("synergy", "fifo").decide(situation([node("n1", 1, shards=8)], jobs, managed=jobs[1:]))
    assert nodes_of(decision) == {}


@pytest.mark.parametrize("name", ["synergy", "fgd", "hadar", "gavel", "tesserae"])
def test_shards_of_a_type_are_placed_on_gpus_of_it_also_on_nodes_with_several(name: str) -> None:
    both = replace(node("n1", 2, shards=4), gpus=(Gpu(0, "v100", shards=4), Gpu(1, "a100", shards=4)))
    jobs = [job(1, request=shards(2, gpu_type="a100")), job(2, request=shards(2, gpu_type="p100"))]
    decision = policy(name).decide(situation([both, node("n2", 1, "p100", shards=4)], jobs))
    assert nodes_of(decision) == {"1": "n1", "2": "n2"}
    assert decision.targets["1"].allocations[0].indices == (1,)


BOTH = replace(node("n1", 2, shards=4), gpus=(Gpu(0, "v100", shards=4), Gpu(1, "a100", shards=4)))
CHOICE = (
    "is not managed: it asks for shards of any GPU type, and Slurm chooses one on nodes with several: name one, as in"
    " --gres=shard:a100:2"
)


@pytest.mark.parametrize(
    ("nodes", "request_", "told"),
    [
        pytest.param([BOTH], shards(2), CHOICE, id="all nodes have two types"),
        pytest.param([BOTH, node("n2", 1, shards=4, busy=[0])], shards(2), CHOICE, id="the others are full"),
        pytest.param(
            [BOTH, node("n2", 1, shards=4)], shards(2, pinned=frozenset({"n1"})), CHOICE, id="it names the node"
        ),
        pytest.param([BOTH, node("n2", 1, shards=4)], shards(2), "", id="a node with one type is free"),
        pytest.param(
            [BOTH, node("n2", 1, shards=4, busy=[0])],
            shards(2, pinned=frozenset({"n2"})),
            "waits: no GPU has 2 free shards with enough free CPUs and memory",
            id="it names another node",
        ),
        pytest.param(
            [BOTH, node("n2", 1, shards=8, busy=[0])],
            shards(5),
            "waits: no GPU has 5 free shards with enough free CPUs and memory",
            id="more shards than the GPUs of both types have",
        ),
    ],
)
def test_shards_without_a_type_are_slurms_to_place_where_only_nodes_with_several_types_may_have_them(
    nodes: list[Node], request_: Request, told: str
) -> None:
    waiting = policy("synergy").decide(situation(nodes, [job(1, request=request_)])).waiting
    assert [why.sentence for why in waiting.values()] == [told] * bool(told)


@pytest.mark.parametrize("name", ["synergy", "fgd", "slurm", "gavel"])
@pytest.mark.parametrize(
    ("request_", "told"),
    [
        pytest.param(
            Request(gpus=3, gpus_per_node=3, cpus=1),
            "is not managed: only nodes with GPUs of several types have so many of any type, and Slurm chooses among"
            " them",
            id="three of any type",
        ),
        pytest.param(
            Request(gpus=5, gpus_per_node=5, cpus=1),
            "asks for what the cluster does not have: 5 GPUs on one node; the largest has 2",
            id="more than the node has",
        ),
        pytest.param(Request(gpus=2, gpus_per_node=2, cpus=1), "", id="two of one type"),
        pytest.param(
            Request(gpus=3, gpus_per_node=3, gpu_type="v100", cpus=1),
            "asks for what the cluster does not have: 3 GPUs on one node; the largest has 2",
            id="three of a type that it names",
        ),
    ],
)
def test_gpus_of_any_type_that_only_a_node_with_several_has_are_slurms_to_place(
    name: str, request_: Request, told: str
) -> None:
    types = ("v100", "v100", "a100", "a100")
    mixed = replace(node("n1", 4), gpus=tuple(Gpu(index, kind) for index, kind in enumerate(types)))
    waiting = policy(name).decide(situation([mixed], [job(1, request=request_)])).waiting
    assert [why.sentence for why in waiting.values()] == [told] * bool(told)


@pytest.mark.parametrize("name", ["synergy", "gavel", "hadar", "hadare", "gandiva-fair", "tesserae"])
def test_room_is_made_for_a_job_without_gpus(name: str) -> None:
    nodes = [node("n1", 2, cpus=8, shards=4), node("n2", 3, cpus=8, shards=4)]
    jobs = [
        job(1, 2, on=[share("n2", 2, 2)], hint="move=no"),
        job(2, request=shards(2), on=[has(2, 0)], hint="ckpt=usr1"),
        job(3, request=Request(cpus=8), submit_time=5.0),
    ]
    settled = situation(nodes, jobs, non_preemptible={"1": Reason(ReasonCode.ASKED_TO_STAY)})
    assert nodes_of(policy(name, defragment=True).decide(settled)) == {"1": "n2", "2": "n2", "3": "n1"}


@pytest.mark.parametrize("hint", ["", "ckpt=none"])
def test_a_job_without_checkpoint_moves_last(hint: str) -> None:
    nodes = [node("n1", 2), node("n2", 2), node("n3", 1)]
    jobs = [
        job(1, 1, on=[share("n1", 1, 1)], hint=hint, run_time=7200.0),
        job(2, 1, on=[share("n2", 1, 1)], hint="ckpt=usr1", run_time=7200.0),
        job(3, 2, submit_time=5.0, memory=10),
    ]
    assert set(policy("synergy", "fifo", defragment=True).decide(situation(nodes, jobs)).victims) == {"2"}


def test_copies_on_parts_of_gpus_are_jobs_like_others() -> None:
    jobs = [replace(job(f"9_{task}", request=shards(4), hint="fork=500"), array_job="9") for task in range(2)]
    decision = policy("hadare").decide(situation([node("n1", 2, shards=4)], jobs))
    assert nodes_of(decision) == {"9_0": "n1", "9_1": "n1"}
    assert {target.steps for target in decision.targets.values()} == {None}


def test_a_job_without_gpus_starts_beside_gpus_that_are_kept_for_another() -> None:
    jobs = [
        job(1, 2, on=[share("n1", 2, cpus=1)], state=JobState.COMPLETING),
        job(2, 1, submit_time=2.0),
        job(3, request=Request(cpus=1), submit_time=3.0),
    ]
    decision = policy("synergy", "fifo").decide(situation([node("n1", 2, shards=4)], jobs, managed=jobs[1:]))
    assert nodes_of(decision) == {"3": "n1"}


@pytest.mark.parametrize("looked_at", [False, True])
def test_devices_are_counted_right_though_those_of_one_job_are_not_known(looked_at: bool) -> None:
    pools = Pools([node("n1", 2, shards=4)])
    free = FreeResources.of_empty_cluster(pools)
    known = pools.allocation([NodeAllocation("n1", Resources(1, 1, 0), "v100", (0,))])
    unknown = pools.allocation([NodeAllocation("n1", Resources(1, 1, 0), "v100", ())])
    for change in (free.allocate, free.release):
        for allocation in (known, unknown):
            change(allocation)
            if looked_at:
                assert (free.milli[0] == 1000).sum() == free.gpus[0]
    assert free.gpus.tolist() == [2]
    assert free.milli.tolist() == [[1000, 1000]]


@pytest.mark.parametrize("count", [3, 4, 7, 12])
def test_a_gpu_is_whole_again_once_all_its_shards_are_free(count: int) -> None:
    """Thirds of a GPU are 333 milli-GPU each, and three of them 999."""
    nodes = [node("n1", 1, shards=count), node("n2", 1, "a100", shards=count)]
    jobs = [
        job(n, request=shards(1), on=[has(1, 0)], hint="duration=100h", submit_time=100.0 + n) for n in range(count)
    ]
    jobs.append(job(99, request=Request(gpus=1, gpu_type="v100"), hint="duration=1h", submit_time=1.0))
    preempting = situation(nodes, jobs, max_moves=count)
    assert nodes_of(policy("synergy", "srtf").decide(preempting))["99"] == "n1"
    moving = policy("fgd", "fifo", defragment=True).decide(preempting)
    assert nodes_of(moving) == {**{str(n): "n2" for n in range(count)}, "99": "n1"}


def test_a_guest_stays_on_the_nodes_that_it_asks_for() -> None:
    beside = {"a": {"b": 0.8}, "b": {"a": 0.7}}
    models = {
        model: Profile(model, "", {}, "by hand", {"v100": Scaling((1,), (1.0,), beside=kept)})
        for model, kept in beside.items()
    }
    nodes = [node("n1", 1, shards=10), node("n2", 1, shards=10, busy=[0])]
    host = job(1, request=shards(5), hint="model=a", on=[has(5, 0)])
    guest = job(2, request=shards(5, pinned=frozenset({"n2"})), hint="model=b")
    decision = policy("tesserae-packed", "fifo").decide(situation(nodes, [host, guest], Knowledge(models)))
    assert decision.waiting["2"].code is ReasonCode.NO_SHARDS


def test_nothing_moves_for_a_job_that_waits_for_a_completing_one() -> None:
    nodes = [node("n1", 2), node("n2", 4), node("n3", 2)]
    jobs = [
        job(1, 2, on=[share("n1", 2, 2, 0)], state=JobState.COMPLETING),
        job(2, 2, on=[share("n2", 2, 2, 0)]),
        job(3, 1, on=[share("n2", (2,), 1, 0)]),
        job(4, 1, on=[share("n3", 1, 1, 0)]),
        job(5, 2, submit_time=2.0, memory=10),
    ]
    decision = policy("synergy", "fifo", defragment=True).decide(situation(nodes, jobs, managed=jobs[1:]))
    assert (decision.waiting["5"].code, dict(decision.victims)) == (ReasonCode.FREED_SOON, {})


def test_room_is_made_on_the_one_node_that_a_job_asks_for() -> None:
    nodes = [node("n1", 2, shards=4), node("n2", 1, shards=4)]
    pinned = job(2, request=Request(gpus=2, cpus=2, pinned=frozenset({"n1"})))
    asked = situation(nodes, [job(1, 1, on=[share("n1", 1, 1, 0)]), pinned])
    assert nodes_of(policy("fgd", "fifo", defragment=True).decide(asked)) == {"1": "n2", "2": "n1"}


def test_alignment_on_a_cluster_without_gpus() -> None:
    assert nodes_of(policy("tetris").decide(situation([node("n1", 0)], [job(1, request=Request(cpus=2))]))) == {
        "1": "n1"
    }


@given(
    st.integers(1, 4),
    st.sampled_from([3, 4, 7, 8]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 9)), max_size=40),
)
def test_idle_gpus_are_those_of_which_no_job_has_a_shard(
    gpus: int, count: int, steps: list[tuple[bool, int, int]]
) -> None:
    """The model is the used shards of each GPU; each step is a start, of whole GPUs or of shards, or an end."""
    pools = Pools([node("n1", gpus, cpus=999, shards=count)])
    free, used = FreeResources.of_empty_cluster(pools), [0] * gpus
    running: list[tuple[Allocation, dict[int, int]]] = []
    for starts, size, which in steps:
        if not starts and running:
            allocation, held = running.pop(which % len(running))
            free.release(allocation)
            for device, amount in held.items():
                used[device] -= amount
        elif starts:
            wanted = size % count if size >= 3 else 0
            part = pools.kinds[0].milli_of_shards(wanted)
            asked = Allocation((0,), (0 if wanted else size + 1,), (1,), (0,), part=part)
            fits = [device for device in range(gpus) if used[device] <= (count - wanted if wanted else 0)]
            assert free.fits(asked) == (len(fits) >= (1 if wanted else size + 1))
            if free.fits(asked):
                (devices,) = free.devices_for(asked)
                assert devices == tuple(fits[: len(devices)])
                running.append((replace(asked, devices=(devices,)), dict.fromkeys(devices, wanted or count)))
                free.allocate(running[-1][0])
                for device in devices:
                    used[device] += wanted or count
        assert free.gpus.tolist() == [used.count(0)]
        assert [idle == 1000 for idle in free.milli[0].tolist()] == [amount == 0 for amount in used]


def test_making_room_ends_though_any_number_of_jobs_may_move() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    jobs = [job(n, 1, on=[share(f"n{1 + n // 3}", ((n % 3),), 1, 0)]) for n in range(6)]
    wide = job(9, request=Request(gpus=4, gpus_per_node=4, cpus=4))
    asked = situation(nodes, [*jobs, wide], max_moves=10**30, restart_cost=1e300)
    assert set(policy("synergy", "fifo", defragment=True).decide(asked).waiting) == {"9"}


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        pytest.param(Request(gpus=10, tasks=10, cpus=10), "Slurm divides them", id="a task for each of all GPUs"),
        pytest.param(
            Request(gpus=4, cpus=16), "no node has the CPUs and memory for all its GPUs", id="too many CPUs for a node"
        ),
        pytest.param(Request(gpus=11, tasks=11, cpus=11), "11 GPUs; the nodes that it may use have 10 in all", id="11"),
        pytest.param(Request(gpus=8, tasks=8, cpus=8), "", id="two nodes with as many each"),
    ],
)
def test_gpus_in_all_that_divide_unevenly_are_slurms_to_divide(request_: Request, told: str) -> None:
    nodes = [node(name, 4, cpus=12, memory=102400) for name in ("n1", "n2")]
    nodes += [node("n3", 2, "p100", cpus=8, memory=61440)]
    waiting = policy("synergy").decide(situation(nodes, [job(1, request=request_)])).waiting
    sentences = [why.sentence for why in waiting.values()]
    assert len(sentences) == bool(told)
    assert all(told in sentence for sentence in sentences), sentences


HOUR = 3600.0
STEEP = Knowledge(
    {
        "steep": Profile("steep", "", {}, "by hand", {"v100": Scaling((1,), (1.0,)), "k80": Scaling((1,), (0.1,))}),
        "even": Profile("even", "", {}, "by hand", {"v100": Scaling((1,), (1.0,)), "k80": Scaling((1,), (1.0,))}),
        "slow": Profile("slow", "", {}, "by hand", {"k80": Scaling((1,), (0.1,))}),
    },
    reference="v100",
)
SLOW_AND_FAST = node("n1", 1, "k80", shards=4), node("n2", 1, "v100", shards=4)
SLOW_IS_PARTLY_TAKEN = job(9, request=shards(1), on=[has(1, 0)], submit_time=9.0)
FAST_IS_TAKEN = job(8, on=[share("n2", gpu_type="v100")], submit_time=8.0)


@pytest.mark.parametrize(
    ("waiting", "others", "starts_on"),
    [
        pytest.param(job(1, request=shards(1), hint="model=steep"), (), "n2", id="where it is faster"),
        pytest.param(
            job(1, request=shards(1), hint="model=slow"), (), "n1", id="known on one type alone: beside another part"
        ),
        pytest.param(job(1, request=shards(1)), (), "n1", id="nothing is known of it: beside another part"),
        pytest.param(job(1, request=shards(1), hint="model=even"), (), "n1", id="equally fast: beside another part"),
        pytest.param(
            job(1, request=shards(1), hint="model=steep"), (FAST_IS_TAKEN,), "n1", id="but not to wait for it"
        ),
        pytest.param(
            job(1, request=shards(1), hint="model=steep"),
            (job(2, hint="model=steep"),),
            "n1",
            id="whole GPUs come first",
        ),
        pytest.param(
            job(1, request=shards(1, gpu_type="k80"), hint="model=steep"), (), "n1", id="its owner wants that"
        ),
    ],
)
def test_a_part_of_a_gpu_is_of_the_fastest_type_that_whole_jobs_leave(
    waiting: Job, others: tuple[Job, ...], starts_on: str
) -> None:
    seen = situation(SLOW_AND_FAST, [SLOW_IS_PARTLY_TAKEN, waiting, *others], STEEP)
    assert nodes_of(policy("unified").decide(seen))["1"] == starts_on


def on_slow(hours: float, model: str = "steep", **other: object) -> Job:
    """A job with a part of the slow GPU, which would take so many hours on a fast one and has run for ten."""
    hint = f"model={model},duration={60 * hours:.0f}m,ckpt=usr1"
    part = NodeAllocation("n1", Resources(0, 1, 0), "k80", (0,), 1)
    return job(1, request=shards(1, **other), hint=hint, on=[part], run_time=10 * HOUR)


@pytest.mark.parametrize(
    ("running", "others", "runs_on"),
    [
        pytest.param(on_slow(5.0), (), "n2", id="it would run for forty hours more, or four there"),
        pytest.param(on_slow(1.01), (), "n1", id="it is nearly done"),
        pytest.param(on_slow(5.0, "even"), (), "n1", id="it is no faster there"),
        pytest.param(on_slow(5.0, "slow"), (), "n2", id="how fast it is there was not measured: data sheets tell"),
        pytest.param(on_slow(10.02, "slow"), (), "n1", id="but not where it is nearly done"),
        pytest.param(on_slow(5.0, "slow", gpu_type="k80"), (), "n1", id="nor what its owner wants is left"),
        pytest.param(on_slow(5.0, gpu_type="k80"), (), "n1", id="its owner wants the slow one"),
        pytest.param(on_slow(5.0), (FAST_IS_TAKEN,), "n1", id="no room there"),
        pytest.param(on_slow(5.0), (job(2, hint="model=steep"),), "n1", id="another gets it whole"),
    ],
)
def test_a_job_with_a_part_of_a_slow_gpu_moves_to_an_idle_faster_one(
    running: Job, others: tuple[Job, ...], runs_on: str
) -> None:
    seen = situation(SLOW_AND_FAST, [running, *others], STEEP, service={"1": running.run_time})
    known = replace(seen.knowledge, service_by_type={"1": {"k80": running.run_time}})
    decision = policy("unified").decide(replace(seen, knowledge=known))
    assert nodes_of(decision)["1"] == runs_on
    assert set(decision.victims) == ({"1"} if runs_on == "n2" else set())


def part(number: int, minutes: int, count: int = 4, *, runs: bool = False, **other: Any) -> Job:
    """A job with so many quarters of a GPU and minutes to go, of which one that `runs` has the first on n1."""
    other.setdefault("submit_time", 9_000.0 + number)
    held = [NodeAllocation("n1", Resources(0, 1, 0), "", (0,), count)] if runs else ()
    hint = f"duration={minutes}m,ckpt=usr1"
    return job(number, request=shards(count), hint=hint, on=held, run_time=HOUR if runs else 0.0, **other)


def whole(number: int, minutes: int, gpus: int = 1, *, runs: bool = False) -> Job:
    held = [share("n1", gpus, 1, 0)] if runs else ()
    return job(number, gpus, hint=f"duration={minutes}m,ckpt=usr1", on=held, run_time=HOUR if runs else 0.0)


def decide_on(nodes: Iterable[Node], jobs: Sequence[Job], **other: Any) -> Decision:
    ran = {one.id: HOUR * (one.gpus or one.original_request.shards / 4) for one in jobs if one.allocations}
    seen = situation(nodes, jobs, service=ran, **other)
    parts = {one.id: one.original_request.shards / 4 for one in jobs if one.original_request.shards}
    return policy("unified").decide(replace(seen, knowledge=replace(seen.knowledge, parts_of_gpu=parts)))


@pytest.mark.parametrize(
    ("waiting", "first"),
    [
        pytest.param([part(1, 600), part(2, 10)], "2", id="the shorter first, though it came later"),
        pytest.param([part(1, 60), part(2, 100, 2)], "2", id="half a GPU for less than twice as long: less of a GPU"),
        pytest.param([part(1, 60), part(2, 60)], "1", id="of equals the first that came"),
        pytest.param(
            [part(1, 60, submit_time=0.0), part(2, 30)], "1", id="it has waited for hours for its first start"
        ),
        pytest.param([part(1, 600, submit_time=0.0), part(2, 10)], "2", id="hours are not enough to be as urgent"),
    ],
)
def test_of_jobs_with_parts_of_gpus_the_one_with_the_least_gpu_time_starts_first(
    waiting: Sequence[Job], first: str
) -> None:
    assert set(nodes_of(decide_on([node("n1", 1, shards=4)], waiting))) == {first}


@pytest.mark.parametrize(
    ("running", "newcomer", "leaves"),
    [
        pytest.param(part(1, 660, runs=True), part(2, 10), True, id="ten minutes for ten hours"),
        pytest.param(part(1, 660, runs=True), part(2, 500), False, id="hardly less"),
        pytest.param(part(1, 660, 1, runs=True), part(2, 149), False, id="as long, by the part of a GPU"),
        pytest.param(part(1, 660, runs=True), whole(2, 10), False, id="not for whole GPUs: these have a market"),
        pytest.param(whole(1, 660, runs=True), part(2, 10), False, id="and none with whole GPUs"),
    ],
)
def test_a_job_with_a_part_of_a_gpu_makes_room_for_another_with_far_less_to_go(
    running: Job, newcomer: Job, leaves: bool
) -> None:
    decision = decide_on([node("n1", 1, shards=4)], [running, newcomer])
    assert dict(decision.victims) == ({running.id: newcomer.id} if leaves else {})
    assert set(nodes_of(decision)) == {newcomer.id if leaves else running.id}


def test_a_user_is_due_and_charged_parts_of_gpus() -> None:
    """Alice has three quarters of a GPU, and Bob, who waits for the two GPUs of the node, nothing."""
    jobs = [part(1, 6000, 3, runs=True, user="alice"), replace(whole(2, 60, 2), user="bob")]
    state: Mapping[str, object] = {}
    for at in range(0, 2 * 3600 + 1, 300):
        state = decide_on([node(gpus=2, shards=4)], jobs, time=float(at), state=state).state
    accounts = decode_state(MarketState, state).accounts
    assert accounts["alice"].received == pytest.approx(0.75 * 2 * HOUR, rel=0.05)
    assert accounts["alice"].due == pytest.approx(0.75 * 2 * HOUR, rel=0.05)
    assert accounts["bob"].due == pytest.approx(1.25 * 2 * HOUR, rel=0.05)
    assert accounts["bob"].received == 0.0


def test_guards_hold_for_jobs_with_parts_of_gpus_too() -> None:
    jobs = [part(1, 660, runs=True), part(2, 10)]
    stays = {"1": Reason(ReasonCode.ASKED_TO_STAY)}
    for guards in ({"non_preemptible": stays}, {"max_moves": 0}, {"starts_only": True}):
        assert not decide_on([node("n1", 1, shards=4)], jobs, **guards).victims


def test_a_part_of_a_gpu_starts_before_a_gang_that_has_no_room() -> None:
    """One of the two GPUs is in use for hours."""
    jobs = [part(1, 660, 1, runs=True), whole(2, 60, 2), part(3, 600), part(4, 10)]
    assert set(nodes_of(decide_on([node("n1", 2, shards=4)], jobs))) == {"1", "4"}
