"""The systemd unit: what the daemon may write to, how much memory it may take, and how little else it may do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.installation import ClusterSize, systemd_word, template_values
from slurmsched.settings import (
    DaemonSettings,
    HookSettings,
    LoadedSettings,
    MetricsSettings,
    NodeSettings,
    ReportSettings,
    Settings,
    StorageSettings,
)
from slurmsched.settings.paths import READ_PATHS, WRITTEN_PATHS, written_folders
from slurmsched.settings.schema import SettingType, sections
from slurmsched.template_files import render

NOT_PATHS = {
    "learning.prometheus",
    "learning.prometheus_cluster",
    "manage.never_partitions",
    "manage.partitions",
    "manage.qos",
    "metrics.listen",
    "policy.system",
    "tickets.accounts",
    "tickets.users",
}
"""Settings of free text that name no file."""

COMMON_TMP = "/var/tmp/synsched"  # noqa: S108 - named, not written to

ELSEWHERE = Settings(
    reports=ReportSettings(spool="/shared/spool"),
    hook=HookSettings(heartbeat="/shared/slurm state/heartbeat"),
    nodes=NodeSettings(fragments=("gres.conf.j2=/etc/slurm/gres.conf", "slurm.conf.j2=/srv/100%/slurm.conf")),
    storage=StorageSettings(path="/srv/synsched/rounds.db"),
)

CONFIGURATIONS = [
    pytest.param(Settings(), "synsched", id="as shipped"),
    pytest.param(ELSEWHERE, "synsched", id="every path elsewhere"),
    pytest.param(ELSEWHERE, "slurm", id="as SlurmUser"),
    pytest.param(ELSEWHERE, "root", id="as root, writing configuration files"),
    pytest.param(
        replace(Settings(), storage=StorageSettings(path=f"{COMMON_TMP}/rounds.db")),
        "synsched",
        id="a path in a common /tmp",
    ),
]


def rendered(settings: Settings, user: str = "synsched", command: str = "/bin/true") -> str:
    size = ClusterSize(nodes=100, jobs=20_000)
    return render(
        "synsched.service", **template_values(LoadedSettings(settings), command=command, user=user, size=size)
    )


@pytest.fixture
def analyze(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`systemd-analyze` on a unit of this text; it needs no systemd that runs."""
    command = shutil.which("systemd-analyze")
    if command is None:
        if "CI" in os.environ:
            pytest.fail("systemd-analyze is missing, which 'make setup' installs")
        pytest.skip("systemd-analyze is missing: install the package systemd")

    def run(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        unit = tmp_path / "synsched.service"
        unit.write_text(text, encoding="utf-8")
        return subprocess.run([command, *arguments, str(unit)], capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(("settings", "user"), CONFIGURATIONS)
def test_systemd_finds_the_unit_exposed_by_3_of_10_at_most(
    settings: Settings, user: str, analyze: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    result = analyze(rendered(settings, user), "security", "--offline=yes", "--threshold=30", "--no-pager")
    assert result.returncode == 0, result.stdout + result.stderr


def test_systemd_finds_a_unit_without_its_protection_too_exposed(
    analyze: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    text = re.sub(r"(?m)^(?:SystemCall|Protect|Capability|Restrict).*\n", "", rendered(Settings()))
    assert analyze(text, "security", "--offline=yes", "--threshold=30", "--no-pager").returncode != 0


@pytest.mark.parametrize(("settings", "user"), CONFIGURATIONS)
def test_systemd_understands_every_line_of_the_unit(
    settings: Settings, user: str, analyze: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    result = analyze(rendered(settings, user), "verify")
    assert (result.returncode, result.stdout) == (0, "")
    assert "synsched.service:" not in result.stderr


def test_every_setting_that_names_a_path_is_known_as_written_or_read() -> None:
    texts = {
        entry.name
        for section in sections()
        for entry in section.settings
        if entry.kind in (SettingType.TEXT, SettingType.TEXTS)
    }
    assert texts <= set(WRITTEN_PATHS) | READ_PATHS | NOT_PATHS


@pytest.mark.parametrize(
    ("settings", "folders"),
    [
        pytest.param(
            Settings(reports=ReportSettings(spool="/shared/spool")),
            ("/shared/spool",),
            id="the spool, with its dispatches",
        ),
        pytest.param(
            Settings(hook=HookSettings(heartbeat="/shared/heartbeat")), ("/shared",), id="the heartbeat's folder"
        ),
        pytest.param(Settings(storage=StorageSettings(path="/srv/rounds.db")), ("/srv",), id="the database's folder"),
        pytest.param(
            Settings(nodes=NodeSettings(fragments=("gres.conf.j2=/etc/slurm/gres.conf",))),
            ("/etc/slurm",),
            id="where fragments go",
        ),
        pytest.param(
            Settings(metrics=MetricsSettings(textfile="/var/lib/prometheus/node-exporter/synsched.prom")),
            ("/var/lib/prometheus/node-exporter",),
            id="where the textfile of metrics goes",
        ),
    ],
)
def test_the_unit_may_write_to_every_configured_path(settings: Settings, folders: tuple[str, ...]) -> None:
    lines = rendered(settings).splitlines()
    for folder in folders:
        assert folder in written_folders(settings)
        assert f"ReadWritePaths=-{folder}" in lines
        assert f"RequiresMountsFor={folder}" in lines


def test_the_unit_may_write_to_its_own_folders_alone_by_default() -> None:
    text = rendered(Settings())
    assert "ReadWritePaths" not in text
    assert {"StateDirectory=synsched", "StateDirectoryMode=0711", "UMask=0077"} <= set(text.splitlines())


def test_the_daemon_may_listen_and_read_what_it_uses_itself_for_its_metrics() -> None:
    lines = rendered(Settings(metrics=MetricsSettings(listen="127.0.0.1:9797"))).splitlines()
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK" in lines
    assert "ProtectProc=invisible" in lines, "its own /proc/self is visible to it"
    forbids = ("SocketBindDeny", "IPAddressDeny", "PrivateNetwork", "IPAddressAllow", "ProcSubset")
    assert not [line for line in lines if line.startswith(forbids)]


CALLS_OF_METRICS = {
    "accept4", "bind", "close", "connect", "epoll_create1", "epoll_ctl",
    "epoll_wait", "fchmod", "getdents64", "getsockname", "ioctl", "listen",
    "lseek", "newfstatat", "openat", "read", "recvfrom", "renameat",
    "sendto", "setsockopt", "socket", "socketpair", "unlinkat", "write",
}  # fmt: skip
"""What the port, the figures of the process and the textfile were seen to call (strace)."""


def test_the_unit_allows_the_system_calls_of_the_metrics() -> None:
    command = shutil.which("systemd-analyze")
    if command is None:
        pytest.skip("systemd-analyze is missing: install the package systemd")
    argv = [command, "syscall-filter", "--no-pager"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    groups, of = dict[str, set[str]](), ""
    for line in (re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip()) for line in text.splitlines()):
        if line.startswith("@"):
            groups[of := line] = set()
        elif of and line.strip() and not line.strip().startswith("#"):
            groups[of].add(line.strip())

    def calls(group: str) -> set[str]:
        inner = (calls(one) if one.startswith("@") else {one} for one in groups[group])
        return set[str]().union(*inner)

    filters = [line for line in rendered(Settings()).splitlines() if line.startswith("SystemCallFilter=")]
    assert filters == ["SystemCallFilter=@system-service", "SystemCallFilter=~@privileged"]
    assert calls("@system-service") - calls("@privileged") >= CALLS_OF_METRICS


def test_the_unit_sees_the_common_tmp_only_where_a_setting_is_there() -> None:
    assert "PrivateTmp=yes" in rendered(Settings())
    there = replace(Settings(), reports=ReportSettings(spool=COMMON_TMP))
    assert "PrivateTmp=no" in rendered(there)


def test_paths_of_odd_characters_are_one_word_each() -> None:
    assert systemd_word("/a b/c") == '"/a b/c"'
    assert systemd_word("/100%") == "/100%%"
    assert systemd_word('/"x"\\') == '"/\\"x\\"\\\\"'


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        pytest.param(Settings(), "MemoryMax=1787M", id="by the cluster's size: 512 + 20000/16 + 100/4"),
        pytest.param(Settings(daemon=DaemonSettings(memory_max=300)), "MemoryMax=300M", id="as set"),
    ],
)
def test_the_unit_bounds_the_daemons_memory(settings: Settings, line: str) -> None:
    assert line in rendered(settings).splitlines()


def test_the_unit_is_what_the_daemon_expects() -> None:
    lines = rendered(Settings(), command="/opt/bin/synsched").splitlines()
    assert {"Type=notify", "WatchdogSec=900", "ExecStart=/opt/bin/synsched run", "User=synsched"} <= set(lines)
    assert all(re.fullmatch(r"(#.*|\[\w+\]|[A-Za-z]+=.*|)", line) for line in lines)
