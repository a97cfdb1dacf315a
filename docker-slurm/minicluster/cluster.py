"""One cluster: makes and removes its network, volumes and containers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .commands import ClusterError, Commands, last_line
from .images import ensure_image
from .nodes import NodeGroup
from .slurmconf import config_archive, gres_conf, slurm_conf

LABEL = "slurmsched.cluster"
SETTINGS_LABEL = "slurmsched.settings"
VOLUMES = {"home": "/home", "slurm": "/etc/slurm", "config": "/etc/synsched", "state": "/var/lib/synsched"}
SERVICES = ("db", "dbd", "ctl", "login")
READY_SECONDS = 120
REMOVAL_PAUSES = (1.0, 3.0, 9.0)
"""Seconds between attempts to remove a cluster."""


@dataclass(frozen=True)
class ClusterOptions:
    """The options of a cluster; `kill_wait` is Slurm's KillWait in seconds."""

    release: str
    groups: tuple[NodeGroup, ...]
    source: Path
    virtual: bool = False
    kill_wait: int = 30
    overrides: dict[str, str] = field(default_factory=dict)
    tarball: str = ""
    """Path of Slurm's source tarball, for the release `source`."""
    placeholder: bool = False
    """Whether slurm.conf has the node that never exists."""

    @property
    def gpus_by_node(self) -> dict[str, int]:
        """The fake GPUs of each node that has a container; empty for virtual nodes."""
        return {} if self.virtual else {name: group.gpus for group in self.groups for name in group.names}

    @property
    def max_gpus(self) -> int:
        """The number of GPUs of the largest node."""
        return max(group.gpus for group in self.groups)


@dataclass(frozen=True)
class Cluster:
    """A cluster; everything that it has in docker carries a label with its name."""

    commands: Commands
    name: str

    def container(self, host: str) -> str:
        """The name of a host's container in docker."""
        return f"slurmsched-{self.name}-{host}"

    def up(self, options: ClusterOptions) -> None:
        """Makes the cluster, or starts its stopped containers, and waits until it is ready. Raises ClusterError."""
        image = ensure_image(self.commands, options.release, options.tarball)
        settings = hashlib.sha256(f"{options!r} {image}".encode()).hexdigest()[:16]
        hosts = [*SERVICES, *options.gpus_by_node]
        present = self._list_labelled("ps", "-a", "--format", f'{{{{.Names}}}} {{{{.Label "{SETTINGS_LABEL}"}}}}')
        if any(line.split()[-1] != settings for line in present):
            hint = f"run `cluster down --name {self.name}` first"
            raise ClusterError(f"cluster {self.name} exists with other settings: {hint}")
        if len(present) == len(hosts):
            _in_parallel(self.start, hosts)
        else:
            self.down()
            self._create(options, image, settings)
        self._await_ready(sum(group.count for group in options.groups))

    def down(self) -> None:
        """Removes everything that carries this cluster's label. Raises ClusterError."""
        for pause in REMOVAL_PAUSES:  # a busy docker says that a container is gone whose endpoint it still removes
            try:
                self._remove()
            except ClusterError:
                time.sleep(pause)
            else:
                return
        self._remove()

    def _remove(self) -> None:
        containers = self._list_labelled("ps", "-aq")
        if containers:
            self.commands.attempt("docker", "rm", "--force", "--volumes", *containers)
        remaining = [self._list_labelled("network", "ls", "-q"), self._list_labelled("volume", "ls", "-q")]
        for kind, names in zip(("network", "volume"), remaining, strict=True):
            if names:
                self.commands.run("docker", kind, "rm", *names)

    def start(self, host: str) -> None:
        """Starts a stopped container. Raises ClusterError."""
        self.commands.run("docker", "start", self._existing_container(host))

    def stop(self, host: str, *, kill: bool = False) -> None:
        """Stops a container, with SIGKILL at once if `kill`. Raises ClusterError."""
        self.commands.run("docker", *(("kill",) if kill else ("stop", "-t", "5")), self._existing_container(host))

    def _existing_container(self, host: str) -> str:
        self.check(host)
        return self.container(host)

    def check(self, host: str) -> None:
        """Raises ClusterError if the cluster has no such host."""
        hosts = self.hosts()
        if host not in hosts:
            present = f"it has: {' '.join(sorted(hosts))}" if hosts else "it is not up"
            raise ClusterError(f"no container '{host}' in cluster {self.name}; {present}")

    def hosts(self) -> dict[str, str]:
        """The state of each host's container."""
        lines = self._list_labelled("ps", "-a", "--format", "{{.Names}} {{.State}}")
        prefix = self.container("")
        return {name.removeprefix(prefix): state for name, state in (line.split() for line in lines)}

    def _list_labelled(self, *listing: str) -> list[str]:
        """The lines of a docker listing, for this cluster only."""
        return self.commands.run("docker", *listing, "--filter", f"label={LABEL}={self.name}").splitlines()

    def _create(self, options: ClusterOptions, image: str, settings: str) -> None:
        """Makes network, volumes and containers, in parallel where possible."""
        subnet = self._make_network()
        addresses = {
            host: f"{subnet}.{index}" for index, host in enumerate((*SERVICES, *options.gpus_by_node), start=2)
        }
        common = ["--label", f"{LABEL}={self.name}", "--label", f"{SETTINGS_LABEL}={settings}"]
        common += ["--network", self.container("net")]
        for host, address in addresses.items():
            common += ["--add-host", f"{host}:{address}"]
        for volume, path in VOLUMES.items():
            common += ["--volume", f"{self.container(volume)}:{path}"]

        def create(host: str) -> None:
            specific = ["--name", self.container(host), "--hostname", host, "--ip", addresses[host]]
            if host not in ("db", "dbd"):
                specific += ["--volume", f"{options.source}:/opt/slurmsched:ro"]
            if host not in SERVICES or options.virtual:
                specific += ["--env", f"GPUS={options.gpus_by_node.get(host, options.max_gpus)}"]
            if host not in SERVICES:
                # slurmstepd reads /proc/PID/io of jobs to account for them, and drops the processes whose it may not.
                specific += ["--cap-add", "SYS_PTRACE"]
            role = host if host in SERVICES else "node"
            self.commands.run("docker", "create", *common, *specific, image, role)

        def create_and_start(host: str) -> None:
            if host != "ctl":
                create(host)
            self.commands.run("docker", "start", self.container(host))

        _in_parallel(self._make_volume, list(VOLUMES))
        create("ctl")  # the first container fills the volumes from the image
        archive = self._configuration(options)
        self.commands.run("docker", "cp", "-", f"{self.container('ctl')}:/etc/slurm", stdin=archive)
        _in_parallel(create_and_start, list(addresses))

    def _configuration(self, options: ClusterOptions) -> bytes:
        slurm = slurm_conf(
            options.groups,
            virtual=options.virtual,
            kill_wait=options.kill_wait,
            overrides=options.overrides,
            placeholder=options.placeholder,
        )
        return config_archive(options.release, options.source, slurm, gres_conf(options.groups))

    def _make_network(self) -> str:
        """Makes a network with fixed addresses, which hosts keep over restarts. Returns the first three bytes."""
        first = int(hashlib.sha256(self.name.encode()).hexdigest(), 16)
        problem = ""
        for attempt in range(20):
            subnet = f"10.213.{(first + attempt) % 256}"
            label = f"{LABEL}={self.name}"
            result = self.commands.attempt(
                "docker", "network", "create", "--label", label, "--subnet", f"{subnet}.0/24", self.container("net")
            )
            if not result.returncode:
                return subnet
            problem = last_line(result.stderr)
            if "overlaps" not in problem:
                break
        raise ClusterError(f"docker network create failed: {problem}")

    def _make_volume(self, volume: str) -> None:
        self.commands.run("docker", "volume", "create", "--label", f"{LABEL}={self.name}", self.container(volume))

    def _await_ready(self, nodes: int) -> None:
        deadline = time.monotonic() + READY_SECONDS
        problem = ""
        while time.monotonic() < deadline:
            dead = [host for host, state in self.hosts().items() if state != "running"]
            if dead:
                raise ClusterError(f"container {dead[0]} has stopped: see `cluster logs --name {self.name} {dead[0]}`")
            result = self.commands.attempt("docker", "exec", self.container("login"), "wait-ready", str(nodes), "5")
            if not result.returncode:
                return
            problem = last_line(result.stderr)
        raise ClusterError(f"cluster {self.name} is not ready after {READY_SECONDS} s ({problem}): see `cluster logs`")


def _in_parallel(action: Callable[[str], None], items: Sequence[str]) -> None:
    """Calls `action` with each item, several at a time; raises the first error."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        for _ in pool.map(action, items):
            pass


def cluster_names(commands: Commands) -> list[str]:
    """The names of all clusters that have anything in docker, sorted."""
    shown = ("--filter", f"label={LABEL}", "--format", f'{{{{.Label "{LABEL}"}}}}')
    listings = (("ps", "-a"), ("network", "ls"), ("volume", "ls"))
    return sorted({name for listing in listings for name in commands.run("docker", *listing, *shown).split()})
