"""The schedulers that Synergy is compared with, on clusters that fit on a page."""

from __future__ import annotations

from slurmsched.model import NodeAllocation, Resources
from slurmsched.policies.policies import policy
from tests.builders import job, node, situation


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


def test_greedy_leaves_a_gpu_idle_that_tune_would_use() -> None:
    """Two hungry jobs take all CPUs; the third's GPUs are free, its CPUs are not."""
    queue = [job(number, hint="task=image,mem=tune", cpus=3) for number in (1, 2, 3)]
    greedy = policy("synergy-greedy", "fifo").decide(situation([node()], queue))
    tune = policy("synergy", "fifo").decide(situation([node()], queue))
    assert set(greedy.waiting) == {"3"}
    assert not tune.waiting
