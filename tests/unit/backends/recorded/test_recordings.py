"""A recorded round reads back equal; a file that is none is refused in one line that names it."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.protocol import Backend, BackendError
from slurmsched.backends.recorded import (
    RecordedBackend,
    Recording,
    RecordingError,
    RecordingPacker,
    pack_recording,
    read_recording,
    unpack_recording,
    write_recording,
)
from slurmsched.model import (
    Association,
    Hints,
    Hold,
    Job,
    JobState,
    Node,
    NodeState,
    Operation,
    Reason,
    ReasonCode,
    Request,
    Reservation,
    Result,
    SchedulerState,
    Snapshot,
    Verb,
)
from tests.builders import job, node, share, snapshot

times = st.floats(0, 2e9, allow_nan=False)
names = st.text(st.characters(codec="utf-8"), max_size=12)
requests = st.builds(Request, memory=st.integers(0, 10**7), pinned=st.frozensets(names, max_size=2))
jobs = st.builds(
    Job,
    id=names,
    user=names,
    original_request=requests,
    current_request=requests,
    state=st.sampled_from(JobState),
    hold=st.sampled_from(Hold),
    allocations=st.just((share("n1", 2),)),
    start_time=st.none() | times,
    hints=st.builds(Hints),
)
nodes = st.builds(
    Node,
    name=names,
    gpus=st.just(node().gpus),
    total=st.just(node().total),
    used=st.just(node().used),
    state=st.sampled_from(NodeState),
    features=st.frozensets(names, max_size=2),
)
snapshots = st.builds(
    Snapshot,
    time=times,
    nodes=st.lists(nodes, max_size=2).map(tuple),
    associations=st.lists(
        st.builds(Association, account=names, user=names, shares=st.none() | st.integers(0, 99)), max_size=2
    ).map(tuple),
    jobs=st.lists(jobs, max_size=3).map(tuple),
    reservations=st.just((Reservation("r", frozenset({"n1"}), 0.0, 9.0),)),
    oddities=st.lists(names, max_size=2).map(tuple),
)
states = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | times | names,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
memories = st.builds(
    SchedulerState,
    original_requests=st.dictionaries(names, requests, max_size=2),
    held=st.frozensets(names, max_size=2),
    service=st.dictionaries(names, times, max_size=2),
    moves=st.dictionaries(names, st.lists(times, max_size=3).map(tuple), max_size=2),
    policy_state=st.dictionaries(names, states, max_size=2),
)


@given(snapshots, memories)
def test_a_round_reads_back_equal(seen: Snapshot, memory: SchedulerState) -> None:
    packed = pack_recording(seen, memory)
    assert unpack_recording(packed) == Recording(seen, memory)
    assert pack_recording(seen, memory) == packed


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused_in_one_line(data: bytes) -> None:
    for bad in (data, zlib.compress(data)):
        with pytest.raises(RecordingError) as caught:
            unpack_recording(bad)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        pytest.param(b"#!/bin/sh", "not a recording", id="another kind of file"),
        pytest.param(pack_recording(snapshot(), SchedulerState())[:-20], "cut short", id="half a file"),
        pytest.param(b"", "cut short", id="an empty file"),
        pytest.param(zlib.compress(b'{"version": 2}'), "reads format 1", id="a later format"),
        pytest.param(zlib.compress(b'{"version": 1}'), "not a recording", id="JSON without a round"),
        pytest.param(zlib.compress(b"[" * 100_000), "not a recording", id="JSON nested without end"),
    ],
)
def test_a_bad_file_is_named_with_its_cause(tmp_path: Path, data: bytes, cause: str) -> None:
    path = tmp_path / "x.round"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=cause) as caught:
        read_recording(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmsched.backends.recorded._MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(RecordingError, match="too large"):
        unpack_recording(zlib.compress(b"0" * 2000))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        read_recording(tmp_path / "none.round")


def test_a_dump_is_for_its_writer_alone_also_where_the_file_was_there_open_to_all(tmp_path: Path) -> None:
    for name in ("new.round", "old.round"):
        if name.startswith("old"):
            (tmp_path / name).write_bytes(b"x" * 100_000)
            (tmp_path / name).chmod(0o666)
        write_recording(tmp_path / name, snapshot(), SchedulerState())
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert read_recording(tmp_path / name) == Recording(snapshot(), SchedulerState())


def test_a_dump_goes_into_a_round_file_only(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"name it now\.json\.round"):
        write_recording(tmp_path / "now.json", snapshot(), SchedulerState())
    write_recording(tmp_path / "now.round", snapshot([node()], [job(1)]), SchedulerState())
    assert read_recording(tmp_path / "now.round").snapshot.jobs_by_id.keys() == {"1"}


def test_a_recorded_backend_shows_its_rounds_in_turn_and_changes_nothing() -> None:
    remembered = SchedulerState(held=frozenset({"7"}))
    recorded = RecordedBackend([Recording(snapshot(time=1.0)), Recording(snapshot(time=2.0), remembered)])
    backend: Backend = recorded
    assert [backend.observe().time, backend.observe().time] == [1.0, 2.0]
    assert recorded.state == remembered
    with pytest.raises(BackendError, match="ends after 2 rounds"):
        backend.observe()
    (outcome,) = backend.execute([Operation(Verb.HOLD, "1", Reason(ReasonCode.TAKE_OVER))])
    assert outcome.result is Result.REFUSED
    assert "recording" in outcome.detail


def test_nothing_to_replay_is_said() -> None:
    with pytest.raises(BackendError, match="at least one"):
        RecordedBackend([])


@given(st.lists(st.tuples(st.lists(jobs, max_size=4, unique_by=lambda one: one.id), names, times), max_size=4))
def test_rounds_are_packed_as_if_each_was_the_first(rounds: list[tuple[list[Job], str, float]]) -> None:
    packer = RecordingPacker()
    for listed, cluster, run_time in rounds:
        for at in (run_time, run_time + 1.5):  # the same jobs a moment later
            seen = snapshot([node()], [one.with_run_time(at) for one in listed], at, cluster=cluster)
            state = SchedulerState(held=frozenset(one.id for one in listed))
            assert packer.pack(seen, state) == pack_recording(seen, state)


def test_words_of_a_job_do_not_pose_as_its_run_time() -> None:
    hostile = job(1, comment='","run_time":7,"x":"', name='"jobs":[]', run_time=3.0)
    packer = RecordingPacker()
    for at in (3.0, 4.0):
        seen = snapshot([node()], [hostile.with_run_time(at)], cluster='"jobs":[]')
        assert unpack_recording(packer.pack(seen, SchedulerState())).snapshot == seen
