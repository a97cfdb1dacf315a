"""`synsched trace`."""

from __future__ import annotations

from pathlib import Path

import click

from slurmsched.cli.output import console, json_option, print_json
from slurmsched.report.trace_view import formats_view, skipped_lines, trace_view
from slurmsched.simulation.inputs import trace_from
from slurmsched.traces.generating import GENERATORS, generate
from slurmsched.traces.own import written
from slurmsched.traces.reading import FORMATS
from slurmsched.traces.summary import summary
from slurmsched.traces.trace import Trace

__all__ = ["trace"]

_FORM = click.option("--format", "form", type=click.Choice(list(FORMATS)), help="Its form, where not recognised.")
_PROFILES = click.option("--profiles", metavar="F", help="Synergy's profiles.json, for traces in iterations.")
_OUT = click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write.")


@click.group()
def trace() -> None:
    """Read, make and look at traces.

    \b
    Example:
      synsched trace formats
      synsched trace show month.txt
    """


@trace.command("import")
@click.argument("file", metavar="FILE")
@_FORM
@_PROFILES
@_OUT
def import_(*, file: str, form: str | None, profiles: str | None, out: Path | None) -> None:
    """Write a trace of another form as our CSV.

    \b
    Example:
      synsched trace import month.txt -o month.csv
    """
    found = trace_from(file, profiles=profiles, form=form)
    for line in skipped_lines(found):
        click.echo(line, err=True)
    _write(found.trace, out)


@trace.command("generate")
@click.argument("name", type=click.Choice(list(GENERATORS)))
@click.option("--jobs", type=click.IntRange(min=1), required=True, help="How many.")
@click.option("--rate", default=10.0, show_default=True, help="Jobs per hour.")
@click.option("--seed", default=1, show_default=True, help="Another number, other jobs.")
@_OUT
def generate_(*, name: str, jobs: int, rate: float, seed: int, out: Path | None) -> None:
    """Make up a trace by a published distribution.

    \b
    Example:
      synsched trace generate synergy --jobs 1000 --rate 6 -o synergy.csv
    """
    _write(generate(name, jobs, seed, rate), out)


@trace.command("show")
@click.argument("file", metavar="FILE")
@_FORM
@_PROFILES
@json_option
def show(*, file: str, form: str | None, profiles: str | None, as_json: bool) -> None:
    """Show what is in a trace.

    \b
    Example:
      synsched trace show jobs.csv
    """
    found = trace_from(file, profiles=profiles, form=form)
    if as_json:
        print_json(summary(found.trace))
        return
    console().print(trace_view(summary(found.trace)))
    for line in skipped_lines(found):
        click.echo(line)


@trace.command("formats")
def formats() -> None:
    """Show the forms of trace that are read.

    \b
    Example:
      synsched trace formats
    """
    console().print(formats_view())


def _write(made: Trace, out: Path | None) -> None:
    if out is None:
        click.echo(written(made), nl=False)
    else:
        out.write_text(written(made), encoding="utf-8")
