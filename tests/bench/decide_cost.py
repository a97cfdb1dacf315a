"""What one decision costs: `python -m tests.bench.decide_cost [NODES] [RUNNING] [WAITING]`.

A made-up cluster of 8-GPU servers, most GPUs taken, and a queue of mixed jobs; prints CPU seconds of single decisions.
"""

from __future__ import annotations

import random
import sys
import time

from slurmsched.knowledge import Knowledge, shipped_profiles
from slurmsched.model import Job, JobState, NodeAllocation, Request, Resources, parse_hints
from slurmsched.policies import Situation, policy
from tests.builders import MEMORY, node, snapshot

MODELS = ("resnet18", "resnet50", "alexnet", "gnmt", "bert", "deepspeech", "mobilenet", "")


def situation(nodes: int, running: int, waiting: int, seed: int = 1) -> Situation:
    """Random but the same for a seed."""
    dice = random.Random(seed)
    free = {f"n{at:04}": [8, 24] for at in range(nodes)}
    jobs, service = list[Job](), dict[str, float]()
    for number in range(running + waiting):
        gpus = dice.choices((1, 2, 4, 8, 16), (40, 15, 15, 20, 10))[0]
        shares = _shares(free, gpus, dice) if number < running else ()
        on = max(1, gpus // 8)
        request = Request(
            gpus=gpus,
            gpus_per_node=min(gpus, 8),
            nodes=on,
            tasks=on,
            cpus=3 * gpus,
            memory=dice.choice((0, 0, 20_000)) * min(gpus, 8),
        )
        model = dice.choice(MODELS)
        comment = f"synsched:{'model=' + model + ',' if model else ''}ckpt=usr1,duration={dice.randint(1, 200)}h"
        jobs.append(
            Job(
                id=str(number),
                user="alice",
                original_request=request,
                current_request=request,
                state=JobState.RUNNING if shares else JobState.PENDING,
                partitions=("gpu",),
                allocations=shares,
                submit_time=dice.uniform(0, 1_000_000),
                comment=comment,
                hints=parse_hints(comment),
            )
        )
        if shares:
            service[str(number)] = dice.expovariate(1 / 40_000)
    seen = snapshot([node(name, partitions=frozenset({"gpu"})) for name in free], (), time=1_000_000.0)
    busy = {name: [8 - left[0], 24 - left[1]] for name, left in free.items()}
    used = [
        node(name, busy=range(busy[name][0]), used_cpus=busy[name][1], used_memory=busy[name][0] * MEMORY // 8)
        for name in free
    ]
    seen = type(seen)(time=seen.time, nodes=tuple(used), jobs=tuple(jobs), partitions=seen.partitions)
    known = shipped_profiles()
    return Situation(
        snapshot=seen,
        jobs=tuple(jobs),
        knowledge=Knowledge(known.models, known.tasks, service),
        open_nodes={"gpu": frozenset(free)},
    )


def _shares(free: dict[str, list[int]], gpus: int, dice: random.Random) -> tuple[NodeAllocation, ...]:
    """First fit on a random start, at the GPU share; nothing where it does not fit."""
    each, shares = min(gpus, 8), list[NodeAllocation]()
    names = list(free)
    start = dice.randrange(len(names))
    for name in names[start:] + names[:start]:
        if free[name][0] >= each and len(shares) < max(1, gpus // 8):
            shares.append(NodeAllocation(name, Resources(each, 3 * each, each * MEMORY // 8), "v100"))
    if len(shares) < max(1, gpus // 8):
        return ()
    for share in shares:
        free[share.node][0] -= each
        free[share.node][1] -= 3 * each
    return tuple(shares)


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:]] or [1000, 2000, 3000]
    question = situation(*sizes)
    runs = sum(job.state is JobState.RUNNING for job in question.jobs)
    idle = sum(gpu.idle for one in question.snapshot.nodes for gpu in one.gpus)
    print(f"{len(question.jobs)} jobs, {runs} running, {idle} GPUs idle")
    for name in ("synergy", "proportional", "slurm"):
        for order in ("fifo", "srtf", "las", "ftf") if name != "slurm" else ("priority",):
            chosen = policy(name, order) if name != "slurm" else policy(name)
            costs = []
            for _ in range(3):
                before = time.process_time()
                decision = chosen.decide(question)
                costs.append(time.process_time() - before)
            print(
                f"{name:13}{order:9}{min(costs):6.2f} s "
                f" {len(decision.targets)} targets, {len(decision.victims)} victims"
            )
