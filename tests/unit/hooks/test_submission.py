"""What the hook does to a job: whom it holds, what it says, and that it never loses one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from slurmsched.installation import installation
from slurmsched.model import parse_hints
from slurmsched.rendering import render
from slurmsched.settings import Settings
from tests.unit.hooks.controller import HOOK, Raw, Slurmctld

HELD = "0"
AS_IT_WAS = "4294967294"
EXPLODING = Raw("setmetatable({}, {__tostring = function() error('boom') end})")


def test_a_managed_job_is_held_and_marked(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit()
    assert (job["priority"], job["comment"], job["said"], job["code"]) == (HELD, "synsched:held=hook", "", "0")


def test_the_mark_joins_the_hints_and_leaves_other_words_alone(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit(comment="run 7 synsched:model=gnmt please")
    assert job["comment"] == "run 7 synsched:model=gnmt,held=hook please"
    assert parse_hints(job["comment"]).held_by_hook


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
        pytest.param({"partition": "gpu,debug"}, id="a job that may go where nothing is managed"),
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
        pytest.param({"tres_per_node": None, "tres_per_socket": "gres/gpu:1"}, id="--gpus-per-socket"),
        pytest.param({"tres_per_node": None, "gres": "gpu:1"}, id="the old field alone"),
        pytest.param({"tres_per_node": "gres/nic:1,gres/gpu:1"}, id="among other devices"),
    ],
)
def test_every_way_to_ask_for_gpus_counts(slurmctld: Slurmctld, fields: dict[str, str | None]) -> None:
    assert slurmctld.submit(**fields)["priority"] == HELD


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
    slurmctld.beat(age=901)
    assert slurmctld.submit()["priority"] == AS_IT_WAS
    slurmctld.beat(age=880)
    assert slurmctld.submit()["priority"] == HELD
    slurmctld.heartbeat.unlink()
    assert slurmctld.submit()["priority"] == AS_IT_WAS


def test_a_sign_of_life_from_the_future_is_none(slurmctld: Slurmctld) -> None:
    slurmctld.beat(age=-3600)
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


def test_nobody_can_claim_the_mark(slurmctld: Slurmctld) -> None:
    slurmctld.beat("observe")
    assert slurmctld.submit(comment="synsched:held=hook,model=x my")["comment"] == "synsched:model=x my"
    assert slurmctld.submit(comment="synsched:held=hook", priority=0)["comment"] == "synsched:"
    assert slurmctld.submit(comment="synsched:held")["comment"] == "synsched:"


def test_a_wrong_hint_is_told_and_the_job_accepted(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit(comment="synsched:modle=x,ckpt=usr1")
    assert job["said"] == (
        "synsched: unknown hint 'modle': known are model, task, ckpt, duration, move, pack, mem, fork, held "
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
    ],
)
def test_a_job_that_cannot_be_marked_is_not_held(slurmctld: Slurmctld, comment: str) -> None:
    job = slurmctld.submit(comment=comment)
    assert (job["priority"], job["comment"]) == (AS_IT_WAS, comment)


@pytest.mark.parametrize("field", ["comment", "tres_per_job", "partition", "qos", "script"])
def test_a_job_that_breaks_the_hook_passes(slurmctld: Slurmctld, field: str) -> None:
    job = slurmctld.submit(**{"partition": "cpu", "comment": "synsched:x", field: EXPLODING})
    assert job["code"] == "0"


def test_a_failure_is_logged_and_the_job_passes_as_it_was(slurmctld: Slurmctld) -> None:
    job = slurmctld.submit(tres_per_job=EXPLODING)
    assert (job["code"], job["priority"], job.get("comment")) == ("0", AS_IT_WAS, None)
    assert re.fullmatch(r"synsched: job_submit.lua: .*boom", job["said"])


MARKED = {"comment": "synsched:model=x,held=hook"}


def test_the_mark_survives_an_edited_comment(slurmctld: Slurmctld) -> None:
    assert slurmctld.modify(MARKED, comment="synsched:model=y")["comment"] == "synsched:model=y,held=hook"
    assert slurmctld.modify(MARKED, comment="mine")["comment"] == "mine synsched:held=hook"


def test_an_edited_comment_cannot_claim_the_mark(slurmctld: Slurmctld) -> None:
    assert slurmctld.modify({"comment": "mine"}, comment="synsched:held=hook")["comment"] == "synsched:"


def test_a_wrong_hint_in_an_edited_comment_is_told(slurmctld: Slurmctld) -> None:
    assert "unknown hint 'modle'" in slurmctld.modify({}, comment="synsched:modle=x")["said"]


def test_a_hold_by_the_owner_takes_our_mark_away(slurmctld: Slurmctld) -> None:
    assert slurmctld.modify(MARKED, priority=0)["comment"] == "synsched:model=x"
    assert slurmctld.modify({"comment": "synsched:held=hook"}, priority=0)["comment"] == "synsched:"


def test_an_edited_comment_too_long_for_the_mark_stays_as_it_was(slurmctld: Slurmctld) -> None:
    job = slurmctld.modify(MARKED, comment="x" * 1000)
    assert job["comment"] == MARKED["comment"]
    assert "too long" in job["said"]


@pytest.mark.parametrize("uid", [0, 64030])
def test_what_others_do_to_a_job_passes_untouched(slurmctld: Slurmctld, uid: int) -> None:
    assert "comment" not in slurmctld.modify(MARKED, uid, priority=0)
    assert slurmctld.modify(MARKED, uid, comment="theirs")["comment"] == "theirs"


def test_an_update_of_something_else_leaves_the_comment_alone(slurmctld: Slurmctld) -> None:
    assert "comment" not in slurmctld.modify(MARKED, time_limit=60)


def test_the_rendered_configuration_says_what_the_hook_takes_for_granted() -> None:
    text = HOOK.read_text()
    table = text.partition("DEFAULTS = {")[2].partition("}")[0]
    rendered = dict(re.findall(r"(?m)^(\w+) = (.+)$", render("hook.conf", **installation())))
    assert dict(re.findall(r'(\w+) = "([^"]*)"', table)) == rendered
    assert rendered["heartbeat"] == Settings().hook.heartbeat


def test_a_sites_own_script_calls_the_hook(lua_command: str, tmp_path: Path) -> None:
    site = tmp_path / "job_submit.lua"
    site.write_text(
        f'local synsched = dofile("{HOOK}")\n'
        "function slurm_job_submit(job_desc, part_list, submit_uid)\n"
        "    synsched.submit(job_desc, part_list, submit_uid)\n"
        '    job_desc.account = "site"\n'
        "    return slurm.SUCCESS\n"
        "end\n"
    )
    check = (
        "slurm = {SUCCESS = 0, log_user = function(...) print(string.format(...)) end} "
        f'dofile("{site}") job = {{comment = "synsched:x"}} slurm_job_submit(job, {{}}, 1000) '
        "print(job.account, slurm_job_modify ~= nil)"
    )
    run = subprocess.run([lua_command, "-e", check], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1].split() == ["site", "true"]
    assert "unknown hint 'x'" in run.stdout
