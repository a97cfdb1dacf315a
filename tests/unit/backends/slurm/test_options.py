"""Every option of sbatch has a row in the table, and a job is let go in the words of its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmsched.backends.slurm.jobs import NO_LIMITS, parse_jobs
from slurmsched.backends.slurm.sbatch_options import (
    RELEASES,
    Treatment,
    let_go_reason,
    marked_let_go_reason,
    options_by_group,
    sbatch_options,
)
from slurmsched.backends.slurm.squeue_table import columns_query
from slurmsched.model import Reason, ReasonCode, Request
from slurmsched.rounds.scope import unmanaged_reason
from slurmsched.settings.definition import ManageSettings, Settings
from slurmsched.template_files import render
from tests.builders import job
from tests.unit.backends.slurm.test_jobs import records
from tests.unit.fake_slurm import FakeJob

ROOT = Path(__file__).parents[4]
HOOK = (ROOT / "hooks" / "job_submit.lua").read_text(encoding="utf-8")
FOLDERS = dict(zip(RELEASES, ("bookworm", "trixie", "sid"), strict=True))


def recorded_options(release: str) -> set[str]:
    """Long options of `man sbatch` and of `sbatch --help`, by SBATCH_OPTIONS of `tests.slurm.record`."""
    text = (ROOT / "tests/unit/recorded" / FOLDERS[release] / "sbatch-options.txt").read_text(encoding="utf-8")
    heads = (re.split(r"[=\[]", line)[0] for line in text.splitlines() if line.startswith("-"))
    return {word for head in heads for word in head.replace(",", " ").split() if word.startswith("--")}


@pytest.mark.parametrize("release", RELEASES)
def test_the_table_has_the_options_of_the_release_and_no_others(release: str) -> None:
    names = {name.partition("=")[0] for row in sbatch_options() if release in row.releases for name in row.names}
    assert {name for name in names if name.startswith("--")} == recorded_options(release)


def test_no_name_stands_in_two_rows_and_what_is_let_go_has_a_reason() -> None:
    rows = sbatch_options()
    names = [name for row in rows for name in row.names]
    assert len(names) == len(set(names))
    assert {row.treatment for row in rows if row.reason} == {Treatment.LET_GO}
    assert all(row.reason for row in rows if row.treatment is Treatment.LET_GO)


def test_squeue_is_asked_for_each_column_of_the_table() -> None:
    asked = {column.partition(":")[0] for column in columns_query()[-1].split(",")}
    assert {row.column for row in sbatch_options() if row.column} <= asked


def test_the_hook_has_the_same_words_and_marks() -> None:
    start = HOOK.index("local LET_GO")
    said = re.findall(r'\{ "([-=,\w]+)",\s+"([^"]+)"', HOOK[start : HOOK.index("\n}\n", start)])
    table = {row.names[0]: row.reason for row in sbatch_options()}
    assert [(name, table[name]) for name, _ in said] == said
    assert {reason for _, reason in said} == {row.reason for row in sbatch_options() if row.hook}
    marks = set(re.findall(r', "([-\w]+)" \},\n', HOOK[start : HOOK.index("\n}\n", start)]))
    assert {row.mark for row in sbatch_options() if row.marked} <= marks


def test_the_page_is_what_the_table_says() -> None:
    assert (ROOT / "docs" / "flags.md").read_text() == render("flags.md", groups=options_by_group()), "run 'make docs'"


LET_GO = [
    ("--licenses", {"options": {"Licenses": "matlab:2"}}),
    ("--bb", {"options": {"BurstBuffer": "capacity=1G pool=x"}}),
    ("--tmp", {"options": {"MinTmpDisk": "10G"}}),
    ("--switches", {"options": {"ReqSwitch": "1"}}),
    ("--contiguous", {"options": {"Contiguous": "1"}}),
    ("--oversubscribe", {"options": {"OverSubscribe": "YES"}}),
    ("--core-spec", {"options": {"CoreSpec": "1"}}),
    ("--ntasks-per-socket", {"options": {"NTPerSocket": "4"}}),
    ("--ntasks-per-core", {"options": {"NTPerCore": "1"}}),
    ("--sockets-per-node", {"options": {"SCT": "1:*:*"}}),
    ("--cores-per-socket", {"options": {"SCT": "*:4:*"}}),
    ("--extra-node-info", {"options": {"SCT": "1:4:1"}}),
    ("--segment", {"options": {"SegmentSize": "1"}}),
    ("--reboot", {"options": {"Reboot": "1"}}),
    ("--prefer", {"options": {"Prefer": "v100"}}),
    ("--time-min", {"options": {"MinTime": "5:00"}}),
    ("--time-min", {"options": {"MinTime": "1-00:00:00"}}),
    ("--gpus-per-socket", {"asked": {"TresPerSocket": "gres/gpu:1"}}),
    ("--gpus=type,type", {"asked": {"TresPerJob": "gres/gpu:v100:1,gres/gpu:p100:1"}}),
    ("--gres=other", {"asked": {"TresPerNode": "gres:gpu:1,gres:nic:1"}}),
    ("--gres=other", {"asked": {"TresPerNode": "gres/mps:50"}}),
    ("--licenses", {"asked": {"TresPerTask": "gres/gpu:1,license/matlab:1"}}),
    ("--exclusive=user", {"fields": {"OverSubscribe": "USER"}}),
    ("--exclusive=mcs", {"fields": {"OverSubscribe": "MCS"}}),
    ("--reservation=one,two", {"fields": {"Reservation": "one,two"}}),
    ("--overcommit", {"fields": {"NumTasks": "4", "NumCPUs": "1", "MinCPUsNode": "1"}}),
    ("--mincpus=more", {"fields": {"NumCPUs": "1", "MinCPUsNode": "4"}}),
    ("--ntasks-per-node=other", {"options": {"NTPerNode": "4"}, "fields": {"NumTasks": "1"}}),
    ("--ntasks-per-node=other", {"options": {"NTPerNode": "2"}, "fields": {"NumNodes": "2-2", "NumTasks": "3"}}),
    ("--spread-job", {"comment": "synsched:left=spread-job"}),
    ("--gres-flags=enforce-binding", {"comment": "synsched:model=x,left=gres-flags"}),
]


@pytest.mark.parametrize(("option", "given"), LET_GO, ids=[f"{option} {given}" for option, given in LET_GO])
def test_a_job_is_let_go_in_the_words_of_its_row(option: str, given: dict[str, dict[str, str]]) -> None:
    [read], _, _ = parse_jobs(records(FakeJob(7, **given)), NO_LIMITS)  # type: ignore[arg-type] # by keyword
    assert read.job.unmanageable == let_go_reason(option)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="a plain request"),
        pytest.param({"options": {"SCT": "*:*:1"}}, id="--threads-per-core or --hint"),
        pytest.param({"asked": {"TresPerTask": "cpu:2"}}, id="--tres-per-task=cpu:2"),
        pytest.param({"asked": {"TresPerTask": "cpu=2,gres/gpu:1"}}, id="--cpus-per-task beside --gpus-per-task"),
        pytest.param({"asked": {"TresPerTask": "mem:100M,gres/gpu:1"}}, id="memory per task"),
        pytest.param({"asked": {"TresPerNode": "gres/shard:2"}}, id="shards"),
        pytest.param({"fields": {"OverSubscribe": "NO"}}, id="--exclusive"),
        pytest.param(
            {"fields": {"NumCPUs": "8", "NumNodes": "2-2", "MinCPUsNode": "4"}}, id="what its tasks use anyway"
        ),
        pytest.param(
            {
                "options": {"NTPerNode": "2"},
                "fields": {"NumNodes": "2-2", "NumTasks": "4", "NumCPUs": "4", "MinCPUsNode": "2"},
            },
            id="--ntasks-per-node",
        ),
        pytest.param({"fields": {"Features": "v100|p100"}}, id="a constraint that is planned"),
        pytest.param({"comment": "synsched:left=model"}, id="a mark of nothing"),
    ],
)
def test_what_is_planned_or_kept_is_managed(given: dict[str, dict[str, str]]) -> None:
    [read], _, _ = parse_jobs(records(FakeJob(7, **given)), NO_LIMITS)  # type: ignore[arg-type] # by keyword
    assert read.job.unmanageable == ""


def test_a_constraint_that_is_not_planned_is_let_go_in_the_words_of_its_row() -> None:
    managed = Settings(manage=ManageSettings(partitions=("gpu",)))
    why = unmanaged_reason(job(1, request=Request(gpus=1, features="a&&b")), managed)
    assert why == Reason(ReasonCode.UNMANAGED, {"why": let_go_reason("--constraint=other")})


def test_a_mark_is_believed_only_for_what_squeue_does_not_show() -> None:
    assert (marked_let_go_reason("licenses"), marked_let_go_reason("")) == ("", "")
    assert marked_let_go_reason("batch") == let_go_reason("--batch")
