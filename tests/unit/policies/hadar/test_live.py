"""Hadar in rounds on a cluster: gangs on several types, and jobs that must stay on one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.slurm.operation_commands import commands_for
from slurmsched.backends.slurm.requests import DEFAULT_FORM
from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import JobState, Node, Operation, Reason, ReasonCode, Request, Verb
from slurmsched.policies import policy
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.hadar.policy import build_problem
from slurmsched.rounds.specs import pinned_spec
from tests.builders import job, node, share, situation

SPEEDS = {"v100": 1.0, "p100": 0.5, "k80": 0.1}


def scaled(name: str, **speeds: float) -> Profile:
    rates = {kind: Scaling((1, 8), (speed, 8 * speed)) for kind, speed in (speeds or SPEEDS).items()}
    return Profile(name, "", {}, "by hand", rates)


KNOWN = Knowledge({"m": scaled("m"), "flat": scaled("flat", v100=1.0, p100=0.95, k80=0.9)}, reference="v100")


def types(*kinds: str, gpus: int = 2) -> list[Node]:
    return [node(f"{kind}-{at}", gpus, kind, cpus=6) for at, kind in enumerate(kinds, start=1)]


def gang(number: int, gpu_type: str | None = None, hint: str = "model=m,duration=5h", **other: int) -> object:
    request = Request(gpus=4, nodes=2, tasks=2, cpus=4, gpu_type=gpu_type, **other)
    return job(number, hint=hint, request=request)


def test_a_gang_runs_on_two_types_rather_than_wait() -> None:
    asked = situation(types("v100", "p100"), [gang(1)], KNOWN)

    target = policy("hadar").decide(asked).targets["1"]

    assert {(share.node, share.gpu_type, share.resources.gpus) for share in target.allocations} == {
        ("v100-1", "v100", 2),
        ("p100-2", "p100", 2),
    }
    assert target.reasons[0].sentence == "runs on 2 p100 + 2 v100: it finishes sooner than on one GPU type"


def test_a_mixed_gang_reaches_slurm_as_pinned_nodes_and_gpus_of_no_type() -> None:
    asked = situation(types("v100", "p100"), [gang(1)], KNOWN)
    target, request = policy("hadar").decide(asked).targets["1"], asked.jobs[0].original_request
    shape = pinned_spec(target.allocations, request, asked.snapshot.nodes_by_name)

    (line,) = commands_for(Operation(Verb.UPDATE, "1", Reason(ReasonCode.START), None, shape), DEFAULT_FORM).lines

    assert "ReqNodeList=p100-2,v100-1" in line
    assert "TresPerNode=gres/gpu:2" in line


def test_a_gang_is_not_mixed_where_one_type_has_room() -> None:
    asked = situation(types("v100", "p100", "p100"), [gang(1, hint="model=flat,duration=5h")], KNOWN)

    shares = policy("hadar").decide(asked).targets["1"].allocations

    assert {share.gpu_type for share in shares} == {"p100"}


@pytest.mark.parametrize(
    ("asked_type", "nodes", "why"),
    [
        pytest.param("v100", 2, "it asks for v100", id="a type that was asked for"),
        pytest.param(None, 1, "it asks for one node, and a node has one GPU type", id="a single node"),
    ],
)
def test_a_job_that_cannot_be_mixed_waits_and_says_why(asked_type: str | None, nodes: int, why: str) -> None:
    cluster = [node("v1", 4 // nodes, "v100"), node("v2", 4 // nodes, "v100"), node("p1", 3, "p100")]
    others = [job(8, on=[share("v1", 4 // nodes)]), job(9, on=[share("v2", 4 // nodes - 1)])]
    one = job(
        1,
        hint="model=m",
        request=Request(gpus=4, nodes=nodes, tasks=nodes, cpus=4, gpu_type=asked_type),
        submit_time=10_000.0,
    )
    asked = situation(cluster, [*others, one], KNOWN, managed=[one])

    waiting = policy("hadar").decide(asked).waiting["1"]

    assert waiting.code is ReasonCode.ONE_TYPE
    assert waiting.sentence == f"waits for 4 GPUs of one type and cannot use several types: {why}"


def test_the_fast_gpus_go_to_whoever_gains_from_them() -> None:
    jobs = [
        job(1, hint="model=flat,duration=5h", request=Request(gpus=2, cpus=2)),
        job(2, hint="model=m,duration=5h", request=Request(gpus=2, cpus=2)),
    ]

    targets = policy("hadar").decide(situation(types("v100", "p100"), jobs, KNOWN)).targets

    assert {name: target.nodes for name, target in targets.items()} == {"1": ("p100-2",), "2": ("v100-1",)}


def test_a_running_job_keeps_its_place_where_the_fast_gpus_do_not_pay() -> None:
    running = job(1, 2, hint="model=flat,duration=30m", on=[share("p100-2", 2, gpu_type="p100")])

    decision = policy("hadar").decide(situation(types("v100", "p100"), [running], KNOWN))

    assert decision.targets["1"].allocations == running.allocations
    assert not decision.victims


def test_copies_of_one_job_have_a_part_of_it_each() -> None:
    copies = [job(f"7_{at}", hint="model=m,duration=4h,fork=900", array_job="7") for at in range(4)]
    alone = job(8, hint="model=m,duration=4h")

    queue = build_problem(situation(types("v100"), [*copies, alone], KNOWN)).queue

    assert [ask.remaining for ask in queue] == [3600.0] * 4 + [4 * 3600.0]


@pytest.mark.parametrize("ended", [(1,), (2,), ()], ids=["the first has ended", "the last has ended", "both wait"])
def test_what_fits_nowhere_is_not_on_the_market_also_beside_an_ended_job_that_asked_alike(
    ended: tuple[int, ...],
) -> None:
    states = {number: JobState.FINISHED if number in ended else JobState.PENDING for number in (1, 2)}
    huge = [job(number, 16, hint="model=m", state=state) for number, state in states.items()]
    small = job(3, hint="model=m")

    queue = build_problem(situation(types("v100"), [*huge, small], KNOWN)).queue

    assert [ask.job for ask in queue] == ["3"]


def test_a_running_job_moves_to_the_fast_gpus_where_that_pays() -> None:
    running = job(1, 2, hint="model=m,duration=50h", on=[share("p100-2", 2, gpu_type="p100")], requeue=True)

    decision = policy("hadar").decide(situation(types("v100", "p100"), [running], KNOWN))

    assert decision.targets["1"].nodes == ("v100-1",)
    assert decision.victims == {"1": "1"}


@pytest.mark.parametrize(
    ("remembered", "stays"),
    [
        pytest.param({"came": ["7"]}, True, id="it displaced somebody last round"),
        pytest.param({}, False, id="nothing is remembered"),
        pytest.param({"came": 7}, False, id="what is remembered makes no sense"),
    ],
)
def test_who_came_in_the_place_of_another_is_not_displaced_at_once(remembered: dict[str, object], stays: bool) -> None:
    came = job(7, hint="duration=1h", on=[share("v1", 1)], requeue=True)
    long = job(1, 2, hint="duration=50h")
    asked = situation([node("v1", 2, "v100")], [came, long], KNOWN)

    decision = policy("hadar").decide(replace(asked, state=remembered))

    assert ("7" in decision.targets) is stays
    assert decision.state["came"] == ([] if stays else ["1"])


def test_a_job_that_waits_for_one_type_does_not_say_so_while_all_are_taken() -> None:
    full = [job(8, 2, on=[share("v100-1", 2)]), job(9, 2, on=[share("p100-2", 2, gpu_type="p100")])]
    one = job(1, hint="model=m", request=Request(gpus=2, cpus=2, gpu_type="v100"))

    waiting = policy("hadar").decide(situation(types("v100", "p100"), [*full, one], KNOWN, managed=[one])).waiting["1"]

    assert waiting.code is ReasonCode.NO_ROOM


@pytest.mark.parametrize(("ids", "first"), [((10, 9), "9"), (("7_10", "7_9"), "7_9")], ids=str)
def test_ties_by_submission_go_by_number(ids: tuple[int | str, ...], first: str) -> None:
    asked = situation(types("v100", gpus=1), [job(number, hint="model=m,duration=5h") for number in ids], KNOWN)
    assert set(policy("hadar").decide(asked).targets) == {first}
    assert build_problem(asked).queue[0].job == first


@pytest.mark.parametrize("system", ["hadar", "hadare"])
@pytest.mark.parametrize(
    ("utility", "on_v100"),
    [
        pytest.param("timely", "short", id="timely: the short job, since the long one can still wait"),
        pytest.param("effective", "long", id="effective: who does most work"),
        pytest.param("makespan", "long", id="makespan: who alone takes as long as all work"),
    ],
)
def test_the_settings_choose_what_is_maximised(system: str, utility: str, on_v100: str) -> None:
    """Of the 40 hours that all work takes, the long job alone takes 36.6."""
    minutes = {"short": 12, "middle": 192, "long": 2196}
    jobs = [job(name, hint=f"model=m,duration={length}m") for name, length in minutes.items()]

    decision = policy(system, utility=utility).decide(situation(types("v100", gpus=1), jobs, KNOWN))

    assert set(decision.targets) == {on_v100}


def test_a_utility_that_nobody_knows_is_refused() -> None:
    with pytest.raises(PolicyError, match="no utility 'nosuch': known are effective, timely, makespan"):
        policy("hadar", utility="nosuch")
