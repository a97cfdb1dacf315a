"""Every reader over what real daemons of each release were recorded to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.backends.protocol import BackendError, NotPermittedError, UnreachableError
from slurmsched.backends.slurm import job_details
from slurmsched.backends.slurm.accounting import parse_associations
from slurmsched.backends.slurm.cluster import parse_configuration, parse_node, parse_partition, parse_reservation
from slurmsched.backends.slurm.errors import NoConfigurationError, error_from_stderr
from slurmsched.backends.slurm.jobs import ParsedJob, with_types_of_shards
from slurmsched.backends.slurm.requests import RequestForm
from slurmsched.model import Association, Hold, Job, JobState, Node, NodeState
from tests.unit.backends.slurm.replaying import jobs_in

RECORDED = Path(__file__).parents[2] / "recorded"
SERIES = {"bookworm": "22.05", "trixie": "24.11", "source": "25.11", "sid": "26.05"}
RELEASES = sorted(
    folder.name for folder in RECORDED.iterdir() if folder.name in SERIES and (folder / "show_job.txt").is_file()
)

pytestmark = pytest.mark.parametrize("release", RELEASES)


def text(release: str, name: str) -> str:
    return (RECORDED / release / name).read_text(encoding="utf-8")


def seen(release: str) -> dict[str, ParsedJob]:
    return {one.job.id: one for one in jobs_in(RECORDED / release)}


def jobs(release: str) -> dict[str, Job]:
    """By name; of the tasks of an array the last."""
    return {one.job.name: one.job for one in seen(release).values()}


def nodes(release: str) -> dict[str, Node]:
    found = [parse_node(line) for line in text(release, "show_node.txt").splitlines()]
    return {node.name: node for node in found}


def test_sockets_and_cores_are_read_and_what_slurm_shares_out(release: str) -> None:
    found = nodes(release)["v100-1"]
    assert (found.sockets, found.cores_per_socket, found.threads_per_core) == (2, 12, 1)
    assert parse_configuration(text(release, "show_config.txt")).select_parameters == {"CR_CORE_MEMORY"}


def test_every_job_makes_sense(release: str) -> None:
    assert {"single", "gang", "split", "array", "held-array", "het", "never"} <= set(jobs(release))


def test_a_single_job_has_the_gpus_that_slurm_gave_it(release: str) -> None:
    single = jobs(release)["single"]
    [share] = single.allocations
    assert (single.state, single.user, single.account, single.time_limit) == (
        JobState.RUNNING,
        "alice",
        "vision",
        216_000,
    )
    assert (share.resources.gpus, share.resources.cpus, share.resources.memory) == (2, 6, 102_400)
    assert (share.gpu_type, len(share.indices)) == ("v100", 2)


def test_a_gang_has_equal_shares_on_both_nodes(release: str) -> None:
    gang = jobs(release)["gang"]
    request = gang.original_request
    assert (request.gpus, request.gpus_per_node, request.nodes, request.cpus) == (16, 8, 2, 48)
    assert {share.resources for share in gang.allocations} == {gang.allocations[0].resources}
    assert [share.indices for share in gang.allocations] == [tuple(range(8))] * 2


def test_a_job_that_asked_for_gpus_in_total_may_be_split_unevenly(release: str) -> None:
    split_up = jobs(release)["split"]
    assert (
        split_up.original_request.gpus,
        split_up.original_request.gpus_per_node,
        split_up.original_request.tasks,
    ) == (4, None, 4)
    assert sorted(share.resources.gpus for share in split_up.allocations) == [1, 3]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("single", RequestForm(per_node=True)),
        ("gang", RequestForm(per_node=True, tasks_per_node=True)),
        ("four", RequestForm(per_job=True, memory_per_cpu=True)),
        ("split", RequestForm(per_job=True, per_task=True, memory_per_cpu=True)),
        ("pernode", RequestForm(per_node=True, cpus_per_gpu=True, memory_per_gpu=True)),
        ("requeue", RequestForm(per_node=True, memory_per_cpu=True, requeued=True)),
    ],
)
def test_the_form_of_a_request_is_seen(release: str, name: str, form: RequestForm) -> None:
    assert next(one.request_form for one in seen(release).values() if one.job.name == name) == form


@pytest.mark.parametrize(
    ("name", "state", "hold"),
    [
        ("held", JobState.PENDING, Hold.USER),
        ("held-by-operator", JobState.PENDING, Hold.ADMIN),
        ("requeuehold", JobState.PENDING, Hold.REQUEUED),
        ("requeue", JobState.PENDING, Hold.NONE),
        ("pending", JobState.PENDING, Hold.NONE),
        ("suspended", JobState.SUSPENDED, Hold.NONE),
        ("stubborn", JobState.COMPLETING, Hold.NONE),
        ("cancelled", JobState.FINISHED, Hold.NONE),
    ],
)
def test_states_and_holds_are_told_apart(release: str, name: str, state: JobState, hold: Hold) -> None:
    assert (jobs(release)[name].state, jobs(release)[name].hold) == (state, hold)


def test_waiting_tasks_of_an_array_are_jobs_of_their_own(release: str) -> None:
    waiting = [one.job for one in seen(release).values() if one.job.state is JobState.PENDING]
    held = [job for job in waiting if job.name == "held-array"]
    assert [job.id for job in held] == [f"{held[0].array_job}_{task}" for task in range(0, 100, 3)]
    assert held[0].throttle == 5
    assert [job.id.partition("_")[2] for job in waiting if job.name == "array"] == ["3", "4", "5", "6"]


def test_parts_of_a_heterogeneous_job_are_named_as_squeue_names_them(release: str) -> None:
    parts = [one.job.id.partition("+") for one in seen(release).values() if one.job.name == "het"]
    assert [offset for _, _, offset in parts] == ["0", "1"]
    assert len({leader for leader, _, _ in parts}) == 1


def test_only_an_exclusive_job_is_exclusive(release: str) -> None:
    assert [name for name, job in jobs(release).items() if job.original_request.exclusive] == ["exclusive"]


def test_shards_are_neither_gpus_nor_nothing(release: str) -> None:
    shards = jobs(release)["shard-a"]
    assert (shards.original_request.gpus, shards.original_request.shards, shards.allocations[0].shards) == (0, 4, 4)
    of_node = nodes(release)[shards.allocations[0].node].gpu_types
    assert {with_types_of_shards(shards, nodes(release)).gpu_type_held} == of_node


def test_an_interactive_job_is_not_a_batch_job(release: str) -> None:
    assert not jobs(release)["interactive"].batch
    assert jobs(release)["single"].batch


def test_a_job_that_may_not_be_requeued_says_so(release: str) -> None:
    assert not jobs(release)["untyped"].requeue


def test_hints_are_read_beside_words_that_look_like_fields(release: str) -> None:
    job = next(job for job in jobs(release).values() if job.name.startswith("ResNet 50"))
    assert (job.hints.model, job.state, job.name) == ("resnet50", JobState.RUNNING, "ResNet 50: lr=0.1 JobId=7 ünïcode")
    assert job.comment.endswith("second line: 学习 NodeList=x")


def test_somebody_elses_admin_comment_is_seen(release: str) -> None:
    assert jobs(release)["single"].admin_comment == "watched by jobstats: ok=1"


def test_a_dependency_is_told_in_slurms_words(release: str) -> None:
    single = next(one.job.id for one in seen(release).values() if one.job.name == "single")
    assert jobs(release)["dependency"].dependency == f"afterok:{single}(unfulfilled)"
    assert jobs(release)["never"].reason == "DependencyNeverSatisfied"


def test_nodes_have_what_slurm_may_hand_out(release: str) -> None:
    node = nodes(release)["k80-1"]
    assert (node.total.gpus, node.total.cpus, node.total.memory) == (8, 24, 512_000)
    assert (node.gpu_types, node.features, node.gpus[0].shards) == ({"k80"}, {"k80"}, 10)


def test_what_is_taken_on_a_node_is_what_its_running_jobs_have(release: str) -> None:
    """Suspended jobs give back their CPUs, completing ones all they had: both are left out where they are."""
    found, running = nodes(release), [one.job for one in seen(release).values()]
    odd = {share.node for job in running if job.state is not JobState.RUNNING for share in job.allocations}
    for node in found.values():
        shares = [share for job in running for share in job.allocations if share.node == node.name]
        whole = {index for share in shares if not share.shards for index in share.indices}
        cut = {index for share in shares if share.shards for index in share.indices}
        if node.name not in odd:
            assert node.used.cpus == sum(share.resources.cpus for share in shares)
            assert {gpu.index for gpu in node.gpus if gpu.used == 1000} == whole
            assert {gpu.index for gpu in node.gpus if 0 < gpu.used < 1000} == cut


def test_shards_take_part_of_a_gpu(release: str) -> None:
    partly = [gpu.used for node in nodes(release).values() for gpu in node.gpus if 0 < gpu.used < 1000]
    assert sum(partly) == 800


def test_drained_and_lost_nodes_take_nothing_new(release: str) -> None:
    states = {node.reason: node.state for node in nodes(release).values()}
    assert (states["maintenance"], states["fan noise = bad, see #12"]) == (NodeState.DRAINED, NodeState.DRAINED)
    assert states["Not responding"] is NodeState.DOWN
    assert states[""] is NodeState.UP


def test_partitions_and_reservations_name_their_nodes(release: str) -> None:
    gpu, _ = (parse_partition(line) for line in text(release, "show_partition.txt").splitlines())
    assert (gpu.name, gpu.default, gpu.up, gpu.max_time) == ("gpu", True, True, None)
    assert "v100-3" in gpu.nodes
    reservations = {r.name: r for r in map(parse_reservation, text(release, "show_reservation.txt").splitlines())}
    assert reservations["maint"].nodes == {"v100-1", "v100-2"}
    assert reservations["synsched_1"].users == {"alice", "bob"}
    assert reservations["maint"].maintenance
    assert not reservations["synsched_1"].maintenance
    assert reservations["maint"].end - reservations["maint"].start == 4 * 3600


def test_the_configuration_tells_who_slurm_is(release: str) -> None:
    found = parse_configuration(text(release, "show_config.txt"))
    assert (found.cluster, found.slurm_user) == ("mini", "slurm")
    assert found.release.startswith(SERIES[release])


def test_layouts_read_at_once_are_those_of_single_jobs(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = seen(release)
    monkeypatch.setattr(job_details, "_MAX_SINGLE_QUERIES", 0)
    assert seen(release) == one_by_one


def test_text_that_poses_as_fields_and_as_a_record_stays_text(release: str) -> None:
    [job] = [one.job for one in seen(release).values() if one.job.name.startswith("posing")]
    assert (job.user, job.original_request.gpus, job.original_request.gpu_type, job.original_request.memory) == (
        "carol",
        1,
        "k80",
        21_333,
    )
    [share] = job.allocations
    assert (share.resources.gpus, share.resources.cpus, share.gpu_type) == (1, 1, "k80")
    assert share.node.startswith("k80-")
    assert job.comment.startswith("x\nJobId=1 JobName=x UserId=root(0)")
    assert seen(release)["1"].job.user == "alice"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("controller_down_show", UnreachableError),
        ("slurm_conf_missing", NoConfigurationError),
        ("operator_reconfigure", NotPermittedError),
        ("requeue_not_owner", NotPermittedError),
        ("no_munge", NotPermittedError),
        ("unknown_job_show", BackendError),
    ],
)
def test_errors_are_told_apart_by_what_to_do_about_them(release: str, name: str, kind: type[BackendError]) -> None:
    error = error_from_stderr("scontrol", text(release, f"errors/{name}.txt"))
    assert type(error) is kind
    assert "\n" not in str(error)


def test_shares_are_read_with_the_accounts_they_hang_under(release: str) -> None:
    found = parse_associations(text(release, "sshare.txt"))
    assert found[:4] == (
        Association("root", shares=None),
        Association("root", "root", "root", 1),
        Association("language", "", "root", 1),
        Association("language", "bob", "language", 1),
    )
    assert {one.account for one in found if not one.user} == {
        "root",
        "language",
        "service",
        "speech",
        "vision",
        "visitors",
    }
