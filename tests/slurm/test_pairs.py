"""Pairs on real GPUs cut into shards: who shares, who does not, what is told, and a round that moves nobody."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from slurmsched.experiments.tesserae.round import TesseraeProblem, TesseraeVariant, allocate_in_order, plan_round
from slurmsched.policies.tesserae.migration import PlacementPlan
from tests.slurm.conftest import RELEASES, SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:3x2/8c/64g")
NARROW = ("bookworm",)
"""Here an update gives no job all shards of its GPU."""
widening = pytest.mark.parametrize("mini", sorted({*RELEASES} - {*NARROW}), indirect=True, scope="module")
not_widening = pytest.mark.parametrize("mini", NARROW, indirect=True, scope="module")
once_is_enough = pytest.mark.parametrize("mini", RELEASES[:1], indirect=True, scope="module")
NODES = ("v100-1", "v100-2", "v100-3")
BETWEEN = "/srv/between"
"""On the login host: a `scontrol` that lets somebody in before the first change of a round."""
PROFILES = """\
[models.reader.gpu.v100]
rate = [1]
beside = { writer = 0.8, reader = 0.4 }

[models.writer.gpu.v100]
rate = [1]
beside = { reader = 0.7 }
"""
"""Together a reader and a writer do 1.5 times the work of one, two readers less than one."""
MEASURED_PROFILES = """\
[models.reader]
measured = 1790000000
[models.reader.gpu.v100]
rate = [50]
beside = { writer = 0.8, scanner = 0.6 }

[models.writer]
measured = 1790000000
[models.writer.gpu.v100]
rate = [50]
beside = { reader = 0.7 }

[models.scanner]
measured = 1790000000
[models.scanner.gpu.v100]
rate = [50]
beside = { reader = 0.6 }
"""
"""By these a reader is paired with a writer rather than with a scanner."""
SIMILAR_PROFILES = "".join(
    f"[models.{model}]\nmeasured = 1790000000\n[models.{model}.gpu.v100]\nrate = [50]\nbeside = {beside}\n\n"
    for model, beside in {
        "reader": "{ reader = 0.8, scanner = 0.8 }",
        "writer": "{ writer = 0.8, scanner = 0.8, reader = 0.8 }",
        "scanner": "{ reader = 0.8, writer = 0.8, scanner = 0.8 }",
    }.items()
)
"""What a reader keeps beside a writer is not known; all else lets expect much."""
SPOOL = "/var/lib/synsched/spool"
STEPS = """\
#!/usr/bin/python3
# 50 steps a second; of a reader and a writer on one node both do a fifth of that.
import sys, time
from pathlib import Path
from slurmsched.jobside import Training

model, there = sys.argv[1], Path("/tmp/models")
there.mkdir(exist_ok=True)
(there / model).touch()
try:
    training = Training(lambda path: path.touch(), lambda path: None, folder=Path(f"/tmp/checkpoints-{time.time()}"))
    while True:
        slow = {path.name for path in there.iterdir()} >= {"reader", "writer"}
        time.sleep(0.1 if slow else 0.02)
        training.step()
finally:
    (there / model).unlink()
"""


def policy(system: str) -> dict[str, dict[str, object]]:
    named = {"system": system, "order": "fifo", "profiles": "/etc/synsched/pairs.toml"}
    return {**SETTINGS, "policy": named, "guards": {"min_run_time": 1}}


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.write("/etc/synsched/pairs.toml", PROFILES)
    return mini


@pytest.fixture
def packing(site: Mini) -> Iterator[Mini]:
    """Rounds that make pairs, on a cluster with nothing on it."""
    site.configure(**policy("tesserae-packed"))
    once(site)
    yield site
    clean(site)


def once(site: Mini) -> None:
    done = site.synsched("run", "--once")
    assert done.code == 0, done.out + done.err


def clean(site: Mini) -> None:
    site.sure("scancel", "--user=alice")
    site.until("nothing is left", lambda: not site.sure("squeue", "-h").strip())


def submit(site: Mini, *options: str, hint: str = "") -> str:
    return site.train("alice", "--mem=1000", "--cpus-per-task=1", *options, hint=hint)


def half(site: Mini, hint: str, *options: str) -> str:
    return submit(site, "--gres=shard:5", "--nodelist=v100-1", *options, hint=hint)


def runs(site: Mini, *jobs: str) -> None:
    site.until(f"{', '.join(jobs)} run", lambda: all(site.state(job) == "RUNNING" for job in jobs))


def shards(site: Mini, job: str) -> str:
    """Which part of which GPU, as Slurm itself says it: `shard:v100:5(5/10,0/10)`."""
    return site.jobs()[job]["GRES"]


class Status:
    """What `status` tells now."""

    def __init__(self, site: Mini) -> None:
        self.said = site.synsched("status", "--json").json

    def on(self, gpu: int) -> set[str]:
        """Who uses this GPU of the first node."""
        node = next(node for node in self.said["nodes"] if node["name"] == "v100-1")
        return set(node["gpus"][gpu]["jobs"])

    def speed(self, job: str) -> float:
        return float(self._job(job)["speed"])

    def why(self, job: str) -> str:
        return str(self._job(job)["why"])

    def surprises(self) -> list[str]:
        return [problem for problem in self.said["problems"] if "than planned" in problem]

    def _job(self, job: str) -> dict[str, object]:
        return next(own for own in self.said["jobs"] if own["id"] == job)


@widening
def test_who_has_no_partner_has_a_whole_gpu_and_the_pairs_of_a_node_start_in_one_round(packing: Mini) -> None:
    site = packing
    alone, refusing = half(site, "model=reader"), half(site, "model=reader,pack=no")
    once(site)
    runs(site, alone, refusing)
    assert shards(site, refusing).replace("v100:", "") in ("shard:10(10/10,0/10)", "shard:10(0/10,10/10)")
    assert shards(site, alone).replace("v100:", "") in ("shard:5(5/10,0/10)", "shard:5(0/10,5/10)")
    guest = half(site, "model=writer")
    once(site)
    runs(site, guest)
    assert shards(site, guest) == shards(site, alone)
    assert (Status(site).speed(alone), Status(site).speed(guest)) == (0.8, 0.7)

    clean(site)
    readers = [half(site, "model=reader") for _ in range(2)]
    writers = [half(site, "model=writer") for _ in range(2)]
    once(site)
    runs(site, *readers, *writers)
    status = Status(site)
    assert {len(status.on(gpu).intersection(readers)) for gpu in (0, 1)} == {1}
    assert {len(status.on(gpu).intersection(writers)) for gpu in (0, 1)} == {1}
    assert not status.surprises()

    clean(site)
    wanted = ("--gres=shard:5", "--mem=1000", "--nodelist=v100-1", "--output=/home/alice/step-%j")
    stepping = site.sure("sbatch", "--parsable", *wanted, "--wrap=srun echo a step", user="alice").strip()
    other = half(site, "model=reader,pack=no")
    once(site)
    site.until("its step has run", lambda: site.state(stepping) in ("COMPLETED", "FAILED"))
    assert site.run("cat", f"/home/alice/step-{stepping}").out == "a step\n"
    runs(site, other)
    assert site.jobs()[other]["TresPerNode"].endswith("shard:10")
    site.sure("scontrol", "requeuehold", other)
    site.until("it waits", lambda: site.state(other) == "PENDING")
    once(site)
    released = site.synsched("release", other)
    assert released.code == 0, released.out + released.err
    assert site.jobs()[other]["TresPerNode"].endswith("shard:5")


@widening
def test_what_a_pair_measures_decides_with_whom_the_next_one_is_made(site: Mini) -> None:
    """The profile promises 1.5 of a reader and a writer, 1.2 of a reader and a scanner."""
    measure_pairs(site, MEASURED_PROFILES)
    try:
        runs(site, submit(site, "--gres=gpu:1", "--nodelist=v100-1", "--partition=debug"))
        host = stepping(site, "reader")
        once(site)
        runs(site, host)
        guest = stepping(site, "writer")
        once(site)
        runs(site, guest)
        status = Status(site)
        assert (status.speed(host), status.speed(guest)) == (0.8, 0.7), "as the profile says"
        site.until("both have measured", lambda: measured_speeds(site, host, guest), 180)
        site.sure("scancel", guest)
        site.until("it has left", lambda: site.jobs()[guest]["JobState"] == "CANCELLED")
        writer, scanner = stepping(site, "writer"), stepping(site, "scanner")
        once(site)
        runs(site, scanner)
        status = Status(site)
        assert shards(site, scanner) == shards(site, host)
        assert status.speed(scanner) == 0.6, "nobody has measured this pair yet"
        assert site.state(writer) == "PENDING", "with a reader it does less than one alone"
    finally:
        clean(site)


@widening
def test_two_that_were_tried_and_do_less_than_one_alone_are_moved_apart(site: Mini) -> None:
    measure_pairs(site, SIMILAR_PROFILES, try_pairs=True)
    try:
        others = [
            submit(site, f"--gres=gpu:{count}", f"--nodelist=v100-{number}", "--partition=debug")
            for number, count in ((1, 1), (2, 2), (3, 2))
        ]
        runs(site, *others)
        said, anywhere = ",gpumem=4g,ckpt=usr1@2", ()
        host, guest = stepping(site, "reader", said, anywhere), stepping(site, "writer", said, anywhere)
        once(site)
        runs(site, host, guest)
        assert shards(site, host) == shards(site, guest)
        assert "to find out" in Status(site).why(guest)
        site.until("both have measured", lambda: measured_speeds(site, host, guest), 180)
        assert site.jobs()[guest]["Restarts"] == "0", "no GPU is idle for it"
        site.sure("scancel", others[1])
        site.until("a node is free", lambda: site.jobs()[others[1]]["JobState"] == "CANCELLED")
        once(site)
        runs(site, host, guest)
        moved = site.jobs()[guest]
        assert (moved["NodeList"], moved["Restarts"], site.jobs()[host]["Restarts"]) == ("v100-2", "1", "0")
        assert moved["TresPerNode"].endswith("shard:10")
    finally:
        clean(site)


@widening
def test_who_gives_way_to_a_newcomer_is_packed_in_that_round_and_the_pair_is_moved_apart_later(site: Mini) -> None:
    """The shortest comes first. One of the two newcomers shares with nobody, so the other's GPU is the one to share."""
    own = policy("tesserae-packed")
    site.configure(
        **{**own, "policy": {**own["policy"], "order": "srtf"}, "guards": {"min_run_time": 0, "restart_cost": 10}}
    )
    once(site)
    try:
        longest = half(site, "model=reader,duration=20h,ckpt=usr1@2")
        long = half(site, "model=reader,pack=no,duration=10h,ckpt=usr1@2")
        once(site)
        runs(site, longest, long)
        alone = half(site, "model=writer,pack=no,duration=5m,ckpt=usr1@2")
        newcomer = half(site, "model=writer,duration=20m,ckpt=usr1@2")
        once(site)
        runs(site, longest, alone, newcomer)
        assert site.state(long) == "PENDING"
        assert shards(site, longest) == shards(site, newcomer)
        assert shards(site, alone).replace("v100:", "") in ("shard:10(10/10,0/10)", "shard:10(0/10,10/10)")
        assert site.jobs()[longest]["Restarts"] == "1"
        status = Status(site)
        assert (status.speed(longest), status.speed(newcomer)) == (0.8, 0.7)
        assert not status.surprises()

        site.sure("scancel", long, alone)
        site.until("a GPU is idle", lambda: site.jobs()[alone]["JobState"] == "CANCELLED")
        once(site)
        runs(site, longest, newcomer)
        assert shards(site, longest) != shards(site, newcomer)
        assert site.jobs()[newcomer]["TresPerNode"].endswith("shard:10")
        assert Status(site).speed(longest) == 1.0
    finally:
        clean(site)


def measure_pairs(site: Mini, profiles: str, *, try_pairs: bool = False) -> None:
    """Let rounds pair jobs by these profiles and by what jobs report."""
    site.write("/etc/synsched/measured.toml", profiles)
    site.sure("install", "-d", "-m", "1777", "-o", "synsched", SPOOL)
    own, forget = policy("tesserae-packed"), "DELETE FROM pair_rates"
    measured = {"profiles": "/etc/synsched/measured.toml", "try_pairs": try_pairs}
    site.configure(**{**own, "policy": {**own["policy"], **measured}, "reports": {"spool": SPOOL}})
    once(site)
    path = "/var/lib/synsched/synsched.db"
    site.sure(
        "python3",
        "-c",
        f"import sqlite3; c = sqlite3.connect({path!r}); c.execute({forget!r}); c.commit()",
        user="synsched",
    )


def stepping(site: Mini, model: str, hint: str = "", where: tuple[str, ...] = ("--nodelist=v100-1",)) -> str:
    """A job on half a GPU that reports its steps."""
    script = f"/home/alice/{model}.py"
    site.sure("sh", "-c", f"cat > {script}", user="alice", stdin=STEPS)
    return site.sure(
        "env", "HOME=/home/alice", "PYTHONPATH=/opt/slurmsched", f"SYNSCHED_SPOOL={SPOOL}",
        "sbatch", "--parsable", "--gres=shard:5", *where, "--mem=1000", "--cpus-per-task=1", "--chdir=/home/alice",
        f"--comment=synsched:model={model}{hint}", script, model, user="alice",
    ).strip()  # fmt: skip


def measured_speeds(site: Mini, *jobs: str) -> bool:
    """Whether the next round counts each of these jobs as fast as it is, and not as its profile says."""
    once(site)
    status = Status(site)
    return all(status.speed(job) < 0.4 for job in jobs)


@not_widening
def test_two_that_allow_it_share_a_gpu_and_one_that_does_not_has_its_own(packing: Mini) -> None:
    site = packing
    host = half(site, "model=reader")
    once(site)
    runs(site, host)
    guest, refusing = half(site, "model=writer"), half(site, "model=writer,pack=no")
    once(site)
    runs(site, guest)
    status = Status(site)
    assert status.on(0) == {host, guest}
    assert shards(site, host) == shards(site, guest)
    assert (status.speed(host), status.speed(guest)) == (0.8, 0.7)
    assert status.why(guest) == f"shares GPU 0 of v100-1 with job {host}: together they do 1.5 times the work of one"
    assert status.why(refusing).startswith("waits for the next round: this one starts a job on v100-1")

    another = half(site, "model=reader")
    once(site)
    runs(site, refusing)
    status = Status(site)
    assert (status.on(0), status.on(1)) == ({host, guest}, {refusing})
    assert site.state(another) == "PENDING"
    once(site)
    status = Status(site)
    assert status.on(1) == {refusing}
    assert status.why(another).endswith(f"on GPU 1 beside job {refusing}, and these must not share a GPU")
    assert not status.surprises()


@not_widening
def test_a_pair_that_slurm_did_not_put_together_is_told(packing: Mini) -> None:
    """Somebody else's job, in a partition that is not managed, starts between the plan and the start."""
    site = packing
    host = half(site, "model=reader")
    once(site)
    runs(site, host)
    guest = half(site, "model=writer")
    stranger = half(site, "", "--partition=debug", "--hold")
    interfering = f"""#!/bin/sh
if [ $# -eq 0 ] && mkdir {BETWEEN}/done 2>/dev/null; then
    /usr/bin/scontrol release {stranger} </dev/null
    until squeue -h -t R -j {stranger} | grep -q .; do sleep 0.2; done
fi
exec /usr/bin/scontrol "$@"
"""
    site.sure("mkdir", "-m", "777", BETWEEN)
    site.write(f"{BETWEEN}/scontrol", interfering)
    site.sure("chmod", "755", f"{BETWEEN}/scontrol")
    site.sure("sh", "-c", f"PATH={BETWEEN}:$PATH exec synsched run --once", user="synsched")

    runs(site, guest)
    status = Status(site)
    assert (status.on(0), status.on(1)) == ({host, stranger}, {guest})
    assert [problem for problem in status.surprises() if problem.startswith("1 job of round")], status.said["problems"]
    sentence = f"runs on GPU 1 of v100-1; GPU 0 was planned, beside job {host}"
    assert sentence in " ".join(site.synsched("history", guest).out.split())
    once(site)
    assert Status(site).why(host) == f"shares GPU 0 of v100-1 with job {stranger}, which no round placed there"


@once_is_enough
def test_a_round_in_which_naming_alone_would_move_three_jobs_moves_none(site: Mini) -> None:
    site.configure(**policy("tesserae"))
    once(site)
    filler = submit(site, "--gres=gpu:2", "--nodelist=v100-1", hint="ckpt=usr1@2")
    once(site)
    runs(site, filler)
    jobs = [submit(site, "--gres=gpu:2", hint="ckpt=usr1@2") for _ in range(2)]
    once(site)
    runs(site, *jobs)
    site.sure("scancel", filler)
    jobs.append(submit(site, "--gres=gpu:2", hint="ckpt=usr1@2"))
    site.until("a node is free", lambda: site.jobs()[filler]["JobState"] == "CANCELLED")
    once(site)
    runs(site, *jobs)
    shown = site.jobs()
    before = [shown[job]["NodeList"] for job in jobs]
    layout = PlacementPlan.from_rows((NODES.index(node), 2, (job,)) for job, node in enumerate(before))
    two = np.array([2, 2, 2])
    question = TesseraeProblem([0, 1, 2], two, np.zeros(3, dtype=int), np.zeros(3, dtype=bool), two, layout)
    anew = TesseraeVariant(allocate_in_order, max_packed_width=0, rename_nodes=False)
    assert plan_round(question, np.zeros((1, 1)), anew).migrated == {0, 1, 2}, "placed anew in order, all three move"

    once(site)
    after = site.jobs()
    assert [after[job]["NodeList"] for job in jobs] == before
    assert {after[job]["Restarts"] for job in jobs} == {"0"}
    clean(site)
