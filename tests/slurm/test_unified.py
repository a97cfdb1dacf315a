"""`unified` on real daemons: three users, two GPU types, parts of GPUs and a gang, and a model that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x4/12c/100g,k80:1x4/12c/100g")
SITE: Final = {
    **SETTINGS,
    "policy": {"system": "unified", "profiles": "/etc/synsched/rates.toml"},
    "guards": {"min_run_time": 0, "restart_cost": 1, "moves_per_round": 8},
}
RATES: Final = """
source = "made up for this test"
reference = "v100"

[models.steep.gpu.v100]
gpus = [1, 4]
rate = [1.0, 4.0]

[models.steep.gpu.k80]
gpus = [1, 4]
rate = [0.1, 0.4]

[models.flat.gpu.v100]
gpus = [1, 4]
rate = [1.0, 4.0]

[models.flat.gpu.k80]
gpus = [1, 4]
rate = [0.9, 3.6]

[models.hungry]
cpus = [1, 3, 6, 12]
speed = [0.3, 1.0, 1.8, 2.8]

[models.hungry.gpu.v100]
gpus = [1]
rate = [1.0]

[models.hungry.gpu.k80]
gpus = [1]
rate = [0.8]
"""


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.write("/etc/synsched/rates.toml", RATES)
    mini.configure(**SITE)
    mini.round()
    return mini


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    yield
    site.clear("alice", "bob", "carol")


def submit(site: Mini, user: str, of: str, *options: str, model: str = "flat") -> str:
    asked = options or ("--gres=gpu:4",)
    return site.train(user, *asked, "-c", "2", "--mem=1000", hint=f"model={model},duration={of},ckpt=usr1@1")


def runs_on(site: Mini, *jobs: str) -> list[str]:
    """The node of each of these jobs; where it does not run, its state."""
    seen = site.jobs()
    return [seen[job]["NodeList"] if seen[job]["JobState"] == "RUNNING" else seen[job]["JobState"] for job in jobs]


def test_the_fast_type_goes_to_whom_it_helps_and_parts_and_whole_gpus_run_beside_each_other(site: Mini) -> None:
    flat = submit(site, "alice", "5h", "--gres=gpu:3")
    steep = submit(site, "bob", "5h", "--gres=gpu:3", model="steep")
    part = submit(site, "carol", "5h", "--gres=shard:1")
    site.round()
    assert runs_on(site, flat, steep) == ["k80-1", "v100-1"]
    assert runs_on(site, part)[0] in {"k80-1", "v100-1"}
    shown = site.synsched("status", "--shares")
    assert shown.code == 0, shown.err
    assert {"alice", "bob"} <= set(shown.out.split())


def test_a_short_job_starts_at_once_and_long_ones_are_told_their_start_or_the_price(site: Mini) -> None:
    there = [submit(site, "alice", "20h"), submit(site, "alice", "30h")]
    site.round()
    assert sorted(runs_on(site, *there)) == ["k80-1", "v100-1"]
    long, short = [submit(site, "bob", of) for of in ("90h", "95h")], submit(site, "carol", "10m")

    site.round()
    site.until("the short job runs", lambda: site.state(short) == "RUNNING")

    assert "PENDING" in runs_on(site, *there), "one of them gave way"
    assert runs_on(site, *long) == ["PENDING", "PENDING"]
    told = [site.explained(job) for job in long]
    assert any("will start at" in text for text in told)
    assert any("it bids" in text and "it would be next" in text for text in told)


def test_the_longest_of_a_batch_starts_at_once_where_it_would_end_last(site: Mini) -> None:
    shorter = [submit(site, "alice", "2h", "--gres=gpu:1") for _ in range(12)]
    longest = submit(site, "alice", "12h", "--gres=gpu:1")
    site.round()

    site.until("the longest runs", lambda: site.state(longest) == "RUNNING")
    assert "counts more, as it would end last" in site.explained(longest)
    assert sorted(runs_on(site, *shorter)).count("PENDING") == 5
    assert not any("would end last" in site.explained(job) for job in shorter[:2])


def test_a_job_starts_and_moves_to_where_its_gpu_and_the_cpus_beside_it_make_it_fastest(site: Mini) -> None:
    """Of twelve CPUs on each node others ask for nine, beside which three GPUs stay idle."""
    there = [site.train("bob", f"--gres=gpu:{kind}:1", "-c", "9", "--mem=1000") for kind in ("v100", "k80")]
    site.round()
    assert runs_on(site, *there) == ["v100-1", "k80-1"]
    hungry = site.train("alice", "--gres=gpu:1", "-c", "3", "--mem=1000", hint="model=hungry,duration=9h,ckpt=usr1@1")
    site.round()
    assert (runs_on(site, hungry), site.jobs()[hungry]["NumCPUs"]) == (["v100-1"], "3"), "the faster type, as CPUs are"

    site.sure("scancel", there[1])
    site.until("the CPUs beside the slower one are idle", lambda: there[1] not in site.queue())

    def moved() -> bool:
        site.round()
        return runs_on(site, hungry) == ["k80-1"]

    site.until("it moved there", moved)
    assert site.jobs()[hungry]["NumCPUs"] == "12"

    another = site.train("carol", "--gres=gpu:1", "-c", "3", "--mem=1000", hint="model=hungry,duration=5h,ckpt=usr1@1")
    site.sure("scancel", hungry)
    site.until("it has left", lambda: hungry not in site.queue())
    site.round()
    site.until("the other one runs", lambda: site.state(another) == "RUNNING")
    assert (runs_on(site, another), site.jobs()[another]["NumCPUs"]) == (["k80-1"], "12")
    assert "times as fast" in site.explained(another)


def test_a_gang_over_both_nodes_has_its_turn_and_those_in_its_way_come_back(site: Mini) -> None:
    there = [submit(site, "alice", "20h"), submit(site, "bob", "30h")]
    site.round()
    gang = submit(site, "carol", "10m", "--gres=gpu:4", "--nodes=2")

    for _ in range(2):  # where the gang's nodes become free one after the other, it is promised its start
        site.round()
    site.until("the gang runs", lambda: site.state(gang) == "RUNNING")
    assert runs_on(site, *there) == ["PENDING", "PENDING"]

    site.sure("scancel", gang)
    site.until("the gang has left", lambda: gang not in site.queue())
    for _ in range(2):
        site.round()
    site.until("who gave way runs again", lambda: "PENDING" not in runs_on(site, *there))


@pytest.mark.parametrize("asked", ["--gres=gpu:4", "--gres=shard:4"])
def test_a_job_of_an_unknown_model_leaves_the_slow_gpus_once_fast_ones_are_idle(site: Mini, asked: str) -> None:
    site.configure(**{**SITE, "policy": {**SITE["policy"], "parts": True}})
    taken = submit(site, "bob", "5h", "--gres=gpu:v100:4", model="steep")
    site.round()
    unknown = submit(site, "alice", "50h", asked, model="nobody-knows-it")
    site.round()
    assert runs_on(site, taken, unknown) == ["v100-1", "k80-1"]

    site.sure("scancel", taken)
    site.until("the fast GPUs are idle", lambda: taken not in site.queue())
    site.round()
    assert runs_on(site, unknown) == ["k80-1"], "it has hardly begun"

    def moved() -> bool:
        site.round()
        return runs_on(site, unknown) == ["v100-1"]

    site.until("it is tried on the fast GPUs", moved, seconds=180)
    site.configure(**SITE)


def test_a_short_job_with_a_part_of_a_gpu_takes_that_of_a_long_one_which_comes_back(site: Mini) -> None:
    """Of all GPUs one is left, which the long job has."""
    site.configure(**{**SITE, "policy": {**SITE["policy"], "parts": True}})
    whole = [submit(site, "alice", "20h", f"--gres=gpu:{gpus}") for gpus in ("k80:4", "v100:3")]
    long = submit(site, "bob", "20h", "--gres=shard:10")

    def all_run() -> bool:
        """Slurm may start the part on the other node before a round has seen it: the next one moves it."""
        site.round()
        return runs_on(site, *whole, long) == ["k80-1", "v100-1", "v100-1"]

    site.until("all run", all_run)
    other, short = submit(site, "bob", "19h", "--gres=shard:10"), submit(site, "carol", "10m", "--gres=shard:6")

    for _ in range(2):  # the first asks the long job for a checkpoint
        site.round()
    site.until("the short one runs", lambda: site.state(short) == "RUNNING")
    assert runs_on(site, *whole, long, other) == ["k80-1", "v100-1", "PENDING", "PENDING"]
    assert "to go" in site.explained(long)

    site.sure("scancel", short)
    site.until("the short one has left", lambda: short not in site.queue())
    for _ in range(2):
        site.round()
    site.until("one of the long ones runs", lambda: "v100-1" in runs_on(site, long, other))
    site.configure(**SITE)
