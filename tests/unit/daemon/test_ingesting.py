"""Reports become rates of the job that made them, and of no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.daemon.job_reports import ingest, record_out_of_memory
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.knowledge.refinement import measured_pairs
from slurmsched.model import JobState, NodeAllocation, OutOfMemory, Request, Resources, Snapshot
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import PolicySettings, Settings
from slurmsched.store.measurements import PairSample
from slurmsched.store.store import Store
from tests.builders import job, node, share, snapshot

NODES = [node("n1"), node("n2")]


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store.in_memory()
    yield opened
    opened.close()


def cluster(at: float, cpus: int = 3, restarts: int = 0, jobs: int = 1) -> Snapshot:
    """`jobs` of alice's on one GPU each, running for as long as the cluster has been there."""
    many = [
        job(
            number,
            on=[share(f"n{1 + number % 2}", [number % 8], cpus)],
            run_time=at,
            restarts=restarts,
            start_time=0.0,
        )
        for number in range(1, jobs + 1)
    ]
    return snapshot(NODES, many, time=at)


def said(spool: Path, number: str, at: float, done: int, **other: object) -> None:
    plain = Report(number, 0, Stage.RUNNING, at, done, done, at / 2, done / at * 2)
    Spool(spool, number).write(replace(plain, **other))  # type: ignore[arg-type]  # rows


def take_in(spool: Path, seen: Snapshot, store: Store) -> None:
    ingest(spool, seen, [job.id for job in seen.jobs], store.measurements, lambda _user: os.getuid())


def rates(store: Store, jobs: int = 9) -> dict[str, list[tuple[float, float]]]:
    """CPUs and rate, by job."""
    found = store.measurements.rates(str(number) for number in range(1, jobs + 1))
    return {job: [(point.cpus, round(point.rate, 6)) for point in points] for job, points in found.items()}


def complaints(store: Store) -> dict[str, str]:
    return {row["subject"]: row["sentence"] for row in store.database.rows("SELECT * FROM complaints")}


def test_what_was_reported_before_its_owner_was_forgotten_is_not_learnt_from_later_reports(
    tmp_path: Path, store: Store
) -> None:
    def read(at: float) -> None:
        forgotten = store.finished_runs.forgotten()
        seen = cluster(at)
        store.state.record_poll(None, seen, frozenset({"1"}))
        ingest(tmp_path, seen, ["1"], store.measurements, lambda _user: os.getuid(), forgotten=forgotten)

    said(tmp_path, "1", 100.0, 200)
    read(110.0)
    store.finished_runs.forget("alice", 120.0)
    read(130.0)
    assert rates(store) == {}, "the file is the same as before"
    assert store.database.rows("SELECT * FROM reported") == []
    said(tmp_path, "1", 200.0, 400)
    read(210.0)
    assert rates(store) == {}, "half of it is from before"
    said(tmp_path, "1", 300.0, 700)
    read(310.0)
    assert rates(store) == {"1": [(3.0, 6.0)]}, "300 steps in 50 s of work since the last report"


def test_rates_are_kept_by_what_the_job_had(tmp_path: Path, store: Store) -> None:
    said(tmp_path, "1", 100.0, 200)
    take_in(tmp_path, cluster(110.0), store)
    assert rates(store) == {"1": [(3.0, 4.0)]}
    said(tmp_path, "1", 400.0, 2000, run=1, steps=2200)
    take_in(tmp_path, cluster(410.0, cpus=12, restarts=1), store)
    assert rates(store) == {"1": [(12.0, 10.0), (3.0, 4.0)]}
    assert not complaints(store)


def test_what_a_restart_takes_is_measured_up_to_the_first_step_and_kept(tmp_path: Path, store: Store) -> None:
    """Runs begin at 0; the second has its first step after 80 s, and is a minute at work when it reports."""

    def measured() -> float | None:
        return store.measurements.last_reports(["1"])["1"].restart_seconds

    said(tmp_path, "1", 100.0, 200, busy=70.0)
    take_in(tmp_path, cluster(110.0), store)
    assert measured() is None, "a first start is no restart"
    said(tmp_path, "1", 75.0, 0, run=1, steps=200, busy=0.0)
    take_in(tmp_path, cluster(76.0, restarts=1), store)
    assert measured() is None, "nothing was done yet"
    said(tmp_path, "1", 140.0, 120, run=1, steps=320, busy=60.0)
    take_in(tmp_path, cluster(141.0, restarts=1), store)
    assert measured() == 80.0
    said(tmp_path, "1", 400.0, 200, run=1, steps=400, busy=100.0)
    take_in(tmp_path, cluster(401.0, restarts=1), store)
    assert measured() == 80.0, "a pause later is no restart"
    said(tmp_path, "1", 50.0, 0, run=2, steps=400, busy=0.0)
    take_in(tmp_path, cluster(51.0, restarts=2), store)
    assert measured() == 80.0, "known until the next one is measured"
    assert not complaints(store)
    seen = cluster(51.0, restarts=2)
    store.state.record_poll(None, seen, ["1"])
    assert store.state.load_state(seen, "gandiva-fair").restart_seconds == {"1": 80.0}


def test_a_report_that_was_read_counts_once(tmp_path: Path, store: Store) -> None:
    said(tmp_path, "1", 100.0, 200)
    for _ in range(3):
        take_in(tmp_path, cluster(110.0), store)
    assert store.database.rows("SELECT steps, seconds FROM rates") == [{"steps": 200.0, "seconds": 50.0}]


def test_what_is_measured_later_counts_more(tmp_path: Path, store: Store) -> None:
    said(tmp_path, "1", 7200.0, 3600)
    take_in(tmp_path, cluster(7200.0), store)
    said(tmp_path, "1", 14400.0, 3600 + 7200, rate=2.0)
    take_in(tmp_path, cluster(14400.0), store)
    assert rates(store) == {"1": [(3.0, pytest.approx((0.5 * 3600 + 7200) / (0.5 * 3600 + 3600)))]}


def test_a_report_of_the_run_before_waits_for_one_of_this(tmp_path: Path, store: Store) -> None:
    said(tmp_path, "1", 100.0, 200)
    take_in(tmp_path, cluster(110.0, restarts=1), store)
    assert rates(store) == {}
    assert not complaints(store)


def test_a_liar_changes_nothing_but_his_own_record_and_is_named(tmp_path: Path, store: Store) -> None:
    honest = Store.in_memory()
    for number in ("1", "2"):
        said(tmp_path, number, 100.0, 200)
    for each in (store, honest):
        take_in(tmp_path, cluster(110.0, jobs=2), each)
    said(tmp_path, "1", 400.0, 800)
    take_in(tmp_path, cluster(410.0, jobs=1), honest)
    said(tmp_path, "2", 400.0, 10**9, job="1")
    take_in(tmp_path, cluster(410.0, jobs=2), store)
    assert rates(store) == rates(honest)
    assert complaints(store) == {"job 2 of alice": "reports as job 1"}
    honest.close()


def test_a_complaint_is_forgotten_a_day_after_it_was_last_made(tmp_path: Path, store: Store) -> None:
    said(tmp_path, "1", 100.0, 200, job="2")
    take_in(tmp_path, cluster(110.0), store)
    (tmp_path / str(os.getuid()) / "1.json").unlink()
    take_in(tmp_path, cluster(80_000.0), store)
    assert complaints(store)
    take_in(tmp_path, cluster(110.0 + 86_401.0), store)
    assert not complaints(store)


def test_jobs_that_nobody_manages_or_that_wait_are_not_read(tmp_path: Path, store: Store) -> None:
    said(tmp_path, "1", 100.0, 200)
    ingest(tmp_path, cluster(110.0), [], store.measurements, lambda _user: os.getuid())
    take_in(tmp_path, snapshot(NODES, [job(1)], time=110.0), store)
    assert rates(store) == {}


@pytest.mark.parametrize(
    ("user", "hint", "where"),
    [
        pytest.param("alice", "model=m", "v100", id="the owner's next job of the model"),
        pytest.param("bob", "model=m", "h100", id="not somebody else's: it has the type that is fastest on paper"),
        pytest.param("alice", "model=other", "h100", id="nor another model"),
    ],
)
def test_what_jobs_reported_serves_the_next_of_their_owner(
    tmp_path: Path, store: Store, user: str, hint: str, where: str
) -> None:
    """On this site the V100s were faster for the model than the H100s, which two jobs found out that have ended."""
    nodes = [node(kind, gpu_type=kind) for kind in ("v100", "h100")]
    ended = [
        job(number, hint="model=m", on=[share(kind, gpu_type=kind)], run_time=100.0)
        for number, kind in enumerate(("v100", "h100"), start=1)
    ]
    for number, done in (("1", 400), ("2", 100)):
        said(tmp_path, number, 100.0, done, rate=done / 50)
    before = snapshot(nodes, ended, time=110.0)
    store.state.record_poll(None, before, [one.id for one in ended])
    take_in(tmp_path, before, store)
    waiting = job(3, hint=f"{hint},duration=5h", user=user)

    seen = snapshot(nodes, [waiting], time=100_000.0)
    store.state.record_poll(None, seen, ["3"])
    state = store.state.load_state(seen, "hadar")
    settings = Settings(policy=PolicySettings(system="hadar"))
    result = run_round(seen, state, settings, Knowledge(), Identity("root", Privilege.SLURM_USER))

    assert result.decision.targets["3"].nodes == (where,)


def test_a_family_that_reports_no_more_is_forgotten_with_the_history(tmp_path: Path, store: Store) -> None:
    said(tmp_path, "1", 100.0, 200)
    seen = snapshot(NODES, [job(1, hint="model=m", on=[share("n1")], run_time=110.0)], time=110.0)
    take_in(tmp_path, seen, store)
    assert store.measurements.family_rates(["alice m"])["alice m"][0].rate == 4.0
    store.state.prune(101.0 + 30 * 86400, 30, 1)
    assert store.measurements.family_rates(["alice m"])
    store.state.prune(101.0 + 30 * 86400 + 3600, 30, 1)
    assert not store.measurements.family_rates(["alice m"])


HALF = NodeAllocation("n1", Resources(0, 1, 0), "v100", (0,), 5)
PROFILES = Knowledge(
    {
        model: Profile(model, "", {}, "by hand", {"v100": Scaling((1,), (1.0,), beside={"a": 0.8, "b": 0.8})})
        for model in "ab"
    }
)


def pair(at: float, ended: str = "", **other: object) -> Snapshot:
    """Ann's job 1 and bob's job 2 on halves of one GPU; job 1 ended in this state, if one is given."""
    one = {"state": JobState.FINISHED, "state_text": ended, "end_time": at, **other} if ended else {}
    jobs = [
        job("1", request=Request(shards=5), user="ann", hint="model=a", on=[HALF], run_time=at, start_time=0.0, **one),
        job("2", request=Request(shards=5), user="bob", hint="model=b", on=[HALF], run_time=at, start_time=0.0),
    ]
    return snapshot([node("n1", 1, shards=10)], jobs, time=at)


def decide(store: Store, seen: Snapshot) -> None:
    """A whole round by tesserae-packed, as the store remembers it."""
    settings = Settings(policy=PolicySettings(system="tesserae-packed", order="fifo"))
    round_id = store.journal.begin_round(seen.time, "observe", "tesserae-packed", "fifo")
    store.state.record_poll(round_id, seen, [job.id for job in seen.jobs])
    state = store.state.load_state(seen, "tesserae-packed")
    result = run_round(seen, state, settings, PROFILES, Identity("synsched", Privilege.OPERATOR))
    store.state.record_decision(round_id, result, explain)


def out_of_memory(store: Store, spool: Path, seen: Snapshot) -> list[tuple[str, str]]:
    """Who is remembered to have run out of memory beside whom."""
    record_out_of_memory(spool, seen, store.measurements, lambda _user: os.getuid())
    found = store.measurements.out_of_memory(seen.time)
    return [(f"{pair.owner} {pair.model}", f"{pair.other_owner} {pair.other_model}") for pair in found]


def test_who_ran_out_of_memory_beside_another_is_remembered_for_a_month(tmp_path: Path, store: Store) -> None:
    decide(store, pair(100.0))
    assert out_of_memory(store, tmp_path, pair(200.0)) == []
    ended = pair(300.0, "OUT_OF_MEMORY")
    assert out_of_memory(store, tmp_path, ended) == [("ann a", "bob b")]
    decide(store, ended)
    assert out_of_memory(store, tmp_path, ended) == [("ann a", "bob b")]
    known = store.state.load_state(ended, "tesserae-packed").out_of_memory
    assert known == (OutOfMemory("ann", "a", "bob", "b", 300.0),)
    month = 30 * 86400.0
    assert store.measurements.out_of_memory(300.0 + month - 1)
    assert not store.measurements.out_of_memory(300.0 + month + 1)


def test_a_gpu_that_was_full_is_known_by_the_jobs_own_report(tmp_path: Path, store: Store) -> None:
    decide(store, pair(100.0))
    said(tmp_path, "1", 250.0, 10)
    assert out_of_memory(store, tmp_path, pair(300.0, "FAILED")) == [], "it failed by something else"
    said(tmp_path, "1", 250.0, 10, stage=Stage.OUT_OF_MEMORY)
    assert out_of_memory(store, tmp_path, pair(300.0, "FAILED", restarts=1)) == [], "a report of an earlier run"
    said(tmp_path, "1", 250.0, 10, stage=Stage.OUT_OF_MEMORY, job="2")
    assert out_of_memory(store, tmp_path, pair(300.0, "FAILED")) == [], "a report that names another job"
    said(tmp_path, "1", 250.0, 10, stage=Stage.OUT_OF_MEMORY)
    assert out_of_memory(store, tmp_path, pair(300.0, "FAILED")) == [("ann a", "bob b")]


def test_who_ran_out_of_memory_alone_bans_nobody(tmp_path: Path, store: Store) -> None:
    alone = replace(pair(100.0), jobs=pair(100.0).jobs[:1])
    decide(store, alone)
    assert out_of_memory(store, tmp_path, pair(300.0, "OUT_OF_MEMORY")) == []


def test_one_owner_fills_no_more_than_a_part_of_the_memory(store: Store) -> None:
    eve = [OutOfMemory("eve", f"m{number}", "bob", "b", 100.0 + number) for number in range(150)]
    store.measurements.record_out_of_memory([OutOfMemory("ann", "a", "bob", "b", 50.0)])
    store.measurements.record_out_of_memory(eve)
    known = store.measurements.out_of_memory(300.0)
    assert [pair.model for pair in known if pair.owner == "eve"] == [f"m{number}" for number in range(149, 49, -1)]
    assert [pair.model for pair in known if pair.owner == "ann"] == ["a"]


def reports(spool: Path, store: Store, seen: Snapshot, **done: int) -> None:
    """Jobs report so many steps, by model, five seconds ago."""
    for one in seen.jobs:
        if one.hints.model in done:
            steps, busy = done[one.hints.model], one.run_time - 5
            said(spool, one.id, seen.time - 5, steps, busy=busy, rate=steps / busy)
    take_in(spool, seen, store)


def pair_rates(store: Store) -> dict[tuple[str, str], float]:
    known = store.measurements.pair_rates(["ann a", "bob b"])
    return {(rate.family, rate.other): round(rate.rate, 6) for rate in known}


def joined(at: float, since: float) -> Snapshot:
    """The pair whose second job has started at `since`."""
    seen = pair(at)
    return replace(seen, jobs=(seen.jobs[0], replace(seen.jobs[1], start_time=since, run_time=at - since)))


def test_what_a_job_measures_beside_another_is_kept_apart_from_what_it_measures_alone(
    tmp_path: Path, store: Store
) -> None:
    alone = [replace(pair(at), jobs=pair(at).jobs[:1]) for at in (105.0, 205.0)]
    reports(tmp_path, store, alone[0], a=1000)
    assert pair_rates(store) == {}, "at its first report nobody knows who was there before"
    reports(tmp_path, store, alone[1], a=2000)
    assert pair_rates(store) == {("ann a", ""): 10.0}
    reports(tmp_path, store, joined(305.0, 250.0), a=2800)
    assert pair_rates(store) == {("ann a", ""): 10.0}, "alone for a part of the time, and beside another for the rest"
    reports(tmp_path, store, joined(405.0, 250.0), a=3400)
    assert pair_rates(store) == {("ann a", ""): 10.0, ("ann a", "bob b"): 6.0}
    assert rates(store) == {}, "a part of a GPU gives no rate of whole ones"
    reports(tmp_path, store, replace(pair(505.0), jobs=pair(505.0).jobs[:1]), a=4200)
    assert pair_rates(store) == {("ann a", ""): 10.0, ("ann a", "bob b"): 6.0}, "the other one left in between"


def test_the_rates_of_both_tell_the_next_round_what_the_pair_is_worth(tmp_path: Path, store: Store) -> None:
    alone = [PairSample(family, "", "v100", 1, 1.0, 1000, 100.0, 50.0) for family in ("ann a", "bob b")]
    store.measurements.record((), (), (), 100.0, alone)
    reports(tmp_path, store, joined(405.0, 210.0), a=3000, b=1900)
    reports(tmp_path, store, joined(505.0, 210.0), a=3600, b=2200)
    assert not [subject for subject in complaints(store) if subject.startswith("job")]
    seen = joined(505.0, 210.0)
    store.state.record_poll(None, seen, ["1", "2"])
    state = store.state.load_state(seen, "tesserae-packed")
    known = measured_pairs(PROFILES, state.pair_rates)
    assert known.rate(seen.jobs[0], seen.jobs[1], "v100") == pytest.approx(0.6)
    assert known.rate(seen.jobs[1], seen.jobs[0], "v100") == pytest.approx(0.3)
    settings = Settings(policy=PolicySettings(system="tesserae-packed", order="fifo"))
    result = run_round(seen, state, settings, PROFILES, Identity("synsched", Privilege.OPERATOR))
    assert result.decision.targets["2"].speed == pytest.approx(0.3), "the profile says 0.8"
