"""All ranks of a job do the same at the same step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.jobside.errors import JobsideError
from slurmsched.jobside.surroundings import Surroundings

__all__ = ["Agree", "Ranks", "ranks_of"]

Agree = Callable[[Sequence[int]], Sequence[int]]
"""The largest of each number over all ranks. Every rank has to call it, with as many numbers, or all wait."""

_TORCH: Final = "torch.distributed"


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process is number `rank` of `size`, and how they agree."""

    rank: int
    size: int
    agree: Agree


def ranks_of(where: Surroundings, agree: Agree | None = None) -> Ranks:
    """The ranks of torch's process group where there is one, else those that Slurm or torchrun started.

    Raises JobsideError where there are several and no way to agree.
    """
    distributed = sys.modules.get(_TORCH)
    if agree is not None:
        return Ranks(where.rank, where.ranks, agree)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        size = int(distributed.get_world_size())
        return Ranks(int(distributed.get_rank()), size, _over_torch if size > 1 else _alone)
    if where.ranks > 1:
        raise JobsideError(
            f"there are {where.ranks} ranks: make the Training after init_process_group, or give it agree= (the"
            " largest over all ranks)"
        )
    return Ranks(0, 1, _alone)


def _alone(values: Sequence[int]) -> Sequence[int]:
    return values


def _over_torch(values: Sequence[int]) -> Sequence[int]:
    torch, distributed = sys.modules["torch"], sys.modules[_TORCH]
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    held = torch.tensor(list(values), dtype=torch.int64, device=device)
    distributed.all_reduce(held, op=distributed.ReduceOp.MAX)
    return [int(value) for value in held.tolist()]
