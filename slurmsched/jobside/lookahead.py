"""Copies begin a round beyond the mean, in the direction in which it has moved since the round before.

Copies that train side by side take fewer steps one after the other than one that is alone, and their mean moves less
far. Blockwise model-update filtering makes up for it by a momentum of the means of 1 - 1/N for N equal copies (K. Chen
and Q. Huo, ICASSP 2016), in Nesterov's form, in which DiLoCo has it too (A. Douillard et al., 2023). Copies that have
done shares p of the steps count as 1 / sum(p^2) equal ones. One copy alone has no momentum, and trains as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from slurmsched.jobside.errors import TensorError
from slurmsched.jobside.torch_state import torch_module
from slurmsched.jobside.tracker import Fork

__all__ = ["Model", "look_ahead", "momentum"]


class Model(Protocol):
    """A `torch.nn.Module`."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """What is trained, by the names that the state dict has; tensors of torch's, hence `Any`."""


def momentum(fork: Fork) -> float:
    """The part of its last move by which a round begins beyond the mean; 0 where one copy did all steps, or none did
    any."""
    done = sum(fork.counted)
    return 1 - sum((steps / done) ** 2 for steps in fork.counted) if done else 0.0


def look_ahead(fork: Fork, **models: Model) -> None:
    """Move the parameters of models that have just loaded `fork.state`, named as `torch_state` has them.

    Nothing else is moved: not the optimizer's state, nor the statistics of normalised batches. Parameters are read one
    at a time. Raises TensorError where the round before had others.
    """
    earlier, part = fork.earlier, momentum(fork)
    if earlier is None or not part:
        return
    torch = torch_module()
    held = torch.load(earlier, map_location="cpu", mmap=True, weights_only=True)
    with torch.no_grad():
        for name, model in models.items():
            for key, parameter in model.named_parameters():
                if key not in held.get(name, {}):
                    raise TensorError(f"{earlier} has no {name}.{key}: use the names that torch_state has")
                parameter.add_(parameter - held[name][key].to(parameter.device), alpha=part)
