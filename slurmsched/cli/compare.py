"""`synsched compare`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from slurmsched.backends.slurm.commands import Commands
from slurmsched.cli.cluster import backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import names
from slurmsched.cli.progress import advancing
from slurmsched.cli.simulate import window
from slurmsched.comparing import Lost, Result, Sweep, run_here, sweep
from slurmsched.comparing.folder import Folder
from slurmsched.comparing.on_slurm import Array, submit, wait
from slurmsched.comparing.sweep import loaded
from slurmsched.model import Node, Resources
from slurmsched.report.comparison import compared
from slurmsched.report.comparison_view import comparison_page, comparison_view
from slurmsched.simulation import Options, Policy, policy_of
from slurmsched.simulation.inputs import GENERATED, knowledge_from, trace_from
from slurmsched.simulation.world import SimulationError
from slurmsched.traces.clusters import PARTITION, load_cluster
from slurmsched.traces.trace import Trace

__all__ = ["compare"]

_SEEDS = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?\Z")
_MOST = 1000


@dataclass(frozen=True, slots=True)
class _Work:
    """The trace as it was named: read once, or made anew for each seed and load."""

    said: str
    profiles: str | None
    form: str | None

    def trace(self, seed: int, load: float | None) -> Trace:
        made = GENERATED.match(self.said)
        if made and load is not None:
            return trace_from(f"{made['name']}:{made['jobs']}@{load:g}", seed=seed).trace
        return loaded(trace_from(self.said, profiles=self.profiles, form=self.form, seed=seed).trace, load)


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[float | None, ...]:
    try:
        loads = tuple(float(part) for part in names(value))
    except ValueError:
        raise click.BadParameter(f"'{value}': write jobs per hour, as in 3,5,7") from None
    if any(not 0 < load < 1e6 for load in loads):  # noqa: PLR2004  # far above what anybody submits
        raise click.BadParameter(f"'{value}': a load is above 0")
    return loads or (None,)


def _seeds(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    match = _SEEDS.match(value)
    last = int(match[2] or match[1]) if match else -1
    if match is None or not 0 <= last - int(match[1]) < _MOST:
        raise click.BadParameter(f"'{value}' is no seed: write 1 or 1..3")
    return tuple(range(int(match[1]), last + 1))


@click.command()
@click.option("--cluster", metavar="C", help="TYPE:NODESxGPUS[:CPUS[:MEMORY]],... or a file; the real one without it.")
@click.option("--trace", metavar="T", help="A file, such as sacct's output, or a workload such as synergy:400@6.")
@click.option("--policies", metavar="P,...", help="Systems, each alone or as SYSTEM/ORDER; the first is the yardstick.")
@click.option("--order", default="las", show_default=True, help="fifo, srtf, las or ftf, where a policy names none.")
@click.option(
    "--loads", default="", callback=_numbers, metavar="N,...", help="Jobs per hour; as the trace has it without."
)
@click.option("--seeds", default="1", show_default=True, callback=_seeds, help="As 1 or 1..3.")
@click.option("--profiles", metavar="F", help="How fast models are; the shipped profiles without it.")
@click.option("--format", "form", metavar="NAME", help="The trace's form, where it is not recognised.")
@click.option("--round", "period", default=300.0, show_default=True, metavar="SECONDS", help="Between two rounds.")
@click.option("--overhead", default=60.0, show_default=True, metavar="SECONDS", help="What a restart costs a job.")
@click.option("--window", callback=window, metavar="A:B", help="Measure these jobs, in order of arrival.")
@click.option("--skip-impossible", is_flag=True, help="Leave out jobs that could never run.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes; one for each core without it.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report of one file there.")
@click.option("--on-slurm", is_flag=True, help="Run the simulations as a job array on Slurm.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="--on-slurm: where all nodes can write."
)
@click.option("--resume", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Take a folder up again.")
@click.option("--cell", type=int, hidden=True, help="Run this cell of the folder and no other: what the tasks do.")
@click.option("--partition", default="", help="--on-slurm: where the tasks run.")
@click.option("--at-once", type=click.IntRange(min=0), default=0, help="--on-slurm: most tasks at once.")
@json_option
@click.pass_obj
def compare(
    invocation: Invocation,
    /,
    *,
    cluster: str | None,
    trace: str | None,
    policies: str | None,
    order: str,
    loads: tuple[float | None, ...],
    seeds: tuple[int, ...],
    profiles: str | None,
    form: str | None,
    period: float,
    overhead: float,
    window: tuple[int, int] | None,
    skip_impossible: bool,
    jobs: int | None,
    html: Path | None,
    on_slurm: bool,
    folder: Path | None,
    resume: Path | None,
    cell: int | None,
    partition: str,
    at_once: int,
    as_json: bool,
) -> None:
    """Compare policies on the same work.

    What would my last month have been under another policy? Everything is simulated, with the code that runs live.

    \b
    Example:
      synsched compare --trace month.txt --policies slurm,synergy --html m.html
      synsched compare --cluster v100:16x8 --trace synergy:1000@6 \\
        --policies slurm,synergy/fifo,synergy/las --loads 3,6,9
    """
    if resume is not None and cell is not None:
        Folder(resume.absolute()).run(cell)
        return
    if resume is not None:
        place, planned = Folder(resume.absolute()), Folder(resume).sweep()
    else:
        if trace is None or policies is None:
            raise click.UsageError("name the work with --trace and the policies with --policies")
        options = Options(period=period, overhead=overhead, window=window, skip_impossible=skip_impossible)
        nodes, name = _nodes(invocation, cluster)
        planned = sweep(
            nodes,
            knowledge_from(profiles),
            _policies(policies, order),
            _Work(trace, profiles, form).trace,
            options,
            seeds=seeds,
            loads=loads,
            cluster=name,
            command=f"synsched {shlex.join(sys.argv[1:])}",
        )
        place = Folder((folder or Path("synsched-comparison")).absolute())
    if on_slurm or resume is not None:
        results = _on_slurm(invocation, place, planned, Array(partition, at_once=at_once), fresh=resume is None)
    else:
        with advancing(f"{len(planned.cells)} simulations") as told:
            results = run_here(planned, jobs, on_result=told)
    _show(planned, results, html, as_json=as_json)


def _policies(said: str, order: str) -> Sequence[Policy]:
    found = [policy_of(name, order) for name in names(said)]
    if not found:
        raise click.UsageError("name at least one policy with --policies")
    return found


def _nodes(invocation: Invocation, said: str | None) -> tuple[tuple[Node, ...], str]:
    """The described cluster, or the real one as it would be with nothing on it."""
    if said is not None:
        spec = load_cluster(said)
        return spec.nodes, spec.name
    snapshot = backend(invocation.settings).observe()
    empty = (
        replace(
            node,
            used=Resources(),
            gpus=tuple(replace(gpu, used=0) for gpu in node.gpus),
            partitions=frozenset({PARTITION}),
        )
        for node in snapshot.nodes
        if node.gpus
    )
    nodes = tuple(empty)
    if not nodes:
        raise SimulationError("this cluster has no GPUs: describe one with --cluster")
    return nodes, f"{snapshot.cluster or 'this cluster'}, {len(nodes)} nodes with GPUs"


def _on_slurm(
    invocation: Invocation, place: Folder, planned: Sweep, array: Array, *, fresh: bool
) -> tuple[Result | Lost, ...]:
    if fresh:
        place.create(planned)
    cluster = invocation.settings.cluster
    job = submit(place, planned, array, cluster.slurm_conf)
    if job is not None:
        click.echo(f"synsched: {len(place.missing(planned))} simulations as job {job}, in {place.path}", err=True)
        with advancing(f"job {job}") as told:
            wait(
                job,
                Commands(cluster.timeout, cluster.slurm_conf),
                invocation.clock,
                on_poll=lambda: told(1 - len(place.missing(planned)) / len(planned.cells)),
            )
    return place.results(planned)


def _show(planned: Sweep, results: tuple[Result | Lost, ...], html: Path | None, *, as_json: bool) -> None:
    comparison = compared(results)
    if html is not None:
        html.write_text(comparison_page(planned, results, comparison), encoding="utf-8")
    if as_json:
        print_json(
            {
                "headline": comparison.headline,
                "rows": comparison.rows,
                "cells": comparison.cells,
                "lost": comparison.lost,
            }
        )
    else:
        console().print(comparison_view(comparison))
    if comparison.lost:
        click.get_current_context().exit(1)
