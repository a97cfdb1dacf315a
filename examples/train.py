"""A network that learns a made-up function on the CPU, movable: it goes on where it was, to the last bit.

    sbatch --gres=gpu:1 --requeue --comment=synsched:ckpt=usr1@10 --wrap 'trap "" USR1; python examples/train.py'

Under `srun` with several tasks, on one node or on more, the same script trains data-parallel.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from slurmsched.jobside import Training, torch_state

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--epochs", type=int, default=10)
options.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer than it needs")
options.add_argument("--losses", default="losses.txt", help="where the loss of each step is written")
options.add_argument("--weights", default="weights.pt", help="where the weights go at the end")
given = options.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(2000, 16)
data = TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True)))
model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

ranks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
rank = int(os.environ.get("SLURM_PROCID", "0")) if ranks > 1 else 0
sampler = None
if ranks > 1:
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)  # needs MASTER_ADDR and MASTER_PORT
    torch.manual_seed(rank)  # each rank drops other neurons
    model, sampler = DistributedDataParallel(model), DistributedSampler(data)
loader = DataLoader(data, batch_size=50, shuffle=sampler is None, sampler=sampler)
optimizer = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=given.epochs)

training = Training(*torch_state(model=model, optimizer=optimizer, schedule=schedule))
for _ in training.epochs(given.epochs):
    for batch, wanted in training.batches(loader):
        loss = nn.functional.mse_loss(model(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(given.pause)
        if rank == 0:
            with Path(given.losses).open("a", encoding="utf-8") as file:
                print(training.steps, repr(loss.item()), file=file)
    schedule.step()
if rank == 0:
    torch.save(model.state_dict(), given.weights)
