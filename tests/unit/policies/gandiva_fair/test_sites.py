"""Shares as a site has them: slices longer than a round, limits on moves, jobs that are not sliced or not managed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from slurmsched.knowledge import Knowledge, sample_speedups
from slurmsched.model import Job, ReasonCode, Request, SchedulerState
from slurmsched.policies.gandiva_fair.accounts import GandivaFairState
from slurmsched.policies.gandiva_fair.draining import Drain, Drains
from slurmsched.policies.gandiva_fair.problem import RunnableJob, StrideProblem
from slurmsched.policies.gandiva_fair.tickets import water_filling
from slurmsched.policies.sizes import Proportional
from slurmsched.policies.state import decode_state
from slurmsched.rounds.guards import restart_costs
from slurmsched.settings import GuardSettings, Settings, TicketSettings
from tests.builders import job, node, share, situation, snapshot
from tests.turning import QUANTUM, Cluster, tickets

WIDE = Request(gpus=16, gpus_per_node=8, nodes=2, tasks=2, cpus=2)


def sliced(rounds: float) -> TicketSettings:
    """Slices of so many rounds."""
    return TicketSettings(quantum=rounds * QUANTUM, wide_quantum=rounds * QUANTUM)


def had(cluster: Cluster, since: Mapping[tuple[str, str], float] | None = None, rounds: int = 0) -> dict[str, float]:
    """GPUs by user, on average."""
    gpus, seconds = dict[str, float](), rounds * QUANTUM or cluster.time
    for (user, kind), amount in cluster.by_type.items():
        gpus[user] = gpus.get(user, 0.0) + (amount - (since or {}).get((user, kind), 0.0)) / seconds
    return gpus


def staggered(cluster: Cluster, jobs: list[Job]) -> None:
    """One job arrives in each round."""
    for one in jobs:
        cluster.jobs.append(replace(one, submit_time=cluster.time))
        cluster.run(1)


class TestGangs:
    @pytest.mark.parametrize(("rounds", "moves"), [(1, 1000), (2, 8), (4.5, 15)])
    @pytest.mark.parametrize(
        "gang",
        [
            pytest.param(job("gang", user="wide", request=WIDE), id="two servers"),
            pytest.param(job("gang", 8, user="wide"), id="one server"),
            pytest.param(job("gang", user="wide", request=replace(WIDE, exclusive=True)), id="two exclusive servers"),
        ],
    )
    def test_a_gang_has_its_share_among_narrow_jobs_whatever_the_slices(
        self, gang: Job, moves: int, rounds: float
    ) -> None:
        cluster = Cluster([node("n1"), node("n2")], [], sliced(rounds), moves=moves)
        staggered(cluster, [job(n, 1, user="narrow") for n in range(12)])
        cluster.jobs.append(replace(gang, submit_time=cluster.time))
        staggered(cluster, [job(n, 1, user="narrow") for n in range(12, 24)])
        before = dict(cluster.by_type)
        cluster.run(60)
        assert had(cluster, before, 60)["wide"] == pytest.approx(8.0, rel=0.1)
        assert sum(had(cluster, before, 60).values()) >= 0.97 * 16

    def test_no_slice_begins_where_a_gang_is_next_and_it_is_told_when(self) -> None:
        """One slice is over and runs on; the other lasts two more rounds; a narrow job waits for neither."""
        runs = [job(n, 4, user="narrow", on=[share(f"n{n}", 4, cpus=12)], run_time=0.0) for n in (1, 2)]
        cluster = Cluster([node("n1", 4), node("n2", 4)], runs, sliced(4))
        cluster.run(2)
        wide = job(9, user="wide", request=replace(WIDE, gpus=8, gpus_per_node=4), submit_time=cluster.time)
        cluster.jobs += [wide, *(job(n, 4, user="narrow", submit_time=cluster.time) for n in (3, 4))]
        cluster.run(1)
        assert cluster.decision
        assert cluster.decision.waiting["9"].code is ReasonCode.EXPECTED_START
        cluster.run(6)
        assert cluster.service["9"] > 0

    @pytest.mark.parametrize(
        ("there", "sentence"),
        [
            pytest.param(
                [job(96, 8, on=[share("n1", 8, cpus=24)])],
                "on n1: job 96 should have left by then, and nothing may delay it",
                id="a job that is not managed, as after Slurm's own preemption",
            ),
            pytest.param(
                [],
                "starts on n1 next: Slurm still shows as used there what a job had that ended just now",
                id="nobody any more",
            ),
        ],
    )
    def test_a_gang_that_waits_for_no_managed_job_is_told_for_whom(self, there: list[Job], sentence: str) -> None:
        drains = Drains.__new__(Drains)
        drains._now, drains.of_job = 0.0, {"gang": Drain(SimpleNamespace(pools=(0,)), 60.0, 0.0, False)}
        at_hand = SimpleNamespace(snapshot=snapshot([node("n1")], there))
        pools = SimpleNamespace(node=lambda _: node("n1"))
        drains._session = SimpleNamespace(running={}, situation=at_hand, pools=pools)
        assert sentence in drains.reason("gang").sentence

    def test_nobody_who_stays_begins_where_a_gang_waits_for_those_who_do(self) -> None:
        """On each of two servers half is held by a job that cannot be preempted; a gang of both waits for these. Jobs
        that take turns fill the rest; one that cannot be preempted either and lasts long does not."""
        held = [
            job(f"h{n}", 4, user="h", on=[share(f"n{n}", 4, cpus=12)], run_time=0.0, time_limit=int(20 * QUANTUM))
            for n in (1, 2)
        ]
        stays = job("stays", 4, user="s", time_limit=int(40 * QUANTUM))
        cluster = Cluster([node("n1"), node("n2")], [*held, job("gang", user="wide", request=WIDE)], sliced(2))
        cluster.unmovable = frozenset({"h1", "h2", "stays"})
        cluster.run(1)
        cluster.jobs += [stays, *(job(f"a{n}", user="a") for n in range(12))]
        cluster.run(10)
        assert cluster.decision
        assert cluster.decision.waiting["gang"].code is ReasonCode.EXPECTED_START
        assert not cluster.service["stays"]
        assert sum(bool(one.nodes) for one in cluster.jobs if one.user == "a") == 8
        cluster.jobs = [one for one in cluster.jobs if one.user != "h"]
        cluster.run(3)
        assert cluster.service["gang"]


class TestFirstStarts:
    def test_a_gang_has_its_first_slice_as_soon_as_narrow_jobs_of_others(self) -> None:
        """Nine users with a job each come together: of eight GPUs one, of one the others. All run in three slices."""
        cluster = Cluster([node()], [job(f"u{n}", user=f"u{n}") for n in range(8)], tickets())
        cluster.jobs.append(job("gang", 8, user="gang"))
        cluster.run(3)
        assert all(cluster.service[one.id] for one in cluster.jobs)
        before = dict(cluster.by_type)
        cluster.run(90)
        assert had(cluster, before, 90)["gang"] == pytest.approx(8 / 9, rel=0.15)

    @pytest.mark.parametrize(("ran", "rounds"), [(False, 6), (True, 12)])
    def test_only_a_job_that_never_ran_cuts_a_slice_to_what_pays(self, ran: bool, rounds: int) -> None:
        """Restarts cost 18 s, so six rounds pay; by their part of a day slices have twelve."""
        runs = [job(n, user="a", on=[share("n1", [n])], run_time=0.0) for n in range(2)]
        cluster = Cluster([node("n1", 2)], runs, tickets(), moves_per_job_day=60)
        cluster.restart_costs = {str(n): 18.0 for n in range(4)}
        cluster.jobs += [job(n, user="b") for n in (2, 3)]
        if ran:
            cluster.service |= {"2": 1.0, "3": 1.0}
        while not cluster.restarts and cluster.time < 40 * QUANTUM:
            cluster.run(1)
        assert cluster.time / QUANTUM == pytest.approx(rounds + 1, abs=1)


class TestSliceLength:
    @pytest.mark.parametrize(
        ("other", "seconds"),
        [
            pytest.param({}, 600.0, id="the quantum, where restarts cost nothing"),
            pytest.param({"restart_costs": {"1": 180.0}}, 3600.0, id="twenty times the cost of its restart"),
            pytest.param({"restart_costs": {"2": 180.0}}, 600.0, id="that of another job is not its own"),
            pytest.param({"moves_per_job_day": 6}, 7200.0, id="its part of a day over the moves of a day"),
            pytest.param({"moves_per_job_day": 0}, 86400.0, id="a day, where nobody may be moved"),
        ],
    )
    def test_it_follows_from_what_a_restart_costs_and_from_the_guards(
        self, other: dict[str, object], seconds: float
    ) -> None:
        asked = situation([node()], [job(1, 8), job(2, 8)], tickets=TicketSettings(quantum=600.0), **other)
        runnable: RunnableJob = StrideProblem(asked, Proportional()).runnable_jobs[0]
        runnable.tickets = 4.0
        assert runnable.min_quantum(asked) == seconds

    @pytest.mark.parametrize(("others", "jobs"), [(1, 8), (3, 16)])
    def test_who_names_a_longer_lead_gets_no_more_than_who_names_a_short_one(self, others: int, jobs: int) -> None:
        """Alice has all eight GPUs when the others come with as many jobs of a lead of five seconds; hours later."""
        guards = Settings(guards=GuardSettings(restart_cost=120.0))

        def alice(lead: int) -> float:
            cluster = Cluster(
                [node()], [job(f"a{n}", user="a", hint=f"ckpt=usr1@{lead}") for n in range(jobs)], tickets()
            )
            cluster.run(2)
            users = "bcd"[:others]
            cluster.jobs += [
                job(f"{user}{n}", user=user, hint="ckpt=usr1@5", submit_time=cluster.time)
                for user in users
                for n in range(jobs)
            ]
            cluster.restart_costs = restart_costs(cluster.jobs, SchedulerState(), guards)
            before = dict(cluster.by_type)
            cluster.run(150)
            return had(cluster, before, 150)["a"]

        assert alice(900) == pytest.approx(alice(5), rel=0.02)


class TestWhatCannotBeSliced:
    """Eight GPUs and four users with sixteen jobs each, all of one GPU and without end."""

    @staticmethod
    def run(unmovable: frozenset[str], unmanaged: tuple[Job, ...] = ()) -> tuple[Cluster, dict[str, float]]:
        cluster = Cluster([node()], [], tickets(), unmovable=unmovable, unmanaged=unmanaged)
        cluster.jobs = [job(f"{user}{n}", user=user) for user in "abcd" for n in range(8)]
        cluster.run(48)
        return cluster, had(cluster)

    @pytest.mark.parametrize("count", [0, 2, 8])
    def test_it_is_charged_to_its_user(self, count: int) -> None:
        cluster, gpus = self.run(frozenset(f"a{n}" for n in range(count)))
        assert gpus == pytest.approx(dict.fromkeys("abcd", 2.0), rel=0.1)
        assert cluster.decision
        codes = {cluster.decision.waiting[one.id].code for one in cluster.jobs if not one.nodes}
        assert (ReasonCode.SHARE_HELD in codes) == (count > 2)

    @pytest.mark.parametrize(("gpus", "others"), [(1, 2.0), (2, 2.0), (4, 4 / 3), (8, 0.0)])
    def test_unmanaged_jobs_count_towards_the_share_of_their_user(self, gpus: int, others: float) -> None:
        devices = tuple(range(gpus))
        held = job("x", gpus, user="a", on=[replace(share("n1", gpus, cpus=gpus), indices=devices)])
        cluster, found = self.run(frozenset(), (held,))
        assert [found.get(user, 0.0) for user in "bcd"] == pytest.approx([others] * 3, rel=0.1)
        assert found.get("a", 0.0) == pytest.approx(max(0.0, 2.0 - gpus), abs=0.15)
        assert decode_state(GandivaFairState, cluster.state).accounts["b"].received > 0 or gpus == 8

    def test_whoever_holds_a_whole_share_is_promised_no_start_ahead_of_others_turns(self) -> None:
        """Of two servers a user holds half with jobs that end at their time limit. Slices of the other user's jobs end
        in every round, and a third job of the first waited next to them."""
        held = [job(f"a{n}", user="a", time_limit=7200.0, on=[share(f"n{n % 2}", (n // 2,), cpus=3)]) for n in range(4)]
        waits = [*(job(f"b{n}", user="b", time_limit=7200.0) for n in range(8)), job("c", user="a", time_limit=7200.0)]
        cluster = Cluster([node(f"n{n}", 4) for n in range(2)], [*held, *waits], tickets())
        cluster.unmovable = frozenset(one.id for one in held)
        for _ in range(12):
            cluster.run(1)
            assert cluster.decision is not None
            assert cluster.decision.promise is None or cluster.decision.promise.job != "c"
        assert had(cluster) == {"a": 4.0, "b": 4.0}

    def test_whoever_is_alone_and_holds_all_is_promised_the_start_of_a_gang_before_narrow_jobs(self) -> None:
        held = [job(n, user="a", time_limit=7200.0, on=[share("n1", (n,), cpus=3)]) for n in range(8)]
        gang = job("gang", 8, user="a", time_limit=7200.0)
        narrow = [job(f"late{n}", user="a", time_limit=14400.0, submit_time=60.0) for n in range(4)]
        cluster = Cluster([node()], [*held, gang], tickets())
        cluster.unmovable = frozenset(one.id for one in (*held, gang, *narrow))
        cluster.run(1)
        assert cluster.decision is not None
        assert cluster.decision.promise is not None
        assert cluster.decision.promise.job == "gang"
        cluster.jobs = [*cluster.jobs[2:], *narrow]
        cluster.run(3)
        assert not any(cluster.service[one.id] for one in narrow), "they would outlast what it waits for"

    def test_who_is_alone_may_have_all(self) -> None:
        cluster = Cluster([node()], [job(n, user="a") for n in range(16)], tickets())
        cluster.unmovable = frozenset(one.id for one in cluster.jobs)
        cluster.run(1)
        assert had(cluster) == {"a": 8.0}

    def test_a_job_that_is_larger_than_the_share_starts_and_is_made_up_for(self) -> None:
        large = [job(f"a{n}", 8, user="a") for n in range(2)]
        cluster = Cluster([node()], [*large], tickets(), unmovable=frozenset({"a0", "a1"}))
        cluster.jobs += [job(f"b{n}", user="b") for n in range(16)]
        cluster.run(30)
        started = [one for one in large if cluster.service[one.id]]
        assert len(started) == 1
        cluster.jobs = [one for one in cluster.jobs if one.id != started[0].id]
        ran = round(cluster.service[started[0].id] / 8 / QUANTUM)
        waited = 30 - ran
        cluster.run(ran - waited - 2)
        assert not any(cluster.service[one.id] for one in large if one not in started)
        cluster.run(30)
        assert all(cluster.service[one.id] for one in large)


class TestUsers:
    def test_a_mix_of_widths_leaves_no_lasting_error(self) -> None:
        """Jobs of 1, 2, 4 and 8 GPUs of six users with 1, 2 and 3 tickets on three servers."""
        users = {f"u{n}": n % 3 + 1 for n in range(6)}
        said = TicketSettings(users=tuple(f"{u}={t}" for u, t in users.items()), quantum=QUANTUM, wide_quantum=QUANTUM)
        jobs = [job(n, 2 ** (n * 7 % 11 % 4), user=f"u{n % 6}") for n in range(48)]
        cluster = Cluster([node(f"n{n}") for n in range(3)], jobs, said)
        cluster.run(60)
        before = dict(cluster.by_type)
        cluster.run(120)
        assert had(cluster, before, 120) == pytest.approx({u: 2.0 * t for u, t in users.items()}, rel=0.1)

    @pytest.mark.parametrize("seed", [42, 43])
    def test_on_eight_servers_users_of_mixed_widths_have_their_shares(self, seed: int) -> None:
        """16 users with 1, 2 and 4 tickets and three to eight jobs of 1, 2, 4 and 8 GPUs each."""
        random = np.random.default_rng(seed)
        users = {f"u{n}": (1, 2, 4)[n % 3] for n in range(16)}
        said = TicketSettings(users=tuple(f"{u}={t}" for u, t in users.items()), quantum=QUANTUM, wide_quantum=QUANTUM)
        jobs = [
            job(f"{user}-{n}", int(random.choice([1, 2, 4, 8])), user=user)
            for user in users
            for n in range(int(random.integers(3, 9)))
        ]
        caps = [float(sum(one.original_request.gpus for one in jobs if one.user == user)) for user in users]
        due = water_filling(64.0, np.array([*users.values()], dtype=float), np.array(caps))
        cluster = Cluster([node(f"n{n}") for n in range(8)], jobs, said)
        cluster.run(40)
        before = dict(cluster.by_type)
        cluster.run(80)
        found = had(cluster, before, 80)
        ratios = np.array([found[user] for user in users]) / due
        assert sum(found.values()) >= 0.99 * 64
        assert (abs(ratios - 1) <= 0.10).all()
        assert (abs(ratios - 1) <= 0.05).mean() >= 0.9

    def test_who_was_ahead_and_comes_again_is_still_ahead_by_what_time_has_left_of_it(self) -> None:
        """A user had the only GPU for six rounds, which others were due, and comes again at once or much later."""
        for pause, lag in ((1, -2 * QUANTUM), (9, 0.0)):
            cluster = Cluster([node("n1", 1)], [job("b", user="b")], tickets(), unmovable=frozenset({"a"}))
            cluster.jobs.insert(0, job("a", user="a", on=[share("n1", 1)]))
            cluster.run(6)
            ahead = decode_state(GandivaFairState, cluster.state).accounts["a"].lag
            assert ahead < 2 * lag
            cluster.jobs = [one for one in cluster.jobs if one.user == "b"]
            cluster.run(pause)
            cluster.jobs.append(job("a2", user="a", submit_time=cluster.time))
            cluster.run(1)
            account = decode_state(GandivaFairState, cluster.state).accounts["a"]
            assert account.lag == pytest.approx(min(0.0, ahead + pause * QUANTUM), abs=QUANTUM)
            assert (account.lag < lag) == (lag < 0)

    def test_many_jobs_do_not_hold_back_a_gang_of_the_same_user(self) -> None:
        """A user's narrow jobs come and go; the gang, which never ran, is next all the same."""
        narrow = [job(f"b{n}", user="b") for n in range(16)]
        cluster = Cluster([node()], [*narrow, job("gang", 8, user="a")], tickets())
        for n in range(6):
            cluster.jobs.append(job(f"a{n}", user="a", submit_time=cluster.time))
            cluster.run(1)
        assert cluster.service["gang"]

    def test_who_waits_for_the_checkpoints_of_others_is_due_a_share_and_gets_it_afterwards(self) -> None:
        """All that a user has is a gang of all GPUs, and others write their checkpoints for it for six rounds."""
        gang = job("gang", 8, user="a")
        cluster = Cluster([node("n1")], [gang, *(job(f"b{n}", user="b") for n in range(16))], tickets())
        cluster.run(7)
        assert not cluster.jobs[0].nodes
        before, had_before = decode_state(GandivaFairState, cluster.state), dict(cluster.by_type)
        cluster.awaiting = frozenset({"gang"})
        cluster.run(6)
        after = decode_state(GandivaFairState, cluster.state)
        assert after.jobs["gang"].pass_value == before.jobs["gang"].pass_value
        due = {user: after.accounts[user].due - before.accounts[user].due for user in "ab"}
        assert due == pytest.approx(dict.fromkeys("ab", 4.0 * 6 * QUANTUM))
        assert after.accounts["a"].lag - before.accounts["a"].lag >= 5 * QUANTUM
        cluster.awaiting = frozenset()
        cluster.run(26)
        assert had(cluster, had_before, 32) == pytest.approx(dict.fromkeys("ab", 4.0), rel=0.1)

    def test_who_waits_for_checkpoints_stays_in_the_queue_of_the_pool(self) -> None:
        """Two users with one GPU; while one awaits it, a job that comes later begins behind the pass of who waits."""
        cluster = Cluster([node("n1", 1)], [job("a", user="a"), job("b", user="b")], tickets())
        cluster.run(5)
        waits = next(one.id for one in cluster.jobs if not one.nodes)
        cluster.awaiting = frozenset({waits})
        cluster.jobs.append(job("c", user="c", submit_time=cluster.time))
        cluster.run(3)
        assert cluster.decision
        assert waits not in cluster.decision.targets.keys() | cluster.decision.waiting.keys()
        jobs = decode_state(GandivaFairState, cluster.state).jobs
        assert jobs["c"].pass_value > jobs[waits].pass_value

    def test_who_is_left_out_of_a_round_is_as_far_behind_afterwards(self) -> None:
        """A gang that waits for the checkpoints of those before it, and its user, who has no other job."""
        gang = job("gang", 8, user="a")
        cluster = Cluster([node("n1")], [gang, *(job(f"b{n}", user="b") for n in range(16))], tickets())
        cluster.run(7)
        before = decode_state(GandivaFairState, cluster.state)
        cluster.left_out = frozenset({"gang"})
        cluster.run(2)
        after = decode_state(GandivaFairState, cluster.state)
        assert after.jobs["gang"] == before.jobs["gang"]
        assert after.accounts["a"] == before.accounts["a"]
        cluster.jobs = [one for one in cluster.jobs if one.id != "gang"]
        cluster.run(1)
        assert "a" not in decode_state(GandivaFairState, cluster.state).accounts, (
            "an account lasts while there are jobs"
        )


class TestPinnedTypes:
    @pytest.mark.parametrize(("types", "first"), [(("k80", "v100"), "v100"), (("a100", "h100"), "h100")])
    def test_without_profiles_a_job_takes_the_type_that_is_faster_by_its_data_sheet(
        self, types: tuple[str, ...], first: str
    ) -> None:
        cluster = Cluster([node(kind, 1, kind) for kind in types], [job(1)], tickets(), Knowledge())
        cluster.run(1)
        assert {kind for _, kind in cluster.by_type} == {first}

    @staticmethod
    def worth(pinned: Mapping[str, str]) -> dict[str, float]:
        """GPUs of the slowest type that what each user had is worth, of four of each of three types."""
        models, known = {"a": "vae", "b": "resnet50", "c": "dcgan"}, sample_speedups()
        nodes = [node(f"{kind}1", 6, kind) for kind in ("v100", "p100", "k80")]
        jobs = [
            job(
                f"{user}{n}",
                user=user,
                hint=f"model={model}",
                request=Request(gpus=1, cpus=1, gpu_type=pinned.get(user)),
            )
            for user, model in models.items()
            for n in range(18)
        ]
        cluster = Cluster(nodes, jobs, tickets(), known)
        cluster.run(40)
        scaling = {user: known.models[model].scaling for user, model in models.items()}
        found = dict.fromkeys(models, 0.0)
        for (user, kind), gpus in cluster.by_type.items():
            rates = scaling[user]
            found[user] += gpus * rates[kind].rate_at(1) / rates["k80"].rate_at(1) / cluster.time
        return found

    @pytest.mark.parametrize("user", ["a", "b", "c"])
    def test_nobody_gains_by_asking_for_the_fastest_type_by_name_and_nobody_loses(self, user: str) -> None:
        without, pinned = self.worth({}), self.worth({user: "v100"})
        assert pinned[user] <= 1.02 * without[user]
        models, known = {"a": "vae", "b": "resnet50", "c": "dcgan"}, sample_speedups()
        for other in {*"abc"} - {user}:
            rates = known.models[models[other]].scaling
            equal_part = sum(2 * rates[kind].rate_at(1) / rates["k80"].rate_at(1) for kind in ("v100", "p100", "k80"))
            assert pinned[other] >= 0.97 * equal_part
