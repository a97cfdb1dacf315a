"""What PrivateData leaves of the published documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slurmsched.model import (
    ExpectedTime,
    Explanation,
    IdleGpus,
    MeasuredRate,
    Operation,
    Outcome,
    QueueForecast,
    Reason,
    ReasonCode,
    Result,
    SetAsideJob,
    Snapshot,
    StartForecast,
    Target,
    Verb,
    encode,
)
from slurmsched.policies.gandiva_fair.accounts import GandivaFairState
from slurmsched.policies.state import Account, Trade, decode_state, encode_state
from slurmsched.store.journal import JobEvent, JobEventKind, RoundStatistics, record_events
from slurmsched.store.measurements import RateSample
from slurmsched.store.publication import (
    OTHERS_IDLE,
    OTHERS_LEARNT,
    Document,
    DocumentKind,
    ExportError,
    PublishedContents,
    collect_contents,
    collect_runs,
    open_documents,
)
from slurmsched.store.read_only import ReadOnlyStore, open_read_only
from slurmsched.store.store import Store
from slurmsched.store.visibility import HIDEABLE, Visibility
from tests.builders import job, node, share, snapshot

NOW = 2_000_000.0
COMMENT = "only-for-bob-himself"
SEEN = snapshot(
    [node("n1"), node("n2")],
    [
        job(4001, gpus=4, user="alice", on=[replace(share("n1", 4), indices=(0, 1, 2, 3))]),
        job(4002, gpus=2, user="alice", hint="modle=x"),
        job(
            5001,
            gpus=4,
            user="bob",
            on=[replace(share("n1", 4), indices=(4, 5, 6, 7))],
            comment=COMMENT,
            name="bobs-paper",
        ),
        job(5002, gpus=8, user="bob", account="lab-of-bob"),
    ],
    time=NOW - 20,
    cluster="demo",
)
TOLD = {
    "4002": Explanation(
        "4002",
        "job 4002 waits behind 2 jobs in las order; the last one that runs is job 5001",
        ordered_behind=("job 5001 of bob, 4 GPUs: 2.0 GPU-hours attained", "job 4001 of alice, 4 GPUs: 1 GPU-hours"),
        what_would_change=("job 5001 ends at 14:00 at the latest; then there are enough GPUs", "4 GPUs would fit"),
        facts={"user": "alice", "asks for": "2 GPUs, 6 CPUs"},
    ),
    "5002": Explanation("5002", "job 5002 of bob is placed on n2 and waits for jobs 5001, 4001 to leave"),
}
SHARES = GandivaFairState(
    time=NOW,
    accounts={"alice": Account(1.0, 2.0), "bob": Account(3.0, 4.0)},
    trades=(Trade("bob", "carol", "v100", "k80", 1.0, 2.0), Trade("bob", "alice", "v100", "k80", 1.0, 2.0)),
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two rounds: jobs of alice and bob that run, wait and have ended, with something of each kind in the tables."""
    path = tmp_path / "synsched.db"
    store = Store.open(path, NOW)
    earlier = Snapshot(NOW - 500, SEEN.nodes, (*SEEN.jobs, job(3001, user="alice"), job(3002, user="bob")))
    for seen in (earlier, SEEN):
        number = store.journal.begin_round(seen.time, "enforce", "synergy", "las")
        store.state.record_poll(number, seen, [one.id for one in seen.jobs])
    write = store.database.write
    for one, told in TOLD.items():
        values = (encode(told), told.headline, "2.0 GPU-hours attained", one)
        write("UPDATE jobs SET reason = ?, sentence = ?, rank_key = ?, rank = 1 WHERE id = ?", values)
    for one in SEEN.jobs:
        why = Reason(ReasonCode.NEWCOMER_FIRST, {"newcomer": "job 5002 of bob", "why": "its turn"})
        entries = store.journal.record_intents(number, [(0, Operation(Verb.REQUEUE, one.id, why))], NOW)
        outcome = Outcome(Operation(Verb.REQUEUE, one.id, why), Result.DONE, ("scontrol requeue 4001,5001",))
        store.journal.record_outcomes([(entries[0], outcome)], NOW)
    record_events(
        store.database,
        number,
        [JobEvent(NOW, one.id, JobEventKind.DEVICE, "beside job 5001, 4001") for one in SEEN.jobs],
    )
    write("INSERT INTO policy_state VALUES ('gandiva-fair', ?)", (json.dumps(encode_state(SHARES)),))
    write("INSERT OR REPLACE INTO service VALUES ('4001', 1, 7.0, '')")
    write("UPDATE rounds SET snapshot = ?", (COMMENT.encode(),))
    told = tuple(StartForecast(one, ExpectedTime(NOW, NOW, None), ExpectedTime(NOW, NOW, None), 9, 0) for one in TOLD)
    store.start_forecasts.record(QueueForecast(NOW - 20, NOW + 86_400, 9, told), NOW)
    store.switches.pause("root", "maintenance", NOW)
    store.journal.finish_round(number, NOW - 10, RoundStatistics(2, 4, 4, 2, 2), "")
    store.close()
    return path


@pytest.fixture
def contents(database: Path) -> PublishedContents:
    return collect_contents(database, NOW, NOW - 86400)


def documents(contents: PublishedContents, hidden: set[str], viewer: str | None = None) -> list[Document]:
    visible = Visibility(contents, frozenset(hidden), viewer)
    return [Document.from_json(visible.document(part).to_json(), part.value) for part in DocumentKind]


def texts(found: list[Document]) -> str:
    return "".join(document.to_json().decode() for document in found)


def answers(opened: ReadOnlyStore) -> Mapping[str, Any]:
    """Everything that the views ask for."""
    jobs = [row.id for row in opened.jobs()] + ["3001", "3002"]
    listed = [replace(row, reason={}) for row in opened.jobs()]
    return {
        "round": opened.last_round(),
        "rounds": opened.rounds(1),
        "overview": opened.overview(),
        "jobs": listed,
        "each": [opened.job(one) for one in jobs],
        "events": [opened.events(one) for one in jobs],
        "operations": [opened.operations(one) for one in jobs],
        "service": [opened.service(one) for one in jobs],
        "surprises": opened.device_mismatches(2),
        "measured": opened.rates(),
        "starts": opened.start_forecasts(),
        "switch": opened.switch("paused"),
        "shares": [opened.policy_state("gandiva-fair").get(key) for key in ("time", "users", "trades")],
    }


def test_without_privatedata_the_documents_answer_as_the_database_does(
    database: Path, contents: PublishedContents
) -> None:
    everything = [Visibility(contents, frozenset(), everything=True).document(part) for part in DocumentKind]
    with open_read_only(database) as whole, open_documents(everything, database) as published:
        expected = answers(whole)
        assert answers(published) == expected
    assert len(expected["jobs"]) == 4
    assert expected["starts"].keys() == TOLD.keys()
    assert all(len(found) == 1 for found in expected["operations"][:4])


def test_recordings_and_comments_are_never_published(contents: PublishedContents) -> None:
    assert COMMENT not in texts(documents(contents, set()))
    assert "snapshot" not in contents.tables[DocumentKind.CURRENT]["rounds"][0]


def test_a_file_for_everybody_holds_nothing_of_anybodys_jobs_where_these_are_private(
    contents: PublishedContents,
) -> None:
    everybody = documents(contents, {"jobs", "users", "usage"})
    said = texts(everybody)
    for word in ("alice", "bob", "carol", "4001", "4002", "5001", "5002", "3001", "3002", "bobs-paper", "lab-of-bob"):
        assert word not in said, word
    with open_documents(everybody, Path("export")) as published:
        overview = published.overview()
        assert overview is not None
        assert [gpu.used for gpu in overview.nodes[0].gpus] == [1000] * 8  # free shows what sinfo does
        assert published.jobs() == ()


def test_a_user_sees_the_own_jobs_and_of_others_neither_number_nor_name(contents: PublishedContents) -> None:
    own = documents(contents, {"jobs", "users", "usage"}, "alice")
    said = texts(own)
    for word in ("bob", "carol", "5001", "5002", "3002", "bobs-paper", "lab-of-bob"):
        assert word not in said, word
    with open_documents(own, Path("export")) as published:
        assert {row.id for row in published.jobs()} == {"4001", "4002"}
        waits = published.job("4002")
        assert waits is not None
        assert waits.sentence == "job 4002 waits behind 2 jobs in las order; the last one that runs is another job"
        assert waits.reason["ordered_behind"] == ["job 4001 of alice, 4 GPUs: 1 GPU-hours"]
        assert waits.reason["what_would_change"] == [
            "another job ends at 14:00 at the latest; then there are enough GPUs",
            "4 GPUs would fit",
        ]
        assert waits.summary["problems"]
        assert published.job("3001") is not None
        assert published.service("4001") >= 7
        assert [done.verb for done in published.operations("4001")] == [Verb.REQUEUE]
        assert published.operations("4001")[0].reason.details["newcomer"] == "another job"
        beside = [event.sentence for event in published.events("4001") if event.kind == "device"]
        assert beside == ["beside another job"]
        past = decode_state(GandivaFairState, published.policy_state("gandiva-fair"))
        assert list(past.accounts) == ["alice"]
        assert [(trade.seller, trade.buyer) for trade in past.trades] == [("another user", "alice")]
        overview = published.overview()
        assert overview is not None
        assert {one for gpu in overview.nodes[0].gpus for one in gpu.jobs} == {"4001"}


@pytest.mark.parametrize(
    ("hidden", "word", "there"),
    [
        pytest.param("accounts", "lab-of-bob", False, id="accounts: not whose account a job has"),
        pytest.param("accounts", "bobs-paper", True, id="accounts: but the job"),
        pytest.param("usage", '"gpu_seconds"', False, id="usage: not what a job attained"),
        pytest.param("usage", "5001", True, id="usage: but the job"),
        pytest.param("usage", "and waits for 5001, 4001 to leave", False, id="usage: not why it waits, by what it had"),
        pytest.param("users", "carol", False, id="users: not who trades"),
        pytest.param("nodes", "state_text", False, id="nodes: no nodes"),
        pytest.param("cloud", "lab-of-bob", True, id="cloud: nothing of ours"),
    ],
)
def test_each_word_hides_its_own_kind(contents: PublishedContents, hidden: str, word: str, there: bool) -> None:
    assert (word in texts(documents(contents, {hidden} & HIDEABLE))) is there


def test_the_more_is_private_the_less_is_published(contents: PublishedContents) -> None:
    steps = [set(), {"accounts"}, {"accounts", "usage"}, {"accounts", "usage", "jobs"}, set(HIDEABLE)]
    sizes = [len(texts(documents(contents, hidden))) for hidden in steps]
    assert all(later < before for before, later in pairwise(sizes))


def test_jobs_that_ended_long_ago_are_not_published(database: Path) -> None:
    living = {one.id for one in SEEN.jobs}
    assert set(published_jobs(database, NOW - 86400)) == living | {"3001", "3002"}
    assert set(published_jobs(database, NOW - 100)) == living


def published_jobs(database: Path, ended_after: float) -> list[str]:
    return [row["id"] for row in collect_contents(database, NOW, ended_after).tables[DocumentKind.HISTORY]["jobs"]]


def test_when_jobs_start_is_told_of_ones_own_where_jobs_are_private(contents: PublishedContents) -> None:
    found = {
        viewer: [
            row["job"]
            for row in Visibility(contents, frozenset({"jobs"}), viewer)
            .document(DocumentKind.CURRENT)
            .tables["start_forecasts"]
        ]
        for viewer in ("alice", "bob", None)
    }
    assert found == {"alice": ["4002"], "bob": ["5002"], None: []}


def test_set_aside_jobs_are_named_to_their_owners(contents: PublishedContents) -> None:
    rows = [{"job": "9", "owner": "bob", "partition": "", "reason": "is not read", "since": 0.0}]
    tables = {**contents.tables, DocumentKind.CURRENT: {**contents.tables[DocumentKind.CURRENT], "set_aside": rows}}
    aside = PublishedContents(NOW, tables, {**contents.owners, "9": "bob"})
    found = {
        viewer: Visibility(aside, frozenset({"jobs"}), viewer).document(DocumentKind.CURRENT).tables["set_aside"]
        for viewer in ("alice", "bob", None)
    }
    assert found == {"alice": [], "bob": rows, None: []}
    assert SetAsideJob("9", "is not read").job == "9"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"version": 2}', b'{"version": 1}', b'{"version":1,"tables":[],"at":0,"hidden":[]}']
)
def test_what_is_no_document_is_told_in_one_line(data: bytes) -> None:
    with pytest.raises(ExportError, match=r"^current.json is (damaged|of another version)"):
        Document.from_json(data, "current.json")


def test_a_document_of_another_release_costs_what_is_not_known_only(contents: PublishedContents) -> None:
    current, history = documents(contents, set())
    newer = Document(current.at, {**current.tables, "moons": [{"phase": 1}]})
    with open_documents([newer, history], Path("export")) as published:
        assert len(published.jobs()) == 4


def test_a_database_that_cannot_be_read_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"no database" * 1000)
    with pytest.raises(ExportError, match="synsched doctor"):
        collect_contents(tmp_path / "db", NOW, 0.0)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("jobs", column) for column in ("owner", "summary", "reason", "sentence", "rank_key", "original")),
        *(("rounds", column) for column in ("overview", "error")),
        *(("operations", column) for column in ("reason", "commands", "undo", "detail")),
        *(("events", "sentence"), ("policy_state", "state"), ("switches", "value")),
        *(("start_forecasts", "start_low"), ("start_forecasts", "why")),
    ],
)
@pytest.mark.parametrize("value", [b"\xff\xfe", "[1]", '{"nodes": [{"gpus": 7}], "users": 3, "trades": "x"}', 7])
def test_a_damaged_value_costs_no_more_than_its_row(database: Path, table: str, column: str, value: object) -> None:
    store = Store.open(database, NOW)
    store.database.write(f"UPDATE {table} SET {column} = ?", (value,))  # noqa: S608 - our own names
    store.close()
    found = collect_contents(database, NOW, NOW - 86400)
    for hidden in (set[str](), {"jobs", "usage"}):
        for viewer in (None, "alice"):
            with open_documents(documents(found, hidden, viewer), database):
                pass


def test_whose_gpus_are_idle_is_told_to_owners_alone_whatever_privatedata_says(
    database: Path, contents: PublishedContents
) -> None:
    store = Store.open(database, NOW)
    rows = [IdleGpus(one, owner, 4, 1, NOW - 7200, NOW) for one, owner in (("4001", "alice"), ("5001", "bob"))]
    store.measurements.record_idle(rows)
    store.close()
    contents = collect_contents(database, NOW, NOW - 86400)

    def shown(viewer: str | None, *, everything: bool = False) -> tuple[list[str], bool]:
        found = Visibility(contents, frozenset(), viewer, everything).document(DocumentKind.CURRENT)
        return [row["job"] for row in found.tables["idle_gpus"]], OTHERS_IDLE in found.hidden

    assert {viewer: shown(viewer) for viewer in ("alice", "bob", "carol", None)} == {
        "alice": (["4001"], True),
        "bob": (["5001"], True),
        "carol": ([], True),
        None: ([], True),
    }
    assert shown(None, everything=True) == (["4001", "5001"], False)
    assert [row["job"] for row in collect_runs(database, NOW, "bob").tables["idle_gpus"]] == ["5001"]
    assert len(collect_runs(database, NOW, None).tables["idle_gpus"]) == 2
    own = Visibility(contents, frozenset({"jobs"}), "alice").document(DocumentKind.CURRENT)
    with open_documents([own], Path("export")) as published:
        assert published.idle_gpus(NOW) == (rows[0],)


LEARNT_SPEEDS = [
    "0.83 times that with its GPU-proportional share (accounting: 4 earlier runs with the same name, last 3 h ago)",
    "1.20 times that with its GPU-proportional share (rule of thumb: accounting: 2 earlier runs with the same name)",
    "1.20 times that with its GPU-proportional share (measured by jobs of bob, over nothing)",
    "1.20 times that with its GPU-proportional share (rule of thumb: measured by the job itself, over Synergy)",
]
OF_A_TABLE = "1.10 times that with its GPU-proportional share (Synergy figure 2)"


@pytest.mark.parametrize("speed", [*LEARNT_SPEEDS, OF_A_TABLE])
def test_what_was_learnt_of_others_jobs_is_told_to_owners_alone_whatever_privatedata_says(
    database: Path, speed: str
) -> None:
    store = Store.open(database, NOW)
    why = Explanation("5001", "job 5001 keeps its nodes", facts={"speed": speed, "user": "bob"})
    target = encode(Target("5001", (share("n1", 4),), speed=0.83125))
    store.database.write("UPDATE jobs SET reason = ?, target = ? WHERE id = '5001'", (encode(why), target))
    measured = MeasuredRate("v100", 4, 1, 4.0, 8.0, 4.0, 8.0, 2.5, NOW)
    store.measurements.record((), [RateSample("5001", measured, 10, 4.0)], (), NOW)
    store.close()
    contents = collect_contents(database, NOW, NOW - 86400)

    def shown(viewer: str | None, *, everything: bool = False) -> tuple[bool, ...]:
        found = [Visibility(contents, frozenset(), viewer, everything).document(part) for part in DocumentKind]
        with open_documents(found, Path("export")) as published:
            row, forecast = published.job("5001"), published.start_forecasts("5002")["5002"]
            assert row is not None
            assert row.target is not None
            assert row.reason["facts"]["user"] == "bob"
            assert forecast.start.low == NOW
            return (
                "speed" in row.reason["facts"],
                row.target.speed == 0.83125,
                bool(published.rates()),
                forecast.end is not None,
                all(OTHERS_LEARNT not in document.hidden for document in found),
            )

    public = speed == OF_A_TABLE
    assert shown("bob") == (True, True, True, True, False), "alice's forecast is not bob's"
    assert shown(None, everything=True) == (True,) * 5
    assert shown("mallory") == shown(None) == (public, public, False, False, False)


def test_what_a_job_bids_and_has_to_go_is_told_to_its_owner_alone(database: Path) -> None:
    details = {"kind": "v100", "bid": "0.031", "price": "0.5", "has": "32.7 GPU-hours", "most": "1.0 GPU-hours"}
    why = Explanation.of_reason("5002", Reason(ReasonCode.OUTBID, details))
    store = Store.open(database, NOW)
    values = (encode(why), why.headline)
    store.database.write("UPDATE jobs SET reason = ?, sentence = ? WHERE id = '5002'", values)
    store.close()
    contents = collect_contents(database, NOW, NOW - 86400)
    assert texts(documents(contents, set(), "bob")).count("32.7") == 3, "in status, and twice in explain"
    for viewer in ("mallory", None):
        told = texts(documents(contents, set(), viewer))
        assert "32.7" not in told
        assert "0.031" not in told
        assert told.count("waits: others bid more") == 3
