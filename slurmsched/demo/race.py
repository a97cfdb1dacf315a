"""The same jobs on two equal simulated clusters: one left to Slurm's own scheduler, one with rounds.

The rounds are the daemon's own: same code, same store (in memory), with the simulated cluster and its clock underneath.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from slurmsched.backends.simulated import Cluster, JobSubmit, SimulatedBackend, VirtualClock, profiled_speed
from slurmsched.daemon.scheduling import RoundReport, Site, one_round
from slurmsched.demo.score import Score, score
from slurmsched.demo.world import Arrival
from slurmsched.knowledge import Knowledge, shipped_profiles
from slurmsched.model import Node, Snapshot, SynschedError
from slurmsched.settings.definition import Hook, Manage, Mode, Settings
from slurmsched.store.store import Store

__all__ = ["Comparison", "Frame", "RaceError", "demo_settings", "run"]

START: Final = 1_800_000_000.0
"""The virtual clock's first moment."""


class RaceError(SynschedError):
    """The race cannot end: jobs wait for what will never come."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Both clusters at the end of a round. `elapsed` in virtual seconds; `plain` is Slurm without rounds."""

    elapsed: float
    report: RoundReport
    plain: Snapshot


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the two came through, all of it simulated."""

    plain: Score
    rounds: Score


@dataclass(slots=True)
class _Lane:
    """One of the clusters with its clock."""

    cluster: Cluster
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START))


def demo_settings(settings: Settings | None = None) -> Settings:
    """These settings with rounds that act, on all jobs of the demo's partition, whatever files this machine has."""
    settings = settings or Settings()
    return replace(
        settings,
        rounds=replace(settings.rounds, mode=Mode.ENFORCE),
        manage=Manage(partitions=("gpu",)),
        hook=Hook(disable_file="/dev/null/none"),
    )


def run(
    nodes: Sequence[Node],
    arrivals: Sequence[Arrival],
    settings: Settings | None = None,
    knowledge: Knowledge | None = None,
    *,
    on_round: Callable[[Frame], None] = lambda _frame: None,
) -> Comparison:
    """Run both until every job has ended; `on_round` is called after each round.

    `knowledge` is what the rounds know and also how fast the simulated jobs really run; the shipped profiles by
    default. Raises RaceError when nothing more can happen while jobs still wait.
    """
    settings = demo_settings(settings)
    knowledge = knowledge or shipped_profiles()
    speed = profiled_speed(knowledge, nodes)
    hook = JobSubmit(settings.manage, fresh=lambda _now: True)
    plain = _Lane(Cluster(nodes, start=START, speed=speed))
    lane = _Lane(Cluster(nodes, start=START, speed=speed, hook=hook))
    for arrival in arrivals:
        plain.cluster.submit(arrival.submission, START + arrival.at)
        lane.cluster.submit(arrival.submission, START + arrival.at)
    site = Site(settings, SimulatedBackend(lane.cluster, lane.clock), knowledge)
    store = Store.in_memory(START)
    try:
        rounds = _rounds(site, store, lane, plain.cluster, on_round)
    finally:
        store.close()
    while plain.cluster.unfinished:
        _until_next_event(plain.cluster)
    return Comparison(score(plain.cluster), score(lane.cluster, rounds))


def _rounds(site: Site, store: Store, lane: _Lane, plain: Cluster, on_round: Callable[[Frame], None]) -> int:
    """Rounds, a period apart from start to start, until no job is left; how many."""
    count = 0
    while lane.cluster.unfinished:
        due = lane.clock.now() + site.settings.rounds.period
        report = one_round(site, store, lane.clock)
        count += 1
        plain.advance(lane.clock.now())
        on_round(Frame(lane.clock.now() - START, report, plain.snapshot()))
        if lane.cluster.agenda.next_time is None and not report.outcomes:
            raise _stuck(lane.cluster)
        lane.clock.advance_to(max(lane.clock.now(), due))
        lane.cluster.advance(lane.clock.now())
    return count


def _until_next_event(cluster: Cluster) -> None:
    if cluster.agenda.next_time is None:
        raise _stuck(cluster)
    cluster.advance(cluster.agenda.next_time)


def _stuck(cluster: Cluster) -> RaceError:
    waiting = [job.id for job in cluster.snapshot().jobs]
    return RaceError(f"{len(waiting)} jobs can never run on this cluster (first: {waiting[0]}): submit smaller ones")
