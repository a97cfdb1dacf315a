"""200 jobs with random options on a full cluster, 14 rounds under each order: what Slurm shows after each of them.

Nobody is held without a plan, no job loses its place to one that does not start, and no GPU idles without a reason.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from slurmsched.backends.slurm.hostlist import expand_hostlist, expand_numbers
from slurmsched.model.reasons import REASON_SENTENCES
from slurmsched.policies.policies import ORDERS
from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini
from tests.slurm.test_flags import WAVES

pytestmark = pytest.mark.parametrize("mini", ["sid"], indirect=True, scope="module")
CLUSTER = ("--nodes", "v100:4x4/12c/60g,p100:1x8/24c/2t/100g,k80:1x8/22c/80g")
JOBS: Final = 200
ROUNDS: Final = 14
USERS: Final = ("alice", "bob", "carol")
HINTS: Final = (
    "", "ckpt=usr1@1", "ckpt=usr1@1,model=resnet50", "task=language", "ckpt=usr1@1,duration=10s", "move=no",
    "ckpt=none",
)  # fmt: skip
TIMES: Final = {"period": 2.0, "early_interval": 1.0, "settle_interval": 0.5, "settle_timeout": 20.0}
SCRIPT: Final = (
    "#!/bin/bash\ntrap : USR1\nend=$((SECONDS + $1))\nwhile ((SECONDS < end)); do sleep 0.5 & wait $!; done\n"
)
OWN_ORDERS: Final = ("gandiva-fair", "tiresias")
"""Policies with an order of their own: by tickets, by two queues."""
DECIDED: Final = """
import json, sqlite3, sys
store = sqlite3.connect("file:/var/lib/synsched/synsched.db?mode=ro", uri=True)
since = float(sys.argv[1])
(round_,) = store.execute("SELECT max(id) FROM rounds WHERE finished IS NOT NULL AND started > ?", (since,)).fetchone()
(starts,) = store.execute("SELECT count(*) FROM operations WHERE verb = 'release' AND result = 'done'").fetchone()
requeues = store.execute("SELECT id, subject, sentence, finished FROM operations"
                         " WHERE verb = 'requeue' AND result = 'done'")
sentences = dict(store.execute("SELECT id, sentence FROM jobs WHERE sentence IS NOT NULL"))
targets = {job: [share["node"] for share in json.loads(target)["shares"]]
           for job, target in store.execute("SELECT id, target FROM jobs WHERE target IS NOT NULL")}
print(json.dumps({"round": round_, "starts": starts, "requeues": requeues.fetchall(), "sentences": sentences,
                  "targets": targets}))
"""
"""Whether a round began since and has ended, what rounds did, what `synsched explain` tells of all jobs at once, and
where they should run."""
CODES: Final = {
    code.value: re.compile(re.sub(r"\\{.*?\\}", ".*", re.escape(sentence)))
    for code, sentence in REASON_SENTENCES.items()
}
KEEPS_NODES: Final = frozenset(
    {"promised_start", "expected_start", "nodes_drain", "freed_soon", "freed_now", "awaits_checkpoint", "starting"}
)
"""Reasons of a job that waits for nodes that are kept for it."""
RELEASED: Final = frozenset({"starting", "freed_now"})
"""Reasons of a job that is released or is so next, on nodes that nobody else has."""
NO_LACK: Final = frozenset(
    {"behind_promise", "behind_drain", "stalled", "like_refused", "refused", "unmanaged", "overtaken"}
)
"""Reasons that say why a job waits beside resources on which it would fit."""
HELD: Final = ("0", "0.0000000000", "0.00000000000000")
"""The priority of a job that is held, as releases of Slurm print it."""
NOT_YET: Final = frozenset({"user_hold", "dependency", "begin_time", "array_limit"})
"""Reasons for which it could not start on an empty cluster; whether they are true is seen in Slurm."""


@dataclass(frozen=True)
class Need:
    """What a job on one node takes, and where: read off its options."""

    gpus: int
    gpu_type: str
    cpus: int
    memory: int

    def fits(self, node: Idle) -> bool:
        cpus = -(-self.cpus // node.threads) * node.threads
        right = self.gpu_type in ("", node.gpu_type)
        return right and self.gpus <= node.gpus and cpus <= node.cpus and self.memory <= node.memory


@dataclass(frozen=True)
class Idle:
    """What is idle on a node."""

    gpu_type: str
    threads: int
    gpus: int
    cpus: int
    memory: int

    def less(self, taken: Idle) -> Idle:
        """What was idle beside that."""
        return replace(
            self, gpus=self.gpus - taken.gpus, cpus=self.cpus - taken.cpus, memory=self.memory - taken.memory
        )

    def least(self, other: Idle) -> Idle:
        """What was idle both times."""
        lowest = (min(self.gpus, other.gpus), min(self.cpus, other.cpus), min(self.memory, other.memory))
        return Idle(self.gpu_type, self.threads, *lowest)


@dataclass(frozen=True)
class Drawn:
    """One job: its owner, the words for sbatch, and what it needs where that is simple."""

    user: str
    options: tuple[str, ...]
    seconds: int
    need: Need | None


@dataclass
class Counts:
    """What was counted over all rounds of an order."""

    held_without_reason: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    idle_without_reason: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    kept_out: Counter[str] = field(default_factory=Counter)
    """Jobs that would fit, by the reason why they wait nevertheless."""
    idle_gpus: list[int] = field(default_factory=list)
    starts: int = 0
    requeues: int = 0


def draw(randomness: random.Random) -> Drawn:
    user, forms = randomness.choice(USERS), [form for wave in WAVES.values() for form in wave.values()]
    seconds = randomness.choice((1, 2, 3, 5, 8, 13, 30))
    if randomness.random() < 0.5:
        kind, gpus = randomness.choice(("", "", "v100", "p100", "k80")), randomness.choice((1, 1, 1, 2, 2, 3, 4))
        need = Need(gpus, kind, randomness.choice((1, 2, 3, 6)), randomness.choice((200, 2000, 9000)))
        options = [
            f"--gres=gpu:{kind}:{gpus}" if kind else f"--gres=gpu:{gpus}",
            f"-c{need.cpus}",
            f"--mem={need.memory}",
        ]
    else:
        need, options = None, shlex.split(randomness.choice(forms).options)
    options += randomness.choice(([], [], ["--time=1"], ["--time=60"], ["--nice=20"], ["--begin=now+15"], ["-H"],
                                  ["--dependency=singleton"], ["--no-requeue"]))  # fmt: skip
    hint = randomness.choice(HINTS)
    if hint and ":" not in options and not any(option.startswith("--comment") for option in options):
        options.append(f"--comment=synsched:{hint}")
    return Drawn(user, tuple(options), seconds, need)


def submit(site: Mini, jobs: Sequence[Drawn]) -> dict[str, Drawn]:
    """The jobs that Slurm accepts, by number."""
    for user in USERS:
        site.sure("sh", "-c", f"cat > /home/{user}/order.sh; chmod 755 /home/{user}/order.sh", user=user, stdin=SCRIPT)
    found = {}
    for user in USERS:
        own = [(number, job) for number, job in enumerate(jobs) if job.user == user]
        lines = [f"cd /home/{user}"]
        lines += [
            f"echo {number} $(sbatch --parsable -o /dev/null {shlex.join(job.options)} order.sh {job.seconds})"
            for number, job in own
        ]
        for line in site.sure("sh", user=user, stdin="\n".join(lines)).splitlines():
            number, _, job_id = line.partition(" ")
            if job_id:
                found[job_id.split(";")[0]] = jobs[int(number)]
    return found


def idle_nodes(site: Mini) -> dict[str, Idle]:
    """By name, as Slurm shows them. A core is used as a whole, which a node's own count of CPUs does not tell. Nothing
    is idle for others on a node that a job with `--exclusive=user` has."""
    jobs, cores = site.sure("scontrol", "-d", "-o", "show", "job"), Counter[str]()
    for names, numbers in re.findall(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=", jobs):
        for name in expand_hostlist(names):
            cores[name] += len(expand_numbers(numbers))
    of_one_user = {
        name
        for job in jobs.splitlines()
        if re.search(r" (?:Exclusive|OverSubscribe)=USER ", job)
        for names in re.findall(r" Nodes=(\S+) CPU_IDs=", job)
        for name in expand_hostlist(names)
    }
    nodes = {}
    for record in site.sure("scontrol", "-d", "-o", "show", "node").splitlines():
        has = dict(word.split("=", 1) for word in record.split() if "=" in word)
        total, used = (re.search(r"gpu:(\w+):(\d+)", has[name]) for name in ("Gres", "GresUsed"))
        assert total
        name, threads = has["NodeName"], int(has["ThreadsPerCore"])
        taken = max(int(has["CPUAlloc"]), -(-cores[name] // threads) * threads)
        taken = int(has["CPUTot"]) if name in of_one_user else taken
        nodes[name] = Idle(
            total[1], threads, int(total[2]) - (int(used[2]) if used else 0), int(has["CPUTot"]) - taken,
            int(has["RealMemory"]) - int(has["AllocMem"]),
        )  # fmt: skip
    return nodes


def passed_by(site: Mini, since: float) -> Iterator[tuple[str, Idle]]:
    """What jobs had that both started and ended since then, on each of their nodes: no look shows it."""
    text = site.sure(
        "env", "SLURM_TIME_FORMAT=%s", "sacct", "-a", "-n", "-P", "-X", "-D", "-S", "now-1minutes", "-o",
        "Start,End,NodeList,AllocTRES",
    )  # fmt: skip
    for start, end, names, tres in (line.split("|") for line in text.splitlines()):
        if not (start.isdecimal() and end.isdecimal() and int(start) + 1 >= since):
            continue
        has = dict(word.split("=", 1) for word in tres.split(",") if "=" in word)
        gpus, cpus = (int(has.get(name, 0)) for name in ("gres/gpu", "cpu"))
        for name in expand_hostlist(names):
            yield name, Idle("", 1, gpus, cpus, 0)


def waiting_jobs(site: Mini) -> dict[str, dict[str, str]]:
    """Managed jobs that Slurm shows as pending, with its own reason; by id as `explain` takes it."""
    columns = ("JobArrayID", "State", "Reason", "Partition", "Dependency", "Priority", "EligibleTime", "RestartCnt")
    text = site.sure("squeue", "-a", "-h", "-r", "-t", "PD", "-O", ",".join(f"{column}:|" for column in columns))
    rows = [dict(zip(columns, line.split("|"), strict=False)) for line in text.splitlines()]
    return {row["JobArrayID"]: row for row in rows if row["Partition"] == "gpu"}


def number_of(job: str) -> str:
    """The number that sbatch told, of a task or a component."""
    return re.split("[_+]", job)[0]


def code_of(sentence: str) -> str:
    """The code of the reason that the sentence about a job gives; empty for none."""
    said = re.sub(r"^job \S+ ", "", sentence)
    return next((code for code, form in CODES.items() if form.fullmatch(said)), "")


def true_of(code: str, job: Mapping[str, str]) -> bool:
    """Whether Slurm shows the same, for the reasons that it has too."""
    held_by_owner = job["Reason"] == "JobHeldUser"
    return {
        "user_hold": held_by_owner,
        "admin_hold": False,
        "launch_failed": job["Reason"].startswith("launch"),
        "dependency": job["Dependency"] not in ("", "(null)"),
        "array_limit": "_" in job["JobArrayID"],
        "partition_down": False,
        "limits": job["Reason"].startswith(("QOS", "Assoc")),
        "licenses": False,
        "reserved": False,
    }.get(code, True)


def rounds(site: Mini, jobs: Mapping[str, Drawn], earlier_starts: int) -> Counts:
    """Look at Slurm before and after each of so many rounds of the daemon."""
    counts, troubled, idle = Counts(), dict[tuple[str, str], int](), dict[str, Idle]()
    first, told = 0.0, list[tuple[float, Mapping[str, str]]]()
    for number in range(ROUNDS):
        before, began = idle_nodes(site), float(site.sure("date", "+%s.%N"))
        decided = after_a_round(site)
        first = first or decided["began"]
        told.append((float(site.sure("date", "+%s.%N")), decided["sentences"]))
        after, waiting = idle_nodes(site), waiting_jobs(site)
        still = {name: before[name].least(after[name]) for name in after}
        for name, taken in passed_by(site, began):
            still[name] = still[name].less(taken)
        throughout = {name: node.least(idle.get(name, node)) for name, node in still.items()}
        idle = still
        counts.idle_gpus.append(sum(node.gpus for node in throughout.values()))
        trouble = set(unexplained(waiting, decided, jobs, throughout, counts))
        troubled = {one: troubled.get(one, 0) + 1 for one in trouble}
        for job, what in (one for one, times in troubled.items() if times == (3 if one[1].startswith("fits") else 2)):
            said = site.synsched("explain", job).out.strip()
            said += f"\nSlurm: {waiting.get(job)}\n{site.synsched('history', job, '--commands').out.strip()}"
            where = counts.idle_without_reason if what.startswith("fits") else counts.held_without_reason
            released = {one: decided["targets"].get(one) for one, row in waiting.items() if row["Priority"] not in HELD}
            where.append(
                f"round {number}: job {job} {jobs.get(number_of(job))}: {what}; {decided['sentences'].get(job)};"
                f" now {said}\nidle {throughout}\nreleased {released}"
            )
    counts.starts = decided["starts"] - earlier_starts
    requeues = [row for row in decided["requeues"] if row[3] >= first]
    counts.requeues = len(requeues)
    time.sleep(1)
    counts.lost += lost(site, requeues, told)
    return counts


def after_a_round(site: Mini) -> dict[str, Any]:
    """What is told after the next round that begins from now on."""
    now, decided = site.sure("date", "+%s.%N").strip(), dict[str, Any]()

    def ended() -> bool:
        decided.update(json.loads(site.sure("python3", "-c", DECIDED, now, user="synsched")))
        return decided["round"] is not None

    site.until("a round ends", ended, 60)
    return {**decided, "began": float(now)}


def unexplained(
    waiting: Mapping[str, Mapping[str, str]], decided: Mapping[str, Any], jobs: Mapping[str, Drawn],
    idle: Mapping[str, Idle], counts: Counts,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """The jobs that we hold without a reason, or with one that is not true, and those that would fit. Nodes of jobs
    that are released are theirs, until Slurm has started them."""
    sentences: Mapping[str, str] = decided["sentences"]
    codes = {job: code_of(sentences.get(job, "")) for job in waiting}
    kept = {
        name for job, code in codes.items() if code in KEEPS_NODES for name in re.findall(r"\w+-\d+", sentences[job])
    }
    kept |= {
        node for job, row in waiting.items() if row["Priority"] not in HELD for node in decided["targets"].get(job, ())
    }
    for job, row in waiting.items():
        code = codes[job]
        counts.reasons[code or "none"] += 1
        if row["Priority"] not in HELD:
            continue
        drawn = jobs.get(number_of(job))
        if drawn is not None and "-H" in drawn.options and row["Reason"] == "JobHeldUser" and code in ("", "user_hold"):
            continue
        if not code or "?" in sentences[job]:
            yield job, f"no reason: {sentences.get(job)}"
        elif not true_of(code, row):
            yield job, f"{code} is not true"
        if drawn is None or drawn.need is None or code in NOT_YET:
            continue
        if free := [name for name, node in idle.items() if drawn.need.fits(node)]:
            if code in NO_LACK | KEEPS_NODES or kept.issuperset(free):
                counts.kept_out[code] += 1
            else:
                yield job, f"fits on {','.join(free)}"


def lost(
    site: Mini, requeues: Sequence[Sequence[Any]], told: Sequence[tuple[float, Mapping[str, str]]]
) -> Iterator[str]:
    """The jobs that lost their places, while until the end of the round after the next none of those for which they
    did started, and they did not return themselves. One that is released by then has as long as rounds wait for it:
    when a released job starts is up to Slurm. `told` are the ends of rounds and what was told of jobs then."""
    text = site.sure(
        "env", "SLURM_TIME_FORMAT=%s", "sacct", "-a", "-n", "-P", "-X", "-D", "-S", "now-1hours", "-o", "JobID,Start"
    )
    starts: dict[str, list[int]] = {}
    for job, start in (line.split("|") for line in text.splitlines()):
        starts.setdefault(job, []).append(int(start) if start.isdecimal() else 0)
    for _, victim, sentence, at in requeues:
        later = [one for one in told if one[0] > at]
        if len(later) < 3:
            continue
        newcomers = set(re.findall(r"[\d_]+", "".join(re.findall(r"(?:gives way to|for) jobs? ([\d_, ]+)", sentence))))
        known = [start for job in (victim, *newcomers) for start in starts.get(job, ())]
        end, sentences = later[2]
        if any(code_of(sentences.get(job, "")) in RELEASED for job in newcomers):
            end = max(end, at + TIMES["settle_timeout"])
        if end <= told[-1][0] and not any(int(at) <= start <= end + 1 for start in known):
            history = [(round(end - at), [sentences.get(job) for job in newcomers]) for end, sentences in later[:8]]
            yield f"job {victim} was requeued at {at}, and none of {newcomers} started: {sentence}; then {history}"


@pytest.mark.parametrize("order", [*ORDERS, *OWN_ORDERS])
def test_random_jobs_on_a_full_cluster_all_have_a_plan_and_no_gpu_idles_without_a_reason(
    mini: Mini, order: str
) -> None:
    policy: dict[str, object] = {"system": order} if order in OWN_ORDERS else {"system": "synergy", "order": order}
    policy |= {"las_queues": [20, 200]} if order == "las" else {}
    guards = {"min_run_time": 2, "restart_cost": 5, "moves_per_round": 8}
    mini.configure(
        manage=SETTINGS["manage"], rounds={"mode": "enforce", **TIMES}, policy=policy, guards=guards,
        checkpoint={"lead": 1},
    )  # fmt: skip
    randomness, began = random.Random(order), time.monotonic()
    try:
        with mini.daemon():
            earlier_starts = after_a_round(mini)["starts"]
            jobs = submit(mini, [draw(randomness) for _ in range(JOBS)])
            assert len(jobs) >= 0.9 * JOBS
            counts = rounds(mini, jobs, earlier_starts)
    finally:
        mini.run("sh", "-c", "for user in alice bob carol; do scancel -u $user; done")
        mini.until("nothing is left", lambda: not mini.sure("squeue", "-ah").strip(), 60)
    print(
        f"\n{order}: {len(jobs)} jobs, {ROUNDS} rounds in {time.monotonic() - began:.0f} s, {counts.starts} starts,"
        f" {counts.requeues} requeued\n held without a true reason: {len(counts.held_without_reason)}, lost to a job"
        f" that did not start: {len(counts.lost)}, idle though a job fits: {len(counts.idle_without_reason)}\n"
        f" idle GPUs by round {counts.idle_gpus}\n would fit, but {dict(counts.kept_out)}\n"
        f" reasons {dict(counts.reasons.most_common())}"
    )
    assert counts.starts >= ROUNDS, "the cluster was busy"
    found = counts.held_without_reason + counts.lost + counts.idle_without_reason
    assert not found, "\n" + "\n".join(found)
