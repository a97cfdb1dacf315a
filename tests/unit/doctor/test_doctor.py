"""What the doctor finds, and that each finding which is no good says how to mend it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.backends.prometheus import RUNNING_JOBS
from slurmsched.backends.protocol import Identity, Privilege, UnreachableError
from slurmsched.backends.simulated import SimulatedBackend, VirtualClock, VirtualCluster
from slurmsched.daemon.heartbeat import HeartbeatRecord, ProcessIdentity
from slurmsched.doctor.examination import Probes, examine
from slurmsched.doctor.finding import Finding, Verdict
from slurmsched.doctor.installation import (
    REHEARSAL_COMMENT,
    check_accounting,
    check_daemons,
    check_database,
    check_export,
    check_hook,
    check_liveness,
    check_owners,
    check_prometheus,
    check_reports,
    check_round_times,
    check_spool,
    check_switches,
)
from slurmsched.doctor.slurm import (
    check_clock,
    check_configuration,
    check_limits,
    check_narrowing,
    check_nodes,
    check_private,
    check_release,
    check_rights,
    check_shards,
    parse_configuration,
)
from slurmsched.model import Node, NodeState, Partition, SetAsideJob, parse_hints
from slurmsched.model.limits import Limits
from slurmsched.report.status import ClusterStatus, Liveness, LivenessState
from slurmsched.settings.definition import (
    ClusterSettings,
    ManageSettings,
    Mode,
    NodeSettings,
    PolicySettings,
    RoundSettings,
    Settings,
    StorageSettings,
)
from slurmsched.settings.file import LoadedSettings
from slurmsched.store.finished_runs import AccountingCursor
from slurmsched.store.read_only import open_read_only
from slurmsched.store.rows import ExporterRow, RejectedReportRow
from slurmsched.store.store import Store
from tests.builders import node, snapshot

RECORDED = sorted((Path(__file__).parents[1] / "recorded").glob("*/show_config.txt"))
ENFORCE = Settings(rounds=RoundSettings(mode=Mode.ENFORCE))
GOOD = {
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "GresTypes": "gpu,shard",
    "JobSubmitPlugins": "lua",
    "JobRequeue": "1",
    "SlurmctldParameters": "(null)",
    "SLURM_VERSION": "24.11.5",
    "SchedulerType": "sched/backfill",
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpumem,gres/gpuutil",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "AccountingStoreFlags": "job_comment,job_script",
}


def worst(findings: tuple[Finding, ...]) -> Verdict:
    return max((finding.verdict for finding in findings), key=[*Verdict].index)


@pytest.mark.parametrize("file", RECORDED, ids=lambda path: path.parent.name)
def test_a_real_slurms_settings_are_read(file: Path) -> None:
    configuration, as_of = parse_configuration(file.read_text(encoding="utf-8"))
    assert configuration["SelectType"].startswith("select/")
    assert as_of is not None
    assert as_of > 1_700_000_000


@pytest.mark.parametrize(
    ("changed", "verdict", "said"),
    [
        pytest.param({}, Verdict.OK, "has what rounds need", id="all as it should be"),
        pytest.param({"SelectType": "select/linear"}, Verdict.PROBLEM, "SelectType is select/linear", id="whole nodes"),
        pytest.param({"SelectTypeParameters": "CR_CPU"}, Verdict.ADVICE, "memory is not scheduled", id="no memory"),
        pytest.param({"GresTypes": "(null)"}, Verdict.PROBLEM, "GresTypes has no gpu", id="no GPUs"),
        pytest.param({"JobSubmitPlugins": "(null)"}, Verdict.PROBLEM, "job_submit.lua is not in force", id="no hook"),
        pytest.param({"JobRequeue": "0"}, Verdict.ADVICE, "JobRequeue is 0", id="no requeue"),
        pytest.param({"SlurmctldParameters": "a,rl_enable"}, Verdict.ADVICE, "2 requests a second", id="rate limits"),
        pytest.param(
            {"SLURM_VERSION": "25.11.7", "SchedulerParameters": "a,requeue_delay=1"},
            Verdict.ADVICE,
            "may start again after 1 s, before a round sees it",
            id="a short delay after a requeue",
        ),
        pytest.param(
            {"SLURM_VERSION": "25.11.7", "SchedulerParameters": "requeue_delay=60"},
            Verdict.OK,
            "has what rounds need",
            id="a long delay after a requeue",
        ),
        pytest.param(
            {"SchedulerParameters": "requeue_delay=1"}, Verdict.OK, "has what rounds need", id="one that is not read"
        ),
        pytest.param(
            {"AuthInfo": "cred_expire=5"}, Verdict.ADVICE, "may start again after 5 s", id="credentials of five seconds"
        ),
        pytest.param(
            {"SlurmctldParameters": "enable_expedited_requeue"},
            Verdict.ADVICE,
            "start again before a round sees them",
            id="jobs that jump the line after they failed",
        ),
        pytest.param({"RequeueExit": "1-9"}, Verdict.ADVICE, "RequeueExit=1-9", id="jobs requeued by their status"),
        pytest.param(
            {"SLURM_VERSION": "23.11.1", "SchedulerParameters": "bf_continue,bf_window=60"},
            Verdict.ADVICE,
            "backfill may undo a change",
            id="a backfill that undoes a change",
        ),
        pytest.param(
            {"SchedulerParameters": "bf_continue"},
            Verdict.OK,
            "has what rounds need",
            id="one that is mended",
        ),
        pytest.param(
            {"AccountingStorageTRES": "cpu,mem"},
            Verdict.PROBLEM,
            "AccountingStorageTRES has no gres/gpu",
            id="GPUs that are not accounted",
        ),
        pytest.param(
            {"AccountingStorageTRES": "cpu,gres/gpu"},
            Verdict.ADVICE,
            "does not record how busy GPUs are",
            id="GPU use that is not accounted",
        ),
        pytest.param(
            {"AccountingStoreFlags": "(null)"}, Verdict.ADVICE, "comments are not kept", id="hints that are not kept"
        ),
    ],
)
def test_slurms_settings(changed: dict[str, str], verdict: Verdict, said: str) -> None:
    (finding,) = check_configuration({**GOOD, **changed}, ENFORCE)
    assert (finding.verdict, said in finding.sentence) == (verdict, True)


PAIRING = replace(ENFORCE, policy=PolicySettings(system="tesserae-packed"))


@pytest.mark.parametrize(
    ("changed", "verdict", "said"),
    [
        pytest.param({"Prolog": "/etc/slurm/mps.sh"}, Verdict.OK, "has what rounds need", id="a prolog"),
        pytest.param({"Prolog[0]": "/etc/slurm/mps.sh"}, Verdict.OK, "has what rounds need", id="several of them"),
        pytest.param({"Prolog": "(null)"}, Verdict.ADVICE, "no prolog starts CUDA MPS", id="no prolog"),
        pytest.param({}, Verdict.ADVICE, "no prolog starts CUDA MPS", id="no prolog, in other releases"),
        pytest.param(
            {"Prolog": "p", "GresTypes": "gpu"}, Verdict.PROBLEM, "GresTypes has no shard", id="GPUs not divided"
        ),
        pytest.param(
            {"Prolog": "p", "GresTypes": "gpu,shard,mps"}, Verdict.ADVICE, "GresTypes has mps", id="divided twice"
        ),
    ],
)
def test_slurms_settings_for_pairs(changed: dict[str, str], verdict: Verdict, said: str) -> None:
    (finding,) = check_configuration({**GOOD, **changed}, PAIRING)
    assert (finding.verdict, said in finding.sentence) == (verdict, True)


@pytest.mark.parametrize(
    ("nodes", "verdict", "said"),
    [
        pytest.param([node(shards=10), node("n2", shards=4)], Verdict.OK, "on 2 nodes", id="halves everywhere"),
        pytest.param([node(), node("n2", shards=4)], Verdict.OK, "on 1 node", id="some GPUs whole"),
        pytest.param([node()], Verdict.PROBLEM, "no GPU has any", id="no shards"),
        pytest.param([node(shards=5)], Verdict.PROBLEM, "n1 have an odd number", id="no half"),
        pytest.param(
            [replace(node(shards=4), gpus=(*node(gpus=1, shards=4).gpus, replace(node(gpus=2, shards=6).gpus[1])))],
            Verdict.ADVICE,
            "n1 have different numbers",
            id="unlike halves",
        ),
        pytest.param(
            [
                replace(
                    node(shards=4), gpus=(*node(gpus=1, shards=4).gpus, node(gpus=2, gpu_type="k80", shards=4).gpus[1])
                )
            ],
            Verdict.ADVICE,
            "n1 have several GPU types",
            id="two types on a node",
        ),
    ],
)
def test_shards_for_pairs(nodes: list[Node], verdict: Verdict, said: str) -> None:
    (finding,) = check_shards(snapshot(nodes), PAIRING)
    assert (finding.verdict, said in finding.sentence) == (verdict, True)
    assert tuple(check_shards(snapshot(nodes), ENFORCE)) == (), "nothing to a policy that pairs no jobs"


LARGE = ManageSettings(partitions=("large",))


@pytest.mark.parametrize(
    ("large", "release", "settings", "said"),
    [
        pytest.param(False, "24.11.5", Settings(), "tests each start on all nodes of large", id="there is none"),
        pytest.param(True, "24.11.5", Settings(), "starts name synsched-never", id="it is there"),
        pytest.param(
            True,
            "24.11.5",
            Settings(cluster=ClusterSettings(narrow=False)),
            "cluster.narrow is false",
            id="it is not used",
        ),
        pytest.param(False, "24.11.5", Settings(manage=LARGE), "of large:", id="the partition is managed"),
        pytest.param(
            False, "24.11.5", Settings(manage=ManageSettings(partitions=("small",))), "", id="only another is managed"
        ),
        pytest.param(
            False, "24.11.5", Settings(manage=ManageSettings(never_partitions=("large",))), "", id="it is never managed"
        ),
        pytest.param(False, "22.05.8", Settings(), "", id="a release in which it does nothing"),
    ],
)
def test_in_thousands_of_nodes_starts_are_narrowed(large: bool, release: str, settings: Settings, said: str) -> None:
    names = frozenset(f"n{number}" for number in range(2000))
    partitions = (Partition("large", names, narrows=large), Partition("small", frozenset({"n1"})))
    seen = snapshot([], partitions=partitions, release=release)
    findings = tuple(check_narrowing(seen, replace(settings, rounds=ENFORCE.rounds)))
    assert said in " ".join(finding.sentence for finding in findings)
    assert len(findings) == bool(said)
    assert tuple(check_narrowing(seen, settings)) == (), "mode observe starts nothing"


def test_each_finding_on_slurms_settings_has_a_remedy_in_one_line() -> None:
    bad = {
        **dict.fromkeys(GOOD, "(null)"),
        "SchedulerParameters": "bf_continue",
        "AuthInfo": "cred_expire=1",
        "RequeueExit": "1",
        "SlurmctldParameters": "rl_enable,enable_expedited_requeue",
        "SLURM_VERSION": "23.02.1",
        "SchedulerType": "sched/backfill",
        "JobRequeue": "0",
    }
    found = check_configuration(bad, ENFORCE)
    assert len(found) == 11
    assert [finding for finding in found if not finding.remedy or "\n" in finding.remedy] == []


@pytest.mark.parametrize(
    ("private", "privilege", "verdicts"),
    [
        pytest.param(frozenset(), Privilege.NONE, [], id="nothing is private"),
        pytest.param({"jobs"}, Privilege.NONE, [Verdict.PROBLEM], id="jobs, and an ordinary user"),
        pytest.param({"jobs", "usage"}, Privilege.OPERATOR, [Verdict.OK], id="jobs, and an Operator"),
        pytest.param({"events"}, Privilege.NONE, [Verdict.OK], id="what rounds do not read"),
    ],
)
def test_what_is_private(private: frozenset[str], privilege: Privilege, verdicts: list[Verdict]) -> None:
    seen = snapshot([node()], private_data=frozenset(private))
    assert [finding.verdict for finding in check_private(seen, Identity("synsched", privilege))] == verdicts


def test_without_the_hook_only_enforcing_is_ill() -> None:
    (finding,) = check_configuration({**GOOD, "JobSubmitPlugins": "(null)"}, Settings())
    assert finding.verdict is Verdict.ADVICE


@pytest.mark.parametrize(
    ("release", "verdict"),
    [
        ("22.05.8", Verdict.OK),
        ("24.11.5", Verdict.OK),
        ("26.05.2", Verdict.OK),
        ("21.08.1", Verdict.ADVICE),
        ("", Verdict.ADVICE),
    ],
)
def test_releases_that_are_tested(release: str, verdict: Verdict) -> None:
    assert check_release(snapshot(release=release)).verdict is verdict


@pytest.mark.parametrize(
    ("nodes", "manage", "said"),
    [
        pytest.param([node(gpus=0)], ManageSettings(partitions=("gpu",)), "no node has any", id="no GPUs at all"),
        pytest.param(
            [node(gpu_type="")], ManageSettings(partitions=("gpu",)), "some have no type", id="GPUs without a type"
        ),
        pytest.param(
            [node()], ManageSettings(), "only jobs with a synsched: hint are managed", id="nothing managed by place"
        ),
        pytest.param([node()], ManageSettings(opt_in=False), "no job is managed", id="nothing managed at all"),
    ],
)
def test_nodes_and_partitions(nodes: list[object], manage: ManageSettings, said: str) -> None:
    findings = tuple(check_nodes(snapshot(nodes), replace(ENFORCE, manage=manage)))  # type: ignore[arg-type]  # pytest rows
    assert worst(findings) is not Verdict.OK
    assert said in " ".join(finding.sentence for finding in findings)


@pytest.mark.parametrize(
    ("privilege", "settings", "verdict"),
    [
        pytest.param(Privilege.NONE, Settings(), Verdict.OK, id="looking needs no rights"),
        pytest.param(Privilege.NONE, ENFORCE, Verdict.PROBLEM, id="enforcing needs an Operator"),
        pytest.param(Privilege.OPERATOR, ENFORCE, Verdict.OK, id="an Operator may enforce"),
        pytest.param(
            Privilege.OPERATOR,
            replace(ENFORCE, nodes=NodeSettings(admin_comment=True)),
            Verdict.PROBLEM,
            id="notes need more",
        ),
        pytest.param(
            Privilege.ADMINISTRATOR,
            replace(ENFORCE, nodes=NodeSettings(weights=True)),
            Verdict.PROBLEM,
            id="weights need SlurmUser",
        ),
    ],
)
def test_rights(privilege: Privilege, settings: Settings, verdict: Verdict) -> None:
    finding = check_rights(Identity("synsched", privilege), settings)
    assert finding.verdict is verdict
    assert bool(finding.remedy) is (verdict is Verdict.PROBLEM)


def test_rights_that_accounting_does_not_tell_are_unknown() -> None:
    finding = check_rights(Identity("synsched", Privilege.NONE, unread="sacctmgr: connection refused"), ENFORCE)
    assert finding.verdict is Verdict.PROBLEM
    assert finding.sentence.startswith("those of synsched are unknown, since Slurm's accounting does not answer")
    assert finding.remedy.startswith("start slurmdbd")


@pytest.mark.parametrize(
    ("theirs", "verdict"), [(1000.0, Verdict.OK), (996.0, Verdict.OK), (900.0, Verdict.PROBLEM), (None, Verdict.ADVICE)]
)
def test_the_clock(theirs: float | None, verdict: Verdict) -> None:
    assert check_clock(1000.0, theirs).verdict is verdict


@pytest.mark.parametrize(("began", "count"), [(None, 0), (900.0, 0), (1003.0, 0), (1300.0, 1)])
def test_a_clock_that_was_set_back(began: float | None, count: int) -> None:
    found = list(check_round_times(began, 1000.0))
    assert [finding.verdict for finding in found] == [Verdict.PROBLEM] * count
    assert all("began 5 min in the future" in finding.sentence for finding in found)


def test_the_rehearsed_comment_is_one_that_a_hook_complains_about() -> None:
    assert parse_hints(REHEARSAL_COMMENT).problems


HEARD = "sbatch: synsched: unknown hint 'doctor': known are model (the job runs as if it had not been given)\n"
BEAT = "/var/lib/synsched/heartbeat"


@pytest.mark.parametrize(
    ("said", "mode", "verdict", "words"),
    [
        pytest.param(
            f"{HEARD}sbatch: synsched: heartbeat {BEAT} has mode enforce and is 7 s old\n",
            "enforce",
            Verdict.OK,
            "answers at submission and sees the heartbeat",
            id="it complains and sees the heartbeat",
        ),
        pytest.param(HEARD, "enforce", Verdict.ADVICE, "is of another release", id="it tells no heartbeat"),
        pytest.param(
            f"{HEARD}sbatch: synsched: heartbeat {BEAT} is not there\n",
            "enforce",
            Verdict.PROBLEM,
            f"slurmctld's host has no heartbeat {BEAT} that it may read",
            id="the heartbeat lies on the daemon's host alone",
        ),
        pytest.param(
            f"{HEARD}sbatch: synsched: heartbeat {BEAT} is not there\n",
            "stopped",
            Verdict.OK,
            "answers at submission",
            id="no daemon runs",
        ),
        pytest.param(
            f"{HEARD}sbatch: synsched: heartbeat {BEAT} has mode enforce and is 86400 s old\n",
            "enforce",
            Verdict.PROBLEM,
            "is 1 d old on slurmctld's host and 5 s here",
            id="slurmctld sees an old copy",
        ),
        pytest.param(
            f"{HEARD}sbatch: synsched: heartbeat {BEAT} has mode enforce and is -300 s old\n",
            "enforce",
            Verdict.PROBLEM,
            "it is another file, or a clock is wrong",
            id="slurmctld's clock is behind",
        ),
        pytest.param(
            f"{HEARD}sbatch: synsched: heartbeat /tmp/beat is not there\n",
            "enforce",
            Verdict.PROBLEM,
            f"looks for the heartbeat in /tmp/beat, and the daemon writes {BEAT}",
            id="hook.conf names another file",
        ),
        pytest.param(
            "sbatch: Job 7 to start at 2026-11-21T01:00:00\n", "enforce", Verdict.PROBLEM, "did not answer", id="silent"
        ),
        pytest.param("", "enforce", Verdict.PROBLEM, "did not answer", id="sbatch is silent"),
    ],
)
def test_the_hook_answers_or_has_to_be_mended(said: str, mode: str, verdict: Verdict, words: str) -> None:
    (finding,) = check_hook(said, BEAT, HeartbeatRecord(995.0, mode, 300.0), 1000.0)
    assert (finding.verdict, words in finding.sentence, bool(finding.remedy)) == (
        verdict,
        True,
        verdict is not Verdict.OK,
    )


def _healthy(path: Path) -> None:
    Store.open(path, 1.0).close()


def _foreign(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE other (x)").connection.close()


@pytest.mark.parametrize(
    ("make", "verdict"),
    [
        pytest.param(_healthy, Verdict.OK, id="a good one"),
        pytest.param(lambda path: None, Verdict.ADVICE, id="none yet"),
        pytest.param(lambda path: path.write_bytes(b"x" * 5000), Verdict.PROBLEM, id="no database"),
        pytest.param(_foreign, Verdict.PROBLEM, id="another program's"),
        pytest.param(lambda path: path.write_bytes(b""), Verdict.ADVICE, id="an empty one"),
    ],
)
def test_the_database(tmp_path: Path, make: Callable[[Path], object], verdict: Verdict) -> None:
    path = tmp_path / "synsched.db"
    make(path)
    (finding,) = check_database(path)
    assert finding.verdict is verdict


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_may_write_to_keeps_rounds_from_running(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "open" / "synsched.db"
    path.parent.mkdir()
    Store.open(path, 1.0).close()
    path.parent.chmod(mode)
    (finding,) = check_database(path)
    assert finding.verdict is Verdict.PROBLEM
    assert f"chmod go-w {path.parent}" in finding.remedy


def test_a_folder_that_is_not_there_has_to_be_made(tmp_path: Path) -> None:
    (finding,) = check_database(tmp_path / "none" / "synsched.db")
    assert finding.verdict is Verdict.PROBLEM


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("owners", "us", "said"),
    [
        pytest.param((7001, 7001, 7001), 7001, [], id="the daemon's user asks"),
        pytest.param((0, 0, 0), 0, [], id="rounds run as root"),
        pytest.param(
            (7001, 7001, 7001), 0, ["those of root, but rounds run as 7001"], id="root asks about the daemon's user"
        ),
        pytest.param((7001, 0, 0), 0, ["belongs to 7001, and"], id="root ran a round in the daemon's folder"),
        pytest.param((7001, 7001, 0), 7001, ["synsched.db.lock to root: one of them cannot"], id="root has the lock"),
    ],
)
def test_the_files_belong_to_whom_rounds_run_as(
    tmp_path: Path, owners: tuple[int, int, int], us: int, said: list[str]
) -> None:
    database = tmp_path / "synsched.db"
    for file, owner in zip((tmp_path, database, tmp_path / "synsched.db.lock"), owners, strict=True):
        file.touch()
        os.chown(file, owner, -1)
    found = list(check_owners(database, us))
    assert len(found) == len(said)
    assert all(words in finding.sentence for finding, words in zip(found, said, strict=True))
    assert all(finding.remedy for finding in found)


@pytest.mark.parametrize(
    ("life", "verdict"),
    [
        (LivenessState.ALIVE, Verdict.OK),
        (LivenessState.NEVER, Verdict.ADVICE),
        (LivenessState.LATE, Verdict.PROBLEM),
        (LivenessState.GONE, Verdict.PROBLEM),
    ],
)
def test_the_daemon(life: LivenessState, verdict: Verdict) -> None:
    assert check_liveness(Liveness(life, "said", None, None), 0).verdict is verdict


def test_switches_that_are_set_are_hints(tmp_path: Path) -> None:
    file = tmp_path / "disable"
    assert list(check_switches("", file)) == []
    file.touch()
    assert [finding.remedy for finding in check_switches("paused by root", file)] == [
        "'synsched resume' ends the pause",
        "remove it to resume",
    ]


def test_accounting_that_does_not_answer_is_a_hint(tmp_path: Path) -> None:
    database = tmp_path / "synsched.db"
    with closing(Store.open(database, 1000.0)) as store:
        cursor = AccountingCursor(0.0).failed("slurmdbd did not answer sacct within 20 s", 1000.0)
        store.finished_runs.record(cursor)
        with open_read_only(database) as readable:
            (finding,) = check_accounting(readable.accounting_problem())
        assert (finding.verdict, finding.sentence) == (Verdict.ADVICE, "slurmdbd did not answer sacct within 20 s")
        store.finished_runs.record(cursor.after((), 2000.0)[0])
        with open_read_only(database) as readable:
            assert list(check_accounting(readable.accounting_problem())) == []


def test_who_tells_how_busy_gpus_were_and_who_does_not_answer_is_said(tmp_path: Path) -> None:
    def sentences(*rows: ExporterRow, url: str = "http://p:9090") -> list[tuple[Verdict, str]]:
        return [(finding.verdict, finding.sentence) for finding in check_prometheus(url, rows, 1000.0)]

    telling = ExporterRow("dcgm-exporter").after(3, 940.0)
    assert sentences(telling, ExporterRow("slurm-job-exporter").after(0, 940.0)) == [
        (Verdict.OK, "dcgm-exporter told of 3 runs, the last time 1 min ago")
    ]
    assert sentences(telling, url="") == []
    assert sentences() == [(Verdict.OK, "http://p:9090 was not asked yet: no job with GPUs ended lately")]
    silent = ExporterRow("slurm-job-exporter").failed("Prometheus did not answer in time", 940.0)
    other = ExporterRow("dcgm-exporter").failed("Prometheus did not answer in time", 940.0)
    assert sentences(other, silent) == [
        (Verdict.ADVICE, "Prometheus did not answer in time (asked for dcgm-exporter, slurm-job-exporter)")
    ]
    (nothing,) = check_prometheus("http://p:9090", (ExporterRow("dcgm-exporter").after(0, 940.0),), 1000.0)
    assert (nothing.verdict, "has told of no run" in nothing.sentence) == (Verdict.ADVICE, True)
    running = ExporterRow(RUNNING_JOBS).after(2, 940.0)
    assert sentences(running) == [
        (Verdict.OK, "it told how busy the GPUs of running jobs were, the last time 1 min ago"),
        (Verdict.OK, "http://p:9090 was not asked yet: no job with GPUs ended lately"),
    ]
    assert sentences(ExporterRow(RUNNING_JOBS).failed("Prometheus did not answer in time", 940.0))[0] == (
        Verdict.ADVICE,
        "Prometheus did not answer in time (asked for running jobs)",
    )
    database = tmp_path / "synsched.db"
    with closing(Store.open(database, 1000.0)) as store:
        store.finished_runs.record_exporters((telling,))
        with open_read_only(database) as readable:
            assert readable.exporters() == (telling,)


def test_what_cannot_be_looked_at_is_a_finding_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    def silent() -> str:
        raise UnreachableError("slurmctld does not answer: see 'scontrol ping'")

    def no_status() -> ClusterStatus:
        raise UnreachableError("never asked: there is no database")

    backend = SimulatedBackend(VirtualCluster([node(state=NodeState.UP)]), VirtualClock())
    loaded = LoadedSettings(replace(ENFORCE, storage=StorageSettings(path=str(tmp_path / "synsched.db"))))
    found = list(examine(loaded, Probes(lambda: backend, silent, lambda _comment: "", no_status, tuple, lambda: 0.0)))
    assert [finding.topic for finding in found if finding.verdict is Verdict.PROBLEM] == ["slurm.conf"]
    assert {"settings", "Slurm", "GPUs", "rights", "database", "rounds"} <= {finding.topic for finding in found}
    assert all(finding.remedy for finding in found if finding.verdict is not Verdict.OK)


def test_a_spool_that_is_not_set_is_no_topic() -> None:
    assert list(check_spool("", Path("synsched.db"))) == []


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [
        pytest.param(0o1777, Verdict.OK, id="as /tmp"),
        pytest.param(0o777, Verdict.PROBLEM, id="open to all, and nobody's is safe"),
        pytest.param(0o3773, Verdict.OK, id="for jobs and the group of the daemon"),
        pytest.param(0o755, Verdict.PROBLEM, id="closed"),
        pytest.param(None, Verdict.PROBLEM, id="not there"),
    ],
)
def test_the_spool(tmp_path: Path, mode: int | None, verdict: Verdict) -> None:
    spool = tmp_path / "spool"
    if mode is not None:
        spool.mkdir()
        spool.chmod(mode)
    (finding,) = check_spool(str(spool), tmp_path / "synsched.db")
    assert finding.verdict is verdict
    assert bool(finding.remedy) is (verdict is Verdict.PROBLEM)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_spool_that_a_user_could_replace_has_to_be_mended(tmp_path: Path) -> None:
    spool, database = tmp_path / "below" / "spool", tmp_path / "synsched.db"
    spool.mkdir(parents=True)
    spool.chmod(0o1777)
    os.chown(spool, 4321, -1)
    (finding,) = check_spool(str(spool), database)
    assert (finding.verdict, "belongs to user number 4321" in finding.sentence) == (Verdict.PROBLEM, True)
    database.touch()
    os.chown(database, 4321, -1)
    (finding,) = check_spool(str(spool), database)
    assert finding.verdict is Verdict.OK, "the owner of the database is whom rounds run as"
    os.chown(spool.parent, 4322, -1)
    (finding,) = check_spool(str(spool), database)
    assert finding.sentence == f"the spool {spool} can be replaced: {spool.parent} belongs to user number 4322"


def test_who_is_not_believed_is_named_up_to_a_screenful() -> None:
    rows = [RejectedReportRow(f"job {number} of mallory", "reports as job 1", 0.0) for number in range(30)]
    found = list(check_reports(rows))
    assert found[0].sentence == "job 0 of mallory: reports as job 1"
    assert (len(found), found[-1].sentence) == (21, "10 more rejected reports")


def test_jobs_that_cannot_be_read_are_named_a_bounded_number_of_them() -> None:
    aside = tuple(SetAsideJob(str(number), "its record cannot be read", "mallory") for number in range(1, 101))
    seen = snapshot([node()], set_aside=aside)
    named = [finding.sentence for finding in check_nodes(seen, ENFORCE) if "set aside" in finding.sentence]
    assert named[0] == "job 1 of mallory is set aside: its record cannot be read"
    assert (len(named), named[-1]) == (21, "80 more jobs set aside")


@pytest.mark.parametrize(
    ("owner", "age", "well"),
    [
        pytest.param(ProcessIdentity.current(), 10.0, False, id="the heartbeat is another host's, the lock ours"),
        pytest.param(ProcessIdentity.current(), 5000.0, True, id="the other one is silent"),
        pytest.param(ProcessIdentity(7, "ctl2", "b00", 12), 10.0, True, id="one process has both"),
        pytest.param(None, 10.0, True, id="nobody holds our lock"),
    ],
)
def test_two_daemons_of_one_cluster_have_to_be_mended(owner: ProcessIdentity | None, age: float, well: bool) -> None:
    beat = HeartbeatRecord(10_000.0 - age, "enforce", 300.0, ProcessIdentity(7, "ctl2", "b00", 12))
    found = list(check_daemons(beat, owner, 10_000.0, 900.0))
    assert [finding.verdict for finding in found] == ([] if well else [Verdict.PROBLEM])


class TestExport:
    """What ordinary users read instead of the database."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        made = tmp_path / "export"
        made.mkdir()
        (made / "current.json").write_text("{}")
        for above in (made, *made.parents):
            above.chmod(above.stat().st_mode | 0o001)
        return made

    def test_it_is_there_and_of_the_last_round(self, folder: Path) -> None:
        published = (folder / "current.json").stat().st_mtime
        assert check_export(folder, published - 5).verdict is Verdict.OK
        assert check_export(folder, None).verdict is Verdict.OK
        assert "is older than the last round" in check_export(folder, published + 100).sentence

    def test_it_is_not_there_yet(self, tmp_path: Path) -> None:
        assert check_export(tmp_path / "export", None).verdict is Verdict.ADVICE

    def test_nobody_else_can_enter_the_folder(self, folder: Path) -> None:
        folder.chmod(0o700)
        found = check_export(folder, None)
        assert (found.verdict, found.sentence) == (Verdict.PROBLEM, f"users cannot enter {folder}")

    def test_a_folder_in_which_the_daemon_publishes_nothing_is_said_before_the_first_document_too(
        self, tmp_path: Path
    ) -> None:
        folder, link = tmp_path / "export", tmp_path / "link"
        folder.mkdir()
        link.symlink_to(folder)
        assert check_export(folder, None, os.geteuid()).verdict is Verdict.ADVICE
        assert "belongs to another user" in check_export(folder, None, os.geteuid() + 1).sentence
        assert "is not a folder" in check_export(link, None).sentence
        folder.chmod(0o1777)
        found = check_export(folder, None)
        assert (found.verdict, found.sentence) == (
            Verdict.PROBLEM,
            f"nothing is published: others may write to {folder}",
        )


@pytest.mark.parametrize(
    ("limits", "verdicts"),
    [
        pytest.param(Limits(), [], id="not enforced"),
        pytest.param(Limits(True), [Verdict.OK], id="read"),
        pytest.param(Limits(True, "sacctmgr does not answer"), [Verdict.PROBLEM], id="enforced and unknown"),
    ],
)
def test_limits_have_to_be_known_where_slurm_enforces_them(limits: Limits, verdicts: list[Verdict]) -> None:
    findings = list(check_limits(snapshot([node()], limits=limits)))
    assert [finding.verdict for finding in findings] == verdicts
    assert limits.unread in "".join(finding.sentence for finding in findings)
