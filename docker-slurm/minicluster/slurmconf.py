"""Writes the files of /etc/slurm for one cluster."""

from __future__ import annotations

import io
import re
import secrets
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from .nodes import SHARDS_PER_GPU, NodeGroup

CONFIG = Path(__file__).resolve().parent.parent / "config"
SLURM_UID = 64030  # Debian's fixed uid and gid of user slurm

# Nodes that never power up: a job gets its allocation and stays CONFIGURING until ResumeTimeout.
# (Without PrivateData=cloud, 22.05 shows such a node only while a job has it.)
POWER_SAVING = """\
PrivateData=cloud
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=1000000
SuspendTimeout=1
ResumeTimeout=65000
ResumeRate=0
SuspendRate=0

"""


PLACEHOLDER = "NodeName=synsched-never State=FUTURE\n"


def slurm_conf(
    groups: Sequence[NodeGroup],
    *,
    virtual: bool,
    kill_wait: int,
    overrides: Mapping[str, str],
    placeholder: bool = False,
) -> str:
    """The text of slurm.conf: the template, with `overrides` replaced or appended."""
    text = Template((CONFIG / "slurm.conf").read_text()).substitute(
        mem_per_cpu=min(group.memory_mb // group.cpus for group in groups),
        kill_wait=kill_wait,
        power=POWER_SAVING if virtual else "",
        nodes="".join(_node_line(group, virtual=virtual) for group in groups) + (PLACEHOLDER if placeholder else ""),
    )
    for key, value in overrides.items():
        line = f"{key}={value}"
        text, replaced = re.subn(rf"(?im)^{re.escape(key)}=.*$", line.replace("\\", r"\\"), text)
        if not replaced:
            text += f"{line}\n"
    return text


def _node_line(group: NodeGroup, *, virtual: bool) -> str:
    cores = group.cpus // group.threads
    sockets = 2 if cores % 2 == 0 else 1
    gres = f" Gres=gpu:{group.type}:{group.gpus},shard:{group.gpus * SHARDS_PER_GPU}" if group.gpus else ""
    return (
        f"NodeName={group.hostlist} CPUs={group.cpus} Sockets={sockets} CoresPerSocket={cores // sockets}"
        f" ThreadsPerCore={group.threads} RealMemory={group.memory_mb} Feature={group.type}{gres}"
        f" State={'CLOUD' if virtual else 'UNKNOWN'}\n"
    )


def gres_conf(groups: Sequence[NodeGroup]) -> str:
    """The text of gres.conf, with the fake devices that the image's role script makes."""
    lines = ["AutoDetect=off\n"]
    for group in groups:
        if group.gpus:
            last = f"[0-{group.gpus - 1}]" if group.gpus > 1 else "0"
            lines.append(f"NodeName={group.hostlist} Name=gpu Type={group.type} File=/dev/fakegpu/nvidia{last}\n")
            lines.append(f"NodeName={group.hostlist} Name=shard Count={group.gpus * SHARDS_PER_GPU}\n")
    return "".join(lines)


def config_archive(release: str, source: Path, slurm: str, gres: str) -> bytes:
    """A tar archive of /etc/slurm with owners and modes, for `docker cp`."""
    hook = source / "hooks" / "job_submit.lua"
    cgroup = Template((CONFIG / "cgroup.conf").read_text())
    root, service = 0, SLURM_UID
    files = [
        ("slurm.conf", slurm.encode(), 0o644, root),
        ("gres.conf", gres.encode(), 0o644, root),
        ("cgroup.conf", cgroup.substitute(cgroup_plugin=_cgroup_plugin(release)).encode(), 0o644, root),
        ("slurmdbd.conf", (CONFIG / "slurmdbd.conf").read_bytes(), 0o600, service),
        ("job_submit.lua", (hook if hook.is_file() else CONFIG / "job_submit.lua").read_bytes(), 0o644, root),
        ("munge.key", secrets.token_bytes(128), 0o400, root),
    ]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content, mode, owner in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid, entry.gid = len(content), mode, owner, owner
            entry.mtime = time.time()  # with time stamp 0 slurmctld does not load job_submit.lua, then crashes on it
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _cgroup_plugin(release: str) -> str:
    """Slurm before 24.05 has no `disabled`; it needs nothing of the plugin that it loads if no setting does."""
    return "cgroup/v1" if release in {"bookworm", "noble"} else "disabled"
