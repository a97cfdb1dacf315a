"""`synsched trace`."""

from __future__ import annotations

from pathlib import Path

import click

from slurmsched.cli.output import console, json_option, print_json, write_page
from slurmsched.cli.parameters import complete_files
from slurmsched.report.traces import formats_view, skipped_lines, trace_view
from slurmsched.simulation.inputs import load_trace
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.formats.native import to_csv
from slurmsched.traces.formats.registry import TRACE_FORMATS
from slurmsched.traces.generators import GENERATORS, generate
from slurmsched.traces.statistics import summarise_trace
from slurmsched.traces.trace import Trace

_FORMAT_OPTION = click.option(
    "--format",
    "form",
    type=click.Choice(list(TRACE_FORMATS)),
    metavar="FORMAT",
    help="Its format, if not recognised: one of 'trace formats'.",
)
_PROFILES_OPTION = click.option(
    "--profiles",
    metavar="F",
    shell_complete=complete_files,
    help="Synergy's profiles.json, for traces that count iterations.",
)
_OUT_OPTION = click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write.")


@click.group()
def trace() -> None:
    """Convert, generate and show traces.

    \b
    Example:
      synsched trace formats
      synsched trace show month.txt
    """


@trace.command("import")
@click.argument("file", metavar="FILE", shell_complete=complete_files)
@_FORMAT_OPTION
@_PROFILES_OPTION
@_OUT_OPTION
def import_(*, file: str, form: str | None, profiles: str | None, out: Path | None) -> None:
    """Convert a trace of another format to our CSV.

    \b
    Example:
      synsched trace import month.txt -o month.csv
    """
    loaded = load_trace(file, profiles=profiles, form=form)
    for line in skipped_lines(loaded.skipped):
        click.echo(line, err=True)
    _write_csv(loaded.trace, out)


@trace.command("generate")
@click.argument("name", type=click.Choice(list(GENERATORS)))
@click.option("--jobs", type=click.IntRange(min=1), required=True, help="Number of jobs.")
@click.option("--rate", default=10.0, show_default=True, help="Jobs per hour.")
@click.option("--seed", default=1, show_default=True, help="Seed of the generator.")
@click.option("--fork", default=0, metavar="N", help="Fork one-GPU jobs into N copies (HadarE).")
@_OUT_OPTION
def generate_(*, name: str, jobs: int, rate: float, seed: int, fork: int, out: Path | None) -> None:
    """Generate a trace by a published distribution.

    \b
    Example:
      synsched trace generate synergy --jobs 1000 --rate 6 -o synergy.csv
    """
    _write_csv(generate(name, jobs, seed, rate, fork), out)


@trace.command("show")
@click.argument("file", metavar="FILE", shell_complete=complete_files)
@_FORMAT_OPTION
@_PROFILES_OPTION
@click.option("--cluster", metavar="C", shell_complete=complete_files, help="Tell the load on it: v100:4x8 or a file.")
@json_option("traces.statistics:TraceSummary")
def show(*, file: str, form: str | None, profiles: str | None, cluster: str | None, as_json: bool) -> None:
    """Show a queue at a glance.

    How many jobs arrive when, how many GPUs they ask for over time, their sizes, durations and users. FILE is a trace
    of any format, or a workload to generate, such as synergy:1000@6.

    \b
    Example:
      synsched trace show jobs.csv
      synsched trace show month.txt --cluster v100:16x8
    """
    loaded = load_trace(file, profiles=profiles, form=form)
    summary = summarise_trace(loaded, load_cluster(cluster) if cluster else None)
    if as_json:
        print_json(summary)
    else:
        console().print(trace_view(summary))


@trace.command("formats")
def formats() -> None:
    """List the trace formats that can be read.

    \b
    Example:
      synsched trace formats
    """
    console().print(formats_view())


def _write_csv(trace: Trace, out: Path | None) -> None:
    if out is None:
        click.echo(to_csv(trace), nl=False)
    else:
        write_page(out, to_csv(trace))
