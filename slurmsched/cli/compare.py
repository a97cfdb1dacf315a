"""`synsched compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from slurmsched.backends.slurm.commands import Commands
from slurmsched.cli.cluster import connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import (
    check_page_file,
    console,
    json_option,
    print_json,
    progress_reporter,
    typed_command,
    write_page,
)
from slurmsched.cli.parameters import (
    complete_files,
    complete_formats,
    complete_orders,
    complete_policies,
    parse_seeds,
    split_names,
)
from slurmsched.cli.simulate import early_option, parse_window, say_what_ignores_the_order
from slurmsched.comparison.sweep import (
    ArrayOptions,
    CellResult,
    FailedCell,
    Sweep,
    SweepFolder,
    build_sweep,
    run_locally,
    scale_load,
    submit_array,
    wait_for_array,
)
from slurmsched.model import Node, Resources
from slurmsched.model.reasons import pluralise
from slurmsched.report.comparison import Comparison, ComparisonRow, compare_results, comparison_page, comparison_view
from slurmsched.report.traces import skipped_lines
from slurmsched.simulation import PolicyChoice, SimulationOptions, parse_policy
from slurmsched.simulation.inputs import GENERATED_TRACE, SimulationError, load_trace, profiles_or_shipped
from slurmsched.simulation.results import RunMetrics
from slurmsched.simulation.submissions import impossible_reasons, unknown_models
from slurmsched.traces.clusters import SPEC_PARTITION, load_cluster
from slurmsched.traces.trace import ImportedTrace, Trace


@dataclass(frozen=True, slots=True)
class _TraceSource:
    """The trace of --trace: read from a file, or generated for each seed and load."""

    text: str
    profiles: str | None
    file_format: str | None

    def load(self, seed: int, load: float | None) -> Trace:
        generated = GENERATED_TRACE.match(self.text)
        if generated and load is not None:
            text = f"{generated['name']}:{generated['jobs']}@{load:g}"
            return load_trace(text, profiles=self.profiles, seed=seed).trace
        return scale_load(self.imported(seed).trace, load)

    def imported(self, seed: int) -> ImportedTrace:
        return load_trace(self.text, profiles=self.profiles, form=self.file_format, seed=seed)

    def left_out(self, seed: int, nodes: Sequence[Node], *, impossible: bool) -> Sequence[str]:
        """How many jobs are not simulated, by reason, with those that can never run if they are left out."""
        imported = self.imported(seed)
        never = sum(map(bool, impossible_reasons(imported.trace.jobs, nodes))) if impossible else 0
        return skipped_lines({**imported.skipped, **({_NEVER: never} if never else {})})


_NEVER = "they can never run on this cluster"


def _parse_loads(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[float | None, ...]:
    try:
        loads = tuple(float(part) for part in split_names(value))
    except ValueError:
        raise click.BadParameter(f"'{value}': write jobs per hour, as in 3,5,7") from None
    if any(not 0 < load < 1e6 for load in loads):  # noqa: PLR2004  # far above any real load
        raise click.BadParameter(f"'{value}': a load must be above 0 jobs per hour")
    return loads or (None,)


def _parse_seeds(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    return tuple(parse_seeds(value))


@click.command()
@click.option(
    "--cluster",
    metavar="C",
    shell_complete=complete_files,
    help="TYPE:NODESxGPUS[:CPUS[:MEMORY]],... or a file. Default: the real cluster.",
)
@click.option(
    "--trace",
    metavar="T",
    shell_complete=complete_files,
    help="A file, such as sacct's output, or a workload such as synergy:400@6.",
)
@click.option(
    "--policies",
    metavar="P,...",
    shell_complete=complete_policies,
    help="Policies, as NAME or NAME/ORDER. The first is the baseline.",
)
@click.option(
    "--order",
    default="las",
    show_default=True,
    shell_complete=complete_orders,
    help="fifo, srtf, las or ftf, for policies without one.",
)
@click.option(
    "--loads", default="", callback=_parse_loads, metavar="N,...", help="Jobs per hour. Default: the trace's own."
)
@click.option("--seeds", default="1", show_default=True, callback=_parse_seeds, help="As 1 or 1..3.")
@click.option(
    "--profiles",
    metavar="F",
    shell_complete=complete_files,
    help="Throughputs of the models. Default: the shipped profiles.",
)
@click.option(
    "--format",
    "form",
    metavar="NAME",
    shell_complete=complete_formats,
    help="The trace's format, if it is not recognised.",
)
@click.option("--round", "period", default=300.0, show_default=True, metavar="SECONDS", help="Length of a round.")
@early_option
@click.option("--overhead", default=60.0, show_default=True, metavar="SECONDS", help="Time that a restart costs a job.")
@click.option("--window", callback=parse_window, metavar="A:B", help="Measure these jobs, in order of arrival.")
@click.option("--skip-impossible", is_flag=True, help="Leave out jobs that could never run.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Worker processes. Default: one for each core.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the report to this file.")
@click.option("--on-slurm", is_flag=True, help="Run the simulations as a job array on Slurm.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="--on-slurm: folder that all nodes can write to.",
)
@click.option(
    "--resume", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Continue the run of this folder."
)
@click.option("--cell", type=int, hidden=True, help="Run only this cell of the folder, as the array's tasks do.")
@click.option("--partition", default="", help="--on-slurm: partition of the tasks.")
@click.option("--at-once", type=click.IntRange(min=0), default=0, help="--on-slurm: most tasks at once, 0 for all.")
@json_option("cli.compare:ComparedPolicies")
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
    early: float,
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
    """Compare policies on the same workload.

    How would last month have been under another policy? All runs are simulated, with the same code as live rounds.

    \b
    Example:
      synsched compare --trace month.txt --policies slurm,synergy --html m.html
      synsched compare --cluster v100:16x8 --trace synergy:1000@6 \\
        --policies slurm,synergy/fifo,synergy/las --loads 3,6,9
    """
    if resume is not None and cell is not None:
        SweepFolder(resume.absolute()).run_cell_at(cell)
        return
    check_page_file(html)
    if resume is not None:
        target_folder, planned_sweep = SweepFolder(resume.absolute()), SweepFolder(resume).read_sweep()
    else:
        if trace is None or policies is None:
            raise click.UsageError("give the workload with --trace and the policies with --policies")
        options = SimulationOptions(
            period=period, early=early, overhead=overhead, window=window, skip_impossible=skip_impossible
        )
        chosen = _parse_policies(policies, order)
        say_what_ignores_the_order(chosen)
        nodes, name = _empty_nodes(invocation, cluster)
        source, knowledge = _TraceSource(trace, profiles, form), profiles_or_shipped(profiles)
        if profiles and (problem := unknown_models(source.load(1, None), knowledge)):
            click.echo(f"synsched: {problem}", err=True)
        planned_sweep = build_sweep(
            nodes,
            knowledge,
            chosen,
            source.load,
            options,
            seeds=seeds,
            loads=loads,
            cluster=name,
            command=typed_command(),
            left_out=source.left_out(seeds[0], nodes, impossible=skip_impossible),
        )
        target_folder = SweepFolder((folder or Path("synsched-comparison")).absolute())
    if on_slurm or resume is not None:
        results = _run_on_slurm(
            invocation, target_folder, planned_sweep, ArrayOptions(partition, at_once=at_once), fresh=resume is None
        )
    else:
        with progress_reporter(pluralise(len(planned_sweep.cells), "simulation")) as report_progress:
            results = run_locally(planned_sweep, jobs, on_result=report_progress)
    comparison = compare_results(results)
    _show_results(comparison, planned_sweep, as_json=as_json)
    if html is not None:
        write_page(html, comparison_page(planned_sweep, results, comparison, invocation.now()))
    if comparison.lost:
        click.get_current_context().exit(1)


def _parse_policies(text: str, order: str) -> Sequence[PolicyChoice]:
    chosen = [parse_policy(name, order) for name in split_names(text)]
    if not chosen:
        raise click.UsageError("name at least one policy with --policies")
    return chosen


def _empty_nodes(invocation: Invocation, description: str | None) -> tuple[tuple[Node, ...], str]:
    """Returns the nodes and the name of the described cluster, or of the real one without its jobs."""
    if description is not None:
        spec = load_cluster(description)
        return spec.nodes, spec.name
    snapshot = connect_backend(invocation.settings).observe()
    nodes = tuple(
        replace(
            node,
            used=Resources(),
            gpus=tuple(replace(gpu, used=0) for gpu in node.gpus),
            partitions=frozenset({SPEC_PARTITION}),
        )
        for node in snapshot.nodes
        if node.gpus
    )
    if not nodes:
        raise SimulationError("this cluster has no GPUs: describe one with --cluster")
    return nodes, f"{snapshot.cluster or 'this cluster'}, {pluralise(len(nodes), 'node')} with GPUs"


def _run_on_slurm(
    invocation: Invocation, target_folder: SweepFolder, planned_sweep: Sweep, array: ArrayOptions, *, fresh: bool
) -> tuple[CellResult | FailedCell, ...]:
    if fresh:
        target_folder.create(planned_sweep)
    cluster = invocation.settings.cluster
    job = submit_array(target_folder, planned_sweep, array, cluster.slurm_conf)
    if job is not None:
        click.echo(
            f"synsched: {pluralise(len(target_folder.missing_cells(planned_sweep)), 'simulation')} as job {job},"
            f" in {target_folder.path}",
            err=True,
        )
        with progress_reporter(f"job {job}") as report_progress:
            wait_for_array(
                job,
                Commands(cluster.timeout, cluster.slurm_conf),
                invocation.clock,
                on_poll=lambda: report_progress(
                    1 - len(target_folder.missing_cells(planned_sweep)) / len(planned_sweep.cells)
                ),
            )
    return target_folder.results(planned_sweep)


@dataclass(frozen=True, slots=True)
class ComparedPolicies:
    """Policies on the same jobs: a sentence, means of each policy, the figures of each run, and the jobs of the trace
    that were left out, by reason."""

    headline: str
    rows: tuple[ComparisonRow, ...]
    cells: tuple[RunMetrics, ...]
    lost: tuple[str, ...]
    left_out: tuple[str, ...]


def _show_results(comparison: Comparison, sweep: Sweep, *, as_json: bool) -> None:
    if as_json:
        print_json(
            ComparedPolicies(comparison.headline, comparison.rows, comparison.cells, comparison.lost, sweep.left_out)
        )
    else:
        console().print(comparison_view(comparison, sweep.left_out))
