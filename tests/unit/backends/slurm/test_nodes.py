"""Node states and the use of devices."""

from __future__ import annotations

import time

import pytest

from slurmsched.backends.slurm.cluster import parse_node, parse_node_state, with_cpu_units
from slurmsched.model import NodeState

UP, DRAINED, DOWN = NodeState.UP, NodeState.DRAINED, NodeState.DOWN


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("IDLE", UP),
        ("MIXED+COMPLETING", UP),
        ("MIXED+PLANNED", UP),
        ("ALLOCATED+RESERVED", UP),
        ("MIXED+CLOUD", UP),
        pytest.param("IDLE+CLOUD+POWERED_DOWN", UP, id="asleep, and woken for a job"),
        ("IDLE+CLOUD+POWERING_UP", UP),
        ("IDLE~", UP),
        pytest.param("IDLE+CLOUD+POWERING_DOWN", DRAINED, id="on its way to sleep"),
        ("IDLE%", DRAINED),
        ("IDLE+DRAIN", DRAINED),
        ("MIXED+DRAIN", DRAINED),
        pytest.param("IDLE+MAINT", UP, id="in maintenance, and reserved"),
        ("IDLE+MAINTENANCE+RESERVED", UP),
        ("IDLE$", UP),
        ("IDLE+DRAIN+MAINT", DRAINED),
        ("DOWN$", DOWN),
        ("IDLE+REBOOT_REQUESTED", DRAINED),
        ("DOWN*", DOWN),
        ("DOWN+DRAIN", DOWN),
        ("IDLE+NOT_RESPONDING", DOWN),
        ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", UP),
        ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", DOWN),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", DOWN),
        ("MIXED*", DOWN),
        ("FUTURE", DOWN),
        ("UNKNOWN", DOWN),
    ],
)
def test_a_node_takes_new_jobs_only_where_slurm_would_start_them(text: str, state: NodeState) -> None:
    assert parse_node_state(text) is state


def used(gres: str, gres_used: str, alloc: str = "") -> list[int]:
    line = f"NodeName=n1 CPUTot=8 RealMemory=1000 Gres={gres} GresUsed={gres_used} State=MIXED AllocTRES={alloc}"
    return [gpu.used for gpu in parse_node(line).gpus]


@pytest.mark.parametrize(
    ("gres", "gres_used", "alloc", "expected"),
    [
        pytest.param("gpu:a:4", "gpu:a:2(IDX:1,3)", "", [0, 1000, 0, 1000], id="devices by index"),
        pytest.param("gpu:4", "gpu:2", "", [1000, 1000, 0, 0], id="devices that are only counted"),
        pytest.param("gpu:a:2,gpu:b:2", "gpu:a:0(IDX:N/A),gpu:b:1(IDX:3)", "", [0, 0, 0, 1000], id="two types"),
        pytest.param("gpu:a:2,shard:20", "gpu:a:1(IDX:0),shard:4(-/10,4/10)", "", [1000, 400], id="shards"),
        pytest.param(
            "gpu:a:2,shard:20", "gpu:a:0(IDX:N/A),shard:1(IDX:1)", "gres/shard=7", [0, 700], id="22.05 names the device"
        ),
        pytest.param("(null)", "gpu:0", "", [], id="no GPU"),
    ],
)
def test_each_gpu_is_used_as_far_as_slurm_says(gres: str, gres_used: str, alloc: str, expected: list[int]) -> None:
    assert used(gres, gres_used, alloc) == expected


def test_specialised_cpus_and_memory_are_not_handed_out() -> None:
    node = parse_node("NodeName=n1 CPUEfctv=60 CPUTot=64 RealMemory=1000 MemSpecLimit=100 State=IDLE")
    assert (node.total.cpus, node.total.memory) == (60, 900)


def test_a_reason_cannot_pass_for_a_state() -> None:
    node = parse_node(
        "NodeName=n1 CPUTot=8 RealMemory=1000 State=IDLE+DRAIN Weight=3 "
        "Reason=fan = bad State=IDLE Weight=9 [root@2026-11-21T01:21:28] Comment=State=IDLE"
    )
    assert (node.state, node.weight, node.reason) == (DRAINED, 3, "fan = bad State=IDLE Weight=9")


def test_devices_without_files_are_counted_on_the_node() -> None:
    found = parse_node("NodeName=n1 CPUTot=8 RealMemory=100 Gres=gpu:v100:4 GresUsed=gpu:v100:2(CNT:2) State=MIXED")
    assert [gpu.idle for gpu in found.gpus] == [False, False, True, True]


def test_a_reason_full_of_blanks_costs_milliseconds() -> None:
    start = time.perf_counter()
    assert parse_node(f"NodeName=n1 State=DOWN Reason=x{' ' * 200_000}y [root@now]").reason.endswith("y")
    assert time.perf_counter() - start < 0.1


@pytest.mark.parametrize("text", ["Reason=moved to ReservationName=old [root@2026]", "Comment=see ReservationName=x"])
def test_a_reservation_in_what_people_write_of_a_node_is_none_of_it(text: str) -> None:
    assert parse_node(f"NodeName=n1 CPUTot=24 RealMemory=1000 State=IDLE {text}").reservation == ""


@pytest.mark.parametrize(
    ("shown", "parameters", "unit", "bills_cpus"),
    [
        pytest.param("CPUTot=24 Sockets=2 CoresPerSocket=6 ThreadsPerCore=2", {"CR_CORE_MEMORY"}, 2, False, id="cores"),
        pytest.param("CPUTot=24 Sockets=2 CoresPerSocket=6 ThreadsPerCore=2", {"CR_SOCKET"}, 12, False, id="sockets"),
        pytest.param("CPUTot=24 Sockets=2 CoresPerSocket=6 ThreadsPerCore=2", {"CR_CPU"}, 2, True, id="CPUs of cores"),
        pytest.param("CPUTot=24 Sockets=2 CoresPerSocket=12 ThreadsPerCore=1", {"CR_CPU"}, 1, False, id="CPUs alone"),
        pytest.param(
            "CPUTot=12 Sockets=2 CoresPerSocket=6 ThreadsPerCore=2", {"CR_CORE"}, 1, False, id="its CPUs are its cores"
        ),
        pytest.param("CPUTot=24", {"CR_CORE"}, 1, False, id="nothing shown"),
    ],
)
def test_what_slurm_gives_of_a_nodes_cpus_together(
    shown: str, parameters: set[str], unit: int, bills_cpus: bool
) -> None:
    node = with_cpu_units(parse_node(f"NodeName=n1 {shown} RealMemory=1000 State=IDLE"), parameters)
    assert (node.cpu_unit, node.bills_cpus) == (unit, bills_cpus)
