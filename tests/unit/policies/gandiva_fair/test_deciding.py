"""Whole decisions of Gandiva_fair on tiny clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.knowledge import Knowledge, sample_speedups
from slurmsched.model import (
    Decision,
    Job,
    JobState,
    ReasonCode,
    Request,
    Reservation,
    SchedulerState,
    Verb,
    parse_hints,
)
from slurmsched.policies import policy
from slurmsched.policies.gandiva_fair.accounts import GandivaFairState
from slurmsched.policies.gandiva_fair.trading import suspected_users
from slurmsched.policies.state import decode_state, encode_state
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.round import run_round
from slurmsched.settings import ManageSettings, Mode, PolicySettings, RoundSettings, Settings, TicketSettings
from tests.builders import job, node, share, situation, snapshot
from tests.turning import QUANTUM, Cluster, tickets

GANDIVA_FAIR = policy("gandiva-fair")
SLICES = TicketSettings(quantum=600.0, wide_quantum=1800.0)


def running(number: int, run_time: float, gpus: int = 8, user: str = "alice") -> Job:
    return job(number, gpus, user=user, on=[share("n1", gpus, cpus=3 * gpus)], run_time=run_time)


def decided(*jobs: Job, nodes: int = 1, service: dict[str, float] | None = None, **other: object) -> Decision:
    asked = situation([node(f"n{number}") for number in range(1, nodes + 1)], jobs, service=service)
    return GANDIVA_FAIR.decide(replace(asked, tickets=SLICES, **other))  # type: ignore[arg-type]  # fields by name


def after(first: Job, *others: Job, service: float) -> Decision:
    """The round after one in which the first ran alone, having had so many GPU-seconds since."""
    past = decided(first, *others).state
    return decided(first, *others, service={first.id: service}, state=past)


def test_a_slice_ends_for_the_job_that_is_due() -> None:
    decision = after(running(1, 700), job(2, 8, user="bob"), service=8 * 600)
    assert (set(decision.targets), decision.victims) == ({"2"}, {"1": "2"})
    assert decision.waiting["1"].code is ReasonCode.SLICE_ENDED
    assert decision.waiting["1"].sentence == (
        "has used its slice of 11 min and is 10 min ahead (its share: 4.00 GPUs); job 2 of bob is next, 0 s ahead"
    )
    assert decision.targets["2"].reasons[0].code is ReasonCode.TURN


def test_on_slurm_a_slice_ends_with_the_checkpoint_signal_and_a_requeue_that_says_why() -> None:
    jobs = [replace(running(1, 7500), hints=parse_hints("synsched:ckpt=usr1@60")), job(2, 8, user="bob")]
    seen = snapshot([node("n1")], jobs)
    settings = Settings(
        manage=ManageSettings(partitions=("gpu",)),
        rounds=RoundSettings(mode=Mode.ENFORCE),
        policy=PolicySettings(system="gandiva-fair"),
        tickets=SLICES,
    )
    rights = Identity("synsched", Privilege.OPERATOR)
    first = run_round(seen, SchedulerState(), settings, Knowledge(), rights)
    memory = SchedulerState(policy_state=first.decision.state, service={"1": 8 * 7500.0})
    result = run_round(seen, memory, settings, Knowledge(), rights)
    done = [(one.verb, one.subject) for one in result.plan.operations if one.subject == "1"]
    assert done == [(Verb.NOTIFY, "1"), (Verb.REQUEUE, "1")]
    assert result.requeues["1"].reason.code is ReasonCode.SLICE_ENDED
    assert explain(result, "1").headline.startswith("job 1 has used its slice of 2 h 5 min")
    assert result.starts["2"].gone == ("1",)


@pytest.mark.parametrize(
    ("jobs", "service", "runs"),
    [
        pytest.param([running(1, 100), job(2, 8, user="bob")], 9e9, {"1"}, id="a slice that has only begun goes on"),
        pytest.param([running(1, 700), job(2, 8, user="bob")], 0, {"2"}, id="whoever never ran comes before equals"),
        pytest.param(
            [running(1, 700, 4), job(2, 4, user="bob")], 9e9, {"1", "2"}, id="nobody leaves where there is room"
        ),
        pytest.param(
            [replace(running(1, 900), original_request=Request(gpus=8)), job(2, 16, user="bob")],
            9e9,
            {"1"},
            id="nobody leaves for a job that is too wide for the cluster",
        ),
    ],
)
def test_who_keeps_the_place(jobs: list[Job], service: float, runs: set[str]) -> None:
    assert set(after(*jobs, service=service).targets) == runs


@pytest.mark.parametrize(
    ("moves", "code"),
    [
        pytest.param(1, ReasonCode.MOVES_SAVED, id="more than a round has"),
        pytest.param(0, None, id="a round moves nobody"),
        pytest.param(4, None, id="as many as it has"),
    ],
)
def test_a_gang_that_needs_more_moves_than_a_round_has_is_told_that_rounds_save_them(
    moves: int, code: ReasonCode | None
) -> None:
    pairs = [share("n1", (gpu, gpu + 1), cpus=6) for gpu in range(0, 8, 2)]
    narrow = [replace(running(n, 700, 2), allocations=(pair,)) for n, pair in enumerate(pairs, 1)]
    gang, service = job(9, 8, user="bob"), {str(n): 2 * 900.0 for n in range(1, 5)}
    past = decided(*narrow, gang, max_moves=moves).state
    decision = decided(*narrow, gang, service=service, state=past, max_moves=moves)
    told = decision.waiting.get("9")
    assert (told.code if told and told.code is ReasonCode.MOVES_SAVED else None) is code
    assert bool(decision.victims) is (moves == 4)


def test_no_more_leave_than_may_and_what_was_due_most_comes_first() -> None:
    ahead, further = running(1, 700), replace(running(2, 700), allocations=(share("n2", 8, cpus=24),))
    waiting = [job(3, 8, user="bob"), job(4, 8, user="carol")]
    past = decided(ahead, further, *waiting, nodes=2).state
    service = {"1": 8 * 1300.0, "2": 8 * 1700.0}
    decision = decided(ahead, further, *waiting, nodes=2, service=service, state=past, max_moves=1)
    assert set(decision.victims) == {"2"}
    assert [reason.code for reason in decision.waiting.values()].count(ReasonCode.MOVES_SPENT) == 1
    assert not decided(ahead, further, *waiting, nodes=2, service=service, state=past, max_moves=0).victims


@pytest.mark.parametrize(
    ("ran", "victim"),
    [
        pytest.param(100, "2", id="the slice in its pool has only begun"),
        pytest.param(900, "1", id="both slices are over"),
    ],
)
def test_a_gang_waits_in_no_pool_whose_slices_have_only_begun_where_those_of_another_are_over(
    ran: float, victim: str
) -> None:
    began, over = running(1, ran), replace(running(2, 900, user="carol"), allocations=(share("n2", 8, cpus=24),))
    ran_before = {"6": "2", "7": "1", "8": "2"}
    jobs = [began, over, *(job(int(one), 8, user=f"u{one}") for one in ran_before), job(9, 8, user="bob")]
    past = decode_state(GandivaFairState, decided(*jobs, nodes=2).state)
    pools = {one: past.jobs[beside].assigned_pool for one, beside in {**ran_before, "9": "1"}.items()}
    records = {
        one: replace(record, assigned_pool=pools.get(one, record.assigned_pool)) for one, record in past.jobs.items()
    }
    service = {"1": 8 * 1000.0, "2": 8 * 1000.0, **dict.fromkeys(ran_before, 8 * 1100.0)}
    decision = decided(*jobs, nodes=2, service=service, state=encode_state(replace(past, jobs=records)))
    assert decision.victims == {victim: "9"}


def test_a_gang_on_two_nodes_has_its_turn_among_narrow_jobs() -> None:
    wide = job(9, user="bob", request=Request(gpus=16, gpus_per_node=8, nodes=2, tasks=2, cpus=2))
    cluster = Cluster([node("n1"), node("n2")], [*(job(n, 4) for n in range(1, 7)), wide], tickets())
    cluster.run(40)
    assert cluster.service["9"] == pytest.approx(8 * cluster.time, rel=0.1)


@pytest.mark.parametrize("starts_only", [pytest.param(True, id="early round"), pytest.param(False, id="full round")])
def test_what_a_job_that_is_ending_gives_back_is_kept_for_a_gang_like_what_slices_do(starts_only: bool) -> None:
    """The last of eight GPUs is idle: a narrow newcomer took it in each early round, and the gang never started."""
    in_slice = [job(n, 1, user="bob", on=[share("n1", (n,), cpus=3)], run_time=300.0) for n in range(6)]
    ending = job(7, 1, user="bob", on=[share("n1", (6,), cpus=3)], state=JobState.COMPLETING, run_time=900.0)
    gang, narrow = job(8, 8, user="carol"), job(9, 1, user="dave")
    decision = decided(*in_slice, ending, gang, narrow, starts_only=starts_only, max_moves=0)
    assert "9" not in decision.targets
    assert decision.waiting["8"].code is ReasonCode.EXPECTED_START


@pytest.mark.parametrize("demand", [(1, 12), (4, 8), (12, 1)], ids=str)
def test_two_users_with_equal_tickets_and_unequal_demand_have_equal_shares_within_six_rounds(
    demand: tuple[int, int],
) -> None:
    """Where both want that much; else one has what he wants, the other the rest."""
    first, second = demand
    jobs = [job(n, 4, user="alice") for n in range(first)] + [job(100 + n, 4, user="bob") for n in range(second)]
    cluster = Cluster([node("n1"), node("n2")], jobs, tickets())
    cluster.run(6)
    had = sum(gpus for (user, _), gpus in cluster.by_type.items() if user == "alice")
    assert had == pytest.approx(min(4 * first, max(8, 16 - 4 * second)) * cluster.time, rel=0.2)


def test_a_user_who_comes_later_is_not_paid_for_the_time_before() -> None:
    cluster = Cluster([node("n1")], [job(1, 8, user="alice"), job(2, 8, user="alice")], tickets())
    cluster.run(20)
    cluster.jobs.append(job(3, 8, user="bob", submit_time=cluster.time))
    cluster.run(20)
    assert cluster.service["3"] == pytest.approx(8 * 10 * QUANTUM, rel=0.2)


def test_a_round_that_is_decided_again_from_what_was_stored_decides_the_same() -> None:
    cluster = Cluster([node("n1"), node("n2")], [job(n, 4, user=f"u{n % 3}") for n in range(9)], tickets())
    cluster.run(7)
    once, again = (GANDIVA_FAIR.decide(cluster.situation()) for _ in range(2))
    assert once == again
    assert encode_state(decode_state(GandivaFairState, cluster.state)) == cluster.state


def test_what_a_user_holds_of_several_types_is_summed_in_the_same_order_in_every_process() -> None:
    types = ("v100", "p100", "k80", "a100", "t4")
    nodes = [node(f"n{number}", gpu_type=kind, features=frozenset({kind})) for number, kind in enumerate(types)]
    confined = job(1, request=Request(gpus=1, features="v100|p100|k80|a100"))
    state = GANDIVA_FAIR.decide(situation(nodes, [confined])).state
    assert [*decode_state(GandivaFairState, state).accounts["alice"].holdings] == ["a100", "k80", "p100", "v100"]


def test_what_was_had_while_nobody_decided_counts() -> None:
    """Rounds that were missed lose nothing: passes follow from the GPU-seconds that jobs attained."""
    late = after(running(1, 7200), job(2, 8, user="bob"), service=8 * 7200)
    assert (
        decode_state(GandivaFairState, late.state).jobs["1"].pass_value
        > decode_state(GandivaFairState, late.state).jobs["2"].pass_value
    )
    assert set(late.victims) == {"1"}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"time": "x", "jobs": [], "users": 7, "trades": {}}, id="other kinds"),
        pytest.param(
            {"jobs": {"id": ["1"], "pass": [], "attained": [0], "home": [""]}}, id="columns of unequal length"
        ),
        pytest.param(
            {"time": 1.0, "jobs": {"id": ["1"], "pass": [float("nan")], "attained": [None], "home": ["n1 v100"]}},
            id="no numbers",
        ),
        pytest.param({"trades": [{"seller": 1}, "x"], "users": {"alice": {"due": "much"}}}, id="halves of things"),
        pytest.param(
            {"time": 1.0, "jobs": {"id": ["1"], "pass": [0.0], "attained": [0.0], "home": ["gone v100"]}},
            id="a home that is no more",
        ),
    ],
)
def test_what_makes_no_sense_in_the_store_counts_as_never_said(state: dict[str, object]) -> None:
    assert set(decided(job(1), state=state).targets) == {"1"}


def test_an_exclusive_job_has_its_turn_only_where_nobody_is_before_it() -> None:
    alone = job(9, user="bob", request=Request(gpus=1, exclusive=True))
    cluster = Cluster([node("n1")], [*(job(n, 1, user=f"u{n}") for n in range(8)), alone], tickets())
    cluster.run(30)
    assert 0 < cluster.service["9"] < cluster.time
    assert min(cluster.service[str(n)] for n in range(8)) >= 0.5 * cluster.time


def test_a_job_in_a_reservation_of_other_gpus_starts_there() -> None:
    nodes = [node("n1"), node("k1", 4, "k80", reservation="lab")]
    seen = snapshot(
        nodes,
        [job(1, 8), job(2, 2, reservation="lab", user="bob")],
        reservations=(Reservation("lab", frozenset({"k1"}), 0.0, 1e9),),
    )
    asked = situation(nodes, seen.jobs, seen=seen, open_nodes={"gpu": frozenset({"n1"})})
    assert {one.job: one.nodes for one in GANDIVA_FAIR.decide(asked).targets.values()} == {"1": ("n1",), "2": ("k1",)}


class TestBadInput:
    """Clear words, safe defaults."""

    def test_a_user_with_only_oversize_jobs_takes_nobodys_share(self) -> None:
        decision = decided(job(1, 64, user="big"), job(2, 8), job(3, 8))
        assert decision.waiting["1"].code is ReasonCode.NEVER_FITS
        assert "big" not in {
            user for user, own in decode_state(GandivaFairState, decision.state).accounts.items() if own.holdings
        }

    def test_tickets_for_nobody_here_change_nothing(self) -> None:
        asked = situation([node("n1")], [job(1, 8), job(2, 8, user="bob")])
        named = replace(asked, tickets=TicketSettings(users=("nobody=9",)))
        assert GANDIVA_FAIR.decide(named).targets == GANDIVA_FAIR.decide(asked).targets

    def test_without_speedups_nobody_trades(self) -> None:
        assert decode_state(GandivaFairState, mixed(Knowledge()).state).trades == ()

    def test_nothing_at_all(self) -> None:
        assert GANDIVA_FAIR.decide(situation([], [])).targets == {}


def mixed(knowledge: Knowledge, rounds: int = 1, trading: bool = True) -> Cluster:
    """Three types, four users with many jobs each."""
    nodes = [node("v1", 4, "v100"), node("p1", 4, "p100"), *(node(f"k{n}", 4, "k80") for n in range(4))]
    models = {"alice": "vae", "bob": "superresolution", "carol": "resnext50", "dave": "dcgan"}
    jobs = [
        job(100 * place + n, 1, user=user, hint=f"model={model}")
        for place, (user, model) in enumerate(models.items(), 1)
        for n in range(24)
    ]
    cluster = Cluster(nodes, jobs, tickets(trading=trading), knowledge)
    cluster.run(rounds)
    return cluster


def test_what_users_hold_of_each_type_is_what_they_have_after_a_while() -> None:
    cluster = mixed(sample_speedups(), 60)
    past = decode_state(GandivaFairState, cluster.state)
    assert {(one.seller, one.buyer, round(one.price, 2)) for one in past.trades if one.fast == "v100"} == {
        ("alice", "carol", 3.79),
        ("bob", "dave", 3.79),
        ("alice", "dave", 1.39),
        ("bob", "carol", 1.39),
    }
    for user, account in past.accounts.items():
        for kind, gpus in account.holdings.items():
            assert cluster.by_type[user, kind] / cluster.time == pytest.approx(gpus, abs=0.35)
    assert past.accounts["alice"].received == pytest.approx(past.accounts["alice"].due, rel=0.05)


def test_users_trade_beside_running_jobs_that_nobody_schedules() -> None:
    nodes = [node("v1", 4, "v100"), node("k1", 4, "k80")]
    jobs = [
        job(100 * place + n, 1, user=user, hint=f"model={model}")
        for place, (user, model) in enumerate([("alice", "vae"), ("bob", "resnext50")], 1)
        for n in range(8)
    ]
    cluster = Cluster(nodes, jobs, tickets(), sample_speedups())
    cluster.unmanaged = (job(900, 1, user="carol", on=[share("k1", 1, gpu_type="k80")]),)
    cluster.run(20)
    (trade,) = decode_state(GandivaFairState, cluster.state).trades
    assert (trade.seller, trade.buyer) == ("alice", "bob")
    assert cluster.by_type["bob", "v100"] > cluster.by_type["alice", "v100"]


@pytest.mark.parametrize(
    ("rounds", "due"),
    [
        pytest.param(3, 4 * 60.0 + 3 * 60.0, id="rounds that failed in between"),
        pytest.param(33, 4 * 60.0, id="nobody went by tickets for so long: nobody is due anything for it"),
    ],
)
def test_what_users_are_due_is_counted_while_somebody_goes_by_tickets(rounds: int, due: float) -> None:
    cluster = Cluster([node("n1", 1)], [job(1, 1, user="alice")], tickets())
    cluster.run(5)
    cluster.time += (rounds - 1) * 60.0
    cluster.service["1"] += (rounds - 1) * 60.0
    cluster.run(1)
    account = decode_state(GandivaFairState, cluster.state).accounts["alice"]
    assert (account.due, account.received) == (due, due)


def test_nobody_is_worse_off_with_trading_than_without() -> None:
    traded, not_traded = (mixed(sample_speedups(), 60, trading) for trading in (True, False))
    for user, account in decode_state(GandivaFairState, traded.state).accounts.items():
        rates = [
            sum(gpus * account.speedups[kind] for (owner, kind), gpus in one.by_type.items() if owner == user)
            for one in (traded, not_traded)
        ]
        assert rates[0] >= 0.95 * rates[1]


@pytest.mark.parametrize(
    ("now", "found"),
    [
        pytest.param({"k80": 10.0, "v100": 50.0}, set(), id="as ever"),
        pytest.param({"k80": 5.0, "v100": 50.0}, {"alice"}, id="slower on the slow type only"),
        pytest.param({"k80": 5.0, "v100": 25.0}, set(), id="slower everywhere: another batch size"),
        pytest.param({"v100": 25.0}, set(), id="nothing measured on the slow type"),
    ],
)
def test_who_slows_down_slow_gpus_is_found(now: dict[str, float], found: set[str]) -> None:
    jobs = {"1": job(1, hint="model=vae")}
    assert suspected_users({"vae k80": 10.0, "vae v100": 50.0}, {"1": now}, "k80", jobs) == found


def test_a_user_who_slows_down_slow_gpus_does_not_trade() -> None:
    """Dave's job makes half of what the same model made on the slow type; the others trade on."""
    cluster = mixed(sample_speedups(), 2)
    cluster.knowledge = replace(cluster.knowledge, measured={"400": {"k80": 10.0, "v100": 64.0}})
    cluster.run(1)
    assert {one.buyer for one in decode_state(GandivaFairState, cluster.state).trades} == {"carol", "dave"}
    cluster.knowledge = replace(cluster.knowledge, measured={"400": {"k80": 5.0, "v100": 64.0}})
    cluster.run(1)
    assert {one.buyer for one in decode_state(GandivaFairState, cluster.state).trades} == {"carol"}


@pytest.mark.parametrize(("ids", "first"), [((10, 9), "9"), (("7_10", "7_9"), "7_9")], ids=str)
def test_ties_by_submission_go_by_number(ids: tuple[int | str, ...], first: str) -> None:
    decision = decided(*(job(number, 8) for number in ids))
    assert set(decision.targets) == {first}
    assert decision.order[0].job == first


def on_slow(number: int, hint: str = "model=resnext50,duration=20h", gpus: int = 8, run_time: float = 7200.0) -> Job:
    return job(number, gpus, hint=hint, on=[share("slow", gpus, cpus=3 * gpus, gpu_type="k80")], run_time=run_time)


@pytest.mark.parametrize(
    ("jobs", "moved"),
    [
        pytest.param([on_slow(1)], {"1": "fast"}, id="faster GPUs are idle"),
        pytest.param([on_slow(1, "model=vae,duration=20h")], {"1": "fast"}, id="also if they are faster by little"),
        pytest.param([on_slow(1, "model=vae,duration=150m")], {}, id="what is left does not pay for the restart"),
        pytest.param([on_slow(1, "model=other,duration=20h")], {}, id="nobody measured the model"),
        pytest.param([on_slow(1, run_time=60.0)], {}, id="its slice has only begun"),
        pytest.param([on_slow(1), job(2, 8, user="bob")], {}, id="a waiting job takes the idle GPUs"),
        pytest.param([on_slow(1), job(2, 4, user="bob")], {}, id="it needs more than are left"),
        pytest.param([on_slow(1, gpus=4), on_slow(2, gpus=4)], {"1": "fast", "2": "fast"}, id="both of two"),
        pytest.param(
            [replace(on_slow(1), original_request=Request(gpus=8, cpus=24, gpu_type="k80"))],
            {},
            id="it asks for a type",
        ),
    ],
)
def test_a_running_job_moves_to_idle_gpus_of_a_faster_type_where_that_pays(
    jobs: list[Job], moved: dict[str, str]
) -> None:
    nodes = [node("slow", gpu_type="k80"), node("fast", gpu_type="v100")]
    service = {one.id: one.gpus * one.run_time for one in jobs}
    asked = replace(situation(nodes, jobs, sample_speedups(), service=service), tickets=SLICES, restart_cost=300.0)
    decision = GANDIVA_FAIR.decide(asked)
    found = {
        one: target.allocations[0].node
        for one, target in decision.targets.items()
        if target.reasons[0].code is ReasonCode.PAYS_FOR_RESTART
    }
    assert found == moved == dict.fromkeys(decision.victims, "fast")
    homes = decode_state(GandivaFairState, decision.state).jobs
    assert {one: homes[one].assigned_pool for one in moved} == dict.fromkeys(moved, "fast v100")


def test_what_a_moved_job_has_counts_as_of_its_new_type_so_that_others_have_these_gpus_once_they_come() -> None:
    nodes = [node("slow", 4, "k80"), node("fast", 4, "v100")]
    cluster = Cluster(nodes, [job(1, 4, user="u0", hint="model=resnext50")], tickets(), sample_speedups())
    held = (share("slow", 4, cpus=12, gpu_type="k80"),)
    cluster.jobs = [replace(one, allocations=held, state=JobState.RUNNING, run_time=3600.0) for one in cluster.jobs]
    cluster.service["1"] = 4 * 3600.0
    cluster.run(10)
    assert (cluster.restarts, dict(cluster.by_type)) == (1, {("u0", "v100"): 4 * 10 * QUANTUM})
    account = decode_state(GandivaFairState, cluster.state).accounts["u0"]
    assert account.received == pytest.approx(6.33 * 4 * 9 * QUANTUM, rel=1e-3)
    cluster.jobs += [job(10 + number, user="u1", hint="model=vae") for number in range(8)]
    cluster.run(10)
    assert cluster.by_type["u1", "v100"] > 0
    cluster.by_type.clear()
    cluster.run(60)
    had = {user: sum(cluster.by_type[user, kind] for kind in ("v100", "k80")) / 60 / QUANTUM for user in ("u0", "u1")}
    bought = 2 / 3.79  # V100 for the 2 K80 of an equal part, by the listed models
    assert had == pytest.approx({"u0": 2 + bought, "u1": 6 - bought}, abs=0.2)
