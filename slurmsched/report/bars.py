"""One character for each GPU, so that fragmentation is seen at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from slurmsched.model import MILLI, GpuUse

__all__ = ["GpuBar", "LoadBar"]

_TAKEN: Final = ("█", "#")
_PARTLY: Final = ("▒", "+")
_IDLE: Final = ("·", ".")


@dataclass(frozen=True, slots=True)
class GpuBar:
    """A node's devices in the order of their indices: taken, partly taken (shards), idle. ASCII where it must be."""

    gpus: tuple[GpuUse, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("").join(_drawn(_sign(gpu.used), options.ascii_only) for gpu in self.gpus)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(len(self.gpus), len(self.gpus))


@dataclass(frozen=True, slots=True)
class LoadBar:
    """A share of something, `width` characters wide; anything above nothing shows at least one."""

    used: float
    total: float
    width: int = 20

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        part = min(max(self.used / self.total, 0.0), 1.0) if self.total else 0.0
        filled = max(int(part * self.width), 1 if part > 0 else 0)
        signs = [_TAKEN] * filled + [_IDLE] * (self.width - filled)
        yield Text("").join(_drawn(sign, options.ascii_only) for sign in signs)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)


def _sign(used: int) -> tuple[str, str]:
    if used == 0:
        return _IDLE
    return _TAKEN if used >= MILLI else _PARTLY


def _drawn(sign: tuple[str, str], ascii_only: bool) -> Text:
    styles = {_TAKEN: "green", _PARTLY: "yellow", _IDLE: "dim"}
    return Text(sign[ascii_only], style=styles[sign])
