"""Policy state as it is stored: there and back, and what becomes of values that other programs wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.policies.gandiva_fair.accounts import GandivaFairState, PassRecord
from slurmsched.policies.gavel.rounds import GavelState
from slurmsched.policies.state import Account, TicketAccounts, Trade, decode_state, encode_state, stored

STATE = GandivaFairState(
    time=5.0,
    jobs={"1": PassRecord(2.5, 100.0, "n1 v100"), "2_3": PassRecord(0.0, 0.0, "")},
    accounts={"alice": Account(1.0, 2.0, {"v100": 1.5}, {"v100": 2.0}, {"k80": -3.0})},
    trades=(Trade("alice", "bob", "v100", "k80", 0.5, 2.0),),
    best_rates={"resnet50 v100": 9.0},
)
STORED = {
    "time": 5.0,
    "jobs": {"id": ["1", "2_3"], "pass": [2.5, 0.0], "attained": [100.0, 0.0], "home": ["n1 v100", ""]},
    "users": {
        "alice": {"due": 1.0, "had": 2.0, "holdings": {"v100": 1.5}, "speedups": {"v100": 2.0}, "owed": {"k80": -3.0}}
    },
    "trades": [{"seller": "alice", "buyer": "bob", "fast": "v100", "slow": "k80", "gpus": 0.5, "price": 2.0}],
    "best": {"resnet50 v100": 9.0},
}


def test_the_stored_keys_are_those_of_earlier_releases_and_what_these_lack_has_its_default() -> None:
    users = {user: {**account, "lag": 0.0} for user, account in STORED["users"].items()}
    assert encode_state(STATE) == {**STORED, "users": users, "saved_moves": 0.0}
    assert decode_state(GandivaFairState, STORED) == STATE
    assert decode_state(GandivaFairState, encode_state(STATE)) == STATE


def test_the_accounts_are_read_without_the_rest() -> None:
    assert decode_state(TicketAccounts, STORED) == TicketAccounts(STATE.time, STATE.accounts, STATE.trades)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        pytest.param({"time": "soon"}, {"time": None}, id="no number is no time"),
        pytest.param({"time": True}, {"time": None}, id="nor is a truth value"),
        pytest.param({"time": float("nan")}, {"time": None}, id="nor is NaN"),
        pytest.param({"time": 10**400}, {"time": None}, id="nor is what no float can hold"),
        pytest.param({"jobs": {**STORED["jobs"], "pass": [1.0]}}, {"jobs": {}}, id="columns of different lengths"),
        pytest.param(
            {"jobs": {**STORED["jobs"], "pass": ["x", 7.0]}}, {"jobs": {"2_3": PassRecord(7.0, 0.0, "")}},
            id="one job's pass is invalid",
        ),
        pytest.param({"users": {"alice": 3, "bob": {}}}, {"accounts": {"bob": Account()}}, id="one user's account is"),
        pytest.param({"trades": [7, *STORED["trades"]]}, {}, id="one trade is"),
        pytest.param({"best": [1, 2]}, {"best_rates": {}}, id="a list for a mapping"),
    ],
)  # fmt: skip
def test_an_invalid_value_costs_itself_alone(change: Mapping[str, object], left: Mapping[str, object]) -> None:
    expected = {**vars_of(STATE), **left}
    assert vars_of(decode_state(GandivaFairState, {**STORED, **change})) == expected


def vars_of(state: GandivaFairState) -> dict[str, object]:
    return {name: getattr(state, name) for name in ("time", "jobs", "accounts", "trades", "best_rates")}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["time", "jobs", "users", "trades", "best", "types", "at", "since", "total", "id", "pass"])


@given(anything | st.dictionaries(keys, anything | st.dictionaries(keys, anything)))
def test_any_value_is_read_without_an_error(raw: object) -> None:
    assert isinstance(decode_state(GandivaFairState, raw), GandivaFairState)
    assert isinstance(GavelState.decode(raw), GavelState)


@dataclass(frozen=True)
class Counted:
    """A state with a count under an older key."""

    rounds: int = field(default=0, metadata=stored("n"))


def test_a_field_is_read_and_written_under_its_stored_key() -> None:
    assert encode_state(Counted(3)) == {"n": 3}
    assert decode_state(Counted, {"n": 3, "rounds": 9}) == Counted(3)
