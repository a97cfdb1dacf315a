"""Polls, rights, the boundary of commands, and the choice between commands and pyslurm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurmsched.backends.protocol import BackendError, Identity, Privilege, UnreachableError
from slurmsched.backends.slurm.backend import SlurmBackend, connect, parse_activity
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import CommandResult, Commands, command_environment
from slurmsched.backends.slurm.errors import NoSlurmError, PyslurmUnavailableError, UnsafeCommandError
from slurmsched.backends.slurm.sbatch_options import let_go_reason
from slurmsched.model import Association, Operation, Reason, ReasonCode, Snapshot, Verb
from slurmsched.settings.definition import ClusterSettings
from tests.unit.fake_slurm import FakeJob, FakeNode, FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
TWO_TASKS = {"NumTasks": "2", "NumCPUs": "2", "MinCPUsNode": "1"}
DURING_MAINTENANCE = 1_795_230_000.0


class Clock:
    """Seconds as they are set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def connected(slurm: FakeSlurm, clock: Clock | None = None, user: str = "synsched") -> SlurmBackend:
    return SlurmBackend(Commands(5, runner=slurm), CommandSource(), clock or Clock(), lambda: user)


def test_a_poll_is_one_query_for_all_jobs_and_one_for_all_nodes() -> None:
    slurm, clock = FakeSlurm([FakeJob(1), FakeJob(2)], [FakeNode("n1"), FakeNode("n2")]), Clock()
    backend = connected(slurm, clock)
    snapshot = backend.observe()
    assert ([job.id for job in snapshot.jobs], [node.name for node in snapshot.nodes]) == (["1", "2"], ["n1", "n2"])
    assert (snapshot.cluster, snapshot.release, snapshot.time) == ("mini", "24.11.5", 1000.0)
    slurm.asked.clear()
    clock.now += 10
    backend.observe()
    assert sorted(slurm.asked) == ["show node", "show reservation", "squeue"], "a reservation may be new in every round"
    assert (backend.calls.polls, backend.calls.reads, backend.calls.writes) == (2, 8, 0)


@pytest.mark.parametrize(
    ("asked", "fields", "several"),
    [
        pytest.param({"TresPerTask": "gres/shard:5"}, TWO_TASKS, True, id="of two tasks"),
        pytest.param({"TresPerTask": "cpu=1,gres/shard:v100:5"}, TWO_TASKS, True, id="of a type"),
        pytest.param({"TresPerTask": "gres/shard:5"}, {"NumTasks": "1"}, False, id="of one task"),
        pytest.param(
            {"TresPerTask": "gres/shard:5"},
            TWO_TASKS | {"NumNodes": "2-2"},
            False,
            id="of a task on each node",
        ),
        pytest.param({"TresPerNode": "gres/shard:5"}, TWO_TASKS, False, id="of the node"),
        pytest.param({"TresPerTask": "gres/gpu:1"}, TWO_TASKS, False, id="whole GPUs of tasks"),
    ],
)
@pytest.mark.parametrize("parameters", ["CR_Core_Memory", "CR_Core_Memory,MULTIPLE_SHARING_GRES_PJ"])
def test_shards_of_several_tasks_are_let_go_where_slurm_takes_them_from_several_gpus(
    asked: dict[str, str], fields: dict[str, str], several: bool, parameters: str
) -> None:
    slurm = FakeSlurm([FakeJob(7, asked=asked, fields=fields)], [FakeNode("n1")])
    slurm.select_parameters = parameters
    [read] = connected(slurm).observe().jobs
    let_go = several and "MULTIPLE_SHARING" in parameters
    assert read.unmanageable == (let_go_reason("--tres-per-task=shards") if let_go else "")


def test_what_seldom_changes_is_asked_for_again_after_a_while() -> None:
    slurm, clock = FakeSlurm(), Clock()
    backend = connected(slurm, clock)
    backend.observe()
    slurm.asked.clear()
    clock.now += 300
    backend.observe()
    assert sorted(slurm.asked) == ["show node", "show partition", "show reservation", "squeue"]
    clock.now += 4000
    backend.observe()
    assert "show config" in slurm.asked


@pytest.mark.parametrize(
    ("preempts_by", "table", "known"),
    [
        pytest.param("preempt/qos", "normal||cluster\nurgent|normal|cluster\n", frozenset({"urgent"}), id="by QOS"),
        pytest.param("preempt/qos", "", None, id="by QOS, and slurmdbd does not answer"),
        pytest.param("preempt/partition_prio", "", frozenset(), id="by partition"),
        pytest.param("preempt/none", "", frozenset(), id="not at all"),
    ],
)
def test_which_qos_preempt_is_asked_where_slurm_preempts_by_qos(
    preempts_by: str, table: str, known: frozenset[str] | None
) -> None:
    slurm = FakeSlurm()
    slurm.preempts_by, slurm.preempting = preempts_by, table
    assert connected(slurm).observe().preempting_qos == known
    assert ("show qos" in slurm.asked) is (preempts_by == "preempt/qos")


def test_which_qos_preempt_is_remembered_while_slurmdbd_does_not_answer() -> None:
    slurm, clock = FakeSlurm(), Clock()
    slurm.preempts_by = "preempt/qos"
    backend = connected(slurm, clock)
    backend.observe()
    slurm.preempting = ""
    clock.now += 61
    assert backend.observe().preempting_qos == {"urgent"}


@pytest.mark.parametrize("release", [path.parent.name for path in sorted(RECORDED.glob("*/sdiag.txt"))])
def test_activity_is_what_slurmctld_counted_of_changes_and_not_of_questions(release: str) -> None:
    told = (RECORDED / release / "sdiag.txt").read_text()
    seen = parse_activity(told)
    assert {"Jobs submitted", "REQUEST_UPDATE_JOB", "MESSAGE_NODE_REGISTRATION_STATUS"} <= {
        counter.partition(" (")[0].partition(":")[0].strip() for counter in seen.split("; ")
    }
    assert "INFO" not in seen
    asked = re.sub(r"(REQUEST_JOB_INFO +\( *\d+\) +count:)\d+", r"\g<1>999999", told)
    assert asked != told
    assert parse_activity(asked) == seen
    assert parse_activity(re.sub(r"(REQUEST_UPDATE_JOB +\( *\d+\) +count:)\d+", r"\g<1>999999", told)) != seen


def test_activity_is_unknown_where_nobody_answers() -> None:
    slurm = FakeSlurm()
    slurm.down = True
    assert connected(slurm).activity() == ""


def test_the_request_of_a_job_is_what_stands() -> None:
    job = connected(FakeSlurm([FakeJob(1)])).observe().jobs_by_id["1"]
    assert job.original_request == job.current_request


def test_partitions_carry_the_sites_promise_of_a_run_time() -> None:
    assert connected(FakeSlurm()).observe().partitions_by_name["gpu"].preempt_exempt_time == 300


def test_what_is_private_is_read_with_those_who_see_it_all_the_same() -> None:
    slurm = FakeSlurm()
    slurm.private = "jobs,usage,users"
    slurm.levels = {"synsched": "Operator", "root": "Administrator", "bob": "None"}
    seen = connected(slurm).observe()
    assert seen.private_data == {"jobs", "usage", "users"}
    assert seen.operators == {"synsched", "root", "slurm"}


def test_where_nothing_is_private_nobody_is_asked_for() -> None:
    slurm = FakeSlurm()
    seen = connected(slurm).observe()
    assert (seen.private_data, seen.operators) == (frozenset(), frozenset())


def test_a_reserved_node_says_so_also_where_slurm_does_not() -> None:
    slurm = FakeSlurm(nodes=[FakeNode("n1"), FakeNode("n2")])
    now, earlier = connected(slurm, Clock(DURING_MAINTENANCE)).observe(), connected(slurm).observe()
    assert [now.nodes_by_name[name].reservation for name in ("n1", "n2")] == ["", "maint"]
    assert earlier.nodes_by_name["n2"].reservation == ""


def test_a_poll_that_is_not_answered_says_what_to_look_at() -> None:
    slurm = FakeSlurm()
    slurm.down = True
    with pytest.raises(UnreachableError, match="slurmctld does not answer: see 'scontrol ping'"):
        connected(slurm).observe()


@pytest.mark.parametrize(
    ("user", "privilege"),
    [
        ("root", Privilege.SLURM_USER),
        ("slurm", Privilege.SLURM_USER),
        ("synsched", Privilege.OPERATOR),
        ("admin", Privilege.ADMINISTRATOR),
        ("alice", Privilege.NONE),
        pytest.param("nobody", Privilege.NONE, id="a user that accounting does not know"),
    ],
)
def test_rights_follow_from_slurms_user_and_accounting(user: str, privilege: Privilege) -> None:
    slurm = FakeSlurm()
    slurm.levels |= {"admin": "Administrator", "alice": "None"}
    assert connected(slurm, user=user).identity() == Identity(user, privilege)


def test_rights_that_accounting_does_not_tell_are_unknown_and_asked_for_again_a_while_later() -> None:
    slurm, clock = FakeSlurm(), Clock()
    slurm.accounting_down = True
    backend = connected(slurm, clock)
    assert backend.identity().unread
    assert not backend.identity().may_schedule
    slurm.accounting_down = False
    asked = []
    for clock.now in (1059.0, 1061.0, 1062.0, 4000.0):
        slurm.asked.clear()
        asked.append((backend.identity().may_schedule, slurm.asked.count("sacctmgr user")))
    assert asked == [(False, 0), (True, 1), (True, 0), (True, 0)]


def test_a_slow_accounting_is_asked_for_rights_the_less_often() -> None:
    slurm, clock = FakeSlurm(), Clock()
    slurm.accounting_down = True
    backend = connected(slurm, clock)

    def slow(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
        clock.now += 10.0 * (argv[0] == "sacctmgr")
        return slurm(argv, given, timeout, env)

    backend._commands._runner = slow
    asked_at = []
    while clock.now < 2000.0:
        before = slurm.asked.count("sacctmgr user")
        backend.identity()
        asked_at += [clock.now] * (slurm.asked.count("sacctmgr user") - before)
        clock.now += 5.0
    assert asked_at == [1010.0, 1280.0, 1550.0, 1820.0]


def test_rights_that_were_known_stay_while_nobody_answers_and_new_ones_are_noticed() -> None:
    slurm, clock = FakeSlurm(), Clock()
    slurm.levels = {"synsched": "None"}
    backend = connected(slurm, clock)
    assert backend.identity() == Identity("synsched", Privilege.NONE)
    slurm.levels, clock.now = {"synsched": "Operator"}, 1061.0
    assert backend.identity() == Identity("synsched", Privilege.OPERATOR)
    slurm.accounting_down, clock.now = True, 6000.0
    assert backend.identity() == Identity("synsched", Privilege.OPERATOR)


def test_the_commands_of_an_operation_are_shown_as_a_person_would_type_them() -> None:
    backend = connected(FakeSlurm())
    note = Operation(Verb.NOTE, "7", Reason(ReasonCode.START), "", "synsched: two words")
    assert backend.commands(note) == ("scontrol update JobId=7 'AdminComment=synsched: two words'",)
    assert backend.commands(Operation(Verb.HOLD, "7", Reason(ReasonCode.START))) == ("scontrol hold 7",)
    assert backend.commands(Operation(Verb.HOLD, "7; x", Reason(ReasonCode.START))) == ()


class TestAssociations:
    """The shares of users, where somebody wants them."""

    @staticmethod
    def read(slurm: FakeSlurm, wanted: bool = True) -> Snapshot:
        return SlurmBackend(Commands(5, runner=slurm), CommandSource(), Clock(), associations=wanted).observe()

    def test_they_are_read_where_the_settings_ask_for_them(self) -> None:
        assert self.read(FakeSlurm()).associations == (
            Association("root", shares=None),
            Association("vision", "", "root", 3),
            Association("vision", "alice", "vision", None),
        )
        assert self.read(FakeSlurm(), wanted=False).associations == ()

    @pytest.mark.parametrize(
        ("said", "oddity"),
        [
            pytest.param("", "the shares of users are left out: sshare failed", id="no accounting"),
            pytest.param("Nothing|here", "sshare prints no columns Account, User, RawShares", id="other columns"),
            pytest.param("Account|User|RawShares\nx", "not a line of sshare: 'x'", id="half a line"),
            pytest.param("Account|User|RawShares\nx||many", "not a number: 'many'", id="no number"),
        ],
    )
    def test_without_them_rounds_go_on(self, said: str, oddity: str) -> None:
        slurm = FakeSlurm()
        slurm.shares = said
        seen = self.read(slurm)
        assert seen.associations == ()
        assert any(oddity in one for one in seen.oddities)


class TestCommands:
    """The boundary itself."""

    @pytest.mark.parametrize(
        "argv",
        [
            ("scontrol", "hold", "1"),
            ("scontrol", "update", "JobId=1", "Nice=1"),
            ("scontrol", "shutdown"),
            ("scontrol", "-o", "update", "x"),
            ("sbatch", "x"),
            ("sh", "-c", "scontrol show job"),
            ("sacctmgr", "-i", "delete", "user", "alice"),
        ],
    )
    def test_nothing_that_changes_anything_passes_for_reading(self, argv: tuple[str, ...]) -> None:
        with pytest.raises(UnsafeCommandError):
            Commands(5, runner=FakeSlurm()).read(*argv)

    @pytest.mark.parametrize(
        "argv",
        [
            ("scontrol", "shutdown"),
            ("scontrol", "requeuehold", "7"),
            ("scontrol", "delete", "ReservationName=x"),
            ("scancel", "7"),
            ("scancel", "--ctld", "--signal=KILL", "--full", "7"),
            ("scontrol", "update", "JobId=7", "AdminComment=a\nb"),
        ],
    )
    def test_only_known_changes_pass(self, argv: tuple[str, ...]) -> None:
        with pytest.raises(UnsafeCommandError):
            Commands(5, runner=FakeSlurm()).change(*argv)

    @pytest.mark.parametrize(
        "line", ["shutdown", "hold 1\nshutdown", "update JobId=1 Comment='x'", "!sh", "hold 1 # x", ""]
    )
    def test_only_known_lines_are_fed_to_scontrol(self, line: str) -> None:
        slurm = FakeSlurm([FakeJob(1)])
        with pytest.raises(UnsafeCommandError):
            Commands(5, runner=slurm).change_many(["hold 1", line])
        assert slurm.ran == []

    def test_commands_run_in_utc_with_plain_messages_and_whole_lists(self) -> None:
        env = command_environment(
            "/x/slurm.conf", {"PATH": "/bin", "SLURM_TIME_FORMAT": "relative", "LC_ALL": "de_DE", "TZ": "CET"}
        )
        assert env == {
            "PATH": "/bin",
            "LC_ALL": "C",
            "TZ": "UTC0",
            "SLURM_BITSTR_LEN": "0",
            "SLURM_CONF": "/x/slurm.conf",
        }

    def test_without_slurm_that_is_said(self) -> None:
        def missing(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
            raise FileNotFoundError

        with pytest.raises(NoSlurmError, match="no scontrol on PATH"):
            Commands(5, runner=missing).read("scontrol", "show", "config")

    def test_a_slow_controller_is_not_waited_for(self) -> None:
        def slow(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
            raise TimeoutError

        with pytest.raises(UnreachableError, match="did not answer scontrol within 5 s"):
            Commands(5, runner=slow).read("scontrol", "show", "config")

    def test_a_signal_that_scancel_would_send_again_is_sent_once_and_no_error(self) -> None:
        waited = list[float]()

        def again(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
            waited.append(timeout)
            raise TimeoutError

        signal = ("scancel", "--ctld", "--signal=USR1", "--full", "7_1")
        assert Commands(30, runner=again).change(*signal) == CommandResult(0, "", "")
        assert waited == [4.0], "scancel tries again after 5 s"

    def test_slurms_chatter_does_not_hide_its_reason(self) -> None:
        def chatty(argv: Sequence[str], given: str, timeout: float, env: Mapping[str, str]) -> CommandResult:
            return CommandResult(
                1, "", "It is so\nscontrol: select/linear: init: Linear node selection plugin loaded\n"
            )

        with pytest.raises(BackendError, match="scontrol failed: It is so"):
            Commands(5, runner=chatty).read("scontrol", "show", "config")


class TestConnecting:
    """Which way is taken."""

    def test_commands_are_taken_without_asking_anything(self) -> None:
        assert connect(ClusterSettings(backend="commands")).name == "slurm (commands)"

    @pytest.mark.parametrize(
        ("backend", "name"),
        [("auto", "slurm (pyslurm)"), ("pyslurm", "slurm (pyslurm)"), ("commands", "slurm (commands)")],
    )
    def test_where_pyslurm_is_installed_it_is_taken_unless_commands_are_wanted(
        self, monkeypatch: pytest.MonkeyPatch, backend: str, name: str
    ) -> None:
        monkeypatch.setattr("slurmsched.backends.slurm.backend.find_spec", lambda _: object())
        assert connect(ClusterSettings(backend=backend)).name == name

    def test_without_pyslurm_auto_means_commands(self) -> None:
        assert connect(ClusterSettings()).name == "slurm (commands)"

    def test_pyslurm_that_is_demanded_and_missing_is_an_error_that_says_what_to_do(self) -> None:
        with pytest.raises(PyslurmUnavailableError, match="pyslurm is not installed: set backend = 'commands'"):
            connect(ClusterSettings(backend="pyslurm"))
