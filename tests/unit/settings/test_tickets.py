"""How tickets are written, and what is said to who writes them otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.settings import SettingsError, load_settings_file
from slurmsched.settings.schema import parse_tickets


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("alice=4", ("alice", 4.0)),
        ("lab/vision=2.5", ("lab/vision", 2.5)),
        pytest.param("alice=0", None, id="no tickets"),
        pytest.param("alice=-3", None, id="fewer than none"),
        pytest.param("alice=", None, id="nothing said"),
        pytest.param("=3", None, id="nobody"),
        pytest.param("alice=nan", None, id="no number"),
        pytest.param("alice=1e9", None, id="another way to write one"),
        pytest.param("alice = 4", None, id="spaces"),
    ],
)
def test_tickets(entry: str, found: tuple[str, float] | None) -> None:
    assert parse_tickets(entry) == found


@pytest.mark.parametrize(
    ("written", "said"),
    [
        pytest.param('users = ["alice=0"]', 'hold "NAME=TICKETS" with tickets above 0', id="zero tickets"),
        pytest.param('accounts = ["lab=-1"]', 'hold "NAME=TICKETS" with tickets above 0', id="negative tickets"),
        pytest.param("default = 0", "tickets.default is 0: expected a whole number of at least 1", id="no default"),
        pytest.param('quantum = "2h"', "tickets.quantum must not be longer than tickets.wide_quantum", id="slices"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(tmp_path: Path, written: str, said: str) -> None:
    file = tmp_path / "synsched.toml"
    file.write_text(f"[tickets]\n{written}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=said):
        load_settings_file(file)
