"""Nodes, partitions and reservations read with pyslurm, by the real child process over its stand-in."""

from __future__ import annotations

from typing import Any

import pytest

from slurmsched.backends.slurm.cluster import parse_reservation
from slurmsched.model import NodeState, Resources
from tests.unit.backends.slurm.pyslurm_cluster import PyslurmCluster, fake_running, layout, pyslurm_node, running
from tests.unit.fake_slurm import RESERVATION, FakeNode

NOT_READ = {"raises": "ValueError"}


def asked_nodes(cluster: PyslurmCluster) -> list[str]:
    return [question for question in cluster.slurm.asked if question.startswith("show node")]


class TestGpus:
    """Which GPUs of a node are taken."""

    def test_the_layouts_of_its_jobs_say_which(self, cluster: PyslurmCluster) -> None:
        cluster.occupied()
        cluster.shown["nodes"][0]["allocated_tres"]["gres/gpu"] = 3
        one, other = layout("0", 2, "1,5"), layout("1", 1, "7")
        had = {"cpu": 2, "mem": 1000, "node": 1}
        cluster.holds(
            (running(1, layout=one, allocated_tres={**had, "gres/gpu": 2}), fake_running(1)),
            (running(2, layout=other, allocated_tres={**had, "gres/gpu": 1}), fake_running(2)),
        )
        seen = cluster.backend().observe()
        assert [gpu.index for gpu in seen.nodes_by_name["n1"].gpus if not gpu.idle] == [1, 5, 7]
        assert [gpu.index for gpu in seen.nodes_by_name["n2"].gpus if not gpu.idle] == []
        assert asked_nodes(cluster) == []

    @pytest.mark.parametrize(
        "shown",
        [
            pytest.param({"allocated_tres": {"gres/gpu": 3}}, id="one more than the jobs have"),
            pytest.param({"allocated_tres": {"cpu": 6, "gres/gpu": 1}}, id="one less than they have"),
            pytest.param({"allocated_tres": {"gres/gpu": 2, "gres/shard": 1}}, id="shards"),
            pytest.param({"allocated_tres": {"gres/gpu": "2K"}}, id="a count that is no number"),
            pytest.param({"configured_gres": {"gpu:v 100": "x"}}, id="GRES that make no sense"),
            pytest.param({"state": NOT_READ}, id="a state that cannot be read"),
        ],
    )
    def test_where_they_do_not_say_it_the_node_alone_is_read_by_scontrol(
        self, cluster: PyslurmCluster, shown: dict[str, Any]
    ) -> None:
        cluster.occupied()
        cluster.slurm.nodes["n1"].used = "gpu:v100:3(IDX:0-2)"
        cluster.shown["nodes"][0] |= shown
        cluster.holds((running(1), fake_running(1)))
        backend = cluster.backend()
        seen = backend.observe()
        assert asked_nodes(cluster) == ["show node"]
        assert seen.nodes == cluster.by_commands().nodes
        assert backend.remarks[1:] == (
            "1 node is read by commands, as pyslurm does not show which of its GPUs are allocated: n1",
        )

    @pytest.mark.parametrize(
        ("tracked", "configured"),
        [
            pytest.param("cpu,mem", {}, id="none"),
            pytest.param("cpu,gres/gpu:v100", {}, id="one type"),
            pytest.param("cpu,gres/shard", {}, id="shards alone"),
            pytest.param("cpu,gres/gpu", {"shard:v100": 8}, id="whole ones alone, where there are shards"),
        ],
    )
    def test_where_accounting_does_not_track_them_a_node_in_use_is_read_by_scontrol(
        self, cluster: PyslurmCluster, tracked: str, configured: dict[str, int]
    ) -> None:
        cluster.occupied()
        cluster.slurm.tracked = tracked
        cluster.shown["nodes"][0]["allocated_tres"] = {"cpu": 6, "mem": "1000M", "gres/gpu:v100": 2}
        cluster.shown["nodes"][0]["configured_gres"] |= configured
        seen = cluster.backend().observe()
        assert asked_nodes(cluster) == ["show node"]
        assert seen.nodes_by_name["n1"].used == Resources(2, 6, 1000), (
            "a job that is hidden, or not quite ended, has them"
        )

    @pytest.mark.parametrize("count", [2, 26])
    def test_however_many_they_are_read_by_one_query(self, cluster: PyslurmCluster, count: int) -> None:
        names = [f"n{n}" for n in range(30)]
        cluster.slurm.nodes = {name: FakeNode(name, used="gpu:v100:1(IDX:4)") for name in names}
        cluster.shown["nodes"] = [
            pyslurm_node(name, allocated_tres={"gres/gpu": 1} if place < count else {})
            for place, name in enumerate(names)
        ]
        seen = cluster.backend().observe()
        assert asked_nodes(cluster) == ["show node"], "by name it would fail for one that is gone by then"
        assert [node.name for node in seen.nodes] == names
        assert [node.used.gpus for node in seen.nodes] == [1] * count + [0] * (30 - count)

    def test_a_job_whose_layout_makes_no_sense_is_read_by_commands(self, cluster: PyslurmCluster) -> None:
        cluster.occupied()
        odd = {"n1": {"cpu_ids": "0", "memory": 1000, "gres": {"gpu": {"count": 2, "indexes": "IDX"}}}}
        cluster.holds((running(1, layout=odd), fake_running(1)), (running(2), fake_running(2)))
        backend = cluster.backend()
        assert backend.observe().jobs == cluster.by_commands().jobs
        assert backend.remarks[1:] == ("1 job is read by commands, as pyslurm's values cannot be parsed: 1",)

    def test_devices_are_numbered_through_all_types(self, cluster: PyslurmCluster) -> None:
        cluster.shown["nodes"] = [pyslurm_node("n1", configured_gres={"gpu:v100": 2, "gpu:k80": 1, "shard:v100": 12})]
        (node,) = cluster.backend().observe().nodes
        assert [(gpu.index, gpu.type, gpu.shards) for gpu in node.gpus] == [
            (0, "v100", 4),
            (1, "v100", 4),
            (2, "k80", 4),
        ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("IDLE", NodeState.UP),
        ("MIXED+DRAIN", NodeState.DRAINED),
        ("ALLOCATED", NodeState.UP),
        ("DOWN*", NodeState.DOWN),
        ("IDLE+REBOOT_REQUESTED", NodeState.DRAINED),
        pytest.param(None, NodeState.DOWN, id="none at all"),
    ],
)
def test_states_are_slurms_words(cluster: PyslurmCluster, state: str | None, expected: NodeState) -> None:
    cluster.shown["nodes"] = [pyslurm_node("n1", state=state, reason="burnt out")]
    (node,) = cluster.backend().observe().nodes
    assert (node.state, node.state_text, node.reason) == (expected, state or "UNKNOWN", "burnt out")


@pytest.mark.parametrize(
    ("shown", "total"),
    [
        pytest.param({"memory_reserved_for_system": 2000}, Resources(8, 24, 510_000), id="memory for the system"),
        pytest.param({"effective_cpus": 22}, Resources(8, 22, 512_000), id="CPUs for the system"),
        pytest.param({"effective_cpus": 0}, Resources(8, 24, 512_000), id="effective CPUs that are not known"),
        pytest.param({"configured_gres": {}, "real_memory": None}, Resources(0, 24, 0), id="nothing"),
    ],
)
def test_what_a_node_has_for_jobs(cluster: PyslurmCluster, shown: dict[str, Any], total: Resources) -> None:
    cluster.shown["nodes"] = [pyslurm_node("n1", **shown)]
    assert cluster.backend().observe().nodes_by_name["n1"].total == total


def test_a_weight_of_0_comes_as_none(cluster: PyslurmCluster) -> None:
    cluster.shown["nodes"][0]["weight"] = None
    cluster.slurm.nodes["n1"].weight = 0
    seen = cluster.backend().observe()
    assert [node.weight for node in seen.nodes] == [node.weight for node in cluster.by_commands().nodes] == [0, 1]


def test_partitions_are_those_that_commands_show(cluster: PyslurmCluster) -> None:
    partitions = cluster.backend().observe().partitions
    assert partitions == cluster.by_commands().partitions
    assert [partition.name for partition in partitions] == ["gpu"]


@pytest.mark.parametrize(
    ("scontrol", "pyslurm", "kinds"),
    [
        pytest.param("(null)", [], (False, False, False), id="none"),
        pytest.param(
            "MAINT,IGNORE_JOBS,SPEC_NODES",
            ["MAINTENANCE", "IGNORE_RUNNING_JOBS"],
            (True, False, False),
            id="maintenance",
        ),
        pytest.param("FLEX,DAILY,SPEC_NODES,MAGNETIC", ["FLEX", "MAGNETIC"], (False, True, True), id="two at once"),
        pytest.param("FLEX,REPLACE", ["FLEX", "REPLACE"], (False, True, False), id="one that pyslurm does not know"),
    ],
)
def test_the_flags_of_a_reservation_are_read_alike_by_commands_and_pyslurm(
    cluster: PyslurmCluster, scontrol: str, pyslurm: list[str], kinds: tuple[bool, bool, bool]
) -> None:
    by_commands = parse_reservation(f"{RESERVATION.strip()} Flags={scontrol} State=ACTIVE")
    cluster.shown["reservations"][0]["flags"] = pyslurm
    cluster.slurm.reservations = f"{RESERVATION.strip()} Flags={scontrol}\n"
    (by_pyslurm,) = cluster.backend().observe().reservations
    assert by_pyslurm == by_commands
    assert (by_commands.maintenance, by_commands.flex, by_commands.magnetic) == kinds


def test_what_pyslurm_cannot_read_of_a_reservation_is_read_by_commands(cluster: PyslurmCluster) -> None:
    cluster.shown["reservations"][0]["users"] = NOT_READ
    seen = cluster.backend().observe()
    assert (seen.reservations[0].users, seen.oddities) == ({"root"}, ())


def test_reservations_without_end_or_names(cluster: PyslurmCluster) -> None:
    cluster.shown["reservations"][0] |= {"end_time": None, "users": [""], "accounts": ["vision"]}
    (reservation,) = cluster.backend().observe().reservations
    assert (reservation.end, reservation.users, reservation.accounts) == (
        float("inf"),
        frozenset(),
        frozenset({"vision"}),
    )


@pytest.mark.parametrize(
    ("kind", "shown", "reason"),
    [
        pytest.param("reservations", {"end_time": "soon"}, "reading it fails (ValueError)", id="a reservation's end"),
    ],
)
def test_what_cannot_be_read_is_left_out_by_name(
    cluster: PyslurmCluster, kind: str, shown: dict[str, Any], reason: str
) -> None:
    cluster.shown[kind][0] |= shown
    seen = cluster.backend().observe()
    (oddity,) = seen.oddities
    assert f"{kind[:-1]} {cluster.shown[kind][0]['name']} is left out: {reason}" in oddity
    assert not getattr(seen, kind)
