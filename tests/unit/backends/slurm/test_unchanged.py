"""A poll that parses only what has changed since the last one gives what a poll of everything gives."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.backends.slurm import jobs as jobs_module
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandJobReader, CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.jobs import NO_LIMITS
from slurmsched.backends.slurm.squeue_table import read_squeue
from slurmsched.backends.slurm.unchanged import ParsedNodes
from slurmsched.model import Snapshot
from tests.unit.fake_slurm import FakeJob, FakeNode, FakeSlurm

Change = Callable[[FakeSlurm], None]


def observed(slurm: FakeSlurm, source: CommandSource) -> Snapshot:
    return SlurmBackend(Commands(5, runner=slurm), source, lambda: 1000.0).observe()


def altered(number: int, **other: object) -> Change:
    """Change attributes of this job, if it is there."""

    def change(slurm: FakeSlurm) -> None:
        if number in slurm.jobs:
            slurm.jobs[number] = replace(slurm.jobs[number], **other)  # type: ignore[arg-type] # by keyword

    return change


def with_fields(number: int, **fields: str) -> Change:
    def change(slurm: FakeSlurm) -> None:
        if number in slurm.jobs:
            slurm.jobs[number] = replace(slurm.jobs[number], fields=slurm.jobs[number].fields | fields)

    return change


def started(number: int, node: str, at: int) -> Change:
    fields = {
        "NodeList": node, "Nodes": node, "CPU_IDs": "0-3", "Mem": "1000", "GRES": "gpu:v100:2(IDX:0-1)",
        "StartTime": f"2026-11-26T10:00:{at:02}", "RunTime": f"00:00:{at:02}",
    }  # fmt: skip

    def change(slurm: FakeSlurm) -> None:
        if number in slurm.jobs:
            slurm.jobs[number] = replace(slurm.jobs[number], state="RUNNING", fields=fields)

    return change


def gone(number: int) -> Change:
    return lambda slurm: slurm.jobs.pop(number, None) and None


def came(number: int, **other: object) -> Change:
    def change(slurm: FakeSlurm) -> None:
        slurm.jobs[number] = FakeJob(number, **other)  # type: ignore[arg-type] # by keyword

    return change


def node_altered(name: str, **other: object) -> Change:
    def change(slurm: FakeSlurm) -> None:
        if name in slurm.nodes:
            slurm.nodes[name] = replace(slurm.nodes[name], **other)  # type: ignore[arg-type] # by keyword

    return change


numbers = st.integers(1, 6)
hostile = st.sampled_from(
    ["", "train", "x JobId=2 JobName=y", "synsched:task=image", "  TimeUsed=9", "n\nJobId=3 ", "é" * 40, "x" * 300]
)
node_names = st.sampled_from(["n1", "n2"])
changes = st.one_of(
    st.builds(lambda n, text: altered(n, name=text.lstrip() or "x"), numbers, hostile),
    st.builds(lambda n, text: altered(n, comment=text), numbers, hostile),
    st.builds(lambda n, priority, nice: altered(n, priority=priority, nice=nice), numbers, st.integers(0, 2), numbers),
    st.builds(lambda n, reason: altered(n, reason=reason), numbers, st.sampled_from(["None", "JobHeldAdmin"])),
    st.builds(lambda n, state: altered(n, state=state), numbers, st.sampled_from(["PENDING", "COMPLETED", "NEW"])),
    st.builds(started, numbers, node_names, st.integers(0, 59)),
    st.builds(lambda n, at: with_fields(n, RunTime=f"00:01:{at:02}"), numbers, st.integers(0, 59)),
    st.builds(lambda n: with_fields(n, RunTime="never"), numbers),
    st.builds(lambda n, gpus: altered(n, asked={"TresPerNode": f"gres/gpu:v100:{gpus}"}), numbers, numbers),
    st.builds(lambda n, nodes: with_fields(n, ReqNodeList=nodes), numbers, st.sampled_from(["n1", "n[1-", "n[1-2]"])),
    st.builds(lambda n, memory: with_fields(n, MinMemoryNode=memory), numbers, st.sampled_from(["1000M", "2G", "?"])),
    st.builds(lambda n, text: with_fields(n, Features=text), numbers, st.sampled_from(["v100", "f" * 20_000])),
    st.builds(gone, numbers),
    st.builds(came, numbers),
    st.builds(lambda n, tasks: came(n, array=f"{n}_{tasks}"), numbers, st.sampled_from(["0-4", "0-4%2", "1,3", "0-9"])),
    st.builds(lambda n, used: node_altered(n, used=used), node_names, st.sampled_from(["gpu:v100:2(IDX:0-1)", "x"])),
    st.builds(lambda n, state: node_altered(n, state=state), node_names, st.sampled_from(["IDLE", "DOWN", "MIXED"])),
    st.builds(lambda n, cpus: node_altered(n, cpus=cpus, memory=cpus), node_names, numbers),
    st.builds(lambda: lambda slurm: slurm.nodes.pop("n2", None) and None),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(changes, max_size=4), min_size=1, max_size=5))
def test_what_is_kept_is_equal_to_what_is_read_anew(polls: list[list[Change]]) -> None:
    slurm = FakeSlurm([FakeJob(number) for number in range(1, 5)], [FakeNode("n1"), FakeNode("n2")])
    kept = CommandSource()
    for happened in polls:
        for change in happened:
            change(slurm)
        assert observed(slurm, kept) == observed(slurm, CommandSource())


def test_a_job_that_is_renamed_to_leading_blanks_is_read_on_by_who_knows_its_run_and_set_aside_by_others() -> None:
    """squeue shows a name without leading blanks, so that no record of scontrol's is known to be this job's."""
    slurm, kept = FakeSlurm([FakeJob(1), FakeJob(2)], [FakeNode("n1")]), CommandSource()
    started(1, "n1", 0)(slurm)
    before = observed(slurm, kept).jobs_by_id["1"]
    altered(1, name="  TimeUsed=9")(slurm)
    assert observed(slurm, kept).jobs_by_id["1"].allocations == before.allocations != ()
    anew = observed(slurm, CommandSource())
    assert ([one.job for one in anew.set_aside], [one.id for one in anew.jobs]) == (["1"], ["2"])


def test_only_a_job_that_has_changed_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = jobs_module.parse_record
    monkeypatch.setattr(
        jobs_module, "parse_record", lambda record, limits: parsed.append(record.number) or parse(record, limits)
    )
    slurm = FakeSlurm([FakeJob(number) for number in range(1, 5)], [FakeNode("n1")])
    source = CommandSource()
    first = observed(slurm, source)
    started(2, "n1", 5)(slurm)
    parsed.clear()
    second = observed(slurm, source)
    assert parsed == ["2"]
    assert first.jobs_by_id["1"] is second.jobs_by_id["1"]
    with_fields(2, RunTime="00:05:00")(slurm)
    parsed.clear()
    assert observed(slurm, source).jobs_by_id["2"].run_time == 300.0
    assert not parsed, "a job that runs on is not parsed anew"


def test_a_node_that_has_not_changed_is_the_same_object_also_where_slurm_gives_whole_cores() -> None:
    slurm = FakeSlurm([], [FakeNode("n1"), FakeNode("n2")])
    backend = SlurmBackend(Commands(5, runner=slurm), CommandSource(), lambda: 1000.0)
    first = backend.observe().nodes
    node_altered("n2", cpus=4)(slurm)
    second = backend.observe().nodes
    assert [node.cpu_unit for node in first] == [2, 2], "two threads of each core"
    assert [node is other for node, other in zip(first, second, strict=True)] == [True, False]


LINE = (
    "NodeName=n1 CPUTot=24 CPUAlloc=0 CPULoad=1.02 Gres=gpu:v100:8 GresUsed=gpu:v100:0(IDX:N/A) OS=Linux 6 FreeMem=18"
    " RealMemory=512000 State=IDLE Partitions=gpu LastBusyTime=2026-11-26T10:00:00 CurrentWatts=1 Reason=x CPULoad=1"
)


@pytest.mark.parametrize(
    ("line", "same"),
    [
        (LINE, True),
        (LINE.replace("1.02", "8.00").replace("FreeMem=18", "FreeMem=5").replace("T10:00:00", "T11:00:00"), True),
        (LINE.replace("x CPULoad=1", "x CPULoad=2"), False),
        (LINE.replace("CPUAlloc=0", "CPUAlloc=4"), False),
        (LINE.replace("IDLE", "DOWN"), False),
    ],
    ids=["the same", "another load", "another reason, in words of ours", "CPUs in use", "another state"],
)
def test_a_node_is_parsed_again_where_what_is_read_of_it_has_changed(line: str, same: bool) -> None:
    nodes = ParsedNodes()
    first = nodes.parse(LINE)
    nodes.end_poll()
    second = nodes.parse(line)
    assert (second is first) is same
    assert second == ParsedNodes().parse(line)


def test_wide_records_are_not_kept_from_poll_to_poll() -> None:
    nodes, earlier = ",".join(f"n{number}" for number in range(1, 80, 2)), ",".join(map(str, range(1000, 1050)))
    wide = {"ExcNodeList": nodes, "Dependency": f"afterany:{earlier}"}
    slurm = FakeSlurm([FakeJob(number, fields=wide) for number in range(1, 201)], [FakeNode("n1")])
    reader, commands = CommandJobReader(), Commands(5, runner=slurm)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(2):
        reader.read_jobs(commands, NO_LIMITS, read_squeue(commands))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / 200 < 16 * 1024, "bytes of each job; its record has 38,000"


def test_details_of_jobs_that_are_gone_are_forgotten_also_where_pyslurm_polls() -> None:
    reader = CommandJobReader()
    for first in range(1, 60, 10):
        jobs = [FakeJob(number, state="RUNNING") for number in range(first, first + 10)]
        reader.read_records(Commands(5, runner=FakeSlurm(jobs, [FakeNode("n1")])), [str(one.number) for one in jobs])
    assert len(reader._known) == 10
