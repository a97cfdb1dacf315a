"""Pod lists of Alibaba's openb trace (cluster-trace-gpu-v2023; Weng et al., ATC 2023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from slurmsched.model import MILLI
from slurmsched.traces.imported import Imported, Sources, in_order
from slurmsched.traces.lines import Line, lines
from slurmsched.traces.trace import TraceJob

__all__ = ["COLUMNS", "read_openb"]

COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


def read_openb(text: str, name: str, _sources: Sources) -> Imported:
    """Jobs with GPUs, from creation to deletion. A list without times has all of them at once, each for an hour.

    CPUs are rounded up to whole ones. Raises TraceError.
    """
    skipped = Counter[str]()
    return Imported(in_order(name, _jobs(text, name, skipped), f"imported: {name}", from_first=True), dict(skipped))


def _jobs(text: str, name: str, skipped: Counter[str]) -> Iterator[TraceJob]:
    for line in lines(text, name, COLUMNS):
        if line.whole("num_gpu") == 0:
            skipped["asks for no GPU"] += 1
        else:
            yield _job(line)


def _job(line: Line) -> TraceJob:
    gpus, milli = line.whole("num_gpu"), line.whole("gpu_milli", 1)
    if milli > MILLI:
        raise line.mistake("gpu_milli", f"at most {MILLI}")
    created, deleted = line.optional_number("creation_time"), line.optional_number("deletion_time")
    if created is not None and deleted is not None and deleted < created:
        raise line.mistake("deletion_time", "a time after creation_time")
    part = gpus == 1 and milli < MILLI
    return TraceJob(
        id=line.text("name"),
        arrival=created or 0.0,
        gpus=0 if part else gpus,
        duration=3600.0 if created is None or deleted is None else deleted - created,
        gpu_type=line.text("gpu_spec").lower(),
        milli_gpu=milli if part else 0,
        gpus_per_node=None if part else gpus,
        cpus=max(1, -(-line.whole("cpu_milli") // MILLI)),
        memory=line.whole("memory_mib"),
    )
