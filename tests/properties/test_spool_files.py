"""Whatever kind of file lies in the spool, and however many: one round's reading is bounded in time and memory."""

from __future__ import annotations

import json
import os
import stat
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from hypothesis import given
from hypothesis import strategies as some

from slurmsched.daemon.job_reports import ingest
from slurmsched.jobside import dispatch
from slurmsched.jobside.dispatch import DISPATCH_FOLDER, Dispatch, read_dispatch
from slurmsched.jobside.report import MAX_REPORT_BYTES, Report, Stage, encode_report
from slurmsched.rounds.round import paused_collector
from slurmsched.store.store import Store
from tests.builders import job, node, share, snapshot

NOW: Final = 1_000.0
GOOD: Final = Report("1", 0, Stage.RUNNING, NOW, 500, 400, 800.0, 0.5, -1, "n1", (0,), 3, 100)
HOSTILE: Final = [str(number) for number in range(2, 9)]
WORD: Final = Dispatch("12", 1000, 2000.0, {0: 60})

CPU: Final = 0.25
"""Seconds of CPU for a reading of eight files, thirty times what it takes."""

MEMORY: Final = 500_000
"""Bytes that Python allocates for it at most."""

Put = Callable[[Path], object]


def text(data: bytes) -> Put:
    """A plain file."""
    return lambda path: path.write_bytes(data)


def hole(size: int) -> Put:
    """A sparse file, with a report at its beginning."""

    def put(path: Path) -> None:
        path.write_bytes(encode_report(replace(GOOD, job="2")))
        os.truncate(path, size)

    return put


def link(target: str) -> Put:
    """A symbolic link."""
    return lambda path: path.symlink_to(target)


def instead(field: str, value: str) -> bytes:
    """A report with another value of one field, as it would stand in the file."""
    fields = {**json.loads(encode_report(replace(GOOD, job="2"))), field: "HERE"}
    return json.dumps(fields).replace('"HERE"', value).encode()


VALUES = some.sampled_from(
    ["NaN", "Infinity", "-Infinity", "1e999", "-0.0", "1e-999", "9" * 3000, "-" + "9" * 3000, "0." + "9" * 3000, "true",
     '"\\ud800"', '"\\u0000"', "[" * 1000 + "]" * 1000, '{"a":' * 400 + "1" + "}" * 400, "[" + "0," * 1500 + "0]"]
)  # fmt: skip
NESTED = some.tuples(some.sampled_from(["[", '{"":', '[{"":', " ", "-", '"', "\\", "\x00"]), some.integers(1, 70_000))
TEXTS = (
    some.binary(max_size=MAX_REPORT_BYTES + 10)
    | some.tuples(some.sampled_from([*json.loads(encode_report(GOOD)), "version"]), VALUES).map(
        lambda pair: instead(*pair)
    )
    | NESTED.map(lambda pair: (pair[0] * pair[1]).encode()[:70_000])
    | some.text(max_size=200).map(lambda said: json.dumps(said).encode("utf-16"))
    | some.text(max_size=200).map(lambda said: json.dumps({said: said}).encode("utf-32"))
)
SPECIAL: Final[list[Put]] = [
    os.mkfifo,
    lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    lambda path: path.mkdir(),
    lambda path: path.hardlink_to(path.with_name("1.json")),
]
KINDS = (
    TEXTS.map(text)
    | some.sampled_from([MAX_REPORT_BYTES, MAX_REPORT_BYTES + 1, 2**32, 2**42]).map(hole)
    | some.sampled_from(["/dev/zero", "/dev/stdin", "/proc/self/mem", "2.json", "1.json", "..", "/", "\n"]).map(link)
    | some.sampled_from(SPECIAL)
)


@given(some.lists(KINDS, min_size=len(HOSTILE), max_size=len(HOSTILE)))
def test_no_kind_of_file_costs_a_round_more_than_its_bound_or_changes_another_jobs_record(kinds: list[Put]) -> None:
    with TemporaryDirectory() as folder:
        own = own_folder(Path(folder))
        for number, put in zip(HOSTILE, kinds, strict=True):
            put(own / f"{number}.json")
        kept = taken_in(Path(folder))
    assert [row for row in kept if row["job"] == "1"] != []
    believed = {row["job"] for row in kept} - {"1"}
    assert not believed or believed == {"2"}, "only a whole report for job 2 can be believed"


def test_thousands_of_files_cost_no_round_more_than_its_bound() -> None:
    with TemporaryDirectory() as folder:
        own = own_folder(Path(folder))
        for number in range(20_000):
            (own / f"{number + 100}.json").touch()
        assert len(taken_in(Path(folder))) == 2


@given(KINDS)
def test_no_kind_of_file_is_taken_for_a_word_of_the_scheduler_or_costs_a_copy_more_than_its_bound(put: Put) -> None:
    with TemporaryDirectory() as folder:
        there = Path(folder) / DISPATCH_FOLDER
        there.mkdir()
        (there / "1.json").write_bytes(dispatch.encode_dispatch(WORD))
        put(there / "12.json")
        with paused_collector():  # what other tests left is not to be counted
            began = time.process_time()
            said = read_dispatch(Path(folder), "12", now=1500.0)
            spent = time.process_time() - began
        assert spent < CPU
        assert said is None or said == WORD


def own_folder(spool: Path) -> Path:
    """The folder of whoever runs the test, with a good report of job 1."""
    own = spool / str(os.getuid())
    own.mkdir()
    (own / "1.json").write_bytes(encode_report(GOOD))
    return own


def taken_in(spool: Path) -> list[dict[str, object]]:
    """One round's reading within its bounds: all that is kept of jobs."""
    jobs = [job(number, on=[share("n1", [number - 1])], run_time=NOW) for number in range(1, 9)]
    seen = snapshot([node("n1")], jobs, time=NOW)
    with closing(Store.in_memory()) as store:
        tracemalloc.start()
        with paused_collector():  # as in a round
            began = time.process_time()
            ingest(spool, seen, [job.id for job in jobs], store.measurements, lambda _user: os.getuid())
            spent = time.process_time() - began
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert spent < CPU
        assert peak < MEMORY
        return [
            *map(dict, store.database.rows("SELECT * FROM reported")),
            *map(dict, store.database.rows("SELECT * FROM rates")),
        ]
