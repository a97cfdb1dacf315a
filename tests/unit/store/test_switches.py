"""The pause switch."""

from __future__ import annotations

from slurmsched.store.database import Database
from slurmsched.store.store import Pause, Switches


def test_a_pause_says_who_set_it_and_why(database: Database) -> None:
    switches = Switches(database)
    switches.pause("root", "new drives", 10.0)
    assert switches.current_pause() == Pause("root", "new drives", 10.0)
    assert Pause("root", "new drives", 10.0).sentence == "paused by root: new drives"


def test_a_second_pause_replaces_the_first_unless_it_has_no_reason(database: Database) -> None:
    switches = Switches(database)
    switches.pause("root", "new drives", 10.0)
    switches.pause("eve", "", 20.0)
    assert switches.current_pause() == Pause("root", "new drives", 10.0)
    switches.pause("eve", "new nodes", 30.0)
    assert switches.current_pause() == Pause("eve", "new nodes", 30.0)


def test_resuming_says_whether_there_was_a_pause(database: Database) -> None:
    switches = Switches(database)
    switches.pause("root", "", 10.0)
    assert switches.resume()
    assert switches.current_pause() is None
    assert not switches.resume()
