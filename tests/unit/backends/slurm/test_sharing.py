"""How partitions share nodes and CPUs, and for whose jobs Slurm preempts others."""

from __future__ import annotations

import pytest

from slurmsched.backends.slurm.cluster import parse_configuration, parse_partition, with_preemption
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.limits import parse_preempting_qos


@pytest.mark.parametrize(
    ("shown", "sharing"),
    [
        ("ExclusiveUser=NO OverSubscribe=NO", ""),
        ("ExclusiveUser=NO ExclusiveTopo=NO OverSubscribe=YES:4", ""),
        ("ExclusiveUser=NO OverSubscribe=FORCE:1", ""),
        ("ExclusiveUser=NO OverSubscribe=FORCE:2", "FORCE:2"),
        ("ExclusiveUser=NO OverSubscribe=EXCLUSIVE", "EXCLUSIVE"),
        ("ExclusiveUser=YES OverSubscribe=NO", "USER"),
        ("ExclusiveUser=NO ExclusiveTopo=YES OverSubscribe=NO", "TOPO"),
        ("Exclusive=NO OverSubscribe=NO", ""),
        ("Exclusive=NODE OverSubscribe=NO", "EXCLUSIVE"),
        ("Exclusive=USER OverSubscribe=NO", "USER"),
        ("", ""),
    ],
)
def test_sharing_of_a_partition_on_every_release(shown: str, sharing: str) -> None:
    assert parse_partition(f"PartitionName=gpu State=UP Nodes=n1 {shown}").sharing == sharing


@pytest.mark.parametrize(
    ("release", "parameters", "widens"),
    [
        ("22.05.8", "CR_Core_Memory", False),
        ("23.02.1", "CR_Core_Memory", False),
        ("23.11.0", "CR_Core_Memory", True),
        ("26.05.0-0rc1", "CR_Core_Memory", True),
        ("24.11.5", "CR_Core_Memory,MULTIPLE_SHARING_GRES_PJ", False),
        ("unknown", "CR_Core_Memory", False),
    ],
)
def test_which_releases_keep_all_shards_of_a_job_on_one_gpu(release: str, parameters: str, widens: bool) -> None:
    shown = f"SLURM_VERSION = {release}\nSelectTypeParameters = {parameters}"
    assert parse_configuration(shown).widens_shards is widens


LOW = "PartitionName=low State=UP Nodes=n[1-2] PriorityTier=1 PreemptMode={mode}"
HIGH = "PartitionName=high State=UP Nodes={nodes} PriorityTier={tier} PreemptMode=OFF"


@pytest.mark.parametrize(
    ("plugin", "mode", "nodes", "tier", "preempts"),
    [
        pytest.param("preempt/partition_prio", "REQUEUE", "n2", 10, True, id="a higher tier on a common node"),
        pytest.param("preempt/partition_prio", "GANG,SUSPEND", "n2", 10, True, id="by suspending"),
        pytest.param("preempt/partition_prio", "OFF", "n2", 10, False, id="the lower partition forbids it"),
        pytest.param("preempt/partition_prio", "REQUEUE", "n3", 10, False, id="no node in common"),
        pytest.param("preempt/partition_prio", "REQUEUE", "n2", 1, False, id="the same tier"),
        pytest.param("preempt/qos", "REQUEUE", "n2", 10, False, id="by QOS"),
        pytest.param("(null)", "REQUEUE", "n2", 10, False, id="no preemption"),
        pytest.param("preempt/none", "REQUEUE", "n2", 10, False, id="no preemption before 24.11"),
    ],
)
def test_for_jobs_of_which_partitions_slurm_preempts(
    plugin: str, mode: str, nodes: str, tier: int, preempts: bool
) -> None:
    configuration = parse_configuration(f"SLURM_VERSION = 24.11.5\nPreemptType = {plugin}\n")
    partitions = map(parse_partition, (LOW.format(mode=mode), HIGH.format(nodes=nodes, tier=tier)))
    found = with_preemption(partitions, configuration)
    assert {name: partition.preempts for name, partition in found.items()} == {"low": False, "high": preempts}


def test_for_jobs_of_which_qos_slurm_preempts() -> None:
    table = "normal||cluster\nurgent|normal,spare|cluster\nspare||requeue\nown||cancel,within\n"
    assert parse_preempting_qos(table, within=False) == {"urgent", "own"}
    assert parse_preempting_qos(table, within=True) == {"normal", "urgent", "own"}
    with pytest.raises(SlurmParseError):
        parse_preempting_qos("normal|", within=False)


def test_preemption_within_a_qos_is_read_from_the_configuration() -> None:
    shown = parse_configuration("SLURM_VERSION = 24.11.5\nPreemptMode = REQUEUE,WITHIN\nPreemptType = preempt/qos\n")
    assert (shown.preempts_by, shown.preempts_within_qos) == ("qos", True)
