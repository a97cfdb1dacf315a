"""One job trained by copies on several nodes at once, as HadarE does it: rounds of steps, then the mean of the copies.

    sbatch --array=0-2 --gres=gpu:1 --requeue --comment=synsched:fork=3000,ckpt=usr1@60 forked.sh

where forked.sh says `trap "" USR1` and then `exec python examples/forked.py`. The copies need not be equally fast, may
be killed and started again, and need not all run. `python examples/forked.py --alone` trains as many steps without
copies.
"""

from __future__ import annotations

import argparse
import time
from math import cos, pi

import torch
from torch import nn

from slurmsched.jobside import torch_state
from slurmsched.jobside.forking import ForkedRound, ForkedTraining, average_state_dicts, look_ahead

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--steps", type=int, default=3000, help="of the whole job, as in the hint fork")
options.add_argument("--seed", type=int, default=0)
options.add_argument("--slot", type=float, default=300.0, help="seconds of a round where the scheduler names none")
options.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer than it needs")
options.add_argument("--ahead", action="store_true", help="begin rounds beyond the mean: for data hardly met twice")
options.add_argument("--alone", action="store_true", help="no copies")
given = options.parse_args()

torch.set_num_threads(1)
torch.manual_seed(given.seed)
teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())


def made(size: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 16, generator=random)
    with torch.no_grad():
        return inputs, teacher(inputs) + noise * torch.randn(size, 1, generator=random)


data, labels = made(1000, 0.3, seed=1)


def begun(fork: ForkedRound) -> None:
    """A round begins, and the parameters of all are loaded."""
    if given.ahead:
        look_ahead(fork, model=model)


def step(seed: int, reached: float) -> None:
    """On fifty of the thousand; every step of the job draws its own. The rate falls as the whole job goes on."""
    for group in optimizer.param_groups:
        group["lr"] = 0.002 * 0.5 * (1 + cos(pi * min(reached / given.steps, 1.0)))
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:50]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(data[drawn]), labels[drawn]).backward()
    optimizer.step()
    time.sleep(given.pause)


if given.alone:
    for number in range(given.steps):
        step(number, number)
else:
    save, load = torch_state(model=model, optimizer=optimizer)
    training = ForkedTraining(
        save, load, steps=given.steps, consolidate=average_state_dicts, slot=given.slot, every=1.0, begun=begun
    )
    for number in training:
        step(number, training.reached)
inputs, wanted = made(5000, 0.0, seed=2)
with torch.no_grad():
    print(f"loss on data it never saw: {nn.functional.mse_loss(model(inputs), wanted).item():.5f}")
