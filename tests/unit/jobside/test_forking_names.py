"""Names of the last release still work."""

from __future__ import annotations

from slurmsched.jobside import forking


def test_the_names_of_the_last_release_stand_for_the_same() -> None:
    assert forking.Fork is forking.ForkedRound
    assert forking.Copy is forking.CopyState
    assert forking.JobTracker is forking.ForkedJobTracker
    assert forking.portions is forking.divide_steps
