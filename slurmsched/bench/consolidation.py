"""What it takes to put the copies of a forked job together: time, and memory of a process that does nothing else."""

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
"""Of the copies: three, at three speeds."""

_TENSOR_MIB: Final = 64
"""MiB of a tensor; a large model is many of them."""

_MIB: Final = 1 << 20
_POLL_INTERVAL: Final = 0.005
_STATUS: Final = re.compile(r"^(VmHWM|VmRSS|RssAnon):\s+(\d+) kB$", re.MULTILINE)
_AVERAGING_BY_FORM: Final[Mapping[str, Callable[[Sequence[CopyState], Path], None]]] = {
    "safetensors": average,
    "torch": average_state_dicts,
}


@dataclass(frozen=True, slots=True)
class ConsolidationTime:
    """One mean of `copies` files of `model_mb` MiB each.

    `peak_mb` is the most that was resident beyond what the process held before, in MiB; `peak_own_mb` is the most
    without the pages of files, which the kernel takes back where memory is short.
    """

    form: str
    copies: int
    model_mb: int
    seconds: float
    peak_mb: float
    peak_own_mb: float


def time_consolidation(model_mib: int) -> tuple[ConsolidationTime, ...]:
    """Measure each form for a model of so many MiB in float32; torch's only where torch is installed.

    The files, up to five times as large as the model, lie in the folder for temporary files (TMPDIR). Raises OSError.
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
    """Seconds, and the peaks in MiB."""
    if form == "torch":
        import_module(form)  # not what is measured
    before = _process_memory()
    with _watch_own_memory() as own_memory:
        began = perf_counter()
        _AVERAGING_BY_FORM[form](copies, target)
        seconds = perf_counter() - began
    return seconds, _process_memory()["VmHWM"] - before["VmRSS"], max(own_memory) - before["RssAnon"]


@contextmanager
def _watch_own_memory() -> Iterator[Sequence[float]]:
    """What the process holds of its own, looked at again and again: the kernel keeps no peak of it."""
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
    """MiB that this process holds; VmHWM is the most it ever held."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return {name: int(kib) / 1024 for name, kib in _STATUS.findall(status)}


def _write_model(path: Path, model_mib: int, *, seed: int) -> None:
    """A model of random numbers: one MiB of them, again and again."""
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
    """The same in the other form, mapped and not read."""
    torch, file = import_module("torch"), open_tensor_file(path)
    numbers = np.memmap(path, dtype="<f4", mode="c", offset=len(file.header))
    layers = {each.name: torch.from_numpy(numbers[each.begin // 4 : each.end // 4]) for each in file.tensors}
    fresh = path.with_suffix(".torch")
    torch.save({"model": layers}, fresh)
    fresh.replace(path)
