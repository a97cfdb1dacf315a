"""Measures the averaging of a forked job's copies: its time, and the memory of a process that does nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from typing import Final

import numpy as np

from slurmsched.jobside.forking import CopyState, average, average_state_dicts
from slurmsched.jobside.tensors import open_tensor_file

STEPS: Final = (4000, 2000, 1000)
"""Steps done by each of the three copies, which run at different speeds."""

_TENSOR_MIB: Final = 64
"""MiB of a tensor; a large model has many of this size."""

_MIB: Final = 1 << 20
_POLL_INTERVAL: Final = 0.005
_STATUS: Final = re.compile(r"^(VmHWM|VmRSS|RssAnon):\s+(\d+) kB$", re.MULTILINE)
_AVERAGING_BY_FORM: Final[Mapping[str, Callable[[Sequence[CopyState], Path], None]]] = {
    "safetensors": average,
    "torch": average_state_dicts,
}


@dataclass(frozen=True, slots=True)
class ConsolidationTime:
    """The cost of averaging `copies` files of `model_mb` MiB each.

    `peak_mb` is the peak resident memory in MiB beyond that before the averaging. `peak_own_mb` leaves out the pages of
    mapped files, which the kernel reclaims when memory is short.
    """

    form: str
    copies: int
    model_mb: int
    seconds: float
    peak_mb: float
    peak_own_mb: float


def time_consolidation(model_mib: int) -> tuple[ConsolidationTime, ...]:
    """Measures each file format for a float32 model of `model_mib` MiB; torch's only if torch is installed.

    The files take up to five times the model's size in TMPDIR. Raises OSError.
    """
    return tuple(_time_form(form, model_mib) for form in _AVERAGING_BY_FORM if form == "safetensors" or find_spec(form))


def _time_form(form: str, model_mib: int) -> ConsolidationTime:
    with TemporaryDirectory(prefix="synsched-bench-") as name:
        copies = [CopyState(Path(name) / f"copy-{number}", steps) for number, steps in enumerate(STEPS)]
        for number, copy in enumerate(copies):
            _write_model(copy.path, model_mib, seed=number)
            if form == "torch":
                _write_as_torch(copy.path)
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            seconds, peak, own = fresh.submit(_measure, form, copies, Path(name) / "mean").result()
    return ConsolidationTime(form, len(copies), model_mib, seconds, peak, own)


def _measure(form: str, copies: Sequence[CopyState], target: Path) -> tuple[float, float, float]:
    """Returns the seconds, and the peaks of `ConsolidationTime` in MiB."""
    if form == "torch":
        import_module(form)  # the import is not part of the measurement
    before = _process_memory()
    with _watch_own_memory() as own_memory:
        began = perf_counter()
        _AVERAGING_BY_FORM[form](copies, target)
        seconds = perf_counter() - began
    return seconds, _process_memory()["VmHWM"] - before["VmRSS"], max(own_memory) - before["RssAnon"]


@contextmanager
def _watch_own_memory() -> Iterator[Sequence[float]]:
    """Yields samples of the process's anonymous memory in MiB, for which the kernel keeps no peak."""
    readings, stopped = [_process_memory()["RssAnon"]], Event()

    def watch() -> None:
        while not stopped.wait(_POLL_INTERVAL):
            readings.append(_process_memory()["RssAnon"])

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield readings
    finally:
        stopped.set()
        watcher.join()


def _process_memory() -> Mapping[str, float]:
    """Returns the memory of this process in MiB by the names of /proc/self/status; VmHWM is the peak."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return {name: int(kib) / 1024 for name, kib in _STATUS.findall(status)}


def _write_model(path: Path, model_mib: int, *, seed: int) -> None:
    """Writes a model that repeats one MiB of random numbers."""
    block = np.random.default_rng(seed).standard_normal(_MIB // 4, dtype=np.float32).tobytes()
    layers = {}
    for begin in range(0, model_mib, _TENSOR_MIB):
        end = min(begin + _TENSOR_MIB, model_mib)
        offsets = [begin * _MIB, end * _MIB]
        layers[f"layer-{begin}"] = {"dtype": "F32", "shape": [(end - begin) * _MIB // 4], "data_offsets": offsets}
    header = json.dumps(layers).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(model_mib):
            file.write(block)


def _write_as_torch(path: Path) -> None:
    """Rewrites a safetensors file in torch's format, through a memory map."""
    torch, file = import_module("torch"), open_tensor_file(path)
    numbers = np.memmap(path, dtype="<f4", mode="c", offset=len(file.header))
    layers = {tensor.name: torch.from_numpy(numbers[tensor.begin // 4 : tensor.end // 4]) for tensor in file.tensors}
    fresh = path.with_suffix(".torch")
    torch.save({"model": layers}, fresh)
    fresh.replace(path)
