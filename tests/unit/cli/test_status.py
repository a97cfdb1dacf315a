"""`synsched status` over a database, as people and scripts see it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import (
    Explanation,
    IdleGpus,
    JobState,
    NodeState,
    Reason,
    ReasonCode,
    SetAsideJob,
    Snapshot,
    encode,
)
from slurmsched.policies.gandiva_fair.accounts import GandivaFairState
from slurmsched.policies.state import Account, Trade, encode_state
from slurmsched.store.measurements import Measurements
from slurmsched.store.set_aside import SetAsideStore
from slurmsched.store.store import Switches
from tests.builders import job, node, share, snapshot
from tests.unit.cli.conftest import NOON, Site, StandingClock

BUSY = snapshot(
    [
        node("v100-1"),
        node("v100-2", state=NodeState.DRAINED, state_text="IDLE+DRAIN", reason="fan"),
        node("k80-1", 4, "k80"),
    ],
    [
        job(11, gpus=8, user="alice", on=[share("v100-1", 8, cpus=24, memory=512_000)]),
        job(12, gpus=2, user="bob", on=[share("k80-1", 2, cpus=20, gpu_type="k80")]),
        job(13, gpus=8, user="carol", cpus=24, hint="modle=x"),
    ],
    time=NOON - 30,
    cluster="demo",
)
WHY = {
    "11": Reason(ReasonCode.KEEPS_LEASE),
    "12": Reason(ReasonCode.FILLS_IN),
    "13": Reason(ReasonCode.BEHIND, {"count": 2, "order": "las", "last": "12"}),
}


@pytest.fixture
def busy(site: Site) -> Site:
    site.round(BUSY, why=WHY, order=["11", "12", "13"])
    site.beat()
    return site


def test_status_fits_eighty_columns(busy: Site) -> None:
    assert busy.lines("status") == [
        "synsched on demo: mode enforce, system synergy, order las",
        "last round 30 s ago",
        "round 1; 2 running, 1 waiting",
        "",
        "NODE   TYPE USED GPUS      CPUS        MEM STATE",
        "v100-1 v100  8/8 ████████ 24/24  500G/500G idle",
        "v100-2 v100  0/8 ········  0/24    0M/500G idle+drain: fan",
        "k80-1  k80   2/4 ██··     20/24 62.5G/500G idle",
        "",
        "JOBID USER  NAME   GPUS ST TIME LIMIT WHERE  WHY",
        "11    alice -    8 v100 R     -     - v100-1 keeps lease",
        "12    bob   -     2 k80 R     -     - k80-1  fills in",
        "13    carol -         8 PD    -     - -      ! behind",
        "PD waits, ! has a wrong hint, WHY in short, whole by 'synsched explain'",
        "",
        "1 problem",
        "  job 13: unknown hint 'modle': known are model, task, ckpt, duration, move,",
        "  pack, gpumem, mem, cpus, fork, idle, held, left",
    ]


def test_in_a_pipe_nothing_is_cut(busy: Site) -> None:
    lines = busy.lines("status", columns=1000)
    assert lines[-5].endswith(
        "! waits behind 2 jobs in las order on the nodes it could use; the last one of them is job 12"
    )


@pytest.mark.parametrize(
    ("options", "jobs"),
    [
        pytest.param([], ["11", "12", "13"], id="everybody"),
        pytest.param(["-u", "bob"], ["12"], id="one person"),
        pytest.param(["--user", "alice,carol"], ["11", "13"], id="several people"),
        pytest.param(["-p", "gpu"], ["11", "12", "13"], id="their partition"),
        pytest.param(["-p", "debug"], [], id="another partition"),
        pytest.param(["-t", "pd"], ["13"], id="those that wait"),
        pytest.param(["-t", "RUNNING,PENDING"], ["11", "12", "13"], id="two states"),
        pytest.param(["-t", "all"], ["11", "12", "13"], id="all states"),
        pytest.param(["-j", "12,13"], ["12", "13"], id="by number"),
        pytest.param(["-w", "v100-[1-2]"], ["11"], id="those on some nodes"),
        pytest.param(["-A", "physics"], [], id="an account"),
        pytest.param(["-n", "train"], [], id="a name"),
        pytest.param(["-M", "demo", "--limit", "2"], ["11", "12"], id="the first two of this cluster"),
        pytest.param(["--me"], [], id="one's own"),
        pytest.param(["-u", "bob", "-t", "PD"], [], id="all of what is asked"),
    ],
)
def test_without_headings_there_is_one_line_for_each_job_chosen(
    busy: Site, options: list[str], jobs: list[str]
) -> None:
    assert [line.split()[0] for line in busy.lines("status", "--noheader", *options) if line] == jobs


LATER = snapshot(
    [node("n1")],
    [
        replace(
            job("7_1", gpus=2, user="alice", on=[share("n1", 2)], time_limit=7200, start_time=NOON - 3725.0),
            name="a-long-name-of-a-job",
            account="physics",
        ),
        replace(job(8, gpus=1, user="alice"), name="evil\x1b[2J"),
    ],
    time=NOON - 30,
)


def test_time_limit_and_name_are_shown_and_choose(site: Site) -> None:
    site.round(LATER, why={"7_1": Reason(ReasonCode.KEEPS_LEASE)})
    site.beat()
    (row,) = site.lines("status", "--noheader", "-j", "7", "-A", "physics", "-n", "a-long-name-of-a-job", columns=200)
    assert row.split()[:3] == ["7_1", "alice", "a-long-name-of-a-job"]
    assert " R 1 h 2 min 2 h n1 " in row
    narrow = site.lines("status", "--noheader", "-j", "7", columns=60)
    assert " a-long-n " in narrow[0]


@pytest.mark.parametrize(
    ("template", "lines"),
    [
        pytest.param("%i %T %M %l %D %R", ["JOBID STATE TIME LIMIT NODES NODELIST(REASON)",
            "7_1 RUNNING 1 h 2 min 2 h 1 n1", "8 PENDING - - 0 ()"], id="squeue's letters"),
        pytest.param("%.6i|%6j|%u", [" JOBID|NAME  |USER", "   7_1|a-long|alice", "     8|evil?[|alice"], id="widths"),
        pytest.param("no letter", ["no letter"] * 3, id="plain text"),
    ],
)  # fmt: skip
def test_a_format_prints_as_squeue_does(site: Site, template: str, lines: list[str]) -> None:
    site.round(LATER)
    assert site.lines("status", "-o", template) == lines
    assert site.lines("status", "--noheader", "-o", template) == lines[1:]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        pytest.param(["-o", "%Z"], 1, "%Z is not known here: known are %i, %u", id="a letter of squeue that is not"),
        pytest.param(["-t", "XX"], 2, "no state 'XX': write PD, R, CG, S, PENDING", id="no state"),
        pytest.param(["-M", "other"], 2, "no cluster 'other' here: this is demo", id="another cluster"),
        pytest.param(["-w", "n[1"], 2, "brackets do not match", id="no node list"),
    ],
)
def test_what_cannot_be_chosen_is_told(busy: Site, options: list[str], code: int, said: str) -> None:
    result = busy.run("status", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert said in result.stderr


def test_a_limit_says_how_many_are_left_out(busy: Site) -> None:
    lines = busy.lines("status", "--limit", "1")
    assert "and 2 more jobs: --limit 0 shows all, -u, -t and others choose" in lines
    assert not any(line.startswith("12 ") for line in lines)


def test_a_pause_stands_in_front(busy: Site) -> None:
    database = busy.opened()
    Switches(database).pause("root", "upgrade", NOON - 300)
    database.close()
    lines = busy.lines("status", columns=120)
    assert lines[:2] == [
        "synsched on demo: mode enforce (paused), system synergy, order las",
        "paused by root 5 min ago (upgrade): 'synsched resume' goes on",
    ]
    assert sum("paused by root" in line for line in lines) == 1


def test_where_nothing_is_chosen_that_is_said_and_what_is_wrong_with_others_is_not(busy: Site) -> None:
    lines = busy.lines("status", "-u", "nosuch")
    assert lines[-1] == "no managed job is as chosen"
    assert not any("job 13" in line for line in lines)
    assert busy.json("status", "-u", "bob")["problems"] == []
    assert len(busy.json("status", "-u", "carol")["problems"]) == 1  # type: ignore[arg-type]  # JSON has no types


def test_a_node_that_is_reserved_is_told(site: Site) -> None:
    site.round(snapshot([replace(node("n1"), reservation="exam")], time=NOON))
    assert site.lines("status")[-1].endswith(" idle, reserved: exam")


def test_a_job_that_is_to_start_names_its_nodes(site: Site) -> None:
    site.round(snapshot([node("n1")], [job(5)], time=NOON), targets={"5": (share("n1"),)})
    assert "to n1" in "\n".join(site.lines("status"))


def test_jobs_that_ended_are_not_shown(site: Site) -> None:
    site.round(snapshot([node()], [job(1), job(2)], time=NOON - 600))
    site.round(snapshot([node()], [job(2)], time=NOON))
    assert [line.split()[0] for line in site.lines("status", "--noheader")] == ["2"]


@pytest.mark.parametrize(
    ("beat", "age", "said"),
    [
        pytest.param(1, 30, "last round 30 s ago", id="alive"),
        pytest.param(
            1,
            700,
            "rounds are late: one is due every 5 min, the last finished 11 min ago;",
            id="late",
        ),
        pytest.param(3600, 3600, "no daemon is running: no heartbeat for 1 h; 'synsched run' starts one", id="gone"),
        pytest.param(None, 3600, "no daemon is running: there is no heartbeat; 'synsched run'", id="no heartbeat"),
    ],
)
def test_the_header_tells_whether_somebody_schedules(site: Site, beat: int | None, age: int, said: str) -> None:
    site.round(snapshot([node()], time=NOON - age), age=age)
    if beat is not None:
        site.beat(beat)
    assert " ".join(site.lines("status")[1:3]).startswith(said)


def test_a_stopped_daemon_is_told_from_a_dead_one(site: Site) -> None:
    site.round(snapshot([node()], time=NOON))
    site.beat(120, "stopped")
    assert "no daemon is running: stopped 2 min ago" in "\n".join(site.lines("status"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("pause", "paused by root 5 min ago (upgrade): 'synsched resume' goes on", id="paused"),
        pytest.param("pause", "synsched: mode enforce (paused), system synergy", id="paused, in the first line"),
        pytest.param("disable", "exists: remove it to go on", id="disabled by the file"),
        pytest.param(
            "held", "1 job still held by synsched: 'synsched release' gives jobs back to Slurm", id="held by the dead"
        ),
        pytest.param("failed", "round 2 failed: slurmctld does not answer", id="the last round failed"),
    ],
)
def test_what_needs_somebody_is_a_problem_with_its_remedy(site: Site, what: str, said: str) -> None:
    site.round(snapshot([node()], [job(1)], time=NOON))
    if what != "held":
        site.beat()
    database = site.opened()
    match what:
        case "pause":
            Switches(database).pause("root", "upgrade", NOON - 300)
        case "disable":
            (site.folder / "disable").touch()
        case "held":
            database.write("UPDATE jobs SET held_by_us = 1")
        case "failed":
            site.round(Snapshot(NOON, (), ()), error="slurmctld does not answer")
    database.close()
    assert said in " ".join(" ".join(site.lines("status")).split())


def test_a_large_cluster_is_drawn_one_line_for_each_type(site: Site) -> None:
    many = [node(f"a{number}", busy=range(4)) for number in range(10)] + [node(f"b{n}", 4, "k80") for n in range(10)]
    site.round(snapshot(many, time=NOON))
    lines = site.lines("status")
    assert "v100    10 40/80 ████████████████████····················" in lines
    assert len([line for line in site.lines("status", "--nodes") if line.startswith(("a", "b"))]) == 20


def test_json_has_stable_keys(busy: Site) -> None:
    told = busy.json("status")
    assert list(told) == [
        "schema",
        "at",
        "surveyed",
        "cluster",
        "mode",
        "liveness",
        "paused",
        "round",
        "nodes",
        "running",
        "waiting",
        "jobs",
        "problems",
        "fragments",
        "set_aside",
        "forecast_at",
        "forecast_late",
        "idle",
    ]
    assert told["schema"] == 1
    jobs = told["jobs"]
    assert isinstance(jobs, list)
    assert jobs[1] == {
        "id": "12",
        "user": "bob",
        "name": "",
        "partition": "gpu",
        "state": "running",
        "gpus": 2,
        "gpu_type": "k80",
        "cpus": 20,
        "memory": 64_000,
        "nodes": ["k80-1"],
        "target": [],
        "speed": None,
        "rank": 2,
        "rank_key": "",
        "why": "runs on GPUs that jobs ahead of it cannot use",
        "held_by_us": False,
        "problems": [],
        "shards": 0,
        "start": None,
        "end": None,
        "account": "",
        "started": None,
        "time_limit": None,
        "reason": "fills in",
        "reason_code": "fills_in",
    }


def test_watching_shows_it_again_until_ctrl_c(busy: Site) -> None:
    result = busy.run("status", "--watch", "7")
    assert isinstance(busy.clock, StandingClock)
    assert (result.exit_code, busy.clock.naps) == (0, [7.0])
    assert result.stdout.startswith("synsched on demo")


def test_what_slurm_says_cannot_drive_the_terminal(site: Site) -> None:
    evil = node("n1", state=NodeState.DOWN, state_text="DOWN", reason="\x1b[2Jgone\n[bold]x[/bold]")
    site.round(snapshot([evil], [job(1, state=JobState.PENDING)], time=NOON))
    output = site.run("status").stdout
    assert "\x1b" not in output
    assert "down: ?[2Jgone?[bold]x[/bold]" in output


class TestShares:
    """`synsched status --shares`."""

    @pytest.fixture
    def shared(self, site: Site) -> Site:
        past = GandivaFairState(
            NOON - 120,
            accounts={
                "alice": Account(36_000, 34_200, {"v100": 0.5, "k80": 6.0}, {"v100": 1.2, "k80": 1.0}),
                "bob": Account(72_000, 72_000, {"v100": 1.5, "k80": 2.0}, {"v100": 6.0, "k80": 1.0}),
                "carol": Account(),
            },
            trades=(Trade("alice", "bob", "v100", "k80", 0.5, 2.0),),
        )
        site.opened().write(
            "INSERT INTO policy_state (system, state) VALUES (?, ?)", ("gandiva-fair", encode(encode_state(past)))
        )
        return site

    def test_they_are_shown_with_the_trades(self, shared: Site) -> None:
        assert shared.lines("status", "--shares") == [
            "shares as of 2 min ago, in GPU-hours of the slowest type",
            "USER   DUE  HAD  PART ENTITLED TO",
            "alice 10.0  9.5  95 % 6.00 k80, 0.50 v100",
            "bob   20.0 20.0 100 % 2.00 k80, 1.50 v100",
            "carol  0.0  0.0     - -",
            "",
            "1 trade",
            "  alice gives bob 0.50 v100 for 2.00 k80 each, 1.00 in all",
        ]

    def test_of_some_users_only(self, shared: Site) -> None:
        users = shared.json("status", "--shares", "-u", "bob")["users"]
        assert isinstance(users, list)
        assert [(one["user"], one["due"], one["speedups"]) for one in users] == [
            ("bob", 72_000, {"k80": 1.0, "v100": 6.0})
        ]

    def test_where_no_round_went_by_tickets_that_is_said(self, busy: Site) -> None:
        result = busy.run("status", "--shares")
        assert result.exit_code == 1
        assert 'no round has used tickets yet: set system = "gandiva-fair" under [policy]' in result.stderr

    @pytest.mark.parametrize("state", ["[]", "no JSON"])
    def test_what_somebody_else_wrote_there_is_no_traceback(self, site: Site, state: str) -> None:
        site.opened().write("INSERT INTO policy_state (system, state) VALUES (?, ?)", ("gandiva-fair", state))
        result = site.run("status", "--shares")
        assert result.exit_code == 1
        assert len(result.stderr.splitlines()) == 1


def set_aside(site: Site, count: int) -> None:
    database = site.opened()
    jobs = (str(number) for number in range(101, 101 + count))
    aside = (SetAsideJob(job, "its record cannot be read", "mallory" if job == "101" else "", "gpu") for job in jobs)
    SetAsideStore(database).replace(tuple(aside), NOON - 60, {})
    database.close()


def test_jobs_that_are_set_aside_are_named_with_their_reason(busy: Site) -> None:
    set_aside(busy, 1)
    assert "job 101 of mallory is set aside: its record cannot be read" in " ".join(busy.lines("status")[-3:])


def test_of_many_jobs_that_are_set_aside_the_first_are_named(busy: Site) -> None:
    set_aside(busy, 300)
    lines = [line for line in busy.lines("status", columns=120) if "set aside" in line]
    assert len(lines) == 6
    assert lines[-1].strip() == "295 more jobs set aside: 'synsched doctor' names them"


def test_explain_says_of_a_job_that_is_set_aside_why(busy: Site) -> None:
    set_aside(busy, 1)
    result = busy.run("explain", "101", columns=120)
    assert "job 101 of mallory is set aside: its record cannot be read" in result.output


def test_explain_says_so_too_of_a_job_that_was_managed_before(busy: Site) -> None:
    database = busy.opened()
    SetAsideStore(database).replace((SetAsideJob("13", "its record cannot be read", "carol"),), NOON - 60, {})
    database.close()
    assert busy.lines("explain", "13", columns=120)[0] == ("job 13 of carol is set aside: its record cannot be read")


def tell_idle(site: Site) -> None:
    """That job 11 of alice and an unmanaged one of bob have idle GPUs, and long ago that job 12 had."""
    database = site.opened()
    told = IdleGpus("11", "alice", 8, 2, NOON - 30 - 3 * 3600, NOON - 30, agreed=True)
    others = (
        IdleGpus("77", "bob", 4, 4, NOON - 30 - 3600, NOON - 30),
        IdleGpus("12", "bob", 2, 2, NOON - 90_000, NOON - 3700),
    )
    Measurements(database).record_idle((told, *others))
    database.close()


def test_running_jobs_with_idle_gpus_are_named_with_their_owners_those_that_waste_most_first(busy: Site) -> None:
    tell_idle(busy)
    lines = busy.lines("status")
    start = lines.index("running jobs with idle GPUs")
    assert lines[start : start + 4] == [
        "running jobs with idle GPUs",
        "JOBID USER    IDLE FOR GPU-HOURS COMES LAST",
        "11    alice 2 of 8 3 h       6.0 idle=last",
        "77    bob   4 of 4 1 h       4.0 -",
    ]
    assert [row["job"] for row in busy.json("status")["idle"]] == ["11", "77"]  # type: ignore[attr-defined]
    assert [row["job"] for row in busy.json("status", "-u", "bob")["idle"]] == ["77"]  # type: ignore[attr-defined]


def test_explain_says_that_gpus_of_a_job_are_idle(busy: Site) -> None:
    tell_idle(busy)
    database = busy.opened()
    for one in ("11", "12"):
        database.write("UPDATE jobs SET reason = ? WHERE id = ?", (encode(Explanation(one, f"job {one} runs")), one))
    database.close()
    (said,) = (line for line in busy.lines("explain", "11", columns=300) if line.startswith("idle "))
    assert said.split(None, 1)[1] == (
        "2 of 8 GPUs idle for 3 h, as told 30 s ago; idle=last in its hint lets the site rank it last"
    )
    assert not any(line.startswith("idle ") for line in busy.lines("explain", "12", columns=300)), "told long ago"


def test_advise_adds_up_what_idle_gpus_of_running_jobs_cost(busy: Site) -> None:
    tell_idle(busy)
    lines = busy.lines("advise")
    start = lines.index("running now with idle GPUs, 10.0 GPU-hours so far")
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["JOBID", "11", "77"]
    assert busy.lines("advise", "alice")[0] == "running now with idle GPUs, 6.0 GPU-hours so far"
    assert [row["job"] for row in busy.json("advise", "alice")["idle"]] == ["11"]  # type: ignore[attr-defined]
