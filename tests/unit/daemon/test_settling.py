"""Starts that take time or are refused: nobody else waits for them, and no job that ran loses its place to them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurmsched.daemon.execution import advance_plans
from slurmsched.model import JobId, JobState, OpenStart, Snapshot
from tests.builders import node, snapshot
from tests.unit.daemon.test_loop import Running, running
from tests.unit.daemon.world import START, World

BEHIND_DRAIN = """SELECT id FROM jobs WHERE reason LIKE '{"code":"behind_drain"%'"""


def daemon_in(folder: Path, *names: str) -> Running:
    daemon = running(folder, early=10.0)
    daemon.world = World(folder, nodes=[node(name) for name in names], clock=daemon.clock)
    return daemon


def placed(daemon: Running, at: float, seen: dict[float, dict[str, tuple[str, ...]]]) -> None:
    """Look at the jobs at this time, in seconds since the start."""
    daemon.clock.after(at, lambda: seen.update({at: daemon.world.where()}))


class Opened:
    """A plan that does something, so that it has to look again, or has settled and records what it last saw."""

    def __init__(self, told: list[Snapshot], later: Snapshot | None = None) -> None:
        self.execution = SimpleNamespace(outcomes=[], snapshot=None)
        self.over, self.settled, self.open_starts = False, later is None, dict[JobId, OpenStart]()
        self._told, self._later = told, later

    def advance(self, snapshot: Snapshot) -> None:
        self.execution.snapshot = snapshot
        self.execution.outcomes += ["held"] * (self._later is not None)

    def finish(self) -> None:
        self.execution.outcomes += ["overtaken"]

    def report(self, *, settled: bool = False) -> None:
        assert settled is self.settled
        self.execution.snapshot = self._later or self.execution.snapshot
        self._told.append(self.execution.snapshot)


def test_what_a_plan_records_is_not_older_than_what_another_one_did_before_it() -> None:
    """Else a job that the first one held again is stored as nobody's, and stays held for ever."""
    told, later = list[Snapshot](), snapshot(time=20.0)
    plans: list[Any] = [Opened(told, later), Opened(told)]
    assert advance_plans(plans, snapshot(time=10.0)) == ("held", "overtaken")
    assert [each.time for each in told] == [20.0, 20.0]
    assert len(plans) == 1


def test_a_start_that_slurm_refuses_delays_no_other(tmp_path: Path) -> None:
    daemon, seen = daemon_in(tmp_path, "n1", "n2"), dict[float, dict[str, tuple[str, ...]]]()
    daemon.world.cluster.refused["1"] = "BadConstraints"
    daemon.clock.after(50.0, lambda: daemon.world.submit(8))
    daemon.clock.after(54.0, lambda: daemon.world.submit(8))
    placed(daemon, 64.0, seen)
    daemon.run(65.0)
    assert seen[64.0]["1"] == ()
    assert seen[64.0]["2"] != ()


def test_fifty_refused_starts_do_not_delay_a_good_one(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(51)]
    daemon, seen = daemon_in(tmp_path, *names), dict[float, dict[str, tuple[str, ...]]]()

    def submit() -> None:
        for _ in range(51):
            daemon.world.submit(8)

    daemon.world.cluster.refused.update({str(number): "ReqNodeNotAvail" for number in range(1, 51)})
    daemon.clock.after(50.0, submit)
    placed(daemon, 52.0, seen)
    placed(daemon, 56.0, seen)
    held: list[set[str]] = []
    daemon.clock.after(56.0, lambda: held.append(daemon.world.held()))
    daemon.run(57.0)
    assert seen[52.0]["51"] != ()
    assert held == [{str(number) for number in range(1, 51)}], "the others were taken back after one look"


def started(daemon: Running, job: str) -> float:
    """When it started, in seconds since the start of the daemon."""
    at = daemon.world.simulated.observe().jobs_by_id[job].start_time
    assert at is not None
    return at - START


@pytest.mark.parametrize("others", [False, True], ids=["nobody else", "another job that does not fit"])
def test_fifty_refused_starts_do_not_delay_a_good_one_where_few_nodes_are_free(tmp_path: Path, others: bool) -> None:
    times = []
    for count in (0, 50):
        folder = tmp_path / str(count)
        folder.mkdir(mode=0o700)
        daemon = daemon_in(folder, *(f"n{number}" for number in range(4)))
        good = str(count + 1 + others)
        daemon.world.cluster.refused.update({str(number): "QOSMaxGRESPerUser" for number in range(1, count + 1)})

        def submit(daemon: Running = daemon, count: int = count) -> None:
            for _ in range(count):
                daemon.world.submit(8)
            if others:
                daemon.world.submit(48)
            daemon.world.submit(4)

        daemon.clock.after(50.0, submit)
        daemon.run(70.0, keep_holds=True)
        times.append(started(daemon, good))
    assert times[1] - times[0] <= 1.0, "one look at those that took all nodes"


def test_a_refused_start_is_made_again_when_slurm_would_take_it(tmp_path: Path) -> None:
    daemon, seen = daemon_in(tmp_path, "n1"), dict[float, dict[str, tuple[str, ...]]]()
    daemon.world.cluster.refused["1"] = "ReqNodeNotAvail"
    daemon.world.submit(8)
    daemon.clock.after(20.0, daemon.world.cluster.refused.clear)
    placed(daemon, 60.0, seen)
    daemon.run(61.0)
    assert seen[60.0] == {"1": ("n1",)}


def test_a_job_that_is_refused_again_and_again_is_left_to_slurm(tmp_path: Path) -> None:
    daemon, held = daemon_in(tmp_path, "n1"), list[set[str]]()
    daemon.world.cluster.refused["1"] = "BadConstraints"
    daemon.world.submit(8)
    for at in (5.0, 200.0):
        daemon.clock.after(at, lambda: held.append(daemon.world.held() | daemon.world.pinned()))
    daemon.run(250.0, keep_holds=True)
    assert held == [{"1"}, set()]
    (row,) = daemon.world.store.database.rows("SELECT sentence FROM jobs")
    assert row["sentence"].startswith("job 1 was refused by Slurm again and again (BadConstraints)")


def test_what_is_promised_to_a_job_that_slurm_has_not_started_yet_is_given_to_nobody(tmp_path: Path) -> None:
    daemon, seen = daemon_in(tmp_path, "n1", "n2"), dict[float, dict[str, tuple[str, ...]]]()
    daemon.world.cluster.refused["1"] = "Priority"
    daemon.world.submit(8)
    for at in (20.0, 40.0):
        daemon.clock.after(at, lambda: daemon.world.submit(8))
    for at in (60.0, 180.0):
        placed(daemon, at, seen)
    daemon.run(181.0)
    assert seen[60.0] == {"1": (), "2": ("n2",), "3": ()}
    assert seen[180.0] == {"1": (), "2": ("n2",), "3": ("n1",)}, "it was given two minutes"


def count(daemon: Running, verb: str) -> int:
    query = f"SELECT count(*) AS count FROM operations WHERE subject = '1' AND verb = '{verb}'"  # noqa: S608 own words
    (row,) = daemon.world.store.database.rows(query)
    return int(row["count"])


def test_a_victim_whose_newcomer_is_refused_returns_and_is_not_disturbed_for_it_again(tmp_path: Path) -> None:
    daemon, seen = daemon_in(tmp_path, "n1"), dict[float, dict[str, tuple[str, ...]]]()
    daemon.world.cluster.refused["2"] = "BadConstraints"
    daemon.world.submit(8)
    daemon.clock.after(9_950.0, lambda: daemon.world.submit(8))
    counted: list[int] = []
    for at in (10_190.0, 10_300.0, 11_000.0):
        placed(daemon, at, seen)
        daemon.clock.after(at, lambda: counted.append(count(daemon, "requeue")))
    daemon.run(11_001.0)
    assert [seen[at]["1"] for at in seen] == [("n1",)] * 3
    assert counted[0] <= counted[1] == counted[2] == 1
    assert count(daemon, "release") == 2, "its start, and its return, which no other round made again"


@given(
    sizes=st.lists(st.sampled_from((2, 4, 8)), min_size=2, max_size=4),
    later=st.lists(st.sampled_from((2, 4, 8)), min_size=1, max_size=3),
    refused=st.dictionaries(
        st.integers(1, 7), st.sampled_from(("BadConstraints", "ReqNodeNotAvail", "Resources", "Priority")), max_size=4
    ),
    since=st.sampled_from((0.0, 7_500.0, 7_830.0)),
)
@example(sizes=[4, 2, 4, 8], later=[4, 8, 2], refused={3: "BadConstraints"}, since=0.0)  # it displaced, and is refused
@example(sizes=[4, 4, 4, 8], later=[2, 8], refused=dict.fromkeys((1, 2, 3), "BadConstraints"), since=0.0)  # in turn
@example(  # displaced late: at the end it is held for some seconds between two tries
    sizes=[2, 2],
    later=[8, 8],
    refused={4: "BadConstraints", 2: "Priority", 6: "Priority", 7: "Resources"},
    since=7_500.0,
)
@example(  # the first waits for the node that the fourth could have a half of
    sizes=[8, 8, 8, 4],
    later=[4, 2, 2],
    refused={7: "BadConstraints", 1: "BadConstraints", 4: "ReqNodeNotAvail", 6: "Resources"},
    since=7_500.0,
)
@settings(max_examples=4, deadline=None)
def test_whatever_slurm_refuses_no_job_that_ran_stays_held_while_its_place_is_free(
    sizes: list[int], later: list[int], refused: dict[int, str], since: float
) -> None:
    until = 12_000.0  # each of four that are always refused has three tries, of which a full round makes one
    with TemporaryDirectory() as folder:
        daemon = daemon_in(Path(folder), "n1", "n2")
        world, last_nodes = daemon.world, dict[str, tuple[str, ...]]()

        def refuse() -> None:
            world.cluster.refused.update({str(number): why for number, why in refused.items()})

        daemon.clock.after(since, refuse)
        for gpus in sizes:
            world.submit(gpus)
        for gpus in later:
            daemon.clock.after(7_600.0, lambda gpus=gpus: world.submit(gpus))  # type: ignore[misc]  # bound early
        held_since = dict[str, float]()

        def look() -> None:
            """Notes where jobs run, and since when those are held that could run there again, unless their nodes are
            drained for a job that waited long: that has nothing to do with refusals."""
            last_nodes.update({job: nodes for job, nodes in world.where().items() if nodes})
            seen = world.simulated.observe()
            free = {one.name: one.free for one in seen.nodes}
            drained = {row["id"] for row in world.store.database.rows(BEHIND_DRAIN)}
            held = {
                job.id
                for job in seen.jobs_in_state(JobState.PENDING)
                if job.id in world.held() - drained
                and any(free[name].gpus >= job.original_request.gpus for name in last_nodes.get(job.id, ()))
            }
            for job in held_since.keys() - held:
                del held_since[job]
            for job in held:
                held_since.setdefault(job, world.clock.now())

        for at in range(10, int(until) + 1, 10):
            daemon.clock.after(float(at), look)
        daemon.run(until, keep_holds=True)
        assert world.clock.now() >= START + until
        waited = {job: world.clock.now() - began for job, began in held_since.items()}
        assert all(seconds < 600.0 for seconds in waited.values()), "held beside its own free place, in seconds"
