"""Trades (slide 12), and that nobody can gain by what he says of his jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slurmsched.experiments.gandiva_fair import model_choices, possible_gain, trade_until_no_pair_gains
from slurmsched.knowledge import sample_speedups
from slurmsched.policies.gandiva_fair.problem import StrideProblem
from slurmsched.policies.gandiva_fair.trading import Trader, compute_entitlements, listed_speedups, trade
from slurmsched.policies.sizes import Proportional
from slurmsched.policies.state import Trade
from slurmsched.settings import TicketSettings
from tests.builders import job, node, situation

V100 = {"v100": 1.0}


def trader(user: str, speedup: float, fast: float = 1, slow: float = 4, **other: float) -> Trader:
    return Trader(user, {"v100": fast, "k80": slow}, {"v100": speedup, "k80": 1.0}, **other)


def test_the_talks_trade_at_the_price_of_the_third_user() -> None:
    before = (trader("u1", 1.2), trader("u2", 6.0), trader("u3", 2.0, 0, 0))
    after, trades = trade(before, V100)
    assert trades == (Trade("u1", "u2", "v100", "k80", 1.0, 2.0),)
    assert [one.value for one in before] == pytest.approx([5.2, 10, 0])
    assert [one.value for one in after] == pytest.approx([6, 14, 0])


@pytest.mark.parametrize(
    ("traders", "listed", "trades"),
    [
        pytest.param([trader("u1", 1.2), trader("u2", 6.0)], {}, [], id="two users and no price of anybody else's"),
        pytest.param(
            [trader("u1", 1.2), trader("u2", 6.0)], {"v100": 4.0}, [("u1", 1.0, 4.0)], id="two users, at the list price"
        ),
        pytest.param(
            [trader("u1", 1.2), trader("u2", 6.0)], {"v100": 7.0}, [], id="a list price at which one of the two loses"
        ),
        pytest.param([trader("u1", 2.0), trader("u2", 2.0), trader("u3", 2.0)], {}, [], id="all alike"),
        pytest.param(
            [trader("u1", 1.2), trader("u2", 6.0, slow=1), trader("u3", 2.0)],
            {},
            [("u1", 0.5, 2.0)],
            id="the buyer has GPUs for half of it",
        ),
        pytest.param(
            [trader("u1", 1.2, spare_demand=0.5), trader("u2", 6.0), trader("u3", 2.0)],
            {},
            [("u1", 0.5, 2.0)],
            id="the seller has jobs for half of what he would get",
        ),
        pytest.param(
            [trader("u1", 1.2), trader("u2", 6.0, max_usable={"v100": 1.5}), trader("u3", 2.0)],  # type: ignore[arg-type]  # a mapping
            {},
            [("u1", 0.5, 2.0)],
            id="the buyer can use half of it",
        ),
        pytest.param(
            [trader("u1", 1.2), trader("u2", 6.0), trader("u3", 2.0), trader("u4", 1.5)],
            {},
            [("u1", 0.5, 1.5), ("u1", 0.5, 1.5)],
            id="of four without a list price the third sets the price and two buy",
        ),
        pytest.param(
            [trader("u1", 1.2), trader("u2", 6.0, slow=2), trader("u3", 5.0, slow=1), trader("u4", 1.5)],
            {"v100": 2.0},
            [("u4", 0.75, 2.0), ("u1", 0.25, 2.0), ("u1", 0.5, 2.0)],
            id="of four with the list price between them two buy what they can pay for, and two sell the same part",
        ),
        pytest.param(
            [trader("u1", 1.2), trader("u2", 6.0), trader("u3", 2.0), trader("u4", 1.5)],
            {"v100": 9.0},
            [("u4", 1.0, 2.0), ("u1", 1.0, 2.0)],
            id="of four with a list price above all the second sets the price",
        ),
        pytest.param(
            [replace(trader("u1", 1.2), speedups={}), trader("u2", 6.0), trader("u3", 2.0)],
            {},
            [],
            id="a user of whom nothing is known keeps what he has",
        ),
    ],
)
def test_trades(traders: list[Trader], listed: dict[str, float], trades: list[tuple[str, float, float]]) -> None:
    _, found = trade(traders, V100, listed)
    assert [(one.seller, pytest.approx(one.gpus), one.price) for one in found] == trades


def test_the_table_of_speedups_is_the_talks() -> None:
    known = sample_speedups()
    table = {
        name: tuple(
            round(profile.scaling[kind].rate_at(1) / profile.scaling["k80"].rate_at(1), 2)
            for kind in ("p40", "p100", "v100")
        )
        for name, profile in known.models.items()
    }
    assert table == {
        "vae": (1.17, 1.19, 1.25),
        "superresolution": (1.43, 1.73, 1.87),
        "dcgan": (4.34, 4.31, 6.42),
        "gru": (3.00, 2.58, 4.81),
        "lstm": (3.10, 3.58, 4.81),
        "resnet50": (3.17, 3.34, 5.14),
        "resnext50": (3.70, 4.12, 6.33),
    }
    milliseconds = [1000 / profile.scaling["k80"].rate_at(1) for profile in known.models.values()]
    assert milliseconds == pytest.approx([11.5, 207.5, 183.4, 48.4, 48.9, 134, 2005.7], rel=1e-4)


TYPES = {"p100": 3.0, "v100": 5.0}
speedups = st.fixed_dictionaries({"p100": st.floats(1, 8), "v100": st.floats(1, 8)})
gpus = st.floats(0, 20)


@st.composite
def markets(draw: st.DrawFn) -> list[Trader]:
    """Two to eight users, each with GPUs of three types and jobs for some more."""
    found = []
    for number in range(draw(st.integers(2, 8))):
        holdings = {kind: draw(gpus) for kind in ("k80", "p100", "v100")}
        found.append(
            Trader(f"u{number}", holdings, {**draw(speedups), "k80": 1.0}, spare_demand=draw(st.floats(0, 40)))
        )
    return found


listed = st.one_of(st.just({}), speedups)


@settings(deadline=None)
@given(markets(), listed)
def test_nobody_is_worse_off_and_no_gpu_is_lost_or_made(traders: list[Trader], prices: dict[str, float]) -> None:
    after, trades = trade(traders, TYPES, prices)
    for kind in ("k80", "p100", "v100"):
        assert sum(one.holdings[kind] for one in after) == pytest.approx(sum(one.holdings[kind] for one in traders))
    for before, one in zip(traders, after, strict=True):
        assert one.value >= before.value - 1e-6
        assert min(one.holdings.values()) >= -1e-6
        assert sum(one.holdings.values()) <= sum(before.holdings.values()) + before.spare_demand + 1e-6
    traded = {user for one in trades for user in (one.seller, one.buyer)}
    gains = {one.user for before, one in zip(traders, after, strict=True) if one.value > before.value + 1e-6}
    assert gains <= traded


@settings(deadline=None, max_examples=400)
@given(markets(), listed, st.data())
def test_nobody_gains_by_understating_or_inflating_a_speedup(
    traders: list[Trader], prices: dict[str, float], data: st.DataObject
) -> None:
    honest, _ = trade(traders, TYPES, prices)
    place = data.draw(st.integers(0, len(traders) - 1))
    truth = traders[place].speedups
    lie = {**data.draw(speedups), "k80": 1.0}
    told = [replace(one, speedups=lie) if at == place else one for at, one in enumerate(traders)]
    lied, _ = trade(told, TYPES, prices)
    got = replace(lied[place], speedups=truth).value
    assert got <= honest[place].value + 1e-6 * (1 + honest[place].value)


@settings(deadline=None)
@given(markets())
def test_no_two_on_the_two_sides_of_a_price_could_gain_any_more(traders: list[Trader]) -> None:
    """All buyers have spent their currency, or all sellers sold their GPUs."""
    for_two = ({kind: one.holdings[kind] for kind in ("k80", "v100")} for one in traders)
    unlimited = [
        replace(one, holdings=held, spare_demand=float("inf")) for one, held in zip(traders, for_two, strict=True)
    ]
    after, trades = trade(unlimited, V100)
    assume(trades)
    currency = sum(one.holdings["k80"] for one in after if one.speedups["v100"] > trades[0].price)
    for_sale = sum(one.holdings["v100"] for one in after if one.speedups["v100"] < trades[0].price)
    assert min(currency, for_sale) <= 1e-6


MODELS = ("", "vae", "superresolution", "gru", "lstm", "dcgan", "resnext50")
WISHES = st.tuples(st.sampled_from(MODELS), st.integers(1, 24), st.sampled_from((1, 2, 4)), st.integers(1, 3))


@settings(deadline=None, max_examples=40)
@given(st.lists(WISHES, min_size=2, max_size=6), st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_no_user_is_entitled_to_less_than_without_trading(
    wishes: list[tuple[str, int, int, int]], servers: list[int]
) -> None:
    """Users with other models, numbers of jobs, GPUs of a job and tickets, on servers of three types."""
    nodes = [
        node(f"{kind}{n}", 4, kind)
        for kind, count in zip(("v100", "p100", "k80"), servers, strict=True)
        for n in range(count)
    ]
    jobs = [
        job(100 * user + n, gpus, user=f"u{user}", hint=f"model={model}" if model else "")
        for user, (model, count, gpus, _) in enumerate(wishes)
        for n in range(count)
    ]
    held = tuple(f"u{user}={tickets}" for user, (_, _, _, tickets) in enumerate(wishes))
    said = (TicketSettings(users=held, trading=trading) for trading in (False, True))
    problems = [
        StrideProblem(situation(nodes, jobs, sample_speedups(), tickets=tickets), Proportional()) for tickets in said
    ]
    without, traded = (compute_entitlements(problem, {}) for problem in problems)
    for user, before in without.holdings.items():
        own, speedups = traded.holdings[user], without.speedups.get(user, {})
        worth = [sum(gpus * speedups.get(kind, 1.0) for kind, gpus in gpus_of.items()) for gpus_of in (before, own)]
        assert worth[1] >= worth[0] - 1e-6
        rows = [runnable.job.user == user for runnable in problems[1].runnable_jobs]
        assert traded.tickets[rows].sum() == pytest.approx(sum(own.values()))
    for kind in without.types:
        held_gpus = [sum(gpus_of.get(kind, 0.0) for gpus_of in found.holdings.values()) for found in (without, traded)]
        assert held_gpus[1] == pytest.approx(held_gpus[0])


@pytest.mark.parametrize(
    ("gpus", "least", "mean"),
    [
        pytest.param((12, 24, 128), 0.53, 0.74, id="the talk's"),
        pytest.param((12, 24, 64), 0.39, 0.61, id="half as many slow ones"),
        pytest.param((8, 8, 8), 0.27, 0.38, id="few slow ones, so the fast ones are exchanged for each other"),
        pytest.param((8, 24, 8), 0.21, 0.35, id="most of the middle type"),
    ],
)
def test_the_part_of_the_possible_gain_over_all_choices_of_four_models(
    gpus: tuple[float, ...], least: float, mean: float
) -> None:
    """Measured, and not to fall: markets of fixed parts reach no more than 0.745, 0.61, 0.395 and 0.375 by a search."""
    known, kinds, parts = sample_speedups(), ("v100", "p100", "k80"), list[float]()
    prices = listed_speedups(known, kinds, "k80")
    worth = {kind: count * prices[kind] for kind, count in zip(kinds[:-1], gpus, strict=False)}
    for models in model_choices(known):
        rates = [[known.models[model].scaling[kind].rate_at(1) for kind in kinds] for model in models]
        held, speedups = np.tile(np.array(gpus) / 4, (4, 1)), np.array(rates) / np.array(rates)[:, -1:]
        users = [
            Trader(model, dict(zip(kinds, own, strict=True)), dict(zip(kinds, faster, strict=True)))
            for model, own, faster in zip(models, held.tolist(), speedups.tolist(), strict=True)
        ]
        gained = sum(one.value for one in trade(users, worth, prices)[0]) - sum(one.value for one in users)
        parts.append(gained / possible_gain(held, speedups))
    assert np.mean(parts) > mean
    assert min(parts) > least


@pytest.mark.parametrize(
    ("jobs", "speedup"),
    [
        pytest.param([(4, 1, "vae"), (4, 1, "resnext50")], (1.25 + 6.33) / 2, id="as many of both"),
        pytest.param([(1, 8, "vae"), (1, 8, "resnext50")], (1.25 + 6.33) / 2, id="of any width"),
        pytest.param(
            [(8, 1, "resnext50"), (3, 8, "vae")],
            (8 * 6.33 + 3 * 1.25) / 11,
            id="a wide job is due as much as a narrow one, so it counts as much",
        ),
        pytest.param(
            [(2, 1, "resnext50"), (1, 8, "vae")],
            (2 * 6.33 + 6 * 1.25) / 8,
            id="what narrow jobs cannot use is due to the wide one",
        ),
    ],
)
def test_a_user_of_several_models_trades_at_the_speed_up_of_what_they_are_due(
    jobs: list[tuple[int, int, str]], speedup: float
) -> None:
    """Beside another user with jobs for all, eight GPUs are due."""
    mine = [
        job(100 * kind + number, gpus, user="u0", hint=f"model={model}")
        for kind, (count, gpus, model) in enumerate(jobs)
        for number in range(count)
    ]
    others = [job(1000 + number, user="u1", hint="model=gru") for number in range(16)]
    nodes = [node("fast", 8, "v100"), node("slow", 8, "k80")]
    problem = StrideProblem(situation(nodes, [*mine, *others], sample_speedups()), Proportional())
    assert compute_entitlements(problem, {}).speedups["u0"]["v100"] == pytest.approx(speedup, rel=2e-3)


def test_trading_until_no_pair_gains_would_pay_for_a_lie() -> None:
    """Who understates the highest speed-up buys in the cheaper trade; our rule leaves nothing to gain by it."""
    holdings, truth = np.ones((4, 2)) * (1, 4), np.array([(8, 1), (7.5, 1), (1, 1), (1.5, 1)])
    lie = truth.copy()
    lie[0, 0] = 6
    honest, lied = ((trade_until_no_pair_gains(holdings, said) * truth)[0].sum() for said in (truth, lie))
    assert lied > 1.5 * honest
    names = ("u1", "u2", "u3", "u4")
    told = (
        [trader(name, speedup) for name, (speedup, _) in zip(names, said.tolist(), strict=True)]
        for said in (truth, lie)
    )
    ours = [replace(trade(said, V100)[0][0], speedups={"v100": 8.0, "k80": 1.0}).value for said in told]
    assert ours[1] <= ours[0]


@pytest.mark.parametrize(
    ("speedups", "gain"),
    [
        pytest.param([(6, 1), (6, 1)], 0.0, id="all alike"),
        pytest.param([(6, 1), (1, 1)], 5.0, id="one V100 changes hands and nobody is worse off"),
        pytest.param([(1.25, 1), (1, 1)], 0.25, id="however little it helps"),
        pytest.param([(6, 1), (5, 1)], 0.8, id="the buyer runs out of slow GPUs at the lowest price of 5"),
    ],
)
def test_the_possible_gain(speedups: list[tuple[float, float]], gain: float) -> None:
    assert possible_gain(np.array([(1.0, 4.0)] * 2), np.array(speedups, dtype=float)) == pytest.approx(gain)


@settings(deadline=None)
@given(markets())
def test_no_rule_exceeds_the_possible_gain(traders: list[Trader]) -> None:
    kinds = ("v100", "p100", "k80")
    held, worth = (
        np.array([[getattr(one, name)[kind] for kind in kinds] for one in traders]) for name in ("holdings", "speedups")
    )
    after, _ = trade([replace(one, spare_demand=float("inf")) for one in traders], TYPES)
    repeated = trade_until_no_pair_gains(held, worth)
    most = possible_gain(held, worth) + 1e-6
    assert repeated.sum(axis=0) == pytest.approx(held.sum(axis=0))
    assert sum(one.value for one in after) - (held * worth).sum() <= most
    assert -1e-6 <= ((repeated - held) * worth).sum() <= most
