"""The files to install, as they come out of the templates."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.cli.config import PAGES
from slurmsched.installation import node_groups, template_values
from slurmsched.model import Gpu, Node, Snapshot
from slurmsched.settings import LoadedSettings, ManageSettings, RoundSettings, Settings
from slurmsched.settings.definition import ClusterSettings, HookSettings, StorageSettings
from slurmsched.template_files import RenderingError, render, template_names
from tests.builders import node


def cluster(*nodes: Node) -> Snapshot:
    return Snapshot(time=0.0, nodes=nodes, jobs=())


def rendered(template: str, settings: Settings | None = None, *nodes: Node, **values: object) -> str:
    loaded = LoadedSettings(settings or Settings())
    return render(template, **template_values(loaded, snapshot=cluster(*nodes), command="/opt/bin/synsched"), **values)


def gpus_of(*types: str, first: int = 0, shards: int = 0) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, kind, shards=shards) for index, kind in enumerate(types, start=first))


@pytest.mark.parametrize(
    ("nodes", "lines"),
    [
        pytest.param(
            [node("a1"), node("a2")],
            ["NodeName=a1,a2 Name=gpu Type=v100 File=/dev/nvidia[0-7]"],
            id="equal nodes share a line",
        ),
        pytest.param(
            [node("a1"), node("b1", gpus=1, gpu_type="k80")],
            [
                "NodeName=a1 Name=gpu Type=v100 File=/dev/nvidia[0-7]",
                "NodeName=b1 Name=gpu Type=k80 File=/dev/nvidia0",
            ],
            id="another type has a line of its own",
        ),
        pytest.param(
            [replace(node("m"), gpus=gpus_of("a100", "a100", "v100"))],
            [
                "NodeName=m Name=gpu Type=a100 File=/dev/nvidia[0-1]",
                "NodeName=m Name=gpu Type=v100 File=/dev/nvidia2",
            ],
            id="a node of two types has two lines",
        ),
        pytest.param(
            [replace(node("g"), gpus=(*gpus_of("k80"), *gpus_of("k80", "k80", first=2)))],
            [
                "NodeName=g Name=gpu Type=k80 File=/dev/nvidia0",
                "NodeName=g Name=gpu Type=k80 File=/dev/nvidia[2-3]",
            ],
            id="a missing device splits the range",
        ),
        pytest.param(
            [replace(node("s"), gpus=gpus_of("t4", "t4", shards=10))],
            ["NodeName=s Name=gpu Type=t4 File=/dev/nvidia[0-1]", "NodeName=s Name=shard Count=20"],
            id="shards are counted over the node",
        ),
        pytest.param(
            [replace(node("u"), gpus=gpus_of(""))],
            ["NodeName=u Name=gpu File=/dev/nvidia0"],
            id="devices without a type name none",
        ),
        pytest.param([node("c", gpus=0)], [], id="a node without GPUs is left out"),
    ],
)
def test_gres_conf_says_what_the_nodes_have(nodes: list[Node], lines: list[str]) -> None:
    text = rendered("gres.conf", None, *nodes)
    assert [line for line in text.splitlines() if not line.startswith("#")] == lines


def test_the_share_of_a_group_is_that_of_its_smallest_node() -> None:
    (group,) = node_groups(cluster(node("a", cpus=24), node("b", cpus=20)))
    assert (group.names, group.cpus_per_gpu, group.gres) == (("a", "b"), 2, "gpu:v100:8")


def test_what_is_to_be_merged_into_slurm_conf_does_no_harm_when_included() -> None:
    text = rendered("slurm.conf", None, node("a"))
    assert "#NodeName=a Gres=gpu:v100:8 Weight=1" in text
    assert all(line.startswith("#") for line in text.splitlines())


@pytest.mark.parametrize(
    ("period", "every"),
    [
        pytest.param(30.0, "*/1 * * * *", id="cron knows no seconds"),
        pytest.param(300.0, "*/5 * * * *", id="minutes"),
        pytest.param(7200.0, "0 */2 * * *", id="hours"),
        pytest.param(1e6, "0 */23 * * *", id="no rarer than cron can say"),
    ],
)
def test_the_cron_line_keeps_the_period(period: float, every: str) -> None:
    text = rendered("synsched.cron", replace(Settings(), rounds=RoundSettings(period=period)))
    assert f"#{every} synsched /opt/bin/synsched run --once" in text.splitlines()


def watchdog_line(settings: Settings, **values: str) -> str:
    text = render(
        "synsched.cron", **{**template_values(LoadedSettings(settings), command="/opt/bin/synsched"), **values}
    )
    return next(line for line in text.splitlines() if line.startswith("*/5") and "watchdog" in line)


def test_cron_runs_the_watchdog_without_the_daemons_code() -> None:
    assert watchdog_line(Settings()) == (
        "*/5 * * * * synsched /usr/bin/python3 -IS /etc/synsched/watchdog.py --heartbeat '/var/lib/synsched/heartbeat'"
        " --stale-after 900 --database '/var/lib/synsched/synsched.db'"
    )
    assert "/opt/bin/synsched" not in watchdog_line(Settings())


def test_the_watchdog_is_told_where_a_sites_files_and_commands_are() -> None:
    settings = replace(
        Settings(),
        hook=HookSettings(heartbeat="/srv/it's %1/beat", stale_after=1200.0),
        storage=StorageSettings(path="/srv/a b.db"),
        cluster=ClusterSettings(slurm_conf="/opt/slurm/etc/slurm.conf"),
    )
    line = watchdog_line(settings, slurm_commands="/opt/slurm/bin", python="/opt/python3", watchdog="/opt/watchdog.py")
    command = line.replace("\\%", "%")  # cron does so, and ends the command at a bare one
    assert "%" not in line.replace("\\%", "")
    assert shlex.split(command)[6:] == [
        "/opt/python3", "-IS", "/opt/watchdog.py", "--heartbeat", "/srv/it's %1/beat", "--stale-after", "1200",
        "--database", "/srv/a b.db", "--commands", "/opt/slurm/bin", "--slurm-conf", "/opt/slurm/etc/slurm.conf",
    ]  # fmt: skip


def test_the_hook_trusts_root_and_the_daemons_user() -> None:
    values = template_values(user="root")
    assert "trusted = 0" in render("hook.conf", **values).splitlines()
    assert "trusted = 0,2100" in render("hook.conf", **{**values, "uids": (2100,)}).splitlines()


def test_the_hooks_configuration_names_what_is_managed() -> None:
    settings = replace(Settings(), manage=ManageSettings(partitions=("gpu", "a100"), opt_in=False))
    lines = rendered("hook.conf", settings).splitlines()
    assert {"partitions = gpu,a100", "opt_in = no", "stale_after = 900"} <= set(lines)


@pytest.mark.parametrize("name", ["movable.sh", "mps.sh", "sbatch.sh"])
def test_scripts_are_ones_that_their_shell_reads(name: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(rendered(name))
    shell = shutil.which(script.read_text().splitlines()[0].removeprefix("#!")) or "sh"
    subprocess.run([shell, "-n", str(script)], check=True)


@pytest.mark.parametrize("name", ["job_submit.lua", "watchdog.py"])
def test_a_hook_comes_as_it_is(name: str) -> None:
    assert render(name) == (Path(__file__).parents[3] / "hooks" / name).read_text()


def test_a_name_that_nobody_knows_is_told_with_those_there_are() -> None:
    with pytest.raises(
        RenderingError,
        match=r"there is no template 'nothing': known are alerts.yml, compare-array.sh, flags.md, grafana.json",
    ):
        render("nothing")
    with pytest.raises(RenderingError, match="no template"):
        render("../sql/0001_first_light.sql")


def test_a_value_that_is_missing_is_named() -> None:
    with pytest.raises(RenderingError, match=r"template gres.conf.j2: 'node_groups' is undefined"):
        render("gres.conf", **template_values())


def test_every_template_is_content_with_what_an_installation_tells() -> None:
    for name in template_names():
        groups = PAGES.get(name.removesuffix(".j2"), dict)()
        assert rendered(name, None, node("a"), groups=groups).endswith("\n"), name


class GpuNode:
    """A node on which mps.sh is the prolog, the epilog and the task prolog, with a program that stands for MPS."""

    def __init__(self, folder: Path, *, broken: bool = False) -> None:
        self._run, self._log = folder / "run", folder / "log"
        self._script = folder / "mps.sh"
        self._script.write_text(render("mps.sh", version="1", folder=str(self._run)))
        program = folder / "bin" / "nvidia-cuda-mps-control"
        program.parent.mkdir()
        told = 'echo "GPU $CUDA_VISIBLE_DEVICES: ${1:-$(cat)}" >> "$MPS_LOG"'
        program.write_text(f"#!/bin/sh\n{told}\nexit {int(broken)}\n")
        program.chmod(0o755)

    def job(self, context: str, number: int, gpus: str, uid: int = 1000, **more: str) -> str:
        """What the script prints in this context of a job."""
        path = f"{self._script.parent / 'bin'}:{os.environ['PATH']}"
        told = {"SLURM_JOB_ID": str(number), "SLURM_JOB_UID": str(uid), "SLURM_SCRIPT_CONTEXT": context}
        environment = {"PATH": path, "MPS_LOG": str(self._log), "SLURM_JOB_GPUS": gpus, **told, **more}
        return subprocess.run(
            ["bash", str(self._script)], env=environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def did(self) -> list[str]:
        """What the program was told since the last look."""
        said = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return said

    def left(self) -> list[str]:
        return sorted(path.name for path in self._run.iterdir())


def test_mps_runs_on_a_device_from_its_first_job_to_its_last(tmp_path: Path) -> None:
    site = GpuNode(tmp_path)
    site.job("prolog_slurmd", 1, "1")
    assert site.did() == ["GPU 1: -d"]
    site.job("prolog_slurmd", 2, "1")
    assert site.did() == [], "it runs already"
    site.job("prolog_slurmd", 3, "0")
    assert site.did() == ["GPU 0: -d"], "each device has its own"
    site.job("epilog_slurmd", 1, "1")
    assert site.did() == [], "another job is still there"
    site.job("epilog_slurmd", 2, "1")
    assert site.did() == ["GPU : quit"]
    assert site.left() == ["0", "lock"]
    site.job("prolog_slurmd", 4, "1")
    assert site.did() == ["GPU 1: -d"]


def test_mps_is_told_to_jobs_on_shards_of_the_user_that_it_serves_there(tmp_path: Path) -> None:
    site, uid, shards = GpuNode(tmp_path), os.getuid(), {"SLURM_SHARDS_ON_NODE": "5"}
    site.job("prolog_slurmd", 1, "1", uid)
    pipe = tmp_path / "run" / "1" / "pipe"
    exported = f"export CUDA_MPS_PIPE_DIRECTORY={pipe}\nexport CUDA_VISIBLE_DEVICES=0\n"
    assert site.job("prolog_task", 1, "1", uid, **shards) == exported
    assert site.job("prolog_task", 1, "1", uid) == "", "a job with the whole GPU"
    assert site.job("prolog_task", 2, "0", uid, **shards) == "", "no daemon there"
    site.job("prolog_slurmd", 3, "0", uid + 1)
    site.job("prolog_slurmd", 4, "0", uid)
    assert site.job("prolog_task", 4, "0", uid, **shards) == "", "it would wait for the other user's job to end"


@pytest.mark.parametrize("gpus", ["", "0,1", "0-3", "$(id)"])
def test_mps_is_nothing_to_jobs_of_no_gpu_or_of_several(tmp_path: Path, gpus: str) -> None:
    site = GpuNode(tmp_path)
    for context in ("prolog_slurmd", "prolog_task", "epilog_slurmd"):
        assert site.job(context, 1, gpus, SLURM_SHARDS_ON_NODE="5") == ""
    assert site.did() == []


def test_a_job_starts_also_where_mps_does_not(tmp_path: Path) -> None:
    site = GpuNode(tmp_path, broken=True)
    site.job("prolog_slurmd", 1, "0", os.getuid())
    assert site.job("prolog_task", 1, "0", os.getuid(), SLURM_SHARDS_ON_NODE="5") == ""
