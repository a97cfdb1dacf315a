"""Whatever lies in the spool: reading it raises nothing, believes nothing impossible, and changes no other's record."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as some

from slurmsched.daemon.job_reports import ingest
from slurmsched.doctor.installation import check_reports
from slurmsched.jobside.errors import ReportError
from slurmsched.jobside.report import Report, Stage, decode_report, encode_report
from slurmsched.store.rows import RejectedReportRow
from slurmsched.store.store import Store
from tests.builders import job, node, share, snapshot

NOW = 1_000.0
OWNER = job(1).user
GOOD = Report("1", 0, Stage.RUNNING, NOW, 500, 400, 800.0, 0.5, -1, "n1", (0,), 3, 100)
NUMBERS = some.integers() | some.floats() | some.just(10**400) | some.booleans() | some.text(max_size=5) | some.none()
FIELDS = some.sampled_from([*json.loads(encode_report(GOOD)), "more"])
CHANGED = some.dictionaries(FIELDS, NUMBERS | some.lists(NUMBERS), max_size=4)
ALMOST = CHANGED.map(lambda changed: json.dumps({**json.loads(encode_report(GOOD)), **changed}).encode())
CUT = some.integers(0, len(encode_report(GOOD))).map(lambda end: encode_report(GOOD)[:end])


@given(some.binary(max_size=5000) | ALMOST | CUT)
def test_any_bytes_are_a_report_or_are_refused(data: bytes) -> None:
    try:
        report = decode_report(data)
    except ReportError:
        return
    assert decode_report(encode_report(report)) == report


LYING = some.fixed_dictionaries(
    {},
    optional={
        "job": some.sampled_from(["1", "2", "3", ""]),
        "run": some.integers(0, 2),
        "at": some.floats(0, 3 * NOW),
        "steps": some.integers(0, 10**12),
        "done": some.integers(0, 10**12),
        "busy": some.floats(0, 3 * NOW),
        "rate": some.floats(0, 1e12),
        "node": some.sampled_from(["", "n1", "n2"]),
        "gpus": some.lists(some.integers(0, 9), max_size=3),
    },
).map(lambda changed: encode_report(replace(GOOD, **{"job": "2", "gpus": (1,), **changed})))  # type: ignore[arg-type]  # any


@given(some.binary(max_size=5000) | ALMOST | CUT | LYING)
def test_a_hostile_file_changes_nothing_but_its_own_jobs_record_and_is_named(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        own = Path(folder) / str(os.getuid())
        own.mkdir()
        (own / "1.json").write_bytes(encode_report(GOOD))
        honest, _, _ = taken_in(folder)
        (own / "2.json").write_bytes(data)
        both, believed, said = taken_in(folder)
    assert [row for row in both if row["job"] != "2"] == honest != []
    assert believed != any(f"job 2 of {OWNER}: " in sentence for sentence in said), "believed or named, never both"
    for row in both:
        if "seconds" in row:
            assert 0 < row["steps"] / row["seconds"] <= 100_001.0  # type: ignore[operator]  # numbers


def taken_in(folder: str) -> tuple[Sequence[Mapping[str, object]], bool, Sequence[str]]:
    """One round's reading by a daemon that begins anew: all that is kept of jobs, whether job 2 was believed, and what
    the doctor says."""
    jobs = [job(number, on=[share("n1", [number - 1])], run_time=NOW) for number in (1, 2)]
    seen = snapshot([node("n1")], jobs, time=NOW)
    with closing(Store.in_memory()) as store:
        ingest(Path(folder), seen, ["1", "2"], store.measurements, lambda _user: os.getuid())
        kept = [*store.database.rows("SELECT * FROM reported"), *store.database.rows("SELECT * FROM rates")]
        rows = store.database.rows("SELECT * FROM complaints")
        found = check_reports([RejectedReportRow(**row) for row in rows])
        return kept, "2" in store.measurements.last_reports(("2",)), [finding.sentence for finding in found]
