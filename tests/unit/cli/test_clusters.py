"""Several clusters of one site: one daemon each, one view, told from the files that each of them writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.model import NodeAllocation, Resources
from slurmsched.model.encoding import encode
from slurmsched.policies.gandiva_fair.accounts import GandivaFairState
from slurmsched.policies.state import Account, encode_state
from tests.builders import job, node, share, snapshot
from tests.unit.cli.conftest import NOON, Site, json_validator


def cluster(folder: Path, name: str, *, alice: int, waiting: int = 0, extra: str = "") -> Site:
    """A site's cluster on which alice has so many GPUs of 8, and so many jobs wait."""
    folder.mkdir(exist_ok=True)
    one = Site(folder)
    one.configure(extra)
    one.beat()
    jobs = [job(1, gpus=alice, user="alice", on=[share("n1", alice)])] if alice else []
    jobs += [job(number, gpus=4, user="bob") for number in range(10, 10 + waiting)]
    one.round(snapshot([node("n1")], jobs, NOON - 30, cluster=name))
    return one


@pytest.fixture
def east(tmp_path: Path) -> Site:
    """The cluster where people look; the other one is named in its settings."""
    west = cluster(tmp_path / "west", "west", alice=6, waiting=2)
    return cluster(tmp_path / "east", "east", alice=2, extra=f'[cluster]\nothers = ["{west.config}"]\n')


def test_all_clusters_are_one_view(east: Site) -> None:
    assert east.lines("status", "-M", "all") == [
        "CLUSTER MODE    GPUS RUNNING WAITING ROUND    STATE",
        "east    enforce  2/8       1       0 30 s ago well",
        "west    enforce  6/8       1       2 30 s ago well",
        "",
        "USER  GPUS RUNNING WAITING WHERE",
        "alice    8       2       0 east 2, west 6",
        "bob      0       0       2 -",
        "",
        "CLUSTER: east",
        *jobs_of(east, "east"),
        "",
        "CLUSTER: west",
        *jobs_of(east, "west"),
    ]


def jobs_of(site: Site, name: str) -> list[str]:
    """The table of jobs that the status of this cluster alone has."""
    lines = site.lines("status", "-M", name)
    first = next(number for number, line in enumerate(lines) if line.startswith("JOBID"))
    return lines[first:]


def test_one_of_them_is_shown_as_on_its_own_host(east: Site) -> None:
    west = Site(east.folder.parent / "west")
    assert east.lines("status", "-M", "west") == west.lines("status")
    assert east.lines("status", "-M", "east") == east.lines("status")


def test_only_the_jobs_stand_below_the_names_of_clusters_as_with_squeue(east: Site) -> None:
    assert east.lines("status", "-M", "east,west", "-o", "%i %u") == [
        *("CLUSTER: east", "JOBID USER", "1 alice", "CLUSTER: west", "JOBID USER", "1 alice", "10 bob", "11 bob"),
    ]
    assert east.lines("status", "-M", "all", "-o", "%i", "--noheader", "-u", "bob") == ["10", "11"]


def test_json_has_every_cluster_and_the_sums_of_users(east: Site) -> None:
    told = east.json("status", "-M", "all")
    json_validator("status").validate(told)
    assert [one["cluster"] for one in told["clusters"]] == ["east", "west"]
    assert told["users"][0] == {
        "user": "alice", "gpus": 8, "running": 2, "waiting": 0, "by_cluster": {"east": 2, "west": 6},
    }  # fmt: skip


def test_a_cluster_that_cannot_be_read_hides_no_other(east: Site) -> None:
    west = Site(east.folder.parent / "west")
    west.database.write_bytes(b"not a database")
    lines = east.lines("status", "-M", "all")
    assert lines[1].startswith("east ")
    assert f"{west.config}: " in "".join(lines)
    told = east.json("status", "-M", "all")
    assert [one["file"] for one in told["unread"]] == [str(west.config)]


def test_one_whose_daemon_is_gone_says_so(east: Site) -> None:
    west = Site(east.folder.parent / "west")
    west.beat(age=4000.0)
    assert any("no daemon is running" in line for line in east.lines("status", "-M", "all"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(["-M", "north"], "no cluster 'north' here: known are east, west", id="an unknown name"),
        pytest.param(["-M", "north", "--shares"], "no cluster 'north' here: known are east, west", id="shares of it"),
    ],
)
def test_what_cannot_be_shown_is_told(east: Site, options: list[str], said: str) -> None:
    result = east.run("status", *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_list_that_all_clusters_share_names_each_of_them_once(tmp_path: Path) -> None:
    west = cluster(tmp_path / "west", "west", alice=6)
    shared = f'[cluster]\nothers = ["{west.config}", "{tmp_path / "east" / "synsched.toml"}"]\n'
    east = cluster(tmp_path / "east", "east", alice=2, extra=shared)
    assert [one["cluster"] for one in east.json("status", "-M", "all")["clusters"]] == ["east", "west"]


def test_jobs_on_several_nodes_count_once(tmp_path: Path) -> None:
    spread = [NodeAllocation(name, Resources(4, 12, 1000), "v100", (0, 1, 2, 3)) for name in ("n1", "n2")]
    west = cluster(tmp_path / "west", "west", alice=0)
    west.round(snapshot([node("n1"), node("n2")], [job(1, gpus=8, on=spread)], NOON - 10, cluster="west"))
    east = cluster(tmp_path / "east", "east", alice=2, extra=f'[cluster]\nothers = ["{west.config}"]\n')
    assert east.json("status", "-M", "all")["users"][0]["by_cluster"] == {"east": 2, "west": 8}


class TestShares:
    """`synsched status -M all --shares`: the tickets of every cluster, and what slurmdbd has of all of them."""

    USED = "east|alice|ml|72000\nnorth|dora|hep|36000\nwest|alice|ml|18000\nwest|alice|nlp|18000\nwest|bob|nlp|0\n"

    @pytest.fixture
    def shared(self, east: Site) -> Site:
        past = GandivaFairState(NOON - 120, accounts={"alice": Account(1, 1, {"v100": 2.0, "k80": 1.0}, {"v100": 1.0})})
        state = encode(encode_state(past))
        east.opened().write("INSERT INTO policy_state (system, state) VALUES (?, ?)", ("gandiva-fair", state))
        return east

    def slurmdbd(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> Path:
        """An sreport on PATH that does this; what it was asked is in the file."""
        asked = tmp_path / "asked"
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "sreport").write_text(f'#!/bin/sh\necho "$@" >{asked}\n{answer}\n')
        (tmp_path / "bin" / "sreport").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        return asked

    def test_over_all_clusters(self, shared: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = self.slurmdbd(tmp_path, monkeypatch, f"cat <<'END'\n{self.USED}END")
        assert shared.lines("status", "-M", "all", "--shares") == [
            "GPUs by tickets now, and GPU-hours of 7 d to the last full hour by slurmdbd",
            "USER  CLUSTER ENTITLED GPU-HOURS  PART",
            "alice all          3.0      30.0  75 %",
            "      east         3.0      20.0 100 %",
            "      west           -      10.0 100 %",
            "dora  all            -      10.0  25 %",
            "      north          -      10.0 100 %",
            "bob   all            -       0.0   0 %",
            "west: no round has used tickets",
        ]
        words = asked.read_text().split()
        assert words[:9] == ["-a", "-n", "-P", "-t", "Seconds", "-T", "gres/gpu", "cluster", "UserUtilizationByAccount"]

    def test_over_some_clusters_and_users(self, shared: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slurmdbd(tmp_path, monkeypatch, f"cat <<'END'\n{self.USED}END")
        told = shared.json("status", "-M", "east,west", "--shares")
        json_validator("status").validate(told)
        used = {one["user"]: one["used"] for one in told["users"]}
        assert used == {"alice": {"east": 72_000.0, "west": 36_000.0}, "bob": {"west": 0.0}}
        only = shared.json("status", "-M", "all", "--shares", "-u", "dora")["users"]
        assert [one["user"] for one in only] == ["dora"]

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            pytest.param("echo 'sreport: error: no slurmdbd' >&2; exit 1", "no slurmdbd", id="slurmdbd is away"),
            pytest.param("echo nonsense", "not a line of sreport: 'nonsense'", id="another format"),
            pytest.param("echo 'east|alice|ml|many'", "many", id="no number"),
        ],
    )
    def test_without_usage_the_tickets_are_shown_and_why(
        self, shared: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, said: str
    ) -> None:
        self.slurmdbd(tmp_path, monkeypatch, answer)
        lines = shared.lines("status", "-M", "all", "--shares")
        assert [line.split() for line in lines[2:4]] == [["alice", "all", "3.0", "-", "-"], ["east", "3.0", "-", "-"]]
        assert said in "".join(lines)
        assert any(line.startswith("usage is unknown: ") for line in lines)
