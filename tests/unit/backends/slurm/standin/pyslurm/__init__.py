"""Stands for pyslurm in the child process, and behaves as 25.11.2 was measured to.

It shows the cluster in the JSON file that STANDIN_CLUSTER names: a list of records of each kind, its release, and how
it ends. An attribute `{"raises": "ValueError"}` cannot be read; TRES are given as `{"cpu": 6, "gres/gpu:v100": 2}`.
"""

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from enum import Flag, auto
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

_CLUSTER: Final[dict[str, Any]] = json.loads(Path(os.environ["STANDIN_CLUSTER"]).read_text(encoding="utf-8"))
_END: Final[str] = _CLUSTER["end"]
_NO_UTF8: Final = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
_PLAIN: Final = ("cpu", "mem", "node", "billing")

__version__: str = _CLUSTER["version"]

if _END == "exit 1 at import":
    sys.stderr.write("fatal: Could not establish a configuration source\n")
    os._exit(1)
if _END == "no library":
    raise ImportError("libslurmfull.so: cannot open shared object file")


class PyslurmError(Exception):
    """What every error of pyslurm is."""


class _Amount:
    def __init__(self, count: int) -> None:
        self.count = count


class _Tres:
    """Amounts: plain ones as attributes, None where there are none, and GRES by name."""

    def __init__(self, amounts: Mapping[str, int]) -> None:
        self.gres = {
            name.removeprefix("gres/"): _Amount(count) for name, count in amounts.items() if name.startswith("gres/")
        }
        for name in _PLAIN:
            setattr(self, name, _Amount(amounts[name]) if name in amounts else None)


class ReservationFlags(Flag):
    """Some of those that a reservation may have."""

    MAINTENANCE = auto()
    MAGNETIC = auto()
    FLEX = auto()
    IGNORE_RUNNING_JOBS = auto()

    @classmethod
    def of(cls, names: Iterable[str]) -> "ReservationFlags":
        """Raises ValueError for one that is none of them."""
        unknown = set(names) - set(cls.__members__)
        if unknown:
            raise ValueError(f"{unknown} is not a valid ReservationFlags")
        return reduce(or_, (cls[name] for name in names), cls(0))


class _Record:
    """What is shown as an attribute; anything else does not exist in this release."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name not in self._values:
            raise AttributeError(name)
        value = self._values[name]
        if isinstance(value, dict) and "raises" in value:
            raise {"UnicodeDecodeError": _NO_UTF8}.get(value["raises"], ValueError("not to be read"))
        if name == "flags":
            return ReservationFlags.of(value)
        return _Tres(value) if name.endswith("ed_tres") and "requested_tres" in self._values else value

    def get_resource_layout_per_node(self) -> Any:
        """By node what a job has there."""
        return self.layout


class _Kind:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def load(self) -> dict[int, _Record]:
        """All records of this kind."""
        if self._kind == "jobs":
            _ended()
        return dict(enumerate(map(_Record, _CLUSTER[self._kind])))


def _ended() -> None:
    """End as it is said, if at all."""
    if _END.startswith("SIG"):
        os.kill(os.getpid(), signal.SIGRTMIN + 1 if "+" in _END else signal.Signals[_END])
    kept: list[bytearray] = []
    while _END == "leak":
        try:
            kept.append(bytearray(2**24))
        except MemoryError as error:
            raise MemoryError(f"{len(kept) * 16} MiB were leaked") from error
    while _END == "hang":
        time.sleep(60)
    _says()


def _says() -> None:
    """Print or raise what is said."""
    match _END:
        case "noise":
            os.write(1, b'{"jobs": "noise of the C library"}\n')
            print("noise of pyslurm")
        case "nonsense":
            for place in _answers():
                os.write(place, b"nonsense")
        case "error":
            raise TypeError("an object that is none")
        case "silent":
            raise PyslurmError("Unable to contact slurm controller (connect failure)")


def _answers() -> Iterable[int]:
    """The pipe on which the program answers: a library that writes where it should not."""
    for place in range(3, 20):
        try:
            if stat.S_ISFIFO(os.fstat(place).st_mode):
                yield place
        except OSError:
            continue


Jobs, Nodes = _Kind("jobs"), _Kind("nodes")
Partitions, Reservations = _Kind("partitions"), _Kind("reservations")
