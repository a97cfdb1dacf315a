"""`synsched reproduce`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import (
    check_page_file,
    console,
    json_option,
    print_json,
    typed_command,
    with_progress,
    write_page,
)
from slurmsched.cli.parameters import complete_files, complete_orders, complete_policies, completion, parse_seeds
from slurmsched.experiments.experiment import (
    Bound,
    ExperimentError,
    ExperimentSetup,
    FigureRow,
    FigureVerdict,
    KeptCases,
    MixedColumn,
    MixedRow,
    PromiseRow,
)
from slurmsched.experiments.figures import (
    FigurePart,
    KeptFigures,
    check_replaceable,
    figure_parts,
    kept_figures,
    measure_missing,
)
from slurmsched.experiments.figures import keep as keep_rows
from slurmsched.experiments.registry import EXPERIMENTS
from slurmsched.experiments.registry import run_experiment as run
from slurmsched.report.experiments import figures_page, outcome_view
from slurmsched.report.mixed import mixed_page


def _parse_seeds(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Parses `42`, `42..44` or `1,5,7..9`. Raises click.BadParameter."""
    return tuple(dict.fromkeys(seed for part in value.split(",") for seed in parse_seeds(part)))


_EXPERIMENT_LIST = "\n".join(f"  {name:<19} {entry.summary}" for name, entry in EXPERIMENTS.items())


def _offered_experiments(_invocation: Invocation) -> Iterator[tuple[str, str]]:
    return ((name, entry.summary) for name, entry in EXPERIMENTS.items())


@click.command(epilog="\b\nExperiments:\n" + _EXPERIMENT_LIST)
@click.argument("name", metavar="EXPERIMENT", required=False, shell_complete=completion(_offered_experiments))
@click.option("--all", "everything", is_flag=True, help="Measure what is missing of all figures, and write their page.")
@click.option("--keep", is_flag=True, help="Keep the rows for --all.")
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("docs/figures.md"),
    show_default=True,
    help="The page of all figures. Rows are kept in the folder of that name without `.md`.",
)
@click.option(
    "--data",
    envvar="SLURMSCHED_DATA",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the public data sets, if the experiment needs one. Default: $SLURMSCHED_DATA.",
)
@click.option("--seeds", default="42..44", show_default=True, callback=_parse_seeds, help="As 42, 42..44 or 1,5.")
@click.option("--quick", is_flag=True, help="Run the small version, if there is one.")
@click.option(
    "--cases",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the result of each single run in this folder, and take those of an unchanged program and data from it.",
)
@click.option("--trace", metavar="FILE", shell_complete=complete_files, help="synergy-replay: the trace.")
@click.option("--order", metavar="NAME", shell_complete=complete_orders, help="synergy-replay: fifo, srtf, las or ftf.")
@click.option("--round", metavar="SECONDS", help="synergy-replay: length of a round.")
@click.option(
    "--profiles",
    metavar="FILE",
    shell_complete=complete_files,
    help="synergy-replay: profiles, in the data set's format.",
)
@click.option("--variant", metavar="NAME", help="fgd-variant: gpushare100, multigpu20 or gpuspec10.")
@click.option(
    "--pods", metavar="FILE", shell_complete=complete_files, help="fgd-variant: a list of pods in that format."
)
@click.option(
    "--vectors",
    metavar="FILE",
    shell_complete=complete_files,
    help="gavel-vectors: the test cases. Default: those of the data set.",
)
@click.option("--workloads", metavar="NAME,...", help="mixed: drawn, parts, openb, philly, itp.")
@click.option("--loads", metavar="N,...", help="mixed: of 1, which keeps all GPUs busy.")
@click.option("--jobs", metavar="N", help="mixed: jobs of a workload, 200 by default.")
@click.option(
    "--policies",
    metavar="P,...",
    shell_complete=complete_policies,
    help="mixed: as NAME or NAME/ORDER, or a variant such as hadar-tune.",
)
@click.option("--knowledge", metavar="NAME,...", help="mixed: perfect, what a site knows, or same-limits.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="mixed: write a report with plots to this file."
)
@json_option("cli.reproduce:Reproduction")
@click.pass_context
def reproduce(
    context: click.Context,
    /,
    *,
    name: str | None,
    data: Path | None,
    seeds: tuple[int, ...],
    quick: bool,
    everything: bool,
    keep: bool,
    page: Path,
    cases: Path | None,
    html: Path | None,
    as_json: bool,
    **options: str | None,
) -> None:
    """Reproduce a published figure.

    Prints each measured figure beside the paper's and, if known, the result of the authors' code. All experiments are
    simulations except hadare-quality, which trains models. Exits 1 if a figure is outside its tolerance.

    With --all it writes one page of all figures. What a run has measured is kept, so that hours of work can be done one
    experiment at a time; a whole run replaces the rows of a quick one. --keep replaces the rows of one experiment. An
    experiment that was stopped goes on where it was if both runs have the same --cases.

    \b
    Example:
      synsched reproduce synergy-static --data ~/data
      synsched reproduce synergy-replay --trace jobs.csv --order srtf --json
      synsched reproduce --all --quick --data ~/data
    """
    given_options = {option: value for option, value in options.items() if value is not None}
    kept_cases = KeptCases.of_this_program(cases, data) if cases else None
    setup = ExperimentSetup(data, seeds, quick, given_options, with_progress, kept_cases)
    if everything == (name is not None) or (everything and (given_options or as_json)):
        raise click.UsageError("name one experiment, or give --all without options of an experiment and without --json")
    if html is not None and name != "mixed":
        raise click.UsageError("--html is for mixed, which has plots")
    check_page_file(html)
    if name is None:
        if not _write_page(page, setup):
            context.exit(1)
        return
    part = FigurePart(name, given_options)
    if keep:
        _check_keeping(part, page, quick=quick)
    outcome = run(name, setup)
    if keep:
        keep_rows(KeptFigures(part, seeds, quick, _today(), outcome.rows), page.with_suffix(""))
    if as_json:
        rows = tuple(map(_reproduced, outcome.rows))
        print_json(Reproduction(outcome.experiment, rows, dict(outcome.series), outcome.ok))
    else:
        console().print(outcome_view(outcome))
    if html is not None:
        mixed = [row for row in outcome.rows if isinstance(row, MixedRow)]
        write_page(html, mixed_page(mixed, typed_command(), datetime.now(UTC).timestamp()))
    if not outcome.ok:
        context.exit(1)


def _check_keeping(part: FigurePart, page: Path, *, quick: bool) -> None:
    """Raises UsageError or ExperimentError if the part's rows would not be kept: before hours of work, not after."""
    if part not in figure_parts():
        raise click.UsageError(f"{part.name} is no part of --all: {', '.join(each.name for each in figure_parts())}")
    check_replaceable(part, page.with_suffix(""), quick=quick)


def _write_page(page: Path, setup: ExperimentSetup) -> bool:
    """Writes the page after every part, so that it is there when a run of hours is stopped. Returns whether all figures
    are within bounds."""
    figures = list[KeptFigures]()
    for kept in measure_missing(page.with_suffix(""), setup, _today()):
        figures.append(kept)
        counts = f"{kept.result.count(FigureVerdict.HELD)} held, {kept.result.count(FigureVerdict.MISSED)} missed"
        click.echo(f"{kept.part.name}: {counts}, {kept.result.count(FigureVerdict.NOT_HELD)} not held")
        try:
            page.write_text(figures_page(kept_figures(page.with_suffix(""))), encoding="utf-8")
        except OSError as error:
            raise ExperimentError(f"cannot write {page}: {error.strerror}") from error
    return all(kept.result.ok for kept in figures)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


@dataclass(frozen=True, slots=True)
class ReproducedFigure:
    """One figure: ours, the paper's, that of the authors' code, and whether ours is within its bound."""

    metric: str
    unit: str
    published: float | None
    reference: float | None
    measured: float
    ratio: float | None
    tolerance: float | None
    ok: bool
    verdict: FigureVerdict
    limit: float | None
    chosen_after: bool
    bound: Bound
    note: str


@dataclass(frozen=True, slots=True)
class MeasuredPromise(ReproducedFigure):
    """What a policy promises users, measured in one scenario: `measured` is the worst of the seeds."""

    policy: str
    scenario: str
    promise: str
    mean: float


@dataclass(frozen=True, slots=True)
class MixedFigure(ReproducedFigure):
    """A policy on a mixed workload: `measured` is the mean of the seeds, `least` and `most` are theirs."""

    workload: str
    knowledge: str
    load: float
    policy: str
    column: MixedColumn
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The figures of an experiment, curves by name, and whether all figures are within their bounds."""

    experiment: str
    rows: tuple[ReproducedFigure | MeasuredPromise | MixedFigure, ...]
    series: Mapping[str, Sequence[tuple[float, float]]]
    ok: bool


def _reproduced(row: FigureRow) -> ReproducedFigure:
    kind: type[ReproducedFigure] = ReproducedFigure
    if isinstance(row, PromiseRow | MixedRow):
        kind = MeasuredPromise if isinstance(row, PromiseRow) else MixedFigure
    return kind(**{each.name: getattr(row, each.name) for each in fields(kind)})
