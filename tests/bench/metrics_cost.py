"""What the metrics cost: `python -m tests.bench.metrics_cost [NODES] [JOBS]`.

One round under gandiva-fair, most GPUs taken and 50 users named; prints CPU seconds of the round, of the update after
it with and without the textfile, of a heartbeat, and of a scrape.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from slurmsched.backends.protocol import CallCounts
from slurmsched.backends.recorded import RecordedBackend, Recording
from slurmsched.bench.workload import THREE_TYPES, follow_decision, generate_snapshot
from slurmsched.daemon.clock import RealClock
from slurmsched.daemon.metrics_exposition import MetricsExporter
from slurmsched.daemon.scheduler import SchedulerContext, schedule_round
from slurmsched.knowledge import shipped_profiles
from slurmsched.settings import (
    HookSettings,
    ManageSettings,
    MetricsSettings,
    Mode,
    PolicySettings,
    RoundSettings,
    Settings,
    StorageSettings,
)
from slurmsched.store.store import Store

REPEATED = 15


def cpu_seconds(work: Callable[[], object]) -> float:
    """The median of several times."""
    spent = []
    for _ in range(REPEATED):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return median(spent)


def main() -> None:
    nodes, jobs = (int(word) for word in (*sys.argv[1:], *("1000", "5000")[len(sys.argv) - 1 :]))
    folder = Path(tempfile.mkdtemp())
    settings = Settings(
        rounds=RoundSettings(mode=Mode.OBSERVE),
        manage=ManageSettings(partitions=("gpu",)),
        policy=PolicySettings(system="gandiva-fair"),
        hook=HookSettings(heartbeat=str(folder / "heartbeat"), disable_file=str(folder / "disable")),
        storage=StorageSettings(path=str(folder / "synsched.db"), keep_snapshots=0),
        metrics=MetricsSettings(textfile=str(folder / "synsched.prom"), users=50),
    )
    queue = generate_snapshot(8 * nodes, nodes, jobs, shape=THREE_TYPES)
    backend = RecordedBackend([Recording(queue)])
    clock = RealClock()
    with closing(Store.open(folder / "synsched.db", clock.now())) as store:
        context = SchedulerContext(settings, backend, shipped_profiles())
        first = schedule_round(context, store, clock)
        later, _ = follow_decision(queue, first.result.decision)
        backend._recordings = (backend._recordings[0], Recording(later))
        began = time.process_time()
        report = schedule_round(context, store, clock)
        print(f"round                     {time.process_time() - began:8.3f} s")
        exporter = MetricsExporter(settings, store, clock, print, serves=False)
        exporter.configure(settings, backend.name)
        with_file = cpu_seconds(lambda: exporter.round_ended(report, CallCounts()))
        exporter._settings = replace(settings, metrics=MetricsSettings(listen="127.0.0.1:9797", users=50))
        exporter._serves = True  # but no round is over: no port is opened
        print(f"update and textfile       {with_file:8.4f} s")
        metrics = exporter._metrics
        print(f"update alone              {cpu_seconds(lambda: metrics.round_ended(report, settings, 1.0)):8.4f} s")
        print(f"heartbeat                 {cpu_seconds(exporter._publish):8.4f} s")
    registry = CollectorRegistry()
    registry.register(exporter._collector)
    ProcessCollector(registry=registry)
    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        encode, form = choose_encoder(accept)
        text = encode(registry)
        took = cpu_seconds(lambda encode=encode: encode(registry))  # type: ignore[misc] # of this pass
        print(f"scrape                    {took:8.4f} s, {len(text)} bytes of {form.partition(';')[0]}")


if __name__ == "__main__":
    main()
