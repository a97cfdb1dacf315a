"""What the hook does to a job: whom it holds, what it says, and that it never loses one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from slurmsched.model import parse_hints
from tests.unit.hooks.controller import AS_IT_WAS, DENIED, HELD, HOOK, HOOKED, NO_ROOM, REFUSED, RELEASE, Raw, Slurmctld

EXPLODING = Raw("setmetatable({}, {__tostring = function() error('boom') end})")


def test_a_managed_job_is_held_and_marked(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit()
    assert (job["priority"], job["comment"], job["said"], job["code"]) == (HELD, "synsched:held=hook", "", "0")


def test_the_mark_joins_the_hints_and_leaves_other_words_alone(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit(comment="run 7 synsched:model=gnmt please")
    assert job["comment"] == "run 7 synsched:model=gnmt,held=hook please"
    assert parse_hints(job["comment"]).held_by_hook


def test_a_mark_in_upper_case_is_removed_as_any_other(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(comment="Synsched:HELD=hook,Model=x")["comment"] == "synsched:Model=x,held=hook"
    assert slurmctld.submit(comment="SYNSCHED:Left=extra")["comment"] == "synsched:held=hook"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"script": None}, id="an interactive job"),
        pytest.param({"tres_per_node": None}, id="a job without GPUs"),
        pytest.param({"tres_per_node": "gres/gpu:0"}, id="a job that asks for no GPU explicitly"),
        pytest.param({"tres_per_node": "gres/nic:1"}, id="a job with another device"),
        pytest.param({"tres_per_node": "gres/shard:2"}, id="a job on shards of GPUs"),
        pytest.param({"tres_per_node": "gres/gpu:1,gres/shard:2"}, id="a job on GPUs and shards"),
        pytest.param({"priority": 0}, id="a job that its owner holds"),
        pytest.param({"het_job_offset": 0}, id="a part of a heterogeneous job"),
        pytest.param({"partition": "cpu"}, id="a job elsewhere without a hint"),
        pytest.param({"partition": "debug", "comment": "synsched:"}, id="a hinted job where nothing is managed"),
    ],
)
def test_everything_else_passes_untouched(slurmctld: Slurmctld, fields: dict[str, str | int | None]) -> None:
    job = slurmctld.submit(**fields)
    assert job["priority"] == str(fields.get("priority", AS_IT_WAS))
    assert job.get("comment", "") == fields.get("comment", "")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"tres_per_node": "gres:gpu:2"}, id="--gres as 22.05 passes it"),
        pytest.param({"tres_per_node": "gpu:2"}, id="--gres as typed"),
        pytest.param({"tres_per_node": "gres/gpu:v100:2"}, id="--gres with a type, since 24.05"),
        pytest.param({"tres_per_node": "gres/gpu=2"}, id="--gres with an equals sign"),
        pytest.param({"tres_per_node": None, "tres_per_job": "gres/gpu:4"}, id="--gpus"),
        pytest.param({"tres_per_node": None, "tres_per_task": "cpu:2,gres/gpu:1"}, id="--gpus-per-task"),
        pytest.param({"tres_per_node": None, "gres": "gpu:1"}, id="the old field alone"),
        pytest.param({"tres_per_node": None, "ntasks_per_tres": 2}, id="--ntasks-per-gpu alone"),
    ],
)
def test_every_way_to_ask_for_gpus_counts(slurmctld: Slurmctld, fields: dict[str, str | int | None]) -> None:
    assert slurmctld.submit(**fields)["priority"] == HELD


def test_tasks_that_name_no_gpu_are_left_to_slurm(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(tres_per_node=None, ntasks_per_tres=65534)["priority"] == AS_IT_WAS


def test_a_whole_node_is_not_taken_without_asking_for_its_gpus(slurmctld: Slurmctld) -> None:
    exclusive = {"tres_per_node": None, "shared": 0}
    refused = slurmctld.submit(**exclusive)
    assert "--gres" in refused["said"]
    assert refused["code"] == REFUSED
    assert slurmctld.submit(**exclusive, partition="cpu")["priority"] == AS_IT_WAS
    assert slurmctld.submit(tres_per_node=None, shared=65534)["priority"] == AS_IT_WAS
    assert slurmctld.submit(shared=0)["priority"] == HELD


def test_nobody_passes_the_line_by_naming_a_partition_where_nothing_is_managed_too(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(partition="debug,gpu")["priority"] == HELD
    assert slurmctld.submit(partition="debug")["priority"] == AS_IT_WAS


def test_a_hint_opts_in_anywhere_unless_the_site_says_no(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(partition="cpu", comment="synsched:")["priority"] == HELD
    slurmctld.configure(opt_in="no")
    assert slurmctld.submit(partition="cpu", comment="synsched:")["priority"] == AS_IT_WAS


def test_a_managed_qos_counts_also_where_it_is_the_default(slurmctld: Slurmctld) -> None:
    slurmctld.configure(partitions="", qos="deep,learning")
    assert slurmctld.submit(qos="learning")["priority"] == HELD
    assert slurmctld.submit(default_qos="deep")["priority"] == HELD
    assert slurmctld.submit(qos="normal", default_qos="deep")["priority"] == AS_IT_WAS


def test_without_a_partition_the_default_one_counts(slurmctld: Slurmctld) -> None:
    parts = {"cpu": {"flag_default": 0}, "gpu": {"flag_default": 1}}
    assert slurmctld.submit(parts, partition=None)["priority"] == HELD
    parts = {"cpu": {"flag_default": 1}, "gpu": {"flag_default": 0}}
    assert slurmctld.submit(parts, partition=None)["priority"] == AS_IT_WAS


@pytest.mark.parametrize("mode", ["observe", "advise", "prioritize", "paused", "stopped"])
def test_nobody_is_held_while_the_scheduler_only_looks(slurmctld: Slurmctld, mode: str) -> None:
    slurmctld.beat(mode)
    assert slurmctld.submit()["priority"] == AS_IT_WAS


def test_nobody_is_held_for_a_scheduler_that_is_gone(slurmctld: Slurmctld) -> None:
    slurmctld.beat(age=905)
    assert slurmctld.submit()["priority"] == AS_IT_WAS
    slurmctld.beat(age=880)
    assert slurmctld.submit()["priority"] == HELD
    slurmctld.heartbeat.unlink()
    assert slurmctld.submit()["priority"] == AS_IT_WAS


def test_a_sign_of_life_from_the_future_is_none(slurmctld: Slurmctld) -> None:
    slurmctld.beat(age=-110)
    assert slurmctld.submit()["priority"] == HELD
    slurmctld.beat(age=-130)
    assert slurmctld.submit()["priority"] == AS_IT_WAS


@pytest.mark.parametrize("text", ["", "\n", "enforce", "x enforce 300\n", "9" * 9000, "\x00\xff" * 40])
def test_a_broken_heartbeat_is_none(slurmctld: Slurmctld, text: str) -> None:
    slurmctld.heartbeat.write_text(text)
    assert slurmctld.submit()["priority"] == AS_IT_WAS


def test_nobody_is_held_while_the_disable_file_exists(slurmctld: Slurmctld, tmp_path: Path) -> None:
    (tmp_path / "disable").touch()
    assert slurmctld.submit()["priority"] == AS_IT_WAS


def test_what_the_running_scheduler_says_beside_its_sign_of_life_counts(slurmctld: Slurmctld) -> None:
    slurmctld.beat(more="partitions = other\n")
    assert slurmctld.submit()["priority"] == AS_IT_WAS
    assert slurmctld.submit(partition="other")["priority"] == HELD


def test_a_comma_tells_a_bare_word_of_the_owner_from_our_mark_alone(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(partition="cpu", comment="synsched:")["comment"] == "synsched:,held=hook"
    assert slurmctld.submit(comment="mine")["comment"] == "mine synsched:held=hook"
    standing = {"tres_per_node": "gres/gpu:1", "partition": "gpu", "script": "#!/bin/sh", "priority": 0}
    for comment in ("synsched:held=hook", "synsched:,held=hook"):
        changed = slurmctld.modify({**standing, "comment": comment}, comment=f"{comment} new")
        assert changed["comment"] == f"{comment} new"


def test_nobody_can_claim_the_mark(slurmctld: Slurmctld) -> None:
    slurmctld.beat("observe")
    assert slurmctld.submit(comment="synsched:held=hook,model=x my")["comment"] == "synsched:model=x my"
    assert slurmctld.submit(comment="synsched:held=hook", priority=0)["comment"] == "synsched:"
    assert slurmctld.submit(comment="synsched:held")["comment"] == "synsched:"


def test_a_wrong_hint_is_told_and_the_job_accepted(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit(comment="synsched:modle=x,ckpt=usr1")
    assert job["said"] == (
        "synsched: unknown hint 'modle': known are model, task, ckpt, duration, move, pack, gpumem, mem, cpus, fork,"
        " idle, held, left "
        "(the job runs as if it had not been given)"
    )
    assert (job["code"], job["priority"]) == ("0", HELD)


def test_a_right_hint_is_not_talked_about(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(comment="synsched:model=x,ckpt=usr1@60")["said"] == ""


@pytest.mark.parametrize(
    "comment",
    [
        pytest.param("synsched:model=x," + "," * 230, id="the hint word would grow too long to be read"),
        pytest.param("synsched: " + "x" * 990, id="the comment would grow too long for slurmctld"),
        pytest.param("x" * 990, id="without a hint"),
        pytest.param("x" * 4000, id="longer than Slurm takes"),
    ],
)
def test_a_managed_job_that_cannot_be_marked_is_refused_rather_than_let_ahead(
    slurmctld: Slurmctld, comment: str
) -> None:
    job = slurmctld.submit(comment=comment)
    assert (job["code"], job["said"]) == (REFUSED, f"synsched: {NO_ROOM}")
    for unmanaged in ({"partition": "debug"}, {"script": None}, {"priority": 0}):
        if "priority" not in unmanaged or len(comment) <= 1000:
            assert slurmctld.submit(**{"comment": comment, **unmanaged})["code"] == "0"


def test_a_long_comment_is_nobodys_business_while_nobody_enforces(slurmctld: Slurmctld) -> None:
    slurmctld.beat("observe")
    assert slurmctld.submit(comment="x" * 1000)["code"] == "0"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"tres_per_node": "gres/gpu:1,gres/shard:0"}, id="no shards beside a GPU"),
        pytest.param({"tres_per_node": "gres:shard:0", "tres_per_job": "gres:gpu:1"}, id="no shards in another option"),
        pytest.param({"begin_time": 9999999999}, id="a begin time"),
        pytest.param({"priority": 99999}, id="a priority"),
        pytest.param({"req_nodes": "v100-2"}, id="a node"),
    ],
)
def test_no_option_takes_a_managed_job_past_the_hold(slurmctld: Slurmctld, fields: dict[str, str | int]) -> None:
    assert slurmctld.submit(**fields)["priority"] == HELD


# What is refused. -----------------------------------------------------------------------------------------------------

FORGED = "x\nJobId=145 JobName=y UserId=bob(2002)"
WRITTEN = ("name", "comment", "network", "mail_user", "work_dir", "std_in", "std_out", "std_err", "features", "wckey",
           "licenses")  # fmt: skip


@pytest.mark.parametrize("field", WRITTEN)
@pytest.mark.parametrize("text", [FORGED, "a\rb", "a\x1b[31m", "a\x7f", "a\x85JobId=1", "a\u2028JobId=1"], ids=repr)
def test_line_breaks_and_control_characters_are_refused(slurmctld: Slurmctld, field: str, text: str) -> None:
    job = slurmctld.submit(**{field: text})
    assert job["code"] == REFUSED
    assert (
        job["said"] == f"synsched: the job's {field} has a line break or another control character: submit it without"
    )
    assert slurmctld.modify({}, **{field: text})["code"] == DENIED


@pytest.mark.parametrize("field", WRITTEN)
def test_what_is_too_long_to_be_looked_at_is_refused(slurmctld: Slurmctld, field: str) -> None:
    assert slurmctld.submit(**{field: "x" * 4097 + FORGED})["code"] == REFUSED
    assert slurmctld.modify({}, **{field: "x" * 4097 + FORGED})["code"] == DENIED


@pytest.mark.parametrize("field", ["name", "comment", "network", "mail_user"])
@pytest.mark.parametrize(
    "text",
    [
        "synsched: TresPerJob=gres/gpu:999999999",
        "x ReqTRES=node=0,mem=10G",
        "x MinMemoryCPU=999999999999999E",
        "x Nodes=v100-2 CPU_IDs=0-23 Mem=511992 GRES=gpu:v100:8(IDX:0-7)",
        "a\tAllocNode:Sid=x",
    ],
)
def test_names_of_slurms_own_fields_are_refused(slurmctld: Slurmctld, field: str, text: str) -> None:
    job = slurmctld.submit(**{field: text})
    assert (job["code"], job["said"].count("which is how Slurm lists a field of its own")) == (REFUSED, 1)
    assert slurmctld.modify({}, **{field: text})["code"] == DENIED


@pytest.mark.parametrize(
    "text",
    [
        "lr=0.1 Epochs=3",
        "Nodes=4 Mem=10G Partition=a Name=b Priority=high TimeLimit=3h Command=train",
        "seed=7\tbatch=32",
        "Prüfung ä ö ü 日本語",
        "TresPerJob, as in the manual",
    ],
)
def test_ordinary_words_pass(slurmctld: Slurmctld, text: str) -> None:
    for field in ("name", "comment", "network"):
        assert slurmctld.submit(**{field: text})["code"] == "0"
    assert slurmctld.modify({}, comment=text)["code"] == "0"


def test_features_and_paths_may_have_words_that_slurm_uses_too(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(work_dir="/home/a/my JobId=7", std_out="/x NodeList=%N")["code"] == "0"


def test_arguments_may_be_long_and_of_many_lines_but_not_pose_as_a_job(slurmctld: Slurmctld) -> None:
    assert (
        slurmctld.submit(argv=Raw(f"{{[0]='run.sh', '{'x' * 100_000}', 'two\\nlines', ' NodeList=x'}}"))["code"] == "0"
    )
    job = slurmctld.submit(argv=Raw("{[0]='run.sh', 'x\\nJobId=145 JobName=y'}"))
    assert (job["code"], "JobId=" in job["said"]) == (REFUSED, True)


def test_what_poses_is_refused_also_where_it_is_not_managed_and_while_rounds_only_look(slurmctld: Slurmctld) -> None:
    slurmctld.beat("observe")
    assert slurmctld.submit(script=None, partition="debug", name=FORGED)["code"] == REFUSED


@pytest.mark.parametrize("mode", ["paused", "stopped"])
def test_nothing_is_refused_while_nobody_schedules(slurmctld: Slurmctld, mode: str) -> None:
    slurmctld.beat(mode)
    assert slurmctld.submit(name=FORGED)["code"] == "0"
    assert slurmctld.modify(HOOKED, priority=RELEASE)["code"] == "0"


@pytest.mark.parametrize("field", ["comment", "name", "network"])
@pytest.mark.parametrize("text", ["('a=b, '):rep(800000)", "(' '):rep(4000000)", "('synsched:'):rep(440000)"])
def test_a_text_of_four_megabytes_costs_slurmctld_nothing(
    slurmctld: Slurmctld, lua_command: str, field: str, text: str
) -> None:
    asked = (
        "slurm = {SUCCESS = 0, ERROR = -1, NO_VAL = 4294967294, log_user = function() end} "
        f'local hook = dofile("{HOOK}") hook.conf = "{slurmctld.settings}" '
        f'local job = {{script = "x", partition = "gpu", tres_per_node = "gpu:1", {field} = {text}}} '
        "local began = os.clock() hook.submit(job, {}, 1000) print(os.clock() - began)"
    )
    run = subprocess.run([lua_command, "-e", asked], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 0.02


# Failures. ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["comment", "tres_per_job", "partition", "qos", "script"])
def test_a_field_that_is_no_text_counts_as_not_there(slurmctld: Slurmctld, field: str) -> None:
    job = slurmctld.submit(**{"partition": "cpu", field: EXPLODING})
    assert job["code"] == "0"


def test_a_job_that_cannot_be_read_passes_as_it_was_and_that_is_logged(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit_raw("setmetatable({}, {__index = function() error('boom') end})")
    assert job["code"] == "0"
    assert re.fullmatch(r"synsched: job_submit.lua: .*boom", job["said"])


def test_a_configuration_that_cannot_be_read_holds_nobody(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit(script=Raw("(function() os.time = function() error('boom') end return 'x' end)()"))
    assert (job["code"], job["priority"]) == ("0", AS_IT_WAS)


BREAKING = Raw("(function() string.find = function() error('boom') end return '#!/bin/sh' end)()")


def test_a_text_that_breaks_the_hook_gets_nobody_past_the_hold(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit(script=BREAKING, comment="synsched:x")
    assert job["code"] == REFUSED
    assert job["said"].splitlines()[-1] == "synsched: the options of this job cannot be read"


def test_while_nobody_enforces_a_text_that_breaks_the_hook_passes(slurmctld: Slurmctld) -> None:
    slurmctld.beat("observe")
    assert slurmctld.submit(script=BREAKING, comment="synsched:x")["code"] == "0"


# Changes. -------------------------------------------------------------------------------------------------------------


def test_the_doctor_is_told_of_the_heartbeat_as_slurmctlds_host_sees_it(slurmctld: Slurmctld) -> None:
    slurmctld.beat("enforce", age=7)
    told = slurmctld.submit(comment="synsched:doctor=1")["said"].splitlines()[-1]
    assert re.fullmatch(rf"synsched: heartbeat {slurmctld.heartbeat} has mode enforce and is [789] s old", told)
    slurmctld.heartbeat.unlink()
    told = slurmctld.submit(comment="synsched:doctor=1")["said"].splitlines()[-1]
    assert told == f"synsched: heartbeat {slurmctld.heartbeat} is not there"
    assert "heartbeat" not in slurmctld.submit(comment="synsched:doctor=1 other words")["said"]
