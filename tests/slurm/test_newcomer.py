"""A newcomer's first hour on a controller that has never heard of slurmsched, by the lines that the docs print.

The lines of docs/admin.md are run as they stand, but for the version. The controller is a container of its own, of a
Debian 12, an Ubuntu 24.04, or one that installs RPMs: it has Slurm, cron and curl, and neither our user nor our folders
nor the libraries that the package depends on. Those lie in apt's cache: what is counted is not the network.

The host with RPMs is a Debian 13 with dnf and rpm, whose database says that it has the Python and shadow-utils that the
package requires. No package of an Enterprise Linux is to be had where this runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.slurm.mini import CHECKOUT, HOOK, Mini
from tests.slurm.systemctl import systemctl_program
from tests.slurm.test_packages import LISTING, built

ADMIN = CHECKOUT / "docs/admin.md"
RPM_HOST, RPM_PYTHON = "trixie", "3.13"
ALL = "SLURMSCHED_NEWCOMER"
CLUSTER = ("--nodes", "v100:1x2/8c/64g")
NAMES = {"bookworm": "Debian 12", "noble": "Ubuntu 24.04", RPM_HOST: "Debian 13 with dnf and rpm"}
DEPENDENCIES = (
    "python3-cattr python3-click python3-jinja2 python3-numpy python3-prometheus-client python3-rich python3-scipy"
    " sqlite-utils"
)
BARE = f"""\
FROM {{image}}
RUN {{{{ getent passwd synsched && userdel --remove synsched; rm -rf /usr/local/bin/synsched; }}}} >/dev/null 2>&1; \\
    export DEBIAN_FRONTEND=noninteractive && echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/unsafe \\
 && rmdir /etc/synsched /var/lib/synsched /opt/slurmsched \\
 && apt-get purge -yq --autoremove {DEPENDENCIES} >/dev/null \\
 && apt-get -o Acquire::Check-Valid-Until=false update -q \\
 && apt-get install -yq --no-install-recommends cron curl {{more}} \\
 && {{fetch}} \\
 && mkdir -p /run/systemd/system /etc/cron.d && echo 'APT::Get::Assume-Yes "true";' > /etc/apt/apt.conf.d/99yes
"""
"""Whoever sits at a terminal says yes; here apt's configuration does."""
NO_NAMESPACES = (
    "echo assumeyes=True >> /etc/dnf/dnf.conf && mkdir -p /etc/rpm"
    " && echo '%__transaction_unshare %{nil}' > /etc/rpm/macros"
)
"""rpm runs scripts of packages in a namespace of their own, which this container may not make."""
DISTRIBUTION = f"""\
Name: distribution
Version: 1
Release: 1
Summary: What the package requires of its distribution, which here comes from Debian
License: MIT
BuildArch: noarch
Provides: /bin/sh /usr/bin/python{RPM_PYTHON} shadow-utils
%description
Nothing but names.
%files
"""
UNTOUCHED = ("Comment", "AdminComment", "Nice", "ReqNodeList", "NumCPUs", "TRES", "JobState", "Features")
TIMES = re.compile(r"([0-9]+)m([0-9.]+)s")
BLOCK = re.compile(r"(?m)(?:^    .*\n)+")

pytestmark = pytest.mark.parametrize(
    "mini",
    [
        "bookworm",
        *(
            pytest.param(
                release,
                marks=pytest.mark.skipif(
                    ALL not in os.environ, reason=f"NOT TESTED: a newcomer on {NAMES[release]}: set {ALL}=1"
                ),
            )
            for release in ("noble", RPM_HOST)
        ),
    ],
    indirect=True,
    scope="module",
)


def documented(heading: str) -> list[list[str]]:
    """The lines of commands in each block of a part of docs/admin.md."""
    page = ADMIN.read_text(encoding="utf-8")
    part = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [[line.strip() for line in block.splitlines()] for block in BLOCK.findall(part)]


def counted(which: int) -> int:
    """The steps to a first round (0) and back (1) that docs/admin.md counts."""
    page = " ".join(ADMIN.read_text(encoding="utf-8").split())
    (told,) = re.findall(r"([0-9]+) steps to a green `doctor` and a scrape, ([0-9]+) to remove it", page)
    return int(told[which])


def steps(lines: list[str], release: str) -> list[str]:
    """Those for this kind of host."""
    other = "apt " if release == RPM_HOST else "dnf "
    return [line for line in lines if not line.startswith(other)]


@dataclass
class Newcomer:
    """A controller, and the person who types there. `took` has each step, its seconds and its processor time."""

    mini: Mini
    release: str
    before: frozenset[str]
    took: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def deb(self) -> bool:
        return self.release != RPM_HOST

    def sure(self, *command: str) -> str:
        return self.mini.sure(*command, on="ctl")

    def step(self, line: str) -> str:
        """Run a line of the docs in the folder that has the package; what it prints."""
        began = time.monotonic()
        timed = f"cd /opt && {{ {line.partition('  #')[0]}; }}; code=$?; times >&2; exit $code"
        done = self.mini.run("sh", "-c", timed, on="ctl", timeout=600)
        user, system = (float(minutes) * 60 + float(seconds) for minutes, seconds in TIMES.findall(done.err)[-2:])
        self.took.append((line, time.monotonic() - began, user + system))
        assert done.code == 0, f"{line}: exit {done.code}\n{done.out[-3000:]}{done.err[-3000:]}"
        return done.out

    def told(self) -> str:
        """Steps and minutes."""
        lines = [f"  {seconds:6.1f} s {busy:6.1f} s  {line}" for line, seconds, busy in self.took]
        total, busy = (sum(step[which] for step in self.took) for which in (1, 2))
        first = f"\n{NAMES[self.release]}: {len(lines)} steps, {total:.0f} s, of which {busy:.0f} s of processor time"
        return "\n".join([first, *lines])

    def listed(self) -> frozenset[str]:
        """The files of the host, without what slurmctld, apt, rpm and the log write."""
        others = ("/var/lib/slurm/", "/var/lib/apt/", "/var/lib/dnf/", "/usr/lib/sysimage/", "/var/lib/rpm/")
        return frozenset(file for file in self.sure("sh", "-c", LISTING).splitlines() if not file.startswith(others))


@pytest.fixture(scope="module")
def newcomer(mini: Mini, tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    release = mini.name.rpartition("-")[2]
    if release == RPM_HOST and shutil.which("rpmbuild") is None:
        pytest.skip("NOT TESTED: a newcomer with the RPM: rpmbuild is missing: install the package rpm")
    folder = tmp_path_factory.mktemp("newcomer")
    program = systemctl_program(folder / "systemctl")
    packages = built(
        folder / "packages", *(("--only", "rpm", "--python", RPM_PYTHON) if release == RPM_HOST else ("--only", "deb"))
    )
    bare_controller(mini, release)
    mini.sure("sh", "-c", "cat > /usr/bin/systemctl && chmod 755 /usr/bin/systemctl", on="ctl", stdin=program)
    container = f"slurmsched-{mini.name}-ctl"
    (package,) = (file for file in packages.iterdir() if file.suffix in {".deb", ".rpm"})
    subprocess.run(["docker", "cp", str(package), f"{container}:/opt/{package.name}"], capture_output=True, check=True)
    if release == RPM_HOST:
        distribution(mini, folder)
    mini.sure("sacctmgr", "-i", "delete", "user", "synsched")
    host = Newcomer(mini, release, frozenset())
    host.before = host.listed()
    return host


def bare_controller(mini: Mini, release: str) -> None:
    """Puts in the place of the cluster's controller one that has Slurm and nothing of ours."""
    container = f"slurmsched-{mini.name}-ctl"
    (told,) = json.loads(docker("inspect", container))
    ((network, endpoint),) = told["NetworkSettings"]["Networks"].items()
    rpm = release == RPM_HOST
    text = BARE.format(
        image=told["Config"]["Image"],
        more="dnf rpm" if rpm else "",
        fetch=NO_NAMESPACES if rpm else f"apt-get install -yq --no-install-recommends --download-only {DEPENDENCIES}",
    )
    image = f"slurmsched-newcomer:{release}"
    build = subprocess.run(
        ["docker", "build", "--network=host", "--tag", image, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout[-3000:] + build.stderr[-1000:]
    # A site without a hook: nothing of ours is in Slurm either.
    mini.sure("sed", "-i", "/^JobSubmitPlugins=/d", "/etc/slurm/slurm.conf")
    mini.sure("rm", HOOK)
    docker("rm", "--force", container)
    words = [
        "--name",
        container,
        "--hostname",
        "ctl",
        "--network",
        network,
        "--ip",
        endpoint["IPAMConfig"]["IPv4Address"],
    ]
    for name, value in told["Config"]["Labels"].items():
        words += ["--label", f"{name}={value}"]
    for line in told["HostConfig"]["ExtraHosts"]:
        words += ["--add-host", line]
    for volume in ("home:/home", "slurm:/etc/slurm"):
        words += ["--volume", f"slurmsched-{mini.name}-{volume}"]
    docker("run", "--detach", *words, image, "ctl")
    mini.until("slurmctld is back", lambda: " idle" in mini.run("sinfo", "-h", "-p", "gpu", "-o", " %t").out, 90)


def docker(*words: str) -> str:
    run = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def distribution(mini: Mini, folder: Path) -> None:
    """Has the host's rpm database say what Debian's packages provide."""
    mini.sure("sh", "-c", "cat > /tmp/distribution.spec", on="ctl", stdin=DISTRIBUTION)
    made = "rpmbuild -bb --quiet --define '_rpmdir /tmp' --define '_topdir /tmp/rpmbuild' /tmp/distribution.spec"
    mini.sure("sh", "-c", f"{made} && rpm -i /tmp/noarch/distribution-1-1.noarch.rpm && rm -rf /tmp/*", on="ctl")


def submitted(newcomer: Newcomer) -> str:
    words = (
        "sbatch",
        "--parsable",
        "--chdir=/tmp",
        "--output=/dev/null",
        "--gres=gpu:2",
        "--mem=1g",
        "--wrap=sleep 900",
    )
    return newcomer.mini.sure(*words, user="alice").strip()


def untouched(newcomer: Newcomer, job: str) -> dict[str, str]:
    """What a round could have changed; a priority grows by itself, and is 0 where a job is held."""
    shown = newcomer.mini.jobs()[job]
    return {"held": str(shown["Priority"] == "0"), **{name: shown.get(name, "") for name in UNTOUCHED}}


def test_the_lines_of_the_docs_lead_to_a_daemon_that_observes(newcomer: Newcomer) -> None:
    mini = newcomer.mini
    runs, waits = submitted(newcomer), submitted(newcomer)
    mini.until("the first one runs", lambda: mini.state(runs) == "RUNNING")
    jobs = {job: untouched(newcomer, job) for job in (runs, waits)}
    first, _ = documented("Packages and Ansible")[:2]
    version = re.search(r"[0-9]+(\.[0-9]+)+", newcomer.sure("sh", "-c", "ls /opt/slurmsched*"))
    assert version
    said = {
        line.split()[0] + " " + line.split()[1]: newcomer.step(line.replace("VERSION", version[0]))
        for line in steps(first, newcomer.release)
    }
    assert len(newcomer.took) == counted(0)
    assert said["synsched config"] == "/etc/synsched/synsched.toml is in order\n"
    assert not re.search(r"(?m)^(FAIL|warn)", said["synsched doctor"]), said["synsched doctor"]
    assert " hook:" not in said["synsched doctor"]
    print(newcomer.told(), said["synsched doctor"], said["synsched status"], sep="\n")
    assert "observe" in said["synsched status"]
    listed = {line.split()[0]: line for line in said["synsched status"].splitlines() if line.startswith((runs, waits))}
    assert " R " in listed[runs]
    assert " PD " in listed[waits]
    metrics = said["curl -s"]
    assert 'synsched_mode{mode="observe"} 1.0' in metrics
    assert 'synsched_jobs{state="running"} 1.0' in metrics
    assert 'synsched_jobs{state="pending"} 1.0' in metrics
    assert "synsched_rounds_total{" in metrics
    assert jobs == {job: untouched(newcomer, job) for job in (runs, waits)}, "to observe is to change nothing"


def test_it_is_removed_without_a_trace(newcomer: Newcomer) -> None:
    mini = newcomer.mini
    present = newcomer.sure("sh", "-c", "ps -o pid= -u synsched")
    assert present.strip(), "the daemon runs"
    _, last = documented("Packages and Ansible")[:2]
    newcomer.took.clear()
    for line in steps(last, newcomer.release):
        newcomer.step(line)
    print(newcomer.told())
    assert len(newcomer.took) == counted(1)
    assert newcomer.listed() ^ newcomer.before == set()
    for kind in ("passwd", "group"):
        assert mini.run("getent", kind, "synsched", on="ctl").code == 2
    assert newcomer.sure("sacctmgr", "-nP", "show", "user", "synsched") == ""
    assert mini.run("sh", "-c", "ls -d /run/synsched /var/spool/cron/crontabs/synsched", on="ctl").out == ""
    left = newcomer.sure("sh", "-c", "ps -eo pid=,args= | grep -i '[s]lurmsched\\|[s]ynsched' || true")
    assert left == ""
    assert mini.run("curl", "-s", "http://127.0.0.1:9797/metrics", on="ctl").code == 7, "nothing listens"
    states = sorted(job["JobState"] for job in mini.jobs().values())
    assert states == ["PENDING", "RUNNING"], "as if nothing had been"
