"""Jobs read with pyslurm, by the real child process over a stand-in that behaves as pyslurm 25.11.2 was measured to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmsched.backends.slurm.cluster import SlurmctldConfiguration
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.pyslurm_source import PyslurmSource
from slurmsched.model import Operation, Reason, ReasonCode, Result, Verb
from tests.unit.backends.slurm.pyslurm_cluster import (
    NOW,
    PyslurmCluster,
    fake_running,
    layout,
    pyslurm_job,
    pyslurm_node,
    running,
)
from tests.unit.fake_slurm import FakeJob


def remarks(cluster: PyslurmCluster) -> tuple[str, ...]:
    """Why what was read by commands, in one poll; the first remark is what pyslurm read."""
    backend = cluster.backend()
    backend.observe()
    return backend.remarks[1:]


def test_both_ways_see_the_same_cluster(cluster: PyslurmCluster) -> None:
    cluster.occupied()
    cluster.holds((pyslurm_job(1), FakeJob(1, user="root")), (running(2), fake_running(2)))
    backend = cluster.backend()
    seen = backend.observe()
    assert (backend.name, len(backend.remarks)) == ("slurm (pyslurm)", 1)
    assert seen == cluster.by_commands()
    assert [(share.node, share.indices) for share in seen.jobs_by_id["2"].allocations] == [("n1", (0, 1))]


@pytest.mark.parametrize(
    ("shown", "fake"),
    [
        pytest.param({"nice": -20}, {"nice": -20}, id="a negative nice"),
        pytest.param({"nice": 2**32 - 20}, {"nice": -20}, id="a negative nice that comes unsigned"),
        pytest.param({"time_limit": 90}, {"fields": {"TimeLimit": "01:30:00"}}, id="a limit in minutes"),
        pytest.param({"time_limit": None}, {"fields": {"TimeLimit": "UNLIMITED"}}, id="no limit"),
        pytest.param(
            {"state_reason": "job requeued in held state", "priority": 0},
            {"reason": "job requeued in held state", "priority": 0},
            id="a reason with blanks",
        ),
        pytest.param(
            {"comment": "x\nJobId=2 Comment=y"}, {"comment": "x\nJobId=2 Comment=y"}, id="a comment with line breaks"
        ),
        pytest.param(
            {"memory_per_node": None, "memory_per_cpu": 500, "requested_tres": {"cpu": 6, "mem": 3000, "node": 1}},
            {"fields": {"MinMemoryCPU": "500M"}},
            id="memory per CPU",
        ),
        pytest.param(
            {"num_nodes": 2, "max_nodes": 4, "requested_tres": {"cpu": 6, "mem": 2000, "node": 2}},
            {"fields": {"NumNodes": "2-4"}},
            id="a range of nodes",
        ),
        pytest.param(
            {"num_nodes": 3, "max_nodes": 2, "requested_tres": {"cpu": 6, "mem": 2000, "node": 3}},
            {"fields": {"NumNodes": "2-2"}},
            id="an estimate above the most nodes",
        ),
        pytest.param(
            {"required_nodes": "n[1-2]", "excluded_nodes": "n3"},
            {"fields": {"ReqNodeList": "n[1-2]", "ExcNodeList": "n3"}},
            id="lists of nodes",
        ),
        pytest.param({"constraints": ["a", "b&c"]}, {"fields": {"Features": "a,b&c"}}, id="features"),
        pytest.param(
            {"resource_sharing": "NO", "ntasks": 3, "ntasks_per_node": 3},
            {"fields": {"OverSubscribe": "NO", "NumTasks": "3", "NtasksPerN:B:S:C": "3:0:*:*"}},
            id="exclusive, with tasks per node",
        ),
        pytest.param(
            {"is_batch_job": False, "is_requeueable": False, "requeue_count": 3, "eligible_time": 1_795_224_188},
            {
                "requeue": False,
                "fields": {"BatchFlag": "0", "Restarts": "3", "EligibleTime": "2026-11-21T01:23:08"},
            },
            id="flags and restarts",
        ),
        pytest.param(
            {"reservation": "maint", "partition": "gpu,low", "admin_comment": "noted"},
            {"admin_comment": "noted", "fields": {"Reservation": "maint", "Partition": "gpu,low"}},
            id="reservation, partitions and an administrators' comment",
        ),
    ],
)
def test_a_waiting_job_reads_the_same_either_way(
    cluster: PyslurmCluster, shown: dict[str, Any], fake: dict[str, Any]
) -> None:
    job = cluster.read(pyslurm_job(1, **shown), FakeJob(1, user="root", **fake))
    assert job == cluster.by_commands().jobs_by_id["1"]


@pytest.mark.parametrize(
    ("shown", "fake"),
    [
        pytest.param({"run_time": "UNLIMITED"}, {"RunTime": "INVALID"}, id="started a second ahead of our clock"),
        pytest.param({"run_time": 2**64 - 3}, {"RunTime": "INVALID"}, id="started three seconds ahead of our clock"),
        pytest.param(
            {"time_limit": None, "end_time": int(NOW) + 365 * 86400},
            {"TimeLimit": "UNLIMITED", "EndTime": "Unknown"},
            id="no limit, for which Slurm notes an end in a year",
        ),
    ],
)
def test_a_running_job_reads_the_same_either_way(
    cluster: PyslurmCluster, shown: dict[str, Any], fake: dict[str, str]
) -> None:
    cluster.occupied()
    job = cluster.read(running(1, **shown), fake_running(1, **fake))
    assert job == cluster.by_commands().jobs_by_id["1"]
    assert remarks(cluster) == ()


class TestRequests:
    """How GPUs are asked for comes from squeue."""

    @pytest.mark.parametrize(
        ("asked", "gpus"),
        [
            pytest.param({"TresPerJob": "gres/gpu:v100:3"}, 3, id="--gpus"),
            pytest.param({"TresPerTask": "gres/gpu:1"}, 1, id="--gpus-per-task"),
            pytest.param({"TresPerSocket": "gres/gpu:1"}, 2, id="--gpus-per-socket"),
            pytest.param({"TresPerNode": "gres/shard:4"}, 2, id="shards"),
            pytest.param(
                {"TresPerNode": "gres/gpu:2", "CpusPerTres": "gres/gpu:3", "MemPerTres": "gres/gpu:500"},
                2,
                id="CPUs and memory per GPU",
            ),
        ],
    )
    def test_it_reads_the_same_either_way(self, cluster: PyslurmCluster, asked: dict[str, str], gpus: int) -> None:
        amounts = "cpu=6,mem=1000M,node=1,gres/gpu=2"
        fake = FakeJob(1, user="root", asked=asked, fields={"ReqTRES": amounts})
        job = cluster.read(pyslurm_job(1), fake)
        assert job == cluster.by_commands().jobs_by_id["1"]
        assert job.original_request.gpus == gpus

    def test_it_is_told_also_where_accounting_tracks_no_gpus(self, cluster: PyslurmCluster) -> None:
        assert (
            cluster.read(pyslurm_job(1, requested_tres={"cpu": 6, "mem": 1000, "node": 1})).original_request.gpus == 2
        )

    def test_squeue_is_asked_once_for_each_request(self, cluster: PyslurmCluster) -> None:
        fake = FakeJob(1, user="root")
        cluster.holds((pyslurm_job(1), fake))
        backend = cluster.backend()
        found = []
        for change in ({}, {}, {"requested_tres": {"cpu": 6, "mem": 1000, "node": 1, "gres/gpu": 4}}):
            cluster.shown["jobs"][0] |= change
            cluster.slurm.asked.clear()
            gpus = backend.observe().jobs_by_id["1"].original_request.gpus
            found.append((cluster.slurm.asked.count("squeue") > 0, gpus))
            fake.asked = {"TresPerNode": "gres/gpu:v100:4"}
        assert found == [(True, 2), (False, 2), (True, 4)]

    def test_another_type_of_gpu_is_seen_at_once(self, cluster: PyslurmCluster) -> None:
        """The totals are the same: accounting does not tell types apart."""
        fake = FakeJob(1, user="root")
        cluster.holds((pyslurm_job(1, gres_per_node={"gres/gpu:v100": 2}), fake))
        backend = cluster.backend()
        assert backend.observe().jobs_by_id["1"].original_request.gpu_type == "v100"
        cluster.shown["jobs"][0]["gres_per_node"], fake.asked = {"gres/gpu:k80": 2}, {"TresPerNode": "gres/gpu:k80:2"}
        assert backend.observe().jobs_by_id["1"].original_request.gpu_type == "k80"

    @pytest.mark.parametrize("asked", ["TresPerJob", "TresPerTask"])
    def test_another_type_that_pyslurm_does_not_show_is_asked_for_at_every_poll(
        self, cluster: PyslurmCluster, asked: str
    ) -> None:
        fake = FakeJob(1, user="root", asked={asked: "gres/gpu:v100:2"})
        cluster.holds((pyslurm_job(1), fake))
        backend = cluster.backend()
        assert backend.observe().jobs_by_id["1"].original_request.gpu_type == "v100"
        fake.asked = {asked: "gres/gpu:k80:2"}
        assert backend.observe().jobs_by_id["1"].original_request.gpu_type == "k80"

    @pytest.mark.parametrize(
        ("shown", "asked", "counted"),
        [
            pytest.param({}, {"TresPerNode": "gres/gpu:v100:1"}, "cpu=6,mem=1000M,node=1,gres/gpu=1", id="fewer GPUs"),
            pytest.param({}, {"TresPerNode": "gres/gpu:v100:2"}, "cpu=9,mem=1000M,node=1,gres/gpu=2", id="more CPUs"),
            pytest.param(
                {"gres_per_node": {"gres/gpu:v100": 2}},
                {"TresPerNode": "gres/gpu:k80:2"},
                "cpu=6,mem=1000M,node=1,gres/gpu=2",
                id="another type",
            ),
        ],
    )
    def test_a_job_that_changes_between_the_two_looks_is_read_by_commands_until_they_agree(
        self, cluster: PyslurmCluster, shown: dict[str, Any], asked: dict[str, str], counted: str
    ) -> None:
        fake = FakeJob(1, user="root", asked=asked, fields={"AllocTRES": counted})
        cluster.moving = True
        cluster.holds((pyslurm_job(1, **shown), fake))
        backend = cluster.backend()
        assert (
            backend.observe().jobs_by_id["1"].original_request == cluster.by_commands().jobs_by_id["1"].original_request
        )
        assert backend.remarks[1:] == ("1 job is read by commands, as it changed while it was read: 1",)
        cluster.moving, fake.asked = False, {"TresPerNode": "gres/gpu:v100:2"}
        seen = backend.observe().jobs_by_id["1"].original_request
        assert (seen.gpus, seen.gpu_type, backend.remarks[1:]) == (2, "v100", ())

    @pytest.mark.parametrize(
        ("shown", "fields"),
        [
            pytest.param({"time_limit": 4_292_808_262}, {"TimeLimit": "INVALID"}, id="a limit of 8,000 years"),
            pytest.param({"ntasks_per_node": "UNLIMITED"}, {}, id="a count that pyslurm writes as a word"),
            pytest.param({"ntasks": "UNLIMITED"}, {}, id="another one"),
        ],
    )
    def test_an_owner_cannot_have_his_job_set_aside_by_values_that_only_pyslurm_shows(
        self, cluster: PyslurmCluster, shown: dict[str, Any], fields: dict[str, str]
    ) -> None:
        """A job that is set aside is not displaced."""
        cluster.holds((pyslurm_job(1, **shown), FakeJob(1, user="root", fields=fields)))
        seen = cluster.backend().observe()
        assert (seen.set_aside, seen.jobs) == ((), cluster.by_commands().jobs)

    def test_a_job_that_squeue_knows_no_more_has_ended(self, cluster: PyslurmCluster) -> None:
        cluster.holds((pyslurm_job(1), FakeJob(1, user="root")), (pyslurm_job(2), FakeJob(2, user="root")))
        del cluster.slurm.jobs[2]
        seen = cluster.backend().observe()
        assert ([job.id for job in seen.jobs], seen.set_aside) == (["1"], ())

    def test_a_request_that_squeue_cuts_is_no_lost_job(self, cluster: PyslurmCluster) -> None:
        cut = FakeJob(2, user="root", asked={"TresPerNode": ",".join(["gres/gpu:v100:1"] * 100)})
        cluster.holds((pyslurm_job(1), FakeJob(1, user="root")), (pyslurm_job(2), cut))
        seen = cluster.backend().observe()
        assert [job.id for job in seen.jobs] == ["1"]
        assert seen.set_aside == cluster.by_commands().set_aside
        assert [one.job for one in seen.set_aside] == ["2"]


NOT_READ = {"raises": "UnicodeDecodeError"}
LONG = ",".join(map(str, range(0, 100, 2)))[:127]


class TestByCommands:
    """Single jobs of which pyslurm does not tell all."""

    @pytest.mark.parametrize(
        ("shown", "reason"),
        [
            pytest.param({"name": NOT_READ}, "pyslurm cannot read name", id="a name that is no UTF-8"),
            pytest.param({"layout": NOT_READ}, "pyslurm cannot read layout", id="a layout that cannot be read"),
            pytest.param(
                {"dependencies": {"afterok": [7], "satisfy": "all"}},
                "pyslurm does not show every dependency",
                id="dependencies",
            ),
            pytest.param({"layout": {}}, "pyslurm does not show its allocation", id="no layout"),
            pytest.param(
                {"layout": {"n1": {"cpu_ids": "0-2", "memory": 1000, "gres": {"shard:v100": 4}}}},
                "pyslurm does not show which devices its shards are on",
                id="shards",
            ),
            pytest.param(
                {"layout": layout(cpus=LONG)}, "pyslurm truncates the list of its CPUs", id="127 bytes of CPUs"
            ),
            pytest.param(
                {"layout": layout(gpus=1, indexes="0")},
                "pyslurm does not show all of its GPUs",
                id="fewer GPUs than it has",
            ),
            pytest.param(
                {"state": "COMPLETING", "allocated_tres": {"cpu": 6}, "layout": layout(gpus=0)},
                "pyslurm does not show all of its GPUs",
                id="a completing job, which shows none",
            ),
            pytest.param(
                {"layout": {"n1": {"memory": 1000}}},
                "pyslurm's values cannot be parsed",
                id="a layout of another form",
            ),
            pytest.param({"layout": layout(node="n9")}, "pyslurm's values cannot be parsed", id="a node of no threads"),
            pytest.param({"submit_time": "soon"}, "pyslurm's values cannot be parsed", id="no time"),
            pytest.param({"priority": "UNLIMITED"}, "pyslurm's values cannot be parsed", id="no priority"),
            pytest.param({"user_id": None}, "pyslurm's values cannot be parsed", id="no user"),
        ],
    )
    def test_it_alone_is_read_by_commands(self, cluster: PyslurmCluster, shown: dict[str, Any], reason: str) -> None:
        cluster.occupied()
        state = shown.get("state", "RUNNING")
        doubted = replace(fake_running(2), state=state)
        cluster.holds((pyslurm_job(1), FakeJob(1, user="root")), (running(2, **shown), doubted))
        backend = cluster.backend()
        seen = backend.observe()
        assert backend.remarks[1:] == (f"1 job is read by commands, as {reason}: 2",)
        assert seen == cluster.by_commands()
        assert cluster.slurm.asked.count("show job 2") == 2, "once by each way"
        assert "show job 1" not in cluster.slurm.asked

    def test_a_reason_names_five_of_its_jobs(self, cluster: PyslurmCluster) -> None:
        after = {"dependencies": {"singleton": True}}
        cluster.holds(*((pyslurm_job(n, **after), FakeJob(n, user="root")) for n in range(1, 8)))
        assert remarks(cluster) == (
            "7 jobs are read by commands, as pyslurm does not show every dependency: 1, 2, 3, 4, 5, ...",
        )

    def test_one_that_commands_cannot_read_either_is_set_aside(self, cluster: PyslurmCluster) -> None:
        cluster.holds(
            (pyslurm_job(1), FakeJob(1, user="root")),
            (pyslurm_job(2, name=NOT_READ), FakeJob(2, user="root", fields={"MinMemoryNode": "much"})),
        )
        seen = cluster.backend().observe()
        assert [job.id for job in seen.jobs] == ["1"]
        assert [(one.job, one.user) for one in seen.set_aside] == [("2", "root")]


def test_a_core_has_as_many_cpus_as_its_node_says(cluster: PyslurmCluster) -> None:
    cluster.shown["nodes"] = [pyslurm_node("n1"), pyslurm_node("n2", cores_per_socket=12)]
    there = layout("0-1,4", 1, "0") | layout("0-1,4", 1, "3", "n2")
    job = cluster.read(running(1, layout=there, cpus=9, num_nodes=2), fake_running(1))
    assert [(share.node, share.resources.cpus, share.indices) for share in job.allocations] == [
        ("n1", 6, (0,)),
        ("n2", 3, (3,)),
    ]


class TestArrays:
    """Tasks, and jobs of several parts."""

    def test_tasks_that_wait_are_told_apart(self, cluster: PyslurmCluster) -> None:
        cluster.holds(
            (
                pyslurm_job(9, array_id=9, array_tasks_waiting="0-4:2,7", array_tasks_parallel=2),
                FakeJob(9, user="root", array="9_0-4:2,7%2"),
            )
        )
        jobs = cluster.backend().observe().jobs
        assert [(job.id, job.throttle, job.array_job) for job in jobs] == [
            (f"9_{task}", 2, "9") for task in (0, 2, 4, 7)
        ]

    def test_a_list_that_slurm_cut_loses_its_last_entry(self, cluster: PyslurmCluster) -> None:
        fake = FakeJob(9, user="root", array="9_0-1,15")
        cluster.holds((pyslurm_job(9, array_id=9, array_tasks_waiting="0-1,1..."), fake))
        seen = cluster.backend().observe()
        assert [job.id for job in seen.jobs] == ["9_0", "9_1"]
        assert any("has more than 2000 pending tasks" in oddity for oddity in seen.oddities)

    @pytest.mark.parametrize("first", [pytest.param(True, id="before its array"), pytest.param(False, id="behind it")])
    @pytest.mark.parametrize(
        "own", [pytest.param(None, id="task 0, which comes as None"), pytest.param(2, id="task 2")]
    )
    def test_a_task_with_a_record_of_its_own_is_there_once(
        self, cluster: PyslurmCluster, own: int | None, first: bool
    ) -> None:
        name = f"9_{own or 0}"
        array = pyslurm_job(9, array_id=9, array_tasks_waiting="0-2"), FakeJob(9, user="root", array="9_0-2")
        task = pyslurm_job(10, array_id=9, array_task_id=own, nice=7), FakeJob(10, user="root", array=name, nice=7)
        cluster.holds(*((task, array) if first else (array, task)))
        seen = cluster.backend().observe()
        assert sorted(job.id for job in seen.jobs) == ["9_0", "9_1", "9_2"]
        assert [job.id for job in seen.jobs if job.nice] == [name]

    def test_commands_show_the_whole_array_and_the_doubted_task_alone_is_taken(self, cluster: PyslurmCluster) -> None:
        after = {"dependencies": {"singleton": True}}
        cluster.holds(
            (pyslurm_job(9, array_id=9, array_tasks_waiting="0,2"), FakeJob(9, user="root", array="9_0,2")),
            (pyslurm_job(10, array_id=9, array_task_id=1, **after), FakeJob(10, user="root", array="9_1")),
        )
        configuration = SlurmctldConfiguration("mini", "25.11.7", "slurm")
        source = PyslurmSource(lambda: NOW, 1024)
        view = source.read(Commands(60, runner=cluster), configuration, with_partitions=False)
        assert [one.job.id for one in view.jobs] == ["9_0", "9_2", "9_1"]

    def test_an_array_of_which_every_task_has_its_own_record_is_no_job_more(self, cluster: PyslurmCluster) -> None:
        cluster.holds(
            (pyslurm_job(9, array_id=9, array_tasks_waiting="1"), FakeJob(9, user="root", array="9_1")),
            (pyslurm_job(10, array_id=9, array_task_id=1), FakeJob(10, user="root", array="9_1")),
        )
        assert {job.id for job in cluster.backend().observe().jobs} == {"9_1"}

    def test_task_0_runs_under_its_name(self, cluster: PyslurmCluster) -> None:
        cluster.occupied()
        job = cluster.read(running(10, array_id=9), replace(fake_running(10), array="9_0"))
        assert job == cluster.by_commands().jobs_by_id["9_0"]

    def test_a_finished_array_whose_task_may_be_0_or_none_is_read_by_commands(self, cluster: PyslurmCluster) -> None:
        fake = FakeJob(9, user="root", array="9_4294967294", state="CANCELLED")
        cluster.holds((pyslurm_job(9, array_id=9, state="CANCELLED"), fake))
        assert cluster.backend().observe().jobs == cluster.by_commands().jobs
        (remark,) = remarks(cluster)
        assert "pyslurm shows task 0 like an array without tasks" in remark

    def test_task_0_that_cannot_be_read_is_set_aside_under_its_name(self, cluster: PyslurmCluster) -> None:
        fake = FakeJob(10, user="root", array="9_0", fields={"MinMemoryNode": "much"})
        cluster.holds((pyslurm_job(10, array_id=9, name=NOT_READ), fake))
        assert [one.job for one in cluster.backend().observe().set_aside] == ["9_0"]

    @pytest.mark.parametrize(
        ("offset", "name"), [pytest.param(None, "5+0", id="its first part"), pytest.param(1, "5+1", id="its second")]
    )
    def test_a_heterogeneous_job_has_parts(self, cluster: PyslurmCluster, offset: int | None, name: str) -> None:
        number = 5 + (offset or 0)
        shown = pyslurm_job(number, heterogeneous_id=5, heterogeneous_offset=offset)
        fake = FakeJob(number, user="root")
        fake.answers_to = lambda names: "5" in names  # type: ignore[method-assign]
        assert cluster.read(shown, fake).id == name


def test_changes_go_by_commands(cluster: PyslurmCluster) -> None:
    cluster.holds((pyslurm_job(1, nice=5), FakeJob(1, user="root", nice=5)))
    backend = cluster.backend()
    backend.observe()
    nice = Operation(Verb.PRIORITIZE, "1", Reason(ReasonCode.RANK), 5, 0)
    hold = Operation(Verb.HOLD, "1", Reason(ReasonCode.TAKE_OVER))
    assert [outcome.result for outcome in backend.execute([nice, hold])] == [Result.DONE, Result.DONE]
    assert cluster.slurm.ran == ["update JobId=1 Nice=0", "hold 1"]
