"""Limits as slurmctld and sacctmgr of each release were recorded to show them, and text that poses as limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.backends.slurm.cluster import parse_configuration, parse_partition, with_job_defaults
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.limits import parse_limits
from slurmsched.model.limits import AssociationLimits, Limits

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = ("bookworm", "trixie", "sid")
QOS_LINE = "QOS=normal(1) UsageRaw=0.000000 GrpJobs=9(0) GrpTRES=cpu=1(0) MaxTRESPJ= Account Limits=No Accounts"


def texts(release: str) -> tuple[str, str]:
    return tuple((RECORDED / release / f"{name}.txt").read_text() for name in ("show_assoc_mgr", "sacctmgr_qos"))  # type: ignore[return-value]


def of_user(limits: Limits, user: str) -> AssociationLimits:
    return next(row for row in limits.associations if row.user == user)


def association(number: int, account: str, user: str = "", limits: str = "GrpTRES=cpu=4(0)", more: str = "") -> str:
    owner = f"{user}(2001)" if user else ""
    return (
        f"ClusterName=mini Account={account} UserName={owner} Partition= Priority=0 ID={number}"
        " SharesRaw/Norm/Level/Factor=1/0.17/6/0.00 UsageRaw/Norm/Efctv=0.00/0.00/0.00 ParentAccount=root(1)"
        f" Lineage=/ DefAssoc=No GrpJobs=N(0) {limits} MaxTRESPJ= Comment={more or '(null)'}"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_limits_of_a_user_are_read_with_those_that_slurm_inherits_from_the_account(release: str) -> None:
    alice = of_user(parse_limits(*texts(release)), "alice").limits
    assert alice.group == {"cpus": 4, "jobs": 9}, "GrpJobs=9"
    assert alice.per_association == {"jobs": 7}, "MaxJobs=7"
    assert alice.per_job == {"cpus": 9}, "from the account"
    assert alice.per_node == {"cpus": 6, "memory": 51200}
    assert alice.fixed == {"cpus"}, "GrpTRESMins counts CPUs"
    assert not alice.exhausted


@pytest.mark.parametrize("release", RELEASES)
def test_accounts_know_their_parents(release: str) -> None:
    limits = parse_limits(*texts(release))
    accounts = {row.account: row for row in limits.associations if not row.user}
    assert accounts["vision"].limits.group == {"cpus": 40, "memory": 409600}
    assert accounts["vision"].parent == accounts["root"].id == 1
    assert accounts["a b"].limits.group == {}


@pytest.mark.parametrize("release", RELEASES)
def test_a_qos_has_limits_from_slurmctld_and_from_sacctmgr(release: str) -> None:
    normal, big = parse_limits(*texts(release)).qos
    assert (normal.name, normal.limits.group, normal.factor, normal.over_partition) == ("normal", {}, None, False)
    assert (big.limits.group, big.limits.per_job) == ({"memory": 102400, "gpus": 8}, {"cpus": 11, "nodes": 3})
    assert (big.limits.per_user, big.limits.per_account) == (
        {"cpus": 20, "nodes": 2, "jobs": 3},
        {"cpus": 30, "jobs": 4},
    )
    assert (big.limits.minutes_per_job, big.limits.fixed) == ({"cpus": 60}, {"cpus"})
    assert (big.over_partition, big.factor) == (True, 2.0)


def test_used_up_minutes_are_told_and_what_is_billed_is_not_raised() -> None:
    limits = "GrpTRES=cpu=N(0),billing=5(0) GrpTRESMins=cpu=100(100),mem=50(0)"
    (row,) = parse_limits(association(2, "vision", limits=limits), "").associations
    assert row.limits.exhausted == {"cpus": 100}
    assert row.limits.fixed == {"cpus", "memory"}
    assert row.limits.group == {}


HOSTILE = {
    "a comment with limits": ("hello GrpTRES=cpu=999(0) MaxTRESPJ=cpu=999", {"cpus": 4}),
    "a comment with other names": ("x ID=1 Account=root UserName=carol(3)", {"cpus": 4}),
    "a comment that ends like a record": ("Comment=(null) GrpJobs=1(0)", {"cpus": 4}),
}


@pytest.mark.parametrize(("comment", "group"), HOSTILE.values(), ids=HOSTILE)
def test_a_comment_changes_no_limit(comment: str, group: dict[str, int]) -> None:
    (row,) = parse_limits(association(2, "vision", "alice", more=comment), "").associations
    assert (row.account, row.user, row.limits.group) == ("vision", "alice", group)


POSING = {
    "a comment with the record of another user": f"x\n{association(9, 'speech', 'carol', 'GrpTRES=cpu=999(0)')}",
    "a comment with the number of another account": f"x\n{association(3, 'other')}",
    "a comment with a QOS": f"x\n{QOS_LINE}",
}


@pytest.mark.parametrize("comment", POSING.values(), ids=POSING)
def test_text_that_poses_as_the_limits_of_others_makes_all_of_them_unreadable(comment: str) -> None:
    true = association(3, "speech", "carol")
    shown = "\n".join((association(2, "vision", more=comment), true, QOS_LINE))
    with pytest.raises(SlurmParseError, match="twice"):
        parse_limits(shown, "normal||||||||")


BROKEN = {
    "no association": ("Current Association Manager state", "normal||||||||"),
    "a limit that is no number": (association(2, "vision", limits="GrpTRES=cpu=many"), ""),
    "a QOS with a bar in its name": (association(2, "vision"), "a|b||||||||"),
}


@pytest.mark.parametrize(("shown", "qos"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_read_is_no_table_without_limits(shown: str, qos: str) -> None:
    with pytest.raises(SlurmParseError):
        parse_limits(shown, qos)


@pytest.mark.parametrize(
    ("enforced", "words"),
    [(False, "none"), (False, "associations"), (True, "associations,limits,qos"), (True, "associations,limits,safe")],
)
def test_limits_are_enforced_where_slurm_says_so(enforced: bool, words: str) -> None:
    shown = f"AccountingStorageEnforce = {words}\nSLURM_VERSION = 24.11.5\n"
    assert parse_configuration(shown).enforces_limits is enforced


def test_a_partition_has_limits_of_its_own() -> None:
    line = "PartitionName=gpu State=UP Nodes=n1 MaxNodes=2 MaxCPUsPerNode=20 MaxMemPerNode=1000 QoS=big"
    partition = parse_partition(line)
    assert (partition.max_nodes, partition.max_cpus_per_node, partition.max_memory_per_node) == (2, 20, 1000)
    assert partition.qos == "big"
    free = parse_partition("PartitionName=gpu State=UP Nodes=n1 MaxNodes=UNLIMITED MaxCPUsPerNode=UNLIMITED QoS=N/A")
    assert (free.max_nodes, free.max_cpus_per_node, free.max_memory_per_node, free.qos) == (None, None, None, "")


def test_a_partitions_defaults_by_gpu_go_before_those_of_the_cluster() -> None:
    cluster = "SLURM_VERSION = 24.11\nJobDefaults = DefCpuPerGPU=3,DefMemPerGPU=2000\nDefMemPerCPU = 8533\n"
    line = "PartitionName=gpu Nodes=n1 State=UP JobDefaults=DefCpuPerGPU=5 DefMemPerNode=UNLIMITED"
    found = with_job_defaults(parse_partition(line), parse_configuration(cluster))
    assert (found.cpus_per_gpu, found.memory_per_gpu, found.memory_per_cpu) == (5, 2000, 8533)
    plain = parse_configuration("SLURM_VERSION = 24.11\nJobDefaults = (null)\nDefMemPerNode = UNLIMITED\n")
    assert (plain.cpus_per_gpu, plain.memory_per_gpu, plain.memory_per_cpu) == (0, 0, 0)


def test_whom_a_partition_admits() -> None:
    narrow = parse_partition("PartitionName=gpu State=UP Nodes=n1 AllowAccounts=vision,speech DenyQos=debug")
    assert narrow.admits("vision", "normal")
    assert not narrow.admits("language", "normal")
    assert not narrow.admits("vision", "debug")
    assert parse_partition("PartitionName=gpu State=UP Nodes=n1 AllowAccounts=ALL AllowQos=ALL").admits("any", "qos")
    assert not parse_partition("PartitionName=gpu State=UP Nodes=n1 DenyAccounts=x AllowQos=high").admits("y", "normal")
