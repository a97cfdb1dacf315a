"""One job trained by copies on several nodes at once, as HadarE does it: rounds of steps, then the mean of the copies.

    python examples/forked.py track --copies 3 --slot 30     # ends each round after 30 s, or once all have done theirs
    python examples/forked.py copy --number 0                # one on each node, all in the same working directory

The copies need not be equally fast, and may be killed and started again. `python examples/forked.py alone` trains as
many steps without copies.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from slurmsched.jobside import Checkpoints, Training, torch_state
from slurmsched.jobside.forking import Fork, JobTracker, average_state_dicts

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("role", choices=["track", "copy", "alone"])
options.add_argument("--steps", type=int, default=3000)
options.add_argument("--seed", type=int, default=0)
options.add_argument("--copies", type=int, default=3)
options.add_argument("--number", type=int, default=0, help="of this copy")
options.add_argument("--slot", type=float, default=30.0, help="seconds of a round")
options.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer than it needs")
given = options.parse_args()

torch.set_num_threads(1)
torch.manual_seed(given.seed)
teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
tracker = JobTracker(Path("rounds"), given.steps, average_state_dicts)
save, load = torch_state(model=model, optimizer=optimizer)


def made(size: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 16, generator=random)
    with torch.no_grad():
        return inputs, teacher(inputs) + noise * torch.randn(size, 1, generator=random)


data, labels = made(1000, 0.3, seed=1)


def step(seed: int) -> None:
    """On fifty of the thousand; every copy and round draws its own."""
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:50]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(data[drawn]), labels[drawn]).backward()
    optimizer.step()
    time.sleep(given.pause)


def rounds() -> Iterator[Fork]:
    """Each round as it begins, until all steps are done."""
    last = 0
    while (fork := tracker.current()) is None or not fork.over:
        if fork is None or fork.number == last:
            time.sleep(0.05)
            continue
        last = fork.number
        yield fork


def train_copy() -> None:
    for fork in rounds():
        with Training(save, load, folder=fork.checkpoints(given.number), every=0.2) as training:
            if training.steps == 0 and fork.state is not None:
                load(fork.state)
            while training.steps < fork.given[given.number]:
                current = tracker.current()
                if current is None or current.number != fork.number:
                    break  # the slot is over: what was saved is counted
                step(10_000_019 * fork.number + 1_000_003 * given.number + training.steps)
                training.step()
            training.save()


def track() -> None:
    rates = [1.0] * given.copies
    fork = tracker.advance(rates)
    while not fork.over:
        began = time.monotonic()
        while time.monotonic() - began < given.slot and any(left(fork)):
            time.sleep(0.05)
        spent = time.monotonic() - began
        before, fork = fork, tracker.advance(rates)
        rates = [max(steps, 1) / spent for steps in fork.counted]
        print(f"round {before.number}: {fork.counted} of {before.given}, {fork.done} steps in all", flush=True)
    if fork.state is not None:
        load(fork.state)


def left(fork: Fork) -> list[int]:
    """What each copy has still to do."""
    newest = [Checkpoints(fork.checkpoints(copy)).newest() for copy in range(len(fork.given))]
    return [own - (done.step if done else 0) for own, done in zip(fork.given, newest, strict=True)]


if given.role == "copy":
    train_copy()
elif given.role == "track":
    track()
else:
    for number in range(given.steps):
        step(number)
if given.role != "copy":
    inputs, wanted = made(5000, 0.0, seed=2)
    with torch.no_grad():
        print(f"loss on data it never saw: {nn.functional.mse_loss(model(inputs), wanted).item():.5f}")
