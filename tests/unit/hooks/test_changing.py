"""What the submit hook does when a waiting job is changed or released: nobody gets past a round that way."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from slurmsched.installation import template_values
from slurmsched.model import parse_hints
from slurmsched.settings import Settings
from slurmsched.template_files import render
from tests.unit.hooks.controller import (
    AS_IT_WAS,
    DENIED,
    HELD,
    HOOK,
    HOOKED,
    MARKED,
    NO_ROOM,
    RELEASE,
    STANDS,
    Slurmctld,
)

OWN_HOLD = {**STANDS, "priority": 0}
WAITS = {**STANDS, "priority": 1692}


@pytest.mark.parametrize("priority", [RELEASE, 5])
def test_an_owner_cannot_release_what_the_hook_holds(slurmctld: Slurmctld, priority: int) -> None:
    job = slurmctld.modify(HOOKED, priority=priority)
    assert (job["code"], job["said"]) == (
        DENIED,
        "synsched: the job waits for its round: 'synsched explain' tells why",
    )


def test_an_owner_cannot_release_a_job_whose_gpus_follow_from_its_tasks(slurmctld: Slurmctld) -> None:
    asks = {"tres_per_node": "", "tres_fmt_req_str": "cpu=2,mem=4G,node=1,billing=2,gres/gpu=2"}
    assert slurmctld.modify({**HOOKED, **asks}, priority=RELEASE)["code"] == DENIED


def test_the_end_of_an_owners_hold_is_the_beginning_of_ours(slurmctld: Slurmctld) -> None:
    job = slurmctld.modify(OWN_HOLD, priority=RELEASE)
    assert (job["code"], job["priority"], job["comment"]) == ("0", HELD, "synsched:held=hook")
    assert job["said"] == "synsched: the next round decides when the job starts"


def test_an_owners_hold_ends_not_where_its_comment_has_no_room_for_ours(slurmctld: Slurmctld) -> None:
    job = slurmctld.modify({**OWN_HOLD, "comment": "x" * 1000}, priority=RELEASE)
    assert (job["code"], job["said"]) == (DENIED, f"synsched: {NO_ROOM}")


@pytest.mark.parametrize("standing", [HOOKED, OWN_HOLD])
def test_a_job_that_has_run_is_put_off_to_the_next_round(slurmctld: Slurmctld, standing: dict[str, str | int]) -> None:
    """The hook's mark says nothing about the hold of a job that has run, so it makes none."""
    job = slurmctld.modify({**standing, "restart_cnt": 1}, priority=RELEASE)
    assert (job["code"], job["priority"]) == ("0", str(RELEASE))
    assert 300 < int(job["begin_time"]) - time.time() <= 361


def test_a_job_that_was_put_off_cannot_be_put_forward(slurmctld: Slurmctld) -> None:
    job = slurmctld.modify({**WAITS, "restart_cnt": 1}, begin_time=int(time.time()))
    assert 300 < int(job["begin_time"]) - time.time() <= 361
    job = slurmctld.modify({**WAITS, "restart_cnt": 1}, begin_time=int(time.time()) + 9000)
    assert int(job["begin_time"]) - time.time() > 8000
    assert slurmctld.modify({**WAITS, "restart_cnt": 1}, begin_time=0)["begin_time"] == "0"


@pytest.mark.parametrize(
    ("standing", "change"),
    [
        pytest.param({"partition": "cpu"}, {"partition": "gpu"}, id="to a managed partition"),
        pytest.param({"partition": "debug"}, {"partition": "gpu"}, id="from where nothing is managed"),
        pytest.param({"tres_per_node": "gres/nic:1"}, {"tres_per_node": "gres/gpu:1"}, id="to GPUs"),
        pytest.param({"partition": "cpu"}, {"comment": "synsched:model=x"}, id="by a hint that opts in"),
    ],
)
def test_a_waiting_job_that_becomes_managed_waits_for_its_round(
    slurmctld: Slurmctld, standing: dict[str, str], change: dict[str, str]
) -> None:
    job = slurmctld.modify({**WAITS, **standing}, **change)
    assert (job["code"], job["priority"]) == ("0", HELD)
    assert parse_hints(job["comment"]).held_by_hook
    assert slurmctld.modify({**WAITS, **standing, "job_state": 1}, **change)["priority"] == AS_IT_WAS


OTHER_REQUESTS = [
    pytest.param({"tres_per_node": "gres/gpu:4"}, id="more GPUs"),
    pytest.param({"min_nodes": 2}, id="more nodes"),
    pytest.param({"num_tasks": 8}, id="more tasks"),
    pytest.param({"cpus_per_task": 24}, id="more CPUs"),
    pytest.param({"min_mem_per_node": 500000}, id="more memory"),
    pytest.param({"req_nodes": ""}, id="other nodes than its round chose"),
]


@pytest.mark.parametrize("change", OTHER_REQUESTS)
def test_a_job_that_its_owner_requeued_cannot_start_with_another_request(
    slurmctld: Slurmctld, change: dict[str, str | int]
) -> None:
    job = slurmctld.modify({**WAITS, "restart_cnt": 1, "begin_time": int(time.time()) + 121}, **change)
    assert 300 < int(job["begin_time"]) - time.time() <= 361
    later = int(time.time()) + 9000
    assert slurmctld.modify({**WAITS, "restart_cnt": 1, "begin_time": later}, **change)["begin_time"] == str(later)


@pytest.mark.parametrize("change", OTHER_REQUESTS)
def test_a_job_that_was_let_go_waits_again_if_its_owner_asks_for_something_else(
    slurmctld: Slurmctld, change: dict[str, str | int]
) -> None:
    job = slurmctld.modify({**WAITS, **MARKED}, **change)
    assert (job["code"], job["priority"], job["comment"]) == ("0", HELD, MARKED["comment"])


def test_a_job_that_was_let_go_starts_although_its_owner_renames_it(slurmctld: Slurmctld) -> None:
    unsaid: dict[str, int] = {"min_nodes": 4294967294, "cpus_per_task": 65534, "num_tasks": 4294967294}
    assert slurmctld.modify({**WAITS, **MARKED}, name="x", time_limit=60, **unsaid)["priority"] == AS_IT_WAS
    assert "begin_time" not in slurmctld.modify({**WAITS, "restart_cnt": 1}, name="x", **unsaid)


def test_a_job_that_leaves_the_managed_ones_may_be_released(slurmctld: Slurmctld) -> None:
    assert slurmctld.modify({**OWN_HOLD, "partition": "debug"}, priority=RELEASE)["priority"] == str(RELEASE)
    assert slurmctld.modify({**HOOKED, "partition": "debug"}, priority=RELEASE)["code"] == "0"


def test_owners_who_are_trusted_release_their_own_jobs(slurmctld: Slurmctld) -> None:
    assert slurmctld.modify(HOOKED, priority=RELEASE)["code"] == DENIED
    slurmctld.beat(more="trusted = 0,1000\n")
    assert slurmctld.modify(HOOKED, priority=RELEASE)["code"] == "0"
    slurmctld.beat(more="trusted = 0\n")
    slurmctld.configure(trusted="7,1000")
    assert slurmctld.modify(HOOKED, priority=RELEASE)["code"] == "0"


def test_whoever_runs_slurmctld_is_trusted(slurmctld: Slurmctld) -> None:
    uid = os.geteuid()
    assert slurmctld.modify({**HOOKED, "user_id": uid}, uid, priority=RELEASE)["code"] == "0"


@pytest.mark.parametrize("uid", [0, 64030])
def test_others_release_what_the_hook_holds(slurmctld: Slurmctld, uid: int) -> None:
    assert slurmctld.modify(HOOKED, uid, priority=RELEASE)["code"] == "0"


def test_a_release_passes_while_nobody_schedules(slurmctld: Slurmctld) -> None:
    for mode, age in (("enforce", 901), ("enforce", -121), ("observe", 0)):
        slurmctld.beat(mode, age)
        assert slurmctld.modify(HOOKED, priority=RELEASE)["code"] == "0"


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
    rendered = dict(
        re.findall(r"(?m)^(\w+) = (.+)$", render("hook.conf", **template_values(user="nobody of that name")))
    )
    assert dict(re.findall(r'(\w+) = "([^"]*)"', table)) == rendered
    assert rendered["heartbeat"] == Settings().hook.heartbeat


def test_a_sites_own_script_calls_the_hook(lua_command: str, tmp_path: Path) -> None:
    site = tmp_path / "job_submit.lua"
    site.write_text(
        f'local synsched = dofile("{HOOK}")\n'
        "function slurm_job_submit(job_desc, part_list, submit_uid)\n"
        "    local code = synsched.submit(job_desc, part_list, submit_uid)\n"
        "    if code ~= slurm.SUCCESS then return code end\n"
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
