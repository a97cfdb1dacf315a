"""A small cluster that the stand-in for pyslurm shows to the real child process, and the fake Slurm to commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import CommandResult, Commands, run_process
from slurmsched.backends.slurm.pyslurm_source import PyslurmSource
from slurmsched.model import Job, Snapshot
from tests.unit.fake_slurm import FakeJob, FakeNode, FakeSlurm

__all__ = ["NOW", "PyslurmCluster", "fake_running", "layout", "pyslurm_job", "pyslurm_node", "running"]

NOW = 1_795_230_000.0
SUBMITTED = 1_795_224_188
"""What the fake jobs say in Slurm's words."""


def pyslurm_job(number: int, **other: Any) -> dict[str, Any]:
    """A waiting job as pyslurm shows it, the same as `FakeJob(number, user="root")`."""
    known: dict[str, Any] = {
        "id": number, "user_id": 0, "state": "PENDING", "state_reason": "None", "priority": 100, "nice": 0,
        "account": "vision", "qos": "normal", "name": "train", "comment": None, "admin_comment": None,
        "array_id": None, "array_task_id": None, "array_tasks_waiting": None, "array_tasks_parallel": None,
        "heterogeneous_id": None, "heterogeneous_offset": None, "num_nodes": 1, "max_nodes": 1, "cpus": 6,
        "cpus_per_task": 6, "ntasks": 1, "ntasks_per_node": None, "sockets_per_node": None, "memory_per_cpu": None,
        "memory_per_node": 1000, "required_nodes": None, "excluded_nodes": None, "constraints": [],
        "resource_sharing": "OK", "partition": "gpu", "reservation": None, "dependencies": None,
        "is_batch_job": True, "is_requeueable": True, "requeue_count": 0, "submit_time": SUBMITTED,
        "eligible_time": None, "start_time": None, "end_time": None, "run_time": 0, "time_limit": 60,
        "requested_tres": {"cpu": 6, "mem": 1000, "node": 1, "gres/gpu": 2}, "allocated_tres": {}, "layout": {},
        "gres_per_node": {},
    }  # fmt: skip
    assert not other.keys() - known.keys()
    return known | other


def layout(cpus: str = "0-2", gpus: int = 2, indexes: str = "0-1", node: str = "n1") -> dict[str, Any]:
    """What a job has on one node."""
    gres = {"gpu:v100": {"count": gpus, "indexes": indexes}} if gpus else {}
    return {node: {"cpu_ids": cpus, "memory": 1000, "gres": gres}}


def running(number: int, **other: Any) -> dict[str, Any]:
    """A job that runs on `n1`, the same as `fake_running(number)`."""
    had = {"cpu": 6, "mem": 1000, "node": 1, "gres/gpu": 2}
    times = {"start_time": SUBMITTED + 60, "end_time": SUBMITTED + 3660, "run_time": 125}
    return pyslurm_job(number, **({"state": "RUNNING", "allocated_tres": had, "layout": layout()} | times | other))


def fake_running(number: int, **other: str) -> FakeJob:
    """The same for commands."""
    fields = {
        "NodeList": "n1", "Nodes": "n1", "CPU_IDs": "0-5", "Mem": "1000", "GRES": "gpu:v100:2(IDX:0-1)",
        "NumNodes": "1", "StartTime": "2026-11-21T01:24:08", "EndTime": "2026-11-21T02:24:08", "RunTime": "00:02:05",
    }  # fmt: skip
    return FakeJob(number, user="root", state="RUNNING", fields=fields | other)


def pyslurm_node(name: str, **other: Any) -> dict[str, Any]:
    """An idle node, the same as `FakeNode(name)`; a core has two threads."""
    known: dict[str, Any] = {
        "name": name, "state": "IDLE", "configured_gres": {"gpu:v100": 8}, "allocated_tres": {},
        "effective_cpus": 24, "total_cpus": 24, "sockets": 2, "cores_per_socket": 6,
        "allocated_cpus": 0, "real_memory": 512_000, "memory_reserved_for_system": None, "allocated_memory": 0,
        "active_features": ["v100"],
        "partitions": ["gpu"], "reason": None, "weight": 1,
    }  # fmt: skip
    assert not other.keys() - known.keys()
    return known | other


RESERVATION = {"name": "maint", "nodes": "n2", "start_time": 1_795_222_800, "end_time": 1_795_237_200, "flags": []}


class PyslurmCluster:
    """What both show, and the backend that reads it. `started` counts the child processes, `now` is the time;
    where `moving`, a request may change between the two looks.

    `shown` may be changed between polls.
    """

    def __init__(self, file: Path) -> None:
        self.slurm = FakeSlurm(nodes=[FakeNode("n1"), FakeNode("n2")])
        self.slurm.release = "25.11.7"
        self.now = NOW
        self.started = 0
        self.moving = False
        self.shown: dict[str, Any] = {
            "version": "25.11.2", "end": "", "jobs": [], "nodes": [pyslurm_node("n1"), pyslurm_node("n2")],
            "reservations": [RESERVATION | {"users": ["root"], "accounts": []}],
        }  # fmt: skip
        self._file = file

    def __call__(self, argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        if argv[0] != sys.executable:
            self._counts_alike()
            return self.slurm(argv, given, timeout, env)
        self.started += 1
        self._file.write_text(json.dumps(self.shown), encoding="utf-8")
        return run_process(argv, given, timeout, env)

    def _counts_alike(self) -> None:
        """Both name the same TRES of a job, as they have them from one slurmctld."""
        for job in self.shown["jobs"]:
            fake = self.slurm.jobs.get(job["id"]) if isinstance(job["id"], int) else None
            amounts = job["allocated_tres"] or job["requested_tres"]
            if fake is not None and not self.moving and isinstance(amounts, dict):
                fake.fields["AllocTRES"] = ",".join(f"{name}={count}" for name, count in amounts.items())

    def holds(self, *jobs: tuple[dict[str, Any], FakeJob]) -> None:
        """These jobs, as pyslurm and as commands show them."""
        self.shown["jobs"] = [one for one, _ in jobs]
        self.slurm.jobs = {fake.number: fake for _, fake in jobs}

    def occupied(self) -> None:
        """Two GPUs of `n1` are taken."""
        self.slurm.nodes["n1"] = FakeNode("n1", 1, "gpu:v100:2(IDX:0-1)", "MIXED", 6, 1000)
        taken = {"cpu": 6, "mem": "1000M", "gres/gpu": 2}
        self.shown["nodes"][0] |= {"state": "MIXED", "allocated_cpus": 6, "allocated_memory": 1000}
        self.shown["nodes"][0]["allocated_tres"] = taken

    def backend(self, *, timeout: float = 60, mebibytes: int = 1024, demanded: bool = False) -> SlurmBackend:
        """Reads with pyslurm."""
        source = PyslurmSource(lambda: self.now, mebibytes, demanded)
        return SlurmBackend(Commands(timeout, runner=self), source, lambda: self.now, lambda: "synsched")

    def by_commands(self) -> Snapshot:
        """What commands alone see."""
        return SlurmBackend(Commands(60, runner=self.slurm), CommandSource(), lambda: self.now).observe()

    def read(self, job: dict[str, Any], fake: FakeJob | None = None) -> Job:
        """The one job that is read."""
        self.holds((job, fake or FakeJob(job["id"], user="root")))
        (only,) = self.backend().observe().jobs
        return only
