"""The Ansible role sets up a site that has rules of its own, changes nothing the second time, and leaves nothing.

The site's plug-in comes before the hook and its job_submit.lua after it: both go on as before.

The containers have no systemd that runs: tests/slurm/systemctl.py stands for it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import venv
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.slurm.mini import CHECKOUT, HOOK, Mini, Said
from tests.slurm.systemctl import systemctl_program
from tests.slurm.test_packages import LISTING, built

pytestmark = pytest.mark.skipif(
    "SLURMSCHED_ANSIBLE" not in os.environ,
    reason="NOT TESTED: the Ansible role, which takes ten minutes: set SLURMSCHED_ANSIBLE=1",
)

CLUSTER = ("--nodes", "v100:1x2/8c/64g", "--set", "JobSubmitPlugins=require_timelimit")
ROLE = CHECKOUT / "release/ansible"
SLURM_CONF = "/etc/slurm/slurm.conf"
SITES_OWN = """\
-- The site's own rule.
function slurm_job_submit(job_desc, part_list, submit_uid)
    if job_desc.name == "forbidden" then
        slurm.log_user("no job of this name")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
"""
UNKNOWN_HINT = "--comment=synsched:nonsense=1"
SETTINGS = {"manage": {"partitions": ["gpu"]}}
Play = Callable[..., dict[str, int]]
"""Runs a playbook and returns how many tasks were ok, changed and so on."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of ansible-core."""
    folder = tmp_path_factory.mktemp("ansible")
    venv.create(folder, with_pip=True, symlinks=True)
    argv = [folder / "bin/pip", "install", "--quiet", "ansible-core"]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or ["pip failed"])[-1]
        pytest.skip(f"NOT TESTED: the Ansible role: no ansible-core is to be had here ({reason})")
    return folder / "bin"


@dataclass(frozen=True)
class Site:
    """A controller without slurmsched, whose site has a plug-in and a job_submit.lua of its own, as it was then."""

    mini: Mini
    files: frozenset[str]
    slurm_conf: str

    def sure(self, *command: str) -> str:
        return self.mini.sure(*command, on="ctl")

    def listed(self) -> frozenset[str]:
        """The files of the host, without what slurmctld writes all the time, and what apt does."""
        files = self.sure("sh", "-c", LISTING).splitlines()
        return frozenset(file for file in files if not file.startswith(("/var/lib/slurm/", "/var/lib/apt/")))

    def submitted(self, *options: str) -> Said:
        words = ("sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", *options, "--wrap=sleep 300")
        return self.mini.run(*words, user="alice", on="ctl")


@pytest.fixture(scope="module")
def site(mini: Mini, tmp_path_factory: pytest.TempPathFactory) -> Site:
    program = systemctl_program(tmp_path_factory.mktemp("systemctl"))
    mini.sure("sacctmgr", "-i", "delete", "user", "synsched")
    mini.sure("sh", "-c", "rm -rf /etc/synsched/* /var/lib/synsched/* /usr/local/bin/synsched", on="ctl")
    mini.sure("userdel", "--remove", "synsched", on="ctl")
    mini.write(HOOK, SITES_OWN, on="ctl")
    mini.sure("sh", "-c", "cat > /usr/bin/systemctl", on="ctl", stdin=program)
    mini.sure("chmod", "755", "/usr/bin/systemctl", on="ctl")
    mini.sure("mkdir", "-p", "/run/systemd/system", "/etc/cron.d", on="ctl")
    before = Site(mini, frozenset(), mini.sure("cat", SLURM_CONF, on="ctl"))
    return replace(before, files=before.listed())


@pytest.fixture(scope="module")
def play(site: Site, tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Play:
    folder = tmp_path_factory.mktemp("play")
    (package,) = built(folder / "packages", "--only", "deb").glob("*.deb")
    controller = f"slurmsched-{site.mini.name}-ctl"

    def run(playbook: str, mode: str = "observe") -> dict[str, int]:
        settings = {**SETTINGS, "rounds": {"mode": mode, "period": 5}}
        given = {"slurmsched_package": str(package), "slurmsched_settings": settings, "ansible_become": False}
        said = subprocess.run(
            [
                tools / "ansible-playbook", "--inventory", f"{controller},", "--connection", "container",
                "--extra-vars", json.dumps(given), ROLE / playbook,
            ],
            env={
                **os.environ, "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).with_name("connections")),
                "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_LOCAL_TEMP": str(folder),
                "ANSIBLE_PIPELINING": "1", "ANSIBLE_HOME": str(folder), "ANSIBLE_NOCOLOR": "1",
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert said.returncode == 0, said.stdout[-6000:] + said.stderr
        (recap,) = re.findall(rf"(?m)^{re.escape(controller)} +: (.+)$", said.stdout)
        counts = {key: int(number) for key, number in re.findall(r"([a-z]+)=([0-9]+)", recap)}
        print(f"{playbook}: {recap.strip()}")
        return counts

    return run


def test_a_site_is_set_up_and_all_is_well(site: Site, play: Play) -> None:
    play("site.yml")  # fails where `synsched doctor` finds anything
    assert site.sure("stat", "-c", "%U", "/var/lib/synsched/synsched.db") == "synsched\n"
    assert site.sure("sacctmgr", "-nP", "show", "user", "synsched", "format=AdminLevel") == "Operator\n"
    assert "JobSubmitPlugins=require_timelimit,lua " in site.sure("cat", SLURM_CONF)
    plug_in, script = site.submitted(), site.submitted("--time=5", "--job-name=forbidden")
    assert (plug_in.code, script.code) == (1, 1)
    assert "Time limit specification required" in plug_in.err
    assert "no job of this name" in script.err
    assert "nonsense" in site.submitted("--time=5", UNKNOWN_HINT).err, "the hook speaks"


def test_the_second_time_nothing_is_changed(play: Play) -> None:
    assert play("site.yml")["changed"] == 0


def test_a_changed_setting_is_in_force_at_once(site: Site, play: Play) -> None:
    first = site.sure("cat", "/var/lib/synsched/heartbeat").splitlines()[1]
    assert play("site.yml", mode="enforce")["changed"] == 2  # the file, and the daemon that reads it again
    heartbeat = "/var/lib/synsched/heartbeat"
    site.mini.until("the daemon enforces", lambda: " enforce " in site.sure("cat", heartbeat))
    assert site.sure("cat", heartbeat).splitlines()[1] == first, "the same process"


def test_it_goes_without_a_trace_and_gives_back_what_it_held(site: Site, play: Play) -> None:
    started, waiting = (site.submitted("--time=5", "--gres=gpu:2").out.strip() for _ in range(2))
    site.mini.until("the first one runs", lambda: site.mini.state(started) == "RUNNING")
    assert site.mini.jobs()[waiting]["Priority"] == "0", "held"
    # A daemon that is killed gives nothing back.
    site.sure("sh", "-c", "kill -9 $(sed -n 's/^daemon = \\([0-9]*\\) .*/\\1/p' /var/lib/synsched/heartbeat)")
    play("remove.yml", mode="enforce")
    assert site.mini.jobs()[waiting]["Priority"] != "0"
    assert site.mini.state(started) == "RUNNING"
    assert site.listed() ^ site.files == set()
    assert site.sure("cat", SLURM_CONF) == site.slurm_conf
    assert site.sure("cat", HOOK) == SITES_OWN
    assert site.mini.run("getent", "passwd", "synsched", on="ctl").code == 2
    assert site.sure("sacctmgr", "-nP", "show", "user", "synsched") == ""
    assert site.submitted().code == 1, "the site's plug-in still asks for a time limit"
    unheard = site.submitted("--time=5", UNKNOWN_HINT)
    assert (unheard.code, unheard.err) == (0, "")
