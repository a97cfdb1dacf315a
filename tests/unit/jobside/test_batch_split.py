"""A batch divided by the ranks' speeds: whole numbers, agreement, and real ranks of which one is slow."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.jobside import BatchSplit, JobsideError
from slurmsched.jobside.batch_split import divide_batch
from tests.unit.jobside.scripts import Forked


@pytest.mark.parametrize(
    ("samples", "rates", "sizes"),
    [
        pytest.param(64, [1.0, 1.0], (32, 32), id="equal ranks"),
        pytest.param(12, [2.0, 2.0, 1.0, 1.0], (4, 4, 2, 2), id="two V100 and two P100 of half their speed"),
        pytest.param(10, [2.0, 1.0], (7, 3), id="what rounding leaves goes to who is through with it first"),
        pytest.param(4, [1000.0, 1.0, 1.0], (2, 1, 1), id="nobody is left without a sample"),
        pytest.param(7, [5.0], (7,), id="one rank has all"),
    ],
)
def test_a_batch_is_divided_by_speed(samples: int, rates: list[float], sizes: tuple[int, ...]) -> None:
    assert divide_batch(samples, rates) == sizes


@pytest.mark.parametrize(("samples", "rates"), [(1, [1.0, 1.0]), (8, [1.0, 0.0]), (8, [1.0, float("nan")])])
def test_a_batch_that_cannot_be_divided_is_told(samples: int, rates: list[float]) -> None:
    with pytest.raises(JobsideError, match="every rank needs a sample"):
        divide_batch(samples, rates)


@given(some.lists(some.floats(0.01, 100.0), min_size=1, max_size=8), some.integers(0, 500))
def test_no_other_division_is_through_sooner_by_a_sample_given_away(rates: list[float], more: int) -> None:
    samples = len(rates) + more
    sizes = divide_batch(samples, rates)
    assert sum(sizes) == samples
    last = max(size / rate for size, rate in zip(sizes, rates, strict=True))
    for giver, rate in enumerate(rates):
        if sizes[giver] > 1 and sizes[giver] / rate == last:
            takers = [rank for rank in range(len(rates)) if rank != giver]
            assert all((sizes[rank] + 1) / rates[rank] >= last * (1 - 1e-9) for rank in takers)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def of_two_ranks(others_rate: float, **options: int) -> tuple[BatchSplit, Clock]:
    """Rank 0 of two; the other one does so many samples per second."""

    def agree(rates: Sequence[int]) -> Sequence[int]:
        return [rates[0], round(others_rate * 1e6)]

    clock = Clock()
    environment = {"WORLD_SIZE": "2", "RANK": "0"}
    return BatchSplit(90, agree=agree, environment=environment, clock=clock, **options), clock


def run_steps(split: BatchSplit, clock: Clock, steps: int, rate: float) -> None:
    for _ in range(steps):
        with split.measured():
            clock.now += split.sizes[0] / rate
        split.step()


@pytest.mark.parametrize(
    ("rate", "sizes"),
    [
        pytest.param(200.0, (60, 30), id="twice as fast"),
        pytest.param(101.0, (45, 45), id="hardly faster: nothing is gained by another size"),
        pytest.param(50.0, (30, 60), id="half as fast"),
    ],
)
def test_ranks_divide_anew_after_so_many_steps(rate: float, sizes: tuple[int, int]) -> None:
    split, clock = of_two_ranks(100.0, every=3)
    run_steps(split, clock, 2, rate)
    assert split.sizes == (45, 45)
    run_steps(split, clock, 1, rate)
    assert split.sizes == sizes
    assert split.part == slice(0, sizes[0])
    assert split.weighted(1.0) == pytest.approx(sizes[0] / 45)


def test_nothing_changes_while_a_rank_has_measured_nothing() -> None:
    split, _ = of_two_ranks(0.0, every=1)
    split.step()
    assert split.sizes == (45, 45)


RANK = """
import json, os, sys, time, torch
from torch import distributed, nn
from slurmsched.jobside import BatchSplit

folder, split_by_speed, seconds = sys.argv[1], sys.argv[2] == "split", float(sys.argv[3])
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1)).double()
model = nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(40, 64, 20, dtype=torch.float64)
targets = torch.randn(40, 64, 1, dtype=torch.float64)
split = BatchSplit(64, every=5 if split_by_speed else 0)
gradients, times = [], []
for batch, target in zip(inputs, targets):
    distributed.barrier()
    began = time.perf_counter()
    optimizer.zero_grad()
    own = split.part
    with split.measured():
        time.sleep(seconds * (own.stop - own.start))
        loss = nn.functional.mse_loss(model(batch[own]), target[own])
    split.weighted(loss).backward()
    times.append(time.perf_counter() - began)
    gradients.append(torch.cat([p.grad.flatten() for p in inner.parameters()]))
    optimizer.step()
    split.step()
torch.save(torch.stack(gradients), f"{folder}/gradients-{rank}.pt")
print(json.dumps([split.sizes, sorted(times[-20:])[10]]), file=open(f"{folder}/result-{rank}.json", "w"))
del model, loss
distributed.destroy_process_group()
"""
"""A rank that takes so many seconds for a sample.

The model goes first: PyTorch 2.13 frees a process group that only the model still holds while it keeps the
interpreter's lock, for which gloo's thread may be waiting, and the process never ends.
"""


def run_ranks(folder: Path, how: str, *seconds: float) -> tuple[list[list[int]], float]:
    """The sizes that each rank ended with, and the median time of the slowest rank's last steps."""
    folder.mkdir()
    ranks = [
        Forked(
            RANK,
            (str(folder), how, str(each)),
            folder,
            {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(seconds))},
            folder / "log",
        )
        for rank, each in enumerate(seconds)
    ]
    assert [rank.wait(timeout=600) for rank in ranks] == [0] * len(seconds)
    results = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(len(seconds))]
    return [sizes for sizes, _ in results], max(median for _, median in results)


def test_real_ranks_compute_the_gradient_of_the_whole_batch_and_are_faster(tmp_path: Path) -> None:
    """Two ranks, the second three times as slow: 16 samples instead of 32 take it half the time."""
    torch = pytest.importorskip("torch", reason="PyTorch is not here: pip install -e '.[torch]'")
    ((alone,), _) = run_ranks(tmp_path / "alone", "equal", 0.0)
    equal, equal_time = run_ranks(tmp_path / "equal", "equal", 0.002, 0.006)
    split, split_time = run_ranks(tmp_path / "split", "split", 0.002, 0.006)
    assert (alone, equal) == ([64], [[32, 32], [32, 32]])
    assert split[0] == split[1] == pytest.approx([48, 16], abs=4)
    gradients = [
        torch.load(tmp_path / folder / f"gradients-{rank}.pt", weights_only=True)
        for folder, ranks in (("alone", 1), ("equal", 2), ("split", 2))
        for rank in range(ranks)
    ]
    for one, other in pairwise(gradients):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert equal_time / split_time == pytest.approx(2.0, rel=0.2)
