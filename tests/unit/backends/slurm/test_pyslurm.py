"""Jobs read with pyslurm, over a stand-in that behaves as pyslurm 25.11 was measured to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import PyslurmError
from slurmsched.backends.slurm.pyslurm_jobs import PyslurmJobs, load
from slurmsched.backends.slurm.text_jobs import TextJobs
from slurmsched.model import Code, Job, Operation, Reason, Result, SetAside, Verb
from tests.unit.fake_slurm import FakeJob, FakeSlurm


class StandInError(Exception):
    """`pyslurm.PyslurmError`."""


class StandInJob:
    """`pyslurm.Job`: what is 0 or unset is None, and nothing of it may be changed through it."""

    def __init__(self, number: int, **other: Any) -> None:
        known: dict[str, Any] = {
            "id": number, "name": "train", "user_name": "alice", "state": "PENDING", "state_reason": "None",
            "priority": 100, "nice": 0, "account": "vision", "qos": "normal", "partition": "gpu",
            "array_id": None, "array_task_id": None, "array_tasks_waiting": None, "array_tasks_parallel": None,
            "heterogeneous_id": None, "heterogeneous_offset": None,
            "num_nodes": 1, "max_nodes": 1, "cpus": 6, "ntasks": 1, "ntasks_per_node": None,
            "memory_per_node": 1000, "memory_per_cpu": None, "required_nodes": None, "excluded_nodes": None,
            "constraints": [], "resource_sharing": "OK", "reservation": None, "dependencies": None,
            "is_batch_job": True, "is_requeueable": True, "requeue_count": None,
            "submit_time": 1_795_224_188, "eligible_time": None, "start_time": None, "end_time": None,
            "run_time": None, "time_limit": 60, "comment": None, "admin_comment": None,
            "tres_per_job": None, "tres_per_node": None, "tres_per_task": None, "tres_per_socket": None,
            "layout": {},
        }  # fmt: skip
        assert not other.keys() - known.keys()
        self.__dict__.update(known | other)

    def get_resource_layout_per_node(self) -> Mapping[str, Any]:
        return self.__dict__["layout"]

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Job.{name} ends the interpreter, is ignored or does not exist in some release")


class StandIn:
    """The module."""

    __version__ = "25.11.2"
    PyslurmError = StandInError

    def __init__(self, *jobs: StandInJob, down: bool = False) -> None:
        self.Jobs = self
        self._jobs, self._down = jobs, down

    def load(self) -> dict[int, StandInJob]:
        if self._down:
            raise StandInError("1800")
        return {job.__dict__["id"]: job for job in self._jobs}


def backend(slurm: FakeSlurm, module: StandIn) -> SlurmBackend:
    return SlurmBackend(Commands(5, run=slurm), PyslurmJobs(module), lambda: 1000.0, lambda: "synsched")  # type: ignore[arg-type]


def read(job: StandInJob, asked: Mapping[str, str] | None = None) -> Job:
    slurm = FakeSlurm([FakeJob(1, asked=dict(asked or {"TresPerNode": "gres/gpu:v100:2"}))])
    [only] = backend(slurm, StandIn(job)).observe().jobs
    return only


def test_a_waiting_job_reads_the_same_either_way() -> None:
    slurm = FakeSlurm([FakeJob(1)])
    text = SlurmBackend(Commands(5, run=slurm), TextJobs(), lambda: 1000.0).observe().job["1"]
    value = read(StandInJob(1))
    assert {field.name for field in fields(Job) if getattr(text, field.name) != getattr(value, field.name)} == set()


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        pytest.param({"TresPerJob": "gres/gpu:v100:3"}, 3, id="--gpus"),
        pytest.param({"TresPerTask": "gres/gpu=1"}, 1, id="--gpus-per-task"),
        pytest.param({"TresPerSocket": "gres/gpu:1"}, 0, id="--gpus-per-socket"),
    ],
)
def test_gpus_that_pyslurm_cannot_tell_are_asked_of_squeue(asked: dict[str, str], gpus: int) -> None:
    job = read(StandInJob(1), asked)
    assert (job.request.gpus, bool(job.unmanageable)) == (gpus, "TresPerSocket" in asked)


def test_a_running_job_has_its_devices() -> None:
    layout = {
        "n1": {"cpu_ids": "0-1", "memory": 4096, "gres": {"gpu:a100": {"count": 2, "indexes": "0,3"}}},
        "n2": {"cpu_ids": "4-5", "memory": 4096, "gres": {"gpu:a100": {"count": 2, "indexes": "1-2"}}},
    }
    job = read(StandInJob(1, state="RUNNING", layout=layout, num_nodes=2, max_nodes=None, cpus=8))
    assert [(s.node, s.indices, s.gpu_type, s.resources.memory) for s in job.shares] == [
        ("n1", (0, 3), "a100", 4096),
        ("n2", (1, 2), "a100", 4096),
    ]
    assert [share.resources.cpus for share in job.shares] == [4, 4], "two CPUs per core"


def test_tasks_of_a_waiting_array_are_told_apart() -> None:
    slurm = FakeSlurm([FakeJob(9)])
    module = StandIn(StandInJob(9, array_id=9, array_tasks_waiting="0-2", array_tasks_parallel=2))
    jobs = backend(slurm, module).observe().jobs
    assert [(job.id, job.throttle) for job in jobs] == [("9_0", 2), ("9_1", 2), ("9_2", 2)]


HELD = {"state_reason": "job requeued in held state", "priority": 0}
AFTER = {"dependencies": {"afterok": ["16(unfulfilled)"], "satisfy": "all"}}


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        pytest.param({"nice": 2**32 - 20}, "nice", -20, id="a negative nice that comes unsigned"),
        pytest.param({"time_limit": None}, "time_limit", None, id="no limit comes as None"),
        pytest.param({"time_limit": "UNLIMITED"}, "time_limit", None, id="or as a word"),
        pytest.param({"time_limit": 90}, "time_limit", 5400, id="limits come in minutes"),
        pytest.param(HELD, "reason", "job_requeued_in_held_state", id="a reason with blanks"),
        pytest.param({"comment": "x\nJobId=2 y"}, "comment", "x\nJobId=2 y", id="a comment is a value"),
        pytest.param(AFTER, "dependency", "afterok:16(unfulfilled)", id="dependencies"),
        pytest.param({"heterogeneous_id": 1, "heterogeneous_offset": 0}, "id", "1+0", id="a heterogeneous job"),
    ],
)
def test_pyslurms_own_ways_are_known(given: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(read(StandInJob(1, **given)), field) == expected


def test_changes_go_by_commands() -> None:
    slurm = FakeSlurm([FakeJob(1, nice=5)])
    there = backend(slurm, StandIn(StandInJob(1)))
    there.observe()
    nice = Operation(Verb.PRIORITIZE, "1", Reason(Code.RANK), 5, 0)
    hold = Operation(Verb.HOLD, "1", Reason(Code.TAKE_OVER))
    assert [outcome.result for outcome in there.execute([nice, hold])] == [Result.DONE, Result.DONE]
    assert slurm.ran == ["update JobId=1 Nice=0", "hold 1"]


def test_a_pyslurm_that_does_not_show_what_running_jobs_have_is_not_used() -> None:
    running = FakeJob(1, state="RUNNING", fields={"NodeList": "n1", "Nodes": "n1", "CPU_IDs": "0-5", "Mem": "1000"})
    slurm = FakeSlurm([replace(running, fields=running.fields | {"GRES": "gpu:v100:2(IDX:0-1)"})])
    there = backend(slurm, StandIn(StandInJob(1, state="RUNNING")))
    assert there.name == "slurm (pyslurm)"
    assert there.observe().job["1"].shares[0].indices == (0, 1)
    assert there.name == "slurm (commands)"


def test_one_odd_job_is_set_aside_by_itself() -> None:
    slurm = FakeSlurm([FakeJob(1), FakeJob(2)])
    snapshot = backend(slurm, StandIn(StandInJob(1, submit_time="soon"), StandInJob(2))).observe()
    assert [job.id for job in snapshot.jobs] == ["2"]
    assert snapshot.set_aside == (SetAside("1", "reading it fails (TypeError)", "alice", "gpu", pending=True),)


def test_when_slurmctld_is_silent_that_is_said() -> None:
    with pytest.raises(UnreachableError, match="does not answer pyslurm"):
        backend(FakeSlurm(), StandIn(down=True)).observe()


class TestLoading:
    """When the module is taken."""

    @pytest.fixture
    def configuration(self, tmp_path: Path) -> str:
        file = tmp_path / "slurm.conf"
        file.write_text("ClusterName=mini\n")
        return str(file)

    def test_a_module_of_slurmctlds_series_fits_whatever_its_patch_level(self, configuration: str) -> None:
        env: dict[str, str] = {}
        module = load(lambda: "25.11.7", configuration, lambda _: True, lambda _: StandIn(), env)
        assert module.__version__ == "25.11.2"
        assert env["SLURM_CONF"] == configuration

    @pytest.mark.parametrize("release", ["25.05.3", "26.05.0", "24.11.5"])
    def test_a_module_of_another_series_does_not_fit(self, configuration: str, release: str) -> None:
        with pytest.raises(PyslurmError, match=f"25.11.2 does not fit Slurm {release}"):
            load(lambda: release, configuration, lambda _: True, lambda _: StandIn(), {})

    def test_without_slurm_conf_it_is_not_even_imported(self, tmp_path: Path) -> None:
        def imported(_: str) -> object:
            raise AssertionError("the import waits a minute for slurm.conf")

        with pytest.raises(PyslurmError, match="pyslurm needs slurm"):
            load(lambda: "25.11.7", str(tmp_path / "none"), lambda _: True, imported, {})

    def test_a_broken_installation_is_no_crash(self, configuration: str) -> None:
        def broken(_: str) -> object:
            raise ImportError("libslurmfull.so: cannot open shared object file")

        with pytest.raises(PyslurmError, match="cannot be imported: libslurmfull"):
            load(lambda: "25.11.7", configuration, lambda _: True, broken, {})

    def test_slurmctld_is_not_asked_where_pyslurm_is_not_installed(self) -> None:
        def asked() -> str:
            raise AssertionError("nothing to compare with")

        with pytest.raises(PyslurmError, match="not installed"):
            load(asked, "", lambda _: None)
