"""`synsched demo`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import numpy as np
from rich.console import Console
from rich.live import Live

from slurmsched.cli.cluster import configured_knowledge
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import policy_options, with_policy
from slurmsched.demo.race import RaceFrame, cluster_nodes, generate_arrivals, run_race
from slurmsched.model import Outcome, Result
from slurmsched.report.demo import frame_line, frame_view, race_result_view

_ROUNDS_PER_LINE = 50
"""One line is printed for this many rounds if the output is no terminal."""

_SHOWN_OUTCOMES = 20


@click.command()
@click.option("--cluster", default="v100:2x8,p100:1x8,k80:2x8", show_default=True, help="TYPE:NODESxGPUS,...")
@click.option("--jobs", type=click.IntRange(min=1), default=160, show_default=True, help="Jobs that arrive.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the generated queue.")
@policy_options
@json_option("demo.race:RaceResult")
@click.pass_obj
def demo(
    invocation: Invocation,
    *,
    cluster: str,
    jobs: int,
    seed: int,
    system: str | None,
    order: str | None,
    as_json: bool,
) -> None:
    """Watch a simulated cluster beside plain Slurm.

    The same jobs run on two equal clusters: one under Slurm's priority and backfill, one under our rounds. No Slurm is
    needed, no real job is touched, and the rounds run the same code as on a real cluster.

    \b
    Example:
      synsched demo
      synsched demo --cluster v100:4x8 --jobs 300 --system hadar
    """
    settings = with_policy(invocation.settings, system, order)
    nodes = cluster_nodes(cluster)
    queue = generate_arrivals(np.random.default_rng(seed), nodes, jobs)
    screen = console(to_errors=as_json)
    with _round_display(screen) as on_round:
        comparison = run_race(nodes, queue, settings, configured_knowledge(settings), on_round=on_round)
    if as_json:
        print_json(comparison)
    else:
        screen.print(race_result_view(comparison))


@contextmanager
def _round_display(screen: Console) -> Iterator[Callable[[RaceFrame], None]]:
    """Yields a function that shows each round: on a terminal a live view, otherwise a line now and then."""
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield lambda frame: screen.print(frame_line(frame)) if frame.report.id % _ROUNDS_PER_LINE == 0 else None
        return
    latest: deque[Outcome] = deque(maxlen=_SHOWN_OUTCOMES)
    with Live(console=screen, transient=True, refresh_per_second=10) as live:

        def draw(frame: RaceFrame) -> None:
            latest.extend(outcome for outcome in frame.report.outcomes if outcome.result is Result.DONE)
            live.update(frame_view(frame, tuple(latest)))

        yield draw
