"""Reads pod lists of Alibaba's openb trace (cluster-trace-gpu-v2023; Weng et al., ATC 2023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from slurmsched.model import MILLI_PER_GPU
from slurmsched.traces.tables import TableRow, csv_rows
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceJob, build_trace

COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


def read_openb(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the pods with GPUs as jobs from creation to deletion; without times, all arrive at 0 and run for an hour.

    CPUs are rounded up to whole ones. Raises TraceError.
    """
    skipped = Counter[str]()
    return ImportedTrace(
        build_trace(name, _jobs(text, name, skipped), f"imported: {name}", from_first=True), dict(skipped)
    )


def _jobs(text: str, name: str, skipped: Counter[str]) -> Iterator[TraceJob]:
    for line in csv_rows(text, name, COLUMNS):
        if line.integer("num_gpu") == 0:
            skipped["asks for no GPU"] += 1
        else:
            yield _job(line)


def _job(line: TableRow) -> TraceJob:
    gpus, milli = line.integer("num_gpu"), line.integer("gpu_milli", 1)
    if milli > MILLI_PER_GPU:
        raise line.error("gpu_milli", f"at most {MILLI_PER_GPU}")
    created, deleted = line.optional_number("creation_time"), line.optional_number("deletion_time")
    if created is not None and deleted is not None and deleted < created:
        raise line.error("deletion_time", "a time after creation_time")
    part = gpus == 1 and milli < MILLI_PER_GPU
    return TraceJob(
        id=line.text("name"),
        arrival=created or 0.0,
        gpus=0 if part else gpus,
        duration=3600.0 if created is None or deleted is None else deleted - created,
        gpu_type=line.text("gpu_spec").lower(),
        milli_gpu=milli if part else 0,
        gpus_per_node=None if part else gpus,
        cpus=max(1, -(-line.integer("cpu_milli") // MILLI_PER_GPU)),
        memory=line.integer("memory_mib"),
    )
