"""A site with something of everything that the live page shows, of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import cos, pi
from pathlib import Path

import numpy as np

from slurmsched.daemon.exporter import Exporter
from slurmsched.model import (
    ExpectedTime,
    Job,
    Node,
    NodeState,
    QueueForecast,
    Reason,
    ReasonCode,
    Snapshot,
    StartForecast,
)
from slurmsched.settings.file import load_settings_file
from slurmsched.store.database import Database
from slurmsched.store.start_forecasts import ForecastStore
from tests.builders import job, node, share, snapshot
from tests.unit.cli.conftest import NOON, Site, StandingClock

USERS = ("alice", "bob", "carol", "dave", "erin")
NAMES = ("resnet50-sweep", "bert-large", "gnmt", "deepspeech2", "llama-7b-sft", "vit")
HOUR, DAY = 3600.0, 86400.0


def cluster(
    nodes: int,
    waiting: int,
    *,
    now: float = NOON,
    names: Sequence[str] = NAMES,
    hint: str = "model=secret-model",
) -> Snapshot:
    """So many nodes of three types, nearly full; one is down, one reserved, one has shards; and jobs that wait."""
    made, jobs = list[Node](), list[Job]()
    for number in range(nodes):
        kind = ("v100", "a100", "k80")[number * 3 // nodes]
        name = f"{kind}-{number + 1}"
        width = (8, 4, 2, 2)[number % 4]
        if number == nodes - 1:
            made.append(node(name, gpu_type=kind, state=NodeState.DOWN, state_text="DOWN*", reason="fan failed [root]"))
            continue
        if number == nodes - 2:
            made.append(replace(node(name, gpu_type=kind), reservation="exam"))
            continue
        taken = 8 - (number % 3)
        for first in range(0, taken - width + 1, width):
            indices = range(first, first + width)
            one = share(name, indices, cpus=3 * width, memory=60_000 * width, gpu_type=kind)
            jobs.append(_job(len(jobs), width, names, hint, on=[one]))
        busy = range(taken // width * width)
        made.append(node(name, gpu_type=kind, busy=busy))
    jobs += [_job(len(jobs) + index, (1, 2, 8, 16)[index % 4], names, hint) for index in range(waiting)]
    seen = snapshot(made, jobs, time=now - 30, cluster="demo")
    shared = next(one for one in seen.nodes if not all(gpu.used for gpu in one.gpus) and not one.reservation)
    gpus = tuple(replace(gpu, used=gpu.used or (500 if gpu.index % 2 else 0), shards=10) for gpu in shared.gpus)
    return replace(seen, nodes=tuple(replace(one, gpus=gpus) if one is shared else one for one in seen.nodes))


def _job(number: int, gpus: int, names: Sequence[str], hint: str, **other: object) -> Job:
    named, user = names[number % len(names)], USERS[number * 7 % len(USERS)]
    return job(1000 + number, gpus=gpus, cpus=3 * gpus, user=user, name=named, hint=hint, **other)  # type: ignore[arg-type]  # by name


def live_site(
    folder: Path,
    nodes: int = 9,
    waiting: int = 7,
    *,
    days: float = 5.0,
    now: float = NOON,
    private: frozenset[str] = frozenset(),
    **other: object,
) -> Site:
    """A site with `days` of history and one present round, which is published."""
    site = Site(folder, StandingClock(now), now)
    site.configure()
    seen = cluster(nodes, waiting, now=now, **other)  # type: ignore[arg-type]  # by name
    running = [one.id for one in seen.jobs if one.allocations]
    queue = [one.id for one in seen.jobs if not one.allocations]
    why = {one: Reason(ReasonCode.KEEPS_LEASE) for one in running}
    why |= {
        one: Reason(ReasonCode.BEHIND, {"count": 1 + index, "order": "las", "last": running[index % len(running)]})
        for index, one in enumerate(queue)
    }
    if days:
        database = site.opened()
        with database.transaction():
            record_history(database, seen, days, now)
        database.close()
    site.round(seen, why=why, order=[*running, *queue])
    site.beat()
    database = site.opened()
    starts = [now + HOUR * (0.5 + 1.7 * index) for index in range(len(queue))]
    told = [ExpectedTime(at - 0.4 * (at - now), at, at + 0.9 * (at - now)) for at in starts]
    forecast = QueueForecast(
        now - 60,
        now + 14 * DAY,
        50,
        tuple(StartForecast(*pair, pair[1], 50, 0) for pair in zip(queue, told, strict=True)),
    )
    ForecastStore(database).record(forecast, now - 40)
    database.close()
    publish(site, private)
    return site


def publish(site: Site, private: frozenset[str] = frozenset()) -> None:
    """What the daemon publishes of what the database has now."""
    said: list[str] = []
    seen = Snapshot(site.now, (), (), private_data=private)
    Exporter(load_settings_file(site.config).settings.storage, site.clock, said.append, serves=False).publish(seen)
    assert said == []


def record_history(database: Database, seen: Snapshot, days: float, now: float) -> None:
    """Rounds every five minutes but for a night without any, the starts of many jobs, and how forecasts turned out."""
    draws = np.random.default_rng(7)
    gpus = sum(len(one.gpus) for one in seen.nodes)
    for at in np.arange(now - days * DAY, now - 600, 300.0).tolist():
        if now - 2.4 * DAY < at < now - 2.0 * DAY:
            continue
        busy = 0.78 - 0.2 * cos(2 * pi * at / DAY) + 0.04 * float(draws.standard_normal())
        database.insert("rounds", {
            "started": at, "finished": at + 1, "mode": "enforce", "system": "synergy", "ordering": "las", "gpus": gpus,
            "gpus_used": round(min(busy, 1.0) * gpus), "gpus_down": 8, "running": round(busy * gpus / 3),
            "waiting": max(round(30 * (busy - 0.7)), 0),
        })  # fmt: skip
    for number in range(int(60 * days)):
        at = now - days * DAY + number * days * DAY / (60 * days + 1)
        wait = float(draws.lognormal(6 - 1.5 * cos(2 * pi * at / DAY), 1.2))
        name, seen_at = str(number + 1), {"first_seen": at, "last_seen": at + 9, "submitted": at - wait}
        database.insert("jobs", {"id": name, "owner": "alice", "state": "finished", "original": "{}", **seen_at})
        database.insert("events", {"at": at, "job": name, "kind": "started", "sentence": "runs"})
        times = {"told": at - wait, "until": at + DAY, "low": at - 900, "median": at - 300}
        high = at + (900 if number % 6 else -120)
        row = {"job": name, "which": "first", "started": at, "owner": "alice", **times, "high": high}
        database.insert("told_starts", row)
