"""Whatever lies in the spool: reading it raises nothing, believes nothing impossible, and changes no other's record."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as some

from slurmsched.daemon.ingesting import ingest
from slurmsched.jobside.errors import ReportError
from slurmsched.jobside.report import Report, Stage, decode, encode
from slurmsched.store.store import Store
from tests.builders import job, node, share, snapshot

NOW = 1_000.0
GOOD = Report("1", 0, Stage.RUNNING, NOW, 500, 400, 800.0, 0.5, -1, "n1", (0,), 3, 100)
NUMBERS = some.integers() | some.floats() | some.just(10**400) | some.booleans() | some.text(max_size=5) | some.none()
FIELDS = some.sampled_from([*json.loads(encode(GOOD)), "more"])
CHANGED = some.dictionaries(FIELDS, NUMBERS | some.lists(NUMBERS), max_size=4)
ALMOST = CHANGED.map(lambda changed: json.dumps({**json.loads(encode(GOOD)), **changed}).encode())
CUT = some.integers(0, len(encode(GOOD))).map(lambda end: encode(GOOD)[:end])


@given(some.binary(max_size=5000) | ALMOST | CUT)
def test_any_bytes_are_a_report_or_are_refused(data: bytes) -> None:
    try:
        report = decode(data)
    except ReportError:
        return
    assert decode(encode(report)) == report


@given(some.binary(max_size=5000) | ALMOST | CUT)
def test_a_hostile_file_changes_nothing_of_an_honest_jobs_record(data: bytes) -> None:
    jobs = [job(number, on=[share("n1", [number - 1])], run_time=NOW) for number in (1, 2)]
    seen = snapshot([node("n1")], jobs, time=NOW)
    with TemporaryDirectory() as folder, closing(Store.in_memory()) as store:
        own = Path(folder) / str(os.getuid())
        own.mkdir()
        (own / "1.json").write_bytes(encode(GOOD))
        (own / "2.json").write_bytes(data)
        ingest(Path(folder), seen, ["1", "2"], store.measurements, lambda _user: os.getuid())
        ((honest,),) = (store.measurements.measured(["1"])["1"],)
        assert (honest.rate, honest.cpus) == (0.5, 3.0)
        for point in store.measurements.measured(["2"]).get("2", ()):
            assert 0 < point.rate <= 100_001.0
