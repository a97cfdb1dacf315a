"""The schedulers that Synergy is compared with, on clusters that fit on a page."""

from __future__ import annotations

from slurmsched.model import Job, Node, NodeAllocation, Resources
from slurmsched.policies.policies import policy
from tests.builders import MEMORY, job, node, situation


def order_on(nodes: list[Node], *jobs: Job) -> list[str]:
    return [ranked.job for ranked in policy("tetris").decide(situation(nodes, jobs)).order]


def order(name: str, *jobs: object) -> list[str]:
    decided = policy(name).decide(situation([node()], jobs))  # type: ignore[arg-type]  # builders' jobs
    return [ranked.job for ranked in decided.order]


def test_dominant_shares_alternate_between_users_of_equal_jobs() -> None:
    queue = [job(1, user="alice"), job(2, user="alice"), job(3, user="bob"), job(4, user="bob")]
    assert order("drf", *queue) == ["1", "3", "2", "4"]


def test_who_has_much_already_comes_last() -> None:
    running = job(1, gpus=4, user="alice", on=[NodeAllocation("n1", Resources(4, 12, 0), "v100", (0, 1, 2, 3))])
    queue = [running, job(2, user="alice"), job(3, user="bob"), job(4, user="bob")]
    assert order("drf", *queue) == ["1", "3", "4", "2"]


def test_the_largest_that_fits_is_the_best_aligned() -> None:
    assert order("tetris", job(1, gpus=1), job(2, gpus=4), job(3, gpus=2)) == ["2", "3", "1"]


def test_a_job_is_placed_where_it_is_best_aligned_with_what_is_free() -> None:
    """Half of both nodes is free of GPUs; one has CPUs for a job of many CPUs, the other memory for one of much."""
    nodes = [
        node("cpus", busy=range(4), used_cpus=2, used_memory=MEMORY * 3 // 4),
        node("memory", busy=range(4), used_cpus=16, used_memory=0),
    ]
    queue = [job(1, gpus=1, cpus=6, memory=1000), job(2, gpus=1, cpus=1, memory=MEMORY // 5)]
    decided = policy("tetris").decide(situation(nodes, queue))
    assert {name: target.nodes for name, target in decided.targets.items()} == {"1": ("cpus",), "2": ("memory",)}


def test_alignment_counts_only_where_a_job_fits() -> None:
    nodes = [node("n1", busy=range(6)), node("n2", 4, busy=range(3))]
    assert order_on(nodes, job(1, gpus=4), job(2, gpus=1), job(3, gpus=2)) == ["3", "2", "1"]


def test_greedy_leaves_a_gpu_idle_that_tune_would_use() -> None:
    """Two hungry jobs take all CPUs; the third's GPUs are free, its CPUs are not."""
    queue = [job(number, hint="task=image,mem=tune", cpus=3) for number in (1, 2, 3)]
    greedy = policy("synergy-greedy", "fifo").decide(situation([node()], queue))
    tune = policy("synergy", "fifo").decide(situation([node()], queue))
    assert set(greedy.waiting) == {"3"}
    assert not tune.waiting
