"""What jobs report of themselves, as far as it is believed: their last word, how fast they were; and who is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.model import JobId, Measured
from slurmsched.store.columns import Row, number, text, whole
from slurmsched.store.database import Database
from slurmsched.store.rows import measured_point

__all__ = ["Complaint", "Gain", "Measurements", "Word"]

_HALF: Final = 3600.0
"""Seconds of work after which what was measured before counts half: data and neighbours change."""

_REMEMBERED: Final = 86400.0
"""Seconds for which a complaint that nobody repeats is kept."""


@dataclass(frozen=True, slots=True)
class Word:
    """A job's last word: `done` of its steps in this run were timed and took `busy` seconds."""

    job: JobId
    run: int
    at: float
    steps: int
    done: int
    busy: float


@dataclass(frozen=True, slots=True)
class Gain:
    """So many steps in so many seconds, measured with one allocation; of `measured` the rate is not used."""

    job: JobId
    measured: Measured
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Complaint:
    """What was not believed, and of whom: `job 12 of mallory`."""

    subject: str
    sentence: str


class Measurements:
    """All of it by job: what one reports changes nothing of another's. Raises StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def words(self, jobs: Iterable[JobId]) -> Mapping[JobId, Word]:
        """The last word of each of these jobs that has said one."""
        rows = self._database.rows_of(
            "SELECT job, run, at, steps, done, busy FROM reported WHERE job IN ({jobs})", jobs
        )
        return {word.job: word for word in self._database.unreadable.each("reported", "job", _word, rows)}

    def measured(self, jobs: Iterable[JobId]) -> Mapping[JobId, tuple[Measured, ...]]:
        """How fast each of these jobs was, with each allocation it was measured with; latest first."""
        found: defaultdict[JobId, list[Measured]] = defaultdict(list)
        rows = self._database.rows_of(_MEASURED, jobs)
        for job, measured in self._database.unreadable.each("rates", "job", _measured, rows):
            found[job].append(measured)
        return {job: tuple(points) for job, points in found.items()}

    def record(self, words: Iterable[Word], gains: Iterable[Gain], complaints: Iterable[Complaint], at: float) -> None:
        """What a round has read. A complaint stays for a day after it was last made."""
        with self._database.transaction():
            self._database.write_many(_WORD, [(w.job, w.run, w.at, w.steps, w.done, w.busy) for w in words])
            self._database.write_many(_GAIN, [_gain(gain) for gain in gains])
            self._database.write_many(
                "INSERT OR REPLACE INTO complaints (subject, sentence, at) VALUES (?, ?, ?)",
                [(complaint.subject, complaint.sentence, at) for complaint in complaints],
            )
            self._database.write("DELETE FROM complaints WHERE at < ?", (at - _REMEMBERED,))


_WORD: Final = "INSERT OR REPLACE INTO reported (job, run, at, steps, done, busy) VALUES (?, ?, ?, ?, ?, ?)"
_GAIN: Final = (
    "INSERT INTO rates"
    " (job, gpu_type, gpus, nodes, cpus, memory, fair_cpus, fair_memory, steps, seconds, at)"
    " VALUES (:job, :gpu_type, :gpus, :nodes, :cpus, :memory, :fair_cpus, :fair_memory, :steps, :seconds, :at)"
    " ON CONFLICT (job, gpu_type, gpus, nodes, cpus, memory) DO UPDATE SET"
    " steps = steps * :kept + excluded.steps, seconds = seconds * :kept + excluded.seconds, at = excluded.at"
)
_MEASURED: Final = (
    "SELECT job, gpu_type, gpus, nodes, cpus, memory, fair_cpus, fair_memory, steps / seconds AS rate, at"
    " FROM rates WHERE job IN ({jobs}) AND seconds > 0 AND steps > 0 ORDER BY at DESC, rowid"
)


def _word(row: Row) -> Word:
    return Word(
        job=text(row, "job"),
        run=whole(row, "run"),
        at=number(row, "at"),
        steps=whole(row, "steps"),
        done=whole(row, "done"),
        busy=number(row, "busy"),
    )


def _measured(row: Row) -> tuple[JobId, Measured]:
    return text(row, "job"), measured_point(row)


def _gain(gain: Gain) -> dict[str, object]:
    point = gain.measured
    return {
        "job": gain.job,
        "gpu_type": point.gpu_type,
        "gpus": point.gpus,
        "nodes": point.nodes,
        "cpus": point.cpus,
        "memory": point.memory,
        "fair_cpus": point.fair_cpus,
        "fair_memory": point.fair_memory,
        "steps": gain.steps,
        "seconds": gain.seconds,
        "at": point.at,
        "kept": 0.5 ** (gain.seconds / _HALF),
    }
