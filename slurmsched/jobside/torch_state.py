"""Saving and loading for plain PyTorch: everything that has a `state_dict`, in one file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler."""

    def state_dict(self) -> Mapping[str, Any]:
        """Its state; what is in it only it knows, hence `Any`."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Take a state up again."""


def torch_state(**parts: Stateful) -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    """`save` and `load` for a Training: `Training(*torch_state(model=model, optimizer=optimizer))`.

    Tensors are loaded to the CPU; each part takes them to its own device. Only data is read, no code.
    """

    def save(path: Path) -> None:
        import_torch().save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(path: Path) -> None:
        held = import_torch().load(path, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(held[name])

    return save, load


def import_torch() -> ModuleType:
    """PyTorch, imported only where a script has it. Raises ImportError."""
    return sys.modules.get("torch") or import_module("torch")
