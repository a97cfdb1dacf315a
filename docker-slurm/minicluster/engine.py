"""Makes sure that docker answers: installs and starts it as root on Debian or Ubuntu."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .commands import ClusterError, Commands

DOCKERD_LOG = Path("/var/log/dockerd.log")
LOCK_FOLDER = Path(tempfile.gettempdir())

# Words in dockerd's log, and the option with which it may start then.
DOCKERD_FALLBACKS = {
    "iptables": "--iptables=false",
    "overlay": "--storage-driver=vfs",
    "storage-driver": "--storage-driver=vfs",
}


@contextmanager
def exclusive_lock(name: str = "docker") -> Iterator[None]:
    """Locks out other processes of this machine; long work takes a lock with another name."""
    handle = os.open(
        LOCK_FOLDER / f"slurmsched-{name}-{os.getuid()}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666
    )
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def ensure_docker(commands: Commands) -> None:
    """Returns once `docker info` succeeds; installs and starts docker if needed. Raises ClusterError."""
    if _docker_answers(commands):
        return
    with exclusive_lock():
        if not _docker_answers(commands):
            _install_and_start(commands)


def _install_and_start(commands: Commands) -> None:
    if os.geteuid() != 0:
        raise ClusterError("docker does not answer: start it, and add yourself to group docker (or run this as root)")
    if not commands.succeeds("sh", "-c", "command -v dockerd"):
        install_packages(commands, "docker.io", "iptables")
    if not commands.succeeds("sh", "-c", "command -v docker"):
        install_packages(commands, "docker-cli")  # a separate package since Debian 13
    if Path("/run/systemd/system").is_dir():
        commands.run("systemctl", "start", "docker")
    else:
        _start_dockerd(commands)
    if not _docker_answers(commands):
        raise ClusterError("docker was started but does not answer: see `docker info`")


def install_packages(commands: Commands, *packages: str) -> None:
    """Installs Debian packages on this machine. Raises ClusterError."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        wanted = " and ".join(packages)
        raise ClusterError(f"please install {wanted} first (done automatically only for root on Debian or Ubuntu)")
    commands.say(f"installing {' '.join(packages)}")
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "Acquire::Check-Valid-Until=false")
    commands.attempt(*apt, "update")
    commands.run(*apt, "install", "-y", "--no-install-recommends", *packages)


def _docker_answers(commands: Commands) -> bool:
    return commands.succeeds("docker", "info", "--format", "{{.ServerVersion}}", timeout=20)


def _start_dockerd(commands: Commands) -> None:
    """Starts dockerd in its own session, so that it outlives this process, with fallback options by its log."""
    options: list[str] = []
    for _ in range(3):
        argv = ["dockerd", *options]
        commands.say(f"starting {' '.join(argv)}, log in {DOCKERD_LOG}")
        with DOCKERD_LOG.open("wb") as log:
            daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        for _ in range(60):
            if _docker_answers(commands):
                return
            if daemon.poll() is not None:
                break
            time.sleep(0.5)
        else:
            break
        errors = DOCKERD_LOG.read_text(errors="replace")[-2000:]
        fallbacks = [option for word, option in DOCKERD_FALLBACKS.items() if word in errors and option not in options]
        if not fallbacks:
            break
        options.append(fallbacks[0])
    raise ClusterError(f"dockerd does not start: see {DOCKERD_LOG}")
