"""The Debian package is installed, upgraded, removed and purged in a container; the RPM in a root of its own.

The root is a Debian's, to which `rpm --root` brings a package without asking for what it requires: it shows the files,
the scripts, the owners and that the libraries of the package are enough, not that a Rocky Linux has its Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.mini import CHECKOUT

RELEASE = "bookworm"
"""The oldest release that the package is for; the stories on an Ansible role install it on a newer one."""
RPM_PYTHON = "3.11"
"""The Python of that release. What is published is built for another, and differs in nothing else."""
LISTING = (
    r"find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /opt -o -path /run -o -path /root"
    r" -o -path '/var/lib/dpkg/*' -o -path '/var/log/*' -o -path '/var/cache/*' -o -path '/etc/*-' \) -prune"
    r" -o -print | sort"
)
"""Every file of a host, without those that come and go anyway."""
AS_DAEMON = ("setpriv", "--reuid=synsched", "--regid=synsched", "--init-groups", "--")
NO_DOCKER = not (os.geteuid() == 0 and shutil.which("docker"))


def built(folder: Path, *options: str) -> Path:
    argv = [sys.executable, str(CHECKOUT / "release/packages.py"), *options, str(folder)]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


class Host:
    """A container with the libraries that the package depends on, and nothing of ours."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        argv = ["docker", "exec", self.name, *command]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def sure(self, *command: str) -> str:
        run = self.run(*command)
        assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"
        return run.stdout

    def files(self) -> set[str]:
        return set(self.sure("sh", "-c", LISTING).splitlines())


@pytest.fixture(scope="module")
def image() -> str:
    """The image of the mini cluster, in which Slurm and Debian's libraries are."""
    if NO_DOCKER:
        pytest.skip("NOT TESTED: installing packages needs docker, and root")
    argv = [str(CHECKOUT / "docker-slurm/cluster"), "images", "--release", RELEASE]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[-1]


@pytest.fixture(scope="module")
def host(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    name = f"slurmsched-packages-{os.getpid()}"
    argv = [
        "docker",
        "run",
        "--detach",
        "--rm",
        "--network=none",
        "--name",
        name,
        "--entrypoint",
        "sleep",
        image,
        "900",
    ]
    subprocess.run(argv, capture_output=True, check=True)
    try:
        host = Host(name)
        host.sure("userdel", "synsched")
        host.sure("rm", "-rf", "/home/synsched", "/etc/synsched", "/var/lib/synsched", "/usr/local/bin/synsched")
        (package,) = built(tmp_path_factory.mktemp("packages"), "--only", "deb").glob("*.deb")
        subprocess.run(["docker", "cp", str(package), f"{name}:/opt/package.deb"], capture_output=True, check=True)
        yield host
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)


def test_the_debian_package_comes_is_upgraded_and_goes(host: Host) -> None:
    before = host.files()
    host.sure("dpkg", "--install", "/opt/package.deb")
    name, _, uid, *_, home, shell = host.sure("getent", "passwd", "synsched").strip().split(":")
    assert (name, int(uid) < 1000, home, shell) == ("synsched", True, "/var/lib/synsched", "/usr/sbin/nologin")
    modes = host.sure("stat", "-c", "%n %a %U", "/etc/synsched", "/etc/synsched/synsched.toml", "/var/lib/synsched")
    assert modes.splitlines() == [
        "/etc/synsched 755 root",
        "/etc/synsched/synsched.toml 644 root",
        "/var/lib/synsched 711 synsched",
    ]
    assert "slurmsched/cli/__pycache__" in "\n".join(host.files()), "starts would compile it each time"

    assert host.sure(*AS_DAEMON, "synsched", "config", "check") == "/etc/synsched/synsched.toml is in order\n"
    examined = host.run(*AS_DAEMON, "synsched", "doctor")
    assert (examined.returncode, examined.stderr) == (1, "")  # no Slurm is here
    assert "ok   unit: /usr/lib/systemd/system/synsched.service" in examined.stdout
    assert host.sure("/etc/synsched/watchdog.py", "--help").startswith("usage: watchdog.py")

    host.sure("sh", "-c", "echo '# ours' >> /etc/synsched/synsched.toml; echo data > /var/lib/synsched/synsched.db")
    host.sure("dpkg-deb", "-R", "/opt/package.deb", "/opt/newer")
    host.sure("sed", "-i", "s/^Version: .*/Version: 99-1/", "/opt/newer/DEBIAN/control")
    host.sure("sh", "-c", "echo '# newer' >> /opt/newer/etc/synsched/watchdog.py; rm /opt/newer/usr/share/man/man7/*")
    host.sure("dpkg-deb", "--root-owner-group", "-b", "/opt/newer", "/opt/newer.deb")
    host.sure("dpkg", "--install", "/opt/newer.deb")  # asks nothing: its standard input is empty
    assert host.sure("tail", "-n", "1", "/etc/synsched/synsched.toml") == "# ours\n"
    assert host.sure("tail", "-n", "1", "/etc/synsched/watchdog.py") == "# newer\n"
    assert host.sure("cat", "/var/lib/synsched/synsched.db") == "data\n"
    assert not host.sure("find", "/usr/share/man", "-name", "synsched*.7*")

    host.sure("dpkg", "--remove", "slurmsched")
    assert host.files() - before == {
        "/etc/synsched",
        *(f"/etc/synsched/{name}" for name in ("job_submit.lua", "synsched.toml", "watchdog.py")),
        "/var/lib/synsched",
        "/var/lib/synsched/synsched.db",
    }
    rendered = 'echo "# rendered by \\"synsched render synsched.cron\\"" > /etc/cron.d/synsched'
    host.sure("sh", "-c", f"mkdir -p /etc/cron.d; {rendered}; echo '# of the site' > /etc/cron.d/other")
    host.sure("dpkg", "--purge", "slurmsched")
    assert host.files() - before <= {"/etc/cron.d", "/etc/cron.d/other"}
    assert before - host.files() == set()
    assert host.run("getent", "passwd", "synsched").returncode == 2


@pytest.fixture
def root(image: str, tmp_path: Path) -> Path:
    """A root folder without any of the libraries that the RPM has to bring."""
    if shutil.which("rpm") is None:
        pytest.skip("NOT TESTED: the RPM: rpm and rpmbuild are missing: install the package rpm")
    folder = tmp_path / "root"
    folder.mkdir()
    name = f"slurmsched-rpm-{os.getpid()}"
    subprocess.run(["docker", "create", "--name", name, image], capture_output=True, check=True)
    try:
        left_out = (
            "usr/lib/python3/dist-packages",
            "usr/lib/x86_64-linux-gnu/libLLVM*",
            "usr/share/doc",
            "usr/share/locale",
        )
        with subprocess.Popen(["docker", "export", name], stdout=subprocess.PIPE) as exported:
            unpack = ["tar", "-x", "-C", str(folder), *(f"--exclude={path}" for path in left_out)]
            subprocess.run(unpack, stdin=exported.stdout, check=True)
    finally:
        subprocess.run(["docker", "rm", name], capture_output=True, check=False)
    (folder / "usr/share/doc").mkdir(exist_ok=True)
    inside(folder, "userdel", "synsched")
    inside(folder, "rm", "-rf", "/home/synsched", "/etc/synsched", "/var/lib/synsched", "/usr/local/bin/synsched")
    return folder


def inside(root: Path, *command: str) -> str:
    run = subprocess.run(["chroot", str(root), *command], capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"
    return run.stdout


@pytest.mark.skipif(
    "SLURMSCHED_RPM" not in os.environ, reason="NOT TESTED: the RPM, which takes minutes: set SLURMSCHED_RPM=1"
)
def test_the_rpm_comes_and_goes(root: Path, tmp_path: Path) -> None:
    (package,) = built(tmp_path / "packages", "--only", "rpm", "--python", RPM_PYTHON).glob("*.rpm")
    before = set(inside(root, "sh", "-c", LISTING).splitlines())

    def rpm(*words: str) -> str:
        run = subprocess.run(["rpm", "--root", str(root), *words], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    assert f"/usr/bin/python{RPM_PYTHON}\n" in rpm("-qp", "--requires", str(package))
    rpm("--nodeps", "-i", str(package))
    assert inside(root, "getent", "passwd", "synsched").rstrip().endswith(":/var/lib/synsched:/sbin/nologin")
    assert inside(root, "stat", "-c", "%a %U", "/var/lib/synsched") == "711 synsched\n"
    assert inside(root, *AS_DAEMON, "synsched", "config", "check") == "/etc/synsched/synsched.toml is in order\n"
    library = "import numpy, slurmsched; print(numpy.__file__, slurmsched.__file__)"
    modules = inside(root, "/usr/lib/slurmsched/bin/python", "-I", "-c", library).split()
    assert all(module.startswith("/usr/lib/slurmsched/lib/") for module in modules)
    inside(root, "sh", "-c", "echo '# ours' >> /etc/synsched/synsched.toml; echo data > /var/lib/synsched/synsched.db")

    rpm("-e", "slurmsched")
    assert set(inside(root, "sh", "-c", LISTING).splitlines()) - before == {
        "/etc/synsched",
        "/etc/synsched/synsched.toml.rpmsave",
        "/var/lib/synsched",
        "/var/lib/synsched/synsched.db",
    }
