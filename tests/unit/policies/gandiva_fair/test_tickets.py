"""Whose tickets count how much, and what they stand for where GPUs differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.model import Association, Job
from slurmsched.policies.gandiva_fair.tickets import (
    build_ticket_registry,
    build_ticket_tree,
    compose_types,
    divide_by_tickets,
    entitled_gpus,
)
from slurmsched.settings import TicketSettings
from tests.builders import job

SSHARE = (
    Association("root", shares=None),
    Association("lab", parent="root", shares=3),
    Association("vision", parent="lab", shares=1),
    Association("vision", "alice", "vision", 2),
    Association("vision", "bob", "vision", 1),
    Association("language", parent="lab", shares=2),
    Association("language", "carol", "language", None),
    Association("guests", parent="root", shares=1),
    Association("guests", "dave", "guests", 0),
)


def shares(
    jobs: list[Job], said: TicketSettings, associations: tuple[Association, ...] = (), gpus: float = 12.0
) -> list[float]:
    caps = np.array([float(one.original_request.gpus) for one in jobs])
    return (
        divide_by_tickets(build_ticket_tree(jobs, build_ticket_registry(said, associations)), gpus, caps)
        .round(6)
        .tolist()
    )


def owned(number: int, user: str, gpus: int = 8, account: str = "") -> Job:
    return job(number, gpus, user=user, account=account)


@pytest.mark.parametrize(
    ("jobs", "said", "parts"),
    [
        pytest.param([owned(1, "a"), owned(2, "b"), owned(3, "b")], TicketSettings(), [6, 3, 3], id="users are equal"),
        pytest.param(
            [owned(1, "a"), owned(2, "b")], TicketSettings(users=("a=2",)), [8, 4], id="a user with two tickets"
        ),
        pytest.param(
            [owned(1, "a"), owned(2, "stranger")],
            TicketSettings(users=("a=3",), default=1),
            [8, 4],
            id="a user nobody named has the default, and no job gets more than it can use",
        ),
        pytest.param(
            [owned(1, "a", 1), owned(2, "b", 16)], TicketSettings(), [1, 11], id="what one leaves goes to the others"
        ),
        pytest.param(
            [owned(1, "a", 1), owned(2, "a", 16), owned(3, "b", 16)],
            TicketSettings(),
            [1, 5, 6],
            id="first to the other jobs of the same user",
        ),
        pytest.param(
            [owned(1, "a", 1, "x"), owned(2, "b", 16, "x"), owned(3, "c", 16, "y")],
            TicketSettings(accounts=("x=1", "y=1")),
            [1, 5, 6],
            id="then to the users of the same account",
        ),
        pytest.param(
            [owned(1, "a", 16, "x"), owned(2, "c", 16, "y"), owned(3, "d", 16, "z")],
            TicketSettings(accounts=("lab=1", "lab/x=1", "lab/y=3", "z=2")),
            [1, 3, 8],
            id="accounts within accounts",
        ),
        pytest.param(
            [owned(1, "a", 16, "x"), owned(2, "b", 16, "elsewhere")],
            TicketSettings(accounts=("x=2",)),
            [8, 4],
            id="an account nobody named stands beside the others",
        ),
        pytest.param(
            [owned(1, "a", 16, "x"), owned(2, "b", 16, "y"), owned(3, "a", 16, "z"), owned(4, "c", 16)],
            TicketSettings(accounts=("lab=2",)),
            [2, 4, 2, 4],
            id="all accounts nobody named stand there as one, and jobs without an account too",
        ),
        pytest.param(
            [owned(1, "a", 16, "x"), owned(2, "a", 16, "y"), owned(3, "b", 16, "x"), owned(4, "c", 16, "y")],
            TicketSettings(accounts=("x=1", "y=1")),
            [2, 2, 4, 4],
            id="a user in two accounts has half of the tickets in each",
        ),
    ],
)
def test_tickets_are_divided(jobs: list[Job], said: TicketSettings, parts: list[float]) -> None:
    assert shares(jobs, said) == pytest.approx(parts)


@pytest.mark.parametrize(
    ("jobs", "parts"),
    [
        pytest.param(
            [owned(1, "alice", account="vision"), owned(2, "carol", account="language")],
            [4, 8],
            id="by the shares of accounts",
        ),
        pytest.param(
            [owned(1, "alice", account="vision"), owned(2, "bob", account="vision")],
            [8, 4],
            id="by the shares of users in one account",
        ),
        pytest.param(
            [owned(1, "dave", account="guests"), owned(2, "erin", account="guests")],
            [6, 6],
            id="shares of 0 and users without an association count as the default",
        ),
    ],
)
def test_without_tickets_of_our_own_slurms_shares_count(jobs: list[Job], parts: list[float]) -> None:
    assert shares(jobs, TicketSettings(), SSHARE) == pytest.approx(parts)


LABS = (
    Association("root", shares=None),
    Association("lab", parent="root", shares=20),
    Association("vision", parent="lab", shares=3),
    Association("language", parent="lab", shares=1),
    Association("guests", parent="root", shares=5),
    Association("idle", parent="root", shares=0),
    Association("class", parent="guests", shares=7),
)


@pytest.mark.parametrize(
    ("accounts", "jobs", "parts"),
    [
        pytest.param(
            ("lab=2",), ("lab", "guests"), [9.6, 2.4], id="a quarter of the shares is a quarter of the tickets"
        ),
        pytest.param(("lab=2",), ("lab", "class"), [9.6, 2.4], id="also for an account below one that is not named"),
        pytest.param(("lab=2",), ("lab", "vision"), [6, 6], id="below a named account it is one of those there"),
        pytest.param(
            ("lab=1", "lab/vision=9"),
            ("vision", "language"),
            [9, 3],
            id="and has tickets by its share beside those there",
        ),
        pytest.param(("lab=2",), ("vision", "guests"), [9.6, 2.4], id="which do not count beside other labs"),
        pytest.param(("lab=2",), ("lab", "idle"), [8, 4], id="an account without shares has the default"),
        pytest.param(("lab=2",), ("lab", "elsewhere"), [8, 4], id="so has one that Slurm does not know"),
        pytest.param(
            ("lab=2",), ("lab", "elsewhere", "nowhere"), [8, 2, 2], id="all that Slurm does not know have it together"
        ),
        pytest.param(("x=2",), ("x", "guests"), [8, 4], id="no named account has shares: the default"),
    ],
)
def test_an_account_that_is_not_named_has_tickets_by_its_shares_in_slurm(
    accounts: tuple[str, ...], jobs: tuple[str, ...], parts: list[float]
) -> None:
    users = [owned(number, f"u{number}", 16, account) for number, account in enumerate(jobs)]
    assert shares(users, TicketSettings(accounts=accounts), LABS) == pytest.approx(parts)


def test_an_account_above_itself_hangs_under_the_root() -> None:
    jobs = [owned(1, "a", account="x"), owned(2, "b", account="y")]
    assert shares(jobs, TicketSettings(accounts=("y/x=1", "x/y=1"))) == pytest.approx([6, 6])


ANY = frozenset({"fast", "slow"})
FAST = frozenset({"fast"})


@pytest.mark.parametrize(
    ("jobs", "allowed", "parts"),
    [
        pytest.param([owned(1, "a"), owned(2, "b")], [ANY, ANY], [6, 6], id="everybody anywhere"),
        pytest.param(
            [owned(1, "a"), owned(2, "b"), owned(3, "c")],
            [FAST, FAST, ANY],
            [2, 2, 8],
            id="those who insist on the four fast ones share them",
        ),
        pytest.param(
            [owned(1, "a"), owned(2, "a"), owned(3, "b", 16)],
            [FAST, ANY, ANY],
            [3, 3, 6],
            id="what a user insists on is part of the user's share",
        ),
        pytest.param(
            [owned(1, "a"), owned(2, "b")], [frozenset(), ANY], [0, 8], id="a job that can run nowhere takes nothing"
        ),
    ],
)
def test_what_tickets_stand_for_where_jobs_insist_on_a_type(
    jobs: list[Job], allowed: list[frozenset[str]], parts: list[float]
) -> None:
    branch = build_ticket_tree(jobs, build_ticket_registry(TicketSettings(), ()))
    caps = np.array(
        [float(one.original_request.gpus) if kinds else 0.0 for one, kinds in zip(jobs, allowed, strict=True)]
    )
    assert entitled_gpus(branch, caps, allowed, {"fast": 4.0, "slow": 8.0}).tolist() == pytest.approx(parts)


def test_where_not_all_is_needed_the_fastest_is_taken() -> None:
    left = {"slow": 8.0, "fast": 4.0}
    assert compose_types(6, left, ("fast", "slow")) == {"fast": 4, "slow": 2}
    assert compose_types(12, left, ("fast", "slow")) == {"fast": 4, "slow": 8}


kinds = st.sampled_from((ANY, FAST, frozenset({"slow"})))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from((1, 2, 4, 8)), kinds), min_size=1, max_size=12))
def test_entitlements_are_within_every_type_and_use_all_that_can_be_used(
    wanted: list[tuple[str, int, frozenset[str]]],
) -> None:
    jobs = [owned(number, user, gpus) for number, (user, gpus, _) in enumerate(wanted)]
    allowed = [where for _, _, where in wanted]
    caps = np.array([float(gpus) for _, gpus, _ in wanted])
    capacity = {"fast": 4.0, "slow": 8.0}
    found = entitled_gpus(build_ticket_tree(jobs, build_ticket_registry(TicketSettings(), ())), caps, allowed, capacity)
    assert (found <= caps + 1e-6).all()
    total = {
        where: sum(float(gpus) for gpus, own in zip(found, allowed, strict=True) if own == where)
        for where in (ANY, FAST, frozenset({"slow"}))
    }
    assert total[FAST] <= 4 + 1e-6
    assert total[frozenset({"slow"})] <= 8 + 1e-6
    demand = {where: sum(gpus for _, gpus, own in wanted if own == where) for where in total}
    usable = min(demand[FAST], 4) + min(demand[frozenset({"slow"})], 8)
    assert sum(total.values()) == pytest.approx(min(12, usable + demand[ANY]))
