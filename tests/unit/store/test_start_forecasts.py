"""What is kept of forecasts of starts, and how these turned out."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from slurmsched.model import ExpectedTime, Hold, Job, JobState, QueueForecast, StartForecast, StartRanges
from slurmsched.store.read_only import open_read_only
from slurmsched.store.rows import ForecastRow, StartCalibration
from slurmsched.store.store import Store
from tests.builders import job, node, share, snapshot

NOW, HOUR, DAY = 1_790_000_000.0, 3600.0, 86400.0
NEVER = ExpectedTime(None, None, None)


class Kept:
    """A database in which time goes on from NOW; job 1 waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = self.opened()
        self.waits()

    def opened(self) -> Store:
        """As a new process would open it; only that no test loses power."""
        store = Store.open(self.path, NOW)
        store.database._database.conn.execute("PRAGMA synchronous = OFF")
        return store

    def poll(self, *jobs: Job, at: float = 0.0) -> int:
        """A round that sees these jobs; returns how many starts were compared."""
        seen = snapshot([node()], jobs, time=NOW + at)
        self.store.state.record_poll(None, seen, {one.id for one in jobs})
        return self.store.start_forecasts.compare(seen)

    def waits(self, *numbers: int, at: float = 0.0) -> None:
        self.poll(*(job(number, user="alice", submit_time=NOW) for number in numbers or (1,)), at=at)

    def starts(self, number: int = 1, at: float = 0.0, beside: int = 99) -> int:
        """Seen a minute after it started, while another job waits."""
        ran = job(number, user="alice", submit_time=NOW, on=[share()], start_time=NOW + at, run_time=60.0)
        return self.poll(ran, job(beside, user="alice", submit_time=NOW), at=at + 60.0)

    def tell(self, at: float, start: ExpectedTime, number: int = 1, draws: int = 20) -> int:
        told = StartForecast(str(number), start, NEVER, draws, 0)
        known = QueueForecast(NOW + at, NOW + at + 7 * DAY, draws, (told,))
        return self.store.start_forecasts.record(known, NOW + at + 20.0)

    def told(self) -> dict[str, ForecastRow]:
        with open_read_only(self.path) as store:
            return dict(store.start_forecasts())

    def calibration(self) -> tuple[StartCalibration, ...]:
        with open_read_only(self.path) as store:
            return store.start_calibration()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "synsched.db")


def between(low: float, median: float, high: float) -> ExpectedTime:
    """In seconds after NOW."""
    return ExpectedTime(NOW + low, NOW + median, NOW + high)


SOON = between(1 * HOUR, 2 * HOUR, 3 * HOUR)


def test_the_last_forecast_of_each_waiting_job_is_what_is_told(kept: Kept) -> None:
    assert kept.tell(0, between(1, 2, 3)) == 1
    assert kept.tell(300, SOON) == 1
    assert kept.told() == {"1": ForecastRow("1", NOW + 300, NOW + 300 + 7 * DAY, 20, SOON, NEVER, "")}


def test_who_is_left_out_is_told_with_why_in_few_words(kept: Kept) -> None:
    kept.store.start_forecasts.record(QueueForecast(NOW, NOW + DAY, 20, (), {"1": "it is held " * 100}), NOW)
    told = kept.told()["1"]
    assert (told.start, told.why.startswith("it is held"), len(told.why)) == (NEVER, True, 200)


def test_a_job_that_no_round_has_seen_or_that_runs_is_not_told_of(kept: Kept) -> None:
    kept.starts()
    assert kept.tell(300, SOON) == 0
    assert kept.tell(300, SOON, number=5) == 0
    assert kept.told() == {}


def test_a_start_is_compared_with_what_was_told_first(kept: Kept) -> None:
    kept.tell(0, SOON)
    kept.tell(300, between(50_000, 60_000, 70_000))
    assert kept.starts(at=2.5 * HOUR) == 1
    assert kept.calibration() == (StartCalibration("first", 1, 1.0, 0.5 * HOUR),)
    assert kept.told() == {}, "it does not wait any more"
    assert kept.starts(at=2.5 * HOUR) == 0, "it counts once"


def test_and_with_what_was_told_about_an_hour_before(kept: Kept) -> None:
    wrong = between(50_000, 60_000, 70_000)
    for minute in range(0, 150, 5):
        kept.tell(minute * 60.0, SOON if 80 <= minute <= 90 else wrong)
    kept.starts(at=2.5 * HOUR)
    first, hour = kept.calibration()
    assert (first.within, hour.within, hour.error) == (0.0, 1.0, 0.5 * HOUR)


ROWS = [
    pytest.param(SOON, 1 * HOUR - 50.0, 1.0, 1 * HOUR + 50.0, id="ranges hold to a minute"),
    pytest.param(SOON, 1 * HOUR - 70.0, 0.0, 1 * HOUR + 70.0, id="too early"),
    pytest.param(SOON, 3 * HOUR + 70.0, 0.0, 1 * HOUR + 70.0, id="too late"),
    pytest.param(replace(SOON, high=None), 30 * HOUR, 1.0, 28 * HOUR, id="no end of the range within the horizon"),
    pytest.param(NEVER, 30 * HOUR, 0.0, 7 * DAY - 30 * HOUR, id="told to start after the horizon"),
    pytest.param(NEVER, 8 * DAY, 1.0, 0.0, id="it did start after the horizon"),
]


@pytest.mark.parametrize(("start", "started", "within", "error"), ROWS)
def test_a_range_holds_or_does_not(
    kept: Kept, start: ExpectedTime, started: float, within: float, error: float
) -> None:
    kept.tell(0, start)
    kept.starts(at=started)
    assert kept.calibration() == (StartCalibration("first", 1, within, error),)


def test_what_was_told_after_the_start_does_not_count(kept: Kept) -> None:
    kept.tell(0, between(0, 0, 0))
    assert kept.starts(at=10.0) == 0
    assert kept.calibration() == ()


def test_one_of_few_draws_is_told_and_not_compared(kept: Kept) -> None:
    kept.tell(0, SOON, draws=8)
    assert kept.told()["1"].start == SOON
    kept.starts(at=2 * HOUR)
    assert kept.calibration() == ()


def test_a_job_that_was_cancelled_is_no_start(kept: Kept) -> None:
    kept.tell(0, SOON)
    assert kept.poll(at=300.0) == 0
    assert (kept.told(), kept.calibration()) == ({}, ())


def test_a_run_that_began_and_ended_between_two_rounds_counts_if_slurm_still_shows_it(kept: Kept) -> None:
    kept.tell(0, SOON)
    ended = job(1, user="alice", submit_time=NOW, state=JobState.FINISHED, start_time=NOW + 2 * HOUR)
    assert kept.poll(ended, at=2 * HOUR + 200.0) == 1


def test_all_of_it_survives_a_restart(kept: Kept) -> None:
    kept.tell(0, SOON)
    kept.store.close()
    kept.store = kept.opened()
    assert kept.told()["1"].start == SOON
    kept.starts(at=2 * HOUR)
    assert kept.calibration()[0].starts == 1


def test_forgetting_a_user_deletes_both_and_a_forecast_under_way_is_not_stored(kept: Kept) -> None:
    kept.waits(1, 2)
    kept.tell(0, SOON)
    kept.starts(at=2 * HOUR, beside=2)
    kept.tell(2 * HOUR, SOON, number=2)
    assert kept.store.finished_runs.forget("alice", NOW + 2 * HOUR + 60)["forecasts of starts"] == 6
    assert (kept.told(), kept.calibration()) == ({}, ())
    assert kept.tell(2 * HOUR, SOON, number=2) == 0, "it began before that"
    assert kept.tell(2 * HOUR + 300, SOON, number=2) == 1


def test_it_goes_with_the_job_and_starts_as_long_as_history(kept: Kept) -> None:
    kept.waits(1, 2)
    kept.tell(0, SOON)
    kept.starts(at=2 * HOUR, beside=2)
    kept.tell(3 * HOUR, SOON, number=2)
    kept.store.database.write("UPDATE jobs SET state = 'finished'")
    kept.store.state.prune(NOW + 100 * DAY, keep_days=90, keep_snapshots=1)
    assert (kept.told(), kept.calibration()) == ({}, ())


def test_only_so_many_starts_are_kept(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmsched.store.start_forecasts.MOST_STARTS", 3)
    for number in range(1, 6):
        kept.waits(number)
        kept.tell(0, SOON, number=number)
        kept.starts(number, at=HOUR + number)
    assert kept.calibration()[0].starts == 3


def test_a_damaged_row_costs_itself_alone(kept: Kept) -> None:
    kept.waits(1, 2)
    for number in (1, 2):
        kept.tell(0, SOON, number=number)
    kept.store.database.write("UPDATE start_forecasts SET told = 'x', start_low = 'y' WHERE job = '1'")
    assert list(kept.told()) == ["2"]
    assert kept.starts(1, at=2 * HOUR, beside=2) == 0
    assert kept.starts(2, at=2 * HOUR) == 1


def corrected(below: float, above: float, covered: int) -> StartRanges:
    """The ranges after one outcome, outside on that side or not."""
    step, outside = StartRanges.STEP, StartRanges.OUTSIDE
    return StartRanges(exp(step * (below - outside)), exp(step * (above - outside)), 1, covered)


def factors(kept: Kept) -> StartRanges:
    """The ranges, whenever they were corrected."""
    return replace(kept.store.start_forecasts.ranges(), at=0.0)


OUTCOMES = [
    pytest.param(1 * HOUR - 70.0, corrected(1, 0, 0), id="before the range"),
    pytest.param(2 * HOUR, corrected(0, 0, 1), id="in the range"),
    pytest.param(3 * HOUR + 70.0, corrected(0, 1, 0), id="after the range"),
]


@pytest.mark.parametrize(("started", "ranges"), OUTCOMES)
def test_a_start_corrects_later_ranges_once(kept: Kept, started: float, ranges: StartRanges) -> None:
    kept.tell(0, SOON)
    kept.starts(at=started)
    kept.starts(at=started)
    assert factors(kept) == ranges


def test_a_job_that_waits_after_its_range_counts_then_and_not_again_when_it_starts(kept: Kept) -> None:
    kept.tell(0, SOON)
    kept.waits(1, at=3 * HOUR - 1.0)
    assert kept.store.start_forecasts.ranges() == StartRanges()
    kept.waits(1, at=3 * HOUR + 100.0)
    late = corrected(0, 1, 0)
    assert factors(kept) == late
    kept.waits(1, at=4 * HOUR)
    kept.tell(4 * HOUR, SOON)
    kept.starts(at=5 * HOUR)
    assert factors(kept) == late


def test_jobs_of_two_hours_correct_the_ranges_once_by_the_part_that_was_outside(kept: Kept) -> None:
    kept.waits(1, 2)
    kept.tell(0, SOON, number=1)
    kept.tell(0, SOON, number=2)
    kept.starts(1, at=2 * HOUR, beside=2)
    first = factors(kept)
    assert first == corrected(0, 0, 1)
    kept.starts(2, at=3 * HOUR + 100.0)
    assert factors(kept) == first, "an hour later it is too early"
    ran = job(2, user="alice", submit_time=NOW, on=[share()], start_time=NOW + 3 * HOUR + 100.0, run_time=6800.0)
    kept.poll(ran, at=5 * HOUR)
    late = factors(kept)
    assert (late.counted, late.covered) == (2, 1)
    assert late.above / first.above == pytest.approx(exp(StartRanges.STEP * 0.9))


def test_a_job_that_ran_and_waits_again_has_started(kept: Kept) -> None:
    kept.waits(1, 2)
    kept.tell(0, SOON, number=1)
    kept.tell(0, SOON, number=2)
    kept.starts(2, at=1.5 * HOUR, beside=1)
    kept.starts(1, at=2 * HOUR)
    kept.waits(1, at=2.5 * HOUR)
    kept.waits(1, at=6 * HOUR)
    assert factors(kept).covered == 2


def test_a_job_forecast_a_thousand_times_counts_once(kept: Kept) -> None:
    for second in range(1000):
        kept.tell(second, SOON)
    kept.starts(at=2 * HOUR)
    assert kept.store.start_forecasts.ranges().counted == 1


def test_a_job_that_is_requeued_counts_once(kept: Kept) -> None:
    kept.tell(0, SOON)
    for attempt in range(1, 5):
        kept.starts(at=attempt * 10 * HOUR)
        kept.waits(1, 99, at=attempt * 10 * HOUR + HOUR)
        kept.tell(attempt * 10 * HOUR + HOUR, between(36_000, 37_000, 38_000))
    assert kept.store.start_forecasts.ranges().counted == 1


NOTHING = [
    pytest.param(job(1, user="alice", submit_time=NOW, hold=Hold.USER), id="its owner holds it"),
    pytest.param(job(2, user="alice", submit_time=NOW), id="it was cancelled"),
]


@pytest.mark.parametrize("seen", NOTHING)
def test_what_others_decide_tells_nothing(kept: Kept, seen: Job) -> None:
    kept.tell(0, SOON)
    kept.poll(seen, at=HOUR)
    kept.poll(seen, at=5 * HOUR)
    assert kept.store.start_forecasts.ranges() == StartRanges()
    assert kept.store.database.rows("SELECT job FROM first_draws") == []


def test_what_is_told_is_the_range_corrected_and_outcomes_are_compared_with_the_draws(kept: Kept) -> None:
    kept.store.database.write("INSERT INTO start_ranges VALUES (1, 2.0, 3.0, 10, 8, 0)")
    assert kept.tell(0, SOON) == 1
    told = kept.told()["1"].start
    assert told == StartRanges(2.0, 3.0).range_of(SOON, NOW, NOW + 7 * DAY)
    kept.tell(300, SOON)
    (row,) = kept.store.database.rows("SELECT low, high, told_low, told_high FROM first_draws")
    assert (row["low"], row["high"]) == (SOON.low, SOON.high)
    assert (row["told_low"], row["told_high"]) == (told.low, told.high)
    kept.starts(at=4 * HOUR)
    ranges = kept.store.start_forecasts.ranges()
    assert (ranges.counted, ranges.covered) == (11, 9)
    assert (ranges.below < 2.0, ranges.above < 3.0) == (True, True)


def test_a_restart_keeps_the_factors(kept: Kept) -> None:
    kept.tell(0, SOON)
    kept.starts(at=5 * HOUR)
    before = kept.store.start_forecasts.ranges()
    kept.store.close()
    kept.store = kept.opened()
    assert kept.store.start_forecasts.ranges() == before != StartRanges()
    with open_read_only(kept.path) as store:
        assert store.start_ranges() == before


DAMAGED = [
    (0.0, 1.0, 5, 4),
    (1e9, 1.0, 5, 4),
    (1.0, -1.0, 5, 4),
    (1.0, "x", 5, 4),
    (1.0, 1.0, 5, 6),
    (1.0, 1.0, -1, -2),
]


@pytest.mark.parametrize("row", DAMAGED)
def test_damaged_factors_count_as_none(kept: Kept, row: tuple[object, ...]) -> None:
    kept.store.database.write("INSERT INTO start_ranges VALUES (1, ?, ?, ?, ?, 0)", row)
    assert kept.store.start_forecasts.ranges() == StartRanges()
    kept.tell(0, SOON)
    kept.starts(at=2 * HOUR)
    assert factors(kept) == corrected(0, 0, 1)


def test_draws_of_a_job_that_ended_are_forgotten(kept: Kept) -> None:
    kept.tell(0, SOON)
    kept.starts(at=2 * HOUR)
    kept.waits(2, at=3 * HOUR)
    kept.tell(3 * HOUR, SOON, number=2)
    kept.starts(2, at=4 * HOUR)
    assert [row["job"] for row in kept.store.database.rows("SELECT job FROM first_draws")] == ["2"]
