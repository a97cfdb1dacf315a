"""Two daemons of one cluster that share neither heartbeat nor database: each sees its holds lifted by the other."""

from __future__ import annotations

from pathlib import Path

from slurmsched.doctor.finding import Verdict
from slurmsched.doctor.installation import ROUNDS_EXAMINED, check_lifted_holds
from slurmsched.model import Operation, Reason, ReasonCode, Verb
from slurmsched.store.read_only import open_read_only
from tests.unit.daemon.world import PERIOD, World


def found_by(world: World) -> list[Verdict]:
    with open_read_only(world.path) as opened:
        return [
            finding.verdict
            for finding in check_lifted_holds(opened.lifted_holds(opened.rounds(ROUNDS_EXAMINED)[-1].started))
        ]


def two_hosts(folder: Path) -> tuple[World, World]:
    for name in ("ctl1", "ctl2"):
        (folder / name).mkdir()
    one, other = World(folder / "ctl1"), World(folder / "ctl2")
    other.cluster, other.clock, other.simulated, other.backend = one.cluster, one.clock, one.simulated, one.simulated
    return one, other


def test_a_daemon_whose_holds_another_lifts_in_several_rounds_says_so(tmp_path: Path) -> None:
    one, other = two_hosts(tmp_path)
    for _ in range(12):  # there is always one more job than there is room for
        one.submit(8, hint="ckpt=none", work=PERIOD)
    for _ in range(5):
        one.round()
        one.later(PERIOD)
        other.round()
        one.later(PERIOD)
    assert Verdict.PROBLEM in found_by(one) + found_by(other)


def test_a_daemon_that_is_alone_says_nothing(tmp_path: Path) -> None:
    alone = World(tmp_path)
    for number in range(8):
        alone.submit(1 + 7 * (number % 2), work=PERIOD)
        alone.round()
        alone.later(PERIOD / 2)
    assert found_by(alone) == []


def test_a_person_who_releases_once_is_no_scheduler(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(8)
    waiting = world.submit(8)
    world.rounds(2)
    assert waiting in world.held()
    release = Operation(Verb.RELEASE, waiting, Reason(ReasonCode.GIVE_BACK))
    world.simulated.execute((release,))
    world.rounds(2)
    with open_read_only(world.path) as opened:
        assert list(opened.lifted_holds(0.0).values()) == [(waiting,)]
    assert found_by(world) == []
