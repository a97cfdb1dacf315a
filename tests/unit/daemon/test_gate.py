"""What may be changed: the mode, the pause and the disable file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.daemon.gate import Gate
from slurmsched.model import Block, BlockCause, Operation, Reason, ReasonCode, Verb
from slurmsched.settings.definition import HookSettings, Mode, RoundSettings, Settings
from slurmsched.store.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store.in_memory()
    yield opened
    opened.close()


def gate(store: Store, mode: Mode = Mode.ENFORCE, disable_file: Path = Path("/nowhere/disable")) -> Gate:
    return Gate(
        Settings(rounds=RoundSettings(mode=mode), hook=HookSettings(disable_file=str(disable_file))), store.switches
    )


@pytest.mark.parametrize(
    ("mode", "may"),
    [
        pytest.param(Mode.OBSERVE, set(), id="observe changes nothing"),
        pytest.param(Mode.ADVISE, {Verb.NOTE}, id="advise writes notes"),
        pytest.param(Mode.PRIORITIZE, {Verb.NOTE, Verb.PRIORITIZE}, id="prioritize also moves priorities"),
        pytest.param(Mode.ENFORCE, set(Verb), id="enforce does everything"),
    ],
)
def test_each_mode_lets_through_its_verbs(store: Store, mode: Mode, may: set[Verb]) -> None:
    passing = {
        verb for verb in Verb if gate(store, mode).block_reason(Operation(verb, "7", Reason(ReasonCode.START))) is None
    }
    assert passing == may


@pytest.mark.parametrize("mode", Mode)
def test_giving_back_passes_in_every_mode(store: Store, mode: Mode) -> None:
    assert gate(store, mode).block_reason(Operation(Verb.RELEASE, "7", Reason(ReasonCode.GIVE_BACK))) is None


def test_what_the_identity_may_not_do_is_never_tried(store: Store) -> None:
    operation = Operation(Verb.WEIGH, "n1", Reason(ReasonCode.LEAN))
    assert gate(store).block_reason(operation) is None
    assert gate(store).block_reason(replace(operation, permitted=False)) == Block(
        BlockCause.NO_PERMISSION, "no permission to weigh: 'synsched doctor' shows which rights are missing"
    )


def test_a_pause_closes_it_and_names_who_paused(store: Store) -> None:
    entrance = gate(store)
    assert entrance.closed_reason() is None
    store.switches.pause("root", "new drives", 1.0)
    assert entrance.closed_reason() == Block(BlockCause.PAUSED, "paused by root: new drives")
    store.switches.resume()
    assert entrance.closed_reason() is None


def test_the_disable_file_closes_it(store: Store, tmp_path: Path) -> None:
    entrance = gate(store, disable_file=tmp_path / "disable")
    assert entrance.closed_reason() is None
    (tmp_path / "disable").touch()
    assert entrance.closed_reason() == Block(BlockCause.DISABLED, f"{tmp_path}/disable exists")


def test_a_disable_file_that_cannot_be_looked_for_closes_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    closed = gate(store, disable_file=tmp_path / "loop" / "disable").closed_reason()
    assert closed is not None
    assert closed.cause is BlockCause.DISABLED
    assert "cannot tell whether" in closed.sentence
